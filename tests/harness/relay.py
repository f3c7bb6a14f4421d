"""Passes whole HTTP messages on, and can lose one: before it arrives, or its answer."""

import contextlib
import http.client
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

TIMEOUT_S = 60.0
HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "date", "server"}


@dataclass(frozen=True)
class Message:
    """A request; `answered` says that the target has answered it."""

    method: str
    path: str
    body: bytes
    arrived: float  # by the monotonic clock
    answered: bool = False

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Lost = Callable[[Message], bool]


class Relay:
    """Serves on a free port. `lost` is asked about each request, and again about its answer."""

    def __init__(self, target_url: str, lost: Lost) -> None:
        self._target = urlsplit(target_url)
        self._lost = lost
        relay = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                with contextlib.suppress(OSError):
                    self.raw_requestline = self.rfile.readline(65537)
                    if not self.raw_requestline or not self.parse_request():
                        self.close_connection = True
                        return
                    self.close_connection = not relay._passed(self)
                    return
                self.close_connection = True

            def log_message(self, *_: Any) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def _passed(self, near: BaseHTTPRequestHandler) -> bool:
        length = int(near.headers.get("Content-Length", 0))
        body = near.rfile.read(length)
        if len(body) < length:  # who sent it is gone
            return False
        message = Message(near.command, near.path, body, time.monotonic())
        if self._lost(message):
            return False
        far = http.client.HTTPConnection(self._target.netloc, timeout=TIMEOUT_S)
        try:
            far.request(near.command, near.path, body, dict(near.headers))
            answer = far.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException):
            return False
        finally:
            far.close()
        if self._lost(replace(message, answered=True)):
            return False
        near.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in HOP:
                near.send_header(name, value)
        if answer.status != 204:
            near.send_header("Content-Length", str(len(content)))
        near.end_headers()
        near.wfile.write(content)
        return True

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)
