# SPDX-License-Identifier: Apache-2.0
"""How commands are run in a workspace: isolated where possible, and within limits."""

import functools
import logging
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from ._aside import aside
from ._bubblewrap import WORKSPACE, Bubblewrap, View, find
from ._command import Command, Order, Outcome
from ._errors import SandboxError, SandboxGone
from ._threads import in_thread

Isolation = Literal["auto", "required", "off"]

logger = logging.getLogger("rebuno")

_FROM_THE_AGENT = ("PATH", "LANG", "LANGUAGE", "TZ", "TERM")  # and LC_*; nothing else
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Limits:
    """What one command may use up, and how much is read at once."""

    seconds: float = 120.0
    processes: int = 512  # and threads, together
    file_bytes: int = 512 << 20  # of any one file that it writes
    tmp_bytes: int = 512 << 20  # of its /tmp, which is in memory
    output_bytes: int = 64 << 10  # the rest is dropped from the middle
    read_bytes: int = 10 << 20  # of a file that `read_file` returns


@dataclass(frozen=True)
class CommandResult:
    """How a command ended. `output` holds both streams as they came, and says what was cut."""

    exit_code: int
    output: str
    timed_out: bool = False


class Runner:
    """Runs commands for the sandboxes of one driver."""

    def __init__(
        self,
        limits: Limits,
        isolation: Isolation,
        view: View,
        *,
        env: Mapping[str, str],
        scratch: Path,
    ) -> None:
        self.limits = limits
        self._isolation = isolation
        self._view = view
        self._env = dict(env)
        self._scratch = scratch

    def _bubblewrap(self) -> Bubblewrap | None:
        if self._isolation == "off":
            return None
        found, why_not = find()
        if found is None and self._isolation == "required":
            raise SandboxError(f"no isolation: {why_not}")
        if found is None:
            _warn(why_not)
        return found

    async def run(
        self, workspace: Path, command: str, *, seconds: float, running: "set[Command]"
    ) -> CommandResult:
        """Runs a shell command. Until it has ended it is among the running ones."""
        call = Command(self.limits.output_bytes)
        running.add(call)  # before anything is waited for: a pause finds it from the start
        try:
            outcome = await self._outcome(call, workspace, command, seconds)
        finally:
            running.discard(call)
            call.ended.set()
        return self._result(outcome, seconds)

    async def _outcome(
        self, call: Command, workspace: Path, command: str, seconds: float
    ) -> Outcome:
        bubblewrap = await in_thread(self._bubblewrap)
        if not await in_thread(workspace.is_dir):
            raise SandboxGone(f"the workspace {workspace} is gone")
        argv = [shutil.which("bash") or "sh", "-c", command]
        order = Order(
            argv=argv,
            isolated=bubblewrap is not None,
            cwd=str(workspace),
            seconds=seconds,
            processes=self.limits.processes,
            file_bytes=self.limits.file_bytes,
        )
        if bubblewrap is not None:
            order = replace(order, argv=bubblewrap.argv(self._view, workspace, argv))
            return await call.run(order, self._environment("/tmp", WORKSPACE))
        with self._private_folder() as folder:
            return await call.run(order, self._environment(folder, str(workspace)))

    def _result(self, outcome: Outcome, seconds: float) -> CommandResult:
        why = {
            "exited": "",
            "timeout": f"ended: it took longer than {seconds:g} seconds",
            "processes": f"ended: it had more than {self.limits.processes} processes and threads",
            "cancelled": "ended: the workspace was paused",
        }[outcome.ended]
        notes = [why] if why else []
        if outcome.left:
            notes.append(f"{outcome.left} of its processes could not be ended")
            logger.warning("%d processes of a command could not be ended", outcome.left)
        output = outcome.output
        for note in notes:
            output += f"{'' if output.endswith(chr(10)) or not output else chr(10)}[{note}]\n"
        timed_out = outcome.ended == "timeout"
        return CommandResult(124 if timed_out else outcome.status, output, timed_out)

    def _environment(self, private: str, workspace: str) -> dict[str, str]:
        taken = {
            name: value
            for name, value in os.environ.items()
            if name in _FROM_THE_AGENT or name.startswith("LC_")
        }
        own = {"HOME": private, "TMPDIR": private, "PWD": workspace}
        return {"PATH": _PATH, **taken, **own, **self._env}

    @contextmanager
    def _private_folder(self) -> Iterator[str]:
        """A home and a place for temporary files, where there is no /tmp of its own."""
        with aside(self._scratch) as folder:
            yield str(folder)


@functools.cache
def _warn(why: str) -> None:
    """Once, not at every command."""
    logger.warning(
        "commands in local sandboxes are NOT isolated and have all rights of this process: %s", why
    )
