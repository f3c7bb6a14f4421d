# SPDX-License-Identifier: Apache-2.0
"""An example as its README starts it: the kernel with its rebuno.yaml and its agent.py, on free
ports.

    async with Example("e2b", tmp_path, github, script, E2B_API_KEY="…") as run:
        first = await run.create("The tests are failing. …")
        await run.grant(await run.held(first))
        assert (await run.ended(first)).output == {"answer": "…"}

The agent gets no variables but those of `env`, REPO, GITHUB_TOKEN, LLM_*, and where things are in a
test: REBUNO_URL and GITHUB_API_URL. `create`, `grant` and `fork` run the `rebuno` commands of the
READMEs.
"""

import asyncio
import importlib.util
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Self

import real_kernel
from github import GitHub
from governed import ended, pending
from machine import PATH
from real_kernel import BIN, FREE_PORT, Process, register
from rebuno import Client
from rebuno.testing import ScriptedModel
from rebuno.types import Approval, Event, Execution, Step

EXAMPLES = Path(__file__).parents[2] / "examples" / "integrations" / "sandbox"
LEASE = "3s"  # the tests that kill an agent wait for it
DEADLINE = (
    180.0  # an agent loads LangChain before it says a word, which takes its time beside others
)


async def until(condition: Callable[[], Any]) -> None:
    await real_kernel.until(condition, DEADLINE)


def module_of(example: str, name: str = "workspace_resource") -> Any:
    """A file of an example as a module of its own: all examples have files of the same names."""
    place = EXAMPLES / example / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"{example}_{name}", place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def agent_process(folder: Path, env: dict[str, str]) -> Process:
    """A folder's agent.py with these variables and no others."""
    variables = [f"{name}={value}" for name, value in {"PATH": PATH, **env}.items()]
    command = ["env", "-i", *variables, sys.executable, "-B", "-c", FREE_PORT]
    return Process(command, folder)


class Example:
    """The model takes its turns by conversation: forks, retries and later turns share a script."""

    secret = ""  # of the agent; by default that of the example's rebuno.yaml

    def __init__(
        self, name: str, tmp: Path, github: GitHub, script: Sequence[Any], **env: str
    ) -> None:
        self.name = name
        self.folder = EXAMPLES / name
        self.tmp = tmp
        self.github = github
        self.env = env
        self.model = ScriptedModel(script, by="conversation")
        self.agents: list[Process] = []
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _start(self) -> None:
        config = self.folder / "rebuno.yaml"
        command = [BIN, "dev", "--memory", "--listen-addr", "127.0.0.1:0"]
        command += ["--config", str(config)] if config.exists() else []
        self.kernel = Process(command, self.tmp, REBUNO_DISPATCH_LEASE_TIMEOUT=LEASE)
        self._stack.callback(self.kernel.end, signal.SIGTERM)
        self.url = self.kernel.url()
        self._stack.callback(self._end_agents)
        await self._stack.enter_async_context(self.model)
        self.client = await self._stack.enter_async_context(Client(self.url))
        self.env |= self.variables() | {"REBUNO_URL": self.url, "HOME": str(self.tmp)}
        await self.start_agent()

    def variables(self) -> dict[str, str]:
        given = {"REPO": self.github.repo, "GITHUB_TOKEN": self.github.token}
        given |= {"LLM_MODEL": "m", "LLM_BASE_URL": self.model.url, "LLM_API_KEY": "sk-llm"}
        return given | {"GITHUB_API_URL": self.github.url}

    def _end_agents(self) -> None:
        for agent in self.agents:
            agent.end(signal.SIGTERM)

    async def start_agent(self) -> None:
        agent = agent_process(self.folder, self.env)
        self.agents.append(agent)
        await until(lambda: agent.child.poll() is not None or _port(agent))
        assert agent.child.poll() is None, "".join(agent.output)
        secret = self.secret or f"{self.name}-development-secret"
        await register(self.url, self.name, f"http://127.0.0.1:{_port(agent)}", secret=secret)

    def kill_agent(self) -> None:
        self.agents[-1].end(signal.SIGKILL)

    async def rebuno(self, *words: str) -> str:
        """What a command prints."""
        done = await asyncio.to_thread(
            subprocess.run,
            [BIN, *words],
            check=False,
            capture_output=True,
            text=True,
            cwd=self.tmp,
            env={"PATH": PATH, "REBUNO_URL": self.url},
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    async def create(self, task: str, session: str = "fix-tests") -> str:
        given = json.dumps({"task": task})
        words = ["exec", "create", self.name, given, "--session", session, "--json"]
        return str(json.loads(await self.rebuno(*words))["id"])

    async def fork(self, execution_id: str, at: int, session: str = "fix-tests-fork") -> str:
        words = ["exec", "fork", execution_id, "--at", str(at), "--session", session, "--json"]
        return str(json.loads(await self.rebuno(*words))["id"])

    async def held(self, execution_id: str) -> Approval:
        """The approval that an execution waits for, once the agent has let go of it."""
        (approval,) = await pending(self.client, execution_id, within=DEADLINE)
        return approval

    async def grant(self, approval: Approval) -> None:
        await self.rebuno("approval", "grant", approval.id)

    async def ended(self, execution_id: str) -> Execution:
        return await ended(self.client, execution_id, DEADLINE)

    async def events(self, execution_id: str) -> list[Event]:
        return await self.client.events(execution_id, limit=1000)

    async def steps(self, execution_id: str, target: str = "") -> list[Step]:
        steps = await self.client.list_steps(execution_id)
        return [step for step in steps if target in ("", step.target)]

    def logs(self) -> str:
        return "".join(line for process in (self.kernel, *self.agents) for line in process.output)

    async def everything_stored(self, *execution_ids: str) -> str:
        """What the kernel tells of executions: the rows, events and steps; and all logs."""
        told: list[str] = [self.logs()]
        for id in execution_ids:
            told += [await self.rebuno("exec", word, id) for word in ("get", "events", "steps")]
            told += [event.model_dump_json() for event in await self.events(id)]
            told += [step.model_dump_json() for step in await self.steps(id)]
            told.append((await self.client.get(id)).model_dump_json())
        return "\n".join(told)


def _port(agent: Process) -> str:
    ready = [line for line in agent.output if "running on" in line]
    return agent.url().rpartition(":")[2] if ready else ""


@asynccontextmanager
async def refused_start(name: str, env: dict[str, str]) -> AsyncIterator[str]:
    """What an example's agent says before it ends, with these variables."""
    agent = agent_process(EXAMPLES / name, env)
    try:
        await until(lambda: agent.child.poll() is not None)
        agent.end(signal.SIGTERM)
        assert agent.child.returncode != 0
        yield "".join(agent.output)
    finally:
        agent.end(signal.SIGKILL)
