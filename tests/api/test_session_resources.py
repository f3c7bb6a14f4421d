"""What a turn of a session takes over of its parent's resources."""

from typing import Any

import pytest

from conftest import NewAgent, NewRun, SetPolicy
from harness import Attempt, BearerClient, rule
from harness.sessions import START, end

Json = dict[str, Any]


def capture(run: Attempt, key: str, generation: int, ref: str) -> None:
    body = {"key": key, "generation": generation, "checkpoint_ref": ref}
    run.capture(body).expect(204)


def registration(key: str, **fields: Any) -> Json:
    defaults = {
        "driver_id": "test.driver",
        "coverage_reuse": False,
        "every_steps": 0,
        "on_completion": False,
    }
    return {"key": key, **defaults, **fields}


@pytest.fixture
def first(new_run: NewRun, session: str) -> Attempt:
    """A turn with a bound, captured `disk`, a bare `cache`, and a `db` with a policy."""
    run = new_run(session=session)
    run.register("disk", configuration={"size": 1}, coverage_reuse=True, every_steps=2).expect(200)
    run.register("db").expect(200)
    run.register("cache", "other.driver").expect(200)
    run.bind("disk", {"id": "s-1"}).expect(204)
    capture(run, "disk", 0, "base")
    for n in range(3):
        step_id = run.proceed("write", n, resources=["disk"])
        run.complete_step(step_id).expect(200)
    run.register("db", every_steps=3, on_completion=False).expect(200)
    return run


INHERITED = [
    ("resource.registered", registration("cache", driver_id="other.driver")),
    ("resource.registered", registration("db", every_steps=3)),
    (
        "resource.registered",
        registration(
            "disk",
            configuration={"size": 1},
            coverage_reuse=True,
            every_steps=2,
            on_completion=True,
        ),
    ),
    ("resource.bound", {"key": "disk", "binding": {"id": "s-1"}}),
]


def begins(client: BearerClient, run: Attempt) -> list[tuple[str, Json]]:
    """Its log up to its first delivery, without what every execution begins with."""
    log = client.events(run.id)
    queued = [e["type"] for e in log].index("dispatch.queued")
    assert [e["type"] for e in log[: queued + 1] if not e["type"].startswith("resource.")] == START
    return [(e["type"], e["payload"]) for e in log[1:queued] if e["type"] != "execution.started"]


class TestInheriting:
    def test_registrations_policies_and_bindings(
        self, client: BearerClient, first: Attempt, new_run: NewRun, session: str
    ) -> None:
        first.complete().expect(204)
        run = new_run(session=session)
        assert begins(client, run) == INHERITED
        seqs = {
            e["payload"]["key"]: e["event_seq"]
            for e in client.events(run.id)
            if e["type"] == "resource.registered"
        }
        assert client.fork_points(run.id)["resources"] == seqs
        found = run.register("disk", configuration={"size": 1}, coverage_reuse=True).expect(200)
        assert found.json == {
            "key": "disk",
            "driver_id": "test.driver",
            "configuration": {"size": 1},
            "coverage_reuse": True,
            "every_steps": 2,
            "on_completion": True,
            "generation": 0,
            "count": 0,
            "registered_seq": seqs["disk"],
            "binding": {"id": "s-1"},
            "covered": False,
        }
        assert client.fork_points(run.id)["checkpoints"] == []

    def test_when_it_waited(self, client: BearerClient, first: Attempt, session: str) -> None:
        waiting = client.create(first.agent.id, session=session)["id"]
        assert client.fork_points(waiting)["resources"] == {}
        first.complete().expect(204)
        run = first.agent.take_attempt(waiting)
        assert begins(client, run) == INHERITED

    def test_what_the_parent_left_at_its_end(
        self, client: BearerClient, first: Attempt, new_run: NewRun, session: str
    ) -> None:
        """Also what it inherited itself, and so on."""
        first.complete().expect(204)
        second = new_run(session=session)
        second.bind("db", {"dsn": "x"}).expect(204)
        second.register("new").expect(200)
        second.complete().expect(204)
        third = new_run(session=session)
        assert begins(client, third) == [
            INHERITED[0],
            INHERITED[1],
            ("resource.bound", {"key": "db", "binding": {"dsn": "x"}}),
            *INHERITED[2:],
            ("resource.registered", registration("new")),
        ]

    def test_rules_go_on(
        self, client: BearerClient, first: Attempt, new_run: NewRun, session: str
    ) -> None:
        first.complete().expect(204)
        run = new_run(session=session)
        run.register("disk", "x").expect(409, "conflict")
        run.bind("disk", {"id": "s-2"}).expect(409, "conflict")
        run.bind("disk", {"id": "s-1"}).expect(204)
        run.bind("cache", 1).expect(204)
        due = []
        for n in range(4):
            decision = run.submit("write", n, resources=["disk"]).expect(200).json
            due += [r for r in decision["resources"] if r["key"] == "disk"]
            run.complete_step(decision["step_id"]).expect(200)
        assert due == [
            {"key": "disk", "generation": n, **({"due": True} if n % 2 == 0 else {})}
            for n in (1, 2, 3, 4)
        ]
        capture(run, "disk", 4, "later")
        (checkpoint,) = client.fork_points(run.id)["checkpoints"]
        assert checkpoint["checkpoint_ref"] == "later"
        assert len(client.fork_points(first.id)["checkpoints"]) == 1


class TestNotInheriting:
    @pytest.mark.parametrize("how", ["fail", "cancel"])
    def test_of_one_that_did_not_complete(
        self, client: BearerClient, first: Attempt, new_run: NewRun, session: str, how: str
    ) -> None:
        end(client, first, how)
        run = new_run(session=session)
        assert client.fork_points(run.id)["resources"] == {}

    def test_past_one_that_failed(
        self, client: BearerClient, first: Attempt, new_run: NewRun, session: str
    ) -> None:
        first.complete().expect(204)
        second = new_run(session=session)
        second.register("lost").expect(200)
        second.fail().expect(204)
        assert begins(client, new_run(session=session)) == INHERITED

    def test_of_another_agent(
        self, client: BearerClient, first: Attempt, new_agent: NewAgent, session: str
    ) -> None:
        first.complete().expect(204)
        other = new_agent()
        run = other.take_attempt(client.create(other.id, session=session)["id"])
        assert client.fork_points(run.id)["resources"] == {}

    @pytest.mark.parametrize("named", [False, True])
    def test_by_a_branch(
        self, client: BearerClient, first: Attempt, session: str, named: bool
    ) -> None:
        """Another session than its parent's."""
        first.complete().expect(204)
        fields = {"session": f"{session}-2"} if named else {}
        made = client.create(first.agent.id, parent_execution_id=first.id, **fields)
        assert made["parent_execution_id"] == first.id
        assert client.fork_points(made["id"])["resources"] == {}

    def test_without_a_session(self, client: BearerClient, first: Attempt, new_run: NewRun) -> None:
        first.complete().expect(204)
        assert client.fork_points(new_run().id)["resources"] == {}

    def test_the_turn_after_a_branch_does(
        self, client: BearerClient, first: Attempt, session: str
    ) -> None:
        first.complete().expect(204)
        fork = f"{session}-2"
        made = client.create(first.agent.id, parent_execution_id=first.id, session=fork)
        branch = first.agent.take_attempt(made["id"])
        branch.register("own").expect(200)
        branch.complete().expect(204)
        later = first.agent.take_attempt(client.create(first.agent.id, session=fork)["id"])
        assert begins(client, later) == [("resource.registered", registration("own"))]


def test_a_turn_that_waits_for_a_person(
    client: BearerClient, first: Attempt, new_run: NewRun, policy: SetPolicy, session: str
) -> None:
    """What it inherited is there in each of its deliveries, once."""
    first.complete().expect(204)
    policy(rule("gate", "require_approval", {"target": "gated"}), default="allow")
    run = new_run(session=session)
    client.grant(run.hold("gated", resources=["disk"])).expect(204)
    later = run.redelivered()
    decision = later.submit("gated", resources=["disk"]).expect(200).json
    assert decision["resources"] == [
        {"key": "cache", "generation": 1},
        {"key": "db", "generation": 1},
        {"key": "disk", "generation": 1},
    ]
    assert client.event_types(run.id).count("resource.registered") == 3
