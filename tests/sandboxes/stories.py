# SPDX-License-Identifier: Apache-2.0
"""What the README of a sandbox example tells, played with the published package against a fake.

A test class derives from `Stories`, names the example, and gets its fake from a fixture `fake`.
"""

import asyncio
import itertools
from pathlib import Path
from typing import Any, ClassVar, Protocol

import pytest
from example import DEADLINE, Example, refused_start, until
from github import FIXED, GitHub
from machine import Machine
from real_kernel import BIN
from rebuno.testing import ModelRequest

TASK = "The tests are failing. Fix the bug and open a pull request."
MORE = "Also add a test for the edge case."
TEST = """\
import unittest

from middle import middle

unittest.TestCase().assertEqual(middle([1]), 1)
"""
COMMIT = "python3 -m unittest && git add . && git commit -qm '%s' && git push"


def shell(command: str) -> dict[str, Any]:
    return {"tool": "shell", "args": {"command": command}}


def write(path: str, content: str) -> dict[str, Any]:
    return {"tool": "write_file", "args": {"path": path, "content": content}}


def read(path: str) -> dict[str, Any]:
    return {"tool": "read_file", "args": {"path": path}}


def open_pr(title: str) -> dict[str, Any]:
    return {"tool": "open_pr", "args": {"title": title, "body": "See the tests."}}


class Fake(Protocol):
    """What the stories ask of a fake. `runs` and `rests` are among the states of a `history`."""

    runs: ClassVar[str]
    rests: ClassVar[str]
    env: dict[str, str]
    command_limit: float | None
    snapshots: dict[str, Path]

    def machines(self) -> dict[str, Machine]: ...
    def history(self, sandbox_id: str) -> list[str]: ...
    def time_out(self, sandbox_id: str) -> None: ...
    def lose(self, sandbox_id: str) -> None: ...
    def fail_next(self, call: str, status: int) -> None: ...


class Gate:
    """A turn of the model that waits until a test opens it."""

    def __init__(self, turn: Any) -> None:
        self._turn = turn
        self._may_speak = asyncio.Event()
        self.asked = 0

    def open(self) -> None:
        self._may_speak.set()

    async def __call__(self, _: ModelRequest) -> Any:
        self.asked += 1
        await self._may_speak.wait()
        return self._turn


@pytest.mark.skipif(not BIN, reason="REBUNO_BIN names no kernel")
class Stories:
    name: str
    variables: ClassVar[tuple[str, ...]]
    repo: str  # the folder of the checkout, below the sandbox's home
    wakes_by_itself = (
        True  # a sandbox that timed out, when a tool is called; else when it is opened
    )
    slow: str = "timed out after 120 seconds"  # what `shell` says of a command that took too long

    def example(self, tmp_path: Path, fake: Fake, github: GitHub, script: list[Any]) -> Example:
        return Example(self.name, tmp_path, github, script, **fake.env)

    def files(self, machine: Machine, path: str) -> str:
        return machine.read(f"{machine.home}/{self.repo}/{path}").decode()

    async def test_a_session(self, tmp_path: Path, fake: Any, github: GitHub) -> None:
        """A killed agent, an approval, another turn; the sandbox rests while nothing works."""
        gate = Gate(shell(COMMIT % "Sort first"))
        script = [
            shell("git branch --show-current; python3 -m unittest 2>&1; echo once >>../count"),
            read("middle.py"),
            read("nothing.py"),
            write("middle.py", FIXED),
            gate,
            open_pr("Sort first"),
            "The middle is found after sorting.",
            write("test_one.py", TEST),
            shell(COMMIT % "Test one value"),
            open_pr("Test one value"),
            "There is a test of one value.",
        ]
        async with self.example(tmp_path, fake, github, script) as run:
            first = await run.create(TASK)
            await until(lambda: gate.asked)
            run.kill_agent()
            gate.open()
            await run.start_agent()
            approval = await run.held(first)
            assert approval.args == {"title": "Sort first", "body": "See the tests."}
            ((sandbox, machine),) = fake.machines().items()
            states = list(dict.fromkeys([fake.runs, fake.rests]))
            await until(lambda: fake.history(sandbox) == states)
            assert machine.read(f"{machine.home}/count") == b"once\n"
            branch = machine.run(
                ["git", "branch", "--show-current"], self.at(machine)
            ).stdout.strip()
            assert branch.startswith(f"rebuno/{first}-")
            assert github.branches() == ["main", branch]
            assert github.pulls == []

            run.kill_agent()
            await run.start_agent()
            await run.grant(approval)
            assert (await run.ended(first)).output == {
                "answer": "The middle is found after sorting."
            }
            (pull,) = github.pulls
            assert (pull["head"]["ref"], pull["base"]["ref"]) == (branch, "main")
            assert (pull["title"], pull["body"]) == ("Sort first", "See the tests.")
            assert github.show(branch, "middle.py") == FIXED.strip()
            results = {step.target: step.result for step in await run.steps(first)}
            assert results["open_pr"] == pull["html_url"]
            assert results["write_file"] == "wrote middle.py"
            reads = [step.result for step in await run.steps(first, "read_file")]
            assert reads[1] == "nothing.py does not exist"
            looked = str((await run.steps(first, "shell"))[0].result)
            assert looked.startswith(f"exit code 0\n{branch}\n")
            assert "FAILED (failures=1)" in looked
            await until(lambda: fake.history(sandbox)[-1] == fake.rests)

            again = await run.create(MORE)
            await run.grant(await run.held(again))
            assert (await run.ended(again)).output == {"answer": "There is a test of one value."}
            assert list(fake.machines()) == [sandbox]
            assert github.branches() == ["main", branch]
            assert github.show(branch, "test_one.py") == TEST.strip()
            assert github.pulls == [pull]
            (opened,) = await run.steps(again, "open_pr")
            assert opened.result == pull["html_url"]
            assert "The middle is found after sorting." in str(run.model.requests[-1].body)
            await until(lambda: fake.history(sandbox)[-1] == fake.rests)
            await self.assert_the_token_stayed_outside(run, fake, first, again)

    def at(self, machine: Machine) -> str:
        return f"{machine.home}/{self.repo}"

    async def assert_the_token_stayed_outside(
        self, run: Example, fake: Any, *execution_ids: str
    ) -> None:
        stored = await run.everything_stored(*execution_ids)
        assert "wrote middle.py" in stored
        asked = str([request.body for request in run.model.requests])
        for secret in (run.github.token, run.github.basic):
            assert secret not in stored
            assert secret not in asked
            for machine in fake.machines().values():
                assert machine.holds(secret) == []
            assert not [
                call for name, call in fake.calls if name == "command" and secret in str(call)
            ]

    async def test_a_fork(self, tmp_path: Path, fake: Any, github: GitHub) -> None:
        """From the fifth change on in a sandbox of its own; then its snapshot is gone."""
        authors = (f"author {number}" for number in itertools.count(1))
        script = [
            *(write(f"file{number}", str(number)) for number in range(1, 6)),
            lambda _: write("author", next(authors)),
            shell("git add . && git commit -qm files && git push && git branch --show-current"),
            "The files are there.",
        ]
        async with self.example(tmp_path, fake, github, script) as run:
            source = await run.create("Write files.")
            await run.ended(source)
            ((sandbox, parent),) = fake.machines().items()
            written = await run.steps(source, "write_file")
            at = next(
                event.event_seq
                for event in await run.events(source)
                if event.type == "step.succeeded" and event.payload["step_id"] == written[4].step_id
            )
            fork = await run.fork(source, at)
            ended = await run.ended(fork)
            restored = (await run.client.get(fork)).restoration["workspace"]
            assert restored["covered"] is True
            assert ended.output == {"answer": "The files are there."}
            (own,) = set(fake.machines()) - {sandbox}
            child = fake.machines()[own]
            assert self.files(parent, "author") == "author 1"
            assert self.files(child, "author") == "author 2"
            assert [self.files(child, f"file{number}") for number in range(1, 6)] == list("12345")
            branches = [
                str(step.result).split()[-1]
                for id in (source, fork)
                for step in await run.steps(id, "shell")
            ]
            assert github.branches() == sorted(["main", *branches])
            assert branches[1].startswith(f"rebuno/{fork}-")
            assert [github.show(branch, "author") for branch in branches] == [
                "author 1",
                "author 2",
            ]

            early = await run.fork(source, 1, "early")
            await run.ended(early)
            assert (await run.client.get(early)).restoration is None  # before it had a workspace

            reference = restored["checkpoint_ref"]
            del fake.snapshots[reference]
            lost = await run.client.wait(await run.fork(source, at, "lost"), DEADLINE)
            assert lost.status == "failed"
            assert lost.failure_reason.startswith("agent_error: CheckpointUnavailable: ")
            assert reference in lost.failure_reason
            assert len(fake.machines()) == 3

    async def test_what_goes_wrong(self, tmp_path: Path, fake: Any, github: GitHub) -> None:
        """Commands that fail or take too long; a new token; a sandbox that timed out, one lost."""
        gate = Gate(shell("cat kept"))
        script = [
            write("kept", "what was written"),
            shell("echo out; echo err >&2; exit 7"),
            shell("sleep 100"),
            gate,
            "That was the first.",
            shell("git add . && git commit -qm kept && git push && echo pushed"),
            "That was the second.",
        ]
        async with self.example(tmp_path, fake, github, script) as run:
            fake.fail_next("create", 500)
            broken = await run.client.wait(await run.create("Try.", "broken"), DEADLINE)
            assert broken.status == "failed"
            assert "told to fail" in broken.failure_reason

            fake.command_limit = 5
            first = await run.create("Go wrong.")
            await until(lambda: gate.asked)
            fake.command_limit = None
            failed, slow = [str(step.result) for step in await run.steps(first, "shell")]
            assert failed.startswith("exit code 7\n")
            assert set(failed.split()[3:]) == {"out", "err"}
            assert slow == self.slow
            (sandbox,) = fake.machines()
            if not self.wakes_by_itself:
                run.kill_agent()
            fake.time_out(sandbox)
            gate.open()
            if not self.wakes_by_itself:
                await run.start_agent()
            await run.ended(first)
            assert (await run.steps(first, "shell"))[2].result == "exit code 0\nwhat was written"

            github.token = run.env["GITHUB_TOKEN"] = "ghp_another"
            run.kill_agent()
            await run.start_agent()
            second = await run.create("Push.")
            await run.ended(second)
            (pushed,) = await run.steps(second, "shell")
            assert "\npushed\n" in str(pushed.result)

            fake.lose(sandbox)
            third = await run.client.wait(await run.create("Go on."), DEADLINE)
            assert third.status == "failed"
            assert third.failure_reason.startswith("agent_error: ")
            assert sandbox in third.failure_reason
            assert sandbox not in fake.machines()

    async def test_each_variable_is_asked_for(self) -> None:
        async with refused_start(self.name, {}) as said:
            assert said == f"set {', '.join(self.variables)}: see README.md\n"
        *given, missing = self.variables
        async with refused_start(self.name, dict.fromkeys(given, "given")) as said:
            assert said == f"set {missing}: see README.md\n"
