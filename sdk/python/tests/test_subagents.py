"""`subagent()`: what is created, when the execution is suspended, and what the tool returns."""

import asyncio
import functools
from typing import Any

import pytest
from conftest import Bench, until
from drivers import Driver
from scripted_kernel import DEADLINE, error
from starlette.responses import JSONResponse

from rebuno import (
    Blocked,
    Client,
    LeaseSuperseded,
    NotFoundError,
    ToolError,
    execution,
    resource,
    step,
    subagent,
    tool,
)

ENDED = JSONResponse({"suspended": False})


@tool("ask")
async def ask(question: str) -> Any:
    """Asks the helper."""
    return await subagent("helper", {"question": question})


def settled(bench: Bench, **outcomes: dict[str, Any]) -> None:
    """What the steps have come to, by id, once their subagents have ended."""
    for step_id, outcome in outcomes.items():
        shown = {"step_id": step_id, "target": "ask", "status": "succeeded"} | outcome
        bench.kernel.answer(step_id, JSONResponse(shown), times=9)


def created(bench: Bench) -> list[Any]:
    return [call.body for call in bench.kernel.named("executions")]


async def test_one(bench: Bench) -> None:
    seen: list[Any] = []

    async def process(given: Any) -> Any:
        try:
            return await ask("why?")
        finally:
            seen.append(execution().suspension)

    assert await bench.run(process) is None
    assert bench.kernel.names() == ["get", "steps", "executions", "suspend"]
    assert created(bench) == [
        {
            "agent_id": "helper",
            "input": {"question": "why?"},
            "spawned_by": {"execution_id": "e1", "step_id": "s1"},
        }
    ]
    suspend = bench.kernel.named("suspend")[0]
    assert (suspend.method, suspend.path, suspend.raw) == ("POST", "/v0/executions/e1/suspend", b"")
    assert suspend.headers["rebuno-dispatch-id"] == "d1"
    assert isinstance(seen[0], Blocked)


async def test_only_what_is_set_is_sent(bench: Bench) -> None:
    async def process(given: Any) -> Any:
        await step("s", lambda: subagent("helper", session="ada-7"))

    await bench.run(process)
    spawned_by = {"execution_id": "e1", "step_id": "s1"}
    assert created(bench) == [{"agent_id": "helper", "session": "ada-7", "spawned_by": spawned_by}]


async def test_one_that_has_ended_meanwhile(bench: Bench) -> None:
    bench.kernel.answer("suspend", ENDED)
    settled(bench, s1={"result": {"answer": 42}})
    assert await bench.output(lambda given: ask("why?")) == {"answer": 42}
    names = bench.kernel.names()
    assert names == ["get", "steps", "executions", "suspend", "s1", "complete", "complete"]
    read = bench.kernel.named("s1")[0]
    assert (read.method, read.path) == ("GET", "/v0/executions/e1/steps/s1")
    assert "rebuno-dispatch-id" not in read.headers
    assert bench.kernel.named("complete")[0].body == {"result": {"answer": 42}}


async def test_one_that_has_failed_meanwhile(bench: Bench) -> None:
    bench.kernel.answer("suspend", ENDED)
    message = "helper failed: agent_error: ValueError: no luck"
    settled(bench, s1={"error": {"reason": "subagent_failed", "message": message}})

    async def process(given: Any) -> None:
        with pytest.raises(ToolError) as caught:
            await ask("why?")
        assert (caught.value.tool_id, caught.value.step_id) == ("ask", "s1")
        raise caught.value from None

    assert await bench.failure(process) == f"tool_error: ask: {message}"


@pytest.mark.parametrize("how", ["returns something else", "raises", "swallows the error"])
async def test_the_outcome_is_the_subagents_live_as_on_replay(bench: Bench, how: str) -> None:
    """The kernel has settled the step: what the body makes of it is recorded nowhere."""

    @tool("ask")
    async def decorated() -> Any:
        if how == "swallows the error":
            with pytest.raises(ToolError):
                await subagent("helper")
            return "fine"
        answer = await subagent("helper")
        if how == "raises":
            raise ValueError("no luck")
        return {"said": answer}

    failed = {"error": {"message": "m"}} if how == "swallows the error" else {"result": "plain"}

    async def process(given: Any) -> Any:
        try:
            return await decorated()
        except ToolError as exc:
            return str(exc)

    bench.kernel.answer("suspend", ENDED)
    settled(bench, s1=failed)
    live = await bench.output(process)
    bench.kernel.decide("ask", decision="replay", **failed)
    assert live == await bench.output(process)
    assert live == ("ask: m" if how == "swallows the error" else "plain")


async def test_a_replay_creates_nothing(bench: Bench) -> None:
    bench.kernel.decide("ask", decision="replay", result="said")
    assert await bench.output(lambda given: ask("why?")) == "said"
    assert bench.kernel.names() == ["get", "steps", "complete"]


# several


async def test_several_are_suspended_together(bench: Bench) -> None:
    results: list[Any] = []

    async def process(given: Any) -> Any:
        calls = (ask(question) for question in "abc")
        results.extend(await asyncio.gather(*calls, return_exceptions=True))
        return "not for the kernel"

    assert await bench.run(process) is None
    assert bench.kernel.names() == ["get", *["steps"] * 3, *["executions"] * 3, "suspend"]
    assert [type(result) for result in results] == [Blocked] * 3


async def test_several_that_have_ended_meanwhile(bench: Bench) -> None:
    bench.kernel.answer("suspend", ENDED)
    settled(bench, s1={"result": 1}, s2={"result": 2}, s3={"result": 3})

    async def process(given: Any) -> Any:
        return await asyncio.gather(*(ask(question) for question in "abc"))

    assert await bench.output(process) == [1, 2, 3]
    assert len(bench.kernel.named("suspend")) == 1


async def test_a_task_group_with_several(bench: Bench) -> None:
    async def process(given: Any) -> Any:
        async with asyncio.TaskGroup() as group:
            for question in "abc":
                group.create_task(ask(question))

    assert await bench.run(process) is None
    assert bench.kernel.names()[-1] == "suspend"
    assert bench.kernel.named("fail") == []


async def test_calls_in_flight_end_first(bench: Bench) -> None:
    go = asyncio.Event()

    async def slow() -> str:
        await go.wait()
        return "done"

    async def process(given: Any) -> Any:
        return await asyncio.gather(ask("why?"), step("slow", slow))

    bench.kernel.add()
    agent = bench.agent(process)
    await bench.deliver(agent)
    await bench.kernel.until_called("executions")
    for _ in range(50):
        await asyncio.sleep(0)
    assert "suspend" not in bench.kernel.names()
    go.set()
    await asyncio.wait_for(agent.join(), DEADLINE)
    assert bench.kernel.names()[-2:] == ["complete", "suspend"]


async def test_a_call_that_is_held_beside_it(bench: Bench) -> None:
    """The execution is blocked already: nothing is asked, and the step is given back."""
    bench.kernel.decide("held", decision="blocked", approval_id="p1")

    async def process(given: Any) -> Any:
        return await asyncio.gather(ask("why?"), step("held", lambda: 1))

    assert await bench.run(process) is None
    names = bench.kernel.names()
    assert sorted(names) == sorted(["get", "steps", "steps", "executions", "release"])
    assert names[-1] == "release"


async def test_one_at_a_time_they_still_wait_together(bench: Bench) -> None:
    """Who waits gives its turn on, and takes it up again."""
    order: list[str] = []

    @tool("ask", resources=["ws"])
    async def asks(question: str) -> Any:
        order.append(f"{question} asks")
        answer = await subagent("helper", question)
        order.append(f"{question} goes on")
        await asyncio.sleep(0)
        order.append(f"{question} ends")
        return answer

    async def process(given: Any) -> Any:
        await resource("ws", driver=Driver())
        look = step("look", lambda: order.append("looks"))
        return await asyncio.gather(asks("a"), look, asks("b"))

    bench.kernel.answer("suspend", ENDED)
    settled(bench, s1={"result": 1}, s3={"result": 3})
    assert await bench.output(process) == [1, None, 3]
    assert order[:3] == ["a asks", "looks", "b asks"]
    first, second = order[3].removesuffix(" goes on"), order[5].removesuffix(" goes on")
    assert sorted([first, second]) == ["a", "b"]
    assert order[3:] == [
        f"{name} {what}" for name in (first, second) for what in ("goes on", "ends")
    ]
    assert len(bench.kernel.named("suspend")) == 1


async def test_a_due_capture_of_a_step_that_waited(bench: Bench) -> None:
    due = [{"key": "ws", "generation": 2, "due": True}]
    bench.kernel.decide("ask", decision="proceed", resources=due)
    bench.kernel.answer("suspend", ENDED)
    settled(bench, s1={"result": 1})

    async def process(given: Any) -> Any:
        await resource("ws", driver=Driver())
        return await ask("why?")

    assert await bench.output(process) == 1
    report = bench.kernel.named("complete")[0].body
    assert report["captures"] == [{"key": "ws", "generation": 2, "checkpoint_ref": "ref1"}]


async def test_a_capture_of_a_wait_that_is_cancelled_takes_its_turn(bench: Bench) -> None:
    """It gave its turn away, so it is captured when the call that has it has ended."""
    go, begun = asyncio.Event(), asyncio.Event()
    due = [{"key": "ws", "generation": 2, "due": True}]
    bench.kernel.decide("ask", decision="proceed", resources=due)

    async def slow() -> None:
        begun.set()
        await go.wait()

    async def process(given: Any) -> Any:
        driver = Driver()
        await resource("ws", driver=driver)
        asks, beside = asyncio.create_task(ask("why?")), asyncio.create_task(step("slow", slow))
        await begun.wait()
        asks.cancel()
        for _ in range(20):
            await asyncio.sleep(0)
        assert driver.calls == [("create", None)]
        go.set()
        await asyncio.wait({asks, beside})
        return driver.calls[1:]

    assert await bench.output(process) == [["checkpoint", "handle1"]]
    assert [call.name for call in bench.kernel.calls if "/steps/" in call.path] == [
        "complete",
        "fail",
    ]


async def test_tools_that_call_tools_with_subagents(bench: Bench) -> None:
    """The outer one waits for the inner one, so it is no reason not to suspend."""

    async def both() -> Any:
        return await asyncio.gather(ask("a"), ask("b"))

    async def process(given: Any) -> Any:
        await asyncio.gather(step("outer", both), ask("c"))

    assert await bench.run(process) is None
    names = bench.kernel.names()
    assert names.count("executions") == 3
    # The outer step is left executing, so the run is given back.
    assert names[-2:] == ["suspend", "release"]


async def test_a_call_queued_behind_one_that_waits_does_not_hold_it_up(bench: Bench) -> None:
    bench.kernel.decide("queued", decision="execution_blocked")

    async def process(given: Any) -> Any:
        await resource("ws", driver=Driver())
        outer = functools.partial(ask, "why?")
        await asyncio.gather(step("outer", outer), step("queued", lambda: 1))

    assert await bench.run(process) is None
    targets = [call.body["target"] for call in bench.kernel.named("steps")]
    assert targets == ["outer", "ask", "queued"]
    assert len(bench.kernel.named("suspend")) == 1


async def test_one_after_the_other_in_one_body(bench: Bench) -> None:
    """A step has one subagent: the kernel answers the second create with the first."""

    async def body() -> Any:
        return [await subagent("helper", 1), await subagent("helper", 2)]

    bench.kernel.answer("suspend", ENDED, times=2)
    settled(bench, s1={"result": 1})
    assert await bench.output(lambda given: step("s", body)) == 1
    assert len(bench.kernel.named("suspend")) == 2


async def test_two_at_once_in_one_body(bench: Bench) -> None:
    async def body() -> Any:
        return await asyncio.gather(subagent("helper", 1), subagent("helper", 2))

    bench.kernel.answer("suspend", ENDED, times=2)
    settled(bench, s1={"result": 1})

    async def process(given: Any) -> Any:
        await resource("ws", driver=Driver())
        return await step("s", body)

    async with asyncio.timeout(DEADLINE):
        assert await bench.output(process) == 1


# loops, threads, clients


async def test_from_loops_of_their_own(bench: Bench) -> None:
    @tool("ask")
    def asks(question: str) -> Any:
        return asyncio.run(subagent("helper", question))

    async def process(given: Any) -> Any:
        await asyncio.gather(asks("a"), asks("b"), ask("c"))

    assert await bench.run(process) is None
    names = bench.kernel.names()
    assert (names.count("executions"), names.count("suspend")) == (3, 1)


async def test_a_handler_on_a_loop_of_its_own(bench: Bench) -> None:
    async def main() -> Any:
        await asyncio.gather(ask("a"), ask("b"))

    assert await bench.run(lambda given: asyncio.run(main())) is None
    assert bench.kernel.names()[-1] == "suspend"


async def test_a_client_of_the_callers(bench: Bench) -> None:
    asked: list[Any] = []

    class Other(Client):
        async def create(self, agent_id: str, input: Any = None, **fields: Any) -> Any:
            asked.append((agent_id, input, fields["spawned_by"].step_id))

    other = Other("http://other", "key")
    await bench.run(lambda given: step("s", lambda: subagent("helper", 1, client=other)))
    assert asked == [("helper", 1, "s1")]
    assert created(bench) == []


async def test_the_kernel_may_be_away_for_a_while(bench: Bench) -> None:
    for name in ("executions", "suspend", "s1"):
        bench.kernel.answer(name, error("unavailable", 503), times=5)
    bench.kernel.answer("suspend", ENDED)
    settled(bench, s1={"result": 1})
    assert await bench.output(lambda given: ask("why?")) == 1


# what goes wrong


async def test_outside(bench: Bench) -> None:
    with pytest.raises(RuntimeError, match="outside an active execution"):
        await subagent("helper")

    async def process(given: Any) -> Any:
        with pytest.raises(RuntimeError, match="outside a tool body"):
            await subagent("helper")

    await bench.output(process)
    assert bench.kernel.names() == ["get", "complete"]


async def test_an_agent_that_does_not_exist_fails_the_tool(bench: Bench) -> None:
    bench.kernel.answer("executions", error("not_found", 404, "no such agent"))

    async def process(given: Any) -> Any:
        with pytest.raises(ToolError, match="no such agent") as caught:
            await ask("why?")
        assert isinstance(caught.value.__cause__, NotFoundError)

    await bench.output(process)
    assert "no such agent" in bench.kernel.named("fail")[0].body["error"]["message"]


async def test_a_cancellation_by_the_handler(bench: Bench) -> None:
    """The step fails; the other calls that wait go on waiting."""
    go = asyncio.Event()

    async def process(given: Any) -> Any:
        slow = asyncio.create_task(step("slow", go.wait))
        asks = asyncio.create_task(ask("why?"))
        await bench.kernel.until_called("executions")
        asks.cancel()
        await asyncio.wait({asks})
        go.set()
        await slow
        return asks.cancelled()

    assert await bench.output(process) is True
    assert bench.kernel.named("fail")[0].body == {"error": {"message": "cancelled"}}
    assert "suspend" not in bench.kernel.names()


@pytest.mark.parametrize("which", [0, 1])
async def test_a_timeout_while_it_is_asked_for_all(bench: Bench, which: int) -> None:
    """If whoever asked is gone, another asks again."""
    arrived, go = asyncio.Event(), asyncio.Event()

    async def late(call: Any) -> None:
        arrived.set()
        await go.wait()

    bench.kernel.answer("suspend", late)

    async def process(given: Any) -> Any:
        calls = [asyncio.create_task(ask(question)) for question in "ab"]
        await arrived.wait()
        calls[which].cancel()
        go.set()
        await asyncio.wait({calls[which]})
        with pytest.raises(Blocked):
            await calls[1 - which]

    assert await bench.run(process) is None
    assert bench.kernel.named("fail")[0].body == {"error": {"message": "cancelled"}}
    assert len(bench.kernel.named("suspend")) in (1, 2)


async def test_a_superseded_wait_reports_nothing(bench: Bench) -> None:
    bench.kernel.answer("suspend", error("lease_superseded", 409))

    async def process(given: Any) -> Any:
        with pytest.raises(LeaseSuperseded):
            await ask("why?")
        raise LeaseSuperseded

    assert await bench.run(process) is None
    assert bench.kernel.names()[-1] in ("suspend", "release")
    assert bench.kernel.named("fail") == bench.kernel.named("complete") == []


async def test_an_execution_that_was_cancelled_meanwhile(bench: Bench) -> None:
    bench.kernel.answer("suspend", error("execution_terminal", 409))

    async def process(given: Any) -> Any:
        await asyncio.gather(ask("a"), ask("b"))

    assert await bench.run(process) is None
    assert len(bench.kernel.named("suspend")) == 1


async def test_a_closing_agent_suspends_what_only_waits(bench: Bench) -> None:
    go = asyncio.Event()

    async def process(given: Any) -> Any:
        await asyncio.gather(ask("why?"), step("slow", go.wait))

    bench.kernel.add()
    agent = bench.agent(process, shutdown_grace=60)
    await bench.deliver(agent)
    await bench.kernel.until_called("executions")
    closing = asyncio.create_task(agent.close())
    await until(lambda: all(dispatch._attempt.draining for dispatch in agent._dispatches))
    go.set()
    await asyncio.wait_for(closing, DEADLINE)
    assert bench.kernel.names()[-2:] == ["complete", "suspend"]
