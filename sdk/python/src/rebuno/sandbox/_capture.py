# SPDX-License-Identifier: Apache-2.0
"""A folder's tree as objects: one for the contents of a file, one for each folder's list.

A folder's object names the objects below it, so the root's digest is the whole snapshot. Kept are
contents, permission bits, symbolic links as they are, empty folders, and the files' times (builds
go by them). Not kept: owners, extended attributes, setuid, setgid and sticky bits, that two names
were one file.
Every step is relative to an open folder and follows no link, so nothing outside is ever touched,
whatever is moved about meanwhile.
"""

import errno
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ._errors import SandboxError
from ._index import Index
from ._store import Batch

DEPTH = 200  # folders within folders; each holds a descriptor open while it is read
ATTEMPTS = 5
PERMISSIONS = 0o777
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK  # NONBLOCK: a FIFO does not hold us

_OTHER = {
    stat.S_IFIFO: "FIFO",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
}


class _Changed(Exception):
    """The entry became something else while it was read."""


@dataclass
class Size:
    """Of the files of a tree."""

    files: int = 0
    bytes: int = 0

    def add(self, file_bytes: int) -> None:
        """One more file."""
        self.files += 1
        self.bytes += file_bytes


@dataclass
class Captured:
    """A tree that was read: the digest of its root, and the paths that are not part of it."""

    digest: str = ""
    size: Size = field(default_factory=Size)
    left_out: list[str] = field(default_factory=list)


def capture(root: Path, batch: Batch, index: Index) -> Captured:
    """Puts a folder's tree into the batch, reading only what the index does not know."""
    index.begin()
    captured = Captured()
    reader = _Reader(batch, index, captured)
    try:
        fd = os.open(root, _FOLDER_FLAGS)
    except OSError as exc:
        raise SandboxError(f"the workspace {root} cannot be read: {exc.strerror}") from exc
    try:
        captured.digest = reader.folder(fd, "", os.fstat(fd).st_mode)
    finally:
        os.close(fd)
    return captured


class _Reader:
    def __init__(self, batch: Batch, index: Index, captured: Captured) -> None:
        self._batch = batch
        self._index = index
        self._captured = captured

    def folder(self, fd: int, path: str, mode: int) -> str:
        if path.count("/") > DEPTH:
            raise SandboxError(f"folders are nested more than {DEPTH} deep: {path[:200]}…")
        with os.scandir(fd) as found:
            listed = [(entry.name, entry.stat(follow_symlinks=False)) for entry in found]
        listed.sort(key=lambda entry: entry[0])
        entries = [
            described
            for name, st in listed
            if (described := self._entry(fd, path, name, st)) is not None
        ]
        listing = json.dumps([mode & PERMISSIONS, entries], separators=(",", ":"))
        return self._batch.put(listing.encode())

    def _entry(
        self, parent: int, path: str, name: str, st: os.stat_result | None
    ) -> list[Any] | None:
        for _ in range(ATTEMPTS):
            try:
                st = st or os.stat(name, dir_fd=parent, follow_symlinks=False)
                return self._described(parent, path, name, st)
            except FileNotFoundError:
                return None
            except _Changed:
                st = None
        raise SandboxError(f"{path}{name} keeps changing while it is read: end what writes it")

    def _described(self, parent: int, path: str, name: str, st: os.stat_result) -> list[Any]:
        kind = stat.S_IFMT(st.st_mode)
        if kind == stat.S_IFREG:
            known = self._index.find(path, name, st)
            if known is None:
                known, st = self._read(parent, path, name)
            self._captured.size.add(st.st_size)
            return ["file", name, known, st.st_size, st.st_mode & PERMISSIONS, st.st_mtime_ns]
        if kind == stat.S_IFDIR:
            with _opened(parent, name, _FOLDER_FLAGS) as fd:
                return ["folder", name, self.folder(fd, f"{path}{name}/", st.st_mode)]
        if kind == stat.S_IFLNK:
            return ["link", name, os.readlink(name, dir_fd=parent)]
        what = _OTHER.get(kind, "other")
        self._captured.left_out.append(f"{path}{name} ({what})")
        return ["left out", name, what]

    def _read(self, parent: int, path: str, name: str) -> tuple[str, os.stat_result]:
        with _opened(parent, name, _FILE_FLAGS) as fd:
            before = os.fstat(fd)
            if not stat.S_ISREG(before.st_mode):
                raise _Changed
            digest, size = self._batch.put_file(fd)
            after = os.fstat(fd)
        if size != after.st_size or _times(before) != _times(after):
            raise _Changed
        # As it is seen from here on: a file that had to be made readable has a new time of change.
        st = os.stat(name, dir_fd=parent, follow_symlinks=False)
        if st.st_ino != after.st_ino:
            raise _Changed
        self._index.add(path, name, st, digest)
        return digest, st


def _times(st: os.stat_result) -> tuple[int, int]:
    return st.st_mtime_ns, st.st_ctime_ns


@contextmanager
def _opened(parent: int, name: str, flags: int) -> Iterator[int]:
    """Opens an entry that was just looked at, even one whose owner may not read it."""
    before: int | None = None
    try:
        try:
            fd = os.open(name, flags, dir_fd=parent)
        except PermissionError:
            before = permit(parent, name)
            fd = os.open(name, flags, dir_fd=parent)
    except OSError as exc:
        if exc.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENXIO):
            raise _Changed from exc
        raise
    try:
        yield fd
    finally:
        if before is not None:
            os.fchmod(fd, before)
        os.close(fd)


def permit(parent: int | None, name: str) -> int:
    """Lets the owner read and enter an entry. Returns the permissions that it had."""
    fd = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=parent)
    try:
        mode = stat.S_IMODE(os.fstat(fd).st_mode)
        os.chmod(f"/proc/self/fd/{fd}", mode | stat.S_IRUSR | stat.S_IXUSR)
    finally:
        os.close(fd)
    return mode
