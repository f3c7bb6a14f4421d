"""Captures: after the body and before the outcome, on completion, and when they fail."""

import asyncio
from typing import Any

import anyio
import pytest
from conftest import Bench
from drivers import Driver
from scripted_kernel import DEADLINE, Call, error

from rebuno import (
    Blocked,
    CheckpointPolicy,
    LeaseSuperseded,
    PolicyError,
    RateLimited,
    Result,
    Terminated,
    ToolError,
    execution,
    resource,
    step,
    tool,
    wrap_tool,
)

NEVER = CheckpointPolicy(every_steps=100, on_completion=False)


def due(*keys: str, generation: int = 2) -> dict[str, Any]:
    entries = [{"key": key, "generation": generation, "due": True} for key in keys]
    return {"decision": "proceed", "resources": entries}


def entry(key: str, generation: int = 2, **fields: Any) -> dict[str, Any]:
    return {"key": key, "generation": generation} | fields


async def run(bench: Bench, driver: Any, body: Any, *, kind: Any = None) -> Any:
    """Takes one step that is due, after the baseline, and swallows how it fails."""
    bench.kernel.resources["ws"] = {"covered": True}
    bench.kernel.decide("change", **due("ws"))

    async def process(given: Any) -> Any:
        await resource("ws", driver=driver, checkpoints=NEVER)
        try:
            return await step("change", body, resources=["ws"])
        except ToolError as exc:
            return exc.args[0]

    return await bench.output(process)


async def test_the_resources_of_a_call_are_submitted(bench: Bench) -> None:
    @tool("shell", resources=["ws"])
    async def shell() -> None: ...

    wrapped = wrap_tool("wrapped", lambda args: None, resources=["ws", "db"])

    async def process(given: Any) -> None:
        await shell()
        await wrapped()
        await step("local", lambda: None, resources=["db"])
        await step("none", lambda: None)
        await execution().invoke_tool("gateway", {}, resources=["ws"])

    await bench.output(process)
    declared = [call.body["resources"] for call in bench.kernel.named("steps")]
    assert declared == [["ws"], ["ws", "db"], ["db"], [], ["ws"]]


async def test_between_the_body_and_its_outcome(bench: Bench) -> None:
    driver = Driver()

    def body() -> str:
        driver.calls.append(("body", None))
        return "done"

    assert await run(bench, driver, body) == "done"
    assert driver.calls == [("create", None), ("body", None), ("checkpoint", "handle1")]
    assert bench.kernel.named("complete")[0].body == {
        "result": "done",
        "captures": [entry("ws", checkpoint_ref="ref1")],
    }


async def test_what_is_not_due_is_not_captured(bench: Bench) -> None:
    driver = Driver()
    bench.kernel.decide("change", decision="proceed", resources=[entry("ws", due=False)])
    bench.kernel.resources["ws"] = {"covered": True}

    async def process(given: Any) -> None:
        await resource("ws", driver=driver, checkpoints=NEVER)
        await step("change", lambda: None, resources=["ws"])

    await bench.output(process)
    assert bench.kernel.named("complete")[0].body == {"result": None}
    assert driver.calls == [("create", None)]


async def test_a_failed_call_counts(bench: Bench) -> None:
    def body() -> None:
        raise ValueError("no luck")

    assert await run(bench, Driver(), body) == "no luck"
    assert bench.kernel.named("fail")[0].body == {
        "error": {"message": "no luck"},
        "captures": [entry("ws", checkpoint_ref="ref1")],
    }


async def test_a_call_that_the_handler_cancels_counts(bench: Bench) -> None:
    driver = Driver()
    bench.kernel.resources["ws"] = {"covered": True}
    bench.kernel.decide("change", **due("ws"))

    async def process(given: Any) -> Any:
        await resource("ws", driver=driver, checkpoints=NEVER)

        async def body() -> None:
            scope.cancel()
            await asyncio.Event().wait()

        with anyio.CancelScope() as scope:
            await step("change", body, resources=["ws"])
        return scope.cancelled_caught

    assert await bench.output(process) is True
    assert bench.kernel.named("fail")[0].body == {
        "error": {"message": "cancelled"},
        "captures": [entry("ws", checkpoint_ref="ref1")],
    }


async def test_a_timeout_during_the_capture_changes_nothing(bench: Bench) -> None:
    captured: list[str] = []

    scope = anyio.CancelScope()

    class Slow(Driver):
        async def checkpoint(self, handle: str) -> Any:
            scope.cancel()
            for _ in range(20):
                await asyncio.sleep(0)
            captured.append(handle)
            return "ref"

    bench.kernel.resources["ws"] = {"covered": True}
    bench.kernel.decide("change", **due("ws"))

    async def process(given: Any) -> Any:
        await resource("ws", driver=Slow(), checkpoints=NEVER)
        with scope:
            await step("change", lambda: 1, resources=["ws"])
        return scope.cancelled_caught

    assert await bench.output(process) is True
    assert captured == ["handle1"]
    report = bench.kernel.named("complete")[0].body
    assert report == {"result": 1, "captures": [entry("ws", checkpoint_ref="ref")]}


async def test_a_result_that_is_not_json_fails_with_its_captures(bench: Bench) -> None:
    async def process(given: Any) -> None:
        await resource("ws", driver=Driver(), checkpoints=NEVER)
        with pytest.raises(TypeError):
            await step("change", object, resources=["ws"])

    bench.kernel.resources["ws"] = {"covered": True}
    bench.kernel.decide("change", **due("ws"))
    await bench.output(process)
    assert bench.kernel.named("fail")[0].body["captures"] == [entry("ws", checkpoint_ref="ref1")]


async def test_a_result_that_is_too_large_fails_with_its_captures(bench: Bench) -> None:
    async def process(given: Any) -> Any:
        await resource("ws", driver=Driver(), checkpoints=NEVER)
        with pytest.raises(Exception, match="too large"):
            await step("change", lambda: "x" * 100, resources=["ws"])

    bench.kernel.resources["ws"] = {"covered": True}
    bench.kernel.decide("change", **due("ws"))
    bench.kernel.answer("complete", error("payload_too_large", 413))
    await bench.output(process)
    assert bench.kernel.named("fail")[0].body["captures"] == [entry("ws", checkpoint_ref="ref1")]


async def test_several_that_are_due(bench: Bench) -> None:
    """Each is captured by itself, in order; those that fail do not keep the others."""
    bench.kernel.decide("change", **due("a", "b", "c", "unknown", generation=9))
    for key in ("a", "b", "c"):
        bench.kernel.resources[key] = {"covered": True}

    async def process(given: Any) -> Any:
        for key in ("a", "b", "c"):
            failing = [RuntimeError("disk full")] if key == "b" else [KeyError()] * (key == "c")
            await resource(key, driver=Driver(checkpoint=failing), checkpoints=NEVER)
        return await step("change", lambda: "done", resources=["a", "b", "c", "unknown"])

    assert await bench.output(process) == "done"
    assert bench.kernel.named("complete")[0].body == {
        "result": "done",
        "captures": [entry("a", 9, checkpoint_ref="ref1")],
        "capture_failures": [
            entry("b", 9, error="disk full"),
            entry("c", 9, error="KeyError"),  # an error without a text
            entry("unknown", 9, error="resource() was not called in this dispatch"),
        ],
    }


async def test_a_failure_is_logged_with_its_traceback(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    driver = Driver(checkpoint=[RuntimeError("disk full")])
    assert await run(bench, driver, lambda: "done") == "done"
    assert "execution e1: no checkpoint of resource 'ws'" in caplog.text
    assert "RuntimeError: disk full" in caplog.text


@pytest.mark.parametrize("reference", [None, "", 7])
async def test_what_is_no_reference_is_for_the_kernel_to_refuse(
    bench: Bench, reference: Any
) -> None:
    driver = Driver(checkpoint=[reference], raw=True)
    assert await run(bench, driver, lambda: 1) == 1
    report = bench.kernel.named("complete")[0].body
    assert report == {"result": 1, "captures": [entry("ws", checkpoint_ref=reference)]}


async def test_a_reference_that_is_not_json_costs_only_itself(bench: Bench) -> None:
    driver = Driver(checkpoint=[{1, 2}], raw=True)
    assert await run(bench, driver, lambda: 1) == 1
    report = bench.kernel.named("complete")[0].body
    assert report["result"] == 1
    assert "cannot be JSON" in report["capture_failures"][0]["error"]


async def test_a_driver_that_cancels_itself_fails_its_capture(bench: Bench) -> None:
    driver = Driver(checkpoint=[asyncio.CancelledError()])
    assert await run(bench, driver, lambda: 1) == 1
    report = bench.kernel.named("complete")[0].body
    assert report["capture_failures"] == [entry("ws", error="CancelledError")]


STOPS = [Blocked(), Terminated("over"), LeaseSuperseded()]
REFUSALS = [PolicyError("not_now"), RateLimited("too_many")]


@pytest.mark.parametrize("stop", STOPS, ids=lambda stop: type(stop).__name__)
async def test_a_stop_inside_a_capture_passes(bench: Bench, stop: Exception) -> None:
    bench.kernel.resources["ws"] = {"covered": True}
    bench.kernel.decide("change", **due("ws"))

    async def process(given: Any) -> Any:
        await resource("ws", driver=Driver(checkpoint=[stop]), checkpoints=NEVER)
        await step("change", lambda: 1, resources=["ws"])

    assert await bench.run(process) is None
    assert not [call for call in bench.kernel.calls if "/steps/" in call.path]


async def test_a_stop_inside_a_capture_that_the_handler_swallows(bench: Bench) -> None:
    bench.kernel.resources["ws"] = {"covered": True}
    bench.kernel.decide("change", **due("ws"))

    async def process(given: Any) -> Any:
        await resource("ws", driver=Driver(checkpoint=[Blocked()]), checkpoints=NEVER)
        with pytest.raises(Blocked):
            await step("change", lambda: 1, resources=["ws"])
        return "swallowed"

    assert await bench.run(process) is None


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: type(refusal).__name__)
async def test_a_refusal_inside_a_capture_passes(bench: Bench, refusal: Exception) -> None:
    bench.kernel.resources["ws"] = {"covered": True}
    bench.kernel.decide("change", **due("ws"))

    async def process(given: Any) -> Any:
        await resource("ws", driver=Driver(checkpoint=[refusal]), checkpoints=NEVER)
        await step("change", lambda: 1, resources=["ws"])

    assert await bench.failure(process) in ("not_now", "too_many")
    assert not [call for call in bench.kernel.calls if "/steps/" in call.path]


# the baseline


async def test_a_baseline_that_fails_leaves_it_uncovered(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    driver = Driver(checkpoint=[RuntimeError("disk full")])

    async def process(given: Any) -> Any:
        return await resource("ws", driver=driver, checkpoints=NEVER)

    assert await bench.output(process) == "handle1"
    assert bench.kernel.named("checkpoints")[0].body == {
        "capture_failures": [entry("ws", 1, error="disk full")]
    }
    assert "disk full" in caplog.text


# on completion


async def complete(bench: Bench, driver: Any, result: Any = "out") -> Call | None:
    async def process(given: Any) -> Any:
        await resource("ws", driver=driver, checkpoints=CheckpointPolicy(5))
        return result

    return await bench.run(process)


async def test_all_uncovered_ones_are_captured_in_one_call(bench: Bench) -> None:
    bench.kernel.resources |= {"a": {"generation": 3}, "b": {"generation": 4}}

    async def process(given: Any) -> Any:
        await resource("a", driver=Driver("a.v1"), checkpoints=CheckpointPolicy(5))
        failing: list[Any] = [None, RuntimeError("disk full")]
        await resource(
            "b", driver=Driver("b.v1", checkpoint=failing), checkpoints=CheckpointPolicy(5)
        )
        bench.kernel.resources["covered"] = {"covered": True}
        await resource("covered", driver=Driver(), checkpoints=CheckpointPolicy(5))
        await resource("no", driver=Driver(), checkpoints=CheckpointPolicy(5, on_completion=False))
        await resource("none", driver=Driver())
        bench.kernel.calls.clear()
        bench.kernel.resources["a"]["generation"] = 8  # has been changed since
        return "out"

    assert await bench.output(process) == "out"
    traffic = bench.kernel.traffic()
    asked = [(what, body["key"]) for what, body in traffic[:5]]
    assert asked == [("resources", key) for key in ("a", "b", "covered", "no", "none")]
    assert traffic[5:] == [
        (
            "resources/checkpoints",
            {
                "captures": [entry("a", 8, checkpoint_ref="ref2")],
                "capture_failures": [entry("b", 4, error="disk full")],
            },
        ),
        ("complete", {"output": "out"}),
    ]


async def test_what_is_covered_is_not_captured_again(bench: Bench) -> None:
    bench.kernel.resources["ws"] = {"covered": True}
    driver = Driver()
    await complete(bench, driver)
    assert bench.kernel.names() == ["get", "resources", "binding", "resources", "complete"]
    assert driver.calls == [("create", None)]


async def test_the_heart_beats_on_while_it_captures(bench: Bench) -> None:
    class Slow(Driver):
        async def checkpoint(self, handle: str) -> Any:
            if self._count("checkpoint") == 1:
                await bench.time.elapse(30)
                await bench.kernel.until_called("heartbeat")
            return await super().checkpoint(handle)

    ended = await complete(bench, Slow())
    assert ended is not None
    assert ended.name == "complete"


@pytest.mark.parametrize("raised", [ValueError("no luck"), ToolError("no luck")])
async def test_a_handler_that_fails_captures_nothing(bench: Bench, raised: Exception) -> None:
    async def process(given: Any) -> Any:
        await resource("ws", driver=Driver(), checkpoints=CheckpointPolicy())
        bench.kernel.calls.clear()
        raise raised

    await bench.failure(process)
    assert bench.kernel.names() == ["fail"]


async def test_an_output_that_is_not_json_captures_nothing(bench: Bench) -> None:
    driver = Driver()
    ended = await complete(bench, driver, Result(object()))
    assert ended is not None
    assert ended.body["error"].startswith("agent_error: TypeError: ")
    assert [name for name, _ in driver.calls] == ["create", "checkpoint"]


async def test_a_suspended_handler_captures_nothing(bench: Bench) -> None:
    async def process(given: Any) -> Any:
        await resource("ws", driver=Driver(), checkpoints=CheckpointPolicy())
        bench.kernel.calls.clear()
        bench.kernel.decide("held", decision="blocked", approval_id="p1")
        with pytest.raises(Blocked):
            await step("held", lambda: 1)
        return "swallowed"

    assert await bench.run(process) is None
    assert bench.kernel.names() == ["steps"]


@pytest.mark.parametrize("name", ["resources", "checkpoints"])
async def test_a_kernel_that_refuses_does_not_cost_the_output(
    bench: Bench, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    bench.kernel.answer(name, lambda call: None)
    bench.kernel.answer(name, error("internal_error", 500, "bad luck"), times=9)
    ended = await complete(bench, Driver())
    assert ended is not None
    assert ended.body == {"output": "out"}
    assert "execution e1: no checkpoints on completion" in caplog.text
    assert "bad luck" in caplog.text


@pytest.mark.parametrize("stop", STOPS, ids=lambda stop: type(stop).__name__)
async def test_a_stop_on_completion_leaves_the_run(bench: Bench, stop: Exception) -> None:
    assert await complete(bench, Driver(checkpoint=[None, stop])) is None


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: type(refusal).__name__)
async def test_a_refusal_on_completion_fails_the_run(bench: Bench, refusal: Exception) -> None:
    ended = await complete(bench, Driver(checkpoint=[None, refusal]))
    assert ended is not None
    assert ended.body["error"] in ("not_now", "too_many")


# closing and superseding


class Waits(Driver):
    """Its second checkpoint, the one under test, waits."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go, self.ended = asyncio.Event(), asyncio.Event(), ""

    async def checkpoint(self, handle: str) -> Any:
        if self._count("checkpoint") == 1:
            self.begun.set()
            try:
                await self.go.wait()
            except asyncio.CancelledError:
                self.ended = "cancelled"
                raise
            self.ended = "captured"
        return await super().checkpoint(handle)


async def start(bench: Bench, driver: Waits, where: str, grace: float) -> Any:
    async def process(given: Any) -> Any:
        await resource("ws", driver=driver, checkpoints=CheckpointPolicy())
        if where == "after a step":
            await step("change", lambda: "done", resources=["ws"])
            await step("next", lambda: "not before the agent is started again")

    bench.kernel.decide("change", **due("ws"))
    bench.kernel.add()
    agent = bench.agent(process, shutdown_grace=grace)
    await bench.deliver(agent)
    await asyncio.wait_for(driver.begun.wait(), DEADLINE)
    return agent


WHERE = pytest.mark.parametrize("where", ["after a step", "on completion"])


@WHERE
async def test_a_closing_agent_lets_a_capture_finish(bench: Bench, where: str) -> None:
    driver = Waits()
    agent = await start(bench, driver, where, grace=60)
    closing = asyncio.create_task(agent.close())
    for _ in range(20):
        await asyncio.sleep(0)
    driver.go.set()
    await asyncio.wait_for(closing, DEADLINE)
    assert driver.ended == "captured"
    last = bench.kernel.names()[-2:]
    assert last == (
        ["complete", "release"] if where == "after a step" else ["checkpoints", "complete"]
    )
    assert "next" not in [call.body["target"] for call in bench.kernel.named("steps")]


@WHERE
async def test_after_the_grace_a_capture_is_cancelled(bench: Bench, where: str) -> None:
    """The step stays executing: its outcome was never told, so it is run again."""
    driver = Waits()
    agent = await start(bench, driver, where, grace=0.01)
    await agent.close()
    assert driver.ended == "cancelled"
    assert bench.kernel.names()[-1] == "release"
    assert bench.kernel.named("complete") == bench.kernel.named("fail") == []


@WHERE
async def test_a_superseded_capture_reports_nothing(bench: Bench, where: str) -> None:
    driver = Waits()
    agent = await start(bench, driver, where, grace=60)
    bench.kernel.answer("heartbeat", error("lease_superseded", 409))
    await bench.time.elapse(30)
    await asyncio.wait_for(agent.join(), DEADLINE)
    assert driver.ended == "cancelled"
    assert bench.kernel.names()[-1] == "heartbeat"


async def test_a_capture_beside_a_held_call_is_seen_through(bench: Bench) -> None:
    """One at a time: the held call is asked for when the capture is done."""
    driver = Waits()
    bench.kernel.decide("change", **due("ws"))
    bench.kernel.decide("held", decision="blocked", approval_id="p1")
    bench.kernel.add()

    async def process(given: Any) -> Any:
        await resource("ws", driver=driver, checkpoints=CheckpointPolicy())
        async with asyncio.TaskGroup() as group:
            group.create_task(step("change", lambda: "done", resources=["ws"]))
            group.create_task(step("held", lambda: 1))

    agent = bench.agent(process)
    await bench.deliver(agent)
    await asyncio.wait_for(driver.begun.wait(), DEADLINE)
    driver.go.set()
    await asyncio.wait_for(agent.join(), DEADLINE)
    assert bench.kernel.names()[-3:] == ["steps", "complete", "steps"]
    assert bench.kernel.named("complete")[0].body["captures"]
