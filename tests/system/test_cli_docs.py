"""The examples of docs/cli.md: what it shows is what the program prints.

Blocks whose lines begin with `$ ` are commands with their output; the `yaml` blocks are the files that
they name. Ids, times and durations may differ, an id only where the document has another one too.
"""

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness import FakeAgent, Kernel, eventually
from harness.cli import Cli, Following
from harness.documents import Block, read
from harness.policies import bundle, rule

NewKernel = Callable[..., Kernel]
NewAgent = Callable[..., FakeAgent]
Follow = Callable[..., Following]

DOCUMENT = read("docs/cli.md")
ID = r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}"
MAY_DIFFER = re.compile(
    rf"(?P<id>{ID})(?P<rest>-[0-9a-f]{{4}}-[0-9a-f]{{12}})?"
    r"|(?P<date>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)"
    r"|(?P<clock>\d\d:\d\d:\d\d\.\d{3})"
    r"|(?P<duration>\b\d+(?:m\d\ds|\.\d+s|ms|s)\b)"
    r"|(?P<hash>[0-9a-f]{12}…)"
    r"|(?P<blanks>(?<=\S) {2,})"
)
SHAPES = {
    "date": r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d",
    "clock": r"\d\d:\d\d:\d\d\.\d{3}",
    "duration": r"\d+(?:m\d\ds|\.\d+s|ms|s)",
    "hash": "[0-9a-f]{12}…",
    "blanks": " {2,}",
}


def commands(block: Block) -> list[tuple[str, str]]:
    """(command, output) in their order."""
    parts = re.split(r"(?m)^\$ (.*)\n", block.text)
    assert parts[0] == "", f"line {block.line}: output without a command"
    return list(zip(parts[1::2], parts[2::2], strict=True))


def blocks(heading: str, language: str = "") -> list[Block]:
    found = [b for b in DOCUMENT.blocks if (b.heading, b.language) == (heading, language)]
    return [b for b in found if language or b.text.startswith("$ ")]


class Session:
    """Runs a heading's commands; `ids` maps the document's ids to those of this run."""

    def __init__(self, cli: Cli) -> None:
        self.cli = cli
        self.ids: dict[str, str] = {}

    def words(self, command: str) -> list[str]:
        program, *words = shlex.split(command)
        assert program == "rebuno", command
        return [re.sub(ID, lambda found: self.ids[found[0]], word) for word in words]

    def check(self, expected: str, got: str) -> None:
        """Also learns the ids that are new."""
        pattern, at, new = "", 0, {}
        for found in MAY_DIFFER.finditer(expected):
            pattern += re.escape(expected[at : found.start()])
            at = found.end()
            kind = str(found.lastgroup) if found["id"] is None else "id"
            pattern += self._id(found, new) if kind == "id" else SHAPES[kind]
        matched = re.fullmatch(pattern + re.escape(expected[at:]), got)
        assert matched, f"the document has:\n{expected}\nit prints:\n{got}"
        self.ids.update({known: matched[name] for known, name in new.items()})

    def _id(self, found: re.Match[str], new: dict[str, str]) -> str:
        short, rest = found["id"], "-[0-9a-f]{4}-[0-9a-f]{12}" if found["rest"] else ""
        if short in self.ids:
            return re.escape(self.ids[short]) + rest
        if short in new:
            return f"(?P={new[short]}){rest}"
        new[short] = f"id{len(new)}"
        return f"(?P<{new[short]}>{ID}){rest}"

    def run(self, command: str, expected: str) -> None:
        done = self.cli.run(*self.words(command), USER=None)
        output = (done.stdout + done.stderr).decode()
        self.check(expected, output)

    def run_all(self, block: Block, after: dict[str, Callable[[], Any]] | None = None) -> None:
        for command, expected in commands(block):
            self.run(command, expected)
            for beginning, hook in (after or {}).items():
                if command.startswith(beginning):
                    hook()


@pytest.fixture
def kernel(new_kernel: NewKernel) -> Kernel:
    """Of its own: the document's agents have names, and its lists nothing of others."""
    return new_kernel()


def write_files(folder: Path, heading: str) -> None:
    """Each `yaml` block goes into the file that the text before it ends with."""
    lines = DOCUMENT.text.splitlines()
    for block in blocks(heading, "yaml"):
        above = [line for line in lines[: block.line - 2] if line][-1]
        name = re.findall(r"`([\w.]+\.yaml)`", above)[-1]
        (folder / name).write_text(block.text)


def take(cli: Cli, agent: FakeAgent) -> Any:
    attempt = agent.take_attempt()
    client = cli.kernel.client()
    eventually(lambda: "dispatch.acked" in client.event_types(attempt.id))
    return attempt


def test_executions(cli: Cli, new_agent: NewAgent) -> None:
    agent, session = new_agent(cli.kernel, agent_id="greeter"), Session(cli)
    block, of_a_session = blocks("Executions")
    session.run_all(block, {"rebuno exec create": lambda: complete_what_runs(cli, agent)})
    session.run_all(
        of_a_session, {"rebuno exec create greeter '\"hello\"'": lambda: take(cli, agent)}
    )


def complete_what_runs(cli: Cli, agent: FakeAgent) -> None:
    if cli.json("exec", "ls", "--status", "running")["executions"]:
        take(cli, agent).complete("hello").expect(204)


class TestApprovals:
    HELD = {  # noqa: RUF012
        "path": "/etc/ufw/user.rules",
        "mode": "append",
        "backup": True,
        "content": '### ssh from "anywhere" ###\n-A ufw-user-input -p tcp --dport 22 -j ACCEPT\n',
    }

    @pytest.fixture
    def agent(self, kernel: Kernel, new_agent: NewAgent) -> FakeAgent:
        agent = new_agent(kernel, agent_id="coder")
        text = bundle(
            rule(
                "outside",
                "require_approval",
                {"target": "fs_write"},
                reason="changes outside of the project",
            )
        )
        kernel.client().post("/v0/policies/coder", {"bundle": text}).expect(204)
        return agent

    def hold(self, cli: Cli, agent: FakeAgent) -> str:
        attempt = take(cli, agent)
        decision = attempt.submit("fs_write", self.HELD).expect(200).json
        assert decision["decision"] == "blocked"
        return str(decision["approval_id"])

    def test_decided(self, cli: Cli, agent: FakeAgent) -> None:
        session = Session(cli)
        block, _ = blocks("Approvals")
        session.run_all(block, {"rebuno exec create": lambda: self.hold(cli, agent)})

    def test_watched(self, cli: Cli, agent: FakeAgent, follow: Follow) -> None:
        session = Session(cli)
        decided, block = blocks("Approvals")
        ((command, expected),) = commands(block)
        execution = cli.json("exec", "create", "coder")["id"]
        session.ids[re.findall(ID, command)[0]] = execution[:18]
        approval = self.hold(cli, agent)
        watch = follow(cli, *session.words(command))
        watch.wait_for("rebuno approval deny")
        (deny,) = [text for text, _ in commands(decided) if "approval deny" in text]
        session.ids[re.findall(ID, deny)[0]] = approval[:18]
        cli.out(*session.words(deny))
        watch.wait_for("execution.resumed")
        session.check(expected, "".join(watch.lines[: expected.count("\n")]))


class TestPolicies:
    @pytest.fixture
    def agent(self, kernel: Kernel, new_agent: NewAgent) -> FakeAgent:
        return new_agent(kernel, agent_id="coder")

    def past_run(self, cli: Cli, agent: FakeAgent) -> str:
        """Two commands under a policy that let everything through."""
        reads = rule("allow-safe", "allow", {"arguments": {"command": {"equals": "ls"}}})
        cli.kernel.client().post(
            "/v0/policies/coder", {"bundle": bundle(reads, rule("all", "allow", {"target": "*"}))}
        ).expect(204)
        identity = str(cli.json("exec", "create", "coder")["id"])
        attempt = take(cli, agent)
        attempt.record("shell_exec", {"command": "ls"})
        attempt.record("shell_exec", {"command": "rm -rf build"})
        attempt.complete().expect(204)
        return identity

    def test_all(self, cli: Cli, agent: FakeAgent) -> None:
        write_files(cli.folder, "Policies")
        session = Session(cli)
        *local, backtest = blocks("Policies")
        assert len(local) == 3
        for block in local:
            session.run_all(block)
        ((command, _),) = commands(backtest)
        session.ids[re.findall(ID, command)[0]] = self.past_run(cli, agent)[:18]
        session.run_all(backtest)


def test_every_example_is_run() -> None:
    """A heading with commands that no test above names would be prose."""
    shown = {b.heading for b in DOCUMENT.blocks if b.text.startswith("$ ")}
    assert shown == {"Executions", "Approvals", "Policies"}
