"""The examples of docs/cli.md: what it shows is what the program prints.

Blocks whose lines begin with `$ ` are commands with their output; the `yaml` blocks are the files that
they name.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness import Attempt, FakeAgent, Kernel, eventually
from harness.cli import Cli, Following
from harness.documents import Block, read
from harness.policies import bundle, rule
from harness.transcript import ID, Session, commands

NewKernel = Callable[..., Kernel]
NewAgent = Callable[..., FakeAgent]
Follow = Callable[..., Following]

DOCUMENT = read("docs/cli.md")


def blocks(heading: str, language: str = "") -> list[Block]:
    found = [b for b in DOCUMENT.blocks if (b.heading, b.language) == (heading, language)]
    return [b for b in found if language or b.text.startswith("$ ")]


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


class TestForks:
    @pytest.fixture
    def agent(self, kernel: Kernel, new_agent: NewAgent) -> FakeAgent:
        return new_agent(kernel, agent_id="coder")

    def past_run(self, cli: Cli, agent: FakeAgent) -> str:
        """It captures its workspace before the first step and after the second that affects it."""
        identity = str(cli.json("exec", "create", "coder")["id"])
        attempt = take(cli, agent)
        attempt.register("workspace", coverage_reuse=True, every_steps=2).expect(200)
        attempt.bind("workspace", {"dir": "/tmp/x"}).expect(204)
        snap = {"key": "workspace", "generation": 0, "checkpoint_ref": "snap-0"}
        attempt.capture(snap).expect(204)
        attempt.record("read_file", {"path": "app.toml"}, "port = 70")
        self.write(attempt, "port = 80")
        tests = attempt.proceed("run_tests", {"suite": "all"}, resources=["workspace"])
        snap = {"key": "workspace", "generation": 2, "checkpoint_ref": "snap-1"}
        result = {"failed": 0, "passed": 12}
        attempt.complete_step(tests, result, captures=[snap]).expect(200)
        attempt.complete({"tests": "passed"}).expect(204)
        return identity

    def write(self, attempt: Attempt, text: str) -> None:
        """Safe to run again, or the fork would ask a person first."""
        args = {"path": "app.toml", "text": text}
        options: dict[str, Any] = {"resources": ["workspace"], "idempotency": "safe_to_retry"}
        attempt.record("write_file", args, "ok", **options)

    def work(self, cli: Cli, agent: FakeAgent) -> None:
        """What the fork does: other contents, and then the refusal."""
        attempt = take(cli, agent)
        attempt.register("workspace", coverage_reuse=True, every_steps=2).expect(200)
        attempt.replay("read_file", {"path": "app.toml"})
        self.write(attempt, "port = 8080")
        attempt.denied("run_tests", {"suite": "all"})
        attempt.complete({"tests": "not run"}).expect(204)

    def test_all(self, cli: Cli, agent: FakeAgent) -> None:
        write_files(cli.folder, "Forks")
        session = Session(cli)
        forks, difference = blocks("Forks")
        (of, _), (fork, _), _ = commands(forks)
        session.ids[re.findall(ID, of)[0]] = self.past_run(cli, agent)[:18]
        session.run_all(forks, {fork: lambda: self.work(cli, agent)})
        session.run_all(difference)


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
    assert shown == {"Executions", "Forks", "Approvals", "Policies"}
