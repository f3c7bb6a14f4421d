"""An agent of the Python SDK in this process, on a kernel that a test may kill."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import uvicorn
from rebuno import Agent, Client

from harness.kernel import TOKEN, Kernel


@contextlib.asynccontextmanager
async def serving(
    kernel: Kernel, agent_id: str, secret: str, process: Callable[..., Any]
) -> AsyncIterator[Client]:
    """Registers an agent and serves it; gives a client of the kernel."""
    agent = Agent(agent_id, secret=secret, base_url=kernel.url)
    agent.bind(process)
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/webhook"
    body = {"id": agent_id, "webhook_url": url, "secret": secret}
    kernel.client().post("/v0/agents", body).expect(201)
    server = uvicorn.Server(uvicorn.Config(agent.app, log_level="warning"))
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        async with Client(kernel.url, TOKEN) as client:
            yield client
    finally:
        server.should_exit = True
        await task
