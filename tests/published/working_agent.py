"""An agent with a resource and subagents, as a user of the published SDK would write it."""

import asyncio
import json
import os
import pathlib
import sys
import uuid

from rebuno import (
    Agent,
    CheckpointPolicy,
    CheckpointUnavailable,
    Result,
    execution,
    previous,
    resource,
    subagent,
    tool,
)

effects = os.environ["EFFECTS"]
boxes = pathlib.Path(effects).parent / "boxes"


def happen(what: str) -> None:
    with open(effects, "a", encoding="utf-8") as f:
        f.write(what + "\n")


class Boxes:
    driver_id = "example.boxes.v1"

    def __init__(self, failing: bool = False) -> None:
        self.failing = failing

    @property
    def configuration(self):
        return {"size": "small"}

    async def create(self, checkpoint_ref=None):
        happen(f"create {checkpoint_ref or 'anew'}")
        boxes.mkdir(exist_ok=True)
        content = "{}"
        if checkpoint_ref:
            if not (boxes / checkpoint_ref).exists():
                raise CheckpointUnavailable(f"{checkpoint_ref} is gone")
            content = (boxes / checkpoint_ref).read_text()
        box = boxes / f"box-{uuid.uuid4().hex}"
        box.write_text(content)
        return box, {"box": box.name}

    async def open(self, binding):
        happen("open")
        return boxes / binding["box"]

    async def checkpoint(self, handle):
        happen("checkpoint")
        if self.failing:
            raise RuntimeError("disk full")
        snapshot = boxes / f"snap-{uuid.uuid4().hex}"
        snapshot.write_text(handle.read_text())
        return snapshot.name


@tool("ask")
async def ask(question: str):
    return await subagent("helper", {"question": question})


async def work(mode: str, turn: int):
    box = await resource(
        "box", driver=Boxes(mode == "full"), checkpoints=CheckpointPolicy(every_steps=2)
    )

    @tool("put", resources=["box"])
    async def put(n: int) -> str:
        happen(f"put {turn}.{n}")
        box.write_text(json.dumps(json.loads(box.read_text()) | {f"{turn}.{n}": execution().id}))
        return f"put {n}"

    @tool("look")
    async def look() -> int:
        return len(json.loads(box.read_text()))

    said = []
    for n in (1, 2, 3):
        said.append(await put(n))
        if mode == "die-once" and n == 2 and execution().dispatch_attempt == 1:
            os._exit(9)
    return {"said": said, "found": await look(), "box": json.loads(box.read_text())}


async def process(input: dict) -> Result:
    mode = input["mode"]
    if mode == "ask":
        return Result([await ask(question) for question in input["questions"]])
    if mode == "ask-at-once":
        return Result(await asyncio.gather(*(ask(question) for question in input["questions"])))
    if mode == "ask-and-go-on":
        try:
            return Result(await ask(input["questions"][0]))
        except Exception as e:
            return Result(f"{type(e).__name__}: {e}")
    turn = ((await previous()) or 0) + 1
    return Result(await work(mode, turn), state=turn)


if __name__ == "__main__":
    Agent("pub").run(process, host="127.0.0.1", port=int(sys.argv[1]))
