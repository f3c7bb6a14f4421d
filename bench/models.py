#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures what a model call costs through the recording transport, beside a bare client.

    .venv/bin/python bench/models.py --port N --pid N --token T [--calls N] [--json]

A kernel that runs on this machine, a scripted model in a process of its own, an agent in this one. Bare and
recorded calls take turns, so that what drifts on the machine meets both.
"""

import argparse
import asyncio
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import httpx2
import uvicorn
import uvloop
from rebuno import Agent, Client, RebunoTransport
from rebuno._transport import Environment
from rebuno.types import Execution

SECRET = "bench-secret"
WARMUP = 10  # calls, of each kind
LARGE_BYTES = 5_000_000
WORDS = "The quick brown fox jumps over the lazy dog. "
PACED_WORDS = 200
PAUSE_S = 0.013  # between them
DEADLINE_S = 120.0

Call = Callable[[], Awaitable[float]]


def script(calls: int) -> dict[str, Any]:
    """The model's turns, by the name it is called."""
    short = [{"text": WORDS * 8}] * (3 * (calls + WARMUP))
    return {
        "plain": short,
        "stream": short,
        "large": [{"text": WORDS, "repeat": LARGE_BYTES // 200, "piece_chars": 45}],
        "live": [{"text": "word " * PACED_WORDS, "pause": PAUSE_S}],
    }


@contextlib.asynccontextmanager
async def scripted_model(calls: int) -> AsyncIterator[str]:
    """A scripted model in a process of its own; gives the URL that it answers at."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({"models": script(calls)}, file)
        file.flush()
        command = [sys.executable, "-m", "rebuno.testing.model", file.name]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            said = await asyncio.to_thread(process.stdout.readline)
            yield f"{said.split()[-1]}/chat/completions"
        finally:
            process.kill()
            process.wait()


class Watched(httpx2.AsyncBaseTransport):
    """Notes when a request left, when it was answered, and how many there were."""

    def __init__(self) -> None:
        self._inner = httpx2.AsyncHTTPTransport(limits=httpx2.Limits(max_connections=None))
        self.left_s = self.answered_s = 0.0
        self.count = 0

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.count += 1
        self.left_s = time.perf_counter()
        response = await self._inner.handle_async_request(request)
        self.answered_s = time.perf_counter()
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


def cpu_of(pid: int) -> float:
    """Seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass
class Samples:
    """Milliseconds, and those of CPU in this process, one of each a call."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    async def take(self, call: Call) -> None:
        cpu_s = time.process_time()
        self.wall.append(1000 * await call())
        self.cpu.append(1000 * (time.process_time() - cpu_s))

    def figures(self) -> dict[str, float]:
        wall, cpu = self.wall[WARMUP:], self.cpu[WARMUP:]
        return {"ms": statistics.median(wall), "cpu_ms": statistics.fmean(cpu)}


class World:
    """The agent's handler, which does one measurement a run, and what was found."""

    def __init__(self, kernel_pid: int, model_url: str, calls: int) -> None:
        self.kind = "recorded"
        self.found: dict[str, Any] = {}
        self.wire = Watched()  # to the kernel
        self.read: list[tuple[float, str]] = []  # of the stream that somebody watches
        self.over = asyncio.Event()  # a measurement has ended
        self._kernel_pid, self._url, self._calls = kernel_pid, model_url, calls
        self._provider = Watched()

    async def process(self, given: Any) -> None:
        """Runs the measurement that the input names."""
        name = given["measure"]
        body = {
            "model": name,
            "messages": [{"role": "user", "content": WORDS * 4}],
            "stream": name != "plain",
        }
        ours = httpx2.AsyncClient(transport=RebunoTransport(self._provider), timeout=DEADLINE_S)
        bare = httpx2.AsyncClient(transport=self._provider, timeout=DEADLINE_S)
        try:
            await getattr(self, name)(body, bare, ours)
        finally:
            self.over.set()

    async def plain(self, body: Any, bare: httpx2.AsyncClient, ours: httpx2.AsyncClient) -> None:
        """Calls that come whole; in a fork the record answers ours."""

        async def call(http: httpx2.AsyncClient) -> float:
            began_s = time.perf_counter()
            (await http.post(self._url, json=body)).raise_for_status()
            return time.perf_counter() - began_s

        await self._pairs(self.kind, lambda: call(bare), lambda: call(ours))

    async def stream(self, body: Any, bare: httpx2.AsyncClient, ours: httpx2.AsyncClient) -> None:
        """The first chunk of a stream: ours counts from the kernel's word that it may begin."""

        async def call(http: httpx2.AsyncClient, began: Watched) -> float:
            async with http.stream("POST", self._url, json=body) as response:
                chunks = response.aiter_raw()
                await anext(chunks)
                first_s = time.perf_counter()
                began_s = began.answered_s if began is self.wire else began.left_s
                async for _ in chunks:
                    pass
            return first_s - began_s

        await self._pairs(
            "first chunk", lambda: call(bare, self._provider), lambda: call(ours, self.wire)
        )

    async def _pairs(self, name: str, bare: Call, ours: Call) -> None:
        theirs, mine, requests = Samples(), Samples(), 0
        kernel_cpu_s = cpu_of(self._kernel_pid)
        for number in range(self._calls + WARMUP):
            pairs = [(theirs, bare), (mine, ours)]
            for samples, call in pairs if number % 2 else reversed(pairs):
                before = self.wire.count
                await samples.take(call)
                requests = max(requests, self.wire.count - before)
        kernel_cpu_s = cpu_of(self._kernel_pid) - kernel_cpu_s
        self.found[name] = {
            "bare": theirs.figures(),
            "ours": mine.figures(),
            "kernel_cpu_ms": 1000 * kernel_cpu_s / (self._calls + WARMUP),
            "kernel_requests": requests,
        }

    async def large(self, body: Any, bare: httpx2.AsyncClient, ours: httpx2.AsyncClient) -> None:
        """How much a long stream holds in memory at the worst moment, with its record's request."""
        length = 0
        tracemalloc.start()
        try:
            async with ours.stream("POST", self._url, json=body) as response:
                async for chunk in response.aiter_raw():
                    length += len(chunk)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        self.found["large"] = {"bytes": length, "peak_bytes": peak}

    async def live(self, body: Any, bare: httpx2.AsyncClient, ours: httpx2.AsyncClient) -> None:
        """A stream of words with pauses; `watch` compares when they were read and seen."""
        async with ours.stream("POST", self._url, json=body) as response:
            async for chunk in response.aiter_text():
                self.read.append((time.perf_counter(), chunk))


async def watch(client: Client, execution_id: str, world: World) -> None:
    """Notes how much later than the agent somebody who watches sees each chunk of a stream.

    What was written before the watcher was there is not counted.
    """
    seen = [(time.perf_counter(), delta.data) async for delta in client.stream(execution_id)]
    missed = sum(len(text) for _, text in world.read) - sum(len(text) for _, text in seen)
    watched = zip(accumulate((len(text) for _, text in seen), initial=missed), seen, strict=False)
    until, seen_s = missed, 0.0
    late: list[float] = []
    for end, (read_s, _) in zip(
        accumulate(len(text) for _, text in world.read), world.read, strict=True
    ):
        if end <= missed:
            continue
        while until < end:
            start, (seen_s, text) = next(watched)
            until = start + len(text)
        late.append(1000 * (seen_s - read_s))
    late.sort()
    world.found["live"] = {
        "chunks": len(late),
        "p50_ms": statistics.median(late),
        "p99_ms": late[len(late) * 99 // 100],
        "max_ms": late[-1],
    }


@contextlib.asynccontextmanager
async def serving(world: World, kernel_url: str, token: str) -> AsyncIterator[None]:
    """The agent, registered at the kernel."""
    agent = Agent("models", secret=SECRET, base_url=kernel_url)
    agent._wire = agent._wire_to(Environment(transport=world.wire))
    agent.bind(world.process)
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/webhook"
    async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}) as http:
        body = {"id": "models", "webhook_url": url, "secret": SECRET}
        (await http.post(f"{kernel_url}/v0/agents", json=body)).raise_for_status()
    server = uvicorn.Server(uvicorn.Config(agent.app, log_level="warning"))
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield
    finally:
        server.should_exit = True
        await task


async def measure(port: int, pid: int, token: str, calls: int) -> dict[str, Any]:
    """Runs every measurement, one after the other."""
    kernel_url = f"http://127.0.0.1:{port}"
    async with scripted_model(calls) as model_url, Client(kernel_url, token) as client:
        world = World(pid, model_url, calls)
        async with serving(world, kernel_url, token):

            async def ended(run: Execution) -> Execution:
                """A client that follows the run would cost more than what is measured."""
                await asyncio.wait_for(world.over.wait(), DEADLINE_S)
                world.over.clear()
                run = await client.wait(run.id, DEADLINE_S)
                if run.status != "completed":
                    raise SystemExit(f"a run did not complete: {run.failure_reason}")
                return run

            recorded = await ended(await client.create("models", {"measure": "plain"}))
            world.kind = "replayed"
            last = (await client.fork_points(recorded.id)).latest_seq
            await ended(await client.fork(recorded.id, at_seq=last))
            for name in ("stream", "large"):
                await ended(await client.create("models", {"measure": name}))
            watched = await client.create("models", {"measure": "live"})
            watching = asyncio.create_task(watch(client, watched.id, world))
            await ended(watched)
            await asyncio.wait_for(watching, DEADLINE_S)
    return world.found


def main() -> None:
    """Measures, and prints what was found."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--port", type=int, required=True, help="the kernel's")
    parser.add_argument("--pid", type=int, required=True, help="the kernel's")
    parser.add_argument("--token", required=True, help="its bearer token")
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # as `Agent.run` has it
        figures = runner.run(measure(args.port, args.pid, args.token, args.calls))
    if args.json:
        print(json.dumps(figures))
        return
    for name, values in figures.items():
        print(name, json.dumps(values))


if __name__ == "__main__":
    main()
