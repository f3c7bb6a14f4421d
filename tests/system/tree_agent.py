"""An agent whose runs leave work to a run below them, in a process that a test kills and replaces.

It says its port. For each line on its input it forks a process that serves there, with all that was
imported, and says its id. Effects are noted in the file `EFFECTS`.
"""

import os
import signal
import socket
import sys
from typing import Any

import uvicorn

from rebuno import Agent, ToolError, execution, subagent, tool


def note() -> None:
    with open(os.environ["EFFECTS"], "a", encoding="utf-8") as effects:
        effects.write(f"{execution().step_id}\n")


@tool("once", idempotency="at_most_once")
async def once(depth: int) -> str:
    note()
    return f"once {depth}"


@tool("again")
async def again(depth: int) -> str:
    note()
    return f"again {depth}"


async def below(depth: int) -> Any:
    return await subagent("tree", {"depth": depth - 1})


delegates = {
    1: tool("delegate")(below),
    2: tool("delegate", idempotency="at_most_once")(below),
}


async def process(depth: int) -> Any:
    try:
        first = await once(depth)
    except ToolError:
        first = "unknown"
    found = await delegates[depth](depth) if depth else None
    return {"once": first, "below": found, "again": await again(depth)}


def serve(listener: socket.socket) -> None:
    agent = Agent("tree", shutdown_grace=0)
    agent.bind(process)
    uvicorn.Server(uvicorn.Config(agent.app, lifespan="on")).run(sockets=[listener])


if __name__ == "__main__":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system takes the dead away
    with socket.create_server(("127.0.0.1", 0)) as listening:  # nobody else gets the port
        print(listening.getsockname()[1], flush=True)
        for _ in sys.stdin:
            child = os.fork()
            if child == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
                serve(listening)
                os._exit(0)
            print(child, flush=True)
