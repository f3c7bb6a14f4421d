"""Who cancels decides what a step comes to."""

import asyncio
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from conftest import Bench, until
from scripted_kernel import Call, error

from rebuno import Blocked, execution, step, tool
from rebuno._steps import _Step


class Body:
    """A step's body that waits until it is let go."""

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

    async def then(self, ends: Callable[..., None], *args: Any) -> str:
        """Begins, and then ends the time that the caller has: not before, on a slow machine."""
        ends(*args)
        return await self()


CANCELLED = {"error": {"message": "cancelled"}}


async def test_a_timeout_of_the_handler_fails_the_step(bench: Bench) -> None:
    body = Body()

    async def process(input: Any) -> str:
        try:
            async with asyncio.timeout(None) as limit:
                await step("s", lambda: body.then(limit.reschedule, 0))
        except TimeoutError:
            return "timed out"
        return "not reached"

    assert await bench.output(process) == "timed out"
    assert body.cancelled
    assert bench.kernel.named("fail")[0].body == CANCELLED


async def test_an_anyio_scope_of_the_handler_fails_the_step(bench: Bench) -> None:
    body = Body()

    async def process(input: Any) -> str:
        with anyio.CancelScope() as scope:
            await step("s", lambda: body.then(setattr, scope, "deadline", 0))
        return "moved on"

    assert await bench.output(process) == "moved on"
    assert body.cancelled
    assert bench.kernel.named("fail")[0].body == CANCELLED


async def test_a_task_group_fails_the_calls_beside_one_that_failed(bench: Bench) -> None:
    body = Body()

    async def fails() -> None:
        await body.started.wait()
        raise ValueError("boom")

    async def process(input: Any) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(step("slow", body))
            group.create_task(step("fails", fails))

    reason = await bench.failure(process)
    assert reason == "tool_error: fails: boom"  # a group of one counts as that one
    assert body.cancelled
    messages = sorted(call.body["error"]["message"] for call in bench.kernel.named("fail")[:2])
    assert messages == ["boom", "cancelled"]


async def test_a_cancelled_call_reports_what_is_due(bench: Bench) -> None:
    body = Body()
    bench.kernel.decide(
        "s", decision="proceed", resources=[{"key": "ws", "generation": 2, "due": True}]
    )

    async def process(input: Any) -> None:
        with anyio.CancelScope() as scope:
            await step("s", lambda: body.then(setattr, scope, "deadline", 0))

    await bench.output(process)
    report = bench.kernel.named("fail")[0].body
    assert report["error"] == {"message": "cancelled"}
    assert [failure["key"] for failure in report["capture_failures"]] == ["ws"]


async def test_a_body_that_cancels_itself_fails_its_step(bench: Bench) -> None:
    async def body() -> None:
        raise asyncio.CancelledError

    async def process(input: Any) -> str:
        with pytest.raises(asyncio.CancelledError):
            await step("s", body)
        return "went on"

    assert await bench.output(process) == "went on"
    assert bench.kernel.named("fail")[0].body == CANCELLED


async def test_cancelled_while_the_submission_is_on_its_way(bench: Bench) -> None:
    arrived, answer = asyncio.Event(), asyncio.Event()
    ran: list[int] = []

    async def late(call: Call) -> None:
        arrived.set()
        await answer.wait()

    async def process(input: Any) -> None:
        task = asyncio.create_task(step("s", lambda: ran.append(1)))
        await arrived.wait()
        task.cancel()
        answer.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    bench.kernel.answer("steps", late)
    await bench.output(process)
    assert ran == []  # but the kernel has let it start, so it gets an outcome
    assert bench.kernel.named("fail")[0].body == CANCELLED


async def test_cancelled_while_the_outcome_is_on_its_way(bench: Bench) -> None:
    arrived, answer = asyncio.Event(), asyncio.Event()

    async def late(call: Call) -> None:
        arrived.set()
        await answer.wait()

    async def process(input: Any) -> None:
        task = asyncio.create_task(step("s", lambda: 1))
        await arrived.wait()
        task.cancel()
        task.cancel()
        answer.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    bench.kernel.answer("complete", late)
    await bench.output(process)
    assert bench.kernel.named("complete")[0].body == {"result": 1}
    assert bench.kernel.named("fail") == []


async def blocked_beside(bench: Bench, body: Body, handler: Any) -> Any:
    """A call that is held, made when `body` is running."""

    async def held() -> Any:
        await body.started.wait()
        return await step("held", lambda: 1)

    bench.kernel.decide("held", decision="blocked", approval_id="p1")
    return await handler(held)


@pytest.mark.parametrize("how", ["task group", "cancelled and not waited for", "anyio"])
async def test_calls_beside_one_that_waits_run_to_their_end(
    bench: Bench, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = Body()
    interrupts: list[int] = []
    interrupt = _Step.interrupt

    def counted(self: _Step, task: asyncio.Task[Any]) -> None:
        interrupts.append(1)
        interrupt(self, task)

    monkeypatch.setattr(_Step, "interrupt", counted)
    bench.kernel.add()

    async def group(held: Any) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(step("slow", body))
            tasks.create_task(held())

    async def abandons(held: Any) -> None:
        slow = asyncio.create_task(step("slow", body))
        try:
            await held()
        finally:
            slow.cancel()

    async def anyio_group(held: Any) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(step, "slow", body)
            tasks.start_soon(held)

    handlers = {"task group": group, "cancelled and not waited for": abandons, "anyio": anyio_group}

    async def process(input: Any) -> None:
        await blocked_beside(bench, body, handlers[how])

    agent = bench.agent(process)
    await bench.deliver(agent)
    await bench.kernel.until_called("steps", 2)
    # The lease is kept while the neighbour runs, however long it takes.
    for beats in (1, 2):
        await until(lambda: bench.time.sleepers)
        await bench.time.elapse(30)
        await bench.kernel.until_called("heartbeat", beats)
    for _ in range(50):
        await asyncio.sleep(0)
    assert len(interrupts) == 1  # anyio would cancel at each turn of the loop
    body.go.set()
    await agent.join()
    assert not body.cancelled
    assert [call.body for call in bench.kernel.named("complete")] == [{"result": "done"}]
    assert bench.kernel.named("fail") == []


async def test_a_submission_beside_one_that_waits_is_seen_through(bench: Bench) -> None:
    arrived, answer = asyncio.Event(), asyncio.Event()
    ran: list[int] = []

    async def late(call: Call) -> None:
        if call.body["target"] == "slow":
            arrived.set()
            await answer.wait()

    async def process(input: Any) -> None:
        slow = asyncio.create_task(step("slow", lambda: ran.append(1)))
        await arrived.wait()
        try:
            await step("held", lambda: 1)
        finally:
            slow.cancel()
            answer.set()

    bench.kernel.answer("steps", late, times=2)
    bench.kernel.decide("held", decision="blocked")
    assert await bench.run(process) is None
    assert ran == [1]
    assert [call.body for call in bench.kernel.named("complete")] == [{"result": None}]


async def test_a_newer_delivery_cancels_what_was_shielded(bench: Bench) -> None:
    body = Body()
    bench.kernel.add()

    async def process(input: Any) -> str:
        if execution().dispatch_id == "d2":
            return "second"

        async def group(held: Any) -> None:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(step("slow", body))
                tasks.create_task(held())

        await blocked_beside(bench, body, group)
        return "not reached"

    agent = bench.agent(process)
    await bench.deliver(agent)
    await bench.kernel.until_called("steps", 2)
    await bench.deliver(agent, dispatch_id="d2")
    await agent.join()
    assert body.cancelled
    assert [call.body for call in bench.kernel.named("complete")] == [{"output": "second"}]
    assert bench.kernel.named("fail") == []


async def test_a_superseded_dispatch_leaves_its_steps_executing(bench: Bench) -> None:
    body = Body()
    bench.kernel.add()
    bench.kernel.answer("heartbeat", error("lease_superseded", 409))
    agent = bench.agent(lambda given: step("s", body))
    await bench.deliver(agent)
    await body.started.wait()
    await bench.time.elapse(30)
    await agent.join()
    assert body.cancelled
    assert bench.kernel.names() == ["get", "steps", "heartbeat"]


async def test_a_given_up_delivery_starts_nothing(bench: Bench) -> None:
    bench.kernel.add()
    seen: list[BaseException] = []

    async def process(input: Any) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            try:
                await step("s", lambda: 1)
            except BaseException as exc:
                seen.append(exc)
        return "swallowed its cancellation"

    agent = bench.agent(process)
    await bench.deliver(agent)
    await until(lambda: bench.time.sleepers)
    await asyncio.sleep(0)
    bench.kernel.answer("heartbeat", error("lease_superseded", 409))
    await bench.time.elapse(30)
    await agent.join()
    assert "given up" in str(seen[0])
    assert bench.kernel.names() == ["get", "heartbeat"]


async def test_a_call_that_nobody_awaits_does_not_hold_up_the_end(bench: Bench) -> None:
    body = Body()
    tasks: list[asyncio.Task[Any]] = []

    async def process(input: Any) -> str:
        tasks.append(asyncio.create_task(step("s", body)))
        await body.started.wait()
        return "gave up waiting"

    assert await bench.output(process) == "gave up waiting"
    tasks[0].cancel()
    await asyncio.wait(tasks)


async def test_swallowed_block_ends_only_when_neighbours_have(bench: Bench) -> None:
    body = Body()
    bench.kernel.add()

    @tool
    async def held() -> None: ...

    bench.kernel.decide("held", decision="execution_blocked")

    async def process(input: Any) -> str:
        asyncio.create_task(step("s", body))  # noqa: RUF006
        await body.started.wait()
        with pytest.raises(Blocked):
            await held()
        return "swallowed"

    agent = bench.agent(process)
    await bench.deliver(agent)
    await bench.kernel.until_called("steps", 2)
    assert [dispatch.task.done() for dispatch in agent._dispatches] == [False]
    body.go.set()
    await agent.join()
    assert [call.body for call in bench.kernel.named("complete")] == [{"result": "done"}]


async def test_what_a_suspended_handler_left_behind_starts_nothing(bench: Bench) -> None:
    body = Body()
    bench.kernel.add()
    bench.kernel.decide("held", decision="blocked", approval_id="p1")
    refused: list[str] = []
    left_behind: list[asyncio.Task[None]] = []

    async def goes_on() -> None:
        await body.started.wait()
        await asyncio.wait({agent_task()})
        with pytest.raises(Blocked) as caught:
            await step("another", lambda: 1)
        refused.append(str(caught.value))
        body.go.set()

    def agent_task() -> asyncio.Task[Any]:
        return handlers[0]

    handlers: list[asyncio.Task[Any]] = []

    async def inner() -> None:
        left_behind.append(asyncio.create_task(goes_on()))
        left_behind.append(asyncio.create_task(step("slow", body)))
        await body.started.wait()
        await step("held", lambda: 1)

    async def process(input: Any) -> None:
        handlers.append(asyncio.create_task(inner()))
        await handlers[0]

    agent = bench.agent(process)
    await bench.deliver(agent)
    await agent.join()
    assert "p1" in refused[0]
    targets = [call.body["target"] for call in bench.kernel.named("steps")]
    assert targets == ["slow", "held"]


async def test_a_loop_that_ends_reports_nothing(bench: Bench) -> None:
    """An application that stops its loop without closing the agent cancels all tasks."""
    body = Body()
    bench.kernel.add()
    agent = bench.agent(lambda given: step("s", body))
    await bench.deliver(agent)
    await body.started.wait()
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    await asyncio.wait(rest)
    assert bench.kernel.names() == ["get", "steps"]


async def test_a_body_that_resists_is_cancelled_again(bench: Bench) -> None:
    cancels = 0
    cancelled = asyncio.Event()
    started = asyncio.Event()

    async def stubborn() -> None:
        nonlocal cancels
        started.set()
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancels += 1
                cancelled.set()
                if cancels == 2:
                    raise

    async def process(input: Any) -> str:
        task = asyncio.create_task(step("s", stubborn))
        await started.wait()
        task.cancel()
        await cancelled.wait()
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        return f"cancelled {cancels} times"

    assert await bench.output(process) == "cancelled 2 times"
    assert bench.kernel.named("fail")[0].body == CANCELLED


async def test_a_shielded_body_bears_any_number_of_cancels(bench: Bench) -> None:
    body = Body()
    bench.kernel.decide("held", decision="blocked")

    async def process(input: Any) -> None:
        task = asyncio.create_task(step("slow", body))
        await body.started.wait()
        with pytest.raises(Blocked):
            await step("held", lambda: 1)
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0)
        body.go.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    assert await bench.run(process) is None
    assert not body.cancelled
    assert [call.body for call in bench.kernel.named("complete")] == [{"result": "done"}]
