"""What a policy makes of a new step, and what is recorded of that."""

from collections.abc import Callable
from typing import Any

import pytest

from conftest import SetPolicy
from harness import Attempt, BearerClient, hash_of, rule

NO_RULE = "no explicit allow rule matched"


def decisions(client: BearerClient, run: Attempt) -> list[dict[str, Any]]:
    """The payloads of the events that say what was decided."""
    types = ("step.allowed", "step.denied", "step.awaiting_approval")
    return [e["payload"] for e in client.events(run.id) if e["type"] in types]


def decided(run: Attempt, target: str, args: Any = None, **options: Any) -> str:
    return str(run.submit(target, args, **options).expect(200).json["decision"])


class TestRecorded:
    def test_allowed(self, client: BearerClient, run: Attempt, policy: SetPolicy) -> None:
        text = policy(rule("yes", "allow", reason="harmless"))
        step_id = run.proceed("x")
        shown = {"step_id": step_id, "step_type": "tool_call", "target": "x"}
        rest = {"rule_id": "yes", "policy_hash": hash_of(text)}
        assert decisions(client, run) == [{**shown, **rest}]
        assert client.event_types(run.id)[-3:] == [
            "step.proposed",
            "step.allowed",
            "step.executing",
        ]

    def test_denied(self, client: BearerClient, run: Attempt, policy: SetPolicy) -> None:
        text = policy(rule("no", "deny", reason="writes are off"))
        answer = run.denied("x", {"a": 1})
        assert answer == {
            "decision": "denied",
            "step_id": answer["step_id"],
            "reason": "writes are off",
            "rule_id": "no",
        }
        step = client.step(run.id, answer["step_id"])
        assert (step["status"], step["args"]) == ("denied", {"a": 1})
        assert step["error"] == {"reason": "writes are off"}
        assert "started_at" not in step
        assert "completed_at" in step
        shown = {"step_id": answer["step_id"], "step_type": "tool_call", "target": "x"}
        rest = {"rule_id": "no", "policy_hash": hash_of(text), "error": step["error"]}
        assert decisions(client, run) == [{**shown, **rest}]
        assert client.event_types(run.id)[-2:] == ["step.proposed", "step.denied"]

    def test_a_denied_step_stays_denied(
        self, client: BearerClient, run: Attempt, policy: SetPolicy
    ) -> None:
        policy(rule("no", "deny", reason="once"))
        first = run.denied("x")
        policy(rule("no", "allow"))
        later = run.released()
        assert later.denied("x") == first
        later.proceed("x")
        assert len(decisions(client, run)) == 2

    def test_a_denied_step_has_no_outcome(self, run: Attempt, policy: SetPolicy) -> None:
        policy(rule("no", "deny"))
        answer = run.denied("x")
        error = {"reason": "policy_denied"}
        recorded = {"decision": "replay", "step_id": answer["step_id"], "error": error}
        assert run.complete_step(answer["step_id"], 1).expect(200).json == recorded

    def test_a_denial_always_has_a_reason(self, run: Attempt, policy: SetPolicy) -> None:
        policy(rule("no", "deny"))
        assert run.denied("x")["reason"] == "policy_denied"

    def test_the_first_match_counts(
        self, client: BearerClient, run: Attempt, policy: SetPolicy
    ) -> None:
        policy(
            rule("third", "deny", {"target": "a"}),
            rule("first", "allow", {"target": "*"}),
            rule("second", "deny", {"target": "*"}),
        )
        run.proceed("b")
        run.denied("a")
        assert [d["rule_id"] for d in decisions(client, run)] == ["first", "third"]

    def test_a_denied_call_counts_as_a_submission(
        self, client: BearerClient, run: Attempt, policy: SetPolicy
    ) -> None:
        policy(rule("no", "deny"))
        ids = [run.denied("x")["step_id"] for _ in range(3)]
        assert [client.step(run.id, i)["occurrence"] for i in ids] == [0, 1, 2]
        later = run.released()
        assert [later.denied("x")["step_id"] for _ in range(3)] == ids

    def test_the_run_may_go_on(self, client: BearerClient, run: Attempt, policy: SetPolicy) -> None:
        policy(rule("no", "deny", {"target": "no"}), rule("yes", "allow"))
        run.denied("no")
        run.record("yes", 1, "r")
        run.complete("end").expect(204)
        assert client.execution(run.id)["output"] == "end"


class TestDefaults:
    def test_no_bundle(self, client: BearerClient, run: Attempt) -> None:
        run.proceed("x")
        (found,) = decisions(client, run)
        assert found["rule_id"] == "permissive"
        assert "policy_hash" not in found

    @pytest.mark.parametrize("default", [None, "deny"])
    def test_deny(
        self, client: BearerClient, run: Attempt, policy: SetPolicy, default: str | None
    ) -> None:
        text = policy(rule("one", "allow", {"target": "a"}), default=default)
        for kind in ("tool_call", "llm_call"):
            answer = run.denied("b", kind=kind)
            assert (answer["rule_id"], answer["reason"]) == ("default", NO_RULE)
        assert {d["policy_hash"] for d in decisions(client, run)} == {hash_of(text)}

    def test_allow(self, client: BearerClient, run: Attempt, policy: SetPolicy) -> None:
        policy(rule("one", "deny", {"target": "a"}), default="allow")
        run.proceed("b")
        run.denied("a")
        assert [d["rule_id"] for d in decisions(client, run)] == ["default", "one"]

    @pytest.mark.parametrize("default", ["allow", "deny"])
    def test_local_steps_are_allowed(
        self, client: BearerClient, run: Attempt, policy: SetPolicy, default: str
    ) -> None:
        policy(rule("one", "deny", {"target": "a"}), default=default)
        run.proceed("b", kind="local")
        run.denied("a", kind="local")
        assert [d["rule_id"] for d in decisions(client, run)] == ["local", "one"]

    def test_a_judge_without_one_configured(self, run: Attempt, policy: SetPolicy) -> None:
        policy(rule("ask", "judge", judge={"instructions": "is it safe?", "fallback": "allow"}))
        answer = run.denied("x")
        assert (answer["rule_id"], answer["reason"]) == ("ask", "judge_unavailable")


class TestMatching:
    """End to end; each part of a rule has its own tests in tests/unit/policy_*_test.c."""

    def test_who_submits(self, policy: SetPolicy, run: Attempt) -> None:
        policy(
            rule("mine", "allow", {"target": "a", "agent_id": run.agent.id}),
            rule("listed", "allow", {"target": "b", "agent_ids": ["x", run.agent.id]}),
            rule("other", "allow", {"agent_id": run.agent.id + "*"}),
        )
        assert [decided(run, t) for t in "abc"] == ["proceed", "proceed", "denied"]

    def test_kind(self, policy: SetPolicy, run: Attempt) -> None:
        policy(rule("models", "allow", {"step_kind": "llm_call"}))
        assert decided(run, "m", kind="llm_call") == "proceed"
        assert decided(run, "m", kind="tool_call") == "denied"

    @pytest.mark.parametrize(
        ("pattern", "hits", "misses"),
        [
            ("fs_*", ["fs_", "fs_write", "fs_/a/b"], ["fs", "xfs_"]),
            ("f?", ["fa", "f/", "fé"], ["f", "fab"]),
            ("[a-c]x", ["ax", "cx"], ["dx", "-x"]),
            ("[^a-c]x", ["dx"], ["ax"]),
            ("a\\*", ["a*"], ["ab"]),
            ("*", ["anything", "/", "a b"], []),
        ],
    )
    def test_globs(
        self, policy: SetPolicy, run: Attempt, pattern: str, hits: list[str], misses: list[str]
    ) -> None:
        policy(rule("hit", "allow", {"target": pattern}))
        assert [decided(run, t) for t in hits] == ["proceed"] * len(hits)
        assert [decided(run, t) for t in misses] == ["denied"] * len(misses)

    @pytest.mark.parametrize(
        ("predicate", "hits", "misses"),
        [
            ({"equals": "ls"}, ['"ls"', '"\\u006cs"'], ['"ls "', '"LS"', '["ls"]']),
            ({"equals": "1.0"}, ["1.0", '"1.0"'], ["1", "1.00", "10e-1"]),
            ({"equals": "true"}, ["true", '"true"'], ["false", "1"]),
            ({"equals": "null"}, ["null", '"null"'], ['""', "0"]),
            ({"contains": "rm"}, ['"a rm b"', '{"x":"rm"}'], ['"r m"', "1"]),
            ({"one_of": ["a", "b"]}, ['"a"', '"b"'], ['"c"', '"ab"', '["a"]']),
            ({"regex": "^/tmp/"}, ['"/tmp/x"', '"\\/tmp\\/x"'], ['"/var/tmp/"', '["/tmp/"]']),
            ({"regex": "\\.\\."}, ['"a/../b"', '"\\u002e."'], ['"a/./b"']),
            ({"equals": '{"a":1,"b":"<"}'}, [], ['{"b":2,"a":1}']),
            ({"equals": '{"a":1,"b":"\\u003c"}'}, ['{ "b" : "<", "a":1 }'], []),
        ],
    )
    def test_arguments(
        self,
        policy: SetPolicy,
        run: Attempt,
        predicate: dict[str, Any],
        hits: list[str],
        misses: list[str],
    ) -> None:
        policy(rule("hit", "allow", {"arguments": {"v": predicate}}))
        for text, wanted in [*((h, "proceed") for h in hits), *((m, "denied") for m in misses)]:
            assert decided(run, "x", b'{"v":' + text.encode() + b"}") == wanted, text

    def test_a_key_must_be_there(self, policy: SetPolicy, run: Attempt) -> None:
        policy(rule("hit", "allow", {"arguments": {"v": {"regex": ".*"}}}))
        assert decided(run, "x", {"v": ""}) == "proceed"
        for args in ({}, {"w": "x"}, None, [], ["v"], "v", 1):
            assert decided(run, "x", args) == "denied", args

    def test_dotted_paths(self, policy: SetPolicy, run: Attempt) -> None:
        policy(rule("hit", "allow", {"arguments": {"a.b": {"equals": "x"}}}))
        assert decided(run, "t", {"a": {"b": "x"}}) == "proceed"
        assert decided(run, "t", {"a.b": "x"}) == "proceed"
        assert decided(run, "t", {"a.b": "y", "a": {"b": "x"}}) == "denied"
        assert decided(run, "t", {"a": [{"b": "x"}]}) == "denied"

    def test_duplicate_keys_never_reach_a_rule(
        self, client: BearerClient, policy: SetPolicy, run: Attempt
    ) -> None:
        policy(rule("hit", "allow", {"arguments": {"v": {"equals": "safe"}}}))
        before = client.events(run.id)
        for args in (b'{"v":"safe","v":"evil"}', b'{"v":"safe","\\u0076":"evil"}'):
            run.submit("x", args).expect(400, "validation_error")
        assert client.events(run.id) == before

    def test_a_hostile_pattern_on_a_large_argument(self, policy: SetPolicy, run: Attempt) -> None:
        policy(
            rule("hostile", "allow", {"arguments": {"v": {"regex": "(a+)+$|(a|aa)+b|(.*a){25}c"}}})
        )
        text = "a" * 1_000_000
        assert decided(run, "x", {"v": text + "!"}) == "denied"
        assert decided(run, "x", {"v": text}) == "proceed"

    def test_every_argument_that_is_named_must_pass(self, policy: SetPolicy, run: Attempt) -> None:
        both = {"a": {"equals": "1"}, "b": {"contains": "x", "regex": "y$"}}
        policy(rule("hit", "allow", {"arguments": both}))
        assert decided(run, "t", {"a": 1, "b": "xy"}) == "proceed"
        for args in ({"a": 1, "b": "x"}, {"a": 1, "b": "y"}, {"a": 2, "b": "xy"}, {"b": "xy"}):
            assert decided(run, "t", args) == "denied", args


class TestIndeterminate:
    @pytest.mark.parametrize("decision", ["allow", "deny", "require_approval"])
    def test_no_policy_is_asked(
        self,
        client: BearerClient,
        policy: SetPolicy,
        new_run: Callable[..., Attempt],
        decision: str,
    ) -> None:
        run = new_run()
        run.proceed("x", idempotency="at_most_once")
        policy(rule("now", decision))
        later = run.released()
        later.replay("x", idempotency="at_most_once")
        assert later.denied("x", idempotency="at_most_once")["rule_id"] == "__indeterminate_retry"
        assert client.execution(run.id)["status"] == "running"
