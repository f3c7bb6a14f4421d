"""What a fork restores where its source had captured nothing yet."""

from typing import Any

import pytest

from conftest import NewRun
from harness import Attempt, BearerClient, FakeAgent
from harness.forks import Source, check_fork, read_source
from harness.story import Disk, captured

Json = dict[str, Any]


def restored_state(agent: FakeAgent, made: Json, state: Json) -> Json:
    """What registering a resource again answers in a fork."""
    attempt = agent.take_attempt(made["id"])
    names = ("configuration", "coverage_reuse")
    fields = {name: state[name] for name in names if name in state}
    found: Json = attempt.register(state["key"], state["driver_id"], **fields).expect(200).json
    return found


class TestInherited:
    """A turn of a session whose resources are its parent's, before and after its own captures."""

    @pytest.fixture
    def parent(self, client: BearerClient, new_run: NewRun, session: str) -> Attempt:
        run = new_run(session=session)
        for key in ("disk", "bare"):
            Disk(run, key)
            run.bind(key, {"id": key}).expect(204)
        for ref in ("old", "newest"):
            step_id = run.proceed("write", ref, resources=["disk"])
            generation = run.register("disk").json["generation"]
            report = [captured("disk", generation, ref)]
            run.complete_step(step_id, captures=report).expect(200)
        run.record("more")
        run.complete().expect(204)
        return run

    @pytest.fixture
    def inherited(self, client: BearerClient, parent: Attempt) -> dict[str, Json]:
        newest = client.fork_points(parent.id)["checkpoints"][-1]
        assert newest["checkpoint_ref"] == "newest"
        entry = {
            "checkpoint_ref": "newest",
            "checkpoint_seq": newest["covered_seq"],
            "checkpoint_execution_id": parent.id,
        }
        return {"disk": entry}

    def test_at_every_event(
        self,
        client: BearerClient,
        agent: FakeAgent,
        parent: Attempt,
        inherited: dict[str, Json],
        new_run: NewRun,
        session: str,
    ) -> None:
        run = new_run(session=session)
        run.record("before")
        start = len(client.events(run.id))
        step_id = run.proceed("write", 0, resources=["disk"])
        generation = run.register("disk").json["generation"]
        run.complete_step(step_id, captures=[captured("disk", generation, "own")]).expect(200)
        run.record("after")
        source = read_source(client, run.id)
        own = 0
        for at_seq in range(1, len(source.log) + 1):
            made = client.fork(run.id, at_seq)
            want = check_fork(client, source, at_seq, made, inherited=inherited)
            refs = {k: e.get("checkpoint_ref") for k, e in want.restoration.items()}
            if refs:
                assert refs.get("bare") is None
                own += refs.get("disk") == "own"
            client.cancel(made["id"])
        assert own == len(source.log) - start - 3  # from the step's outcome on
        made = client.fork(run.id, start)
        state = restored_state(
            agent, made, {"key": "disk", "driver_id": "test.driver", "coverage_reuse": False}
        )
        assert "binding" not in state
        assert (state["checkpoint_ref"], state["covered"]) == ("newest", False)

    def test_forked_again(
        self,
        client: BearerClient,
        parent: Attempt,
        inherited: dict[str, Json],
        new_run: NewRun,
        session: str,
    ) -> None:
        """A fork that has captured nothing hands on what it was restored from itself."""
        run = new_run(session=session)
        run.record("before")
        first = client.fork(run.id, len(client.events(run.id)))
        again = client.fork(first["id"], len(client.events(first["id"])))
        entry = again["restoration"]["disk"]
        assert (entry["checkpoint_ref"], entry["covered"]) == ("newest", False)
        assert entry["checkpoint_execution_id"] == parent.id
        assert again["restoration"]["bare"] == {"covered": False}

    def test_a_turn_after_a_fork_that_captured_nothing(
        self,
        client: BearerClient,
        agent: FakeAgent,
        inherited: dict[str, Json],
        new_run: NewRun,
        session: str,
    ) -> None:
        """Its sandbox is the fork's, which began as that checkpoint."""
        run, name = new_run(session=session), f"{session}-2"
        first = client.fork(run.id, len(client.events(run.id)), session=name)
        agent.take_attempt(first["id"]).complete().expect(204)
        later = client.create(agent.id, session=name)["id"]
        agent.take_attempt(later).complete().expect(204)
        latest = agent.take_attempt(client.create(agent.id, session=name)["id"])
        latest.heartbeat().expect(204)  # acknowledged
        del inherited["disk"]["checkpoint_seq"]  # which a fork does not remember
        for turn in (later, latest.id):
            source = read_source(client, turn)
            made = client.fork(turn, len(source.log))
            check_fork(client, source, len(source.log), made, inherited=inherited)

    def test_a_turn_after_a_fork(
        self, client: BearerClient, agent: FakeAgent, parent: Attempt, session: str
    ) -> None:
        """In the fork's session: it inherits as from any."""
        name = f"{session}-2"
        made = client.fork(parent.id, len(client.events(parent.id)), session=name)
        run = agent.take_attempt(made["id"])
        run.bind("disk", {"id": "forked"}).expect(204)
        run.complete().expect(204)
        later = agent.take_attempt(client.create(agent.id, session=name)["id"])
        assert later.register("disk").expect(200).json["binding"] == {"id": "forked"}
        assert "binding" not in later.register("bare").expect(200).json


class TestEarlyPoints:
    """Before the first checkpoint nothing is restored, in a fork of a fork neither: what was
    captured later knows of steps that the fork does not have."""

    @pytest.fixture
    def source(self, client: BearerClient, run: Attempt) -> Source:
        disk = Disk(run, "disk")
        disk.step(1, captured=True)
        return read_source(client, run.id)

    def test_of_a_run(self, client: BearerClient, source: Source) -> None:
        registered = source.points["resources"]["disk"]
        made = client.fork(source.execution["id"], registered)
        check_fork(client, source, registered, made)
        assert made["restoration"] == {"disk": {"covered": False}}

    def test_of_a_fork(self, client: BearerClient, source: Source) -> None:
        made = client.fork(source.execution["id"], len(source.log))
        assert made["restoration"]["disk"]["checkpoint_ref"] == "disk-1"
        first = read_source(client, made["id"])
        registered = first.points["resources"]["disk"]
        again = client.fork(made["id"], registered)
        check_fork(client, first, registered, again)
        assert again["restoration"] == {"disk": {"covered": False}}


def test_many_checkpoints(client: BearerClient, run: Attempt) -> None:
    """More than are written at a time; the fork's own fork has them too."""
    keys = [f"disk-{n}" for n in range(80)]
    for key in keys:
        run.register(key, coverage_reuse=True, every_steps=1).expect(200)
    for turn in range(6):
        run.record("work", turn)
        run.capture(*(captured(key, 0, f"{key}-{turn}-" + "x" * 1500) for key in keys)).expect(204)
    run.record("write", resources=keys[:40])
    source = read_source(client, run.id)
    assert len(source.points["checkpoints"]) == 480
    at_seq = len(source.log)
    made = client.fork(run.id, at_seq)
    check_fork(client, source, at_seq, made)
    client.cancel(made["id"])
    copy = read_source(client, made["id"])
    assert len(copy.points["checkpoints"]) == 480
    last = copy.points["latest_seq"]
    check_fork(client, copy, last, client.fork(made["id"], last))
