"""The kernel as a child process in a folder of its own."""

import contextlib
import http.client
import os
import re
import resource
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.client import BearerClient
from harness.waiting import Deadline, eventually

REPOSITORY = Path(__file__).resolve().parents[2]
BINARY = Path(os.environ.get("REBUNO_BIN", REPOSITORY / "build" / "rebuno"))
TOKEN = "test-bootstrap-token"
STOP_S = 10.0  # what SIGTERM may take
START_S = 20.0
URL = re.compile(r"http://(?:127\.0\.0\.1|localhost):(\d+)")


class KernelDiedError(AssertionError):
    """The process ended when it should not have; the message carries the end of its log."""


class Kernel:
    """One kernel on one database. `mode` is `server` or `dev`."""

    def __init__(
        self,
        folder: Path,
        database_url: str | None = None,
        *,
        mode: str = "server",
        env: Mapping[str, str] | None = None,
        args: Sequence[str] = (),
        binary: Path = BINARY,
    ) -> None:
        self.folder = folder
        self.database_url = database_url
        self.mode = mode
        self.env = dict(env or {})
        self.args = list(args)
        self.binary = binary
        self.file_size_limit: int | None = None  # a soft RLIMIT_FSIZE, set before start
        self.port = 0
        self.log = folder / "kernel.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.ended_with: int | None = None  # the exit code of the process before
        folder.mkdir(parents=True, exist_ok=True)

    # Life

    def command(self) -> list[str]:
        command = [str(self.binary), self.mode, "--listen-addr", f"127.0.0.1:{self.port}"]
        if self.mode == "server":
            assert self.database_url is not None
            command += ["--db-url", self.database_url, "--bearer-token", TOKEN]
        return command + self.args

    def environment(self) -> dict[str, str]:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("REBUNO_")}
        return {**inherited, "NO_COLOR": "1", **self.env}

    def spawn(self) -> None:
        """Starts the process without waiting for anything."""
        assert self.process is None, "the kernel is already running"
        limit = self.file_size_limit

        def bounded() -> None:
            if limit is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

        with self.log.open("ab") as log:
            self._log_start = log.tell()
            self.process = subprocess.Popen(
                self.command(),
                cwd=self.folder,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=bounded if limit is not None else None,
            )

    def start(self, *, ready: bool = True) -> "Kernel":
        self.spawn()
        try:
            if not self.port:
                self.port = self._wait_for_port()
            self.wait_answering(ready=ready)
        except BaseException:
            self.kill()
            raise
        return self

    def _wait_for_port(self) -> int:
        def port() -> int:
            self.assert_alive()
            found = URL.search(self.log_text())
            return int(found.group(1)) if found else 0

        return eventually(port, START_S, what="the kernel prints its URL")

    def wait_answering(self, *, ready: bool = True, timeout: float = START_S) -> None:
        path, deadline = ("/v0/ready" if ready else "/v0/health"), Deadline(timeout)
        while True:
            self.assert_alive()
            if self._status_of(path) == 200:
                return
            if deadline.passed:
                raise AssertionError(f"{path} is not 200 within {timeout} s\n{self.log_tail()}")
            deadline.pause()

    def _status_of(self, path: str) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return 0
        finally:
            connection.close()

    def wait_exit(self, timeout: float = STOP_S) -> int:
        assert self.process is not None
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {timeout} s\n{self.log_tail()}") from None
        self.ended_with, self.process = code, None
        return code

    def terminate(self) -> None:
        """SIGTERM, without waiting."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)

    def stop(self) -> None:
        """An orderly stop: exit code 0 within 10 seconds."""
        self.assert_alive()
        self.terminate()
        code = self.wait_exit()
        assert code == 0, f"exit code {code} after SIGTERM\n{self.log_tail()}"

    def kill(self) -> None:
        """SIGKILL. Nothing if it is not running."""
        if self.process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.ended_with, self.process = self.process.wait(), None

    def restart(self, *, kill: bool = False, ready: bool = True) -> None:
        """The same port and database, in a new process."""
        if kill:
            self.assert_alive()
            self.kill()
        else:
            self.stop()
        self.start(ready=ready)

    # State

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def assert_alive(self) -> None:
        if self.process is None:
            raise KernelDiedError("the kernel is not running")
        code = self.process.poll()
        if code is not None:
            raise KernelDiedError(f"the kernel ended with {code}\n{self.log_tail()}")

    @property
    def url(self) -> str:
        assert self.port, "not started"
        return f"http://127.0.0.1:{self.port}"

    def client(self, token: str | None = TOKEN, **options: float) -> BearerClient:
        return BearerClient(self.url, token=token, **options)

    def log_text(self) -> str:
        """What this process has logged since its start."""
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")

    def log_tail(self, lines: int = 60) -> str:
        text = self.log.read_text(errors="replace").splitlines()[-lines:]
        return "\n".join([f"--- {self.log}", *text])

    def limit_file_size(self, size: int) -> None:
        """Moves the soft limit of the running process."""
        assert self.process is not None
        soft_hard = (size, resource.RLIM_INFINITY)
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, soft_hard)

    def cpu_seconds(self) -> float:
        """What the process has worked so far."""
        text = self.client().get("/metrics").expect(200).body.decode()
        found = re.search(r"^process_cpu_seconds_total (\S+)$", text, re.MULTILINE)
        assert found is not None
        return float(found.group(1))

    def peak_resident_bytes(self) -> int:
        assert self.process is not None
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
        assert found is not None
        return int(found.group(1)) * 1024
