# SPDX-License-Identifier: Apache-2.0
"""Objects by the hash of their bytes, in a folder that several processes may use at once.

An object is written aside and renamed to its name, so a name always holds all of it, whoever is
killed when. A batch goes to the disk as a whole: first all bytes, then all names. So a reference
that was handed out also outlives a power failure, on a file system that keeps its promises.
Objects are never changed and never removed. What is read is hashed again: damage is found, not
passed on.
"""

import contextlib
import ctypes
import errno
import hashlib
import os
from collections.abc import Collection, Iterator
from pathlib import Path

from ._aside import aside, sweep

CHUNK = 1 << 20
_DAMAGE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR, errno.EIO)
_MANY = 100
_ZEROS = bytes(CHUNK)


class Damaged(Exception):
    """An object is missing, or its bytes are not those it is named after."""


class Store:
    """The objects below one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._objects = folder / "objects"
        self._aside = folder / "aside"

    def prepare(self) -> None:
        """Makes the folders, and takes away what killed processes left half-written."""
        for folder in (self.folder, self._objects, self._aside):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        sweep(self._aside)

    def aside(self) -> contextlib.AbstractContextManager[Path]:
        """A folder for what is being written, on the file system of the store."""
        return aside(self._aside)

    def path(self, digest: str) -> str:
        """Where the object is."""
        return f"{self._objects}/{digest[:2]}/{digest[2:]}"

    def has(self, digest: str, size: int) -> bool:
        """Whether the object is there, by its name and size."""
        try:
            return os.stat(self.path(digest)).st_size == size
        except OSError:
            return False

    def get(self, digest: str) -> bytes:
        """The object's bytes; raises Damaged."""
        return b"".join(self.chunks(digest))

    def chunks(self, digest: str) -> Iterator[bytes]:
        """The object piece by piece; raises Damaged, perhaps only after the last piece."""
        path = self.path(digest)
        summed = hashlib.sha256()
        try:
            with _opened(path) as fd:
                while piece := os.read(fd, CHUNK):
                    summed.update(piece)
                    yield piece
        except OSError as exc:
            if exc.errno not in _DAMAGE:  # the caller's trouble, or the machine's, for a while
                raise
            raise Damaged(f"{path} cannot be read: {exc.strerror}") from exc
        if summed.hexdigest() != digest:
            raise Damaged(f"{path} is damaged")

    @contextlib.contextmanager
    def batch(self) -> Iterator["Batch"]:
        """What is put into the batch is in the store when the block ends without an error."""
        with self.aside() as folder:
            batch = Batch(self, folder)
            yield batch
            if batch.written:
                self._take(batch)

    def _take(self, batch: "Batch") -> None:
        _to_disk(batch.written.values(), batch.aside)
        folders = set()
        for digest, written in batch.written.items():
            path = self.path(digest)
            folders.add(os.path.dirname(path))
            try:
                os.rename(written, path)
            except FileNotFoundError:
                os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
                folders.add(str(self._objects))
                os.rename(written, path)
        _to_disk(folders, self._objects)


class Batch:
    """New objects, not in the store yet."""

    def __init__(self, store: Store, aside: Path) -> None:
        self.aside = aside
        self.written: dict[str, str] = {}
        self._store = store
        self._count = 0

    def put(self, data: bytes) -> str:
        """Adds an object, unless the store has it. Returns its digest."""
        digest = hashlib.sha256(data).hexdigest()
        if digest not in self.written and not self._store.has(digest, len(data)):
            fd, path = self._create()
            try:
                write_all(fd, data)
            finally:
                os.close(fd)
            self.written[digest] = path
        return digest

    def put_file(self, source: int) -> tuple[str, int]:
        """Adds what the descriptor holds from here on, in bounded memory: digest and size."""
        first = os.read(source, CHUNK)
        second = os.read(source, CHUNK) if first else b""
        if not second:
            return self.put(first), len(first)
        summed = hashlib.sha256()
        size = 0
        fd, path = self._create()
        try:
            for piece in _pieces(first, second, source):
                summed.update(piece)
                size += len(piece)
                write_sparsely(fd, piece)
            os.truncate(fd, size)
        finally:
            os.close(fd)
        digest = summed.hexdigest()
        if digest in self.written or self._store.has(digest, size):
            os.unlink(path)
        else:
            self.written[digest] = path
        return digest, size

    def _create(self) -> tuple[int, str]:
        self._count += 1
        path = f"{self.aside}/{self._count}"
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400), path


def _pieces(first: bytes, second: bytes, source: int) -> Iterator[bytes]:
    yield first
    yield second
    while piece := os.read(source, CHUNK):
        yield piece


def write_all(fd: int, data: bytes) -> None:
    """Writes everything; a single write may take less."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def write_sparsely(fd: int, data: bytes) -> None:
    """As `write_all`, but zeros become a hole; the caller truncates the file to its size."""
    if data == _ZEROS[: len(data)]:
        os.lseek(fd, len(data), os.SEEK_CUR)
    else:
        write_all(fd, data)


def _to_disk(paths: Collection[str], folder: Path) -> None:
    """Waits until these, all on the file system of the folder, are on the disk."""
    if len(paths) > _MANY:
        # One call for thousands; for a few it could cost more: it also waits for what others wrote.
        with _opened(folder) as fd:
            if ctypes.CDLL(None, use_errno=True).syncfs(fd) != 0:
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code), str(folder))
        return
    for path in paths:
        with _opened(path) as fd:
            os.fsync(fd)


@contextlib.contextmanager
def _opened(path: str | Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        yield fd
    finally:
        os.close(fd)
