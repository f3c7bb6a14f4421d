"""What `exec events` and `exec steps` show on a terminal, and what scripts get of them."""

import json
import unicodedata
from typing import Any

import pytest

from harness import FakeAgent
from harness.cli import Cli
from harness.scripted import ScriptedExecution, Serve

A = "0199c2a4-7d10-7c4e-8abc-0123456789ab"
EVIL = "\x1b[2J\x1b]0;title\x07\u202etxt\u200b\u009b1m\r"
TARGETS = ["look", "日本語の検索", "✅ ship it 🚀", "t" * 200]


def columns_of(line: str) -> int:
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in line)


def a_run(**fields: Any) -> ScriptedExecution:
    run = ScriptedExecution(A, **fields)
    run.event("execution.created", execution_id=A, created_by="ann")
    for n, target in enumerate(TARGETS):
        run.step(target, {"text": "東京 🍣 " * n, "n": n}, result={"found": n})
    run.step("rm", {"path": EVIL}, error={"message": f"no{EVIL}luck " * 20})
    run.event("execution.failed", execution_id=A, status="failed", reason=f"gone{EVIL}" * 20)
    return run


class TestEvents:
    def test_reads_as_watch_does(self, cli: Cli, agent: FakeAgent) -> None:
        """Its lines are those of `exec watch`, and below each is its payload, whole."""
        identity = cli.json("exec", "create", agent.id)["id"]
        attempt = agent.take_attempt(identity)
        attempt.record("look", {"n": 1}, {"found": 1})
        attempt.fail_step(attempt.proceed("rm"), {"message": "no\nluck"}).expect(200)
        attempt.complete("done").expect(204)
        watched = cli.out("exec", "watch", identity).splitlines()
        shown = cli.on_terminal(2000, "exec", "events", identity, NO_COLOR="1")
        payloads = [line for line in shown if line.startswith("      {")]
        assert [line for line in shown if line not in payloads] == watched[:-1]  # the outcome
        events = cli.kernel.client().events(identity)
        assert [json.loads(line) for line in payloads] == [e["payload"] for e in events]

    @pytest.mark.parametrize("columns", [60, 80, 120, 200])
    def test_no_line_is_wider(self, serve: Serve, columns: int) -> None:
        kernel = serve(a_run(status="failed"))
        for command in ("events", "steps"):
            shown = kernel.on_terminal(columns, "exec", command, A, NO_COLOR="1").splitlines()
            assert max(columns_of(line) for line in shown) <= columns, command

    def test_a_model_call_that_was_refused(self, cli: Cli, agent: FakeAgent) -> None:
        """It succeeds as a step; people see with what it was answered."""
        identity = cli.json("exec", "create", agent.id)["id"]
        attempt = agent.take_attempt(identity)
        headers = {"content-type": "application/json"}
        answers = {
            "fine": (200, '{"text": "tea"}', {}),
            "edge": (399, "moved", {}),
            "bad": (400, '{"error":  {"message": "no such model"}}', {}),
            "busy": (529, "over\x1b[2Jloaded\n" + "x" * 500, {}),
            "raw": (500, "/wAB", {"encoding": "base64"}),
        }
        for target, (status, body, more) in answers.items():
            result = {"status": status, "headers": headers, "body": body, **more}
            attempt.record(target, {"model": target}, result, kind="llm_call")
        attempt.record("fetch", {}, {"status": 404, "headers": {}, "body": "a tool's own"})
        attempt.record("own", {}, {"status": 404}, kind="llm_call")
        attempt.complete("done").expect(204)
        said = {"bad": "HTTP 400", "busy": "HTTP 529", "raw": "HTTP 500"}

        steps = cli.out("exec", "steps", identity).splitlines()[1:]
        for line, target in zip(steps, [*answers, "fetch", "own"], strict=True):
            wanted = f"succeeded, {said[target]}" if target in said else "succeeded"
            assert target in line and wanted in line and ("HTTP" in line) == (target in said)
        assert steps[2].endswith('  {"error":{"message":"no such model"}}')
        assert "  over\\x1b[2Jloaded\\nxxx" in steps[3] and steps[3].endswith("x…")
        assert "wAB" not in steps[4] and "tea" not in steps[0]

        for shown in (
            cli.out("exec", "watch", identity).splitlines(),
            cli.on_terminal(200, "exec", "events", identity, NO_COLOR="1"),
        ):
            succeeded = [line for line in shown if "  step.succeeded " in line]
            assert len(succeeded) == len(steps)
            for line, target in zip(succeeded, [*answers, "fetch", "own"], strict=True):
                assert f" {target}  in " in line
                assert line.endswith(f", {said[target]}") if target in said else "HTTP" not in line

    def test_scripts_ask_for_no_step(self, serve: Serve) -> None:
        """Nor do people's readers, of a call that took tokens."""
        run = ScriptedExecution(A)
        refused = {"status": 400, "headers": {}, "body": "no"}
        run.step("m", kind="llm_call", result=refused)
        run.step("m", kind="llm_call", usage={"input_tokens": 1, "output_tokens": 2})
        kernel = serve(run)
        for words in (("events", A), ("events", A, "--json")):
            assert kernel.run("exec", *words).returncode == 0
        assert not [line for line, _ in kernel.requests if "/steps/" in line]
        assert "HTTP 400" in kernel.on_terminal(120, "exec", "events", A)
        assert len([line for line, _ in kernel.requests if "/steps/" in line]) == 1

    def test_nothing_drives_the_terminal(self, serve: Serve) -> None:
        kernel = serve(a_run(status="failed"))
        for command, shows in (("events", "gone"), ("steps", "no\\x1b[2J"), ("get", A)):
            shown = kernel.on_terminal(300, "exec", command, A, NO_COLOR="1")
            assert shows in shown
            assert not [c for c in shown if unicodedata.category(c) in ("Cc", "Cf") and c != "\n"]

    def test_scripts_get_a_line_an_event(self, serve: Serve) -> None:
        run = a_run(status="failed")
        kernel = serve(run)
        lines = kernel.run("exec", "events", A).stdout.splitlines()
        assert len(lines) == len(run.events)
        for line, event in zip(lines, run.events, strict=True):
            number, date, clock, kind, payload = line.split(maxsplit=4)
            assert (int(number), kind) == (event["event_seq"], event["type"])
            assert f"{date}T{clock[:10]}Z" == event["occurred_at"]
            if "\\x" not in payload and "title" not in payload:
                assert json.loads(payload) == event["payload"]
        assert json.loads(kernel.run("exec", "events", A, "--json").stdout) == run.events

    def test_colours(self, serve: Serve) -> None:
        shown = serve(a_run(status="failed")).on_terminal(80, "exec", "events", A)
        assert '\x1b[2m{"execution_id"' in shown and "\x1b[31mexecution.failed\x1b[0m" in shown


class TestSteps:
    def test_targets_are_read_on_80_columns(self, serve: Serve) -> None:
        """What is left is shared by targets and arguments; an error has its part if there is one."""
        run = a_run()
        failed = run.steps.pop()
        shown = serve(run).on_terminal(80, "exec", "steps", A, NO_COLOR="1")
        for target in TARGETS[:3]:
            assert f"tool_call  {target} " in shown
        run.steps.append(failed)
        shown = serve(run).on_terminal(80, "exec", "steps", A, NO_COLOR="1")
        assert "failed               no\\x1b[2J\\x1b]0;tit…\n" in shown
