"""`exec export` and the tokens of `exec get` and `exec steps`."""

import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import FakeAgent, Kernel, eventually
from harness.cli import Cli
from harness.kernel import BINARY
from harness.scripted import Reply, ScriptedExecution, ScriptedKernel, Serve

A = "0199c2a4-7d10-7c4e-8abc-0123456789ab"
Usage = dict[str, int]


def model_call(run: ScriptedExecution, n: int, usage: Usage | None) -> None:
    more: dict[str, Any] = {} if usage is None else {"usage": usage}
    run.step("m", {"n": n}, kind="llm_call", **more)


def asked(kernel: ScriptedKernel, route: str) -> list[str]:
    return [line for line, _ in kernel.requests if f"{A}{route}" in line]


def part_files(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.name.endswith(".part")]


class TestTokens:
    def run(self) -> ScriptedExecution:
        run = ScriptedExecution(A, output=1)
        run.step("look")
        model_call(run, 1, {"input_tokens": 1200, "output_tokens": 85})
        model_call(run, 2, {"output_tokens": 7})
        model_call(run, 3, {"input_tokens": 5})
        model_call(run, 4, None)
        return run

    def test_of_the_steps(self, serve: Serve) -> None:
        shown = serve(self.run()).run("exec", "steps", A).stdout.splitlines()
        assert shown[0].split() == [
            "KIND",
            "TARGET",
            "ARGS",
            "STATUS",
            "DURATION",
            "TOKENS",
            "ERROR",
        ]
        assert [line.split()[-1] for line in shown[2:]] == [
            "1200/85",
            "?/7",
            "5/?",
            "succeeded",
        ]

    def test_no_column_without_any(self, serve: Serve) -> None:
        run = ScriptedExecution(A)
        run.step("look")
        model_call(run, 1, None)
        title = serve(run).run("exec", "steps", A).stdout.splitlines()[0]
        assert title.split() == [
            "KIND",
            "TARGET",
            "ARGS",
            "STATUS",
            "DURATION",
            "ERROR",
        ]

    def test_their_sum(self, serve: Serve) -> None:
        kernel = serve(self.run())
        shown = kernel.run("exec", "get", A).stdout.splitlines()
        assert "tokens          1205 in, 92 out" in shown
        told = json.loads(kernel.run("exec", "get", A, "--json").stdout)
        assert told.pop("usage") == {"input_tokens": 1205, "output_tokens": 92}
        assert told == kernel.executions[A].body
        assert asked(kernel, "/steps") == []  # their results may be large

    def test_none(self, serve: Serve) -> None:
        kernel = serve(ScriptedExecution(A))
        assert "tokens" not in kernel.run("exec", "get", A).stdout
        told = json.loads(kernel.run("exec", "get", A, "--json").stdout)
        assert told["usage"] == {"input_tokens": 0, "output_tokens": 0}

    def test_of_a_long_run(self, serve: Serve) -> None:
        run = ScriptedExecution(A)
        for n in range(1000):
            model_call(run, n, {"input_tokens": n, "output_tokens": 1})
        kernel = serve(run)
        told = json.loads(kernel.run("exec", "get", A, "--json").stdout)
        assert told["usage"] == {"input_tokens": 499500, "output_tokens": 1000}
        assert len(asked(kernel, "/events")) == 5  # 4000 events, and what follows them

    def test_numbers_that_are_too_large(self, serve: Serve) -> None:
        run = ScriptedExecution(A)
        for n in range(2):
            model_call(run, n, {"input_tokens": 2**62, "output_tokens": -3})
        told = json.loads(serve(run).run("exec", "get", A, "--json").stdout)
        assert told["usage"] == {"input_tokens": 2**63 - 1, "output_tokens": 0}

    def test_of_a_real_run(self, cli: Cli, kernel: Kernel, agent: FakeAgent) -> None:
        identity = cli.json("exec", "create", agent.id)["id"]
        attempt = agent.take_attempt(identity)
        body = json.dumps({"usage": {"prompt_tokens": 30, "completion_tokens": 4}})
        for n in range(3):
            step = attempt.proceed("m", {"n": n}, kind="llm_call")
            attempt.complete_step(step, {"status": 200, "body": body}).expect(200)
        assert cli.json("exec", "get", identity)["usage"] == {
            "input_tokens": 90,
            "output_tokens": 12,
        }
        attempt.complete().expect(204)
        fork = cli.json("exec", "fork", identity, "--at", "9")["id"]
        steps = cli.json("exec", "steps", fork)
        assert cli.json("exec", "get", fork)["usage"] == {
            name: sum(step["usage"][name] for step in steps)
            for name in ("input_tokens", "output_tokens")
        }


def told(path: str, size: int, *, steps: str, events: str) -> str:
    return (
        f"exported {A[:18]} to {path}: {steps}, {events}, {size / 1024:.1f} KiB; replay it with "
        f"'python -m rebuno.testing.replay {path} MODULE:FUNCTION'\n"
    )


class TestExport:
    def run(self, **fields: Any) -> ScriptedExecution:
        run = ScriptedExecution(A, **fields)
        run.previous = {"turn": 1}
        run.step("look", {"a": "é\n"}, result=[1, 2])
        model_call(run, 1, {"input_tokens": 3, "output_tokens": 4})
        return run

    def test_to_a_file(self, serve: Serve, tmp_path: Path) -> None:
        run = self.run(output=1)
        done = serve(run).run("exec", "export", A[:18], "--output", "run.json", cwd=tmp_path)
        assert (done.returncode, done.stdout) == (0, "")
        text = (tmp_path / "run.json").read_text()
        assert done.stderr == told(
            "run.json",
            len(text.encode()),
            steps="2 steps",
            events=f"{len(run.events)} events",
        )
        assert text.startswith('{"rebuno_export":1,\n')
        content = json.loads(text)
        assert content.pop("exported_at").endswith("Z")
        assert content == {
            "rebuno_export": 1,
            "execution": run.body,
            "previous": {"turn": 1},
            "steps": run.steps,
            "events": run.events,
            "usage": {"input_tokens": 3, "output_tokens": 4},
        }
        assert os.listdir(tmp_path) == ["run.json"]

    @pytest.mark.parametrize("words", [(), ("--output", "-"), ("--output=-",)])
    def test_to_standard_output(self, serve: Serve, words: tuple[str, ...]) -> None:
        done = serve(self.run(output=1)).run("exec", "export", A, *words)
        assert (done.returncode, done.stderr) == (0, "")
        assert len(json.loads(done.stdout)["steps"]) == 2

    def test_an_empty_run(self, serve: Serve) -> None:
        content = json.loads(serve(ScriptedExecution(A)).run("exec", "export", A).stdout)
        assert (content["previous"], content["steps"], content["events"]) == (
            None,
            [],
            [],
        )

    def test_one_that_goes_on(self, serve: Serve, tmp_path: Path) -> None:
        run = ScriptedExecution(A, status="running")
        run.event("execution.created", by="x" * 1000)
        kernel = serve(run)
        done = kernel.run("exec", "export", A, "--output", "run.json", cwd=tmp_path)
        assert done.returncode == 0
        size = (tmp_path / "run.json").stat().st_size
        assert done.stderr == told("run.json", size, steps="0 steps", events="1 event") + (
            f"{A[:18]} goes on: it is exported as far as it has got\n"
        )
        content = json.loads((tmp_path / "run.json").read_text())
        assert content["execution"]["status"] == "running"

    def test_pages_are_bounded_by_bytes(self, serve: Serve) -> None:
        run = ScriptedExecution(A)
        for n in range(40):
            run.step("look", {"n": n}, result="x" * 2**20)
        kernel = serve(run)
        assert len(json.loads(kernel.run("exec", "export", A).stdout)["steps"]) == 40
        sizes = [
            int(line.partition("limit=")[2].partition("&")[0]) for line in asked(kernel, "/steps")
        ]
        assert (sizes[0], set(sizes[1:])) == (8, {3})

    def test_it_replaces_a_file(self, serve: Serve, tmp_path: Path) -> None:
        (tmp_path / "run.json").write_text("before")
        kernel = serve(self.run(output=1))
        assert kernel.run("exec", "export", A, "--output", "run.json", cwd=tmp_path).returncode == 0
        assert json.loads((tmp_path / "run.json").read_text())["rebuno_export"] == 1

    def test_of_a_real_run(self, cli: Cli, kernel: Kernel, agent: FakeAgent, session: str) -> None:
        for turn in (1, 2):
            identity = cli.json("exec", "create", agent.id, '{"a": 1.0}', "--session", session)[
                "id"
            ]
            attempt = agent.take_attempt(identity)
            attempt.record("look", {"n": turn}, {"found": 1e2})
            attempt.complete(turn, state={"turn": turn}).expect(204)
        assert cli.run("exec", "export", identity, "--output", "run.json").returncode == 0
        text = (cli.folder / "run.json").read_text()
        content = json.loads(text)
        client = kernel.client()
        assert content["execution"] == client.execution(identity)
        assert content["previous"] == {"turn": 1}
        assert content["steps"] == client.get(f"/v0/executions/{identity}/steps").json
        assert content["events"] == client.events(identity)
        assert '"input":{"a": 1.0}' in text and '"found": 100.0' in text  # as they came


class TestNoHalfFile:
    """What stood under the name still does, and nothing lies beside it."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Iterator[Path]:
        (tmp_path / "run.json").write_text("before")
        yield tmp_path
        assert (tmp_path / "run.json").read_text() == "before"
        assert os.listdir(tmp_path) == ["run.json"]

    def breaking(self, serve: Serve, answer: Callable[[Any], Reply]) -> ScriptedKernel:
        """The log cannot be had."""
        run = ScriptedExecution(A)
        run.step("look")
        kernel = serve(run)
        kernel.on[f"GET /v0/executions/{A}/events"] = answer
        return kernel

    def test_the_kernel_fails(self, serve: Serve, folder: Path) -> None:
        kernel = self.breaking(serve, lambda _: (500, {"code": "internal_error", "message": "no"}))
        done = kernel.run("exec", "export", A, "--output", "run.json", cwd=folder)
        assert (done.returncode, done.stderr) == (1, "error: no (internal_error)\n")

    def test_there_is_no_such_run(self, serve: Serve, folder: Path) -> None:
        done = serve().run("exec", "export", A, "--output", "run.json", cwd=folder)
        assert done.returncode == 1

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
    def test_an_interrupt(self, serve: Serve, folder: Path, number: int) -> None:
        asked, go_on = threading.Event(), threading.Event()

        def wait(_: Any) -> Reply:
            asked.set()
            go_on.wait(30)
            return 200, []

        kernel = self.breaking(serve, wait)
        process = subprocess.Popen(
            [BINARY, "exec", "export", A, "--output", "run.json"],
            cwd=folder,
            env=kernel.environment({}),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            assert asked.wait(30)
            assert eventually(lambda: part_files(folder), 10.0)
            process.send_signal(number)
            assert process.wait(30) == 128 + number
        finally:
            go_on.set()
            process.kill()
            process.wait()

    def test_a_folder_that_is_not_there(self, serve: Serve, folder: Path) -> None:
        done = serve(ScriptedExecution(A)).run(
            "exec", "export", A, "--output", "none/run.json", cwd=folder
        )
        assert done.returncode == 1
        assert done.stderr == "error: cannot write none/run.json: its folder does not exist\n"


def test_a_device_is_not_replaced(serve: Serve) -> None:
    done = serve(ScriptedExecution(A)).run("exec", "export", A, "--output", "/dev/null")
    assert done.returncode == 1
    assert done.stderr == "error: cannot write /dev/null: it is no regular file\n"


def test_a_full_disk(serve: Serve, tmp_path: Path) -> None:
    run = ScriptedExecution(A)
    run.step("look", result="x" * 100_000)
    command = f"ulimit -f 16; trap '' XFSZ; {BINARY} exec export {A} --output run.json"
    done = subprocess.run(
        ["bash", "-c", command],
        check=False, capture_output=True, text=True, cwd=tmp_path,
        env=serve(run).environment({}), timeout=30,
    )  # fmt: skip
    assert done.returncode == 1
    assert "cannot write the output: File too large" in done.stderr
    assert os.listdir(tmp_path) == []
