"""An agent of its own process that works in a box, to be killed where `HANG` says."""

import os
import sys
import time
from pathlib import Path
from typing import Any

from pydantic import BaseModel

sys.path.insert(0, str(Path(__file__).parents[1]))

from provider import Box, Boxes

from rebuno import Agent, CheckpointPolicy, execution, resource, step

HANG = os.environ.get("HANG", "")


def hang(where: str) -> None:
    if where == HANG:
        print("hangs", where, flush=True)
        time.sleep(600)


class Binding(BaseModel):
    """It is read once for the log, and once to be recorded."""

    box: str

    def model_dump(self, **options: Any) -> dict[str, Any]:
        self.__dict__["reads"] = self.__dict__.get("reads", 0) + 1
        if self.__dict__["reads"] == 2:
            hang("before the binding")
        return {"box": self.box}


class Driver(Boxes):
    def create(self, checkpoint_ref: str | None = None) -> tuple[Box, Any]:
        box, binding = super().create(checkpoint_ref)
        return box, Binding(**binding)

    def checkpoint(self, box: Box) -> str:
        reference = super().checkpoint(box)
        if self.asked.count("checkpoint") == 2:
            hang("after the second capture")
        return reference


async def process(given: Any) -> Any:
    driver = Driver(Path(os.environ["BOXES"]))
    box = await resource("ws", driver=driver, checkpoints=CheckpointPolicy())

    def count(name: str) -> None:
        box.put(name, box.read().get(name, 0) + 1)

    for name in ("1", "2", "3"):
        await step("count", count, {"name": name}, resources=["ws"])
        if name == "2":
            hang("after the second step")
    return {"box": box.read(), "attempt": execution().dispatch_attempt}


if __name__ == "__main__":
    Agent("box", shutdown_grace=0).run(process, host="127.0.0.1", port=0)
