"""Rate limits: refused, parked until the turn comes, counted where they are said to count."""

import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from conftest import Database, NewAgent, NewKernel, NewRun, SetPolicy
from harness import Attempt, BearerClient, Cluster, FakeAgent, Kernel, bundle, hash_of, rule

EXCEEDED = "rate_limit_exceeded"


def limited(
    calls: int, window: str = "1h", decision: str = "allow", **limit: Any
) -> dict[str, Any]:
    config = {"max_calls": calls, "window": window, **limit}
    return rule("limited", decision, {"target": "x*"}, rate_limit=config)


def refused(run: Attempt, target: str = "x", args: Any = None) -> dict[str, Any]:
    answer: dict[str, Any] = run.submit(target, args).expect(200).json
    assert answer["decision"] == "rate_limited", answer
    return answer


def wall(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


class TestRefused:
    def test_what_is_answered_and_recorded(
        self, client: BearerClient, run: Attempt, policy: SetPolicy
    ) -> None:
        text = policy(limited(2), default="allow")
        run.record("x", 0)
        run.record("x", 1)
        seq = client.events(run.id)[-1]["event_seq"]
        steps = client.steps(run.id)
        assert refused(run, args=2) == {
            "decision": "rate_limited",
            "reason": EXCEEDED,
            "rule_id": "limited",
        }
        assert client.steps(run.id) == steps
        (event,) = client.events(run.id, seq)
        assert event["type"] == "step.rate_limited"
        assert event["payload"] == {
            "step_id": event["payload"]["step_id"],
            "step_type": "tool_call",
            "target": "x",
            "rule_id": "limited",
            "policy_hash": hash_of(text),
        }
        assert client.execution(run.id)["status"] == "running"
        run.proceed("other")

    def test_is_not_counted_as_a_submission(
        self, client: BearerClient, run: Attempt, policy: SetPolicy
    ) -> None:
        policy(limited(1))
        run.record("x", "first")
        for _ in range(3):
            refused(run, args="a")
        policy(rule("free", "allow"))
        assert client.step(run.id, run.proceed("x", "a"))["occurrence"] == 0

    def test_a_repeated_request_is_decided_anew(self, run: Attempt, policy: SetPolicy) -> None:
        policy(limited(1))
        run.record("x", 0)
        assert run.submit("x", 1, key="k").expect(200).json["decision"] == "rate_limited"
        policy(rule("free", "allow"))
        assert run.submit("x", 1, key="k").expect(200).json["decision"] == "proceed"

    def test_tokens_come_back(self, run: Attempt, policy: SetPolicy) -> None:
        """Two a second: after a pause of a second there are two again, and no more."""
        policy(limited(2, "1s"))
        run.record("x", 0)
        run.record("x", 1)
        taken = 0
        until = time.monotonic() + 3.0
        while time.monotonic() < until:
            taken += run.submit("x", 2 + taken).expect(200).json["decision"] == "proceed"
        assert 4 <= taken <= 7

    def test_a_denial_takes_none(self, run: Attempt, policy: SetPolicy) -> None:
        policy(limited(1, decision="deny"))
        for n in range(5):
            assert run.denied("x", n)["rule_id"] == "limited"

    def test_what_a_person_decides_takes_one(
        self, client: BearerClient, run: Attempt, policy: SetPolicy
    ) -> None:
        policy(limited(1, decision="require_approval"))
        client.grant(run.hold("x", 0)).expect(204)
        later = run.redelivered()
        later.proceed("x", 0)  # under its grant: nothing more is taken
        refused(later, args=1)

    def test_a_replay_takes_none(self, run: Attempt, policy: SetPolicy) -> None:
        policy(limited(1))
        run.record("x", 0, "r")
        later = run
        for _ in range(3):
            later = later.released()
            assert later.replay("x", 0)["result"] == "r"

    def test_many_at_once(self, run: Attempt, policy: SetPolicy) -> None:
        policy(limited(5))
        with ThreadPoolExecutor(10) as pool:
            answers = list(pool.map(lambda n: run.submit("x", n).expect(200).json, range(20)))
        assert sum(a["decision"] == "proceed" for a in answers) == 5
        assert sum(a["decision"] == "rate_limited" for a in answers) == 15


class TestScopes:
    @pytest.mark.parametrize("per_what", [None, "execution", "session"])
    def test_per_execution(self, new_run: NewRun, policy: SetPolicy, per_what: str | None) -> None:
        policy(limited(1, **({"per_what": per_what} if per_what else {})))
        for run in (new_run(), new_run()):
            run.proceed("x")
            refused(run)

    def test_per_session(self, new_run: NewRun, policy: SetPolicy, session: str) -> None:
        """Its executions share a bucket; one without a session, and another session, do not."""
        policy(limited(2, per_what="session"))
        first = new_run(session=session)
        first.proceed("x")
        first.complete().expect(204)
        second = new_run(session=session)
        second.proceed("x")
        refused(second)
        for run in (new_run(session=f"{session}-2"), new_run()):
            run.proceed("x", 1)
            run.proceed("x", 2)
            refused(run)

    def test_per_session_whatever_the_agent(
        self,
        client: BearerClient,
        new_run: NewRun,
        policy: SetPolicy,
        new_agent: NewAgent,
        session: str,
    ) -> None:
        """The bucket is the rule's and the session's."""
        text = policy(limited(1, per_what="session"))
        other = new_agent()
        client.set_policy(other.id, text)
        first = new_run(session=session)
        first.proceed("x")
        first.complete().expect(204)
        created = client.create(other.id, session=session)
        refused(other.take_attempt(created["id"]))

    def test_per_execution_of_a_session(
        self, new_run: NewRun, policy: SetPolicy, session: str
    ) -> None:
        policy(limited(1))
        for _ in range(2):
            run = new_run(session=session)
            run.proceed("x")
            refused(run)
            run.complete().expect(204)

    def test_per_agent(
        self, client: BearerClient, new_run: NewRun, policy: SetPolicy, new_agent: NewAgent
    ) -> None:
        text = policy(limited(2, per_what="agent"))
        first, second = new_run(), new_run()
        first.proceed("x")
        second.proceed("x")
        refused(first)
        refused(second)
        other = new_agent()
        client.set_policy(other.id, text)
        other.take_attempt(client.create(other.id)["id"]).proceed("x")

    def test_global(
        self, client: BearerClient, new_run: NewRun, policy: SetPolicy, new_agent: NewAgent
    ) -> None:
        name = f"global-{time.time_ns()}"  # the whole database shares it
        gate = {**limited(2, per_what="global"), "id": name}
        text = policy(gate)
        other = new_agent()
        client.set_policy(other.id, text)
        first, second = new_run(), other.take_attempt(client.create(other.id)["id"])
        first.proceed("x")
        second.proceed("x")
        refused(first)
        assert refused(second)["rule_id"] == name

    def test_each_rule_has_its_own(self, run: Attempt, policy: SetPolicy) -> None:
        config = {"max_calls": 1, "window": "1h"}
        policy(*(rule(t, "allow", {"target": t}, rate_limit=config) for t in "ab"))
        run.proceed("a")
        run.proceed("b")
        refused(run, "a")
        refused(run, "b")

    def test_a_changed_bundle_keeps_the_buckets(self, run: Attempt, policy: SetPolicy) -> None:
        policy(limited(1))
        run.proceed("x", 0)
        policy(limited(1), rule("another", "allow"))
        refused(run, args=1)


class TestParked:
    def test_until_its_turn_comes(
        self, client: BearerClient, run: Attempt, policy: SetPolicy
    ) -> None:
        text = policy(limited(1, "2s", max_wait="1m"))
        before = time.time()
        run.record("x", 0, "r")
        seq = client.events(run.id)[-1]["event_seq"]
        started = time.time()
        run.park("x", 1)
        found = client.execution(run.id)
        assert found["status"] == "running"
        (wait,) = found["waiting_on"]
        assert (wait["kind"], set(wait)) == ("rate_limit", {"kind", "until"})
        assert before + 2.0 <= wall(wait["until"]) <= started + 2.0
        event = client.events(run.id, seq)[0]
        assert event["type"] == "step.rate_limited"
        shown = {k: event["payload"][k] for k in ("rule_id", "policy_hash", "until")}
        assert shown == {"rule_id": "limited", "policy_hash": hash_of(text), "until": wait["until"]}
        assert [s["target"] for s in client.steps(run.id)] == ["x"]
        later = run.redelivered()
        assert time.time() >= wall(wait["until"])
        assert later.delivery.dispatch_id == run.delivery.dispatch_id
        assert later.delivery.attempt == run.delivery.attempt + 1
        assert later.replay("x", 0)["result"] == "r"
        step_id = later.proceed("x", 1)
        assert client.step(run.id, step_id)["occurrence"] == 0
        later.complete_step(step_id).expect(200)
        later.complete().expect(204)

    def test_nothing_starts_under_its_delivery(
        self, client: BearerClient, run: Attempt, policy: SetPolicy
    ) -> None:
        policy(limited(1, "1m", max_wait="5m"), rule("gate", "require_approval", {"target": "g"}))
        run.record("x", 0)
        slow = run.proceed("slow", kind="local")
        run.park("x", 1)
        seq = client.events(run.id)[-1]["event_seq"]
        for target in ("x", "y", "g"):
            assert run.submit(target, 2).expect(200).json == {"decision": "execution_blocked"}
        assert client.events(run.id, seq) == []
        run.heartbeat().expect(204)
        assert run.suspend().expect(200).json == {"suspended": True}
        run.complete_step(slow, "r").expect(200)
        run.complete().expect(409, "conflict")
        assert client.execution(run.id)["waiting_on"][0]["kind"] == "rate_limit"
        client.cancel(run.id)

    def test_a_parked_run_may_be_failed(
        self, client: BearerClient, run: Attempt, policy: SetPolicy
    ) -> None:
        policy(limited(1, "1m", max_wait="5m"))
        run.record("x", 0)
        run.park("x", 1)
        run.fail("agent_error: no patience").expect(204)
        assert client.execution(run.id)["status"] == "failed"

    def test_a_wait_that_would_be_too_long_is_refused(
        self, run: Attempt, policy: SetPolicy
    ) -> None:
        policy(limited(1, "10m", max_wait="5m"))
        run.record("x", 0)
        assert refused(run, args=1)["reason"] == EXCEEDED

    def test_behind_those_that_wait(
        self, client: BearerClient, new_run: NewRun, policy: SetPolicy
    ) -> None:
        """Each parked one takes its token in advance: they wake one after the other, in the order
        in which they came, and who would have to wait longest is refused."""
        policy(limited(1, "1s", max_wait="3500ms", per_what="agent"))
        new_run().proceed("x")
        runs = [new_run() for _ in range(4)]
        untils = []
        for run in runs[:3]:
            run.park("x")
            untils.append(wall(client.execution(run.id)["waiting_on"][0]["until"]))
        gaps = [b - a for a, b in pairwise(untils)]
        assert all(abs(gap - 1.0) < 0.01 for gap in gaps), gaps
        refused_soon = runs[3].submit("x").expect(200).json["decision"]
        assert refused_soon in ("blocked", "rate_limited")
        woken = []
        for run in runs[:3]:
            later = run.redelivered()
            woken.append(time.time())
            later.proceed("x")
        assert all(w >= u for w, u in zip(woken, untils, strict=True))

    def test_one_in_front_gets_no_token_of_theirs(
        self, client: BearerClient, new_run: NewRun, policy: SetPolicy
    ) -> None:
        """A newcomer without patience is refused as long as others have taken in advance."""
        policy(limited(1, "1s", max_wait="1m", per_what="agent"))
        new_run().proceed("x")
        waiting = [new_run() for _ in range(2)]
        for run in waiting:
            run.park("x")
        policy(limited(1, "1s", per_what="agent"))
        late = new_run()
        first = waiting[0].redelivered()
        refused(late)
        first.proceed("x")
        waiting[1].redelivered().proceed("x")

    def test_with_a_person_to_decide(
        self, client: BearerClient, run: Attempt, policy: SetPolicy
    ) -> None:
        policy(limited(1, "1s", "require_approval", max_wait="1m"))
        client.grant(run.hold("x", 0)).expect(204)
        later = run.redelivered()
        later.complete_step(later.proceed("x", 0)).expect(200)
        later.park("x", 1)
        last = later.redelivered()
        last.replay("x", 0)
        client.grant(last.hold("x", 1)).expect(204)
        end = last.redelivered()
        end.replay("x", 0)
        end.proceed("x", 1)

    def test_a_bundle_that_changed_meanwhile(self, run: Attempt, policy: SetPolicy) -> None:
        policy(limited(1, "1s", max_wait="1m"))
        run.record("x", 0)
        run.park("x", 1)
        policy(rule("no", "deny"))
        later = run.redelivered()
        later.replay("x", 0)
        assert later.denied("x", 1)["rule_id"] == "no"

    def test_a_cancelled_one_never_wakes(
        self, client: BearerClient, new_run: NewRun, policy: SetPolicy
    ) -> None:
        policy(limited(1, "1s", max_wait="1m", per_what="agent"))
        new_run().proceed("x")
        first, second = new_run(), new_run()
        first.park("x")
        second.park("x")
        client.cancel(first.id)
        second.redelivered().proceed("x")
        assert first.agent.count(first.id) == 1


# The limiter's store: a bucket that holds no time


@pytest.fixture
def spoiled(
    new_kernel: NewKernel, new_agent: NewAgent, database: Database, request: pytest.FixtureRequest
) -> Callable[[str], tuple[Attempt, BearerClient]]:
    """A run whose limit's bucket cannot be read any more."""

    def new(on_error: str) -> tuple[Attempt, BearerClient]:
        kernel = new_kernel()
        client = kernel.client()
        agent: FakeAgent = new_agent(kernel)
        extra = {"on_limiter_error": on_error} if on_error else {}
        client.set_policy(agent.id, bundle(limited(1, **extra)))
        run = agent.take_attempt(client.create(agent.id)["id"])
        run.record("x", 0)
        refused(run, args=1)
        spoil(kernel)
        return run, client

    def spoil(kernel: Kernel) -> None:
        assert kernel.database_url is not None
        if database.kind == "sqlite":
            path = Path(kernel.database_url.removeprefix("sqlite://"))
            with sqlite3.connect(path, timeout=10) as connection:
                done = connection.execute("UPDATE buckets SET full_at = NULL").rowcount
            connection.close()
            assert done == 1
        else:
            cluster: Cluster = request.getfixturevalue("postgres")
            name = kernel.database_url.rsplit("/", 1)[1]
            cluster.psql("UPDATE buckets SET full_at = -1", name)

    return new


class TestLimiterErrors:
    @pytest.mark.parametrize("on_error", ["", "allow"])
    def test_allow(
        self, spoiled: Callable[[str], tuple[Attempt, BearerClient]], on_error: str
    ) -> None:
        run, _ = spoiled(on_error)
        run.proceed("x", 1)

    def test_deny(self, spoiled: Callable[[str], tuple[Attempt, BearerClient]]) -> None:
        run, client = spoiled("deny")
        answer = refused(run, args=1)
        assert answer["reason"] == "rate_limiter_unavailable"
        assert answer["rule_id"] == "limited"
        assert client.event_types(run.id)[-1] == "step.rate_limited"
