# SPDX-License-Identifier: Apache-2.0
"""What an agent works in: the handle of a local sandbox."""

import functools
import secrets
import threading
from collections.abc import Sequence
from pathlib import Path

from . import _git, _paths
from ._capture import Captured, capture
from ._command import Command
from ._errors import SandboxError
from ._index import Index
from ._runner import CommandResult, Runner
from ._store import Store
from ._threads import in_thread

_COMMAND_BYTES = (128 << 10) - 1  # the longest argument that Linux hands to a program


class Workspace:
    """A sandbox's files and commands. `LocalSandbox` makes it; `resource()` hands it out.

    Paths are relative to the workspace. One that leaves it, by `..`, an absolute path or a
    symbolic link, raises PathRefused; one that names nothing raises FileNotFoundError.
    """

    def __init__(
        self,
        folder: Path,
        branch: str | None,
        *,
        store: Store,
        runner: Runner,
        origin: str | None,
    ) -> None:
        self.path = folder / "workspace"
        self.branch = branch
        self._store = store
        self._runner = runner
        self._origin = origin
        self._index_path = folder / "index"
        self._index: Index | None = None
        self._capturing = threading.Lock()
        self._running: set[Command] = set()
        self._paused = False

    @property
    def paused(self) -> bool:
        """Whether `pause` was called, and nothing done since."""
        return self._paused

    async def shell(self, command: str, *, timeout: float | None = None) -> CommandResult:
        """Runs a command in the workspace. What it started and left running ends with it.

        After `timeout` seconds (default: the driver's limit) all of it is ended, and the result
        says `timed_out`.
        """
        seconds = self._runner.limits.seconds if timeout is None else timeout
        if seconds <= 0:
            raise ValueError("timeout must be positive")
        size = len(command.encode(errors="surrogatepass"))
        if size > _COMMAND_BYTES:
            raise SandboxError(
                f"the command has {size} bytes, more than the {_COMMAND_BYTES} that one may have: "
                "write what is long to a file first"
            )
        self._paused = False
        return await self._runner.run(self.path, command, seconds=seconds, running=self._running)

    async def read_file(self, path: str) -> str:
        """Returns a text file's contents."""
        data = await self.read_bytes(path)
        try:
            return data.decode()
        except UnicodeDecodeError as exc:
            raise SandboxError(f"{path} is not UTF-8 text: {exc.reason}") from exc

    async def read_bytes(self, path: str) -> bytes:
        """Returns a file's contents."""
        self._paused = False
        return await in_thread(_paths.read, self.path, path, self._runner.limits.read_bytes)

    async def write_file(self, path: str, content: str | bytes) -> None:
        """Replaces a file's contents, creating it and the folders above it if needed."""
        self._paused = False
        data = _encoded(path, content) if isinstance(content, str) else content
        if len(data) > self._runner.limits.file_bytes:
            raise SandboxError(
                f"{path}: {len(data)} bytes, more than the {self._runner.limits.file_bytes} "
                "that a file may have"
            )
        await in_thread(_paths.write, self.path, path, data)

    async def list(self, path: str = "") -> Sequence[str]:
        """Returns what a folder holds, sorted; the names of folders end with a slash."""
        self._paused = False
        return await in_thread(_paths.names, self.path, path)

    async def pause(self) -> None:
        """Ends the commands that are still running. The files stay, and the next call goes on."""
        commands = list(self._running)
        for command in commands:
            command.cancel()
        for command in commands:
            await command.ended.wait()
        self._paused = True

    async def push(self, to: str | None = None) -> str:
        """Pushes the last commit as this sandbox's branch, with the agent's own credentials.

        `to` is a Git URL or folder (default: where the checkout came from). Returns the commit.
        Git's configuration inside of the sandbox has no part in it.
        """
        target = to or self._origin
        if self.branch is None or target is None:
            raise SandboxError("the workspace is no checkout of a Git repository")
        name = f".rebuno-{secrets.token_hex(8)}.bundle"
        limit = self._runner.limits.file_bytes
        made = await self.shell(f"git bundle create -q {name} HEAD")
        if made.exit_code != 0:
            raise SandboxError(f"the commits cannot be read: {made.output.strip()}")
        try:
            take = functools.partial(_paths.copy, self.path, name, limit)
            return await _git.push(take, self.branch, target)
        finally:
            await in_thread(_paths.unlink, self.path, name)

    def snapshot(self) -> Captured:
        """Stores the files."""
        with self._capturing:
            index = self._index or Index(self._index_path)
            with self._store.batch() as batch:
                captured = capture(self.path, batch, index)
            index.end()
            self._index = index
        return captured


def _encoded(path: str, content: str) -> bytes:
    try:
        return content.encode()
    except UnicodeEncodeError as exc:  # half of a pair, which JSON can hold
        at = content[exc.start]
        raise SandboxError(f"{path}: {at!a} at {exc.start} is no character of a text") from exc
