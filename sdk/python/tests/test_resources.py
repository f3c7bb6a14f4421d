"""`resource()`: what is sent, what the driver is asked for, in which order; and what goes wrong."""

import asyncio
import logging
import threading
from typing import Any

import anyio
import pytest
from conftest import Bench, until
from drivers import Driver
from scripted_kernel import DEADLINE, Call, error

from rebuno import (
    Blocked,
    CheckpointPolicy,
    CheckpointUnavailable,
    ConflictError,
    execution,
    resource,
    step,
)


def registration(driver: str = "d.v1", **fields: Any) -> tuple[str, Any]:
    return (
        "resources",
        {
            "key": "ws",
            "driver_id": driver,
            "configuration": None,
            "coverage_reuse": False,
            "every_steps": 0,
            "on_completion": False,
        }
        | fields,
    )


BINDING = ("resources/ws/binding", {"binding": {"id": "box1"}})


def captured(ref: Any, generation: int = 1) -> tuple[str, Any]:
    capture = {"key": "ws", "generation": generation, "checkpoint_ref": ref}
    return ("resources/checkpoints", {"captures": [capture]})


async def opens(bench: Bench, driver: Any, policy: CheckpointPolicy | None = None) -> Any:
    """Runs a handler that opens the resource and returns the handle."""

    async def process(given: Any) -> Any:
        return await resource("ws", driver=driver, checkpoints=policy)

    return await bench.output(process)


# the calls


async def test_without_a_policy_it_is_created_and_bound(bench: Bench) -> None:
    driver = Driver()
    assert await opens(bench, driver) == "handle1"
    assert bench.kernel.traffic() == [
        registration(),
        BINDING,
        registration(),  # just before it completes, as always
        ("complete", {"output": "handle1"}),
    ]
    assert driver.calls == [("create", None)]


async def test_with_a_policy_a_baseline_is_captured(bench: Bench) -> None:
    driver = Driver()
    bench.kernel.resources["ws"] = {"generation": 7}
    await opens(bench, driver, CheckpointPolicy(every_steps=5))
    asked = registration(every_steps=5, on_completion=True)
    assert bench.kernel.traffic()[:4] == [asked, BINDING, captured("ref1", 7), asked]
    assert driver.calls[:2] == [("create", None), ("checkpoint", "handle1")]


async def test_the_optional_members_are_registered(bench: Bench) -> None:
    driver = Driver(configuration={"timeout": 600}, coverage_reuse=True)
    await opens(bench, driver, CheckpointPolicy(2, on_completion=False))
    assert bench.kernel.traffic()[0] == registration(
        configuration={"timeout": 600}, coverage_reuse=True, every_steps=2
    )


async def test_what_is_bound_is_opened(bench: Bench) -> None:
    driver = Driver()
    bench.kernel.resources["ws"] = {"binding": {"id": "box9"}, "covered": True}
    assert await opens(bench, driver, CheckpointPolicy()) == "handle1"
    asked = registration(every_steps=1, on_completion=True)
    assert bench.kernel.traffic()[:-1] == [asked, asked]
    assert driver.calls == [("open", {"id": "box9"})]


async def test_what_is_bound_and_uncovered_gets_a_new_baseline(bench: Bench) -> None:
    driver = Driver()
    bench.kernel.resources["ws"] = {"binding": {"id": "box9"}, "generation": 3}
    await opens(bench, driver, CheckpointPolicy())
    assert bench.kernel.traffic()[1] == captured("ref1", 3)
    assert driver.calls[:2] == [("open", {"id": "box9"}), ("checkpoint", "handle1")]


async def test_a_fork_creates_it_from_the_chosen_checkpoint(bench: Bench) -> None:
    driver = Driver()
    bench.kernel.resources["ws"] = {"checkpoint_ref": "snap-7", "covered": True}
    await opens(bench, driver, CheckpointPolicy())
    assert bench.kernel.traffic()[1] == BINDING
    assert driver.calls == [("create", "snap-7")]


async def test_the_policy_in_force_is_the_answers(bench: Bench) -> None:
    """A turn without a policy goes on under the one that was set before."""
    bench.kernel.resources["ws"] = {"every_steps": 5, "on_completion": True}
    await opens(bench, Driver())
    assert bench.kernel.traffic()[:3] == [registration(), BINDING, captured("ref1")]


async def test_calls_are_signed_for_the_lease(bench: Bench) -> None:
    await opens(bench, Driver(), CheckpointPolicy())
    calls = [call for call in bench.kernel.calls if "/resources" in call.path]
    assert len(calls) == 5
    assert {call.headers["rebuno-dispatch-attempt"] for call in calls} == {"1"}


async def test_lost_answers_are_asked_for_again(bench: Bench) -> None:
    for name in ("resources", "binding", "checkpoints"):
        bench.kernel.answer(name, error("unavailable", 503))
    driver = Driver()
    await opens(bench, driver, CheckpointPolicy())
    names = bench.kernel.names()
    assert [names.count(name) for name in ("resources", "binding", "checkpoints")] == [3, 2, 3]
    assert [name for name, _ in driver.calls].count("create") == 1


# one handle a dispatch and key


async def test_the_same_handle_for_the_same_key(bench: Bench) -> None:
    first, second = Driver(), Driver("other.v1")

    async def process(given: Any) -> Any:
        handles = await asyncio.gather(*(resource("ws", driver=first) for _ in range(3)))
        handles.append(await resource("ws", driver=second, checkpoints=CheckpointPolicy()))
        other = await resource("ws2", driver=second)
        return len(set(handles)), other

    assert await bench.output(process) == [1, "handle1"]
    assert [name for name, _ in first.calls + second.calls] == ["create", "create"]
    assert bench.kernel.names().count("resources") == 2 * 2


async def test_opened_in_the_bodies_of_two_steps_at_once(bench: Bench) -> None:
    driver = Driver()
    driver.pause = go = asyncio.Event()
    asked: list[int] = []

    async def body() -> Any:
        asked.append(1)
        await until(lambda: len(asked) == 2)
        return await resource("ws", driver=driver)

    async def lets_go() -> None:
        await until(lambda: driver.calls)
        for _ in range(50):
            await asyncio.sleep(0)
        go.set()

    async def process(given: Any) -> Any:
        return await asyncio.gather(step("a", body), step("b", body), lets_go())

    assert await bench.output(process) == ["handle1", "handle1", None]
    assert driver.calls == [("create", None)]


async def test_another_try_after_a_failure(bench: Bench) -> None:
    driver = Driver(create=[RuntimeError("no quota"), None])

    async def process(given: Any) -> Any:
        with pytest.raises(RuntimeError, match="no quota"):
            await resource("ws", driver=driver)
        return await resource("ws", driver=driver)

    assert await bench.output(process) == "handle2"


async def test_a_dispatch_of_its_own_opens_its_own(bench: Bench) -> None:
    driver = Driver()
    for _ in range(2):
        await opens(bench, driver)
    assert driver.calls == [("create", None)] * 2


# drivers of all kinds


class SyncDriver:
    """Its methods run in a thread that sees the execution."""

    driver_id = "sync.v1"

    def __init__(self) -> None:
        self.threads: set[int] = set()

    def _note(self) -> None:
        assert execution().id == "e1"
        self.threads.add(threading.get_ident())

    def create(self, checkpoint_ref: str | None = None) -> tuple[str, Any]:
        self._note()
        return "handle", {"id": "box1"}

    def open(self, binding: Any) -> str:
        self._note()
        return "handle"

    def checkpoint(self, handle: str) -> str:
        self._note()
        return "ref"


@pytest.mark.parametrize("state", [{}, {"binding": 1}])
async def test_a_sync_driver(bench: Bench, state: dict[str, Any]) -> None:
    driver = SyncDriver()
    bench.kernel.resources["ws"] = state
    assert await opens(bench, driver, CheckpointPolicy()) == "handle"
    assert driver.threads
    assert threading.get_ident() not in driver.threads


async def test_from_a_loop_of_the_handlers_own(bench: Bench) -> None:
    async def main() -> Any:
        handles = await asyncio.gather(*(resource("ws", driver=Driver()) for _ in range(2)))
        return [*handles, await step("s", lambda: 1)]

    assert await bench.output(lambda given: asyncio.run(main())) == ["handle1", "handle1", 1]


async def test_a_driver_may_take_steps(bench: Bench) -> None:
    """They belong to the call that it serves, so they need not wait for it."""

    class Careful(Driver):
        async def create(self, checkpoint_ref: str | None = None) -> tuple[str, Any]:
            await step("provision", lambda: 1)
            await resource("network", driver=Driver("net.v1"))
            return await super().create(checkpoint_ref)

        async def checkpoint(self, handle: str) -> Any:
            await step("sync", lambda: 1)
            return await super().checkpoint(handle)

    bench.kernel.decide(
        "write", decision="proceed", resources=[{"key": "ws", "generation": 2, "due": True}]
    )

    async def process(given: Any) -> Any:
        await resource("ws", driver=Careful(), checkpoints=CheckpointPolicy(on_completion=False))
        return await step("write", lambda: 1, resources=["ws"])

    async with asyncio.timeout(DEADLINE):
        assert await bench.output(process) == 1
    targets = [call.body["target"] for call in bench.kernel.named("steps")]
    assert targets == ["provision", "sync", "write", "sync"]


# bad use, and drivers that fail


@pytest.mark.parametrize("every_steps", [0, -1])
def test_a_policy_that_never_captures(every_steps: int) -> None:
    with pytest.raises(ValueError, match="every_steps must be positive"):
        CheckpointPolicy(every_steps=every_steps)


def test_the_defaults_of_a_policy() -> None:
    policy = CheckpointPolicy()
    assert (policy.every_steps, policy.on_completion) == (1, True)


async def test_outside_an_execution() -> None:
    with pytest.raises(RuntimeError, match="outside"):
        await resource("ws", driver=Driver())


class Plain:
    """Cannot be captured."""

    driver_id = "plain.v1"

    async def create(self, checkpoint_ref: str | None = None) -> tuple[str, Any]:
        return "handle", 1

    async def open(self, binding: Any) -> str:
        return "handle"


async def test_a_policy_needs_a_driver_that_captures(bench: Bench) -> None:
    async def process(given: Any) -> Any:
        with pytest.raises(ValueError, match=r"driver.checkpoint\(\)"):
            await resource("ws", driver=Plain(), checkpoints=CheckpointPolicy())

    await bench.output(process)
    assert bench.kernel.names() == ["get", "resources", "complete"]


async def test_a_driver_that_cannot_capture_needs_no_policy(bench: Bench) -> None:
    assert await opens(bench, Plain()) == "handle"


async def test_what_is_no_driver(bench: Bench) -> None:
    async def process(given: Any) -> Any:
        with pytest.raises(AttributeError, match="driver_id"):
            await resource("ws", driver=object())

    await bench.output(process)
    assert bench.kernel.names() == ["get", "complete"]


@pytest.mark.parametrize("configuration", [object(), float("nan")])
async def test_a_configuration_that_is_not_json(bench: Bench, configuration: Any) -> None:
    async def process(given: Any) -> Any:
        with pytest.raises(TypeError, match="configuration cannot be JSON"):
            await resource("ws", driver=Driver(configuration=configuration))

    await bench.output(process)


async def test_a_registration_that_is_refused(bench: Bench) -> None:
    driver = Driver()

    async def process(given: Any) -> Any:
        with pytest.raises(ConflictError, match="another driver"):
            await resource("ws", driver=driver)

    bench.kernel.answer("resources", error("conflict", 409, "another driver"))
    await bench.output(process)
    assert driver.calls == []


@pytest.mark.parametrize("bound", [False, True])
async def test_a_checkpoint_or_resource_that_is_gone_fails_the_run(
    bench: Bench, bound: bool
) -> None:
    gone = CheckpointUnavailable("snap-7 has expired")
    driver = Driver(create=[gone], open=[gone])
    bench.kernel.resources["ws"] = {"binding": 1} if bound else {"checkpoint_ref": "snap-7"}

    async def process(given: Any) -> Any:
        await resource("ws", driver=driver)

    reason = await bench.failure(process)
    assert reason == "agent_error: CheckpointUnavailable: snap-7 has expired"
    assert "binding" not in bench.kernel.names()


@pytest.mark.parametrize("made", [5, ("handle",), ("a", "b", "c"), None])
async def test_a_create_that_returns_something_else(
    bench: Bench, made: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def process(given: Any) -> Any:
        await resource("ws", driver=Driver(create=[made], raw=True))

    reason = await bench.failure(process)
    assert reason.startswith("agent_error: TypeError: driver.create() must return a handle and")
    assert f"driver d.v1 made {made!r}" in caplog.text


# what was created and not recorded


async def test_the_log_names_what_was_created_before_it_is_recorded(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[str] = []
    bench.kernel.answer("binding", lambda call: told.extend(caplog.messages))
    with caplog.at_level(logging.INFO, "rebuno"):
        await opens(bench, Driver())
    assert told == ['execution e1: resource \'ws\': driver d.v1 created {"id":"box1"}']
    assert caplog.messages == told  # recorded: nothing more to say


@pytest.mark.parametrize("binding", [{"id": "box1"}, {1, 2}])
async def test_a_binding_that_is_not_recorded(
    bench: Bench, binding: Any, caplog: pytest.LogCaptureFixture
) -> None:
    bench.kernel.answer("binding", error("conflict", 409, "another binding"))

    async def process(given: Any) -> Any:
        await resource("ws", driver=Driver(create=[("h", binding)], raw=True))

    reason = await bench.failure(process)
    kind = "ConflictError" if isinstance(binding, dict) else "TypeError"
    assert reason.startswith(f"agent_error: {kind}: ")
    said = '{"id":"box1"}' if isinstance(binding, dict) else "{1, 2}"
    warnings = [entry.getMessage() for entry in caplog.records if entry.levelname == "WARNING"]
    assert warnings[0].startswith(
        f"execution e1: resource 'ws': driver d.v1 created {said}, which was not recorded"
    )


async def test_an_agent_that_closes_before_the_binding_is_recorded(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    arrived = asyncio.Event()

    async def never(call: Call) -> None:
        arrived.set()
        await asyncio.Event().wait()

    bench.kernel.answer("binding", never)
    bench.kernel.add()
    agent = bench.agent(lambda given: resource("ws", driver=Driver()), shutdown_grace=0.01)
    await bench.deliver(agent)
    await arrived.wait()
    await agent.close()
    assert 'created {"id":"box1"}, which was not recorded' in caplog.text
    assert bench.kernel.names()[-1] == "release"


async def test_a_cancellation_does_not_lose_what_was_created(bench: Bench) -> None:
    driver = Driver()
    scope = anyio.CancelScope()

    async def late(call: Call) -> None:
        scope.cancel()
        for _ in range(20):
            await asyncio.sleep(0)

    async def process(given: Any) -> Any:
        with scope:
            await resource("ws", driver=driver, checkpoints=CheckpointPolicy())
        assert scope.cancelled_caught
        return "moved on"

    bench.kernel.answer("binding", late)
    assert await bench.output(process) == "moved on"
    assert bench.kernel.named("binding")[0].body == BINDING[1]
    assert driver.calls == [("create", None)]  # and no baseline: nobody waits for it


async def test_a_cancellation_waits_for_a_thread_that_creates(bench: Bench) -> None:
    begun, go = threading.Event(), threading.Event()

    class Slow(SyncDriver):
        def create(self, checkpoint_ref: str | None = None) -> tuple[str, Any]:
            begun.set()
            assert go.wait(DEADLINE)
            return "handle", {"id": "box1"}

    async def process(given: Any) -> Any:
        opening = asyncio.create_task(resource("ws", driver=Slow()))
        await until(begun.is_set)
        opening.cancel()
        for _ in range(20):
            await asyncio.sleep(0)
        go.set()
        await asyncio.wait({opening})
        return opening.cancelled()

    assert await bench.output(process) is True
    assert bench.kernel.named("binding")[0].body == BINDING[1]


async def test_a_cancellation_reaches_an_async_create(bench: Bench) -> None:
    driver = Driver()
    driver.pause = go = asyncio.Event()

    async def process(given: Any) -> Any:
        opening = asyncio.create_task(resource("ws", driver=driver))
        await until(lambda: driver.calls)
        opening.cancel()
        await asyncio.wait({opening})
        assert opening.cancelled()
        go.set()
        return await resource("ws", driver=driver)

    assert await bench.output(process) == "handle2"


# closing, and stops


async def test_a_closing_agent_lets_an_opening_finish(bench: Bench) -> None:
    driver = Driver()
    driver.pause = asyncio.Event()
    bench.kernel.add()
    agent = bench.agent(lambda given: resource("ws", driver=driver, checkpoints=CheckpointPolicy()))
    await bench.deliver(agent)
    await bench.kernel.until_called("resources")
    closing = asyncio.create_task(agent.close())
    await asyncio.sleep(0)
    driver.pause.set()
    await asyncio.wait_for(closing, DEADLINE)
    assert bench.kernel.names()[:4] == ["get", "resources", "binding", "checkpoints"]


async def test_a_driver_that_was_stopped_stops_the_run(bench: Bench) -> None:
    async def process(given: Any) -> Any:
        await resource("ws", driver=Driver(create=[Blocked()]))

    assert await bench.run(process) is None
    assert bench.kernel.names() == ["get", "resources"]
