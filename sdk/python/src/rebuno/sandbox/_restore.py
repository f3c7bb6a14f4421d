# SPDX-License-Identifier: Apache-2.0
"""A tree out of its objects: the reverse of `_capture`, into a new folder or over an older tree.

The copy shares no file with the store or with another copy: whoever writes to it changes it alone.
Of an older tree only those files stay whose bytes the index proves to be the wanted ones. All else
is written anew or taken away, so it does not matter how the tree came to differ.
"""

import contextlib
import fcntl
import json
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ._capture import Size, permit
from ._index import Index
from ._store import Damaged, Store, write_sparsely

_DIGEST = re.compile(r"[0-9a-f]{64}")
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_FILE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW

_FICLONE = 0x40049409
_LARGE = 64 << 10  # less is written as fast

Pace = Callable[[], None]
There = dict[str, os.stat_result]
Listing = tuple[int, list[list[Any]]]


def restore(
    store: Store,
    digest: str,
    folder: Path,
    *,
    old: Path,
    pace: Pace = lambda: None,
    whole_index: bool = False,
) -> Size:
    """Makes the tree as `workspace` in the folder, with its index; raises Damaged half-way.

    An earlier tree there is brought to this one; folders that it does not have are put into `old`.
    `pace` is called after each file that is written.
    """
    root = folder / "workspace"
    index = Index(folder / "index")
    writer = _Writer(store, index, old, pace)
    mode, entries = listing(store, digest)
    with contextlib.suppress(FileExistsError):
        root.mkdir(mode=0o700)
    fd = _entered(None, str(root), root.lstat())
    index.begin()
    try:
        writer.fill(fd, "", entries)
        os.fchmod(fd, mode)
    finally:
        os.close(fd)
    index.end_of_writing(whole=whole_index)
    return writer.size


def differing(store: Store, old: str, new: str, limit: int) -> int:
    """How many files two trees do not share; more than the limit are not counted."""
    return _Comparison(store, limit).folders(old, new)


def listing(store: Store, digest: str) -> Listing:
    """A folder's permissions and entries; raises Damaged."""
    try:
        mode, entries = json.loads(store.get(digest))
        return int(mode), [_checked(entry) for entry in entries]
    except (ValueError, TypeError) as exc:
        raise Damaged(f"{store.path(digest)} is no folder's list") from exc


class _Writer:
    def __init__(self, store: Store, index: Index, old: Path, pace: Pace) -> None:
        self.size = Size()
        self._store = store
        self._index = index
        self._old = old
        self._cleared = 0
        self._pace = pace
        self._clones = True

    def fill(self, fd: int, path: str, entries: list[list[Any]]) -> None:
        with os.scandir(fd) as found:
            there = {entry.name: entry.stat(follow_symlinks=False) for entry in found}
        for kind, name, *rest in entries:
            if kind == "file":
                self._file(fd, path, name, rest, there)
            elif kind == "folder":
                self._folder(fd, path, name, rest[0], there)
            elif kind == "link":
                self._link(fd, name, rest[0], there)
        for name in list(there):
            self._clear(fd, name, there)

    def _folder(self, parent: int, path: str, name: str, digest: str, there: There) -> None:
        mode, entries = listing(self._store, digest)
        if name in there and not stat.S_ISDIR(there[name].st_mode):
            self._clear(parent, name, there)
        st = there.pop(name, None)
        if st is None:
            os.mkdir(name, 0o700, dir_fd=parent)
        fd = _entered(parent, name, st)
        try:
            self.fill(fd, f"{path}{name}/", entries)
            os.fchmod(fd, mode)  # after the contents: it may forbid writing
        finally:
            os.close(fd)

    def _link(self, parent: int, name: str, target: str, there: There) -> None:
        if name in there:
            same = stat.S_ISLNK(there[name].st_mode)
            if same and os.readlink(name, dir_fd=parent) == target:
                del there[name]
                return
            self._clear(parent, name, there)
        os.symlink(target, name, dir_fd=parent)

    def _file(self, parent: int, path: str, name: str, rest: list[Any], there: There) -> None:
        digest, size, mode, mtime = rest
        self.size.add(size)
        if name in there:
            st = there[name]
            same = stat.S_ISREG(st.st_mode) and stat.S_IMODE(st.st_mode) == mode
            if same and st.st_mtime_ns == mtime and self._index.find(path, name, st) == digest:
                del there[name]
                return
            self._clear(parent, name, there)
        fd = os.open(name, _FILE_FLAGS, mode, dir_fd=parent)
        try:
            is_there = size >= _LARGE and self._cloned(fd, digest)
            for piece in self._store.chunks(digest):
                if not is_there:
                    write_sparsely(fd, piece)
            os.truncate(fd, size)
            os.fchmod(fd, mode)  # the mask took bits away
            os.utime(fd, ns=(mtime, mtime))
            self._index.add(path, name, os.fstat(fd), digest)
        finally:
            os.close(fd)
        self._pace()

    def _cloned(self, fd: int, digest: str) -> bool:
        """Has the file system copy an object, if it is one on which copies share their blocks."""
        if not self._clones:
            return False
        try:
            source = os.open(self._store.path(digest), os.O_RDONLY | os.O_NOFOLLOW)
            try:
                fcntl.ioctl(fd, _FICLONE, source)
            finally:
                os.close(source)
        except OSError:
            self._clones = False
        return self._clones

    def _clear(self, parent: int, name: str, there: There) -> None:
        """Takes away what an earlier tree has under the name; a folder whole, without a look."""
        st = there.pop(name)
        if not stat.S_ISDIR(st.st_mode):
            os.unlink(name, dir_fd=parent)
            return
        self._old.mkdir(mode=0o700, exist_ok=True)
        os.close(_entered(parent, name, st))  # moving a folder needs the right to write to it
        self._cleared += 1
        os.rename(name, self._old / str(self._cleared), src_dir_fd=parent)


class _Comparison:
    def __init__(self, store: Store, limit: int) -> None:
        self._store = store
        self._limit = limit
        self._count = 0

    def folders(self, *digests: str | None) -> int:
        one, two = ({} if digest is None else self._entries(digest) for digest in digests)
        for name in one.keys() | two.keys():
            if self._count > self._limit:
                break
            if one.get(name) != two.get(name):
                self._entry(one.get(name, [""]), two.get(name, [""]))
        return self._count

    def _entry(self, one: list[Any], two: list[Any]) -> None:
        if "folder" in (one[0], two[0]):
            self.folders(*(entry[2] if entry[0] == "folder" else None for entry in (one, two)))
        if one[0] != "folder" or two[0] != "folder":
            self._count += 1

    def _entries(self, digest: str) -> dict[str, list[Any]]:
        return {entry[1]: entry for entry in listing(self._store, digest)[1]}


def _entered(parent: int | None, name: str, st: os.stat_result | None) -> int:
    """Opens a folder so that its owner may change what is in it."""
    closed = st is not None and st.st_mode & stat.S_IRWXU != stat.S_IRWXU
    if closed:
        permit(parent, name)
    fd = os.open(name, _FOLDER_FLAGS, dir_fd=parent)
    if closed:
        os.fchmod(fd, stat.S_IRWXU)
    return fd


def _checked(entry: list[Any]) -> list[Any]:
    """An entry whose name is one name, whatever was done to the store."""
    name = entry[1]
    if not isinstance(name, str) or name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ValueError(name)
    if entry[0] in ("file", "folder") and not _DIGEST.fullmatch(entry[2]):
        raise ValueError(entry[2])
    return entry
