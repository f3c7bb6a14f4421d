"""script/demo's programme: what its summary says is in the logs, whoever decides, whatever goes wrong, and nothing is left."""

import json
import os
import pty
import re
import select
import shlex
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from fcntl import ioctl
from pathlib import Path
from typing import Any

import pytest

from harness.kernel import BINARY, REPOSITORY, Kernel
from harness.waiting import Deadline, eventually

DEMO_S = 60.0  # what is promised, after the build
STOP_S = 20.0
HERE = REPOSITORY / "examples" / "demo"
COMMAND = [sys.executable, str(HERE / "run.py")]
TEST, CODE = "tests/test_basket.py", "basket.py"
SETTLED = ("step.succeeded", "step.failed", "step.denied", "step.cancelled")
KEY = "sk-not-to-be-seen-anywhere"


# Running it


def environment(folder: Path, **more: str) -> dict[str, str]:
    """`folder`: for temporary files, of this demo alone."""
    (folder / "tmp").mkdir()
    account = ("OPENAI_API_KEY", "OPENAI_BASE_URL", "LLM_MODEL")
    own = {k: v for k, v in os.environ.items() if not k.startswith("REBUNO_") and k not in account}
    demo = {"REBUNO_BIN": str(BINARY), "TERM": "xterm", "TMPDIR": str(folder / "tmp"), "COLUMNS": "160"}
    return {**own, **demo, **more}


def start(folder: Path, *args: str, **more: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [*COMMAND, *args],
        env=environment(folder, **more),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ended(process: "subprocess.Popen[str]", seconds: float = DEMO_S) -> str:
    try:
        return process.communicate(timeout=seconds)[0]
    finally:
        if process.poll() is None:
            process.terminate()
            process.communicate()


def watched(folder: Path, columns: int, answers: list[str], **more: str) -> tuple[int, str]:
    """Runs the demo on a terminal and answers its question, one line each time that it asks."""
    master, slave = pty.openpty()
    ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    env = environment(folder, **more)
    del env["COLUMNS"]
    process = subprocess.Popen(COMMAND, env=env, stdin=slave, stdout=slave, stderr=slave, close_fds=True)
    os.close(slave)
    shown, asked, deadline = b"", 0, Deadline(DEMO_S)
    try:
        while not deadline.passed:
            if not select.select([master], [], [], 1.0)[0]:
                continue
            try:
                shown += os.read(master, 65536)
            except OSError:  # the other side is closed: it has ended
                return process.wait(DEMO_S), shown.decode().replace("\r\n", "\n")
            if shown.count(b"grant or deny? [g/d]") > asked:
                os.write(master, answers[asked].encode() + b"\n")
                asked += 1
        raise AssertionError(f"still running after {DEMO_S} s:\n{shown.decode()}")
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
        os.close(master)


def assert_nothing_left(folder: Path) -> None:
    """No temporary file, and no process that was started for one."""
    assert list((folder / "tmp").iterdir()) == []
    mark, left = str(folder).encode(), []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            known = (process / "environ").read_bytes() + (process / "cmdline").read_bytes()
            known += os.readlink(process / "cwd").encode()
        except OSError:  # it has ended, or is another user's
            continue
        if mark in known:
            left.append(known[:300])
    assert left == []


# Reading what it did


class Run:
    """One execution, as the kernel tells of it."""

    def __init__(self, kernel: Kernel, row: dict[str, Any]) -> None:
        client = kernel.client(token=None)
        self.row = row
        self.events = client.get(f"/v0/executions/{row['id']}/events?limit=1000").expect(200).json
        self.steps = client.get(f"/v0/executions/{row['id']}/steps").expect(200).json

    def of(self, target: str, *types: str) -> list[dict[str, Any]]:
        """The step events of a tool, or of the model (`llm_call`)."""
        return [
            event
            for event in self.events
            if event["type"] in types and target in (event["payload"]["target"], event["payload"]["step_type"])
        ]

    def live(self, target: str, *types: str) -> list[dict[str, Any]]:
        """The same of a fork, without what was copied."""
        started = self.all_of("execution.started")[0]["event_seq"]
        return [event for event in self.of(target, *types) if event["event_seq"] > started]

    def all_of(self, event_type: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["type"] == event_type]

    def settled_before(self, seq: int) -> list[dict[str, Any]]:
        return [e for e in self.events if e["type"] in SETTLED and e["event_seq"] < seq]

    def file(self, path: str) -> str:
        return Path(self.all_of("resource.bound")[0]["payload"]["binding"]["path"], path).read_text()


@contextmanager
def logs(kept: Path, folder: Path) -> Iterator[tuple[Run, Run]]:
    """The first run and the fork, from a kernel on the database that the demo kept."""
    kernel = Kernel(folder, mode="dev", args=["--db", str(kept / "rebuno.db")]).start()
    try:
        rows = kernel.client(token=None).get("/v0/executions").expect(200).json["executions"]
        fork, first = sorted(rows, key=lambda row: "forked_from" not in row or not row["forked_from"])
        assert fork["forked_from"] == first["id"]
        yield Run(kernel, first), Run(kernel, fork)
    finally:
        kernel.kill()


def stated(shown: str, pattern: str) -> tuple[str, ...]:
    """What the summary says; `~` stands for a number."""
    summary = " ".join(shown.split("What the logs say")[1].split())
    found = re.search(pattern.replace("~", r"(\d+)"), summary)
    assert found, f"no {pattern!r} in {summary}"
    return found.groups()


def numbers(shown: str, pattern: str) -> tuple[int, ...]:
    return tuple(int(group) for group in stated(shown, pattern))


def pull_requests(kept: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in (kept / "basket.git" / "pulls").glob("*")]


def git(kept: Path, *words: str) -> str:
    command = ["git", "--git-dir", str(kept / "basket.git"), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def assert_first_run_is_as_stated(shown: str, first: Run) -> None:
    assert [event["event_seq"] for event in first.events] == list(range(1, len(first.events) + 1))
    assert numbers(shown, "ok its log events 1 to ~, without a gap") == (len(first.events),)
    killed, replayed = numbers(
        shown, r"ok agent killed at #~; the new one replayed ~ steps in [\d.]+ s; run again: shell"
    )
    cut_off = first.events[killed - 1]
    assert (cut_off["type"], cut_off["payload"]["target"]) == ("step.executing", "shell")
    again = [e for e in first.of("shell", "step.executing") if e["payload"]["step_id"] == cut_off["payload"]["step_id"]]
    assert [e["event_seq"] for e in again][:1] == [killed]
    assert len(again) == 2
    second_delivery = next(e for e in first.all_of("dispatch.acked") if e["event_seq"] > killed)
    assert replayed == len(first.settled_before(second_delivery["event_seq"])) > 0
    killed, kept = numbers(shown, r"ok kernel killed at #~, away for [\d.]+ s; all ~ events from before")
    thought = first.events[killed - 1]
    assert (thought["type"], thought["payload"]["step_type"]) == ("step.executing", "llm_call")
    assert killed <= kept <= len(first.events)


def assert_nothing_happened_twice(shown: str, *runs: Run) -> None:
    replayable = 0
    for run in runs:
        outcomes = [e["payload"]["step_id"] for e in run.events if e["type"] in SETTLED]
        assert len(outcomes) == len(set(outcomes))
        for delivery in run.all_of("dispatch.acked"):
            before = run.settled_before(delivery["event_seq"])
            replayable += sum(event["type"] != "step.denied" for event in before)
    by_the_logs, counted = numbers(shown, "ok replays ~ by the logs; the kernel counted ~")
    assert 0 < by_the_logs <= replayable  # an agent may have died before it got to the end of them
    assert by_the_logs <= counted


def assert_fork_is_as_stated(shown: str, first: Run, fork: Run) -> None:
    at = fork.all_of("execution.forked")[0]["payload"]["fork_seq"]
    started = fork.all_of("execution.started")[0]["event_seq"]
    copied = fork.settled_before(started)
    usages = [event["payload"].get("usage", {}) for event in copied]
    tokens = sum(usage.get("input_tokens", 0) + usage.get("output_tokens", 0) for usage in usages)
    assert tokens > 0
    own = len(fork.steps) - len(copied)
    pattern = "ok fork completed after .* s; ~ steps taken over, up to #~, with ~ tokens not paid again; ~ of its own"
    assert numbers(shown, pattern) == (len(copied), at, tokens, own)
    assert [e["payload"]["target"] for e in copied] == [e["payload"]["target"] for e in first.settled_before(at + 1)]
    denied = [e["payload"] for e in fork.events if e["type"] == "step.denied" and e["event_seq"] > started]
    assert stated(shown, "refused (.*) ok its source") == (
        ", ".join(f"{p['target']} by {p['rule_id']}" for p in denied),
    )
    assert denied != []
    assert fork.of("open_pr", "step.executing") == []  # a fork repeats no effect unasked


def side_by_side(shown: str) -> list[tuple[str, str]]:
    """The two columns of the table, which is 160 wide."""
    table = shown.split("side by side")[1].split("$ rebuno exec diff")[0].split("first run ")[1]
    return [(line[:78].strip(), line[81:].strip()) for line in table.splitlines()[1:]]


def covered(texts: list[str]) -> list[int]:
    seqs: list[int] = []
    for text in filter(None, texts):
        first, last = re.match(r"#(\d+)(?:-(\d+))?", text).groups()  # type: ignore[union-attr]
        seqs += range(int(first), int(last or first) + 1)
    return seqs


# Tests


def test_two_at_once_say_what_is_in_their_logs(tmp_path: Path) -> None:
    """One of them with bubblewrap where it works, one without. Nobody is at the terminal."""
    useless = tmp_path / "bin" / "bwrap"
    useless.parent.mkdir()
    useless.write_text("#!/bin/sh\nexit 1\n")
    useless.chmod(0o755)
    folders = [tmp_path / "one", tmp_path / "two of them"]
    paths = [os.environ["PATH"], f"{useless.parent}:{os.environ['PATH']}"]
    for folder in folders:
        folder.mkdir()
    started = [
        start(folder, "--keep", str(folder / "kept"), PATH=path) for folder, path in zip(folders, paths, strict=True)
    ]
    ends = [(ended(process, 2 * DEMO_S), process.returncode) for process in started]
    for folder, (shown, code) in zip(folders, ends, strict=True):
        assert code == 0, shown
        assert "so the demo grants it" in shown
        assert "[g/d]" not in shown
        assert "\x1b" not in shown
        assert f"$ {shlex.join([str(BINARY), 'dev', '--db', str(folder / 'kept' / 'rebuno.db')])}\n" in shown
        assert_nothing_left(folder)
        with logs(folder / "kept", folder / "kernel") as (first, fork):
            assert_all_is_as_stated(shown, folder / "kept", first, fork)
    assert "NOT isolated" in ends[1][0]


def assert_all_is_as_stated(shown: str, kept: Path, first: Run, fork: Run) -> None:
    assert "WRONG" not in shown
    assert_first_run_is_as_stated(shown, first)
    assert_fork_is_as_stated(shown, first, fork)
    for run in (first, fork):
        assert run.row["status"] == "completed"
    assert_nothing_happened_twice(shown, first, fork)
    live = first.of("llm_call", "step.executing") + fork.live("llm_call", "step.executing")
    recorded, asked = numbers(shown, "ok model ~ answers recorded; the model was asked ~x")
    assert recorded == len({event["payload"]["step_id"] for event in live})
    assert recorded <= asked <= len(live)
    # One pull request, of the first run's commit.
    (request,) = pull_requests(kept)
    assert numbers(shown, "ok open_pr asked for ~x, carried out ~x; pull requests in the repository: ~") == (1, 1, 1)
    assert len(first.of("open_pr", "step.executing")) == 1
    heads = git(kept, "for-each-ref", "--format=%(refname:short) %(objectname)", "refs/heads/rebuno").split()
    assert heads == [request["branch"], request["commit"]]
    # The first run changed the test, the fork the code; each file is as the repository has it in the other one.
    for run, mine, other in ((first, TEST, CODE), (fork, CODE, TEST)):
        assert run.file(mine) != git(kept, "show", f"main:{mine}")
        assert run.file(other) == git(kept, "show", f"main:{other}")
    assert git(kept, "show", f"{request['commit']}:{TEST}") == first.file(TEST)
    assert set(stated(shown, "sandboxes differ in (.*), (.*) ok replays")) == {TEST, CODE}
    # Both logs, each event once.
    rows = side_by_side(shown)
    for column, run in enumerate((first, fork)):
        assert covered([row[column] for row in rows]) == [event["event_seq"] for event in run.events]


@pytest.mark.parametrize("columns", [80, 140])
def test_a_viewer_grants(tmp_path: Path, columns: int) -> None:
    code, shown = watched(tmp_path, columns, ["", "perhaps", "g"])
    assert code == 0, shown
    assert "\x1b[" in shown
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert "approval grant" in plain
    assert plain.count("g or d: g grants it, d denies it") == 2
    assert "--by viewer" in plain
    assert numbers(plain, "ok open_pr asked for ~x, carried out ~x; pull requests in the repository: ~") == (1, 1, 1)
    ours = [line for line in plain.splitlines() if line[:3] == "   " or re.match(r" +[\d.]+s  |#\d|-- ", line)]
    commands = [line for line in ours if line.startswith("   $ ")]  # not cut, so that they can be copied
    assert max(len(line) for line in ours if line not in commands) <= columns
    assert_nothing_left(tmp_path)


def test_a_viewer_refuses(tmp_path: Path) -> None:
    code, shown = watched(tmp_path, 100, ["deny"], NO_COLOR="1")
    assert code == 0, shown
    assert "NOT ALLOWED: not like this" in shown
    assert numbers(shown, "ok open_pr asked for ~x, carried out ~x; pull requests in the repository: ~") == (1, 0, 0)
    assert stated(shown, "sandboxes differ in (.*), (.*) ok replays") == (CODE, TEST)
    assert "WRONG" not in shown
    assert_nothing_left(tmp_path)


@contextmanager
def scripted(folder: Path, turns: list[Any]) -> Iterator[str]:
    script = folder / "script.json"
    script.write_text(json.dumps({"by": "conversation", "turns": turns}))
    command = [sys.executable, "-m", "rebuno.testing.model", str(script)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().split()[-1]
    finally:
        process.terminate()
        process.communicate()


def test_a_model_of_the_viewers_own(tmp_path: Path) -> None:
    """One that repairs the code at once, after mistakes of its own; its key is written down nowhere."""
    repaired = (HERE / "project" / CODE).read_text().replace("- discount", "* (100 - discount) // 100")
    turns = [
        {"tools": [{"name": "no_such_tool", "args": {}}, {"name": "read_file", "args": {"file": CODE}}]},
        {"tool": "read_file", "args": {"path": "../../etc/passwd"}},
        {"tool": "write_file", "args": {"path": CODE, "content": repaired}},
        {"tool": "shell", "args": {"command": "python3 -m unittest"}},
        {"tool": "open_pr", "args": {"title": "Take the discount in percent", "body": "As it says."}},
        "Done.",
    ]
    kept = tmp_path / "kept"
    with scripted(tmp_path, turns) as url:
        process = start(tmp_path, "--keep", str(kept), OPENAI_BASE_URL=url, OPENAI_API_KEY=KEY, LLM_MODEL="mine")
        shown = ended(process)
    assert process.returncode == 0, shown
    assert "the model is mine" in shown
    with logs(kept, tmp_path / "kernel") as (first, fork):
        assert_first_run_is_as_stated(shown, first)
        assert_fork_is_as_stated(shown, first, fork)
        assert first.file(CODE) == fork.file(CODE) == repaired
        assert first.row["output"] == {"answer": "Done."}
        wrong = [step for step in first.steps if step["target"] == "read_file"]
        assert [step["status"] for step in wrong] == ["failed"]
    assert stated(shown, "(sandboxes are the same)")
    assert len(pull_requests(kept)) == 1
    leaks = [path for path in kept.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]
    assert leaks == []
    assert KEY not in shown


def test_a_model_that_does_not_answer(tmp_path: Path) -> None:
    process = start(tmp_path, OPENAI_BASE_URL="http://127.0.0.1:9/v1", LLM_MODEL="mine")
    shown = ended(process)
    assert process.returncode == 1
    assert "failed: agent_error: ConnectError" in shown
    assert "Not all of it held" in shown
    assert "Traceback" not in shown
    assert_nothing_left(tmp_path)


@pytest.mark.parametrize(
    ("seen", "number"),
    [
        ("One of the tests fails", signal.SIGINT),
        ("so I correct the test", signal.SIGTERM),  # the tests are about to run
        ("kill -9 of the agent", signal.SIGINT),
        ("the demo grants it", signal.SIGHUP),
    ],
)
def test_one_that_is_stopped_leaves_nothing(tmp_path: Path, seen: str, number: signal.Signals) -> None:
    process = start(tmp_path)
    assert process.stdout is not None
    shown = ""
    deadline = Deadline(DEMO_S)
    while seen not in shown and not deadline.passed:
        line = process.stdout.readline()
        assert line, shown
        shown += line
    process.send_signal(number)
    process.send_signal(number)  # people press it twice
    shown += ended(process, STOP_S)
    assert process.returncode == 128 + number, shown
    assert "stopped; its processes are ended, its files removed" in shown
    assert "Traceback" not in shown
    assert_nothing_left(tmp_path)


def test_a_reader_that_goes_away(tmp_path: Path) -> None:
    """`script/demo | head -3`."""
    process = start(tmp_path)
    assert process.stdout is not None
    for _ in range(3):
        process.stdout.readline()
    process.stdout.close()
    eventually(lambda: process.poll() is not None, DEMO_S, what="it ends")
    assert process.returncode == 1
    assert_nothing_left(tmp_path)


def test_a_folder_that_is_there_is_not_taken(tmp_path: Path) -> None:
    process = start(tmp_path, "--keep", str(tmp_path))
    shown = ended(process)
    assert process.returncode == 2
    assert shown == f"script/demo: --keep {tmp_path}: File exists: choose a new folder\n"
