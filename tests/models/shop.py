# SPDX-License-Identifier: Apache-2.0
"""The examples of model frameworks, started as their READMEs say, but for ports of their own.

All are the same agent, a shop's assistant, so one set of tests does for them. One agent serves
many runs: the model's script belongs to the question that a run was created with.
"""

import asyncio
import itertools
import json
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx2
import uvicorn
from governed import pending
from real_kernel import BIN, DEADLINE, FREE_PORT, Process, register, until
from rebuno import Client
from rebuno.testing import ModelRequest, ScriptedModel
from rebuno.types import Approval, Execution, Step
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

FOLDER = Path(__file__).parents[2] / "examples" / "integrations" / "models"
_PAUSE_S = 0.02  # between two looks


@dataclass(frozen=True)
class Variant:
    """An example, and the variables that choose one of its ways."""

    name: str
    env: Mapping[str, str] = field(default_factory=dict)
    model: str = "gpt-test"
    path: str = "/v1/chat/completions"  # what it calls
    note: str = ""

    def __str__(self) -> str:
        return "-".join(filter(None, [self.name, self.path.rpartition("/")[2], self.note]))

    def target(self, tool: str) -> str:
        return f"shop_{tool}" if self.name == "mcp" else tool

    def call(self, tool: str, **args: Any) -> dict[str, Any]:
        """A tool call of the model."""
        return {"name": self.target(tool), "args": args}


RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
VARIANTS = [
    Variant("langchain"),
    Variant("openai"),
    Variant("anthropic", model="claude-test", path=MESSAGES),
    Variant("openai-agents", path=RESPONSES),
    Variant("openai-agents", {"LLM_API": "chat"}),
    Variant("pydantic-ai", model="openai-chat:gpt-test"),
    Variant("pydantic-ai", model="openai:gpt-test", path=RESPONSES),
    Variant(
        "pydantic-ai",
        {"ANTHROPIC_API_KEY": "sk-secret"},
        model="anthropic:claude-test",
        path=MESSAGES,
    ),
    Variant("mcp"),
    # The client's side alone: the server is started without PYTHONPATH, so it is of version 2.
    Variant("mcp", {"PYTHONPATH": str(Path(sys.prefix) / "mcp1")}, note="1"),
]


class Gate:
    """What the agent takes for its kernel: passes all on, and the held call after its neighbours.

    The kernel starts nothing beside a call that waits for a person. So where a test wants calls
    to run beside it, they have to be let in first.
    """

    def __init__(self, kernel_url: str) -> None:
        self.url = ""
        self._kernel = httpx2.AsyncClient(base_url=kernel_url, timeout=60)
        self._held = ""
        self._missing: set[str] = set()
        self._all_in = asyncio.Event()
        app = Starlette(routes=[Route("/{path:path}", self._pass, methods=["GET", "POST", "PUT"])])
        self._server = uvicorn.Server(
            uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning")
        )

    def let_in_first(self, held: str, *neighbours: str) -> None:
        self._held, self._missing = held, set(neighbours)
        self._all_in.clear()

    async def __aenter__(self) -> Self:
        self._serving = asyncio.create_task(self._server.serve())
        await until(lambda: self._server.started)
        host, port = self._server.servers[0].sockets[0].getsockname()
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        self._server.should_exit = True
        await self._serving
        await self._kernel.aclose()

    async def _pass(self, request: Request) -> Response:
        content = await request.body()
        submits = request.method == "POST" and request.url.path.endswith("/steps")
        target = json.loads(content)["target"] if submits else ""
        if target and target == self._held:
            await asyncio.wait_for(self._all_in.wait(), DEADLINE)
        headers = {k: v for k, v in request.headers.items() if k not in ("host", "content-length")}
        url = str(request.url).removeprefix(self.url)
        answer = await self._kernel.request(request.method, url, content=content, headers=headers)
        self._missing.discard(target)
        if not self._missing:
            self._all_in.set()
        kept = {k: v for k, v in answer.headers.items() if k == "content-type"}
        return Response(answer.content, answer.status_code, kept)


class Shop:
    """A kernel with one example's manifest, its agent, and a model that is scripted by question."""

    def __init__(self, variant: Variant) -> None:
        self.variant = variant
        self.example = FOLDER / variant.name
        self.readme = self.example / "README.md"
        self.client: Client
        self.gate: Gate
        self.agent: Process
        self.kernel = Process(
            [BIN, "dev", "--config", "rebuno.yaml", "--memory", "--listen-addr", "127.0.0.1:0"],
            self.example,
            REBUNO_DISPATCH_LEASE_TIMEOUT="2s",
        )
        self._processes = [self.kernel]
        self._scripts: dict[str, list[Any]] = {}
        self._numbers = itertools.count(1)
        turns = [partial(self._turn, number) for number in range(10)]
        self._model = ScriptedModel(turns, by="conversation")

    async def __aenter__(self) -> Self:
        self.url = await asyncio.to_thread(self.kernel.url)
        self.client = await Client(self.url).__aenter__()
        await self._model.__aenter__()
        self.gate = await Gate(self.url).__aenter__()
        try:
            await self.start_agent()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        for process in reversed(self._processes):
            await asyncio.to_thread(process.end, signal.SIGTERM)
        await self.gate.__aexit__()
        await self._model.__aexit__()
        await self.client.close()

    async def start_agent(self) -> None:
        """`python agent.py` with the variables that its README names."""
        env = {
            "PYTHONPATH": "",  # not what the tests import
            "OPENAI_BASE_URL": self._model.url,
            "ANTHROPIC_BASE_URL": self._model.origin,
            "REBUNO_URL": self.gate.url,
            "REBUNO_AGENT_SECRET": "",
        }
        given = {"LLM_MODEL": self.variant.model}
        env |= {name: given.get(name, "sk-secret") for name in exported(self.readme)}
        self.agent = Process(
            [sys.executable, "-c", FREE_PORT], self.example, **env | self.variant.env
        )
        self._processes.append(self.agent)
        running = self.agent.output
        await until(lambda: _serves(running) or self.agent.child.poll() is not None)
        assert _serves(running), "".join(running)
        port = self.agent.url().rpartition(":")[2]
        webhook = f"http://127.0.0.1:{port}"
        name = self.variant.name
        await register(self.url, name, webhook, secret=f"{name}-development-secret")

    async def kill_agent(self) -> None:
        await asyncio.to_thread(self.agent.end, signal.SIGKILL)

    async def ask(self, *turns: Any) -> Execution:
        """Creates a run whose model does this."""
        question = f"question {next(self._numbers)}."
        self._scripts[question] = list(turns)
        return await self.client.create(self.variant.name, {"question": question})

    def script(self, question: str, *turns: Any) -> None:
        """What the model does about a question that somebody else asks."""
        self._scripts[question] = list(turns)

    async def first_run(self) -> Execution:
        """Waits for the one that somebody else creates."""
        async with asyncio.timeout(DEADLINE):
            while True:
                for run in (await self.client.list()).executions:
                    return await self.client.get(run.id)
                await asyncio.sleep(_PAUSE_S)

    def requests(self, run: Execution) -> list[ModelRequest]:
        """What the model was asked in this run."""
        question = run.input["question"]
        return [one for one in self._model.requests if question in _text(one)]

    async def until_asked(self, run: Execution, times: int) -> None:
        """Waits until the model has been asked so often in this run."""
        await until(lambda: len(self.requests(run)) >= times)

    async def until_step(self, run: Execution, tool: str, status: str) -> Step:
        """Waits for a call of that tool in that state."""
        async with asyncio.timeout(DEADLINE):
            while True:
                for step in await self.steps(run, tool):
                    if step.status == status:
                        return step
                await asyncio.sleep(_PAUSE_S)

    async def pending(self, run: Execution) -> Approval:
        (approval,) = await pending(self.client, run.id)
        return approval

    async def ended(self, run: Execution) -> Execution:
        with suppress(TimeoutError):
            return await self.client.wait(run.id, DEADLINE)
        raise AssertionError("".join(["it does not end\n", *self.agent.output[-30:]]))

    async def answer(self, run: Execution) -> str:
        """What it completed with."""
        ended = await self.ended(run)
        assert ended.status == "completed", ended.failure_reason
        answer: str = ended.output["answer"]
        return answer

    async def steps(self, run: Execution, tool: str) -> list[Step]:
        """Its calls of one of the shop's tools."""
        target = self.variant.target(tool)
        return [one for one in await self.client.list_steps(run.id) if one.target == target]

    def _turn(self, number: int, request: ModelRequest) -> Any:
        text = _text(request)
        (turns,) = [turns for question, turns in self._scripts.items() if question in text]
        turn = turns[number]
        return turn(request) if callable(turn) else turn


def _serves(output: list[str]) -> bool:
    return any("running on" in line for line in output)


def _text(request: ModelRequest) -> str:
    return json.dumps(request.body, ensure_ascii=False)


def commands(readme: Path) -> Iterator[str]:
    """The lines of its shell blocks, without their comments."""
    inside = False
    for line in readme.read_text(encoding="utf-8").splitlines():
        if line.startswith("```"):
            inside = line == "```bash"
        elif inside and (command := line.partition("  #")[0].strip()):
            yield command


def exported(readme: Path) -> list[str]:
    """The variables that it says an agent needs."""
    (line,) = [line for line in commands(readme) if line.startswith("export ")]
    return [word.partition("=")[0] for word in line.split()[1:]]
