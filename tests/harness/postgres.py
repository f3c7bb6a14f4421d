"""A private PostgreSQL cluster with production durability, and databases in it.

The server refuses to run as root, so root starts it as the user `postgres`. It is a child of this
process and is ended by its pid.
"""

import contextlib
import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from harness.waiting import Deadline

BIN = Path(os.environ.get("REBUNO_PG_BIN", "/usr/lib/postgresql/15/bin"))
USER = "postgres"
SETTINGS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "max_connections": "200",
    "shared_buffers": "64MB",
    "listen_addresses": "127.0.0.1",
    "log_min_messages": "warning",
}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Cluster:
    """One server in one temporary folder. It can be stopped and started while tests run."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="rebuno-pg-"))
        self.data = self.folder / "data"
        self.log = self.folder / "postgres.log"
        self.port = _free_port()
        self._names = itertools.count(1)
        self.process: subprocess.Popen[bytes] | None = None
        try:
            if os.geteuid() == 0:
                entry = pwd.getpwnam(USER)
                os.chown(self.folder, entry.pw_uid, entry.pw_gid)
            self._initialize()
            self.start()
        except BaseException:
            self.close()
            raise

    @staticmethod
    def _as_user(*command: str | Path) -> list[str]:
        words = [str(word) for word in command]
        if os.geteuid() == 0:
            return ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--init-groups", *words]
        return words

    def _initialize(self) -> None:
        command = self._as_user(
            BIN / "initdb", "-D", self.data, "-U", USER, "--auth=trust", "-E", "UTF8",
            "--locale=C.UTF-8", "--no-instructions",
        )  # fmt: skip
        done = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"initdb: {done.stdout}{done.stderr}")

    def start(self) -> None:
        assert self.process is None, "the cluster is already running"
        settings = {**SETTINGS, "unix_socket_directories": str(self.folder)}
        options = [word for k, v in settings.items() for word in ("-c", f"{k}={v}")]
        command = self._as_user(BIN / "postgres", "-D", self.data, "-p", str(self.port), *options)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        deadline = Deadline(60)
        while True:
            if self.process.poll() is not None:
                raise RuntimeError(f"postgres ended\n{self.log.read_text(errors='replace')}")
            if self._accepts():
                return
            if deadline.passed:
                raise RuntimeError(f"postgres not up\n{self.log.read_text(errors='replace')}")
            deadline.pause()

    def _accepts(self) -> bool:
        command = [str(BIN / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(command, check=False).returncode == 0

    def stop(self, *, immediate: bool = False) -> None:
        """A fast shutdown, which breaks off what is connected; or one that amounts to a crash."""
        assert self.process is not None
        self.process.send_signal(signal.SIGQUIT if immediate else signal.SIGINT)
        self.process.wait(60)
        self.process = None

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """All of its processes stand still: connections stay open, and nothing answers."""
        assert self.process is not None
        pid = self.process.pid
        os.kill(pid, signal.SIGSTOP)  # first, so that no more processes come
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        pids = [pid, *map(int, children)]
        try:
            self._signal(pids[1:], signal.SIGSTOP)
            yield
        finally:
            self._signal(pids, signal.SIGCONT)

    @staticmethod
    def _signal(pids: list[int], number: signal.Signals) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.stop(immediate=True)
        self.process = None
        shutil.rmtree(self.folder, ignore_errors=True)

    def psql(self, sql: str, database: str = "postgres") -> str:
        command = [
            str(BIN / "psql"), "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-h", "127.0.0.1",
            "-p", str(self.port), "-U", USER, "-d", database, "-c", sql,
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"psql: {done.stderr}")
        return done.stdout.strip()

    def create_database(self) -> str:
        """A new, empty database; returns its name."""
        name = f"test_{next(self._names)}"
        self.psql(f"CREATE DATABASE {name}")
        return name

    def url(self, database: str, *, port: int | None = None) -> str:
        return f"postgres://{USER}@127.0.0.1:{port or self.port}/{database}"

    def new_url(self) -> str:
        return self.url(self.create_database())
