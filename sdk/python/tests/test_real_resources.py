"""Resources against the real kernel: found again, captured, inherited, refused."""

import asyncio
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from provider import Boxes
from real_kernel import BIN, DEADLINE, SECRET, Process, register, serving, until

from rebuno import CheckpointPolicy, Client, Result, ToolError, execution, previous, resource, step
from rebuno.types import Event, Execution

pytestmark = pytest.mark.skipif(not BIN, reason="REBUNO_BIN names no kernel")

BOX_AGENT = Path(__file__).parent / "agents" / "box.py"


async def of_resources(client: Client, execution_id: str) -> list[tuple[str, Any]]:
    """The events of resources: what happened, and the fields that say more than the key."""
    events = await client.events(execution_id, limit=1000)
    return [
        (one.type.removeprefix("resource."), one.payload)
        for one in events
        if one.type.startswith("resource.")
    ]


async def run(client: Client, agent_id: str, given: Any = None, **more: Any) -> Execution:
    created = await client.create(agent_id, given, **more)
    return await client.wait(created.id, DEADLINE)


async def settled_at(client: Client, execution_id: str) -> list[int]:
    """The events at which the steps settled."""
    events: list[Event] = await client.events(execution_id, limit=1000)
    return [one.event_seq for one in events if one.type in ("step.succeeded", "step.failed")]


async def test_captures_as_the_policy_says(kernel_url: str, client: Client, tmp_path: Path) -> None:
    """A baseline, one after every second affecting step, failed ones too, and one at the end."""
    driver = Boxes(tmp_path)

    async def process(given: Any) -> Any:
        box = await resource("ws", driver=driver, checkpoints=CheckpointPolicy(every_steps=2))

        def put(n: int) -> None:
            box.put("n", n)
            if n == 2:
                raise ValueError("wrote, and failed")

        for n in (1, 2, 3):
            try:
                await step("put", put, {"n": n}, resources=["ws"])
            except ToolError:
                assert n == 2
            await step("look", lambda: None)
        return box.read()

    async with serving(kernel_url, "boxes", process):
        ended = await run(client, "boxes")
    assert ended.output == {"n": 3}, ended.failure_reason
    events = await of_resources(client, ended.id)
    kinds = ["registered", "bound", *["checkpointed"] * 3]
    assert [kind for kind, _ in events] == kinds
    assert events[0][1]["every_steps"] == 2
    # Each `look` touches it, as it might have changed it: generations 0, then put 1, look 1, put 2.
    captured = [payload for kind, payload in events if kind == "checkpointed"]
    assert [one["generation"] for one in captured] == [0, 3, 6]
    points = await client.fork_points(ended.id)
    settled = await settled_at(client, ended.id)
    covered = [(one.covered_seq, one.invalidated_seq) for one in points.checkpoints]
    assert covered[1][0] == settled[2]  # the second put, which failed
    assert covered[2][1] is None
    assert driver.asked == ["create anew", *["checkpoint"] * 3]


async def test_reuse_of_coverage(kernel_url: str, client: Client, tmp_path: Path) -> None:
    """All changes are declared, so what stands between two of them is covered."""
    driver = Boxes(tmp_path, coverage_reuse=True, configuration={"size": 1})

    async def process(given: Any) -> Any:
        box = await resource("ws", driver=driver, checkpoints=CheckpointPolicy())
        await step("put", box.put, {"name": "n", "value": 1}, resources=["ws"])
        await step("look", lambda: None)

    async with serving(kernel_url, "boxes", process):
        ended = await run(client, "boxes")
    assert ended.status == "completed", ended.failure_reason
    assert driver.asked == ["create anew", "checkpoint", "checkpoint"]
    (baseline, after) = (await client.fork_points(ended.id)).checkpoints
    assert baseline.invalidated_seq is not None
    assert after.invalidated_seq is None


async def test_a_capture_that_fails_costs_nothing_else(
    kernel_url: str, client: Client, tmp_path: Path
) -> None:
    class Full(Boxes):
        def checkpoint(self, box: Any) -> Any:
            reference = super().checkpoint(box)
            count = self.asked.count("checkpoint")
            if count == 2:
                raise RuntimeError("disk full")
            return None if count == 3 else reference

    async def process(given: Any) -> Any:
        box = await resource("ws", driver=Full(tmp_path), checkpoints=CheckpointPolicy())
        first = await step("put", box.put, {"name": "a", "value": 1}, resources=["ws"])
        return [first, await step("put", box.put, {"name": "b", "value": 1}, resources=["ws"])]

    async with serving(kernel_url, "boxes", process):
        ended = await run(client, "boxes")
    assert ended.output == [None, None], ended.failure_reason
    events = await of_resources(client, ended.id)
    said = [payload["error"] for kind, payload in events if kind == "checkpoint_failed"]
    assert said == ["disk full", "missing_checkpoint_ref"]
    assert events[-1][0] == "checkpointed"  # on completion, since it was uncovered


async def test_a_due_resource_that_was_not_opened(
    kernel_url: str, client: Client, tmp_path: Path
) -> None:
    """A turn of a session inherits resources and need not open them."""

    async def process(given: Any) -> Any:
        if given == "open":
            await resource("ws", driver=Boxes(tmp_path), checkpoints=CheckpointPolicy())
        return await step("put", lambda: given, resources=["ws"])

    async with serving(kernel_url, "boxes", process):
        first = await run(client, "boxes", "open", session="s-unopened")
        second = await run(client, "boxes", "not", session="s-unopened")
    assert (first.output, second.output) == ("open", "not")
    events = await of_resources(client, second.id)
    assert [kind for kind, _ in events] == ["registered", "bound", "checkpoint_failed"]
    assert events[-1][1]["error"] == "resource() was not called in this dispatch"


async def test_an_undeclared_resource_is_refused(kernel_url: str, client: Client) -> None:
    async with serving(
        kernel_url, "boxes", lambda given: step("put", lambda: 1, resources=["nowhere"])
    ):
        ended = await run(client, "boxes")
    assert ended.failure_reason.startswith("agent_error: ValidationError: ")
    assert "nowhere" in ended.failure_reason


async def test_turns_of_a_session_share_it(kernel_url: str, client: Client, tmp_path: Path) -> None:
    """The policy is preserved, too: the second turn asks for none."""
    driver = Boxes(tmp_path)

    async def process(given: Any) -> Any:
        policy = CheckpointPolicy(5) if given == 1 else None
        box = await resource("ws", driver=driver, checkpoints=policy)
        await step("put", box.put, {"name": str(given), "value": given}, resources=["ws"])
        seen = [*(await previous() or []), given]
        return Result(box.read(), state=seen)

    async with serving(kernel_url, "boxes", process):
        ends = [await run(client, "boxes", turn, session="s-shared") for turn in (1, 2, 3)]
    assert [one.output for one in ends] == [
        {"1": 1},
        {"1": 1, "2": 2},
        {"1": 1, "2": 2, "3": 3},
    ]
    assert len(driver.boxes()) == 1
    one_turn = ["checkpoint"] * 2
    assert driver.asked == ["create anew", *one_turn, "open", *one_turn, "open", *one_turn]


@pytest.mark.parametrize("change", ["driver_id", "configuration"])
async def test_another_driver_under_the_same_key(
    kernel_url: str, client: Client, tmp_path: Path, change: str
) -> None:
    async def process(given: Any) -> Any:
        members = {change: "another"} if given == 2 else {}
        await resource("ws", driver=Boxes(tmp_path, **members))

    session = f"s-other-{change}"
    async with serving(kernel_url, "boxes", process):
        assert (await run(client, "boxes", 1, session=session)).status == "completed"
        ended = await run(client, "boxes", 2, session=session)
    assert ended.failure_reason.startswith("agent_error: ConflictError: ")


@pytest.mark.parametrize("key", ["", "a/b", "..", "naïve", "x" * 129])
async def test_keys_that_are_none(
    kernel_url: str, client: Client, tmp_path: Path, key: str
) -> None:
    async def process(given: Any) -> Any:
        await resource(key, driver=Boxes(tmp_path))

    async with serving(kernel_url, "boxes", process):
        ended = await run(client, "boxes")
    assert ended.failure_reason.startswith("agent_error: ValidationError: ")
    assert Boxes(tmp_path).boxes() == []


async def test_a_null_binding_is_refused_and_named(
    kernel_url: str, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    class Forgetful:
        driver_id = "forgetful.v1"

        def create(self, checkpoint_ref: str | None = None) -> tuple[int, None]:
            return 1, None

    async def process(given: Any) -> Any:
        await resource("ws", driver=Forgetful())

    async with serving(kernel_url, "boxes", process):
        ended = await run(client, "boxes")
    assert ended.failure_reason.startswith("agent_error: ValidationError: ")
    assert "driver forgetful.v1 created null, which was not recorded" in caplog.text


# agents and kernels that are killed


class World:
    """The agent of agents/box.py, as processes that come and go."""

    def __init__(self, kernel_url: str, folder: Path) -> None:
        self.kernel_url, self.folder = kernel_url, folder
        self.processes: list[Process] = []

    async def start(self, **env: str) -> Process:
        process = Process(
            [sys.executable, str(BOX_AGENT)],
            self.folder,
            REBUNO_URL=self.kernel_url,
            REBUNO_AGENT_SECRET=SECRET,
            BOXES=str(self.folder),
            **env,
        )
        self.processes.append(process)
        await register(self.kernel_url, "box", await asyncio.to_thread(process.url))
        return process

    def end(self) -> None:
        for process in self.processes:
            process.end(signal.SIGKILL)


async def test_killed_after_a_step_it_opens_the_same_box(
    kernel_url: str, client: Client, tmp_path: Path
) -> None:
    world = World(kernel_url, tmp_path)
    try:
        doomed = await world.start(HANG="after the second step")
        created = await client.create("box")
        await until(lambda: any("hangs" in line for line in doomed.output))
        doomed.end(signal.SIGKILL)
        await world.start()
        ended = await client.wait(created.id, DEADLINE)
    finally:
        world.end()
    assert ended.output["box"] == {"1": 1, "2": 1, "3": 1}, ended.failure_reason
    assert ended.output["attempt"] > 1
    assert len(Boxes(tmp_path).boxes()) == 1


async def test_killed_between_create_and_bind_the_log_names_the_orphan(
    kernel_url: str, client: Client, tmp_path: Path
) -> None:
    world = World(kernel_url, tmp_path)
    try:
        doomed = await world.start(HANG="before the binding")
        created = await client.create("box")
        await until(lambda: any("hangs" in line for line in doomed.output))
        doomed.end(signal.SIGKILL)
        (orphan,) = Boxes(tmp_path).boxes()
        told = [line for line in doomed.output if orphan.path.name in line]
        assert created.id in told[0]
        assert "resource 'ws': driver test.boxes.v1 created" in told[0]
        await world.start()
        ended = await client.wait(created.id, DEADLINE)
    finally:
        world.end()
    assert ended.output["box"] == {"1": 1, "2": 1, "3": 1}, ended.failure_reason
    assert len(Boxes(tmp_path).boxes()) == 2  # the kernel never knew of the first


async def test_killed_between_capture_and_outcome_the_step_runs_again(
    kernel_url: str, client: Client, tmp_path: Path
) -> None:
    """It is `safe_to_retry`; the capture that was never told is left to the provider."""
    world = World(kernel_url, tmp_path)
    try:
        doomed = await world.start(HANG="after the second capture")
        created = await client.create("box")
        await until(lambda: any("hangs" in line for line in doomed.output))
        doomed.end(signal.SIGKILL)
        await world.start()
        ended = await client.wait(created.id, DEADLINE)
    finally:
        world.end()
    assert ended.output["box"] == {"1": 2, "2": 1, "3": 1}, ended.failure_reason
    snapshots = {snapshot.path.name for snapshot in Boxes(tmp_path).snapshots()}
    points = await client.fork_points(created.id)
    recorded = {one.checkpoint_ref for one in points.checkpoints}
    assert len(snapshots - recorded) == 1
    assert recorded < snapshots


async def test_a_kernel_killed_between_create_and_bind(tmp_path: Path) -> None:
    """The agent lives through it: the binding is recorded when the kernel is back."""
    created, go = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    class Waits(Boxes):
        def create(self, checkpoint_ref: str | None = None) -> Any:
            made = super().create(checkpoint_ref)
            loop.call_soon_threadsafe(created.set)
            asyncio.run_coroutine_threadsafe(go.wait(), loop).result(DEADLINE)
            return made

    driver = Waits(tmp_path)

    async def process(given: Any) -> Any:
        box = await resource("ws", driver=driver, checkpoints=CheckpointPolicy())
        await step("put", box.put, {"name": "n", "value": 1}, resources=["ws"])
        return [box.read(), execution().dispatch_attempt]

    command = [BIN, "dev", "--db", str(tmp_path / "kernel.db"), "--listen-addr"]
    kernel = Process([*command, "127.0.0.1:0"], tmp_path)
    try:
        url = kernel.url()
        async with serving(url, "boxes", process), Client(url) as client:
            made = await client.create("boxes")
            await asyncio.wait_for(created.wait(), DEADLINE)
            kernel.end(signal.SIGKILL)
            go.set()
            kernel = Process([*command, url.removeprefix("http://")], tmp_path)
            ended = await client.wait(made.id, DEADLINE)
            assert ended.output == [{"n": 1}, 1], ended.failure_reason
            assert len(driver.boxes()) == 1
    finally:
        kernel.end(signal.SIGTERM)


async def test_a_kernel_killed_between_capture_and_outcome(tmp_path: Path) -> None:
    """The agent lives through it: outcome and capture are recorded when the kernel is back."""
    captured, go = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    class Waits(Boxes):
        def checkpoint(self, box: Any) -> str:
            reference = super().checkpoint(box)
            if self.asked.count("checkpoint") == 2:  # the first is the baseline
                loop.call_soon_threadsafe(captured.set)
                asyncio.run_coroutine_threadsafe(go.wait(), loop).result(DEADLINE)
            return reference

    driver = Waits(tmp_path)

    async def process(given: Any) -> Any:
        box = await resource("ws", driver=driver, checkpoints=CheckpointPolicy())
        await step("put", box.put, {"name": "n", "value": 1}, resources=["ws"])
        return [box.read(), execution().dispatch_attempt]

    command = [BIN, "dev", "--db", str(tmp_path / "kernel.db"), "--listen-addr"]
    kernel = Process([*command, "127.0.0.1:0"], tmp_path)
    try:
        url = kernel.url()
        async with serving(url, "boxes", process), Client(url) as client:
            made = await client.create("boxes")
            await asyncio.wait_for(captured.wait(), DEADLINE)
            kernel.end(signal.SIGKILL)
            go.set()
            kernel = Process([*command, url.removeprefix("http://")], tmp_path)
            ended = await client.wait(made.id, DEADLINE)
            assert ended.output == [{"n": 1}, 1], ended.failure_reason
            points = await client.fork_points(made.id)
            (outcome,) = await settled_at(client, made.id)
            assert [one.covered_seq for one in points.checkpoints][1:] == [outcome]
            names = {snapshot.path.name for snapshot in driver.snapshots()}
            assert {one.checkpoint_ref for one in points.checkpoints} == names
    finally:
        kernel.end(signal.SIGTERM)
