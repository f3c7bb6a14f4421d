# SPDX-License-Identifier: Apache-2.0
"""A folder that plays the disk of a sandbox, and commands that really run in it.

Paths below the sandbox's home stand for paths below the folder: they are replaced in arguments, and
back in what a command prints. Git finds a local GitHub at https://github.com/ as long as what it
would send there is accepted.
"""

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from github import GitHub

PATH = "/usr/local/bin:/usr/bin:/bin"


@dataclass(frozen=True)
class Ran:
    exit_code: int
    stdout: str
    stderr: str
    timed_out: bool = False


class Machine:
    """`authorization`: the header that the provider would add to what Git sends to github.com."""

    def __init__(self, root: Path, *, home: str, github: GitHub | None = None) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.root = root.resolve()
        self.home = home
        self.github = github
        self.authorization = ""
        self._home = re.compile(rf"(?<![\w./-]){re.escape(home)}(?![\w-])")

    @classmethod
    def from_snapshot(
        cls, snapshot: Path, root: Path, *, home: str, github: GitHub | None = None
    ) -> "Machine":
        shutil.copytree(snapshot, root, symlinks=True)
        return cls(root, home=home, github=github)

    def snapshot(self, to: Path) -> None:
        shutil.copytree(self.root, to, symlinks=True)

    def run(
        self,
        argv: Sequence[str],
        cwd: str | None = None,
        timeout: float | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Ran:
        """Runs a command; FileNotFoundError if `cwd` is no folder."""
        folder = self.path(cwd or self.home)
        if not folder.is_dir():
            raise FileNotFoundError(f"no folder {cwd}")
        child = subprocess.Popen(
            [self._home.sub(str(self.root), word) for word in argv],
            cwd=folder,
            env={
                "PATH": PATH,
                "HOME": str(self.root),
                "LANG": "C.UTF-8",
                **self._git(),
                **(env or {}),
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        timed_out = False
        try:
            stdout, stderr = child.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            timed_out = True
            os.killpg(child.pid, signal.SIGKILL)
            stdout, stderr = child.communicate()
        return Ran(child.returncode, self._shown(stdout), self._shown(stderr), timed_out)

    def read(self, path: str) -> bytes:
        """A file's contents, or FileNotFoundError."""
        return self.path(path).read_bytes()

    def write(self, path: str, content: bytes) -> None:
        file = self.path(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)

    def path(self, name: str) -> Path:
        """Where a path of the sandbox is on this disk; a relative one counts from the home."""
        inside = Path(name) if name.startswith("/") else Path(self.home, name)
        try:
            return self.root / inside.relative_to(self.home)
        except ValueError:
            raise FileNotFoundError(
                f"{name} is outside of {self.home}, the only disk here"
            ) from None

    def holds(self, text: str) -> list[str]:
        """The files that contain a text."""
        wanted = text.encode()
        files = (path for path in self.root.rglob("*") if path.is_file() and not path.is_symlink())
        return [str(path.relative_to(self.root)) for path in files if wanted in path.read_bytes()]

    def _git(self) -> dict[str, str]:
        told = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_TERMINAL_PROMPT": "0"}
        if self.github is not None:
            url = self.github.git_url(self.authorization)
            told |= {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": f"url.{url}.insteadOf"}
            told["GIT_CONFIG_VALUE_0"] = "https://github.com/"
        return told

    def _shown(self, output: bytes) -> str:
        return output.decode(errors="replace").replace(str(self.root), self.home)
