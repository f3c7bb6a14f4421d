# SPDX-License-Identifier: Apache-2.0
"""Folders for what is being written, told from those that killed processes left.

Each is locked by the process that writes to it. The system lets go of the lock when that process
is gone, however it ended, so a folder that can be locked belongs to nobody.
"""

import contextlib
import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

from ._remove import remove

JUST_MADE_S = 60  # its owner may be about to lock it
LEFT_OVER_S = 24 * 3600  # for what cannot be locked on this file system
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


@contextlib.contextmanager
def aside(folder: Path) -> Iterator[Path]:
    """A new folder below one, removed with what it then holds when the block ends."""
    path = folder / f"{os.getpid()}-{secrets.token_hex(8)}"
    path.mkdir(mode=0o700, parents=True)
    fd = os.open(path, _FOLDER_FLAGS)
    try:
        _lock(fd)
        yield path
    finally:
        try:
            path.rmdir()
        except OSError:
            remove(path)
        os.close(fd)


def sweep(folder: Path) -> None:
    """Removes the folders of processes that are gone."""
    for left in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):
            age_s = time.time() - left.lstat().st_mtime
            if age_s > LEFT_OVER_S or (age_s > JUST_MADE_S and _is_nobodys(left)):
                remove(left)


def _is_nobodys(path: Path) -> bool:
    try:
        fd = os.open(path, _FOLDER_FLAGS)
    except NotADirectoryError:
        return False
    try:
        return _lock(fd)
    finally:
        os.close(fd)


def _lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
