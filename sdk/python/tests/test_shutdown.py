"""Closing an agent: what runs may finish, the rest is given back."""

import asyncio
from typing import Any

import pytest
from conftest import Bench, until
from scripted_kernel import DEADLINE, Call, error

from rebuno import Agent, execution, step
from rebuno.errors import LeaseSuperseded


class Body:
    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.go = asyncio.Event()
        self.cancelled = False

    async def __call__(self) -> str:
        self.started.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        return "done"


async def start(bench: Bench, process: Any, grace: float = 5) -> Agent:
    bench.kernel.add()
    agent = bench.agent(process, shutdown_grace=grace)
    await bench.deliver(agent)
    return agent


async def until_draining(agent: Agent) -> None:
    await until(lambda: all(dispatch._attempt.draining for dispatch in agent._dispatches))


async def turns(count: int) -> None:
    """Lets all that could happen by itself happen."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_running_step_finishes_and_nothing_new_starts(bench: Bench) -> None:
    body = Body()

    async def process(input: Any) -> None:
        await step("first", body)
        await step("second", lambda: 1)

    agent = await start(bench, process)
    await body.started.wait()
    closing = asyncio.create_task(agent.close())
    await until_draining(agent)
    assert await bench.deliver(agent, "e2") == 503  # for another process
    body.go.set()
    await closing
    assert bench.kernel.names() == ["get", "steps", "complete", "release"]
    release = bench.kernel.named("release")[0]
    assert (release.raw, release.headers["rebuno-dispatch-attempt"]) == (b"", "1")


async def test_steps_inside_a_running_step_are_let_through(bench: Bench) -> None:
    body = Body()

    async def outer() -> Any:
        await body()
        return await step("inner", lambda: 1)

    agent = await start(bench, lambda given: step("outer", outer))
    await body.started.wait()
    closing = asyncio.create_task(agent.close())
    await until_draining(agent)
    body.go.set()
    await closing
    targets = [call.body["target"] for call in bench.kernel.named("steps")]
    assert targets == ["outer", "inner"]
    assert len([call for call in bench.kernel.named("complete") if "/steps/" in call.path]) == 2


async def test_after_the_grace_all_is_cancelled_and_released(bench: Bench) -> None:
    body = Body()
    agent = await start(bench, lambda given: step("s", body), grace=0.01)
    await body.started.wait()
    await agent.close()
    assert body.cancelled
    assert bench.kernel.names() == ["get", "steps", "release"]
    await agent.close()
    assert bench.kernel.names() == ["get", "steps", "release"]


async def test_a_handler_between_steps_is_released_at_once(bench: Bench) -> None:
    started = asyncio.Event()

    async def process(input: Any) -> None:
        started.set()
        await asyncio.Event().wait()

    agent = await start(bench, process, grace=60)
    await started.wait()
    await asyncio.wait_for(agent.close(), DEADLINE)
    assert bench.kernel.names() == ["get", "release"]


async def test_a_model_call_finishes(bench: Bench) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def process(input: Any) -> None:
        context = execution()
        step_id, _ = await context.begin_llm("m", {})
        begun.set()
        await go.wait()
        await context.record_llm(step_id, "answer")
        await context.begin_llm("m", {})

    agent = await start(bench, process)
    await begun.wait()
    closing = asyncio.create_task(agent.close())
    await until_draining(agent)
    await turns(20)
    go.set()
    await closing
    assert bench.kernel.names() == ["get", "steps", "complete", "release"]


async def test_an_execution_that_is_being_completed_is(bench: Bench) -> None:
    arrived, answer = asyncio.Event(), asyncio.Event()

    async def late(call: Call) -> None:
        arrived.set()
        await answer.wait()

    bench.kernel.answer("complete", late)
    agent = await start(bench, lambda given: 1)
    await arrived.wait()
    closing = asyncio.create_task(agent.close())
    await until_draining(agent)
    answer.set()
    await closing
    assert bench.kernel.names() == ["get", "complete"]


async def test_a_suspended_execution_is_not_released(bench: Bench) -> None:
    body = Body()
    bench.kernel.decide("held", decision="blocked")

    async def process(input: Any) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(step("slow", body))
            await body.started.wait()
            await step("held", lambda: 1)

    agent = await start(bench, process)
    await bench.kernel.until_called("steps", 2)
    closing = asyncio.create_task(agent.close())
    await until_draining(agent)
    body.go.set()
    await closing
    assert bench.kernel.names() == ["get", "steps", "steps", "complete"]


@pytest.mark.parametrize("code", ["not_found", "lease_superseded", "internal_error"])
async def test_a_release_that_fails_is_left_to_the_lease(
    bench: Bench, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    status = {"not_found": 404, "lease_superseded": 409, "internal_error": 500}[code]
    bench.kernel.answer("release", error(code, status))
    body = Body()
    agent = await start(bench, lambda given: step("s", body), grace=0)
    await body.started.wait()
    await agent.close()
    assert ("not released" in caplog.text) is (code == "internal_error")


async def test_a_superseded_handler_is_waited_for_but_not_released(bench: Bench) -> None:
    waiting, go = asyncio.Event(), asyncio.Event()

    async def process(input: Any) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            waiting.set()
            await go.wait()
        return "late"

    agent = await start(bench, process)
    await until(lambda: bench.time.sleepers)
    bench.kernel.executions["e1"]["status"] = "completed"  # the second delivery does nothing
    await bench.deliver(agent, attempt=2)
    await waiting.wait()
    await bench.kernel.until_called("get", 2)
    closing = asyncio.create_task(agent.close())
    await asyncio.sleep(0)
    assert not closing.done()
    go.set()
    await closing
    assert bench.kernel.names() == ["get", "get"]


async def test_a_thread_left_behind_is_refused(bench: Bench) -> None:
    begun, closed = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    refused: asyncio.Future[BaseException] = loop.create_future()

    def process(input: Any) -> None:
        """A sync handler cannot be cancelled: it goes on in its thread."""
        loop.call_soon_threadsafe(begun.set)
        asyncio.run_coroutine_threadsafe(closed.wait(), loop).result(DEADLINE)
        try:
            asyncio.run(step("s", lambda: 1))
        except LeaseSuperseded as exc:
            loop.call_soon_threadsafe(refused.set_result, exc)

    agent = await start(bench, process, grace=0)
    await begun.wait()
    await agent.close()
    closed.set()
    assert "given up" in str(await asyncio.wait_for(refused, DEADLINE))
    assert bench.kernel.named("steps") == []


async def test_an_agent_can_be_started_again(bench: Bench) -> None:
    agent = await start(bench, lambda given: 1)
    await agent.join()
    await agent.close()
    async with agent.app.router.lifespan_context(agent.app):
        assert await bench.deliver(agent, attempt=2) == 200
        await agent.join()
    assert len(bench.kernel.named("complete")) == 2


async def test_what_a_body_does_when_cancelled_is_waited_for(bench: Bench) -> None:
    tidied: list[str] = []
    body = Body()

    async def tidies() -> None:
        try:
            await body()
        finally:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            tidied.append("before the release")

    async def process(input: Any) -> None:
        task = asyncio.create_task(step("s", tidies))
        await body.started.wait()
        del task
        await asyncio.Event().wait()

    agent = await start(bench, process, grace=0)
    await body.started.wait()
    bench.kernel.answer("release", lambda call: tidied.append("released"))
    await agent.close()
    assert tidied == ["before the release", "released"]


async def test_a_call_that_may_not_start_can_still_be_cancelled(bench: Bench) -> None:
    body = Body()
    timed_out = asyncio.Event()
    draining = asyncio.Event()

    async def process(input: Any) -> None:
        running = asyncio.create_task(step("first", body))
        await draining.wait()
        try:
            async with asyncio.timeout(0.01):
                await step("second", lambda: 1)
        except TimeoutError:
            timed_out.set()
        await running

    agent = await start(bench, process)
    await body.started.wait()
    closing = asyncio.create_task(agent.close())
    await until_draining(agent)
    draining.set()
    await asyncio.wait_for(timed_out.wait(), DEADLINE)
    body.go.set()
    await closing
    assert [call.body["target"] for call in bench.kernel.named("steps")] == ["first"]
