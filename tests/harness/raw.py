"""Below the HTTP client and the JSON parser: bytes as they are."""

import re
import socket
from dataclasses import dataclass

SPACE = b" \t\r\n"
SCALAR = re.compile(rb"[^,\]}\s]+")
STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)


def _skip(data: bytes, at: int) -> int:
    while at < len(data) and data[at] in SPACE:
        at += 1
    return at


def _end_of_string(data: bytes, at: int) -> int:
    found = STRING.match(data, at)
    assert found is not None, data[at : at + 50]
    return found.end()


def _end_of_value(data: bytes, at: int) -> int:
    if data[at : at + 1] == b'"':
        return _end_of_string(data, at)
    if data[at : at + 1] not in (b"{", b"["):
        found = SCALAR.match(data, at)
        assert found is not None, data[at : at + 50]
        return found.end()
    depth = 0
    while True:
        byte = data[at : at + 1]
        if byte == b'"':
            at = _end_of_string(data, at)
            continue
        depth += {b"{": 1, b"[": 1, b"}": -1, b"]": -1}.get(byte, 0)
        at += 1
        if depth == 0:
            return at


def member(data: bytes, *names: str) -> bytes:
    """The text of a member of a JSON object, exactly as it stands there."""
    for name in names:
        data = _member(data, name)
    return data


def _member(data: bytes, name: str) -> bytes:
    at = _skip(data, 0)
    assert data[at : at + 1] == b"{", data[:50]
    at = _skip(data, at + 1)
    while data[at : at + 1] != b"}":
        end = _end_of_string(data, at)
        key = data[at + 1 : end - 1]
        at = _skip(data, end)
        assert data[at : at + 1] == b":", data[at : at + 50]
        at = _skip(data, at + 1)
        end = _end_of_value(data, at)
        if key == name.encode():
            return data[at:end]
        at = _skip(data, end)
        if data[at : at + 1] == b",":
            at = _skip(data, at + 1)
    raise AssertionError(f"no member {name!r} in {data[:300]!r}")


@dataclass(frozen=True)
class RawAnswer:
    status: int
    headers: dict[str, str]
    body: bytes


class RawConnection:
    """A connection on which a test writes what it likes."""

    def __init__(self, port: int, timeout: float = 10.0) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=timeout)
        self._buffer = b""

    def __enter__(self) -> "RawConnection":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def _more(self) -> bool:
        chunk = self.socket.recv(65536)
        self._buffer += chunk
        return bool(chunk)

    def answer(self) -> RawAnswer:
        """One answer with a Content-Length, or without a body."""
        while b"\r\n\r\n" not in self._buffer:
            assert self._more(), f"closed inside the head: {self._buffer[:300]!r}"
        head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", 0))
        while len(self._buffer) < length:
            assert self._more(), "closed inside the body"
        body, self._buffer = self._buffer[:length], self._buffer[length:]
        return RawAnswer(int(first.split()[1]), headers, body)

    def closed(self) -> bool:
        """Waits until the peer closes; False if it sends something or the timeout passes."""
        try:
            return not self._buffer and not self._more()
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False
