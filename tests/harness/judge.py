"""A judging model: an HTTP server that keeps the questions and answers as the test says."""

import contextlib
import http.server
import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

PATH = "/judge"


@dataclass(frozen=True)
class Question:
    """What the kernel asked."""

    path: str
    headers: dict[str, str]
    body: bytes = field(repr=False)
    peer: tuple[str, int] = ("", 0)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def target(self) -> str:
        return str(self.json["target"])


@dataclass(frozen=True)
class Verdict:
    """How it answers. `parts` are sent one after the other, `pause_s` apart."""

    parts: tuple[bytes, ...]
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    length: int | None = None  # what Content-Length says; None: the truth
    pause_s: float = 0.0
    hang: bool = False  # until the judge is let go
    cut: bool = False  # no answer at all


def verdict(body: Any, **options: Any) -> Verdict:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Verdict((data,), **options)


def scores(**chances: float) -> Verdict:
    return verdict({"scores": chances})


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256
    judge: "Judge"


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self.do_POST()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        question = Question(f"{self.command} {self.path}", headers, body, self.client_address)
        judge = self.server.judge
        answer = judge.hear(question)
        if answer.hang:
            judge.free.wait()
        with contextlib.suppress(OSError):
            self._answer(answer, judge.closing)

    def _answer(self, answer: Verdict, closing: threading.Event) -> None:
        if answer.cut or closing.is_set():
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        length = sum(map(len, answer.parts)) if answer.length is None else answer.length
        self.send_header("Content-Length", str(length))
        self.end_headers()
        for part in answer.parts:
            self.wfile.write(part)
            if answer.pause_s and closing.wait(answer.pause_s):
                return
        self.close_connection = answer.length is not None


class Judge:
    """Answers by target, with `default` where nothing was said."""

    def __init__(self) -> None:
        self.answers: dict[str, Verdict] = {}
        self.default = scores(allow=1.0)
        self.questions: list[Question] = []
        self.free = threading.Event()
        self.closing = threading.Event()
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.judge = self
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{PATH}"

    def hear(self, question: Question) -> Verdict:
        with self._lock:
            self.questions.append(question)
        if question.path != f"POST {PATH}":
            return verdict(b"", status=404)
        return self.answers.get(question.target, self.default)

    def count(self, target: str | None = None) -> int:
        with self._lock:
            return sum(1 for q in self.questions if target is None or target.encode() in q.body)

    def let_go(self) -> None:
        self.free.set()

    def stop(self) -> None:
        self.closing.set()
        self.free.set()
        self._server.shutdown()
        self._server.server_close()


@contextlib.contextmanager
def judging() -> Iterator[Judge]:
    judge = Judge()
    try:
        yield judge
    finally:
        judge.stop()
