# SPDX-License-Identifier: Apache-2.0
"""Sandboxes on this machine: a driver for `rebuno.resource` that needs no account.

    workspace = await resource(
        "workspace",
        driver=LocalSandbox("https://github.com/example/project"),
        checkpoints=CheckpointPolicy(every_steps=5),
    )
    result = await workspace.shell("make test")

A workspace is a folder; commands run in it under bubblewrap where that works. A checkpoint stores
each content once, whichever of the sandboxes it comes from. Needs Linux 5.4 or newer.
"""

import hashlib
import logging
import os
import re
import secrets
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .._context import execution
from ..errors import CheckpointUnavailable
from . import _git
from ._bubblewrap import View
from ._capture import capture
from ._errors import PathRefused, SandboxError, SandboxGone
from ._index import Index
from ._remove import remove
from ._runner import CommandResult, Isolation, Limits, Runner
from ._spares import Spares
from ._store import Damaged, Store
from ._threads import in_thread
from ._workspace import Workspace

__all__ = [
    "CommandResult",
    "Limits",
    "LocalSandbox",
    "PathRefused",
    "SandboxError",
    "SandboxGone",
    "Workspace",
]

logger = logging.getLogger("rebuno")

_REFERENCE = re.compile(r"sha256:([0-9a-f]{64})")


class LocalSandbox:
    """A driver whose sandboxes are folders of this machine.

    `source` is what a new sandbox holds: a checkout of a Git URL or of a folder that is a
    repository, a copy of any other folder, or nothing. `folder` is where sandboxes and snapshots
    are kept, by default `rebuno` below `$XDG_DATA_HOME` or `~/.local/share`.

    `network` lets commands reach it. `isolation` is `auto` (bubblewrap where it works, else a
    warning), `required` (else an error) or `off`. `env` is added to the few variables that
    commands see. `readable` names folders below a home that they may read, `hidden` files and
    folders elsewhere that they may not. `spares` is how many copies of a large workspace are kept
    ready for its next restore; 0 makes each restore copy everything.
    """

    driver_id = "rebuno.local.v1"
    coverage_reuse = True  # nothing runs on between calls, so only declared calls change files

    def __init__(
        self,
        source: str | os.PathLike[str] | None = None,
        *,
        folder: str | os.PathLike[str] | None = None,
        network: bool = False,
        isolation: Isolation = "auto",
        limits: Limits | None = None,
        env: Mapping[str, str] | None = None,
        readable: Sequence[str | os.PathLike[str]] = (),
        hidden: Sequence[str | os.PathLike[str]] = (),
        spares: int = 1,
    ) -> None:
        if not sys.platform.startswith("linux"):
            raise SandboxError("the local sandbox needs Linux")
        if isolation not in ("auto", "required", "off"):
            raise ValueError(f"isolation is auto, required or off, not {isolation!r}")
        if spares < 0:
            raise ValueError(f"spares is a number of copies, not {spares}")
        self._source = _absolute(source)
        self._folder = Path(folder).expanduser().absolute() if folder else _default_folder()
        self._network = network
        self._store = Store(self._folder)
        self._spares = Spares(self._store, self.configuration["source"] or "", spares)
        limits = limits or Limits()
        view = View(
            network=network,
            tmp_bytes=limits.tmp_bytes,
            readable=tuple(str(Path(path).expanduser().absolute()) for path in readable),
            hidden=(str(self._folder), *(str(Path(path).expanduser()) for path in hidden)),
        )
        scratch = self._folder / "aside"
        self._runner = Runner(limits, isolation, view, env=env or {}, scratch=scratch)

    @property
    def configuration(self) -> dict[str, Any]:
        """What makes a sandbox of this driver another than that of a second one."""
        source = None if self._source is None else _git.without_credentials(self._source)
        return {"source": source, "network": self._network}

    async def create(self, checkpoint_ref: str | None = None) -> tuple[Workspace, dict[str, Any]]:
        """Makes a sandbox from a snapshot, or else from the source."""
        await in_thread(self._prepare)
        home = self._folder / "sandboxes" / secrets.token_hex(8)
        # Named before it exists: if this process dies before the kernel knows of it, it is here.
        logger.info("creating the sandbox %s", home)
        await in_thread(home.mkdir, mode=0o700, parents=True)
        try:
            await self._fill(home, checkpoint_ref)
            branch = await self._switch_branch(home)
        except BaseException:
            await in_thread(remove, home)
            raise
        workspace = self._workspace(home, branch)
        return workspace, {"path": str(workspace.path), "branch": branch}

    async def open(self, binding: Mapping[str, Any]) -> Workspace:
        """Returns the sandbox that was created; raises SandboxGone."""
        path = binding.get("path")
        if not isinstance(path, str) or Path(path).name != "workspace":
            raise SandboxError(f"this binding is not of a local sandbox: {binding!r}")
        if not await in_thread(_is_folder, path):
            raise SandboxGone(
                f"the sandbox {path} is gone: it was removed, or it is on another machine"
            )
        await in_thread(self._prepare)
        return self._workspace(Path(path).parent, binding.get("branch"))

    async def checkpoint(self, handle: Workspace) -> str:
        """Stores the files of a sandbox. The reference is their hash."""
        captured = await in_thread(handle.snapshot)
        for path in captured.left_out[:10]:
            logger.warning("%s: not part of the snapshot: %s", handle.path, path)
        if len(captured.left_out) > 10:
            logger.warning("%s: nor are %d others", handle.path, len(captured.left_out) - 10)
        self._spares.keep(captured.digest, captured.size)
        return f"sha256:{captured.digest}"

    async def settle(self) -> None:
        """Waits until no spare is being made: for tests and measurements."""
        await in_thread(self._spares.settle)

    def _prepare(self) -> None:
        self._store.prepare()
        self._spares.sweep()

    def _workspace(self, home: Path, branch: str | None) -> Workspace:
        return Workspace(home, branch, store=self._store, runner=self._runner, origin=self._source)

    async def _fill(self, home: Path, checkpoint_ref: str | None) -> None:
        workspace = home / "workspace"
        if checkpoint_ref:
            await in_thread(self._restore, checkpoint_ref, home)
        elif self._source is None:
            await in_thread(workspace.mkdir, mode=0o700)
        elif _git.is_url(self._source) or _git.is_repository(Path(self._source)):
            await _git.clone(self._source, workspace)
        else:
            await in_thread(self._copy, Path(self._source), home)

    def _restore(self, reference: str, home: Path) -> None:
        named = _REFERENCE.fullmatch(reference)
        if named is None:
            raise CheckpointUnavailable(f"{reference} is no snapshot of a local sandbox")
        try:
            self._spares.restore(named[1], home)
        except Damaged as exc:
            raise CheckpointUnavailable(
                f"the snapshot {reference} is gone or damaged: {exc}"
            ) from exc

    def _copy(self, source: Path, home: Path) -> None:
        if not source.is_dir():
            raise SandboxError(f"the source {source} is no folder")
        if self._folder.resolve().is_relative_to(source.resolve()):
            raise SandboxError(f"sandboxes of {source} cannot be kept inside of it")
        name = hashlib.sha256(str(source).encode()).hexdigest()[:16]
        sources = self._folder / "sources"
        sources.mkdir(mode=0o700, exist_ok=True)
        index = Index(sources / name)
        with self._store.batch() as batch:
            captured = capture(source, batch, index)
        index.end()
        self._spares.restore(captured.digest, home)

    async def _switch_branch(self, home: Path) -> str | None:
        """Gives a checkout its own branch, without touching a file."""
        if not await in_thread(os.path.lexists, home / "workspace" / ".git"):
            return None
        branch = f"rebuno/{_execution_id()}-{secrets.token_hex(4)}"
        ref = f"refs/heads/{branch}"
        workspace = self._workspace(home, branch)
        # Inside: what a snapshot's Git is configured to run must not run here.
        git = "git -c core.hooksPath=/dev/null"
        result = await workspace.shell(
            f"{git} rev-parse -q --verify HEAD >/dev/null && {git} update-ref {ref} HEAD\n"
            f"{git} symbolic-ref HEAD {ref}"
        )
        if result.exit_code != 0:
            # It was broken when it was captured; the files are what they were.
            logger.warning("%s has no branch of its own: %s", home, result.output.strip())
        return branch


def _absolute(source: str | os.PathLike[str] | None) -> str | None:
    if source is None or (isinstance(source, str) and _git.is_url(source)):
        return source
    return str(Path(source).expanduser().absolute())


def _default_folder() -> Path:
    base = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(base).expanduser().absolute() / "rebuno"


def _is_folder(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)


def _execution_id() -> str:
    try:
        name = execution().id
    except RuntimeError:
        name = "local"
    return re.sub(r"[^A-Za-z0-9_-]", "-", name) or "local"
