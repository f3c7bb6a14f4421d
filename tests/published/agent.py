"""An agent as a user of the published SDK would write it."""

import asyncio
import os
import sys

from rebuno import Agent, Result, execution, previous, step, tool, wrap_tool

effects = os.environ["EFFECTS"]


def happen(what: str) -> None:
    with open(effects, "a", encoding="utf-8") as f:
        f.write(what + "\n")


@tool
async def add(a: int, b: int = 2) -> int:
    """Adds."""
    happen(f"add {a} {b}")
    return a + b


@tool("pay", idempotency="at_most_once")
async def charge(cents: int) -> dict:
    happen(f"pay {cents}")
    if execution().input["mode"] == "die-paying" and execution().dispatch_attempt == 1:
        os._exit(9)
    return {"paid": cents, "note": "naïve ☃ \U0001f600"}


@tool
async def breaks() -> str:
    raise ValueError("no luck")


async def invoke(args: dict) -> str:
    happen("wrapped")
    return f"hello {args['name']}"


wrapped = wrap_tool(
    "greet",
    invoke,
    description="Greets.",
    args_schema={
        "type": "object",
        "properties": {"name": {"type": "string"}},
        "required": ["name"],
    },
)


async def process(input: dict) -> Result:
    mode = input["mode"]
    sums = await asyncio.gather(add(1), add(1), add(2, b=3))
    if mode == "die-once" and execution().dispatch_attempt == 1:
        os._exit(9)
    try:
        paid = await charge(5)
    except Exception as e:
        paid = f"{type(e).__name__}: {e}"
    try:
        broken = await breaks()
    except Exception as e:
        broken = f"{type(e).__name__}: {e}"
    local = await step("local", lambda x: x * 2, {"x": 21})
    greeting = await wrapped(name="Ada")
    if mode == "slow":
        await asyncio.sleep(60)
    return Result(
        output={
            "sums": sums,
            "paid": paid,
            "broken": broken,
            "local": local,
            "greeting": greeting,
            "previous": await previous(),
            "attempt": execution().dispatch_attempt,
        },
        state={"turn": 1},
    )


if __name__ == "__main__":
    Agent("pub", description="a published agent").run(
        process, host="127.0.0.1", port=int(sys.argv[1])
    )
