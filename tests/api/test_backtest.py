"""A bundle tried on what past executions did: it fails the steps it would now decide otherwise."""

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from conftest import NewAgent, NewRun, SetPolicy
from harness import Attempt, BearerClient, FakeAgent, bundle, eventually, rule

UNKNOWN = "01920000-0000-7000-8000-000000000000"
ALLOW = rule("yes", "allow", {"target": "ok*"})
DENY = rule("no", "deny", {"target": "no*"})
HOLD = rule("ask", "require_approval", {"target": "ask*"})
BODY = {"body": '{"usage": {"prompt_tokens": 60, "completion_tokens": 40}}'}


def replayed(
    client: BearerClient, run: Attempt, *rules: dict[str, Any], **fields: Any
) -> dict[str, Any]:
    """The test of this bundle, or of the agent's own, on one execution."""
    if rules:
        fields["bundle"] = bundle(*rules)
    answer = client.test_policy(run.agent.id, execution_id=run.id, **fields)
    found: dict[str, Any] = answer.expect(200).json
    assert found["failed"] == sum(not r["pass"] for r in found["results"])
    return found


def brief(found: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [
        (r["target"], r["expect"], r["was_rule"], r["decision"], r["rule_id"], r["pass"])
        for r in found["results"]
    ]


@pytest.fixture
def history(client: BearerClient, policy: SetPolicy, new_run: NewRun) -> Attempt:
    """A run with each kind of decision, and what people made of some."""
    policy(ALLOW, DENY, HOLD)
    run = new_run()
    run.record("ok", {"n": 1}, "r")
    run.denied("no", {"n": 2})
    approvals = [run.hold(f"ask-{n}", {"n": 3}) for n in range(3)]
    client.grant(approvals[0]).expect(204)
    client.deny(approvals[1], rationale="no").expect(204)
    client.grant(approvals[2]).expect(204)
    later = run.redelivered()
    later.replay("ok", {"n": 1})
    later.denied("no", {"n": 2})
    later.record("ask-0", {"n": 3})
    later.denied("ask-1", {"n": 3})
    later.fail_step(later.proceed("ask-2", {"n": 3})).expect(200)
    later.denied("other")
    later.record("here", None, kind="local")
    later.complete().expect(204)
    return later


class TestOneExecution:
    def test_under_its_own_bundle_nothing_changes(
        self, client: BearerClient, history: Attempt
    ) -> None:
        expected = [
            ("ok", "allow", "yes", "allow", "yes", True),
            ("no", "deny", "no", "deny", "no", True),
            ("ask-0", "require_approval", "ask", "require_approval", "ask", True),
            ("ask-1", "require_approval", "ask", "require_approval", "ask", True),
            ("ask-2", "require_approval", "ask", "require_approval", "ask", True),
            ("other", "deny", "default", "deny", "default", True),
            ("here", "allow", "local", "allow", "local", True),
        ]
        found = replayed(client, history)
        assert brief(found) == expected
        assert found["failed"] == 0
        assert "unexercised_rules" not in found

    def test_what_a_result_says(self, client: BearerClient, history: Attempt) -> None:
        found = replayed(client, history)["results"]
        steps = client.steps(history.id)
        for result, step in zip(found, steps, strict=True):
            assert result["execution_id"] == history.id
            assert result["agent_id"] == history.agent.id
            assert result["step_id"] == step["step_id"]
            assert (result["kind"], result["target"]) == (step["kind"], step["target"])
            assert result["args"] == step["args"]
            assert not {"name", "failure"} & set(result)

    def test_fails_what_it_would_decide_otherwise(
        self, client: BearerClient, history: Attempt
    ) -> None:
        found = replayed(
            client,
            history,
            rule("strict", "require_approval", {"target": "ok*"}),
            rule("lax", "allow", {"target": "ask-1"}),
            HOLD,
            rule("unused", "deny", {"target": "zzz"}),
        )
        assert brief(found) == [
            ("ok", "allow", "yes", "require_approval", "strict", False),
            ("no", "deny", "no", "deny", "default", True),
            ("ask-0", "require_approval", "ask", "require_approval", "ask", True),
            ("ask-1", "require_approval", "ask", "allow", "lax", False),
            ("ask-2", "require_approval", "ask", "require_approval", "ask", True),
            ("other", "deny", "default", "deny", "default", True),
            ("here", "allow", "local", "allow", "local", True),
        ]
        assert found["failed"] == 2
        assert found["unexercised_rules"] == ["unused"]
        words = found["results"][0]["failure"]
        assert all(w in words for w in ("allow", "yes", "require_approval", "strict"))

    def test_cases_come_first(self, client: BearerClient, history: Attempt) -> None:
        found = replayed(client, history, cases=[{"target": "ok", "expect": "deny"}])
        assert len(found["results"]) == 8
        assert "execution_id" not in found["results"][0]
        assert found["failed"] == 1

    def test_without_a_policy_then(self, client: BearerClient, run: Attempt) -> None:
        run.record("ok")
        run.record("no")
        found = replayed(client, run, ALLOW, DENY)
        assert brief(found) == [
            ("ok", "allow", "permissive", "allow", "yes", True),
            ("no", "allow", "permissive", "deny", "no", False),
        ]

    def test_without_steps(self, client: BearerClient, run: Attempt) -> None:
        found = replayed(client, run, ALLOW)
        assert found == {"results": [], "failed": 0, "unexercised_rules": ["yes"]}

    def test_expired_and_ended_approvals(
        self, client: BearerClient, policy: SetPolicy, new_run: NewRun
    ) -> None:
        policy(rule("ask", "require_approval", approval_config={"timeout": "100ms"}))
        run = new_run()
        run.hold("expired")
        later = run.redelivered()
        later.denied("expired")
        later.hold("ended")
        client.cancel(run.id)
        found = replayed(client, run, rule("ask", "deny"))
        wanted = ("require_approval", "ask", "deny", "ask", False)
        assert brief(found) == [("expired", *wanted), ("ended", *wanted)]

    def test_a_rerun_is_one_step(
        self, client: BearerClient, policy: SetPolicy, new_run: NewRun
    ) -> None:
        policy(ALLOW)
        run = new_run()
        run.proceed("ok")
        later = run.released()
        later.proceed("ok")
        later.proceed("ok")
        assert [b[0] for b in brief(replayed(client, run))] == ["ok", "ok"]

    def test_rate_limited_calls_are_no_steps(
        self, client: BearerClient, policy: SetPolicy, new_run: NewRun
    ) -> None:
        policy(rule("yes", "allow", rate_limit={"max_calls": 1, "window": "1h"}))
        run = new_run()
        run.record("ok", 0)
        assert run.submit("ok", 1).expect(200).json["decision"] == "rate_limited"
        assert len(replayed(client, run, rule("no", "deny"))["results"]) == 1

    def test_the_repetition_of_an_unknown_step_is_left_out(
        self, client: BearerClient, policy: SetPolicy, new_run: NewRun
    ) -> None:
        policy(ALLOW)
        run = new_run()
        run.proceed("ok", idempotency="at_most_once")
        later = run.released()
        later.replay("ok", idempotency="at_most_once")
        later.denied("ok", idempotency="at_most_once")
        assert brief(replayed(client, run)) == [("ok", "allow", "yes", "allow", "yes", True)]

    def test_large_arguments_and_many_steps(
        self, client: BearerClient, policy: SetPolicy, new_run: NewRun
    ) -> None:
        """More than a page of the log, of arguments, and of the answer."""
        policy(ALLOW)
        run = new_run()
        for n in range(150):
            run.record("ok", {"n": n, "text": "x" * 5000})
        found = replayed(
            client, run, rule("odd", "allow", {"arguments": {"n": {"regex": "[13579]$"}}})
        )
        results = found["results"]
        assert [r["args"]["n"] for r in results] == list(range(150))
        assert [r["pass"] for r in results] == [n % 2 == 1 for n in range(150)]

    def test_arguments_as_a_rule_sees_them(
        self, client: BearerClient, policy: SetPolicy, new_run: NewRun
    ) -> None:
        policy(rule("all", "allow"))
        run = new_run()
        run.record("x", b'{"z": 1.0, "a": "\\u003c"}')
        seen = rule("seen", "allow", {"arguments": {"z": {"equals": "1.0"}, "a": {"equals": "<"}}})
        assert replayed(client, run, seen)["failed"] == 0

    def test_unknown(self, client: BearerClient, agent: FakeAgent) -> None:
        text = bundle(ALLOW)
        client.test_policy(agent.id, bundle=text, execution_id=UNKNOWN).expect(404, "not_found")

    def test_another_agents(
        self, client: BearerClient, history: Attempt, new_agent: NewAgent
    ) -> None:
        other = new_agent()
        answer = client.test_policy(other.id, bundle=bundle(ALLOW), execution_id=history.id)
        answer.expect(404, "not_found")


class TestJudges:
    """What a judge or a budget decided depends on more than the step."""

    JUDGE = rule("ok", "judge", {"target": "ok*"})

    def test_a_new_judge_is_a_change(self, client: BearerClient, history: Attempt) -> None:
        found = replayed(client, history, self.JUDGE, DENY, HOLD)
        assert brief(found)[0] == ("ok", "allow", "yes", "judge", "ok", False)

    def test_also_under_the_id_of_a_rule_that_allowed(
        self, client: BearerClient, history: Attempt
    ) -> None:
        """The bundle of then is the agent's own, so it is known what the rule was."""
        same_id = rule("yes", "judge", {"target": "ok*"})
        found = replayed(client, history, same_id, DENY, HOLD)
        assert brief(found)[0] == ("ok", "allow", "yes", "judge", "yes", False)

    def test_one_that_decided_it_then_may_do_so_now(
        self, client: BearerClient, policy: SetPolicy, new_run: NewRun
    ) -> None:
        text = policy(self.JUDGE)
        run = new_run()
        run.denied("ok")  # no judge is configured
        assert replayed(client, run)["failed"] == 0
        assert replayed(client, run, self.JUDGE, ALLOW)["failed"] == 0
        policy(self.JUDGE, DENY)  # the bundle of then is at hand no more
        assert replayed(client, run, self.JUDGE, ALLOW)["failed"] == 0
        assert (
            client.test_policy(run.agent.id, bundle=text, execution_id=run.id).json["failed"] == 0
        )

    def test_a_budget(self, client: BearerClient, policy: SetPolicy, new_run: NewRun) -> None:
        def spending(on_exceed: str, decision: str = "allow") -> dict[str, Any]:
            budget = {"max_tokens": 100, "on_exceed": on_exceed}
            return rule("spend", decision, budget=budget)

        policy(spending("deny"))
        run = new_run()
        run.record("m", 0, BODY, kind="llm_call")
        run.denied("m", 1, kind="llm_call")
        assert replayed(client, run)["failed"] == 0
        assert replayed(client, run, spending("deny"), ALLOW)["failed"] == 0
        now = brief(replayed(client, run, spending("require_approval")))
        assert [b[-1] for b in now] == [True, False]
        now = brief(replayed(client, run, rule("spend", "allow")))
        assert [b[-1] for b in now] == [True, False]

    def test_a_denial_that_became_a_budget(
        self, client: BearerClient, policy: SetPolicy, new_run: NewRun
    ) -> None:
        policy(rule("spend", "deny"))
        run = new_run()
        run.denied("m", kind="llm_call")
        policy(ALLOW)
        budget = {"max_tokens": 100, "on_exceed": "deny"}
        found = replayed(client, run, rule("spend", "allow", budget=budget))
        assert brief(found) == [("m", "deny", "spend", "allow", "spend", False)]


class TestNewestExecutions:
    @pytest.fixture
    def runs(self, policy: SetPolicy, new_run: NewRun) -> list[Attempt]:
        """Five, the oldest first; each with two steps."""
        policy(ALLOW, DENY)
        made = []
        for n in range(5):
            run = new_run()
            run.record("ok", {"run": n})
            run.denied("no", {"run": n})
            made.append(run)
        return made

    def of_runs(self, client: BearerClient, runs: list[Attempt], **executions: Any) -> list[int]:
        """Which of them the results are of, in their order."""
        fields = {"bundle": bundle(ALLOW, DENY), "executions": executions}
        found = client.test_policy(runs[0].agent.id, **fields).expect(200).json
        assert found["failed"] == 0
        return [r["args"]["run"] for r in found["results"][::2]]

    def test_newest_first(self, client: BearerClient, runs: list[Attempt]) -> None:
        assert self.of_runs(client, runs) == [4, 3, 2, 1, 0]

    def test_running_and_ended_ones(self, client: BearerClient, runs: list[Attempt]) -> None:
        runs[1].complete().expect(204)
        runs[2].fail("x").expect(204)
        client.cancel(runs[3].id)
        assert self.of_runs(client, runs) == [4, 3, 2, 1, 0]

    @pytest.mark.parametrize(
        ("limit", "wanted"), [(1, [4]), (3, [4, 3, 2]), (None, [4, 3, 2, 1, 0])]
    )
    def test_limit(
        self, client: BearerClient, runs: list[Attempt], limit: int | None, wanted: list[int]
    ) -> None:
        assert self.of_runs(client, runs, limit=limit) == wanted

    def test_a_limit_beyond_the_maximum(self, client: BearerClient, runs: list[Attempt]) -> None:
        assert len(self.of_runs(client, runs, limit=10**30)) == 5

    def test_since(self, client: BearerClient, runs: list[Attempt]) -> None:
        created = [client.execution(run.id)["created_at"] for run in runs]
        assert self.of_runs(client, runs, since=created[2]) == [4, 3, 2]
        after = datetime.fromisoformat(created[4]) + timedelta(microseconds=1)
        assert self.of_runs(client, runs, since=after.isoformat()) == []
        there = datetime.fromisoformat(created[3]).astimezone(timezone(timedelta(hours=-7)))
        assert self.of_runs(client, runs, since=there.isoformat()) == [4, 3]
        assert len(self.of_runs(client, runs, since="1900-01-01T00:00:00Z")) == 5
        assert self.of_runs(client, runs, since="9999-12-31T23:59:59Z") == []

    def test_of_a_session(
        self, client: BearerClient, runs: list[Attempt], new_run: NewRun, session: str
    ) -> None:
        """Its executions of this agent, whatever became of them."""
        turns = []
        for n in range(3):
            turns.append(new_run(session=session))
            turns[-1].record("ok", {"run": n})
            turns[-1].denied("no", {"run": n})
            turns[-1].fail().expect(204)
        assert self.of_runs(client, turns, session=session) == [2, 1, 0]
        assert self.of_runs(client, turns, session=session, limit=2) == [2, 1]
        assert self.of_runs(client, runs, session=f"{session}x") == []

    def test_of_this_agent_alone(
        self, client: BearerClient, runs: list[Attempt], new_agent: NewAgent
    ) -> None:
        other = new_agent()
        fields = {"bundle": bundle(ALLOW), "executions": {}}
        found = client.test_policy(other.id, **fields).expect(200).json
        assert found["results"] == []

    def test_more_than_are_listed_at_once(
        self, client: BearerClient, policy: SetPolicy, agent: FakeAgent
    ) -> None:
        policy(ALLOW)
        runs = [agent.take_attempt(client.create(agent.id)["id"]) for _ in range(45)]
        for n, run in enumerate(runs):
            run.record("ok", {"run": n})
            run.record("ok", {"run": n})
        assert self.of_runs(client, runs, limit=40) == list(range(44, 4, -1))
        assert self.of_runs(client, runs, limit=1000) == list(range(44, -1, -1))


def test_of_a_real_run(
    client: BearerClient, policy: SetPolicy, new_run: Callable[..., Attempt]
) -> None:
    """A run that asked, was delivered again and died once, tried on a tightened bundle: exactly
    what that bundle would have stopped fails."""
    policy(rule("all", "allow"), default="deny")
    run = new_run()
    for n in range(3):
        run.record("fetch", {"url": f"https://example.org/{n}"}, "page")
    run.record("summarize", {"n": 1}, "text", kind="llm_call")
    later = run.released()
    for n in range(3):
        later.replay("fetch", {"url": f"https://example.org/{n}"})
    later.replay("summarize", {"n": 1}, kind="llm_call")
    later.record("send", {"to": "boss@example.org"})
    later.record("send", {"to": "eve@example.com"})
    later.complete("sent").expect(204)
    eventually(lambda: client.execution(run.id)["status"] == "completed")
    inside = {"target": "send", "arguments": {"to": {"regex": "@example\\.org$"}}}
    found = replayed(
        client,
        run,
        rule("inside", "allow", inside),
        rule("outside", "require_approval", {"target": "send"}),
        rule("rest", "allow"),
    )
    assert [r["target"] for r in found["results"] if not r["pass"]] == ["send"]
    (failed,) = [r for r in found["results"] if not r["pass"]]
    assert failed["args"] == {"to": "eve@example.com"}
    assert failed["rule_id"] == "outside"
    assert client.step(run.id, failed["step_id"])["args"] == failed["args"]
