"""Forks: an execution that begins with what another one had recorded by some event."""

from typing import Any

import pytest

from conftest import NewAgent, NewRun, SetPolicy
from harness import Attempt, BearerClient, FakeAgent, rule
from harness.forks import Source, check_fork, covered_at, points_of_log, read_source
from harness.sessions import status
from harness.story import USED, Disk, Story, captured, short_story

Json = dict[str, Any]


@pytest.fixture
def story(client: BearerClient, agent: FakeAgent, new_run: NewRun, new_agent: NewAgent) -> Story:
    run = new_run(input={"task": 1}, on_behalf_of="ada", idempotency_key=f"key-{agent.id}")
    return Story(client, agent, run, new_agent())


@pytest.fixture
def source(client: BearerClient, story: Story) -> Source:
    return read_source(client, story.run.id)


@pytest.fixture
def short(run: Attempt) -> Attempt:
    return short_story(run)


def is_decision(event: Json) -> bool:
    return event["type"] in ("step.denied", "step.awaiting_approval", "step.allowed")


class TestEveryEvent:
    def test_is_forked_as_the_protocol_says(
        self, client: BearerClient, agent: FakeAgent, source: Source
    ) -> None:
        """Compared with a model of its own, at each event; the source stays as it is."""
        types = {e["type"] for e in source.log}
        assert {"step.rate_limited", "resource.checkpoint_failed", "approval.denied"} <= types
        assert source.points == points_of_log(source.log)
        length = len(source.log)
        covered = 0
        for at_seq in range(1, length + 1):
            made = client.fork(source.execution["id"], at_seq)
            want = check_fork(client, source, at_seq, made)
            covered += covered_at(source.points, at_seq)
            assert all(e["covered"] for e in want.restoration.values()) is covered_at(
                source.points, at_seq
            )
            attempt = agent.take_attempt(made["id"])
            for key, state in want.states.items():
                names = ("driver_id", "configuration", "coverage_reuse")
                fields = {name: state[name] for name in names if name in state}
                assert attempt.register(key, **fields).expect(200).json == state, (at_seq, key)
            client.cancel(made["id"])
        assert 0 < covered < length
        assert read_source(client, source.execution["id"]).raw == source.raw

    def test_of_a_fork_of_a_fork(
        self, client: BearerClient, agent: FakeAgent, source: Source
    ) -> None:
        """Three generations, each with something of its own, at events all over each."""
        third = len(source.log) * 2 // 3
        first = client.fork(source.execution["id"], third)
        run = agent.take_attempt(first["id"])
        self.add(run, 1)
        grand = read_source(client, run.id)
        self.check_some(client, grand, 7)
        second = client.fork(run.id, len(grand.log))
        check_fork(client, grand, len(grand.log), second)
        run = agent.take_attempt(second["id"])
        self.add(run, 2)
        great = read_source(client, run.id)
        self.check_some(client, great, 11)
        made = client.fork(run.id, len(great.log))
        check_fork(client, great, len(great.log), made)
        last = agent.take_attempt(made["id"])
        for at in (1, 2):
            assert last.replay("fork", at, resources=["disk"])["result"] == at
        assert read_source(client, source.execution["id"]).raw == source.raw

    @staticmethod
    def add(run: Attempt, number: int) -> None:
        disk = Disk(run, "disk", configuration={"size": 1})
        for n in range(1, number + 1):
            decision = run.submit("fork", n, resources=["disk"]).expect(200).json
            if decision["decision"] == "proceed":
                ref = f"fork-{number}-{n}"
                report = [captured("disk", disk.open()["generation"], ref)]
                run.complete_step(decision["step_id"], n, captures=report).expect(200)
        run.record("touching", number)
        run.register(f"own-{number}").expect(200)

    @staticmethod
    def check_some(client: BearerClient, source: Source, stride: int) -> None:
        """Every event around the head, and then some."""
        length = len(source.log)
        for at_seq in sorted({*range(1, 6), *range(6, length, stride), length - 1, length}):
            made = client.fork(source.execution["id"], at_seq)
            check_fork(client, source, at_seq, made)
            client.cancel(made["id"])


class TestRunning:
    def test_replays_what_was_copied(
        self, client: BearerClient, agent: FakeAgent, short: Attempt
    ) -> None:
        """Then goes on by itself."""
        log = client.events(short.id)
        at_seq = next(e["event_seq"] for e in log if e["type"] == "step.failed")
        made = client.fork(short.id, at_seq)
        run = agent.take_attempt(made["id"])
        assert run.replay("a", 0)["result"] == "A"
        assert run.replay("b", 0)["error"] == {"message": "B"}
        assert run.proceed("a", 0) not in [s["step_id"] for s in client.steps(short.id)]
        run.record("c", 0, "another C")
        run.complete("forked").expect(204)
        assert client.execution(made["id"])["output"] == "forked"
        assert status(client, short.id) == "running"
        assert [s.get("result") for s in client.steps(short.id)] == ["A", None, "C"]

    def test_over_several_deliveries(
        self, client: BearerClient, agent: FakeAgent, short: Attempt
    ) -> None:
        """Equal calls count from nought in each, as anywhere."""
        for n in range(3):
            short.record("same", 1, n)
        made = client.fork(short.id, len(client.events(short.id)))
        run = agent.take_attempt(made["id"])
        for _ in range(2):
            assert [run.replay("same", 1)["result"] for _ in range(3)] == [0, 1, 2]
            run = run.released()
        assert [run.replay("same", 1)["result"] for _ in range(3)] == [0, 1, 2]
        run.record("same", 1, 3)

    @pytest.mark.parametrize("kept", [True, False])
    def test_denials_are_copied(
        self, client: BearerClient, agent: FakeAgent, run: Attempt, policy: SetPolicy, kept: bool
    ) -> None:
        """What was decided stands, whatever the policy says now."""
        policy(rule("no", "deny", {"target": "x"}, reason="never"), default="allow")
        denied = run.denied("x")
        latest = len(client.events(run.id))
        policy(default="allow")
        made = client.fork(run.id, latest if kept else latest - 1)
        again = agent.take_attempt(made["id"])
        if kept:
            decision = again.denied("x")
            assert {k: decision[k] for k in ("reason", "rule_id")} == {
                k: denied[k] for k in ("reason", "rule_id")
            }
        else:
            again.proceed("x")

    def test_approvals_behind_the_point_are_asked_again(
        self, client: BearerClient, agent: FakeAgent, run: Attempt, policy: SetPolicy
    ) -> None:
        policy(rule("gate", "require_approval", {"target": "gated"}), default="allow")
        client.grant(run.hold("gated")).expect(204)
        run = run.redelivered()
        granted = len(client.events(run.id))
        run.record("gated", result="sent")
        for at_seq in (granted, len(client.events(run.id)) - 1):
            made = client.fork(run.id, at_seq)
            assert client.steps(made["id"]) == []
            again = agent.take_attempt(made["id"])
            client.grant(again.hold("gated")).expect(204)
            again.redelivered().record("gated")
        made = client.fork(run.id, len(client.events(run.id)))
        assert agent.take_attempt(made["id"]).replay("gated")["result"] == "sent"

    def test_payloads_byte_for_byte(
        self, client: BearerClient, agent: FakeAgent, run: Attempt
    ) -> None:
        args, result = b'{ "b" : 1.00, "a":"\\ud800" }', b'{ "x":"\\u00e9" , "n":1e400 }'
        error = b'{ "message" : "\\u000a", "n":1.0 }'
        step_id = run.proceed("x", args)
        run.complete_step(step_id, result).expect(200)
        run.fail_step(run.proceed("y", args), error).expect(200)
        large = b'"' + b"z" * 3_000_000 + b'"'
        run.complete_step(run.proceed("z"), large).expect(200)
        made = client.fork(run.id, len(client.events(run.id)))
        again = client.fork(made["id"], len(client.events(made["id"])))
        for identity in (made["id"], again["id"]):
            body = client.get(f"/v0/executions/{identity}/steps").expect(200).body
            for text in (args, result, error, large):
                assert text in body
            attempt = agent.take_attempt(identity)
            assert b'"result":' + result in attempt.submit("x", args).body
            assert b'"error":' + error in attempt.submit("y", args).body
            assert large in attempt.submit("z").body

    def test_budgets_know_what_was_copied(
        self, client: BearerClient, agent: FakeAgent, run: Attempt, policy: SetPolicy
    ) -> None:
        spend = {"max_tokens": 10, "on_exceed": "deny"}
        policy(rule("spend", "allow", {"step_kind": "llm_call"}, budget=spend), default="allow")
        run.record("m", 1, {"body": USED}, kind="llm_call")
        made = client.fork(run.id, len(client.events(run.id)))
        again = agent.take_attempt(made["id"])
        again.replay("m", 1, kind="llm_call")
        assert again.denied("m", 2, kind="llm_call")["rule_id"] == "spend"

    def test_is_followed_from_its_beginning(
        self, client: BearerClient, agent: FakeAgent, short: Attempt
    ) -> None:
        """Without a gap between what was copied and what is its own."""
        made = client.fork(short.id, len(client.events(short.id)))
        with client.stream(f"/v0/executions/{made['id']}/events") as stream:
            run = agent.take_attempt(made["id"])
            run.record("more")
            run.complete().expect(204)
            seen = [event.json for event in stream.rest()]
        assert seen == client.events(made["id"])
        copied = next(e["event_seq"] for e in seen if e["type"] == "step.failed")
        target = f"/v0/executions/{made['id']}/events?after_seq={copied}&limit=2&wait=1"
        assert client.get(target).expect(200).json == seen[copied : copied + 2]

    def test_may_be_tested_against_a_policy(
        self, client: BearerClient, agent: FakeAgent, short: Attempt, policy: SetPolicy
    ) -> None:
        """A copied step counts as what was decided of its source's."""
        policy(rule("no", "deny", {"target": "x"}), default="allow")
        short.denied("x", {"n": 1})
        made = client.fork(short.id, len(client.events(short.id)))
        answers = [
            client.test_policy(agent.id, execution_id=identity).expect(200).json
            for identity in (short.id, made["id"])
        ]
        for answer in answers:
            for result in answer["results"]:
                del result["execution_id"], result["step_id"]
        assert answers[0] == answers[1]
        assert [r["args"] for r in answers[1]["results"]][-1] == {"n": 1}


class TestEffects:
    """What its source may have done behind the fork point never happens unasked."""

    def test_is_held(self, client: BearerClient, agent: FakeAgent, short: Attempt) -> None:
        short.record("charge", 1, "charged", idempotency="at_most_once")
        made = client.fork(short.id, len(client.events(short.id)) - 1)
        run = agent.take_attempt(made["id"])
        run.record("safe")
        approval = client.approval(run.hold("charge", 1, idempotency="at_most_once"))
        assert approval["message"]
        assert "approvers" not in approval
        log = client.events(run.id)
        (awaiting,) = [e for e in log if e["type"] == "step.awaiting_approval"]
        assert awaiting["payload"]["rule_id"] == "__fork_effect"
        client.grant(approval["id"]).expect(204)
        again = run.redelivered()
        again.record("charge", 1, "charged again", idempotency="at_most_once")

    def test_and_refused(self, client: BearerClient, agent: FakeAgent, short: Attempt) -> None:
        run = agent.take_attempt(client.fork(short.id, 1)["id"])
        client.deny(run.hold("charge", idempotency="at_most_once"), rationale="no").expect(204)
        decision = run.redelivered().denied("charge", idempotency="at_most_once")
        assert (decision["rule_id"], decision["reason"]) == ("__fork_effect", "no")

    def test_also_one_that_its_source_never_had(
        self, client: BearerClient, agent: FakeAgent, short: Attempt
    ) -> None:
        made = client.fork(short.id, len(client.events(short.id)))
        run = agent.take_attempt(made["id"])
        run.hold("brand new", idempotency="at_most_once")

    def test_not_one_that_was_copied(
        self, client: BearerClient, agent: FakeAgent, short: Attempt
    ) -> None:
        short.record("charge", 1, "charged", idempotency="at_most_once")
        made = client.fork(short.id, len(client.events(short.id)))
        run = agent.take_attempt(made["id"])
        assert run.replay("charge", 1, idempotency="at_most_once")["result"] == "charged"

    def test_policy_comes_first(
        self, client: BearerClient, agent: FakeAgent, short: Attempt, policy: SetPolicy
    ) -> None:
        policy(
            rule("no", "deny", {"target": "forbidden"}, reason="never"),
            rule("gate", "require_approval", {"target": "gated"}, reason="look"),
            default="allow",
        )
        rules = {"forbidden": "no", "gated": "gate", "charge": "__fork_effect"}
        for target, rule_id in rules.items():
            run = agent.take_attempt(client.fork(short.id, 1)["id"])
            decision = run.submit(target, idempotency="at_most_once").expect(200).json
            assert decision["decision"] == ("denied" if target == "forbidden" else "blocked")
            named = [e["payload"]["rule_id"] for e in client.events(run.id) if is_decision(e)]
            assert named == [rule_id]

    def test_an_indeterminate_one_is_still_refused(
        self, client: BearerClient, agent: FakeAgent, run: Attempt
    ) -> None:
        run.proceed("charge", 1, idempotency="at_most_once")
        run = run.released()
        run.replay("charge", 1, idempotency="at_most_once")
        made = client.fork(run.id, len(client.events(run.id)))
        again = agent.take_attempt(made["id"])
        assert again.replay("charge", 1, idempotency="at_most_once")["error"]["reason"] == (
            "indeterminate"
        )
        decision = again.denied("charge", 1, idempotency="at_most_once")
        assert decision["rule_id"] == "__indeterminate_retry"

    def test_in_a_fork_of_a_fork(
        self, client: BearerClient, agent: FakeAgent, short: Attempt
    ) -> None:
        """A granted effect is copied once it is settled."""
        run = agent.take_attempt(client.fork(short.id, 1)["id"])
        client.grant(run.hold("charge", idempotency="at_most_once")).expect(204)
        run = run.redelivered()
        before = len(client.events(run.id))
        run.record("charge", result=1, idempotency="at_most_once")
        early = agent.take_attempt(client.fork(run.id, before)["id"])
        early.hold("charge", idempotency="at_most_once")
        late = client.fork(run.id, len(client.events(run.id)))
        again = agent.take_attempt(late["id"])
        assert again.replay("charge", idempotency="at_most_once")["result"] == 1
        again.hold("charge", idempotency="at_most_once")


def test_a_run_of_many_steps(
    client: BearerClient, agent: FakeAgent, run: Attempt, new_run: NewRun
) -> None:
    """More than fits into one slice."""
    for n in range(600):
        run.record("x", n, n)
    source = read_source(client, run.id)
    log = client.events(run.id)
    for at_seq in (len(log), len(log) // 2):
        made = client.fork(run.id, at_seq)
        source.log = log
        check_fork(client, source, at_seq, made)
        client.cancel(made["id"])
