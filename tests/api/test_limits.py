"""Every limit at one below, at, one above and a hundred times. Guarantee 8 of ARCHITECTURE.md."""

import contextlib
import json
from collections.abc import Callable
from typing import Any

import pytest

from harness import API, Attempt, BearerClient, FakeAgent, Kernel
from harness.kernel import TOKEN
from harness.raw import RawConnection

SHORT = 256
TARGET = 1024
DELTA = 7000
BODY = 10 * 1024 * 1024


def around(limit: int) -> Any:
    """Sizes with whether they are within the limit."""
    sizes = [(1, True), (limit - 1, True), (limit, True), (limit + 1, False), (limit * 100, False)]
    return pytest.mark.parametrize(("size", "fits"), sizes)


class TestText:
    @around(SHORT)
    @pytest.mark.parametrize("field", ["idempotency_key", "on_behalf_of"])
    def test_short_text(
        self, client: BearerClient, agent: FakeAgent, field: str, size: int, fits: bool
    ) -> None:
        body = {"agent_id": agent.id, field: "k" * size}
        if fits:
            answer = client.post("/v0/executions", body).expect(201)
            assert answer.json[field] == body[field]
        else:
            client.post("/v0/executions", body, bad=True).invalid(field)

    @pytest.mark.parametrize("field", ["idempotency_key", "on_behalf_of"])
    def test_short_text_is_counted_in_bytes(
        self, client: BearerClient, agent: FakeAgent, field: str
    ) -> None:
        client.create(agent.id, **{field: "é" * 128})
        client.create(agent.id, **{field: "😀" * 64})
        for text in ("é" * 128 + "x", "😀" * 65, "日" * 86):
            body = {"agent_id": agent.id, field: text}
            client.post("/v0/executions", body, bad=True).invalid(field)

    @around(TARGET)
    def test_target(self, run: Attempt, size: int, fits: bool) -> None:
        body = {"kind": "tool_call", "target": "t" * size}
        if fits:
            run.client.post(run.path("/steps"), body).expect(200)
        else:
            run.client.post(run.path("/steps"), body, bad=True).invalid("target")

    def test_target_is_counted_in_bytes(self, run: Attempt) -> None:
        run.proceed("é" * 512)
        body = {"kind": "tool_call", "target": "é" * 512 + "x"}
        run.client.post(run.path("/steps"), body, bad=True).invalid("target")

    @around(DELTA)
    def test_delta(self, run: Attempt, size: int, fits: bool) -> None:
        step_id = run.proceed("x")
        target = run.path(f"/steps/{step_id}/stream")
        body = {"seq": 1, "data": "d" * size}
        if fits:
            run.client.post(target, body).expect(204)
        else:
            run.client.post(target, body, bad=True).invalid("data")

    def test_delta_is_counted_in_bytes(self, run: Attempt) -> None:
        step_id = run.proceed("x")
        run.publish(step_id, 1, "é" * 3500).expect(204)
        target = run.path(f"/steps/{step_id}/stream")
        body = {"seq": 1, "data": "é" * 3500 + "x"}
        run.client.post(target, body, bad=True).invalid("data")

    @pytest.mark.parametrize(
        ("size", "fits"), [(1, True), (255, True), (256, True), (257, False), (12000, False)]
    )
    def test_idempotency_key_header(self, run: Attempt, size: int, fits: bool) -> None:
        body = {"kind": "tool_call", "target": "x"}
        headers = {"Idempotency-Key": "k" * size}
        answer = run.client.post(run.path("/steps"), body, headers=headers, bad=not fits)
        if fits:
            answer.expect(200)
        else:
            answer.invalid("Idempotency-Key")

    @pytest.mark.parametrize("key", ["", "é", "a\tb", "\x7f"])
    def test_idempotency_key_is_printable_ascii(self, run: Attempt, key: str) -> None:
        body = {"kind": "tool_call", "target": "x"}
        headers = {"Idempotency-Key": key}
        run.client.post(run.path("/steps"), body, headers=headers, bad=True).expect(
            400, "validation_error"
        )


class TestListings:
    @pytest.mark.parametrize("limit", [199, 200, 201, 20000, 2**31, 2**62])
    def test_executions(self, client: BearerClient, limit: int) -> None:
        page = client.get(f"/v0/executions?limit={limit}").expect(200).json
        assert len(page["executions"]) <= min(limit, 200)

    @pytest.mark.parametrize("limit", [999, 1000, 1001, 100000])
    def test_events_and_steps(self, client: BearerClient, run: Attempt, limit: int) -> None:
        for rest in ("events", "steps"):
            client.get(run.path(f"/{rest}?limit={limit}")).expect(200)

    def test_pages_of_executions_are_cut_at_200(
        self, client: BearerClient, agent: FakeAgent
    ) -> None:
        for n in range(201):
            execution = client.create(agent.id, input=n)
            client.post(f"/v0/executions/{execution['id']}/cancel").expect(204)
        page = client.get(f"/v0/executions?agent_id={agent.id}&limit=500").expect(200).json
        assert [e["input"] for e in page["executions"]] == list(range(200, 0, -1))
        rest = f"/v0/executions?agent_id={agent.id}&limit=500&cursor={page['next_cursor']}"
        last = client.get(rest).expect(200).json
        assert [e["input"] for e in last["executions"]] == [0]
        assert "next_cursor" not in last
        default = client.get(f"/v0/executions?agent_id={agent.id}").expect(200).json
        assert len(default["executions"]) == 50

    def test_pages_of_events_are_cut_at_1000(self, client: BearerClient, run: Attempt) -> None:
        for n in range(250):
            run.record("x", n)
        page = client.get(run.path("/events?limit=5000")).expect(200).json
        assert [e["event_seq"] for e in page] == list(range(1, 1001))
        assert len(client.steps(run.id)) == 250
        assert len(client.events(run.id)) > 1000


class TestDepth:
    @pytest.mark.parametrize("depth", [10, 500, 510])
    def test_accepted(self, client: BearerClient, run: Attempt, depth: int) -> None:
        nested = b"[" * depth + b"]" * depth
        run.record("x", nested, nested)
        run.complete(nested).expect(204)
        client.get(run.path()).expect(200)

    @pytest.mark.parametrize("depth", [51_200, 1_000_000])
    @pytest.mark.parametrize("form", ["arrays", "objects", "unclosed"])
    def test_far_beyond_is_refused(
        self, kernel: Kernel, run: Attempt, depth: int, form: str
    ) -> None:
        nested = {
            "arrays": b"[" * depth + b"]" * depth,
            "objects": b'{"a":' * depth + b"1" + b"}" * depth,
            "unclosed": b"[" * depth,
        }[form]
        step_id = run.proceed("x")
        for target, body in (
            (run.path("/steps"), b'{"kind":"tool_call","target":"y","args":' + nested + b"}"),
            (run.path(f"/steps/{step_id}/complete"), b'{"result":' + nested + b"}"),
        ):
            run.client.post(target, body, bad=True).expect(400, "validation_error")
        kernel.assert_alive()


class TestBodySize:
    def sized(self, agent_id: str, size: int) -> bytes:
        start = json.dumps({"agent_id": agent_id, "input": ""}).encode()
        return start[:-2] + b"x" * (size - len(start)) + b'"}'

    @pytest.mark.parametrize("extra", [-1, 0])
    def test_within(self, client: BearerClient, agent: FakeAgent, extra: int) -> None:
        body = self.sized(agent.id, BODY + extra)
        assert len(body) == BODY + extra
        execution = client.post("/v0/executions", body).expect(201).json
        assert len(execution["input"]) > BODY - 200

    @pytest.mark.parametrize("size", [BODY + 1, BODY * 100, 2**60])
    def test_refused_by_its_length(self, kernel: Kernel, size: int) -> None:
        """Before a byte of it was sent."""
        head = (
            "POST /v0/executions HTTP/1.1\r\nHost: x\r\n"
            f"Authorization: Bearer {TOKEN}\r\nContent-Length: {size}\r\n\r\n"
        )
        with RawConnection(kernel.port) as connection:
            connection.send(head.encode())
            answer = connection.answer()
        assert answer.status == 413
        error = json.loads(answer.body)
        API.check_named(error, "Error")
        assert error["code"] == "payload_too_large"
        assert error["message"] == f"the body of {size} bytes is over the limit of {BODY} bytes"

    def test_a_length_beyond_counting(self, kernel: Kernel) -> None:
        head = f"POST /v0/executions HTTP/1.1\r\nHost: x\r\nContent-Length: {'9' * 40}\r\n\r\n"
        with RawConnection(kernel.port) as connection:
            connection.send(head.encode())
            message = json.loads(connection.answer().body)["message"]
        assert message == f"the body is over the limit of {BODY} bytes"

    def test_size_comes_before_credentials(self, kernel: Kernel) -> None:
        head = f"POST /v0/executions HTTP/1.1\r\nHost: x\r\nContent-Length: {BODY + 1}\r\n\r\n"
        with RawConnection(kernel.port) as connection:
            connection.send(head.encode())
            assert connection.answer().status == 413

    def test_chunked_is_refused_as_it_exceeds(self, kernel: Kernel) -> None:
        head = (
            "POST /v0/executions HTTP/1.1\r\nHost: x\r\n"
            f"Authorization: Bearer {TOKEN}\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        chunk = b"100000\r\n" + b"x" * 0x100000 + b"\r\n"
        with RawConnection(kernel.port, timeout=30) as connection:
            connection.send(head.encode())
            with contextlib.suppress(OSError):  # its answer is still there to read
                for _ in range(12):
                    connection.send(chunk)
            answer = connection.answer()
        assert answer.status == 413
        message = json.loads(answer.body)["message"]
        assert message == f"the body is over the limit of {BODY} bytes"

    def test_expectation_is_refused_before_the_body(self, kernel: Kernel) -> None:
        head = (
            "POST /v0/executions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
            f"Authorization: Bearer {TOKEN}\r\nContent-Length: {BODY + 1}\r\n\r\n"
        )
        with RawConnection(kernel.port) as connection:
            connection.send(head.encode())
            assert connection.answer().status == 413

    def test_configured(
        self, new_kernel: Callable[..., Kernel], new_agent: Callable[..., FakeAgent]
    ) -> None:
        kernel = new_kernel(env={"REBUNO_MAX_BODY_BYTES": "2000"})
        agent = new_agent(kernel)
        client = kernel.client()
        for size in (1999, 2000):
            client.post("/v0/executions", self.sized(agent.id, size)).expect(201)
        for size in (2001, 200_000):
            body = self.sized(agent.id, size)
            client.post("/v0/executions", body).expect(413, "payload_too_large")

    def test_every_route_that_takes_a_body(self, kernel: Kernel) -> None:
        unknown = "01920000-0000-7000-8000-000000000000"
        for operation in API.operations:
            if operation.body is None:
                continue
            target = operation.path.format(
                execution_id=unknown, step_id="0" * 64, agent_id="x", approval_id=unknown, key="k"
            )
            head = f"{operation.method} {target} HTTP/1.1\r\nHost: x\r\nContent-Length: {BODY + 1}"
            with RawConnection(kernel.port) as connection:
                connection.send(head.encode() + b"\r\n\r\n")
                assert connection.answer().status == 413, target


class TestHead:
    @pytest.mark.parametrize("size", [1000, 15000])
    def test_within(self, kernel: Kernel, size: int) -> None:
        head = f"GET /v0/health HTTP/1.1\r\nHost: x\r\nX-Big: {'h' * size}\r\n\r\n"
        with RawConnection(kernel.port) as connection:
            connection.send(head.encode())
            assert connection.answer().status == 200

    @pytest.mark.parametrize("size", [16 * 1024, 100 * 16 * 1024])
    def test_beyond(self, kernel: Kernel, size: int) -> None:
        head = f"GET /v0/health HTTP/1.1\r\nHost: x\r\nX-Big: {'h' * size}\r\n\r\n"
        with RawConnection(kernel.port) as connection:
            with contextlib.suppress(OSError):
                connection.send(head.encode())
            answer = connection.answer()
            assert answer.status == 431
            API.check_named(json.loads(answer.body), "Error")
