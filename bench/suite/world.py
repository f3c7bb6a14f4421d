"""The programs that are measured, and those that measure, as child processes in one folder."""

import contextlib
import importlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
BUILD = REPOSITORY / "build" / "bench"
BINARY = Path(os.environ.get("REBUNO_BIN", REPOSITORY / "build" / "rebuno"))
TOKEN = "bench-token"
START_S = 20.0
STOP_S = 15.0
RUN_S = 300.0

Figures = dict[str, Any]


class BenchError(Exception):
    """A measurement that could not be made; the table shows the reason."""


@dataclass
class Server:
    process: subprocess.Popen[bytes]
    port: int
    log: Path
    syncs: Path | None = None
    database: Path | None = None

    def options(self) -> list[str]:
        return ["--port", str(self.port), "--pid", str(self.process.pid), "--token", TOKEN]

    def log_tail(self) -> str:
        return self.log.read_text(errors="replace")[-500:].strip()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def run_json(command: Sequence[str | Path]) -> Figures:
    """A measuring program prints one JSON object, or fails with a message."""
    with _start(command) as process:
        return _figures_of(process)


def _start(command: Sequence[str | Path]) -> "subprocess.Popen[str]":
    words = [str(word) for word in command]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _figures_of(process: "subprocess.Popen[str]") -> Figures:
    words = process.args
    assert isinstance(words, list)
    name = f"{Path(words[0]).name} {words[1]}"
    try:
        out, errors = process.communicate(timeout=RUN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        raise BenchError(f"{name}: no end in {RUN_S:.0f} s") from None
    if process.returncode != 0:
        lines = errors.strip().splitlines() or [f"exit code {process.returncode}"]
        raise BenchError(f"{name}: {lines[-1][:300]}")
    if errors:
        print(errors.strip()[:1000], file=sys.stderr)
    figures: Figures = json.loads(out)
    return figures


class World:
    """One folder on the disk that is measured; databases and logs live in it."""

    def __init__(self, parent: Path) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="rebuno-bench-", dir=parent))
        self.folder.chmod(0o755)  # the database server has a user of its own
        self._count = 0

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def new_name(self, stem: str) -> Path:
        self._count += 1
        return self.folder / f"{stem}{self._count}"

    @contextlib.contextmanager
    def hello(self) -> Iterator[Server]:
        port = free_port()
        with self._server([str(BUILD / "hello"), str(port)], port, {}) as server:
            _wait(server, _connects)
            yield server

    def kernel_command(self, database_url: str, port: int, binary: Path | None = None) -> list[str]:
        return [
            str(binary or BINARY), "server", "--db-url", database_url, "--bearer-token", TOKEN,
            "--listen-addr", f"127.0.0.1:{port}", "--log-level", "warn",
        ]  # fmt: skip

    @contextlib.contextmanager
    def kernel(
        self,
        database_url: str | None = None,
        *,
        syncs: bool = False,
        binary: Path | None = None,
    ) -> Iterator[Server]:
        """On a new SQLite file unless told otherwise. `syncs`: they are counted."""
        port, database, env = free_port(), None, {}
        counter = self.new_name("syncs") if syncs else None
        if database_url is None:
            database = self.new_name("kernel").with_suffix(".db")
            database_url = f"sqlite:///{database}"
        if counter:
            env = {"LD_PRELOAD": str(BUILD / "sync_count.so"), "REBUNO_BENCH_SYNCS": str(counter)}
        with self._server(self.kernel_command(database_url, port, binary), port, env) as server:
            server.syncs, server.database = counter, database
            _wait(server, _healthy)
            yield server

    @contextlib.contextmanager
    def _server(self, command: list[str], port: int, env: dict[str, str]) -> Iterator[Server]:
        log = self.new_name("server").with_suffix(".log")
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("REBUNO_")}
        with log.open("wb") as out:
            process = subprocess.Popen(
                command, cwd=self.folder, env={**inherited, **env}, stdin=subprocess.DEVNULL,
                stdout=out, stderr=out,
            )  # fmt: skip
        server = Server(process, port, log)
        try:
            yield server
        except BenchError as error:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(1)  # what was measured may have failed because of it
                raise BenchError(
                    f"{error}; the server ended with {code}: {server.log_tail()}"
                ) from None
            raise
        finally:
            server.stop()


def _connects(server: Server) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", server.port), 1):
            return True
    except OSError:
        return False


def _healthy(server: Server) -> bool:
    try:
        url = f"http://127.0.0.1:{server.port}/v0/health"
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _wait(server: Server, answers: Callable[[Server], bool]) -> None:
    until = time.monotonic() + START_S
    while not answers(server):
        if server.process.poll() is not None:
            raise BenchError(f"the server ended: {server.log_tail()}")
        if time.monotonic() > until:
            raise BenchError(f"no answer in {START_S:.0f} s: {server.log_tail()}")
        time.sleep(0.01)


def _loadgen_command(server: Server, mode: str, options: dict[str, Any]) -> list[str | Path]:
    command: list[str | Path] = [BUILD / "loadgen", mode, *server.options()]
    if server.syncs is not None:
        command += ["--syncs", server.syncs]
    for name, value in options.items():
        command += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return command


def loadgen(server: Server, mode: str, **options: Any) -> Figures:
    """`connections=64` is `--connections 64`; True is a flag."""
    return run_json(_loadgen_command(server, mode, options))


@dataclass
class Beside:
    """A generator that runs while another one is measured; its figures are there afterwards."""

    figures: Figures


@contextlib.contextmanager
def loadgen_beside(server: Server, mode: str, **options: Any) -> Iterator[Beside]:
    beside = Beside({})
    with _start(_loadgen_command(server, mode, options)) as process:
        try:
            yield beside
            beside.figures = _figures_of(process)
        finally:
            process.kill()


class FileWatch:
    """The largest size that a file has while this is open; polled every few milliseconds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.largest = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._poll)

    def _poll(self) -> None:
        while not self._stop.wait(0.02):
            with contextlib.suppress(OSError):
                self.largest = max(self.largest, self.path.stat().st_size)

    def __enter__(self) -> "FileWatch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def postgres_cluster(folder: Path) -> Any:
    """The tests' private cluster. Their package's own __init__ wants third-party modules that the
    bench can do without, so an empty package stands in for it."""
    package = types.ModuleType("harness")
    package.__path__ = [str(REPOSITORY / "tests" / "harness")]
    sys.modules.setdefault("harness", package)
    postgres: Any = importlib.import_module("harness.postgres")
    tempfile.tempdir = str(folder)
    try:
        return postgres.Cluster(), postgres.BIN
    finally:
        tempfile.tempdir = None
