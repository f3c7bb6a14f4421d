"""A real kernel, the program named by REBUNO_BIN, and agents in this process or in others."""

import asyncio
import os
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import PIPE, STDOUT, Popen
from typing import IO, Any

import httpx2
import uvicorn

from rebuno import Agent, Client, execution

BIN = os.environ.get("REBUNO_BIN", "")
SECRET = "real-secret"
PROBE = "probe"
DEADLINE = 30.0
URL = re.compile(r"http://[\w.\[\]:-]+:\d+")

# Runs the folder's agent.py on a free port: the one that an example names may be in use.
FREE_PORT = """
import runpy, uvicorn
run = uvicorn.run
uvicorn.run = lambda *args, **options: run(*args, **options | {"port": 0})
runpy.run_path("agent.py", run_name="__main__")
"""


class Process:
    """A child that says its URL; only this child is ever ended, by its own id."""

    def __init__(self, command: list[str], cwd: Path, **env: str) -> None:
        self.child = Popen(
            command, cwd=cwd, env=os.environ | env, stdout=PIPE, stderr=STDOUT, text=True
        )
        self.output: list[str] = []
        self._url: str | None = None
        self._said = threading.Event()
        assert self.child.stdout is not None
        self._reader = threading.Thread(target=self._read, args=(self.child.stdout,))
        self._reader.start()

    def _read(self, lines: IO[str]) -> None:
        with lines:
            for line in lines:
                self.output.append(line)
                if self._url is None and (found := URL.search(line)):
                    self._url = found[0]
                    self._said.set()
        self._said.set()

    def url(self) -> str:
        assert self._said.wait(DEADLINE), "no URL in time"
        assert self._url is not None, "".join(self.output)
        return self._url

    def end(self, how: int) -> None:
        if self.child.poll() is None:
            self.child.send_signal(how)
        self.child.wait(DEADLINE)
        self._reader.join(DEADLINE)


async def register(kernel_url: str, agent_id: str, url: str, **more: Any) -> None:
    body = {"id": agent_id, "webhook_url": f"{url}/webhook", "secret": SECRET} | more
    async with httpx2.AsyncClient() as http:
        answer = await http.post(f"{kernel_url}/v0/agents", json=body)
    assert answer.status_code == 201, answer.text


@asynccontextmanager
async def serving(
    kernel_url: str, agent_id: str, process: Callable[..., Any], **options: Any
) -> AsyncIterator[Agent]:
    """An agent in this process, on a free port, registered."""
    agent = Agent(agent_id, secret=SECRET, base_url=kernel_url, **options)
    agent.bind(process)
    server = uvicorn.Server(
        uvicorn.Config(agent.app, host="127.0.0.1", port=0, log_level="warning", lifespan="on")
    )
    task = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    await register(kernel_url, agent_id, f"http://127.0.0.1:{port}")
    try:
        yield agent
    finally:
        server.should_exit = True
        await task


async def until_watched(seen: Sequence[str]) -> None:
    """In a handler: publishes PROBE until it is `seen`, for nothing else tells of a watcher."""
    context = execution()
    step_id, _ = await context.begin_llm(PROBE, {})
    deadline, number = time.monotonic() + DEADLINE, 0
    while not seen:
        assert time.monotonic() < deadline, "nobody watches"
        await context.publish_llm_delta(step_id, number, PROBE)
        number += 1
        await asyncio.sleep(0.01)
    await context.record_llm(step_id, None)


@asynccontextmanager
async def live(client: Client, execution_id: str) -> AsyncIterator[AsyncIterator[str]]:
    """The lines of the live stream: of all that is published from the moment of entering on."""
    url = f"{client.base_url}/v0/executions/{execution_id}/stream"
    headers = {"Accept": "text/event-stream"}
    async with httpx2.AsyncClient() as http, http.stream("GET", url, headers=headers) as answer:
        assert answer.status_code == 200
        yield answer.aiter_lines()


async def until(condition: Callable[[], Any], within: float = DEADLINE) -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        await asyncio.sleep(0.005)


async def types_of(client: Client, execution_id: str) -> list[str]:
    return [event.type for event in await client.events(execution_id, limit=1000)]
