"""`exec diff` against a kernel whose executions the test has written down."""

import json
import re
from typing import Any

import pytest

from harness.scripted import ScriptedExecution, ScriptedKernel, Serve

A = "0199c2a4-7d10-7c4e-8abc-0123456789ab"
B = "0199c2a4-91b3-7f02-8abc-0123456789ab"
OUTPUT = {"answer": 1}


def run(identity: str, *targets: str, **fields: Any) -> ScriptedExecution:
    execution = ScriptedExecution(identity, **{"output": OUTPUT, **fields})
    for target in targets:
        execution.step(target, {"n": target})
    return execution


def lines(kernel: ScriptedKernel, code: int) -> list[str]:
    done = kernel.run("exec", "diff", A, B)
    assert (done.returncode, done.stderr) == (code, ""), done
    return done.stdout.splitlines()


def as_json(kernel: ScriptedKernel, code: int) -> Any:
    done = kernel.run("exec", "diff", A, B, "--json")
    assert (done.returncode, done.stderr) == (code, ""), done
    return json.loads(done.stdout)


class TestExitCodes:
    """As diff's: 0 the same, 1 different, 2 trouble."""

    def test_same(self, serve: Serve) -> None:
        kernel = serve(run(A, "x", "y"), run(B, "x", "y"))
        assert lines(kernel, 0) == [
            f"--- {A[:18]}  coder, completed",
            f"+++ {B[:18]}  coder, completed",
            "  2 steps are the same",
            '  both completed: {"answer":1}',
            "nothing differs: 2 steps are the same",
        ]
        assert as_json(kernel, 0)["same"] is True

    @pytest.mark.parametrize(
        "fields",
        [
            {"input": {"task": 2}},
            {"agent_id": "other"},
            {"output": {"answer": 2}},
            {"status": "failed", "failure_reason": "no luck"},
        ],
        ids=str,
    )
    def test_different_without_a_step(self, serve: Serve, fields: dict[str, Any]) -> None:
        kernel = serve(run(A, "x"), run(B, "x", **fields))
        assert "nothing differs" not in lines(kernel, 1)[-1]
        told = as_json(kernel, 1)
        assert told["same"] is False and told["differences"] == []
        assert set(told["executions_differ_in"]) == set(fields)

    @pytest.mark.parametrize(
        "words",
        [(A, "ffff"), ("zz", A), (A,), (A, B, "x"), (A, B[:-1] + "0"), (A, "0199"), (A, A, "--x")],
    )
    def test_trouble(self, serve: Serve, words: tuple[str, ...]) -> None:
        done = serve(run(A), run(B)).run("exec", "diff", *words)
        assert (done.returncode, done.stdout) == (2, "") and done.stderr.startswith("error: ")

    def test_no_kernel(self, serve: Serve) -> None:
        kernel = serve()
        done = kernel.run("exec", "diff", A, B, "--url", "http://127.0.0.1:1")
        assert done.returncode == 2 and "cannot reach" in done.stderr

    def test_prefixes_and_one_with_itself(self, serve: Serve) -> None:
        kernel = serve(run(A, "x"), run(B, "y"))
        assert kernel.run("exec", "diff", A[:14], A[:13].upper()).returncode == 0


class TestSteps:
    def test_arguments_and_results_in_full(self, serve: Serve) -> None:
        a, b = run(A, "first"), run(B, "first")
        a.step("write", {"path": "/etc/x", "text": "t"}, result={"ok": True, "n": 1})
        b.step("write", {"path": "/tmp/x", "text": "t"}, result={"n": 2, "ok": True})
        assert lines(serve(a, b), 1)[2:] == [
            "  1 step is the same",
            "  step 2  tool_call write",
            '-   args.path  "/etc/x"',
            '+   args.path  "/tmp/x"',
            "-   result.n  1",
            "+   result.n  2",
            '  both completed: {"answer":1}',
            "1 step is the same, 1 has other arguments",
        ]

    def test_spelling_makes_no_difference(self, serve: Serve) -> None:
        a, b = run(A), run(B)
        a.step("x", result={"a": 1, "b": "\u00e9"})
        b.step("x", result={"b": "\u00e9", "a": 1})
        assert lines(serve(a, b), 0)[-1] == "nothing differs: 1 step is the same"

    def test_bodies_of_answers(self, serve: Serve) -> None:
        """JSON in a string is compared inside."""
        a, b = run(A), run(B)
        for execution, word in ((a, "tea"), (b, "coffee")):
            message = {"message": {"content": word, "role": "assistant"}}
            body = json.dumps({"pad": "x" * 300, "choices": [message]})
            execution.step("m", kind="llm_call", result={"status": 200, "body": body})
        path = "result.body.choices[0].message.content"
        assert lines(serve(a, b), 1)[3:5] == [
            f'-   {path}  "tea"',
            f'+   {path}  "coffee"',
        ]

    @pytest.mark.parametrize("name", ["t", "text", "a_long_name" * 30])
    @pytest.mark.parametrize("letter", ["x", "\u00e9"])
    def test_long_texts_show_where_they_differ(self, serve: Serve, name: str, letter: str) -> None:
        a, b = run(A), run(B)
        places = [(n, m) for n in (0, 60, 150, 182, 186, 1000) for m in (0, 3, 1000)]
        for before, after in places:
            for execution, mark in ((a, "1"), (b, "2")):
                text = letter * before + mark + letter * after
                execution.step("t", before * 10000 + after, result={name: text})
        shown = [line for line in lines(serve(a, b), 1)[2:] if line[0] in "-+"]
        assert len(shown) == 2 * len(places)
        for n, line in enumerate(shown):
            assert "12"[n % 2] in line.split("  ")[-1] and len(line) <= 200, line

    def test_policy(self, serve: Serve) -> None:
        a, b = run(A), run(B)
        a.step("deploy", rule="all")
        b.step("deploy", rule="ask", held="granted", by="ada")
        a.step("mail", rule="all")
        b.step("mail", rule="no-mail", denied=True)
        a.step("look", rule="all")
        b.step("look", rule="reads")
        shown = lines(serve(a, b), 1)
        assert shown[2:10] == [
            "  step 1  tool_call deploy",
            "-   decision  allowed by rule all",
            "+   decision  held by rule ask, granted by ada",
            "  step 2  tool_call mail",
            '-   result    "done"',
            "-   decision  allowed by rule all",
            "+   decision  denied by rule no-mail",
            "-   status    succeeded",
        ]
        told = as_json(serve(a, b), 1)
        assert [d["differs_in"] for d in told["differences"]] == [
            ["decision"],
            ["decision", "status", "result"],
            ["decision"],
        ]
        decisions = [(d["b"]["decision"], d["b"]["rule_id"]) for d in told["differences"]]
        assert decisions == [("granted", "ask"), ("denied", "no-mail"), ("allowed", "reads")]
        assert told["differences"][0]["b"]["decided_by"] == "ada"

    def test_a_copied_grant_is_the_same(self, serve: Serve) -> None:
        """A fork has the step's events, not the approval's."""
        a, b = run(A), run(B, forked_from=A, fork_seq=9)
        a.step("deploy", rule="ask", held="granted", by="ada")
        b.step("deploy", rule="ask", held="granted")
        b.events = [e for e in b.events if not e["type"].startswith("approval.")]
        shown = lines(serve(a, b), 0)
        assert shown[1] == f"+++ {B[:18]}  coder, completed, a fork of the other at event 9"

    def test_errors(self, serve: Serve) -> None:
        a, b = run(A), run(B)
        a.step("x", error={"message": "no luck", "code": 7})
        b.step("x", error={"message": "no way", "code": 7})
        a.step("y")
        b.step("y", error={"message": "broken"})
        assert lines(serve(a, b), 1)[2:10] == [
            "  step 1  tool_call x",
            '-   error.message  "no luck"',
            '+   error.message  "no way"',
            "  step 2  tool_call y",
            '-   result    "done"',
            '+   error     {"message":"broken"}',
            "-   status    succeeded",
            "+   status    failed",
        ]

    def test_what_follows(self, serve: Serve) -> None:
        a, b = (
            run(A, "one", "two", "gone", "three"),
            run(B, "one", "two", "three", "new", "newer"),
        )
        assert lines(serve(a, b), 1)[2:] == [
            "  2 steps are the same",
            '- step 3  tool_call gone  {"n":"gone"}',
            '-   allowed, no policy; succeeded: "done"',
            "  1 step is the same",
            '+ step 4  tool_call new  {"n":"new"}',
            '+   allowed, no policy; succeeded: "done"',
            '+ step 5  tool_call newer  {"n":"newer"}',
            '+   allowed, no policy; succeeded: "done"',
            '  both completed: {"answer":1}',
            "3 steps are the same, 1 is only in the first run, 2 are only in the second run",
        ]

    def test_another_order(self, serve: Serve) -> None:
        told = as_json(serve(run(A, "x", "y"), run(B, "y", "x")), 1)
        (moved,) = told["differences"]
        assert moved["differs_in"] == ["order"]
        assert {moved["a"]["place"], moved["b"]["place"]} == {1, 2}

    def test_repeats_are_told_apart(self, serve: Serve) -> None:
        a, b = run(A), run(B)
        for execution, times in ((a, 3), (b, 2)):
            for _ in range(times):
                execution.step("poll", {"q": 1})
        assert '- step 3  tool_call poll #3  {"q":1}' in lines(serve(a, b), 1)
        (only,) = as_json(serve(a, b), 1)["differences"]
        assert only["a"]["occurrence"] == 2 and "b" not in only and "differs_in" not in only

    def test_one_that_goes_on(self, serve: Serve) -> None:
        b = run(B, "x", status="running", output=None)
        b.step("y", {"n": "y"}, status="executing")
        done = serve(run(A, "x", "y"), b).run("exec", "diff", A, B)
        assert done.returncode == 1
        assert done.stderr == f"{B[:18]} goes on: it is compared as far as it has got\n"
        assert "-   status    succeeded\n+   status    executing\n" in done.stdout

    def test_json(self, serve: Serve) -> None:
        a, b = run(A, "one"), run(B, "one", forked_from=A, fork_seq=5)
        a.step("x", {"big": "a" * 5000}, result="r")
        b.step("x", {"big": "b" * 5000}, result="r")
        a.step("y", result=1)
        b.step("y", result=2)
        told = as_json(serve(a, b), 1)
        assert told["a"] == {"id": A, "agent_id": "coder", "status": "completed", "steps": 3}
        assert told["b"] == {**told["a"], "id": B, "forked_from": A, "fork_seq": 5}
        assert (told["same_steps_before"], told["same_steps"]) == (1, 1)
        assert told["first_difference"] == {"a": a.steps[1], "b": b.steps[1]}
        assert [d["differs_in"] for d in told["differences"]] == [["args"], ["result"]]
        assert all("args" not in d["a"] for d in told["differences"])
        assert told["executions_differ_in"] == []


class TestLarge:
    STEPS = 2000

    def test_pages(self, serve: Serve) -> None:
        """Every page of both, and payloads asked for only where they are shown."""
        a, b = run(A), run(B)
        for n in range(self.STEPS):
            a.step("t", {"n": n})
            b.step("t", {"n": n if n < 10 else -n})
        kernel = serve(a, b)
        shown = lines(kernel, 1)
        assert shown[-1] == f"10 steps are the same, {self.STEPS - 10} have other arguments"
        assert shown[-3] == f"  step {self.STEPS}  tool_call t: other arguments"
        asked = [line for line, _ in kernel.requests]
        one_step = [line for line in asked if re.search(r"/steps/\w", line)]
        assert len(one_step) == 40  # the first twenty differences, of either run
        pages = (self.STEPS // 200 + 1) + (4 * self.STEPS // 1000 + 1)  # the last ones are empty
        assert len(asked) - len(one_step) == 2 * (1 + pages)
        assert len(as_json(kernel, 1)["differences"]) == self.STEPS - 10


class TestTerminal:
    def kernel(self, serve: Serve) -> ScriptedKernel:
        long = "word " * 80
        a, b = (
            run(A, "one"),
            run(B, "one", status="failed", output=None, failure_reason="x" * 300),
        )
        a.step("claude", {"messages": [{"content": long + "left"}]}, kind="llm_call")
        b.step("claude", {"messages": [{"content": long + "right"}]}, kind="llm_call")
        a.step("\x1b[2Jw\u202ex" + "y" * 200, {"t": "\x1b[1m" + "\u4f60" * 100}, result="\x07")
        b.step("other", error={"message": "\x1b]0;t\x07"})
        return serve(a, b)

    @pytest.mark.parametrize("columns", [30, 80, 119, 120, 140, 200])
    def test_no_line_is_wider(self, serve: Serve, columns: int) -> None:
        shown = self.kernel(serve).on_terminal(columns, "exec", "diff", A, B, NO_COLOR="1")
        wide = {"\u4f60": 2}
        for line in shown.splitlines():
            assert sum(wide.get(c, 1) for c in line) <= columns, line
        assert "\x1b" not in shown and "\u202e" not in shown and "\x07" not in shown
        assert ("\u2502" in shown) == (columns >= 120)

    @pytest.mark.parametrize("columns", [30, 50, 80, 120, 160])
    def test_a_difference_is_in_sight(self, serve: Serve, columns: int) -> None:
        a, b = run(A), run(B)
        for execution, mark in ((a, "1"), (b, "2")):
            body = json.dumps({"choices": [{"message": {"content": "w" * 300 + mark}}]})
            execution.step("m", result={"body": body})
        kernel = serve(a, b)
        shown = kernel.on_terminal(columns, "exec", "diff", A, B, NO_COLOR="1").splitlines()
        sides = shown[2].split("\u2502") if columns >= 120 else shown[3:5]
        assert [side.rstrip()[-2:] for side in sides] == ['1"', '2"'], shown

    def test_side_by_side(self, serve: Serve) -> None:
        shown = self.kernel(serve).on_terminal(140, "exec", "diff", A, B, NO_COLOR="1")
        titles, same, header, value, *_ = shown.splitlines()
        assert titles.split("\u2502")[1].strip().startswith(f"{B[:18]}  coder, failed")
        assert same == "  1 step is the same"
        assert header == "  step 2  llm_call claude"
        left, right = value.split("\u2502")
        assert left.rstrip().endswith('word left"') and right.endswith('word right"')
        assert re.search(r"\n {60,}> step 3  tool_call other", shown)
        assert re.search(r"step 3  tool_call \\x1b.*<\n", shown)

    def test_colours(self, serve: Serve) -> None:
        kernel = self.kernel(serve)
        for columns in (80, 140):
            shown = kernel.on_terminal(columns, "exec", "diff", A, B)
            assert "\x1b[31m" in shown and "\x1b[32m" in shown
            assert "\x1b" not in kernel.on_terminal(columns, "exec", "diff", A, B, TERM="dumb")

    def test_a_full_disk_is_trouble(self, serve: Serve) -> None:
        shown = self.kernel(serve).on_terminal(
            80, "exec", "diff", A, B, "> /dev/full;", "echo", "code $?"
        )
        assert "No space left" in shown and "code 2" in shown
