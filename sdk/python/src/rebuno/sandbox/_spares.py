# SPDX-License-Identifier: Apache-2.0
"""Copies that are made before they are asked for, so that a restore need not write every file.

A spare is a tree of an earlier snapshot, with its index beside it, in a private folder. Whoever
restores takes one by a rename, so nobody else has it, and brings it to the wanted snapshot. Each
byte was hashed when the spare was made; the index tells whether a file is still that one, and one
that is not is written anew. Spares are made by a thread of this process, which ends with it; of
several processes one at a time makes them. Losing a spare costs time alone.
"""

import contextlib
import fcntl
import functools
import hashlib
import json
import logging
import os
import secrets
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from ._capture import Size
from ._restore import differing, restore
from ._store import Damaged, Store

logger = logging.getLogger("rebuno")

# A tree with less than this is written in a moment.
FILES = 500
BYTES = 64 << 20

NEAR = 20  # one file in so many may differ before a spare is brought forward
FAR = 2  # with one in so many, a copy of everything costs no more
SELDOM = 10  # a far spare is made anew when so many times what it took have passed
UNUSED_S = 7 * 24 * 3600
KEPT_FREE = 10 << 30  # bytes, or a tenth of a smaller disk
_BURST_S = 0.005


@dataclass(frozen=True)
class _Made:
    """What is noted beside a spare."""

    snapshot: str
    files: int
    seconds: float  # that it took
    at: float
    boot: str  # what was not on the disk when the machine went down is no longer what was hashed

    def differs(self, store: Store, digest: str) -> int:
        """By how many files; when it is far, by more than half of them."""
        limit = self.files // FAR
        try:
            return differing(store, self.snapshot, digest, limit)
        except Damaged:  # if it is the wanted one, restoring it tells
            return limit + 1

    def is_far(self, count: int) -> bool:
        """Whether a copy of everything costs no more than so many files."""
        return count * FAR > self.files

    def is_young(self) -> bool:
        """Whether the work of making it was done only just now."""
        return abs(time.time() - self.at) < SELDOM * self.seconds


class Spares:
    """The spares of one repository, `count` of them, in a store's folder."""

    def __init__(self, store: Store, repository: str, count: int) -> None:
        self._store = store
        self._folder = store.folder / "spares"
        self._prefix = hashlib.sha256(repository.encode()).hexdigest()[:16]
        self._count = count
        self._lock = threading.Lock()
        self._wanted: tuple[str, Size] | None = None
        self._maker: threading.Thread | None = None

    def restore(self, digest: str, home: Path) -> None:
        """Makes a snapshot's tree and its index in an empty folder, all at once; raises Damaged."""
        with self._store.aside() as aside:
            tree, size = self._by_difference(digest, aside) or self._whole(digest, aside)
            os.rename(tree, home)
        self.keep(digest, size)

    def keep(self, digest: str, size: Size) -> None:
        """Has spares made for a snapshot that is likely to be restored, or one near it."""
        if not self._count or (size.files < FILES and size.bytes < BYTES):
            return
        with self._lock:
            self._wanted = digest, size
            if self._maker is None or not self._maker.is_alive():
                # A daemon: it ends with the process, at any point.
                self._maker = threading.Thread(target=self._make, name="spares", daemon=True)
                self._maker.start()

    def settle(self) -> None:
        """Waits until no spare is being made."""
        while (maker := self._maker) is not None and maker.is_alive():
            maker.join()

    def sweep(self) -> None:
        """Removes spares that nobody will use."""
        for spare in self._all():
            made = _read(spare)
            unused = made is None or abs(time.time() - made.at) > UNUSED_S
            if unused or (not self._count and self._is_own(spare)):
                self._discard(spare)

    # What is restored

    def _by_difference(self, digest: str, aside: Path) -> tuple[Path, Size] | None:
        tree = aside / "spare"
        for spare, made in self._own():
            if made.is_far(made.differs(self._store, digest)) or not _moved(spare, tree):
                continue
            try:
                size = restore(self._store, digest, tree, old=aside / "old")
                (tree / "made").unlink()
            except OSError as exc:
                logger.info("%s is not used, everything is copied: %s", spare, exc)
                shutil.rmtree(tree, ignore_errors=True)  # it may be the disk that is full
                return None
            return tree, size
        return None

    def _whole(self, digest: str, aside: Path) -> tuple[Path, Size]:
        tree = aside / "whole"
        tree.mkdir(mode=0o700)
        return tree, restore(self._store, digest, tree, old=aside / "old")

    # What is made

    def _make(self) -> None:
        while True:
            with self._lock:
                wanted, self._wanted = self._wanted, None
                if wanted is None:
                    self._maker = None
                    return
            try:
                with self._alone():
                    self._provide(*wanted)
            except (OSError, Damaged) as exc:
                logger.info("no spare of the snapshot sha256:%s: %s", wanted[0], exc)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        fd = os.open(self._folder / "lock", os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def _provide(self, digest: str, size: Size) -> None:
        self.sweep()
        if not self._has_room(size):
            for spare in self._all():
                self._discard(spare)
            return
        near, others = 0, []
        for spare, made in self._own():
            count = made.differs(self._store, digest)
            if count * NEAR <= made.files:
                near += 1
            else:
                others.append((spare, made, count))
        for _ in range(self._count - near):
            if not self._one_more(digest, others.pop() if others else None):
                return
        for spare, _, _ in others:
            self._discard(spare)

    def _one_more(self, digest: str, instead: tuple[Path, _Made, int] | None) -> bool:
        began = time.monotonic()
        with self._store.aside() as aside:
            tree = aside / "spare"
            if instead is not None:
                spare, made, count = instead
                if made.is_far(count):
                    if made.is_young():
                        return False
                    _moved(spare, aside / "far")
                else:
                    _moved(spare, tree)
            tree.mkdir(mode=0o700, exist_ok=True)
            size = restore(
                self._store, digest, tree, old=aside / "old", pace=_Pace(), whole_index=True
            )
            made = _Made(digest, size.files, time.monotonic() - began, time.time(), _boot())
            (tree / "made").write_text(json.dumps(asdict(made)))
            os.rename(tree, self._folder / f"{self._prefix}-{secrets.token_hex(8)}")
        return True

    def _has_room(self, size: Size) -> bool:
        disk = shutil.disk_usage(self._folder)
        return disk.free - size.bytes > min(disk.total // 10, KEPT_FREE)

    # What is there

    def _all(self) -> list[Path]:
        try:
            return [path for path in self._folder.iterdir() if path.name != "lock"]
        except FileNotFoundError:
            return []

    def _is_own(self, spare: Path) -> bool:
        return spare.name.startswith(f"{self._prefix}-")

    def _own(self) -> list[tuple[Path, _Made]]:
        found = ((spare, _read(spare)) for spare in self._all() if self._is_own(spare))
        return [(spare, made) for spare, made in found if made is not None]

    def _discard(self, spare: Path) -> None:
        with self._store.aside() as aside:
            _moved(spare, aside / "spare")


class _Pace:
    """Rests as long as it works, so that what else this process does goes on."""

    def __init__(self) -> None:
        self._since = time.monotonic()

    def __call__(self) -> None:
        worked_s = time.monotonic() - self._since
        if worked_s > _BURST_S:
            time.sleep(worked_s)
            self._since = time.monotonic()


def _moved(spare: Path, to: Path) -> bool:
    """Takes a spare for oneself; false when somebody else has."""
    try:
        os.rename(spare, to)
    except FileNotFoundError:
        return False
    return True


def _read(spare: Path) -> _Made | None:
    """What is noted; nothing when that is no spare that can be used."""
    try:
        made = _Made(**json.loads((spare / "made").read_bytes()))
    except (OSError, ValueError, TypeError):
        return None
    return made if made.boot == _boot() else None


@functools.cache
def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
