# SPDX-License-Identifier: Apache-2.0
"""A tree out of its objects: the reverse of `_capture`, into a new folder.

The copy shares no file with the store or with another copy: whoever writes to it changes it alone.
"""

import json
import os
import re
from pathlib import Path
from typing import Any

from ._index import Index
from ._store import Damaged, Store, write_sparsely

_DIGEST = re.compile(r"[0-9a-f]{64}")
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_FILE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW


def restore(store: Store, digest: str, root: Path, index: Index) -> None:
    """Makes the tree below a folder that does not exist yet; raises Damaged half-way."""
    writer = _Writer(store, index)
    mode, entries = writer.listing(digest)
    root.mkdir(mode=0o700)
    fd = os.open(root, _FOLDER_FLAGS)
    try:
        writer.fill(fd, "", entries)
        os.fchmod(fd, mode)
    finally:
        os.close(fd)
    index.end_of_writing()


class _Writer:
    def __init__(self, store: Store, index: Index) -> None:
        self._store = store
        self._index = index

    def listing(self, digest: str) -> tuple[int, list[list[Any]]]:
        try:
            mode, entries = json.loads(self._store.get(digest))
            return int(mode), [_checked(entry) for entry in entries]
        except (ValueError, TypeError) as exc:
            raise Damaged(f"{self._store.path(digest)} is no folder's list") from exc

    def fill(self, fd: int, path: str, entries: list[list[Any]]) -> None:
        for kind, name, *rest in entries:
            if kind == "file":
                self._file(fd, path, name, rest)
            elif kind == "folder":
                self._folder(fd, path, name, rest[0])
            elif kind == "link":
                os.symlink(rest[0], name, dir_fd=fd)

    def _folder(self, parent: int, path: str, name: str, digest: str) -> None:
        mode, entries = self.listing(digest)
        os.mkdir(name, 0o700, dir_fd=parent)
        fd = os.open(name, _FOLDER_FLAGS, dir_fd=parent)
        try:
            self.fill(fd, f"{path}{name}/", entries)
            os.fchmod(fd, mode)  # after the contents: it may forbid writing
        finally:
            os.close(fd)

    def _file(self, parent: int, path: str, name: str, rest: list[Any]) -> None:
        digest, size, mode, mtime = rest
        fd = os.open(name, _FILE_FLAGS, mode, dir_fd=parent)
        try:
            for piece in self._store.chunks(digest):
                write_sparsely(fd, piece)
            os.truncate(fd, size)
            os.fchmod(fd, mode)  # the mask took bits away
            os.utime(fd, ns=(mtime, mtime))
            self._index.add(path, name, os.fstat(fd), digest)
        finally:
            os.close(fd)


def _checked(entry: list[Any]) -> list[Any]:
    """An entry whose name is one name, whatever was done to the store."""
    name = entry[1]
    if not isinstance(name, str) or name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ValueError(name)
    if entry[0] in ("file", "folder") and not _DIGEST.fullmatch(entry[2]):
        raise ValueError(entry[2])
    return entry
