"""POST /v0/policies/{agent_id}/test with cases. Recorded executions have test_backtest.py."""

import json
import re
from typing import Any

import pytest

from harness import Answer, BearerClient, FakeAgent, Kernel, bundle, eventually, rule
from harness.client import encode
from harness.kernel import TOKEN
from harness.raw import RawConnection

POLICY = bundle(
    rule("no-rm", "deny", {"target": "shell", "arguments": {"command": {"contains": "rm"}}}),
    rule("shell", "require_approval", {"target": "shell"}, reason="look at it"),
    rule("models", "allow", {"step_kind": "llm_call"}),
    rule("odd", "judge", {"target": "odd"}),
    rule("bot", "allow", {"agent_id": "bot"}),
)
NO_RULE = "no explicit allow rule matched"


def run_cases(client: BearerClient, agent: FakeAgent, *cases: Any, **fields: Any) -> dict[str, Any]:
    fields.setdefault("bundle", POLICY)
    answer = client.test_policy(agent.id, cases=list(cases), **fields)
    found: dict[str, Any] = answer.expect(200).json
    return found


def refused(client: BearerClient, agent: FakeAgent, body: Any) -> Answer:
    return client.post(f"/v0/policies/{agent.id}/test", body, bad=True)


class TestResults:
    def test_what_a_result_says(self, client: BearerClient, agent: FakeAgent) -> None:
        found = run_cases(
            client,
            agent,
            {
                "name": "no removing",
                "target": "shell",
                "args": {"command": "rm -rf /", "n": 1},
                "expect": "deny",
                "expect_rule": "no-rm",
            },
            {"target": "shell", "args": {"command": "ls"}, "expect": "allow"},
            {"target": "m", "kind": "llm_call"},
            {"target": "x", "expect": "deny", "expect_rule": "no-rm"},
        )
        shared = {"agent_id": agent.id, "kind": "tool_call"}
        expected = [
            {
                **shared,
                "name": "no removing",
                "target": "shell",
                "args": {"command": "rm -rf /", "n": 1},
                "expect": "deny",
                "expect_rule": "no-rm",
                "decision": "deny",
                "rule_id": "no-rm",
                "reason": "policy_denied",
                "pass": True,
            },
            {
                **shared,
                "target": "shell",
                "args": {"command": "ls"},
                "expect": "allow",
                "decision": "require_approval",
                "rule_id": "shell",
                "reason": "look at it",
                "pass": False,
                "failure": found["results"][1]["failure"],
            },
            {
                **shared,
                "kind": "llm_call",
                "target": "m",
                "decision": "allow",
                "rule_id": "models",
                "pass": True,
            },
            {
                **shared,
                "target": "x",
                "expect": "deny",
                "expect_rule": "no-rm",
                "decision": "deny",
                "rule_id": "default",
                "reason": NO_RULE,
                "pass": False,
                "failure": found["results"][3]["failure"],
            },
        ]
        assert found["results"] == expected
        assert found["failed"] == 2
        assert found["unexercised_rules"] == ["odd", "bot"]

    def test_every_decision(self, client: BearerClient, agent: FakeAgent) -> None:
        cases = [
            {"target": "shell", "args": {"command": "rm"}, "expect": "deny"},
            {"target": "shell", "expect": "require_approval"},
            {"target": "m", "kind": "llm_call", "expect": "allow"},
            {"target": "odd", "expect": "judge"},
            {"target": "t", "agent_id": "bot", "expect": "allow", "expect_rule": "bot"},
        ]
        found = run_cases(client, agent, *cases)
        assert found["failed"] == 0
        assert all(r["pass"] for r in found["results"])
        assert found["results"][4]["agent_id"] == "bot"
        assert "unexercised_rules" not in found

    def test_fixed_rules(self, client: BearerClient, agent: FakeAgent) -> None:
        here = {"target": "t", "kind": "local", "expect": "allow", "expect_rule": "local"}
        for default in ("allow", "deny"):
            text = bundle(rule("a", "deny", {"target": "a"}), default=default)
            there = {"target": "t", "expect": default, "expect_rule": "default"}
            assert run_cases(client, agent, here, there, bundle=text)["failed"] == 0

    def test_no_cases(self, client: BearerClient, agent: FakeAgent) -> None:
        """Says at least whether the bundle compiles."""
        rules = ["no-rm", "shell", "models", "odd", "bot"]
        empty = {"results": [], "failed": 0, "unexercised_rules": rules}
        assert run_cases(client, agent) == empty
        assert client.test_policy(agent.id, bundle=POLICY).expect(200).json == empty
        body = {"bundle": POLICY, "cases": None, "execution_id": None, "executions": None}
        assert client.test_policy(agent.id, **body).expect(200).json == empty

    def test_changes_nothing(self, client: BearerClient, agent: FakeAgent) -> None:
        limit = {"max_calls": 1, "window": "1h", "per_what": "agent"}
        text = bundle(rule("limited", "allow", rate_limit=limit))
        client.set_policy(agent.id, text)
        for _ in range(3):
            found = run_cases(client, agent, {"target": "x", "expect": "allow"}, bundle=text)
            assert found["failed"] == 0
        run_cases(client, agent, {"target": "x"})
        shown = client.get(f"/v0/agents/{agent.id}").expect(200).json
        assert shown["policy_bundle"] == text
        agent.take_attempt(client.create(agent.id)["id"]).proceed("x")

    def test_many_cases(self, client: BearerClient, agent: FakeAgent) -> None:
        """More than is sent in one piece."""
        cases = [{"target": f"t{n}", "args": {"text": "x" * 500}} for n in range(5000)]
        found = run_cases(client, agent, *cases)
        assert [r["target"] for r in found["results"]] == [c["target"] for c in cases]
        assert found["unexercised_rules"] == ["no-rm", "shell", "models", "odd", "bot"]

    def test_arguments_are_read_as_a_rule_sees_them(
        self, client: BearerClient, agent: FakeAgent
    ) -> None:
        text = bundle(rule("one", "allow", {"arguments": {"v": {"equals": "1.0"}}}))
        body = b'{"bundle": %s, "cases": [{"target": "x", "args": {"v": 1.0}, "expect": "allow"}]}'
        encoded = body % json.dumps(text).encode()
        found = client.post(f"/v0/policies/{agent.id}/test", encoded).expect(200)
        assert found.json["failed"] == 0
        assert b'"args":{"v":1.0}' in found.body.replace(b" ", b"")


class TestBundle:
    def test_the_agents_own(self, client: BearerClient, agent: FakeAgent) -> None:
        client.set_policy(agent.id, POLICY)
        case = {"target": "shell", "expect_rule": "shell"}
        assert client.test_policy(agent.id, cases=[case]).expect(200).json["failed"] == 0
        assert run_cases(client, agent, case, bundle=None)["failed"] == 0

    def test_neither(self, client: BearerClient, agent: FakeAgent) -> None:
        client.test_policy(agent.id, cases=[{"target": "x"}]).invalid("bundle")

    def test_unknown_agent(self, client: BearerClient) -> None:
        client.test_policy("nobody", bundle=POLICY).expect(404, "not_found")

    def test_one_that_does_not_compile(self, client: BearerClient, agent: FakeAgent) -> None:
        answer = client.test_policy(agent.id, bundle="rules: [{id: a}]").expect(400)
        assert "line 1, column 9" in answer.message


class TestRefusals:
    @pytest.mark.parametrize(
        ("case", "word"),
        [
            ({}, "target"),
            ({"target": 1}, "target"),
            ({"target": "x", "arguments": {}}, "arguments"),
            ({"target": "x", "kind": "tool"}, "kind"),
            ({"target": "x", "expect": "allowed"}, "expect"),
            ({"target": "x", "expect": 1}, "expect"),
            ({"target": "x", "expect_rule": 1}, "expect_rule"),
            ({"target": "x", "name": 1}, "name"),
            ({"target": "x", "agent_id": 1}, "agent_id"),
            ("x", "object"),
        ],
    )
    def test_bad_cases(self, client: BearerClient, agent: FakeAgent, case: Any, word: str) -> None:
        good = {"target": "x"}
        answer = refused(client, agent, {"bundle": POLICY, "cases": [good, case]})
        answer.expect(400, "validation_error")
        assert word in answer.message

    @pytest.mark.parametrize(
        ("body", "field"),
        [
            ({"bundle": 1}, "bundle"),
            ({"cases": {}}, "cases"),
            ({"cases": "x"}, "cases"),
            ({"policy": POLICY}, "policy"),
            ({"execution_id": 1}, "execution_id"),
            ({"execution_id": "x"}, "execution_id"),
            ({"executions": []}, "executions"),
            ({"executions": {"status": "failed"}}, "status"),
            ({"executions": {"since": "yesterday"}}, "since"),
            ({"executions": {"since": 1}}, "since"),
            ({"executions": {"since": "2026-02-30T00:00:00Z"}}, "since"),
            ({"executions": {"limit": 0}}, "limit"),
            ({"executions": {"limit": -1}}, "limit"),
            ({"executions": {"limit": 1.5}}, "limit"),
            ({"executions": {"limit": "5"}}, "limit"),
            ({"executions": {"session": ""}}, "session"),
            ({"executions": {"session": 1}}, "session"),
        ],
    )
    def test_bad_fields(
        self, client: BearerClient, agent: FakeAgent, body: dict[str, Any], field: str
    ) -> None:
        refused(client, agent, {"bundle": POLICY, **body}).invalid(field)

    def test_bad_bodies(self, client: BearerClient, agent: FakeAgent) -> None:
        for body in (b"", b"[]", b'{"cases":[}', b'{"cases":[{"target":"x","target":"y"}]}'):
            refused(client, agent, body).expect(400, "validation_error")

    def test_duplicate_keys_in_arguments(self, client: BearerClient, agent: FakeAgent) -> None:
        body = b'{"cases":[{"target":"x","args":{"v":1,"v":2}}]}'
        refused(client, agent, body).expect(400, "validation_error")

    def test_one_execution_or_several(self, client: BearerClient, agent: FakeAgent) -> None:
        created = client.create(agent.id)
        body = {"bundle": POLICY, "execution_id": created["id"], "executions": {}}
        client.test_policy(agent.id, **body).invalid("executions")


class TestBesideOthers:
    RULES, CASES, BYTES = 1000, 9, 1_000_000

    def streams(self, client: BearerClient) -> int:
        text = client.get("/metrics").expect(200).body.decode()
        found = re.search(r"^rebuno_http_streams (\d+)$", text, re.MULTILINE)
        assert found is not None
        return int(found.group(1))

    def test_a_long_one_keeps_nobody_waiting(
        self, kernel: Kernel, client: BearerClient, agent: FakeAgent
    ) -> None:
        """Hostile patterns over large arguments, for many seconds. Steps and reads go on beside
        it, and when the one who asked has gone it is given up."""
        pattern = {"arguments": {"v": {"regex": "(x+x+)+y|(.*x){20}z"}}}
        text = bundle(*(rule(f"r{n}", "deny", pattern) for n in range(self.RULES)))
        cases = [{"target": "t", "args": {"v": "x" * self.BYTES}}] * self.CASES
        body = encode({"bundle": text, "cases": cases})
        head = (
            f"POST /v0/policies/{agent.id}/test HTTP/1.1\r\nHost: x\r\n"
            f"Authorization: Bearer {TOKEN}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        run = agent.take_attempt(client.create(agent.id)["id"])
        with RawConnection(kernel.port) as connection:
            connection.send(head.encode() + body)
            eventually(lambda: self.streams(client) == 1, 60.0)
            for number in range(5):
                run.record("x", number)
                assert len(client.steps(run.id)) == number + 1
                client.get("/v0/executions?limit=5").expect(200)
            assert self.streams(client) == 1
        eventually(lambda: self.streams(client) == 0, 60.0)
