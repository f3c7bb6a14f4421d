# SPDX-License-Identifier: Apache-2.0
"""Runs one command under the supervisor, and keeps what it says within bounds."""

import asyncio
import contextlib
import json
import os
import socket
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .._calls import see_through
from ._errors import SandboxError

_SUPERVISOR = str(Path(__file__).with_name("_supervisor.py"))
_PIECE = 1 << 16
_KILLED = 128 + 9
_OVERTIME_S = 30.0  # what the supervisor may take beyond the command's time
_LAST_S = 2.0  # for the end of the output, when something that would not end holds the pipe


@dataclass(frozen=True)
class Order:
    """A command, and what it may use up."""

    argv: Sequence[str]
    isolated: bool
    cwd: str
    seconds: float
    processes: int
    file_bytes: int


@dataclass(frozen=True)
class Outcome:
    """How a command ended: `ended` is exited, timeout, processes or cancelled."""

    ended: str
    status: int
    left: int  # processes that could not be ended
    output: str


class Command:
    """One command, run once. `ended` is set by whoever runs it, once nothing of it is left."""

    def __init__(self, output_bytes: int) -> None:
        self._output = _Output(output_bytes)
        self._cancelled = asyncio.Event()
        self.ended = asyncio.Event()

    def cancel(self) -> None:
        """Ends the command and all that it started, or keeps it from starting."""
        self._cancelled.set()

    async def run(self, order: Order, env: Mapping[str, str]) -> Outcome:
        """Until nothing of the command is left, even when the caller is cancelled meanwhile."""
        if self._cancelled.is_set():
            return Outcome("cancelled", _KILLED, 0, "")
        return await see_through(asyncio.ensure_future(self._supervised(order, env)), self.cancel)

    async def _supervised(self, order: Order, env: Mapping[str, str]) -> Outcome:
        ours, theirs = socket.socketpair()
        with ours:
            async with self._draining() as pipe:
                process = await self._start(env, theirs, pipe)
                try:
                    async with asyncio.timeout(order.seconds + _OVERTIME_S):
                        said = await self._talk(order, ours)
                        await process.wait()
                except TimeoutError as exc:
                    process.kill()
                    raise SandboxError("the supervisor of a command does not answer") from exc
        if "error" in said:
            raise SandboxError(f"the command could not be run: {said['error']}")
        status = _KILLED if said["status"] is None else said["status"]
        return Outcome(said["ended"], status, said["left"], self._output.text())

    async def _start(
        self, env: Mapping[str, str], channel: socket.socket, pipe: int
    ) -> asyncio.subprocess.Process:
        """Starts the supervisor; both ends that it was given are closed here."""
        try:
            return await asyncio.create_subprocess_exec(
                # Isolated: neither the environment nor a site's files have a say in it.
                *(sys.executable, "-I", "-S", _SUPERVISOR),
                stdin=channel.fileno(),
                stdout=pipe,
                stderr=pipe,
                env=dict(env),
                start_new_session=True,  # Ctrl-C is for the agent, which then ends this
            )
        finally:
            channel.close()
            os.close(pipe)

    async def _talk(self, order: Order, ours: socket.socket) -> dict[str, Any]:
        reader, writer = await asyncio.open_connection(sock=ours)
        ending = asyncio.ensure_future(self._pass_on(writer))
        try:
            writer.write(json.dumps(asdict(order)).encode() + b"\n")
            line = await reader.readline()
            if not line:
                raise SandboxError("the supervisor of a command was ended from outside")
            said: dict[str, Any] = json.loads(line)
            return said
        finally:
            ending.cancel()
            writer.close()

    async def _pass_on(self, writer: asyncio.StreamWriter) -> None:
        await self._cancelled.wait()
        writer.write_eof()

    @contextlib.asynccontextmanager
    async def _draining(self) -> AsyncIterator[int]:
        """A pipe for the command's output, read to its end as fast as it comes."""
        end, pipe = os.pipe()
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(end, "rb", 0)
        )
        draining = asyncio.ensure_future(self._drain(reader))
        try:
            yield pipe
            await asyncio.wait([draining], timeout=_LAST_S)
        finally:
            draining.cancel()
            transport.close()

    async def _drain(self, reader: asyncio.StreamReader) -> None:
        while piece := await reader.read(_PIECE):
            self._output.add(piece)


class _Output:
    """The beginning and the end of what a command said, in bounded memory."""

    def __init__(self, limit: int) -> None:
        self._head = bytearray()
        self._tail = bytearray()
        self._for_head = limit // 4
        self._for_tail = limit - self._for_head
        self._dropped = 0

    def add(self, piece: bytes) -> None:
        room = self._for_head - len(self._head)
        self._head += piece[:room]
        self._tail += piece[room:]
        # Not at every piece: moving the tail costs as much as it holds.
        if len(self._tail) > 2 * self._for_tail + _PIECE:
            self._shorten()

    def _shorten(self) -> None:
        excess = len(self._tail) - self._for_tail
        if excess > 0:
            del self._tail[:excess]
            self._dropped += excess

    def text(self) -> str:
        self._shorten()
        head, tail = (part.decode(errors="replace") for part in (self._head, self._tail))
        left_out = f"\n[{self._dropped} bytes are left out here]\n" if self._dropped else ""
        return f"{head}{left_out}{tail}"
