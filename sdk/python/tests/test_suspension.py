"""A run that waits for a person: what runs beside the held call, and what is given back."""

import asyncio
import functools
from typing import Any

import pytest
from conftest import Bench, until
from scripted_kernel import DEADLINE, error

from rebuno import Blocked, ToolError, execution, step, tool


class Body:
    """A step's body that waits until it is let go; from any loop."""

    def __init__(self) -> None:
        self.started = False
        self.go = False
        self.ended = ""

    async def __call__(self) -> str:
        self.started = True
        try:
            while not self.go:  # noqa: ASYNC110 (set from another loop)
                await asyncio.sleep(0.001)
        except asyncio.CancelledError:
            self.ended = "cancelled"
            raise
        self.ended = "done"
        return "done"

    async def until_started(self) -> None:
        while not self.started:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


def targets(bench: Bench) -> list[str]:
    return [call.body["target"] for call in bench.kernel.named("steps")]


async def held_after(body: Body, name: str = "held") -> Any:
    await body.until_started()
    return await step(name, lambda: 1)


async def test_several_held_calls_of_one_turn(bench: Bench) -> None:
    """All are asked for in one pass, and a call beside them is done and recorded."""

    @tool
    async def deploy(to: str) -> str:
        return f"deployed to {to}"

    for number in range(3):
        bench.kernel.decide("deploy", decision="blocked", approval_id=f"p{number}")

    async def process(given: Any) -> Any:
        return await asyncio.gather(
            deploy("a"), step("look", lambda: "looked"), deploy("b"), deploy("c")
        )

    assert await bench.run(process) is None
    assert targets(bench) == ["deploy", "look", "deploy", "deploy"]
    assert [call.body for call in bench.kernel.named("complete")] == [{"result": "looked"}]
    assert bench.kernel.names()[-1] == "complete"  # and nothing was given back


async def test_gather_that_goes_on_after_a_stop(bench: Bench) -> None:
    body = Body()
    bench.kernel.decide("held", decision="blocked", approval_id="p1")
    bench.kernel.add()

    async def process(given: Any) -> Any:
        results = await asyncio.gather(step("slow", body), held_after(body), return_exceptions=True)
        assert results[0] == "done"
        assert isinstance(results[1], Blocked)
        return "not for the kernel: the stop was swallowed"

    agent = bench.agent(process)
    await bench.deliver(agent)
    await bench.kernel.until_called("steps", 2)
    body.go = True
    await agent.join()
    assert [call.body for call in bench.kernel.named("complete")] == [{"result": "done"}]


async def test_a_failure_beside_a_held_call_is_recorded(bench: Bench) -> None:
    body = Body()
    bench.kernel.decide("held", decision="blocked", approval_id="p1")
    bench.kernel.add()

    async def fails() -> None:
        await body()
        raise ValueError("no luck")

    async def process(given: Any) -> Any:
        async with asyncio.TaskGroup() as group:
            group.create_task(step("fails", fails))
            body.started = True
            group.create_task(held_after(body))

    agent = bench.agent(process)
    await bench.deliver(agent)
    await bench.kernel.until_called("steps", 2)
    body.go = True
    await agent.join()
    assert [call.body for call in bench.kernel.named("fail")] == [{"error": {"message": "no luck"}}]


async def test_a_held_call_inside_a_tool_gives_the_run_back(bench: Bench) -> None:
    """The outer step stays executing: the next delivery would wait for it until the lease ends."""

    @tool
    async def outer() -> Any:
        return await step("held", lambda: 1)

    bench.kernel.decide("held", decision="blocked", approval_id="p1")
    assert await bench.run(lambda given: outer()) is None
    assert bench.kernel.names() == ["get", "steps", "steps", "release"]
    release = bench.kernel.named("release")[0]
    assert (release.raw, release.headers["rebuno-dispatch-id"]) == (b"", "d1")


@pytest.mark.parametrize("code", ["not_found", "lease_superseded", "conflict"])
async def test_a_kernel_that_does_not_take_it_back(
    bench: Bench, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    @tool
    async def outer() -> Any:
        return await step("held", lambda: 1)

    status = {"not_found": 404, "lease_superseded": 409, "conflict": 409}[code]
    bench.kernel.answer("release", error(code, status))
    bench.kernel.decide("held", decision="blocked", approval_id="p1")
    assert await bench.run(lambda given: outer()) is None
    assert ("not released" in caplog.text) is (code == "conflict")


async def test_it_is_given_back_after_the_last_call_has_ended(bench: Bench) -> None:
    body = Body()
    bench.kernel.add()

    @tool
    async def outer() -> Any:
        return await held_after(body)

    bench.kernel.decide("held", decision="blocked", approval_id="p1")

    async def process(given: Any) -> Any:
        return await asyncio.gather(outer(), step("slow", body))

    agent = bench.agent(process)
    await bench.deliver(agent)
    await bench.kernel.until_called("steps", 3)
    for _ in range(20):
        await asyncio.sleep(0)
    assert bench.kernel.named("release") == []
    body.go = True
    await agent.join()
    assert bench.kernel.names() == ["get", "steps", "steps", "steps", "complete", "release"]


async def test_closing_gives_back_what_was_cut_off_beside_a_held_call(bench: Bench) -> None:
    body = Body()
    bench.kernel.decide("held", decision="blocked", approval_id="p1")
    bench.kernel.add()

    async def process(given: Any) -> Any:
        return await asyncio.gather(step("slow", body), held_after(body))

    agent = bench.agent(process, shutdown_grace=0.01)
    await bench.deliver(agent)
    await bench.kernel.until_called("steps", 2)
    await agent.close()
    assert body.ended == "cancelled"
    assert bench.kernel.names() == ["get", "steps", "steps", "release"]


# a handler that runs a loop of its own, which cancels what is left on it


async def on_a_loop_of_its_own(bench: Bench, body: Body, main: Any, submissions: int) -> None:
    bench.kernel.add()
    agent = bench.agent(lambda given: asyncio.run(main()))
    await bench.deliver(agent)
    await bench.kernel.until_called("steps", submissions)
    for _ in range(20):
        await asyncio.sleep(0)
    assert body.ended == ""
    body.go = True
    await asyncio.wait_for(agent.join(), DEADLINE)


async def test_neighbours_on_a_loop_that_ends_with_the_stop(bench: Bench) -> None:
    body = Body()
    bench.kernel.decide("held", decision="blocked", approval_id="p1")

    async def main() -> None:
        await asyncio.gather(step("slow", body), held_after(body))

    await on_a_loop_of_its_own(bench, body, main, 2)
    assert body.ended == "done"
    assert [call.body for call in bench.kernel.named("complete")] == [{"result": "done"}]
    assert bench.kernel.names() == ["get", "steps", "steps", "complete"]


async def test_several_stops_on_a_loop_of_its_own(bench: Bench) -> None:
    """Those that are held do not wait for each other, nor for the steps they stand in."""
    body = Body()
    for name in ("held", "other", "inner"):
        bench.kernel.decide(name, decision="blocked", approval_id=name)

    async def main() -> None:
        outer = functools.partial(held_after, body, "inner")
        await asyncio.gather(
            step("slow", body), held_after(body), held_after(body, "other"), step("outer", outer)
        )

    await on_a_loop_of_its_own(bench, body, main, 5)
    assert body.ended == "done"
    assert [call.body for call in bench.kernel.named("complete")] == [{"result": "done"}]
    assert bench.kernel.names()[-2:] == ["complete", "release"]


async def test_a_neighbour_that_waits_for_the_stop_is_not_waited_for_for_ever(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rebuno._attempt._NEIGHBOURS_S", 0.01)
    body = Body()
    bench.kernel.decide("held", decision="blocked", approval_id="p1")

    async def main() -> None:
        await asyncio.gather(step("slow", body), held_after(body))

    bench.kernel.add()
    agent = bench.agent(lambda given: asyncio.run(main()))
    await bench.deliver(agent)
    await asyncio.wait_for(agent.join(), DEADLINE)
    assert targets(bench) == ["slow", "held"]
    # Its loop ended and cancelled it: it stays executing, and the run is given back.
    assert body.ended == "cancelled"
    assert bench.kernel.names()[-1] == "release"


async def test_a_tool_error_after_a_swallowed_stop(bench: Bench) -> None:
    """Whatever a handler makes of a stop, the execution is the kernel's."""
    bench.kernel.decide("held", decision="blocked", approval_id="p1")
    bench.kernel.decide("bad", decision="replay", error={"message": "m"})

    async def process(given: Any) -> Any:
        try:
            await step("held", lambda: 1)
        except Exception:
            with pytest.raises(ToolError) as caught:
                await step("bad", lambda: 1)
            assert execution().suspension is not None
            raise caught.value from None
        return "not reached"

    assert await bench.run(process) is None
    await until(lambda: targets(bench) == ["held", "bad"])
