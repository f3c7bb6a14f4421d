"""The command line as a child process, against one kernel."""

import json
import os
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

from harness.kernel import BINARY, TOKEN, Kernel
from harness.waiting import eventually

COMMAND_S = 30.0


class Cli:
    """Runs commands against one kernel. `env` of None takes a variable away."""

    def __init__(self, kernel: Kernel, folder: Path) -> None:
        self.kernel = kernel
        self.folder = folder

    def environment(self, env: dict[str, str | None]) -> dict[str, str]:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("REBUNO_")}
        given = {"REBUNO_URL": self.kernel.url, "REBUNO_API_KEY": TOKEN, "TZ": "UTC", **env}
        return inherited | {k: v for k, v in given.items() if v is not None}

    def run(
        self, *words: str, stdin: bytes = b"", **env: str | None
    ) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [BINARY, *words],
            check=False,
            input=stdin,
            capture_output=True,
            env=self.environment(env),
            cwd=self.folder,
            timeout=COMMAND_S,
        )

    def out(self, *words: str, code: int = 0, **options: Any) -> str:
        """What a command prints that ends with `code` and has nothing to complain about."""
        done = self.run(*words, **options)
        assert (done.returncode, done.stderr) == (code, b""), done
        return done.stdout.decode()

    def json(self, *words: str, **options: Any) -> Any:
        return json.loads(self.out(*words, "--json", **options))

    def error(self, *words: str, code: int = 1, **options: Any) -> str:
        """What a command complains of that ends with `code` and prints nothing else."""
        done = self.run(*words, **options)
        assert (done.returncode, done.stdout) == (code, b""), done
        return done.stderr.decode()

    def on_terminal(self, columns: int, *words: str, **env: str) -> list[str]:
        """The lines that a terminal of this width shows of a command that succeeds."""
        shell = f"stty cols {columns}; {BINARY} {' '.join(words)}"
        done = subprocess.run(
            ["script", "-qec", shell, "/dev/null"],
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=self.environment({"TERM": "xterm", **env}),
            timeout=COMMAND_S,
        )
        assert done.returncode == 0, done
        return done.stdout.decode().replace("\r\n", "\n").splitlines()

    def spawn(self, *words: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [BINARY, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.environment({}),
            # A test run in the background has SIGINT ignored, and its children would inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
        )


class Following:
    """A running `exec watch` whose lines can be waited for."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.lines: list[str] = []
        self.errors: list[str] = []
        self._threads = [
            threading.Thread(target=self._read, args=(stream, into))
            for stream, into in ((process.stdout, self.lines), (process.stderr, self.errors))
        ]
        for thread in self._threads:
            thread.start()

    @staticmethod
    def _read(stream: Any, into: list[str]) -> None:
        for line in stream:
            into.append(line.decode())

    def wait_for(self, text: str) -> str:
        return eventually(
            lambda: next((line for line in self.lines + self.errors if text in line), ""),
            what=f"{text!r} in {self.lines} or {self.errors}",
        )

    def ended(self) -> int:
        code = self.process.wait(COMMAND_S)
        for thread in self._threads:
            thread.join()
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.ended()
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()
