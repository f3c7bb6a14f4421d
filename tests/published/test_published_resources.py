"""The published SDK with resources, sessions, forks and subagents, against this kernel."""

import asyncio
import time

import pytest
import rebuno
from rebuno import Client
from world import World, ended, until

DENY = """
default_action: allow
rules:
  - id: no-third
    when: { target: put, arguments: { n: { equals: "3" } } }
    then: { decision: deny, reason: not a third time }
"""


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    w = World(tmp_path_factory.mktemp("world"), "working_agent.py", helper="helper_agent.py")
    yield w
    w.close()


@pytest.fixture
def world(shared):
    """The shared one, without the effects of earlier tests; nothing may run any more at its end."""
    shared.effects.write_text("")
    return shared


def run(world: World, scenario) -> None:
    async def main() -> None:
        async with Client(world.url) as client:
            await scenario(client)

    asyncio.run(main())


async def finished(client: Client, given, **more):
    made = await client.create("pub", given, **more)
    execution = await ended(client, made.id)
    assert execution.status == "completed", execution.failure_reason
    return execution


async def events_of(client: Client, execution_id: str, *kinds: str):
    return [e for e in await client.events(execution_id, limit=1000) if e.type.startswith(kinds)]


async def settled_at(client: Client, execution_id: str) -> list[int]:
    return [e.event_seq for e in await events_of(client, execution_id, "step.succeeded")]


WORKED = ["create anew", "checkpoint", "put 1.1", "put 1.2", "checkpoint", "put 1.3", "checkpoint"]


def test_a_run_with_checkpoints(world):
    async def scenario(client):
        execution = await finished(client, {"mode": "work"})
        assert execution.output["said"] == ["put 1", "put 2", "put 3"]
        assert execution.output["found"] == 3
        events = await events_of(client, execution.id, "resource.")
        assert [e.type.removeprefix("resource.") for e in events] == [
            "registered", "bound", "checkpointed", "checkpointed", "checkpointed",
        ]  # fmt: skip
        assert events[0].payload["driver_id"] == "example.boxes.v1"
        assert events[0].payload["configuration"] == {"size": "small"}
        settled = await settled_at(client, execution.id)
        assert events[3].payload["covered_seq"] == settled[1]

    run(world, scenario)
    assert world.lines() == WORKED


def test_captures_that_fail(world):
    async def scenario(client):
        execution = await finished(client, {"mode": "full"})
        assert execution.output["found"] == 3
        events = await events_of(client, execution.id, "resource.checkpoint_failed")
        assert {e.payload["error"] for e in events} == {"disk full"}
        assert len(events) == 3

    run(world, scenario)


def test_an_agent_that_dies_opens_the_same_box(world):
    async def scenario(client):
        made = await client.create("pub", {"mode": "die-once"})
        until(lambda: world.agent.poll() is not None)
        world.start_agent()
        execution = await ended(client, made.id)
        assert execution.status == "completed", execution.failure_reason
        assert execution.output["found"] == 3

    run(world, scenario)
    lines = world.lines()
    assert lines.count("create anew") == lines.count("open") == 1
    assert [line for line in lines if line.startswith("put")] == ["put 1.1", "put 1.2", "put 1.3"]


def test_turns_share_the_box(world):
    async def scenario(client):
        turns = [await client.create("pub", {"mode": "work"}, session="boxed") for _ in range(2)]
        runs = [await ended(client, one.id) for one in turns]
        assert [one.status for one in runs] == ["completed"] * 2, runs[-1].failure_reason
        assert [one.output["found"] for one in runs] == [3, 6]
        assert runs[1].parent_execution_id == runs[0].id
        assert sorted(runs[1].output["box"]) == ["1.1", "1.2", "1.3", "2.1", "2.2", "2.3"]

    run(world, scenario)
    assert world.lines().count("create anew") == world.lines().count("open") == 1


def test_forks(world):
    async def scenario(client):
        source = await finished(client, {"mode": "work"})
        settled = await settled_at(client, source.id)
        fork = await client.fork(source.id, at_seq=settled[1], session="fork-of-box")
        assert (fork.forked_from, fork.fork_seq) == (source.id, settled[1])
        restored = fork.restoration["box"]
        assert restored["covered"] is True and restored["checkpoint_seq"] == settled[1]
        output = (await ended(client, fork.id)).output
        assert output["said"] == ["put 1", "put 2", "put 3"]
        assert output["box"] == {"1.1": source.id, "1.2": source.id, "1.3": fork.id}

        uncovered = await client.fork(source.id, at_seq=settled[0])
        assert uncovered.restoration["box"]["covered"] is False
        output = (await ended(client, uncovered.id)).output
        assert output["box"] == {"1.2": uncovered.id, "1.3": uncovered.id}

        denied = await client.fork(source.id, at_seq=settled[1], policy_bundle=DENY)
        output = (await ended(client, denied.id)).output
        assert output["said"][2].startswith("put not allowed. reason: ")
        assert "not a third time" in output["said"][2]
        assert output["box"] == {"1.1": source.id, "1.2": source.id}

        again = await client.fork(fork.id, at_seq=(await settled_at(client, fork.id))[1])
        output = (await ended(client, again.id)).output
        assert output["box"] == {"1.1": source.id, "1.2": source.id, "1.3": again.id}

        with pytest.raises(rebuno.ValidationError):
            await client.fork(source.id, at_seq=100_000)
        with pytest.raises(rebuno.ConflictError):
            await client.fork(source.id, at_seq=1, session="fork-of-box")

    run(world, scenario)
    assert len([line for line in world.lines() if line.startswith("create snap-")]) == 4


def test_a_checkpoint_that_is_gone(world):
    async def scenario(client):
        source = await finished(client, {"mode": "work"})
        at_seq = (await settled_at(client, source.id))[1]
        for path in (world.folder / "boxes").glob("snap-*"):
            path.unlink()
        fork = await client.fork(source.id, at_seq=at_seq)
        reference = fork.restoration["box"]["checkpoint_ref"]
        failed = await ended(client, fork.id)
        assert failed.failure_reason == f"agent_error: CheckpointUnavailable: {reference} is gone"

    run(world, scenario)


@pytest.mark.parametrize("mode", ["ask", "ask-at-once"])
def test_subagents(world, mode):
    async def scenario(client):
        made = await finished(client, {"mode": mode, "questions": ["a", "b", "c"]})
        assert made.output == [{"answer": letter} for letter in "ABC"]
        steps = await client.list_steps(made.id)
        assert [s.status for s in steps] == ["succeeded"] * 3
        blocked = await events_of(client, made.id, "execution.blocked")
        assert len(blocked) <= (3 if mode == "ask" else 1)

    run(world, scenario)
    assert sorted(world.lines()) == ["helps a", "helps b", "helps c"]


def test_a_subagent_that_fails(world):
    async def scenario(client):
        made = await finished(client, {"mode": "ask-and-go-on", "questions": ["fail"]})
        assert made.output.startswith("ToolError: ") and "no luck" in made.output
        (step,) = await client.list_steps(made.id)
        assert step.error["reason"] == "subagent_failed"

    run(world, scenario)


def test_a_cancelled_parent_cancels_its_subagent(world):
    async def scenario(client):
        made = await client.create("pub", {"mode": "ask", "questions": ["wait"]})
        deadline = time.monotonic() + 30
        while (await client.get(made.id)).status != "blocked":
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        (step,) = await client.list_steps(made.id)
        assert step.status == "executing"
        await client.cancel(made.id)
        assert (await ended(client, made.id)).status == "cancelled"
        assert (await client.get_step(made.id, step.step_id)).status == "cancelled"

    run(world, scenario)
