"""Many at once: uploads, readers, idle and half-open connections."""

import contextlib
import json
import os
import resource
import selectors
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from harness import Attempt, Deadline, FakeAgent, Kernel, eventually
from harness.kernel import TOKEN
from harness.raw import RawConnection
from harness.waiting import let_pass

NewKernel = Callable[..., Kernel]
NewAgent = Callable[..., FakeAgent]
READERS = int(os.environ.get("REBUNO_TEST_READERS", "10000"))
MEBIBYTE = 1024 * 1024
UPLOAD = 10 * MEBIBYTE - 200
UPLOADS_BOUND = 256 * MEBIBYTE


def test_forty_large_uploads(new_kernel: NewKernel, new_agent: NewAgent) -> None:
    """Their lengths are announced together; their bodies are not held together."""
    kernel = new_kernel()
    agent, client = new_agent(kernel), kernel.client(timeout=120)
    body = {"agent_id": agent.id, "input": "u" * UPLOAD}
    with ThreadPoolExecutor(40) as pool:
        calls = [pool.submit(client.post, "/v0/executions", body) for _ in range(40)]
        light = [kernel.client().get("/v0/health").status for _ in range(20)]
        answers = [call.result().status for call in calls]
    assert answers == [201] * 40
    assert light == [200] * 20
    peak = kernel.peak_resident_bytes()
    assert peak < UPLOADS_BOUND, f"{peak / MEBIBYTE:.0f} MiB"


class Readers:
    """Sockets that all read the same execution, on one selector."""

    def __init__(self, kernel: Kernel, target: str, count: int, accept: str) -> None:
        self.selector = selectors.DefaultSelector()
        self.data: dict[socket.socket, bytes] = {}
        head = (
            f"GET {target} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
            f"Accept: {accept}\r\n\r\n"
        ).encode()
        for _ in range(count):
            reader = socket.create_connection(("127.0.0.1", kernel.port), timeout=20)
            reader.sendall(head)
            reader.setblocking(False)
            self.selector.register(reader, selectors.EVENT_READ)
            self.data[reader] = b""

    def until(self, marker: bytes, timeout: float = 60.0) -> None:
        """Reads until every socket has got the marker."""
        deadline = Deadline(timeout)
        waiting = {reader for reader, data in self.data.items() if marker not in data}
        while waiting:
            assert not deadline.passed, f"{len(waiting)} readers without {marker!r}"
            for key, _ in self.selector.select(1):
                reader = key.fileobj
                assert isinstance(reader, socket.socket)
                chunk = reader.recv(65536)
                self.data[reader] += chunk
                if marker in self.data[reader]:
                    waiting.discard(reader)
                if not chunk:
                    assert marker in self.data[reader], self.data[reader][-200:]
                    self.selector.unregister(reader)

    def close(self) -> None:
        self.selector.close()
        for reader in self.data:
            reader.close()


def begun(kernel: Kernel, agent: FakeAgent) -> Attempt:
    run = agent.take_attempt(kernel.client().create(agent.id)["id"])
    eventually(lambda: "dispatch.acked" in kernel.client().event_types(run.id))
    return run


def allow_files(count: int) -> None:
    """For this process, and for those that it starts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count:
        pytest.skip(f"only {hard} files may be open here")
    if soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


@pytest.mark.parametrize("form", ["stream", "long-poll"])
def test_many_waiting_readers(new_kernel: NewKernel, new_agent: NewAgent, form: str) -> None:
    """Ten thousand wait, work goes on beside them, and all are told."""
    allow_files(READERS + 500)
    kernel = new_kernel()
    client = kernel.client()
    run = begun(kernel, new_agent(kernel))
    last = client.events(run.id)[-1]["event_seq"]
    suffix = "" if form == "stream" else "&wait=60"
    accept = "text/event-stream" if form == "stream" else "application/json"
    target = run.path(f"/events?after_seq={last}{suffix}")
    readers = Readers(kernel, target, READERS, accept)
    try:
        client.get("/v0/health").expect(200)
        other = begun(kernel, new_agent(kernel))
        for n in range(10):
            other.record("beside", n)
        run.record("x", 1, "r")
        readers.until(b'"step.proposed"')
        if form == "stream":
            run.complete().expect(204)
            readers.until(b'"execution.completed"')
    finally:
        readers.close()
    client.get("/v0/health").expect(200)


def leave(kernel: Kernel, target: str, count: int, accept: str) -> None:
    """Clients that ask and are gone."""
    Readers(kernel, target, count, accept).close()


def test_stopping_with_readers_that_have_gone(new_kernel: NewKernel, new_agent: NewAgent) -> None:
    """What they asked for is not read any more: an orderly stop takes no longer for it."""
    kernel = new_kernel()
    run = begun(kernel, new_agent(kernel))
    for n in range(40):
        run.record("x", n, "r" * 100_000)
    count = READERS // 40
    for _ in range(4):
        leave(kernel, run.path("/steps"), count, "application/json")
        leave(kernel, run.path("/events?limit=1000"), count, "application/json")
        leave(kernel, run.path("/events?after_seq=1000&wait=60"), count, "application/json")
        leave(kernel, run.path("/events"), count, "text/event-stream")
        leave(kernel, run.path("/stream"), count, "text/event-stream")
    begin = time.monotonic()
    kernel.stop()
    assert time.monotonic() - begin < 5


def test_slow_readers_of_a_list_hold_little(new_kernel: NewKernel, new_agent: NewAgent) -> None:
    """A page of large rows is sent row by row, and a small question does not wait behind it."""
    kernel = new_kernel()
    agent, client = new_agent(kernel), kernel.client(timeout=60)
    for _ in range(16):
        client.create(agent.id, input="x" * (4 * MEBIBYTE))
    client.create(agent.id)
    begin_peak = kernel.peak_resident_bytes()
    readers = Readers(kernel, "/v0/executions?limit=17", 20, "application/json")
    begin = time.monotonic()
    client.get("/v0/executions?limit=1").expect(200)
    assert time.monotonic() - begin < 5
    let_pass(2)
    grown = kernel.peak_resident_bytes() - begin_peak
    try:
        assert grown < 20 * 8 * MEBIBYTE, f"{grown / MEBIBYTE:.0f} MiB for 20 readers"
    finally:
        readers.close()


@pytest.mark.parametrize("count", [128, 256, 1024])
def test_connections_ready_at_once(kernel: Kernel, count: int) -> None:
    request = b"GET /v0/health HTTP/1.1\r\nHost: x\r\n\r\n"
    with contextlib.ExitStack() as stack:
        connections = [
            stack.enter_context(RawConnection(kernel.port, timeout=20)) for _ in range(count)
        ]
        for _ in range(3):
            for connection in connections:
                connection.send(request)
            assert {connection.answer().status for connection in connections} == {200}


def test_half_open_clients_hold_up_nobody(kernel: Kernel, new_agent: NewAgent) -> None:
    agent = new_agent()
    length = 1_000_000
    heads = [
        b"",
        b"GET /v0/hea",
        b"GET /v0/health HTTP/1.1\r\nHost:",
        f"POST /v0/executions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
        f"Content-Length: {length}\r\n\r\n{{".encode(),
    ]
    with contextlib.ExitStack() as stack:
        for n in range(200):
            connection = stack.enter_context(RawConnection(kernel.port))
            connection.send(heads[n % len(heads)])
        for _ in range(10):
            run = agent.take_attempt(kernel.client().create(agent.id)["id"])
            run.record("x", 1)
            run.complete().expect(204)


@pytest.mark.slow
def test_slow_heads_are_closed(kernel: Kernel) -> None:
    with RawConnection(kernel.port, timeout=25) as connection:
        connection.send(b"GET /v0/health HTTP/1.1\r\nHost: x\r\n")
        deadline = Deadline(25)
        while not deadline.passed:
            try:
                connection.send(b"X")
                connection.socket.settimeout(1.0)
                if not connection.socket.recv(4096):
                    break
            except TimeoutError:
                continue
            except OSError:
                break
        assert 5 < 25 - deadline.left < 20


@pytest.mark.slow
def test_idle_connections_stay_open_for_a_minute(kernel: Kernel) -> None:
    with RawConnection(kernel.port, timeout=58) as connection:
        connection.send(b"GET /v0/health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert connection.answer().status == 200
        assert not connection.closed()
        connection.send(b"GET /v0/health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert json.loads(connection.answer().body) == {"status": "ok"}
