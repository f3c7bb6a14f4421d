"""A scripted kernel, an agent that talks to it, and time that passes when a test says so."""

import asyncio
import itertools
import json
import re
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest
from real_kernel import BIN, Process
from scripted_kernel import DEADLINE, Call, ScriptedKernel

from rebuno import Agent, Client
from rebuno._protocol import webhook_signature
from rebuno._transport import Environment

README = Path(__file__).parents[1] / "README.md"
SECRET = "whsec"
SHORT_S = 6.0  # pauses between retries are shorter, heartbeats here are longer


def readme_blocks(language: str = "python") -> list[str]:
    """The README's programs (the agent, the client, who decides) or its yaml (manifest, policy)."""
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(), re.DOTALL)


async def until(condition: Callable[[], Any]) -> None:
    """Lets everything else run until the condition holds."""
    async with asyncio.timeout(DEADLINE):
        while not condition():  # noqa: ASYNC110 (it changes without an event)
            await asyncio.sleep(0)


@dataclass
class Time:
    """Short sleeps pass at once and are noted; long ones end when a test lets time elapse."""

    now_s: float = 1_700_000_000.0
    pauses: list[float] = field(default_factory=list)
    sleepers: list[tuple[float, asyncio.Future[None]]] = field(default_factory=list)

    def now(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        if seconds < SHORT_S:
            self.pauses.append(seconds)
            self.now_s += seconds
            await asyncio.sleep(0)
            return
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.sleepers.append((self.now_s + seconds, waiting))
        await waiting

    async def elapse(self, seconds: float) -> None:
        self.now_s += seconds
        for due, waiting in self.sleepers:
            if due <= self.now_s and not waiting.done():
                waiting.set_result(None)
        self.sleepers = [entry for entry in self.sleepers if not entry[1].done()]
        await asyncio.sleep(0)


@dataclass
class Bench:
    """What most tests need: one kernel, its agents, its time."""

    kernel: ScriptedKernel
    time: Time
    agents: list[Agent] = field(default_factory=list)
    ids: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    def environment(self) -> Environment:
        return Environment(
            now=self.time.now,
            monotonic=self.time.now,
            sleep=self.time.sleep,
            chance=lambda: 1.0,
            transport=self.kernel.transport(),
        )

    def agent(self, process: Callable[..., Any] | None, **options: Any) -> Agent:
        agent = Agent("a", secret=SECRET, base_url="http://kernel", **options)
        agent._wire = agent._wire_to(self.environment())
        agent._published = True  # most tests have nothing to do with metadata
        if process is not None:
            agent.bind(process)
        self.agents.append(agent)
        return agent

    def client(self, **options: Any) -> Client:
        client = Client("http://kernel", **options)
        client._wire = client._wire_to(self.environment())
        return client

    async def deliver(
        self,
        agent: Agent,
        execution_id: str = "e1",
        dispatch_id: str = "d1",
        attempt: int = 1,
        lease_s: float = 120,
    ) -> int:
        """Delivers as the kernel does; returns the status of the answer."""
        body = json.dumps(
            {
                "execution_id": execution_id,
                "dispatch_id": dispatch_id,
                "dispatch_attempt": attempt,
                "lease_timeout_seconds": lease_s,
            }
        ).encode()
        return await self.post(agent, body, webhook_signature(SECRET, body))

    async def post(self, agent: Agent, body: bytes, signature: str) -> int:
        transport = httpx2.ASGITransport(app=agent.app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://agent") as http:
            headers = {"Rebuno-Signature": signature}
            answer = await http.post(agent.webhook_path, content=body, headers=headers)
            assert answer.content == b""
            return answer.status_code

    async def run(self, process: Callable[..., Any], input: Any = None) -> Call | None:
        """Runs `process` on `input`; returns the call that ended the execution, if any did."""
        execution_id = f"e{next(self.ids)}"
        self.kernel.add(execution_id, input=input)
        agent = self.agent(process)
        assert await self.deliver(agent, execution_id) == 200
        await asyncio.wait_for(agent.join(), DEADLINE)
        last = [
            call
            for call in self.kernel.calls
            if call.path in (f"/v0/executions/{execution_id}/{end}" for end in ("complete", "fail"))
        ]
        return last[-1] if last else None

    async def output(self, process: Callable[..., Any], input: Any = None) -> Any:
        """Runs `process` on `input`; returns the output that it completed with."""
        call = await self.run(process, input)
        assert call is not None, "the execution was left as it is"
        assert call.name == "complete", call.body
        return call.body["output"]

    async def failure(self, process: Callable[..., Any], input: Any = None) -> Any:
        """Runs `process` on `input`; returns the reason that it failed with."""
        call = await self.run(process, input)
        assert call is not None, "the execution was left as it is"
        assert call.name == "fail", call.body
        return call.body["error"]


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench(ScriptedKernel(), Time())
    yield bench
    for agent in bench.agents:
        agent.shutdown_grace = 0
        await agent.close()


@pytest.fixture
def kernel(bench: Bench) -> ScriptedKernel:
    return bench.kernel


@pytest.fixture(scope="session")
def kernel_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real kernel's URL; tests that ask for it are skipped where there is none."""
    command = [BIN, "dev", "--memory", "--listen-addr", "127.0.0.1:0"]
    folder = tmp_path_factory.mktemp("kernel")
    # A short lease: the tests that kill an agent wait for it.
    process = Process(command, folder, REBUNO_DISPATCH_LEASE_TIMEOUT="2s")
    try:
        yield process.url()
    finally:
        process.end(signal.SIGTERM)


@pytest.fixture
async def client(kernel_url: str) -> AsyncIterator[Client]:
    async with Client(kernel_url) as client:
        yield client


@pytest.fixture
def held_bench(bench: Bench) -> Bench:
    """Its kernel holds the tool `send` for a person."""
    bench.kernel.decide("send", decision="blocked", approval_id="p1")
    return bench
