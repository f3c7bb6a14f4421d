# SPDX-License-Identifier: Apache-2.0
"""What a command sees of the machine when bubblewrap is there: its workspace, and programs.

The file system is there to read, but for homes, `/run` (sockets of daemons) and the sandboxes'
own folder, which are empty. Only the workspace and a `/tmp` of its own can be written. It has its
own processes, no capabilities, and no network unless that was asked for.
"""

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

WORKSPACE = "/workspace"
_HIDDEN = ("/home", "/root", "/run", "/var/run")
_SCRATCH = ("/tmp", "/var/tmp", "/dev/shm")
_OWN = ("proc", "dev", WORKSPACE.strip("/"))
_PROBE_S = 20


@dataclass(frozen=True)
class View:
    """What of the machine a sandbox shows, beside the default."""

    network: bool
    tmp_bytes: int
    readable: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()


@dataclass(frozen=True)
class Bubblewrap:
    """A bubblewrap that works here."""

    program: str
    version: tuple[int, ...]

    def argv(self, view: View, workspace: Path, command: Sequence[str]) -> list[str]:
        """The command line that runs a command in a sandbox."""
        # fmt: off
        return [
            self.program,
            "--unshare-all", "--unshare-user", *(["--share-net"] if view.network else []),
            *(["--disable-userns"] if self.version >= (0, 8) else []),
            # Root would keep its capabilities, and could undo every mount below.
            "--cap-drop", "ALL", "--die-with-parent", "--new-session", "--hostname", "sandbox",
            *_machine(),
            "--proc", "/proc", "--dev", "/dev",
            *self._covered(view),
            *(option for path in view.readable for option in ("--ro-bind", path, path)),
            *(_resolver() if view.network else []),
            "--bind", str(workspace), WORKSPACE, "--chdir", WORKSPACE,
            "--remount-ro", "/dev", "--remount-ro", "/",
            "--", *command,
        ]
        # fmt: on

    def _covered(self, view: View) -> list[str]:
        size = ["--size", str(view.tmp_bytes)] if self.version >= (0, 7) else []
        options = []
        for path in _SCRATCH:
            options += [*size, "--perms", "1777", "--tmpfs", path]
        for path in _outermost([*_HIDDEN, os.path.expanduser("~"), *view.hidden]):
            if os.path.isdir(path):
                options += ["--tmpfs", path, "--remount-ro", path]
            else:
                options += ["--ro-bind", os.devnull, path]
        return options


def find() -> tuple[Bubblewrap | None, str]:
    """The bubblewrap on the PATH, if it works here; else None, and why."""
    program = shutil.which("bwrap")
    if program is None:
        return None, "bubblewrap is not installed (Debian and Ubuntu: apt-get install bubblewrap)"
    return _probed(os.path.realpath(program))


@functools.cache
def _probed(program: str) -> tuple[Bubblewrap | None, str]:
    """Tries it once: containers and some systems do not let it make its namespaces."""
    said = _run([program, "--version"])
    version = re.search(r"(\d+(?:\.\d+)+)", said.stdout)
    if version is None:
        return None, f"{program} does not tell its version: {said.stderr.strip()}"
    found = Bubblewrap(program, tuple(int(part) for part in version[1].split(".")))
    view = View(network=False, tmp_bytes=1 << 20)
    tried = _run(found.argv(view, Path("/usr"), ["true"]))
    if tried.returncode != 0:
        return None, f"bubblewrap cannot make a sandbox here: {tried.stderr.strip()}"
    return found, ""


def _run(argv: list[str]) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(
            argv, check=False, capture_output=True, text=True, timeout=_PROBE_S, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        return subprocess.CompletedProcess(argv, 1, "", str(exc))


def _machine() -> list[str]:
    """The top of the file system, entry by entry, so that `/workspace` can stand beside them."""
    options = []
    for name in sorted(os.listdir("/")):
        path = f"/{name}"
        if name in _OWN or path in _HIDDEN or path in _SCRATCH:
            continue
        if os.path.islink(path):
            options += ["--symlink", os.readlink(path), path]
        else:
            options += ["--ro-bind-try", path, path]
    return options


def _outermost(paths: list[str]) -> list[str]:
    """What is there of the paths, without those inside another or in a scratch folder."""
    found = sorted({os.path.realpath(path) for path in paths if os.path.exists(path)} - {"/"})
    kept: list[str] = []
    for path in found:
        if not any(path == outer or path.startswith(f"{outer}/") for outer in (*kept, *_SCRATCH)):
            kept.append(path)
    return kept


def _resolver() -> list[str]:
    """The file that names the name servers, which is often a link into `/run`."""
    path = os.path.realpath("/etc/resolv.conf")
    inside = any(path.startswith(f"{outer}/") for outer in _HIDDEN)
    return ["--ro-bind-try", path, path] if inside else []
