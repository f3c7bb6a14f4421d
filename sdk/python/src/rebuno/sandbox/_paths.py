# SPDX-License-Identifier: Apache-2.0
"""Paths that a model names, opened so that they cannot leave the workspace.

Each component is opened relative to the folder before it and never through a link by the system;
links are followed here, one component at a time, and only within the workspace. So it does not
help to exchange a folder for a link in between.
"""

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

from ._errors import PathRefused
from ._store import CHUNK, write_all

_LINKS = 40
_LENGTH = 1000
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK


def read(root: Path, path: str, limit: int) -> bytes:
    """The contents of a regular file; FileNotFoundError when there is none."""
    with _named(path):
        return b"".join(_pieces(root, path, limit))


def copy(root: Path, path: str, limit: int, target: Path) -> None:
    """Copies a file to one outside that is new."""
    with _named(path), target.open("xb") as copied:
        for piece in _pieces(root, path, limit):
            copied.write(piece)


def _pieces(root: Path, path: str, limit: int) -> Iterator[bytes]:
    with _entry(root, path, make_folders=False) as (folder, name):
        fd = _open_file(folder, name, path)
        try:
            st = os.fstat(fd)
            if stat.S_ISDIR(st.st_mode):
                raise PathRefused(f"{path} is a folder")
            if not stat.S_ISREG(st.st_mode):
                raise PathRefused(f"{path} is not a regular file")
            if st.st_size > limit:
                raise PathRefused(
                    f"{path} has {st.st_size} bytes, more than the {limit} that are read at once"
                )
            left = st.st_size
            while left > 0 and (piece := os.read(fd, min(CHUNK, left))):
                yield piece
                left -= len(piece)
        finally:
            os.close(fd)


def write(root: Path, path: str, data: bytes) -> None:
    """Replaces a file as a whole, or creates it and the folders above it."""
    with _named(path), _entry(root, path, make_folders=True) as (folder, name):
        mode = _mode_to_keep(folder, name, path)
        aside = f".rebuno-{secrets.token_hex(8)}"
        # A new file under the name, never the old one's bytes: it may have another name outside.
        fd = os.open(
            aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666, dir_fd=folder
        )
        try:
            write_all(fd, data)
            if mode is not None:
                os.fchmod(fd, mode)
            os.rename(aside, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            os.unlink(aside, dir_fd=folder)
            raise
        finally:
            os.close(fd)


def names(root: Path, path: str) -> list[str]:
    """What a folder holds, sorted; folders end with a slash."""
    with _named(path), _Walk(root) as walk:
        walk.go(_parts(path), path)
        with os.scandir(walk.top) as found:
            return sorted(
                f"{entry.name}/" if entry.is_dir(follow_symlinks=False) else entry.name
                for entry in found
            )


def unlink(root: Path, path: str) -> None:
    """Removes a file."""
    with _entry(root, path, make_folders=False) as (folder, name):
        os.unlink(name, dir_fd=folder)


@contextlib.contextmanager
def _named(path: str) -> Iterator[None]:
    """Errors of the system say the whole path, not the component."""
    try:
        yield
    except OSError as exc:
        if exc.errno == errno.ENAMETOOLONG:
            raise PathRefused(f"{path} has a name that is too long") from exc
        raise OSError(exc.errno, exc.strerror, path) from exc


def _parts(path: str) -> list[str]:
    if "\0" in path or len(path) > _LENGTH:
        raise PathRefused(f"a path has no NUL character and at most {_LENGTH} others")
    try:
        os.fsencode(path)
    except UnicodeEncodeError as exc:
        raise PathRefused(f"{path!a} is no name that a file can have") from exc
    if path.startswith("/"):
        raise PathRefused(f"{path} is absolute: give it relative to the workspace")
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise PathRefused(f"{path} has a '..': it must stay within the workspace")
    return parts


@contextlib.contextmanager
def _entry(root: Path, path: str, *, make_folders: bool) -> Iterator[tuple[int, str]]:
    """The open folder in which a path ends, and the name there, which is no link now."""
    parts = _parts(path)
    if not parts or path.endswith("/"):
        raise PathRefused(f"{path!r} names no file")
    with _Walk(root) as walk:
        name = walk.go_to_last(parts, path, make_folders=make_folders)
        yield walk.top, name


class _Walk:
    """The folders from the root down to where the walk stands, all open."""

    def __init__(self, root: Path) -> None:
        self._open = [os.open(root, _FOLDER_FLAGS)]
        self._links = 0

    def __enter__(self) -> "_Walk":
        return self

    def __exit__(self, *_: object) -> None:
        for fd in self._open:
            os.close(fd)

    @property
    def top(self) -> int:
        return self._open[-1]

    def go(self, parts: list[str], path: str) -> None:
        """Enters all of the parts."""
        left = parts[::-1]
        while left:
            self._step(left, path, make=False)

    def go_to_last(self, parts: list[str], path: str, *, make_folders: bool) -> str:
        """Enters the folder of the last part, links followed. Returns its name there."""
        left = parts[::-1]
        while True:
            while len(left) > 1:
                self._step(left, path, make=make_folders)
            target = self._link(left[0])
            if target is None:
                return left[0]
            left = self._followed(target, path)[::-1]
            if not left or left[0] == "..":
                raise PathRefused(f"{path} is a folder")

    def _step(self, left: list[str], path: str, *, make: bool) -> None:
        part = left.pop()
        if part == "..":
            if len(self._open) == 1:
                raise PathRefused(f"{path} leaves the workspace through a symbolic link")
            os.close(self._open.pop())
            return
        target = self._link(part)
        if target is not None:
            left.extend(self._followed(target, path)[::-1])
            return
        if make:
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, dir_fd=self.top)
        try:
            self._open.append(os.open(part, _FOLDER_FLAGS, dir_fd=self.top))
        except OSError as exc:
            if exc.errno == errno.ENOTDIR:
                raise PathRefused(f"{path}: {part} is not a folder") from exc
            if exc.errno == errno.ELOOP:
                raise PathRefused(f"{path}: {part} became a symbolic link") from exc
            raise

    def _link(self, name: str) -> str | None:
        try:
            return os.readlink(name, dir_fd=self.top)
        except FileNotFoundError:
            return None
        except OSError as exc:
            if exc.errno == errno.EINVAL:  # no link
                return None
            raise

    def _followed(self, target: str, path: str) -> list[str]:
        self._links += 1
        if self._links > _LINKS:
            raise PathRefused(f"{path} goes through too many symbolic links")
        if target.startswith("/"):
            raise PathRefused(f"{path} leaves the workspace through a symbolic link")
        return [part for part in target.split("/") if part not in ("", ".")]


def _open_file(folder: int, name: str, path: str) -> int:
    try:
        return os.open(name, _FILE_FLAGS, dir_fd=folder)
    except OSError as exc:
        if exc.errno == errno.ELOOP:
            raise PathRefused(f"{path} became a symbolic link") from exc
        if exc.errno == errno.ENXIO:
            raise PathRefused(f"{path} is not a regular file") from exc
        raise


def _mode_to_keep(folder: int, name: str, path: str) -> int | None:
    try:
        st = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(st.st_mode):
        raise PathRefused(f"{path} is a folder")
    if not stat.S_ISREG(st.st_mode):
        raise PathRefused(f"{path} is not a regular file")
    return stat.S_IMODE(st.st_mode) & 0o777
