"""An agent of its own process, to be killed: it notes each effect in the file `EFFECTS`.

The second step stops after its effect, before anything is recorded, for as long as there is no
file `GO`.
"""

import asyncio
import os
from pathlib import Path
from typing import Any

from rebuno import Agent, ToolError, execution, step, tool

EFFECTS, GO = Path(os.environ["EFFECTS"]), Path(os.environ["GO"])


def note(text: str) -> None:
    with EFFECTS.open("a") as file:
        file.write(text + "\n")


async def effect(name: str) -> str:
    note(f"{name} {execution().step_id}")
    if name == "second":
        while not GO.exists():  # noqa: ASYNC110, ASYNC240 (a file is the signal here)
            await asyncio.sleep(0.01)
    return f"{name} done"


safe = tool("safe")(effect)
once = tool("once", idempotency="at_most_once")(effect)


async def process(mode: str) -> Any:
    call = once if mode == "once" else safe
    first = await call("first")
    try:
        second = await call("second")
    except ToolError as exc:
        second = exc.args[0]
    last = await step("last", lambda: "last done")
    return {
        "steps": [first, second, last],
        "attempt": execution().dispatch_attempt,
    }


if __name__ == "__main__":
    agent = Agent("effects", shutdown_grace=float(os.environ.get("GRACE", "0")))
    agent.run(process, host="127.0.0.1", port=0)
