"""What the tests of local sandboxes share: drivers with small limits, and trees told in words."""

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from rebuno.sandbox._bubblewrap import find
from rebuno.sandbox.local import Limits, LocalSandbox

ISOLATIONS = [
    pytest.param(
        "required",
        marks=pytest.mark.skipif(find()[0] is None, reason=f"no isolation here: {find()[1]}"),
    ),
    "off",
]
SMALL = Limits(seconds=30, processes=100, file_bytes=8 << 20, tmp_bytes=8 << 20)


def sandbox(folder: Path, source: Any = None, **settings: Any) -> LocalSandbox:
    """A driver that keeps its sandboxes below the test's folder."""
    settings.setdefault("limits", SMALL)
    settings.setdefault("isolation", "off")
    return LocalSandbox(source, folder=folder / "store", **settings)


def tree(root: Path) -> dict[str, tuple[Any, ...]]:
    """A tree as another than the driver sees it: by path, what it is and what it holds."""
    found: dict[str, tuple[Any, ...]] = {}
    for top, folders, files in os.walk(root):
        for name in (*folders, *files):
            path = Path(top, name)
            st = path.lstat()
            mode = stat.S_IMODE(st.st_mode)
            what: tuple[Any, ...]
            if stat.S_ISLNK(st.st_mode):
                what = ("link", os.readlink(path))
            elif stat.S_ISDIR(st.st_mode):
                what = ("folder", mode)
            elif stat.S_ISREG(st.st_mode):
                what = ("file", mode, st.st_mtime_ns, path.read_bytes())
            else:
                what = ("other", stat.S_IFMT(st.st_mode))
            found[str(path.relative_to(root))] = what
    return found


def objects(folder: Path) -> set[Path]:
    """The objects that the store of `sandbox` holds."""
    return {path for path in (folder / "store" / "objects").rglob("*") if path.is_file()}


def object_of(folder: Path, digest: str) -> Path:
    """Where an object is: what a person who looks for it finds."""
    (path,) = [path for path in objects(folder) if path.parent.name + path.name == digest]
    return path
