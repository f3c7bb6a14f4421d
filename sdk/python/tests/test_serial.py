"""Tools and local steps run one at a time once the execution has resources."""

import asyncio
from typing import Any

import pytest
from conftest import Bench, until
from drivers import Driver
from scripted_kernel import DEADLINE, Call

from rebuno import Blocked, execution, resource, step, tool


class Log:
    """What begins and ends, in order; bodies that take a few turns of the loop."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    async def body(self, name: str) -> str:
        self.lines.append(f"{name} begins")
        for _ in range(10):
            await asyncio.sleep(0)
        self.lines.append(f"{name} ends")
        return name

    async def call(self, name: str, target: str = "call") -> Any:
        return await step(target, self.body, {"name": name})

    def is_serial(self) -> bool:
        pairs = zip(self.lines[::2], self.lines[1::2], strict=True)
        return all(first.split()[0] == second.split()[0] for first, second in pairs)


async def test_without_resources_they_run_side_by_side(bench: Bench) -> None:
    log = Log()

    async def process(given: Any) -> Any:
        return await asyncio.gather(*(log.call(name) for name in "abc"))

    assert await bench.output(process) == ["a", "b", "c"]
    assert log.lines[:3] == ["a begins", "b begins", "c begins"]


async def test_from_submission_to_report(bench: Bench) -> None:
    log = Log()

    @tool("tool")
    async def a_tool(name: str) -> str:
        return await log.body(name)

    async def process(given: Any) -> Any:
        await resource("ws", driver=Driver())
        bench.kernel.calls.clear()
        return await asyncio.gather(log.call("a"), a_tool("b"), log.call("c"))

    assert await bench.output(process) == ["a", "b", "c"]
    assert log.is_serial()
    assert bench.kernel.names()[:6] == ["steps", "complete"] * 3
    names = [call.body["args"]["name"] for call in bench.kernel.named("steps")]
    assert names == ["a", "b", "c"]  # in the order of the calls


async def test_a_failure_and_a_cancellation_give_the_turn_on(bench: Bench) -> None:
    log = Log()

    async def process(given: Any) -> Any:
        await resource("ws", driver=Driver())
        waits = asyncio.create_task(step("waits", asyncio.Event().wait))
        queued = asyncio.create_task(log.call("queued"))
        last = asyncio.create_task(log.call("last"))
        await bench.kernel.until_called("steps")
        queued.cancel()  # it was never sent
        waits.cancel()
        await asyncio.gather(step("fails", lambda: 1 / 0), waits, queued, return_exceptions=True)
        return await last

    assert await bench.output(process) == "last"
    targets = [call.body["target"] for call in bench.kernel.named("steps")]
    assert targets == ["waits", "call", "fails"]
    assert log.lines == ["last begins", "last ends"]


async def test_an_opening_waits_for_what_runs_and_holds_up_what_comes(bench: Bench) -> None:
    log = Log()

    class Noting(Driver):
        async def create(self, checkpoint_ref: str | None = None) -> tuple[str, Any]:
            await log.body("create")
            return await super().create(checkpoint_ref)

    async def opens() -> Any:
        await until(lambda: len(log.lines) == 2)
        return await resource("ws", driver=Noting())

    async def later() -> Any:
        await until(lambda: len(log.lines) >= 2)
        return await log.call("c")

    async def process(given: Any) -> Any:
        await asyncio.gather(log.call("a"), log.call("b"), opens(), later())

    await bench.output(process)
    assert sorted(log.lines[:2]) == ["a begins", "b begins"]
    assert log.lines[4:] == ["create begins", "create ends", "c begins", "c ends"]


async def test_a_turn_that_inherits_resources_learns_of_them(bench: Bench) -> None:
    """It need not have opened them: the kernel says that a step touches one."""
    log = Log()
    touched = [{"key": "ws", "generation": 2}]
    bench.kernel.decide("first", decision="proceed", resources=touched)

    async def process(given: Any) -> Any:
        await log.call("a", "first")
        await asyncio.gather(log.call("b"), log.call("c"))

    await bench.output(process)
    assert log.is_serial()


async def test_model_calls_run_side_by_side(bench: Bench) -> None:
    async def process(given: Any) -> Any:
        await resource("ws", driver=Driver())
        context = execution()
        begun: list[str] = []

        async def body() -> None:
            begun.extend([(await context.begin_llm("m", {}))[0] for _ in range(2)])

        first, _ = await context.begin_llm("m", {})
        async with asyncio.timeout(DEADLINE):
            await step("s", body)
        for step_id in (first, *begun):
            await context.record_llm(step_id, "said")
        return len(begun)

    assert await bench.output(process) == 2


async def test_a_step_inside_a_step_does_not_wait_for_it(bench: Bench) -> None:
    log = Log()

    async def outer() -> Any:
        log.lines.append("outer begins")
        inner = await asyncio.gather(log.call("x"), log.call("y"), step("deep", deep))
        log.lines.append("outer ends")
        return inner

    async def deep() -> Any:
        return await log.call("z")

    async def process(given: Any) -> Any:
        await resource("ws", driver=Driver())
        async with asyncio.timeout(DEADLINE):
            return await asyncio.gather(step("outer", outer), log.call("beside"))

    assert await bench.output(process) == [["x", "y", "z"], "beside"]
    # Those inside it run one at a time, too; what stands beside it waits for all of them.
    assert log.lines == [
        "outer begins", "x begins", "x ends", "y begins", "y ends", "z begins", "z ends",
        "outer ends", "beside begins", "beside ends",
    ]  # fmt: skip


async def test_what_a_body_left_behind_takes_its_turn_like_others(bench: Bench) -> None:
    log = Log()
    left: list[asyncio.Task[Any]] = []
    go = asyncio.Event()

    async def late() -> Any:
        await go.wait()
        return await log.call("late")

    async def leaves() -> None:
        left.append(asyncio.create_task(late()))

    async def process(given: Any) -> Any:
        await resource("ws", driver=Driver())
        await step("leaves", leaves)
        running = asyncio.create_task(log.call("a"))
        await until(lambda: log.lines)
        go.set()
        await asyncio.gather(running, *left)

    await bench.output(process)
    assert log.lines == ["a begins", "a ends", "late begins", "late ends"]


async def test_from_several_loops(bench: Bench) -> None:
    log = Log()

    def on_a_loop_of_its_own(name: str) -> Any:
        return asyncio.run(log.call(name))

    async def process(given: Any) -> Any:
        await resource("ws", driver=Driver())
        threads = (asyncio.to_thread(on_a_loop_of_its_own, name) for name in "abcdef")
        return await asyncio.gather(*threads, log.call("g"))

    assert await bench.output(process) == list("abcdefg")
    assert log.is_serial()


async def test_a_loop_that_ends_gives_its_place_on(bench: Bench) -> None:
    """`asyncio.run` cancels what waits on its loop; the others go on."""
    log = Log()
    go = asyncio.Event()

    async def waits() -> str:
        await go.wait()
        return "held"

    async def gives_up() -> str:
        try:
            async with asyncio.timeout(0.01):
                await log.call("never")
        except TimeoutError:
            return "gave up"
        return "not reached"

    async def process(given: Any) -> Any:
        await resource("ws", driver=Driver())
        first = asyncio.create_task(step("waits", waits))
        await bench.kernel.until_called("steps")
        second = asyncio.create_task(asyncio.to_thread(lambda: asyncio.run(gives_up())))
        third = asyncio.create_task(log.call("third"))
        assert await second == "gave up"
        go.set()
        return [await first, await third]

    assert await bench.output(process) == ["held", "third"]
    assert log.lines == ["third begins", "third ends"]


async def test_calls_that_wait_beside_a_held_one_are_asked_for_too(bench: Bench) -> None:
    """As they would have been side by side: a person sees all that is to be decided at once."""
    for target in ("a", "b", "c"):
        bench.kernel.decide(target, decision="blocked", approval_id=f"p-{target}")

    async def slowly(call: Call) -> None:
        for _ in range(50):
            await asyncio.sleep(0)

    bench.kernel.answer("steps", slowly, times=3)

    async def process(given: Any) -> Any:
        await resource("ws", driver=Driver())
        async with asyncio.TaskGroup() as group:  # cancels the others when one raises
            for target in ("a", "b", "c"):
                group.create_task(step(target, lambda: 1))

    assert await bench.run(process) is None
    targets = [call.body["target"] for call in bench.kernel.named("steps")]
    assert targets == ["a", "b", "c"]


async def test_a_closing_agent_starts_nothing_that_waits_its_turn(bench: Bench) -> None:
    log = Log()
    go = asyncio.Event()

    async def waits() -> None:
        log.lines.append("waits")
        await go.wait()

    async def process(given: Any) -> Any:
        await resource("ws", driver=Driver())
        await asyncio.gather(step("waits", waits), log.call("queued"))

    bench.kernel.add()
    agent = bench.agent(process, shutdown_grace=60)
    await bench.deliver(agent)
    await until(lambda: log.lines)
    closing = asyncio.create_task(agent.close())
    await until(lambda: all(dispatch._attempt.draining for dispatch in agent._dispatches))
    go.set()
    await asyncio.wait_for(closing, DEADLINE)
    assert log.lines == ["waits"]
    assert bench.kernel.names()[-2:] == ["complete", "release"]


async def test_a_stop_ends_the_turn(bench: Bench) -> None:
    bench.kernel.decide("held", decision="blocked", approval_id="p1")
    bench.kernel.decide("next", decision="execution_blocked")

    async def process(given: Any) -> Any:
        await resource("ws", driver=Driver())
        with pytest.raises(Blocked):
            await step("held", lambda: 1)
        async with asyncio.timeout(DEADLINE):
            await step("next", lambda: 1)

    assert await bench.run(process) is None
    assert len(bench.kernel.named("steps")) == 2


async def test_hundreds_of_calls_at_once(bench: Bench) -> None:
    """The queue takes no more than its share, however long it is."""
    count = 300

    async def process(given: Any) -> Any:
        await resource("ws", driver=Driver())
        results = await asyncio.gather(*(step("s", lambda: 1) for _ in range(count)))
        return sum(results)

    assert await bench.output(process) == count
