"""Requests to the kernel, as clients and as agents make them, checked against the description.

A connection is used for one request: a test then never meets one that an earlier kernel left
behind. What keep-alive must do is tested where that is the subject.
"""

import contextlib
import hashlib
import hmac
import http.client
import json
import queue
import re
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlsplit

from harness.openapi import API, loads

LINE_END = re.compile("\r\n|\r|\n")
TIMEOUT_S = 35.0  # what published agents wait for an answer


@dataclass(frozen=True)
class Answer:
    """A whole answer. Header names are in lower case."""

    method: str
    target: str
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return loads(self.body)

    @property
    def code(self) -> str:
        return str(self.json["code"])

    @property
    def message(self) -> str:
        return str(self.json["message"])

    def expect(self, status: int, code: str | None = None) -> "Answer":
        """Asserts the status, and an error's code; returns itself for what comes next."""
        text = f"{self.method} {self.target}: {self.status} {self.body[:1000]!r}"
        assert self.status == status, f"{text}, expected {status} {code or ''}"
        if code is not None:
            assert self.code == code, f"{text}, expected code {code}"
        return self

    def invalid(self, field: str) -> "Answer":
        """Asserts a 400 that names the field."""
        self.expect(400, "validation_error")
        text = self.body.decode()
        assert field in text, f"{self.method} {self.target}: {text} does not name {field!r}"
        return self


def encode(body: Any) -> bytes:
    """What goes over the wire: bytes as they are, None as no body, the rest as JSON.

    json.dumps writes ASCII with surrogate pairs and `, ` and `: `, as published SDKs do.
    """
    if body is None:
        return b""
    if isinstance(body, bytes):
        return body
    return json.dumps(body).encode("ascii")


class Signer:
    """Signs an agent's requests, as the protocol says."""

    def __init__(self, agent_id: str, secret: str) -> None:
        self.agent_id = agent_id
        self.secret = secret

    def signature(self, fields: list[str], body: bytes) -> str:
        message = "".join(f"{part}\n" for part in fields).encode() + body
        return "v1=" + hmac.new(self.secret.encode(), message, hashlib.sha256).hexdigest()

    def headers(
        self,
        method: str,
        target: str,
        body: bytes = b"",
        *,
        dispatch: tuple[str, int | str] | None = None,
        timestamp: int | str | None = None,
    ) -> dict[str, str]:
        stamp = str(int(time.time()) if timestamp is None else timestamp)
        dispatch_id, attempt = (str(part) for part in dispatch) if dispatch else ("", "")
        fields = ["rebuno-request-v1", method, target, stamp, dispatch_id, attempt]
        signed = {
            "Rebuno-Agent-Id": self.agent_id,
            "Rebuno-Timestamp": stamp,
            "Rebuno-Signature": self.signature(fields, body),
        }
        if dispatch:
            signed["Rebuno-Dispatch-Id"] = dispatch_id
            signed["Rebuno-Dispatch-Attempt"] = attempt
        return signed


class BaseClient:
    """Moves bytes and checks both directions."""

    def __init__(self, base_url: str, *, timeout: float = TIMEOUT_S) -> None:
        parts = urlsplit(base_url)
        assert parts.hostname is not None and parts.port is not None
        self.host, self.port = parts.hostname, parts.port
        self.timeout = timeout

    def credentials(self, method: str, target: str, body: bytes) -> dict[str, str]:
        return {}

    def _prepare(
        self, method: str, target: str, body: bytes, headers: Mapping[str, str | None] | None
    ) -> dict[str, str]:
        """Default headers, credentials, and what the test adds or, with None, takes away."""
        wanted: dict[str, str | None] = {"Accept": "*/*"}
        if body:
            wanted["Content-Type"] = "application/json"
        wanted.update(self.credentials(method, target, body))
        wanted.update(headers or {})
        return {name: value for name, value in wanted.items() if value is not None}

    def request(
        self,
        method: str,
        target: str,
        *,
        body: Any = None,
        headers: Mapping[str, str | None] | None = None,
        bad: bool = False,
    ) -> Answer:
        """One request. `bad` means that it breaks the description on purpose."""
        data = encode(body)
        final = self._prepare(method, target, data, headers)
        if not bad:
            API.check_request(method, target, headers=final, body=data)
        connection = http.client.HTTPConnection(self.host, self.port, timeout=self.timeout)
        try:
            connection.request(method, target, body=data or None, headers=final)
            response = connection.getresponse()
            content = response.read()
            got = {name.lower(): value for name, value in response.getheaders()}
            answer = Answer(method, target, response.status, got, content)
        finally:
            connection.close()
        API.check_answer(method, target, status=answer.status, headers=got, body=content)
        return answer

    def get(self, target: str, **options: Any) -> Answer:
        return self.request("GET", target, **options)

    def post(self, target: str, body: Any = None, **options: Any) -> Answer:
        return self.request("POST", target, body=body, **options)

    def delete(self, target: str, **options: Any) -> Answer:
        return self.request("DELETE", target, **options)


class BearerClient(BaseClient):
    """A client or operator, with the calls that tests make often."""

    def __init__(
        self, base_url: str, *, token: str | None = None, timeout: float = TIMEOUT_S
    ) -> None:
        super().__init__(base_url, timeout=timeout)
        self.token = token

    def credentials(self, method: str, target: str, body: bytes) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"} if self.token is not None else {}

    def create(self, agent_id: str, **fields: Any) -> dict[str, Any]:
        answer = self.post("/v0/executions", {"agent_id": agent_id, **fields})
        assert answer.status in (200, 201), answer
        created: dict[str, Any] = answer.json
        return created

    def execution(self, execution_id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.get(f"/v0/executions/{execution_id}").expect(200).json
        return found

    def steps(self, execution_id: str, query: str = "") -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (
            self.get(f"/v0/executions/{execution_id}/steps{query}").expect(200).json
        )
        return found

    def step(self, execution_id: str, step_id: str) -> dict[str, Any]:
        found: dict[str, Any] = (
            self.get(f"/v0/executions/{execution_id}/steps/{step_id}").expect(200).json
        )
        return found

    def events(self, execution_id: str, after_seq: int = 0) -> list[dict[str, Any]]:
        """The whole log past `after_seq`, page by page; its numbers have no gaps."""
        log: list[dict[str, Any]] = []
        last = after_seq
        while True:
            target = f"/v0/executions/{execution_id}/events?after_seq={last}&limit=1000"
            page = self.get(target).expect(200).json
            if not page:
                return log
            seqs = [event["event_seq"] for event in page]
            assert seqs == list(range(last + 1, last + 1 + len(page))), seqs
            log += page
            last = seqs[-1]

    def event_types(self, execution_id: str, after_seq: int = 0) -> list[str]:
        return [event["type"] for event in self.events(execution_id, after_seq)]

    def cancel(self, execution_id: str) -> None:
        self.post(f"/v0/executions/{execution_id}/cancel").expect(204)

    def previous(self, execution_id: str) -> Any:
        """What the execution's parent left."""
        answer = self.get(f"/v0/executions/{execution_id}/previous").expect(200).json
        assert set(answer) == {"state"}
        return answer["state"]

    def fork(self, execution_id: str, at_seq: int, **fields: Any) -> dict[str, Any]:
        target = f"/v0/executions/{execution_id}/fork"
        made: dict[str, Any] = self.post(target, {"at_seq": at_seq, **fields}).expect(201).json
        return made

    def fork_points(self, execution_id: str) -> dict[str, Any]:
        target = f"/v0/executions/{execution_id}/fork-points"
        found: dict[str, Any] = self.get(target).expect(200).json
        return found

    # Policies and approvals

    def set_policy(self, agent_id: str, text: str) -> None:
        target = f"/v0/policies/{quote(agent_id, safe='')}"
        self.post(target, {"bundle": text}).expect(204)

    def test_policy(self, agent_id: str, **fields: Any) -> Answer:
        return self.post(f"/v0/policies/{quote(agent_id, safe='')}/test", fields)

    def approvals(self, query: str = "") -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get(f"/v0/approvals{query}").expect(200).json
        return found

    def approval(self, approval_id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.get(f"/v0/approvals/{approval_id}").expect(200).json
        return found

    def grant(self, approval_id: str, **fields: Any) -> Answer:
        return self.post(f"/v0/approvals/{approval_id}/grant", fields)

    def deny(self, approval_id: str, **fields: Any) -> Answer:
        return self.post(f"/v0/approvals/{approval_id}/deny", fields)

    @contextlib.contextmanager
    def stream(
        self, target: str, headers: Mapping[str, str | None] | None = None
    ) -> Iterator["EventStream"]:
        final = self._prepare(
            "GET", target, b"", {"Accept": "text/event-stream", **(headers or {})}
        )
        API.check_request("GET", target, headers=final, body=b"")
        stream = EventStream(self, target, final)
        try:
            yield stream
        finally:
            stream.close()


class AgentClient(BaseClient):
    """An agent: signs all it sends, under a delivery when there is one."""

    def __init__(
        self,
        base_url: str,
        signer: Signer,
        *,
        dispatch: tuple[str, int | str] | None = None,
        timeout: float = TIMEOUT_S,
    ) -> None:
        super().__init__(base_url, timeout=timeout)
        self.signer = signer
        self.dispatch = dispatch

    def credentials(self, method: str, target: str, body: bytes) -> dict[str, str]:
        signed = self.signer.headers(method, target, body, dispatch=self.dispatch)
        return {"Content-Type": "application/json", **signed}


@dataclass
class ServerEvent:
    id: str | None = None
    event: str | None = None
    lines: list[str] = field(default_factory=list)

    @property
    def json(self) -> Any:
        return loads("\n".join(self.lines).encode())


class EventStream:
    """A stream of server-sent events, read on a thread so that a test can wait with a deadline."""

    END = object()

    def __init__(self, client: BaseClient, target: str, headers: Mapping[str, str]) -> None:
        self._schema = API.event_schema("GET", target)
        self._items: queue.Queue[Any] = queue.Queue()
        self.comments = 0
        self._closed = False
        self._connection = http.client.HTTPConnection(client.host, client.port, timeout=90)
        self._connection.request("GET", target, headers=dict(headers))
        self._response = self._connection.getresponse()
        self.status = self._response.status
        self.headers = {name.lower(): value for name, value in self._response.getheaders()}
        body = b"" if self.status == 200 else self._response.read()
        if self.status != 200:
            self._connection.close()
        API.check_answer("GET", target, status=self.status, headers=self.headers, body=body)
        assert self.status == 200, (self.status, body)
        assert self.headers["content-type"].startswith("text/event-stream"), self.headers
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        current = ServerEvent()
        try:
            for raw in self._response:
                for line in LINE_END.split(raw.decode("utf-8"))[:-1]:
                    current = self._line(current, line)
            self._items.put(self.END)
        except Exception as error:
            self._items.put(self.END if self._closed else error)

    def _line(self, current: ServerEvent, line: str) -> ServerEvent:
        if line == "":
            if current.lines:
                self._items.put(current)
            return ServerEvent()
        if line.startswith(":"):
            self.comments += 1
        else:
            self._field(current, line)
        return current

    @staticmethod
    def _field(current: ServerEvent, line: str) -> None:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            current.lines.append(value)
        elif name == "id":
            current.id = value
        elif name == "event":
            current.event = value

    def next(self, timeout: float = 10.0) -> ServerEvent | None:
        """The next event, or None at the end of the stream."""
        try:
            item = self._items.get(timeout=timeout)
        except queue.Empty:
            raise AssertionError(f"no event on the stream within {timeout} s") from None
        if item is self.END:
            self._items.put(item)
            return None
        if isinstance(item, Exception):
            raise AssertionError("the stream broke off") from item
        assert isinstance(item, ServerEvent)
        assert item.event is None, f"streams are unnamed, this is {item.event!r}"
        API.check_value(item.json, self._schema, what="event of the stream")
        return item

    def rest(self, timeout: float = 10.0) -> list[ServerEvent]:
        """All that comes until the stream ends by itself."""
        events: list[ServerEvent] = []
        while (event := self.next(timeout)) is not None:
            events.append(event)
        return events

    def close(self) -> None:
        self._closed = True
        with contextlib.suppress(OSError):
            if self._connection.sock is not None:
                self._connection.sock.shutdown(2)
        self._connection.close()
        self._thread.join(5)
