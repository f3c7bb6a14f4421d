# SPDX-License-Identifier: Apache-2.0
"""What a workspace's files were when they were last read, so that only changed ones are read.

A file is known by size, times and inode. That it was not written since then follows only when its
last change is older than the moment at which the reading began: a later write gets a later time,
but one within the clock's resolution need not. Files that young are read again the next time.
"""

import hashlib
import json
import os
import time
from pathlib import Path

Known = tuple[int, int, int, int, str]  # size, mtime, ctime, inode, digest

_VERSION = "1"
_TICK_S = 0.001
_TICKS_S = 3.0


class Index:
    """The files of one workspace by folder and name. A cache: losing it costs time alone."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._old = _load(path)
        self._new: dict[str, dict[str, Known]] = {}
        self._now = 0

    def begin(self) -> None:
        """Says that a reading of the whole workspace begins."""
        self._new = {}
        self._now = self._clock()

    def _clock(self) -> int:
        """The file system's own time, in its own resolution."""
        fd = os.open(self._path.with_suffix(".clock"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.utime(fd)
            return os.fstat(fd).st_ctime_ns
        finally:
            os.close(fd)

    def find(self, folder: str, name: str, st: os.stat_result) -> str | None:
        """The digest of a file that is unchanged; it is kept."""
        known = self._old.get(folder, {}).get(name)
        if known is None or known[:4] != (st.st_size, st.st_mtime_ns, st.st_ctime_ns, st.st_ino):
            return None
        self._new.setdefault(folder, {})[name] = known
        return known[4]

    def add(self, folder: str, name: str, st: os.stat_result, digest: str) -> None:
        """Notes a file that was read."""
        self._new.setdefault(folder, {})[name] = (
            st.st_size,
            st.st_mtime_ns,
            st.st_ctime_ns,
            st.st_ino,
            digest,
        )

    def end_of_writing(self, *, whole: bool = False) -> None:
        """Keeps what was added by the one who wrote all of it and now lets others in.

        `whole` waits for the clock, so that also the youngest files are known.
        """
        self._now = self._clock()
        if whole:
            youngest = max(
                (known[2] for files in self._new.values() for known in files.values()), default=0
            )
            deadline = time.monotonic() + _TICKS_S  # a clock that was set back is not waited for
            while self._now <= youngest and time.monotonic() < deadline:
                time.sleep(_TICK_S)
                self._now = self._clock()
        self.end()

    def end(self) -> None:
        """Keeps what the reading found, here and on disk."""
        new = {
            folder: {name: known for name, known in files.items() if known[2] < self._now}
            for folder, files in self._new.items()
        }
        self._new = {}
        if new == self._old:
            return
        self._old = new
        body = json.dumps(self._old, separators=(",", ":")).encode()
        written = self._path.with_suffix(f".{os.getpid()}")
        written.write_bytes(_seal(body) + body)
        os.replace(written, self._path)


def _seal(body: bytes) -> bytes:
    return f"{_VERSION} {hashlib.sha256(body).hexdigest()}\n".encode()


def _load(path: Path) -> dict[str, dict[str, Known]]:
    try:
        seal, _, body = path.read_bytes().partition(b"\n")
    except FileNotFoundError:
        return {}
    if seal + b"\n" != _seal(body):
        return {}
    return {
        folder: {
            name: (known[0], known[1], known[2], known[3], known[4])
            for name, known in files.items()
        }
        for folder, files in json.loads(body).items()
    }
