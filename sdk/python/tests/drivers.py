"""A driver that notes what it was asked for."""

import asyncio
from collections.abc import Iterable
from typing import Any


class Driver:
    """Handles, bindings and references are numbered.

    `create`, `open` and `checkpoint`: what the next calls raise, or, when `raw`, return.
    """

    def __init__(
        self,
        driver_id: str = "d.v1",
        *,
        raw: bool = False,
        create: Iterable[Any] = (),
        open: Iterable[Any] = (),
        checkpoint: Iterable[Any] = (),
        **members: Any,
    ) -> None:
        self.driver_id = driver_id
        self.calls: list[tuple[str, Any]] = []
        self.pause: asyncio.Event | None = None  # what create waits for
        self._raw = raw
        self._script = {"create": [*create], "open": [*open], "checkpoint": [*checkpoint]}
        for name, value in members.items():
            setattr(self, name, value)

    async def create(self, checkpoint_ref: str | None = None) -> tuple[str, Any]:
        self.calls.append(("create", checkpoint_ref))
        if self.pause is not None:
            await self.pause.wait()
        number = self._count("create", "open")
        made: tuple[str, Any] = self._next("create", (f"handle{number}", {"id": f"box{number}"}))
        return made

    async def open(self, binding: Any) -> str:
        self.calls.append(("open", binding))
        opened: str = self._next("open", f"handle{self._count('create', 'open')}")
        return opened

    async def checkpoint(self, handle: str) -> Any:
        self.calls.append(("checkpoint", handle))
        return self._next("checkpoint", f"ref{self._count('checkpoint')}")

    def _count(self, *names: str) -> int:
        return sum(name in names for name, _ in self.calls)

    def _next(self, name: str, usual: Any) -> Any:
        if not self._script[name]:
            return usual
        scripted = self._script[name].pop(0)
        if isinstance(scripted, BaseException):
            raise scripted
        return scripted if self._raw else usual
