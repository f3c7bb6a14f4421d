"""Policies on the command line: bundles tried where they are written, and given to an agent."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness import Attempt, FakeAgent, eventually
from harness.cli import Cli
from harness.policies import hash_of

NewAgent = Callable[..., FakeAgent]
NOWHERE = "http://x.invalid"

BUNDLE = """\
default_action: deny
rules:
  - id: allow-safe
    when:
      target: shell_exec
      arguments:
        command: { regex: '^(ls|cat)( |$)' }
    then: { decision: allow, rate_limit: { max_calls: 5, window: 1m, max_wait: 5m } }
  - id: ask
    when: { targets: [shell_exec, fs_*] }
    then:
      decision: require_approval
      reason: writes need a look
      approval_config: { approvers: [alice, bob], timeout: 5m, message: check it }
  - id: tokens
    when: { step_kind: llm_call }
    then: { decision: allow, budget: { max_tokens: 200000 } }
  - id: judged
    when: { target: web_*, agent_id: reader }
    then:
      decision: judge
      judge: { instructions: is it public?, threshold: 0.75, fallback: deny }
"""
CASES = """\
agent_id: reader
cases:
  - { name: read-only, target: shell_exec, args: { command: "ls -la" }, expect: allow }
  - name: remove
    target: shell_exec
    args: { command: "rm -rf /" }
    expect: require_approval
    expect_rule: ask
  - { name: browse, target: web_get, expect: judge }
"""


def words(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


class TestCases:
    """No kernel is asked: REBUNO_URL leads nowhere."""

    @pytest.fixture
    def files(self, cli: Cli) -> Cli:
        (cli.folder / "shell.yaml").write_text(BUNDLE)
        (cli.folder / "shell.policytest.yaml").write_text(CASES)
        return cli

    def out(self, cli: Cli, *given: str, **options: Any) -> str:
        return cli.out("policy", "test", *given, REBUNO_URL=NOWHERE, **options)

    def error(self, cli: Cli, *given: str, **options: Any) -> str:
        return cli.error("policy", "test", *given, REBUNO_URL=NOWHERE, **options)

    def test_all_met(self, files: Cli) -> None:
        assert words(self.out(files, "shell.yaml")) == [
            ["RESULT", "CASE", "STEP", "DECISION", "RULE"],
            ["ok", "read-only", "tool_call", "shell_exec", "allow", "allow-safe"],
            ["ok", "remove", "tool_call", "shell_exec", "require_approval", "ask"],
            ["ok", "browse", "tool_call", "web_get", "judge", "judged"],
            [],
            "no case reached: tokens".split(),
            "3 passed, 0 failed".split(),
        ]

    def test_one_not_met(self, files: Cli) -> None:
        wrong = CASES.replace("expect: judge", "expect: allow").replace("rule: ask", "rule: tokens")
        (files.folder / "other.yaml").write_text(wrong)
        lines = self.out(files, "shell.yaml", "--cases", "other.yaml", code=1).splitlines()
        assert [line.split()[0] for line in lines[1:4]] == ["ok", "FAILED", "FAILED"]
        assert lines[5:7] == [
            "remove: expected require_approval by rule tokens, got require_approval by rule ask",
            "browse: expected allow, got judge by rule judged",
        ]
        assert lines[-1] == "1 passed, 2 failed"

    def test_json_is_the_api_s(self, files: Cli) -> None:
        out = json.loads(self.out(files, "shell.yaml", "--json"))
        assert (out["failed"], out["unexercised_rules"]) == (0, ["tokens"])
        assert out["results"][1] == {
            "name": "remove",
            "agent_id": "reader",
            "kind": "tool_call",
            "target": "shell_exec",
            "args": {"command": "rm -rf /"},
            "expect": "require_approval",
            "expect_rule": "ask",
            "decision": "require_approval",
            "rule_id": "ask",
            "reason": "writes need a look",
            "pass": True,
        }

    def test_another_agent(self, files: Cli) -> None:
        """--agent-id wins over the file's."""
        lines = self.out(files, "shell.yaml", "--agent-id", "writer", code=1).splitlines()
        assert "browse: expected judge, got deny by rule default" in lines

    def test_where_the_cases_are(self, files: Cli) -> None:
        for name in ("shell.yml", "shell"):
            (files.folder / name).write_text(BUNDLE)
            assert self.out(files, name) == self.out(files, "shell.yaml")
        (files.folder / "alone.yaml").write_text(BUNDLE)
        error = self.error(files, "alone.yaml")
        assert error.startswith("error: cannot read alone.policytest.yaml: No such file")
        assert "the bundle compiles" in error and "--cases" in error and "--target" in error
        error = self.error(files, "shell.yaml", "--cases", "nope")
        assert error == "error: cannot read nope: No such file or directory\n"

    def test_bad_files_are_named_with_the_place(self, files: Cli) -> None:
        (files.folder / "bad.yaml").write_text("rules:\n  - id: x\n    reson: y\n")
        error = self.error(files, "bad.yaml")
        assert error.startswith('error: bad.yaml:3:5: rule "x": unknown key "reson"')
        error = self.error(files, "none.yaml")
        assert error.startswith("error: cannot read none.yaml: No such file or directory; expected a")
        (files.folder / "cases.yaml").write_text("cases:\n  - { name: x, targt: y }\n")
        error = self.error(files, "shell.yaml", "--cases", "cases.yaml")
        assert error.startswith("error: cases.yaml:2:16: ")

    @pytest.mark.parametrize(
        ("given", "shown"),
        [
            (
                ["shell_exec", "--args", '{"command":"ls"}'],
                ["decision allow", "rule allow-safe"]
                + ["rate limit 5 in 1m00s per execution; waits up to 5m00s"],
            ),
            (
                ["fs_write"],
                ["decision require_approval", "rule ask", "reason writes need a look"]
                + ["message check it", "approvers alice, bob", "expires after 5m00s"],
            ),
            (
                ["", "--kind", "llm_call"],
                ["decision allow", "rule tokens"]
                + ["budget 200000 tokens per execution, then deny"],
            ),
            (
                ["web_get", "--agent-id", "reader"],
                ["decision judge", "rule judged"]
                + ["judge its choice from 0.75 on, else deny", "instructions is it public?"],
            ),
            (
                ["web_get"],
                ["decision deny", "rule default", "reason no explicit allow rule matched"],
            ),
            (["x", "--kind=local"], ["decision allow", "rule local"]),
        ],
    )
    def test_one_step(self, files: Cli, given: list[str], shown: list[str]) -> None:
        lines = self.out(files, "shell.yaml", "--target", *given).splitlines()
        assert [" ".join(line.split()) for line in lines] == shown
        result = json.loads(self.out(files, "shell.yaml", "--json", "--target", *given))
        assert result["failed"] == 0 and "unexercised_rules" not in result
        assert f"decision {result['results'][0]['decision']}" == shown[0]

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            (["--target", "x", "--args", "{"], "--args: invalid JSON at byte 1"),
            (["--target", "x", "--kind", "tool"], "--kind: expected tool_call, llm_call or local"),
            (["--args", "{}"], "--args and --kind belong to --target"),
            (["--execution", "0", "--cases", "c"], "--cases, --target and --execution are three"),
        ],
    )
    def test_wrong_usage(self, files: Cli, given: list[str], message: str) -> None:
        error = self.error(files, "shell.yaml", *given, code=2)
        assert error.startswith(f"error: {message}")
        assert error.endswith("see 'rebuno policy test --help'\n")


class TestSet:
    def test_decides_from_then_on(self, cli: Cli, agent: FakeAgent) -> None:
        (cli.folder / "shell.yaml").write_text(BUNDLE)
        out = cli.out("policy", "set", agent.id, "shell.yaml")
        digest = hash_of(BUNDLE)
        assert out == f"set the policy of {agent.id}: 4 rules, hash {digest[:12]}…\n"
        answer = cli.json("policy", "set", agent.id, "shell.yaml")
        assert answer == {"agent_id": agent.id, "policy_hash": digest, "rules": 4}
        run = agent.take_attempt(cli.json("exec", "create", agent.id)["id"])
        decision = run.submit("rm").expect(200).json
        assert (decision["decision"], decision["rule_id"]) == ("denied", "default")
        shown = cli.out("agent", "get", agent.id)
        assert "policy\n  │ default_action: deny\n  │ rules:\n" in shown
        assert cli.json("agent", "get", agent.id)["policy_bundle"] == BUNDLE

    def test_none(self, cli: Cli, agent: FakeAgent) -> None:
        assert ["policy", "none:", "every", "step", "is", "allowed"] in words(
            cli.out("agent", "get", agent.id)
        )

    def test_compiles_before_it_sends(self, cli: Cli) -> None:
        (cli.folder / "bad.yaml").write_text("rules:\n  - then: { decision: allow }\n")
        error = cli.error("policy", "set", "any", "bad.yaml", REBUNO_URL=NOWHERE)
        assert error.startswith("error: bad.yaml:2:5: ")
        (cli.folder / "ok.yaml").write_text("default_action: allow\n")
        assert cli.error("policy", "set", "no/body", "ok.yaml") == (
            "error: no such agent \"no/body\": add it with 'rebuno agent add MANIFEST'\n"
        )


MANIFEST = """\
agents:
  - id: {id}
    webhook_url: {url}
    secret: s3cret
    {policy}
"""


class TestManifest:
    @pytest.mark.parametrize("way", ["file", "inline"])
    def test_add_brings_the_policy(self, cli: Cli, new_agent: NewAgent, way: str) -> None:
        agent = new_agent(register=False)
        folder = Path(cli.folder / "agents")
        folder.mkdir()
        (folder / "p.yaml").write_text("default_action: deny\n")
        policy = "policy_file: p.yaml" if way == "file" else "policy: |\n      default_action: deny"
        manifest = MANIFEST.format(id=agent.id, url=agent.webhook_url, policy=policy)
        (folder / "agents.yaml").write_text(manifest)
        added = cli.out("agent", "add", "agents/agents.yaml")
        assert added == f"registered {agent.id} at {agent.webhook_url}, with its policy\n"
        assert cli.json("agent", "get", agent.id)["policy_bundle"] == "default_action: deny\n"
        plain = MANIFEST.format(id=agent.id, url=agent.webhook_url, policy="")
        (folder / "agents.yaml").write_text(plain)
        cli.out("agent", "add", "agents/agents.yaml")
        assert "policy_bundle" in cli.json("agent", "get", agent.id)  # left as it was

    def test_add_again_replaces_it(self, cli: Cli, new_agent: NewAgent) -> None:
        agent = new_agent(register=False)
        for action in ("deny", "allow"):
            policy = f"policy: |\n      default_action: {action}"
            manifest = MANIFEST.format(id=agent.id, url=agent.webhook_url, policy=policy)
            (cli.folder / "agents.yaml").write_text(manifest)
            [added] = cli.json("agent", "add", "agents.yaml")
            assert added["policy_bundle"] == f"default_action: {action}\n"
            assert cli.json("agent", "get", agent.id) == added

    def test_a_bad_one_registers_nobody(self, cli: Cli) -> None:
        policy = "policy: |\n      rules: [{ id: x, reson: y }]"
        manifest = MANIFEST.format(id="nobody", url="http://localhost:1", policy=policy)
        (cli.folder / "a.yaml").write_text(manifest)
        error = cli.error("agent", "add", "a.yaml", REBUNO_URL=NOWHERE)
        assert error.startswith("error: a.yaml:") and 'unknown key "reson"' in error


class TestExecution:
    """A past run's steps through another bundle."""

    @pytest.fixture
    def run(self, cli: Cli, agent: FakeAgent) -> Attempt:
        (cli.folder / "now.yaml").write_text(
            "rules:\n"
            "  - { id: reads, when: { target: read }, then: { decision: allow } }\n"
            "  - { id: asks, when: { target: write }, then: { decision: require_approval } }\n"
        )
        cli.out("policy", "set", agent.id, "now.yaml")
        identity = cli.json("exec", "create", agent.id)["id"]
        run = agent.take_attempt(identity)
        run.record("read", {"path": "/a"})
        run.submit("remove", {"path": "/a"}).expect(200)
        decision = run.submit("write", {"path": "/b"}).expect(200).json
        cli.out("approval", "grant", decision["approval_id"])
        again = agent.take_attempt(identity)
        again.complete("done").expect(204)
        return again

    def test_the_same_bundle_passes(self, cli: Cli, run: Attempt) -> None:
        out = cli.out("policy", "test", "now.yaml", "--execution", run.id[:-1])
        assert words(out)[:4] == [
            ["RESULT", "STEP", "ARGS", "DECISION", "WAS", "RULE", "RULE"],
            ["ok", "tool_call", "read", '{"path":"/a"}', "allow", "reads", "reads"],
            ["ok", "tool_call", "remove", '{"path":"/a"}', "deny", "default", "default"],
            ["ok", "tool_call", "write", '{"path":"/b"}', "require_approval", "asks", "asks"],
        ]
        assert out.endswith("3 passed, 0 failed\n")

    def test_another_one_fails_what_differs(self, cli: Cli, run: Attempt) -> None:
        (cli.folder / "next.yaml").write_text(
            "rules:\n  - { id: all, when: { target: '*' }, then: { decision: allow } }\n"
        )
        out = cli.out("policy", "test", "next.yaml", "--execution", run.id, code=1)
        lines = out.splitlines()
        assert [line.split()[0] for line in lines[1:4]] == ["ok", "FAILED", "FAILED"]
        assert lines[5].startswith('tool_call remove {"path":"/a"}: was deny by rule default')
        assert lines[6].startswith(
            'tool_call write {"path":"/b"}: was require_approval by rule asks'
        )
        assert lines[-1] == "1 passed, 2 failed"
        result = json.loads(
            cli.run("policy", "test", "next.yaml", "--execution", run.id, "--json").stdout
        )
        assert result["failed"] == 2
        assert [entry["pass"] for entry in result["results"]] == [True, False, False]
        assert {entry["execution_id"] for entry in result["results"]} == {run.id}

    def test_another_agent_s_is_refused(self, cli: Cli, run: Attempt) -> None:
        words_ = ("policy", "test", "now.yaml", "--execution", run.id)
        assert "(" in cli.error(*words_, "--agent-id", "nobody")
        assert "no execution's id begins" in cli.error(*words_[:-1], "fff")

    def test_what_was_recorded_stays(self, cli: Cli, run: Attempt) -> None:
        before = cli.kernel.client().events(run.id)
        cli.run("policy", "test", "now.yaml", "--execution", run.id)
        eventually(lambda: cli.kernel.client().events(run.id) == before)
