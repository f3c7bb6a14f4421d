"""A provider of boxes, in this process or in a folder: their files outlive agents."""

import json
import uuid
from pathlib import Path
from typing import Any

from rebuno import CheckpointUnavailable


class Boxes:
    """A driver. A box is a folder's file with a JSON object, and so is each of its snapshots."""

    driver_id = "test.boxes.v1"

    def __init__(self, folder: Path, **members: Any) -> None:
        self._folder = folder
        self.asked: list[str] = []
        for name, value in members.items():
            setattr(self, name, value)

    def create(self, checkpoint_ref: str | None = None) -> tuple["Box", Any]:
        self.asked.append(f"create {checkpoint_ref or 'anew'}")
        box = Box(self._folder / f"box-{uuid.uuid4().hex[:8]}")
        box.write(Box(self._folder / checkpoint_ref).read() if checkpoint_ref else {})
        return box, {"box": box.path.name}

    def open(self, binding: Any) -> "Box":
        self.asked.append("open")
        return Box(self._folder / binding["box"])

    def checkpoint(self, box: "Box") -> str:
        self.asked.append("checkpoint")
        snapshot = Box(self._folder / f"snap-{uuid.uuid4().hex[:8]}")
        snapshot.write(box.read())
        return snapshot.path.name

    def boxes(self) -> list["Box"]:
        return [Box(path) for path in sorted(self._folder.glob("box-*"))]

    def snapshots(self) -> list["Box"]:
        return [Box(path) for path in sorted(self._folder.glob("snap-*"))]


class Box:
    """What a handle is here."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[str, Any]:
        if not self.path.exists():
            raise CheckpointUnavailable(f"{self.path.name} is gone")
        content: dict[str, Any] = json.loads(self.path.read_text())
        return content

    def write(self, content: dict[str, Any]) -> None:
        self.path.write_text(json.dumps(content))

    def put(self, name: str, value: Any) -> None:
        self.write(self.read() | {name: value})
