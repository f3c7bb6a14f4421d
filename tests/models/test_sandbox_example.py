# SPDX-License-Identifier: Apache-2.0
"""examples/integrations/sandbox/local as its README runs it, but for ports of its own."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from real_kernel import BIN, DEADLINE, FREE_PORT, Process, register, until
from rebuno import Client
from rebuno.testing import ScriptedModel

EXAMPLE = Path(__file__).parents[2] / "examples" / "integrations" / "sandbox" / "local"
SCRIPT: list[Any] = [
    {"tool": "shell", "args": {"command": "cat answer; git branch --show-current"}},
    {"tool": "write_file", "args": {"path": "../answer", "content": "42"}},
    {"tool": "shell", "args": {"command": f"echo {'4' * (128 << 10)} > answer"}},
    {"tool": "write_file", "args": {"path": "answer", "content": "42"}},
    {"tool": "shell", "args": {"command": "git commit -qam fix"}},
    {"tool": "open_pr", "args": {"title": "Answer", "body": "42"}},
    "It is done.",
    {"tool": "read_file", "args": {"path": "answer"}},
    "It is 42.",
]


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.com")
    command = ["git", "-C", str(folder), *identity, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    repo = tmp_path / "repo"
    repo.mkdir()
    git(repo, "init", "-q")
    (repo / "answer").write_text("41")
    git(repo, "add", ".")
    git(repo, "commit", "-qm", "first")
    return repo


async def turns(client: Client, repo: Path) -> None:
    first = await client.create("local", {"task": "Fix it."}, session="fix-tests")
    found: list[Any] = []
    async with asyncio.timeout(DEADLINE):
        while not found:
            found = await client.list_approvals()
            await asyncio.sleep(0.02)
    assert (found[0].target, found[0].args) == ("open_pr", {"title": "Answer", "body": "42"})
    await client.grant_approval(found[0].id)
    ended = await client.wait(first.id, DEADLINE)
    assert ended.output == {"answer": "It is done."}, ended.failure_reason
    (branch,) = git(repo, "branch", "--list", "rebuno/*", "--format=%(refname:short)").split()
    assert branch.startswith(f"rebuno/{first.id}-")
    assert git(repo, "show", f"{branch}:answer") == "42"
    assert len(list((repo / ".git" / "pulls").iterdir())) == 1
    again = await client.create("local", {"task": "What is it?"}, session="fix-tests")
    ended = await client.wait(again.id, DEADLINE)
    assert ended.output == {"answer": "It is 42."}, ended.failure_reason
    (read,) = [s for s in await client.list_steps(again.id) if s.target == "read_file"]
    assert read.result == "42"


@pytest.mark.parametrize("given", [[], ["REPO", "LLM_MODEL", "LLM_API_KEY"]])
def test_what_is_not_set_is_named(given: list[str]) -> None:
    """All of it in one sentence; a variable without a value is not set."""
    needed = ["REPO", "LLM_MODEL", "LLM_BASE_URL", "LLM_API_KEY"]
    env = {name: "given" if name in given else "" for name in needed}
    agent = Process([sys.executable, "agent.py"], EXAMPLE, **env)
    try:
        assert agent.child.wait(DEADLINE) == 1
    finally:
        agent.end(signal.SIGTERM)
    missing = ", ".join(name for name in needed if name not in given)
    assert "".join(agent.output) == f"set {missing}: see README.md\n"


@pytest.mark.skipif(not BIN, reason="REBUNO_BIN names no kernel")
async def test_two_turns(tmp_path: Path, repo: Path) -> None:
    command = [BIN, "dev", "--memory", "--config", str(EXAMPLE / "rebuno.yaml"), "--listen-addr"]
    kernel = Process([*command, "127.0.0.1:0"], tmp_path)
    processes = [kernel]
    try:
        async with ScriptedModel(SCRIPT) as model, Client(kernel.url()) as client:
            given = {"LLM_MODEL": "m", "LLM_BASE_URL": model.url, "LLM_API_KEY": "k"}
            env = given | {"REBUNO_URL": kernel.url(), "REPO": str(repo)}
            env |= {"XDG_DATA_HOME": str(tmp_path / "data"), "REBUNO_AGENT_SECRET": ""}
            agent = Process([sys.executable, "-c", FREE_PORT], EXAMPLE, **env)
            processes.append(agent)
            await until(lambda: any("running on" in line for line in agent.output))
            port = agent.url().rpartition(":")[2]
            secret = "local-development-secret"
            await register(kernel.url(), "local", f"http://127.0.0.1:{port}", secret=secret)
            await turns(client, repo)
    finally:
        for process in reversed(processes):
            process.end(signal.SIGTERM)
