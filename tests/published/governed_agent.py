"""An agent under a policy, as a user of the published SDK would write it."""

import asyncio
import os
import sys

from rebuno import Agent, execution, step, tool

effects = os.environ["EFFECTS"]


def happen(what: str) -> None:
    with open(effects, "a", encoding="utf-8") as f:
        f.write(what + "\n")


@tool("deploy")
async def deploy(to: str) -> str:
    happen(f"deploy {to}")
    return f"deployed to {to}"


@tool("look", idempotency="at_most_once")
async def look() -> str:
    happen("look")
    return "looked"


@tool("look-slowly", idempotency="at_most_once")
async def look_slowly() -> str:
    happen("look-slowly")
    while not os.path.exists(effects + ".go"):
        await asyncio.sleep(0.01)
    return "looked slowly"


@tool("drop")
async def drop() -> str:
    happen("drop")
    return "dropped"


@tool("secret")
async def secret() -> str:
    happen("secret")
    return "told"


@tool("seldom")
async def seldom() -> str:
    happen("seldom")
    return "done"


@tool("slowly")
async def slowly() -> str:
    happen("slowly")
    return "done"


async def beside(to: str) -> str:
    """Asks once look-slowly runs: nothing new starts in a run that is blocked."""
    while "look-slowly\n" not in open(effects, encoding="utf-8").read():
        await asyncio.sleep(0.01)
    return await deploy(to)


async def process(input: dict):
    mode = input["mode"]
    if mode == "tools":
        return [await look(), await drop(), await secret()]
    if mode == "step":
        return await step(input["name"], lambda: 1)
    if mode == "held":
        return [await look(), await deploy("prod"), execution().dispatch_attempt]
    if mode == "swallow":
        try:
            return await deploy("prod")
        except Exception as e:
            happen(f"swallowed {type(e).__name__}")
            return "swallowed"
    if mode == "parallel":
        return await asyncio.gather(beside("a"), beside("b"), look_slowly(), beside("c"))
    if mode == "limited":
        return [await seldom(), await seldom()]
    if mode == "parked":
        return [await slowly(), await slowly()]
    raise ValueError(mode)


if __name__ == "__main__":
    Agent("pub").run(process, host="127.0.0.1", port=int(sys.argv[1]))
