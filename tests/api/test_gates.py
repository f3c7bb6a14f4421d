"""A run of which a step waits for a person: what it may still do, and how it goes on."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from conftest import NewKernel, SetPolicy
from harness import Attempt, BearerClient, FakeAgent, bundle, eventually, hash_of, rule
from harness.waiting import let_pass

GATE = rule("gate", "require_approval", {"target": "gated*"}, reason="needs a look")
OPEN = rule("open", "allow", {"target": "open*"})
CLOSED = rule("closed", "deny", {"target": "closed*"}, reason="never")
RETRY_RULE = "__indeterminate_retry"


@pytest.fixture
def gated(policy: SetPolicy) -> str:
    return policy(GATE, OPEN, CLOSED)


@pytest.fixture
def run(gated: str, new_run: Callable[..., Attempt]) -> Attempt:
    return new_run()


def types_after(client: BearerClient, run: Attempt, seq: int) -> list[str]:
    return client.event_types(run.id, seq)


def last_seq(client: BearerClient, run: Attempt) -> int:
    return int(client.events(run.id)[-1]["event_seq"])


class TestAsking:
    def test_what_is_recorded(self, client: BearerClient, run: Attempt, gated: str) -> None:
        seq = last_seq(client, run)
        answer = run.submit("gated", {"a": 1}).expect(200).json
        step = client.steps(run.id)[0]
        assert answer == {
            "decision": "blocked",
            "step_id": step["step_id"],
            "approval_id": answer["approval_id"],
        }
        log = client.events(run.id, seq)
        shown = {"step_id": step["step_id"], "step_type": "tool_call", "target": "gated"}
        expected = [
            ("step.proposed", shown),
            (
                "step.awaiting_approval",
                {**shown, "rule_id": "gate", "policy_hash": hash_of(gated)},
            ),
            (
                "approval.requested",
                {
                    "approval_id": answer["approval_id"],
                    "step_id": step["step_id"],
                    "execution_id": run.id,
                    "status": "pending",
                },
            ),
            ("execution.blocked", {"execution_id": run.id, "status": "blocked"}),
        ]
        assert [(e["type"], e["payload"]) for e in log] == expected
        assert client.execution(run.id)["status"] == "blocked"

    def test_three_parallel_calls_in_one_pass(self, client: BearerClient, run: Attempt) -> None:
        with ThreadPoolExecutor(3) as pool:
            held = list(pool.map(lambda n: run.hold(f"gated-{n}", n), range(3)))
        assert len(set(held)) == 3
        types = client.event_types(run.id)
        assert types.count("execution.blocked") == 1
        waits = client.execution(run.id)["waiting_on"]
        assert {w["kind"] for w in waits} == {"approval"}
        assert sorted(w["id"] for w in waits) == sorted(held)
        client.grant(held[1]).expect(204)
        client.deny(held[0], rationale="not this one").expect(204)
        assert client.execution(run.id)["status"] == "blocked"
        assert "execution.resumed" not in client.event_types(run.id)
        assert run.agent.count(run.id) == 1
        client.grant(held[2]).expect(204)
        later = run.redelivered()
        assert later.denied("gated-0", 0)["reason"] == "not this one"
        later.proceed("gated-1", 1)
        later.proceed("gated-2", 2)
        assert client.event_types(run.id).count("approval.requested") == 3

    def test_equal_calls_are_two_questions(self, client: BearerClient, run: Attempt) -> None:
        first, second = run.hold("gated", 1), run.hold("gated", 1)
        assert first != second
        client.grant(first).expect(204)
        client.deny(second).expect(204)
        later = run.redelivered()
        later.proceed("gated", 1)
        later.denied("gated", 1)
        assert sorted(s["occurrence"] for s in client.steps(run.id)) == [0, 1]

    def test_a_repeated_request_is_no_second_question(
        self, client: BearerClient, run: Attempt
    ) -> None:
        first = run.hold("gated", 1, key="k")
        assert run.hold("gated", 1, key="k") == first
        run.submit("gated", 2, key="k").expect(409, "conflict")
        assert len(client.steps(run.id)) == 1

    def test_what_was_approved_is_what_runs(self, client: BearerClient, run: Attempt) -> None:
        """The grant belongs to the step, of which the arguments are a part."""
        client.grant(run.hold("gated", {"to": "bob", "eur": 5})).expect(204)
        later = run.redelivered()
        asked_again = later.hold("gated", {"to": "bob", "eur": 5000})
        client.grant(asked_again).expect(204)
        last = later.redelivered()
        last.proceed("gated", {"eur": 5, "to": "bob"})
        last.proceed("gated", {"to": "bob", "eur": 5000})
        last.hold("gated", {"to": "bob", "eur": 5})


class TestGoingOn:
    def test_grant(self, client: BearerClient, run: Attempt) -> None:
        approval_id = run.hold("gated")
        seq = last_seq(client, run)
        client.grant(approval_id).expect(204)
        later = run.redelivered()
        assert later.delivery.dispatch_id != run.delivery.dispatch_id
        assert later.delivery.attempt == 1
        log = client.events(run.id, seq)
        types = [e["type"] for e in log]
        assert types[:4] == [
            "approval.granted",
            "step.allowed",
            "execution.resumed",
            "dispatch.queued",
        ]
        assert not {"rule_id", "policy_hash"} & set(log[1]["payload"])
        assert log[2]["payload"] == {"execution_id": run.id, "status": "running"}
        assert client.steps(run.id)[0]["status"] == "allowed"
        seq = last_seq(client, run)
        step_id = later.proceed("gated")
        assert [t for t in types_after(client, run, seq) if t != "dispatch.acked"] == [
            "step.executing"
        ]
        later.complete_step(step_id, "done").expect(200)
        later.complete("end").expect(204)
        assert client.execution(run.id)["status"] == "completed"

    def test_deny(self, client: BearerClient, run: Attempt) -> None:
        approval_id = run.hold("gated")
        seq = last_seq(client, run)
        client.deny(approval_id, rationale="wrong: try /tmp").expect(204)
        later = run.redelivered()
        log = client.events(run.id, seq)
        assert [e["type"] for e in log][:4] == [
            "approval.denied",
            "step.denied",
            "execution.resumed",
            "dispatch.queued",
        ]
        error = {"reason": "wrong: try /tmp"}
        assert log[1]["payload"]["error"] == error
        assert "rule_id" not in log[1]["payload"]
        denied = later.denied("gated")
        step = client.steps(run.id)[0]
        assert denied == {
            "decision": "denied",
            "step_id": step["step_id"],
            "reason": "wrong: try /tmp",
            "rule_id": "gate",
        }
        assert (step["status"], step["error"]) == ("denied", error)
        later.complete().expect(204)

    def test_expiry(self, client: BearerClient, policy: SetPolicy, new_run: Any) -> None:
        policy(rule("gate", "require_approval", approval_config={"timeout": "300ms"}))
        run = new_run()
        seq = last_seq(client, run)
        run.hold("gated")
        later = run.redelivered()
        types = types_after(client, run, seq + 4)
        assert types[:4] == [
            "approval.expired",
            "step.denied",
            "execution.resumed",
            "dispatch.queued",
        ]
        assert later.denied("gated")["reason"] == "approval_timeout"

    def test_only_when_nothing_else_waits(self, client: BearerClient, run: Attempt) -> None:
        first, second = run.hold("gated", 1), run.hold("gated", 2)
        seq = last_seq(client, run)
        client.grant(second).expect(204)
        assert types_after(client, run, seq) == ["approval.granted", "step.allowed"]
        until = client.approval(first)["timeout_at"]
        wait = {"kind": "approval", "id": first, "until": until}
        assert client.execution(run.id)["waiting_on"] == [wait]
        client.grant(first).expect(204)
        assert "execution.resumed" in types_after(client, run, seq)

    def test_a_recorded_step_is_not_decided_again(
        self, client: BearerClient, run: Attempt, policy: SetPolicy
    ) -> None:
        run.record("open", 1, "r")
        run.denied("closed", 1)
        client.grant(run.hold("gated", 1)).expect(204)
        policy(rule("turned", "deny", {"target": "open*"}), default="allow")
        later = run.redelivered()
        assert later.replay("open", 1)["result"] == "r"
        assert later.denied("closed", 1)["rule_id"] == "closed"
        later.proceed("gated", 1)
        assert later.denied("open", 2)["rule_id"] == "turned"

    @pytest.mark.parametrize("when", ["before", "after"])
    def test_a_grant_holds_under_a_tightened_bundle(
        self, client: BearerClient, run: Attempt, policy: SetPolicy, when: str
    ) -> None:
        approval_id = run.hold("gated")
        if when == "before":
            policy(rule("none", "deny"))
        client.grant(approval_id).expect(204)
        if when == "after":
            policy(rule("none", "deny"))
        later = run.redelivered()
        later.proceed("gated")
        later.denied("gated")

    def test_again_and_again(self, client: BearerClient, run: Attempt) -> None:
        """Each turn asks once more; what came before is replayed."""
        attempt = run
        for turn in range(4):
            client.grant(attempt.hold("gated", turn)).expect(204)
            attempt = attempt.redelivered()
            for earlier in range(turn):
                assert attempt.replay("gated", earlier)["result"] == earlier
            attempt.complete_step(attempt.proceed("gated", turn), turn).expect(200)
        attempt.complete("end").expect(204)
        types = client.event_types(run.id)
        assert types.count("execution.blocked") == types.count("execution.resumed") == 4
        assert types.count("step.executing") == 4

    def test_an_agent_that_dies_before_it_runs_the_step(
        self, client: BearerClient, run: Attempt
    ) -> None:
        client.grant(run.hold("gated", idempotency="at_most_once")).expect(204)
        later = run.redelivered().released()
        step_id = later.proceed("gated", idempotency="at_most_once")
        orphaned = later.released().submit("gated", idempotency="at_most_once").expect(200).json
        assert orphaned["decision"] == "replay"
        assert orphaned["step_id"] == step_id
        assert orphaned["error"]["reason"] == "indeterminate"

    def test_the_repetition_of_an_unknown_step_is_not_asked_for(
        self, client: BearerClient, run: Attempt
    ) -> None:
        client.grant(run.hold("gated", 1, idempotency="at_most_once")).expect(204)
        attempt = run.redelivered()
        attempt.proceed("gated", 1, idempotency="at_most_once")
        attempt = attempt.released()
        attempt.replay("gated", 1, idempotency="at_most_once")
        denied = attempt.denied("gated", 1, idempotency="at_most_once")
        assert denied["rule_id"] == RETRY_RULE
        assert denied["reason"] == "prior attempt outcome unknown; retry refused"
        event = client.events(run.id)[-1]
        assert event["type"] == "step.denied"
        assert event["payload"]["rule_id"] == RETRY_RULE
        assert "policy_hash" not in event["payload"]
        assert client.execution(run.id)["status"] == "running"


class TestEndedDelivery:
    """What the attempt that blocked may still do: report. Nothing starts under it."""

    def test_nothing_starts(self, client: BearerClient, run: Attempt) -> None:
        run.record("open", 0, "r")
        run.hold("gated")
        before = client.events(run.id), client.steps(run.id)
        for target in ("open", "closed", "unknown"):
            answer = run.submit(target, "new").expect(200).json
            assert answer == {"decision": "execution_blocked"}
        assert (client.events(run.id), client.steps(run.id)) == before

    def test_what_is_refused_is_not_counted(self, client: BearerClient, run: Attempt) -> None:
        approval_id = run.hold("gated")
        for _ in range(3):
            run.submit("open", 1).expect(200)
        client.grant(approval_id).expect(204)
        step_id = run.redelivered().proceed("open", 1)
        assert client.step(run.id, step_id)["occurrence"] == 0

    def test_what_also_waits_is_asked_for(self, client: BearerClient, run: Attempt) -> None:
        run.hold("gated", 1)
        second = run.hold("gated", 2)
        assert client.approval(second)["status"] == "pending"

    def test_but_not_under_a_rate_limit(
        self, client: BearerClient, policy: SetPolicy, new_run: Any
    ) -> None:
        limit = {"max_calls": 5, "window": "1m"}
        policy(
            rule("limited", "require_approval", {"target": "limited"}, rate_limit=limit),
            rule("gate", "require_approval"),
        )
        run = new_run()
        run.hold("gated")
        assert run.submit("limited").expect(200).json == {"decision": "execution_blocked"}
        run.hold("gated", 2)

    def test_a_call_that_runs_beside_is_reported(self, client: BearerClient, run: Attempt) -> None:
        slow = run.proceed("open-slow")
        approval_id = run.hold("gated")
        run.publish(slow, 0, "half").expect(204)
        run.heartbeat().expect(204)
        assert run.complete_step(slow, "r").expect(200).json == {"decision": "recorded"}
        assert run.complete_step(slow, "again").expect(200).json["result"] == "r"
        client.grant(approval_id).expect(204)
        later = run.redelivered()
        assert later.replay("open-slow")["result"] == "r"
        later.proceed("gated")

    def test_a_grant_while_a_call_beside_it_runs(self, client: BearerClient, run: Attempt) -> None:
        """It is neither run twice nor lost: the next delivery waits for it."""
        slow, failing = run.proceed("open-slow"), run.proceed("open-failing")
        client.grant(run.hold("gated")).expect(204)
        assert client.execution(run.id)["status"] == "running"
        let_pass(1.0)
        assert run.agent.count(run.id) == 1
        wait = client.execution(run.id)["waiting_on"]
        assert [w["kind"] for w in wait] == ["dispatch"]
        assert run.submit("open-more").expect(200).json == {"decision": "execution_blocked"}
        run.complete_step(slow, "r").expect(200)
        let_pass(0.5)
        assert run.agent.count(run.id) == 1
        run.fail_step(failing, {"message": "no"}).expect(200)
        later = run.redelivered(3.0)
        assert later.replay("open-slow")["result"] == "r"
        assert later.replay("open-failing")["error"] == {"message": "no"}
        later.proceed("gated")
        types = client.event_types(run.id)
        assert types.count("step.executing") == 3

    def test_the_same_step_gets_the_same_answer(self, client: BearerClient, run: Attempt) -> None:
        """By the key: the same request again. Without one it is one more call."""
        first = run.submit("gated", 1, key="a").expect(200).json
        assert run.submit("gated", 1, key="a").expect(200).json == first
        assert client.approval(first["approval_id"])["step_id"] == first["step_id"]

    def test_a_granted_step_does_not_start_either(self, client: BearerClient, run: Attempt) -> None:
        slow = run.proceed("open-slow")
        client.grant(run.hold("gated", key="k")).expect(204)
        answer = run.submit("gated", key="k").expect(200).json
        assert answer == {"decision": "execution_blocked"}
        run.complete_step(slow).expect(200)
        run.redelivered().proceed("gated")

    def test_it_cannot_complete_the_run(self, client: BearerClient, run: Attempt) -> None:
        approval_id = run.hold("gated")
        run.complete("swallowed").expect(409, "conflict")
        assert client.execution(run.id)["status"] == "blocked"
        slow_resume = client.grant(approval_id)
        slow_resume.expect(204)
        later = run.redelivered()
        run.complete("swallowed").expect(409, "lease_superseded")
        later.complete("right").expect(204)

    def test_not_even_once_the_run_goes_on(self, client: BearerClient, run: Attempt) -> None:
        slow = run.proceed("open-slow")
        client.grant(run.hold("gated")).expect(204)
        assert client.execution(run.id)["status"] == "running"
        run.complete("swallowed").expect(409, "conflict")
        run.complete_step(slow).expect(200)
        run.redelivered().complete().expect(204)

    def test_suspend_says_exit(self, client: BearerClient, run: Attempt) -> None:
        run.hold("gated")
        before = client.events(run.id)
        assert run.suspend().expect(200).json == {"suspended": True}
        assert client.events(run.id) == before

    def test_it_owns_nothing_after_the_next_claim(self, client: BearerClient, run: Attempt) -> None:
        client.grant(run.hold("gated")).expect(204)
        later = run.redelivered()
        run.heartbeat().expect(409, "lease_superseded")
        run.submit("open").expect(409, "lease_superseded")
        later.proceed("gated")

    def test_an_agent_with_a_blocked_run_cannot_be_removed(
        self, client: BearerClient, run: Attempt, agent: FakeAgent
    ) -> None:
        run.hold("gated")
        client.delete(f"/v0/agents/{agent.id}").expect(409, "conflict")


class TestTheEnd:
    def waits(self, client: BearerClient, run: Attempt) -> tuple[list[str], list[str], str]:
        """Two steps wait, one is granted, one executes; their ids by the kind of end."""
        slow = run.proceed("open-slow")
        approvals = [run.hold("gated", n) for n in range(3)]
        client.grant(approvals[1]).expect(204)
        steps = [client.approval(a)["step_id"] for a in approvals]
        return [approvals[0], approvals[2]], [steps[0], steps[2], steps[1]], slow

    def check_cancelled(
        self, client: BearerClient, run: Attempt, seq: int, reason: str, waits: Any
    ) -> None:
        approvals, (first, last, granted), slow = waits
        log = client.events(run.id, seq)
        shown = [
            (
                e["type"],
                e["payload"].get("approval_id") or e["payload"].get("step_id") or run.id,
            )
            for e in log
        ]
        assert shown == [
            ("execution.cancelled", run.id),
            ("approval.expired", approvals[0]),
            ("step.denied", first),
            ("approval.expired", approvals[1]),
            ("step.denied", last),
            ("step.cancelled", slow),
            ("step.cancelled", granted),
        ]
        assert log[0]["payload"]["reason"] == reason
        error = {"reason": "execution_cancelled"}
        assert all(e["payload"]["error"] == error for e in log if e["type"].startswith("step."))
        status = {s["step_id"]: s["status"] for s in client.steps(run.id)}
        assert status == {
            first: "denied",
            last: "denied",
            granted: "cancelled",
            slow: "cancelled",
        }
        assert {client.approval(a)["status"] for a in approvals} == {"expired"}
        assert run.submit("gated", 0).expect(200).json == {"decision": "execution_terminal"}

    def test_cancel(self, client: BearerClient, run: Attempt) -> None:
        waits = self.waits(client, run)
        seq = last_seq(client, run)
        client.cancel(run.id)
        self.check_cancelled(client, run, seq, "client_cancelled", waits)
        found = client.execution(run.id)
        assert (found["status"], found["failure_reason"]) == ("cancelled", "client_cancelled")

    def test_deadline(self, new_kernel: NewKernel, new_agent: Any) -> None:
        kernel = new_kernel(
            env={"REBUNO_DEADLINE_TIMEOUT": "3s", "REBUNO_DEADLINE_CHECK_INTERVAL": "200ms"}
        )
        client = kernel.client()
        agent = new_agent(kernel)
        client.set_policy(agent.id, bundle(GATE, OPEN))
        run = agent.take_attempt(client.create(agent.id)["id"])
        run.execution()
        waits = self.waits(client, run)
        seq = last_seq(client, run)
        eventually(lambda: client.execution(run.id)["status"] == "cancelled", 10.0)
        self.check_cancelled(client, run, seq, "deadline_exceeded", waits)

    def test_fail(self, client: BearerClient, run: Attempt) -> None:
        """The agent may give up while it waits; what executes stays as it is."""
        approvals, (first, last, _), slow = self.waits(client, run)
        seq = last_seq(client, run)
        run.fail("agent_error: gave up").expect(204)
        log = client.events(run.id, seq)
        assert [e["type"] for e in log] == [
            "execution.failed",
            "approval.expired",
            "step.denied",
            "approval.expired",
            "step.denied",
        ]
        assert [e["payload"]["step_id"] for e in log[2::2]] == [first, last]
        assert log[2]["payload"]["error"] == {"reason": "execution_cancelled"}
        status = {s["step_id"]: s["status"] for s in client.steps(run.id)}
        assert status[slow] == "executing"
        assert status[first] == status[last] == "denied"
        assert client.grant(approvals[0]).expect(409, "conflict").json["details"] == {
            "status": "expired"
        }

    @pytest.mark.parametrize("verb", ["grant", "deny"])
    def test_nothing_is_written_after_it(
        self, client: BearerClient, run: Attempt, verb: str
    ) -> None:
        approval_id = run.hold("gated")
        client.cancel(run.id)
        before = client.events(run.id)
        client.post(f"/v0/approvals/{approval_id}/{verb}", {}).expect(409, "conflict")
        run.heartbeat().expect(409, "lease_superseded")
        run.submit("gated", 2).expect(200)
        assert client.events(run.id) == before
