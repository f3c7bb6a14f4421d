"""A scriptable agent: a webhook that records deliveries, and the calls made under one.

There is no handler that runs by itself. A test takes a delivery and plays the agent step by step.
"""

import contextlib
import hashlib
import hmac
import http.server
import itertools
import socket
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from harness.client import AgentClient, Answer, Signer, encode
from harness.openapi import loads

MISSING: Any = object()


@dataclass(frozen=True)
class Delivery:
    """What the webhook received."""

    execution_id: str
    dispatch_id: str
    attempt: int
    lease_s: float
    at: float = field(compare=False)
    headers: dict[str, str] = field(compare=False, repr=False)
    fields: dict[str, Any] = field(compare=False, repr=False)


@dataclass(frozen=True)
class Reply:
    """How the webhook answers. `hang_s`: only after that time, or when the agent is closed."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    hang_s: float = 0.0
    cut: bool = False  # close the connection without an answer


OK = Reply()
Behaviour = Callable[[Delivery], Reply]


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    agent: "FakeAgent"

    def __init__(self, address: tuple[str, int], agent: "FakeAgent") -> None:
        self.agent = agent
        self.closing = threading.Event()
        self._open: set[socket.socket] = set()
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def stop(self) -> None:
        """Nobody listens, and connections that were kept are closed."""
        self.closing.set()
        self.shutdown()
        self.server_close()
        for request in list(self._open):
            with contextlib.suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A peer that went away is no news here."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self._answer(Reply(status=405))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        closing = self.server.closing
        reply = Reply(cut=True)
        if not closing.is_set():
            reply = self.server.agent.receive(self.path, dict(self.headers.items()), body)
        if reply.hang_s:
            closing.wait(reply.hang_s)
        if reply.cut or closing.is_set():
            self.close_connection = True
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)
            return
        self._answer(reply)

    def _answer(self, reply: Reply) -> None:
        with contextlib.suppress(OSError):
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(reply.body)))
            self.end_headers()
            self.wfile.write(reply.body)


class FakeAgent:
    """The webhook of one agent id, and the way to the deliveries that it got."""

    _numbers = itertools.count(1)

    def __init__(
        self, kernel_url: str, agent_id: str | None = None, *, secret: str = "s3cret"
    ) -> None:
        self.kernel_url = kernel_url
        self.id = agent_id or f"agent-{next(self._numbers)}-{uuid.uuid4().hex[:8]}"
        self.secret = secret
        self.path = "/webhook"
        self.behaviour: Behaviour = lambda delivery: OK
        self.deliveries: list[Delivery] = []
        self.errors: list[str] = []
        self._taken: set[int] = set()
        self._changed = threading.Condition()
        self.port = 0
        self._server: _Server | None = None
        self.start()

    # Life of the webhook

    def start(self) -> None:
        assert self._server is None
        self._server = _Server(("127.0.0.1", self.port), self)
        self.port = self._server.server_address[1]
        poll_s = 0.02
        threading.Thread(target=self._server.serve_forever, args=(poll_s,), daemon=True).start()

    def stop(self) -> None:
        """Nobody listens any more; the port is kept for the next start."""
        if self._server is not None:
            self._server.stop()
            self._server = None

    @property
    def webhook_url(self) -> str:
        return f"http://127.0.0.1:{self.port}{self.path}"

    def registration(self, **fields: Any) -> dict[str, Any]:
        return {"id": self.id, "webhook_url": self.webhook_url, "secret": self.secret, **fields}

    # Deliveries

    def receive(self, path: str, headers: dict[str, str], body: bytes) -> Reply:
        """Called by the webhook's threads. What a real agent would refuse is kept as an error."""
        lower = {name.lower(): value for name, value in headers.items()}
        wanted = "sha256=" + hmac.new(self.secret.encode(), body, hashlib.sha256).hexdigest()
        problem = ""
        if lower.get("rebuno-signature") != wanted:
            problem = f"wrong signature {lower.get('rebuno-signature')!r} over {body!r}"
        elif lower.get("content-type", "").split(";")[0] != "application/json":
            problem = f"Content-Type {lower.get('content-type')!r}"
        elif path != self.path:
            problem = f"path {path}"
        if problem:
            with self._changed:
                self.errors.append(problem)
                self._changed.notify_all()
            return Reply(status=401)
        fields = loads(body)
        delivery = Delivery(
            execution_id=fields["execution_id"],
            dispatch_id=fields["dispatch_id"],
            attempt=fields["dispatch_attempt"],
            lease_s=fields["lease_timeout_seconds"],
            at=time.monotonic(),
            headers=lower,
            fields=fields,
        )
        with self._changed:
            self.deliveries.append(delivery)
            self._changed.notify_all()
        return self.behaviour(delivery)

    def take(
        self,
        execution_id: str | None = None,
        timeout: float = 10.0,
        *,
        attempt: int | None = None,
    ) -> Delivery:
        """The next delivery that no test has taken yet, of that execution and attempt if given."""
        ends = time.monotonic() + timeout
        with self._changed:
            while True:
                for number, delivery in enumerate(self.deliveries):
                    if (
                        number not in self._taken
                        and execution_id in (None, delivery.execution_id)
                        and attempt in (None, delivery.attempt)
                    ):
                        self._taken.add(number)
                        return delivery
                left = ends - time.monotonic()
                if left <= 0:
                    wanted = f"execution {execution_id}, attempt {attempt}"
                    raise AssertionError(
                        f"no delivery to {self.id} within {timeout} s ({wanted}); "
                        f"got {self.deliveries[-5:]}, errors {self.errors[-5:]}"
                    )
                self._changed.wait(left)

    def count(self, execution_id: str) -> int:
        with self._changed:
            return sum(1 for d in self.deliveries if d.execution_id == execution_id)

    # Calls

    @property
    def signer(self) -> Signer:
        return Signer(self.id, self.secret)

    def client(self) -> AgentClient:
        """Signed, without a delivery."""
        return AgentClient(self.kernel_url, self.signer)

    def attempt(self, delivery: Delivery) -> "Attempt":
        return Attempt(self, delivery)

    def take_attempt(
        self,
        execution_id: str | None = None,
        timeout: float = 10.0,
        *,
        attempt: int | None = None,
    ) -> "Attempt":
        return self.attempt(self.take(execution_id, timeout, attempt=attempt))


class Attempt:
    """The calls of an agent that works under one delivery. Each returns the Answer."""

    def __init__(self, agent: FakeAgent, delivery: Delivery) -> None:
        self.agent = agent
        self.delivery = delivery
        self.id = delivery.execution_id
        self.client = AgentClient(
            agent.kernel_url, agent.signer, dispatch=(delivery.dispatch_id, delivery.attempt)
        )

    def path(self, rest: str = "") -> str:
        return f"/v0/executions/{self.id}{rest}"

    def execution(self) -> Answer:
        return self.client.get(self.path())

    def previous(self) -> Answer:
        return self.client.get(self.path("/previous"))

    def submit(
        self,
        target: str = "tool",
        args: Any = MISSING,
        *,
        kind: str = "tool_call",
        key: str | None = None,
        **fields: Any,
    ) -> Answer:
        """Bytes as `args` are put into the body as they are."""
        body: dict[str, Any] = {"kind": kind, "target": target, **fields}
        data: Any = body
        if isinstance(args, bytes):
            data = encode(body)[:-1] + b', "args": ' + args + b"}"
        elif args is not MISSING:
            body["args"] = args
        headers = {"Idempotency-Key": key} if key is not None else None
        return self.client.post(self.path("/steps"), data, headers=headers)

    def complete_step(self, step_id: str, result: Any = None, **fields: Any) -> Answer:
        data = encode_object({"result": result, **fields})
        return self.client.post(self.path(f"/steps/{step_id}/complete"), data)

    def fail_step(self, step_id: str, error: Any = MISSING, **fields: Any) -> Answer:
        value = {"message": "it broke"} if error is MISSING else error
        data = encode_object({"error": value, **fields})
        return self.client.post(self.path(f"/steps/{step_id}/fail"), data)

    def publish(self, step_id: str, seq: int, data: str) -> Answer:
        target = self.path(f"/steps/{step_id}/stream")
        return self.client.post(target, {"seq": seq, "data": data})

    def heartbeat(self) -> Answer:
        return self.client.post(self.path("/heartbeat"))

    def release(self) -> Answer:
        return self.client.post(self.path("/release"))

    def suspend(self) -> Answer:
        return self.client.post(self.path("/suspend"))

    def complete(self, output: Any = None, **fields: Any) -> Answer:
        data = encode_object({"output": output, **fields})
        return self.client.post(self.path("/complete"), data)

    def fail(self, error: str = "agent_error: it broke") -> Answer:
        return self.client.post(self.path("/fail"), {"error": error})

    def register(self, key: str, driver_id: str = "test.driver", **fields: Any) -> Answer:
        """Values as bytes are put into the body as they are, here and in `bind`."""
        data = encode_object({"key": key, "driver_id": driver_id, **fields})
        return self.client.post(self.path("/resources"), data)

    def bind(self, key: str, binding: Any) -> Answer:
        return self.client.post(
            self.path(f"/resources/{key}/binding"), encode_object({"binding": binding})
        )

    def capture(self, *captures: dict[str, Any], failures: Any = MISSING) -> Answer:
        """Outside a step."""
        body: dict[str, Any] = {"captures": list(captures)} if captures else {}
        if failures is not MISSING:
            body["capture_failures"] = failures
        return self.client.post(self.path("/resources/checkpoints"), body)

    # What tests do all the time

    def proceed(self, target: str = "tool", args: Any = MISSING, **options: Any) -> str:
        """Submits a step that must be told to proceed; returns its id."""
        decision = self.submit(target, args, **options).expect(200).json
        assert decision["decision"] == "proceed", decision
        return str(decision["step_id"])

    def record(
        self, target: str = "tool", args: Any = MISSING, result: Any = None, **options: Any
    ) -> str:
        """A whole step: submitted, performed, reported; returns its id."""
        step_id = self.proceed(target, args, **options)
        answer = self.complete_step(step_id, result).expect(200).json
        assert answer == {"decision": "recorded"}, answer
        return step_id

    def hold(self, target: str = "tool", args: Any = MISSING, **options: Any) -> str:
        """Submits a step that must wait for a person; returns the approval's id."""
        decision = self.submit(target, args, **options).expect(200).json
        assert decision["decision"] == "blocked", decision
        return str(decision["approval_id"])

    def park(self, target: str = "tool", args: Any = MISSING, **options: Any) -> None:
        """Submits a step that must wait for a rate limit."""
        decision = self.submit(target, args, **options).expect(200).json
        assert decision == {"decision": "blocked"}, decision

    def denied(self, target: str = "tool", args: Any = MISSING, **options: Any) -> dict[str, Any]:
        """Submits a step that must be denied; returns the decision."""
        decision: dict[str, Any] = self.submit(target, args, **options).expect(200).json
        assert decision["decision"] == "denied", decision
        return decision

    def replay(self, target: str = "tool", args: Any = MISSING, **options: Any) -> dict[str, Any]:
        """Submits a step that must come back from the record; returns the decision."""
        decision: dict[str, Any] = self.submit(target, args, **options).expect(200).json
        assert decision["decision"] == "replay", decision
        return decision

    def redelivered(self, timeout: float = 10.0) -> "Attempt":
        """Waits for the next delivery, whichever its dispatch."""
        return self.agent.take_attempt(self.id, timeout)

    def next(self, timeout: float = 10.0) -> "Attempt":
        """Waits for the delivery of the next attempt."""
        wanted = self.delivery.attempt + 1
        return self.agent.take_attempt(self.id, timeout, attempt=wanted)

    def released(self, timeout: float = 10.0) -> "Attempt":
        """Gives the run back and waits for the next attempt."""
        self.release().expect(204)
        return self.next(timeout)


def encode_value(value: Any) -> bytes:
    """JSON of a value; bytes are JSON already."""
    return b"null" if value is None else encode(value)


def encode_object(fields: dict[str, Any]) -> bytes:
    """A JSON object; values that are bytes are JSON already."""
    members = (encode_value(name) + b": " + encode_value(value) for name, value in fields.items())
    return b"{" + b", ".join(members) + b"}"
