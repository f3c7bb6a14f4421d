"""Resources of a handler that runs against an exported run."""

from pathlib import Path
from typing import Any

import pytest
from recorded import Run, unrun

from rebuno import (
    CheckpointPolicy,
    resource,
)
from rebuno.testing.replay import replay

look = unrun("look")


class Shelf:
    """A driver that must not be used."""

    driver_id = "shelf"

    def create(self, ref: str | None = None) -> Any:
        raise AssertionError("created")

    def open(self, binding: Any) -> Any:
        raise AssertionError("opened")

    def checkpoint(self, handle: Any) -> Any:
        raise AssertionError("captured")


class TestResources:
    def run(self) -> Run:
        run = Run()
        run.step("look", {"n": 1}, result=1)["resources"] = ["shelf"]
        return run

    @staticmethod
    async def process() -> Any:
        policy = CheckpointPolicy(every_steps=1, on_completion=True)
        handle = await resource("shelf", driver=Shelf(), checkpoints=policy)
        assert handle is await resource("shelf", driver=Shelf())
        await look(1)
        return handle.name

    async def test_given(self, tmp_path: Path) -> None:
        result = await replay(self.run().export(), self.process, resources={"shelf": tmp_path})
        assert result.output == tmp_path.name

    async def test_used_without_being_given(self) -> None:
        with pytest.raises(RuntimeError, match=r"'name' of resource 'shelf'.*resources=") as caught:
            await replay(self.run().export(), self.process)
        assert any("in process, " in note for note in caught.value.__notes__)

    async def test_only_handed_to_tools(self) -> None:
        async def process() -> str:
            handle = await resource("shelf", driver=Shelf())
            await look(1)
            return repr(handle)

        result = await replay(self.run().export(), process)
        assert result.output == "<resource 'shelf', not given to the replay>"
