"""What holds for every request: error envelopes, methods, request ids, connections, operations."""

import json
import re
import uuid
from collections.abc import Callable

import pytest

from harness import API, Attempt, BearerClient, Kernel, eventually
from harness.client import BaseClient
from harness.kernel import TOKEN
from harness.raw import RawConnection

UNKNOWN = "01920000-0000-7000-8000-000000000000"


def concrete(path: str) -> str:
    values = {
        "execution_id": UNKNOWN,
        "step_id": "0" * 64,
        "agent_id": "x",
        "approval_id": UNKNOWN,
        "key": "k",
    }
    return re.sub(r"\{(\w+)\}", lambda found: values[found.group(1)], path)


PATHS = sorted({concrete(operation.path) for operation in API.operations})


class TestRoutes:
    @pytest.mark.parametrize(
        "target",
        [
            "/",
            "/v0",
            "/v0/",
            "/v1/executions",
            "/executions",
            "/v0/Executions",
            "/v0/executions/",
            "/v0//executions",
            f"/v0/executions/{UNKNOWN}/",
            f"/v0/executions/{UNKNOWN}/nothing",
            f"/v0/executions/{UNKNOWN}/steps/{'0' * 64}/nothing",
            "/v0/agents/x/y",
            "/v0/health/x",
            "/metrics/x",
            "/v0/metrics",
        ],
    )
    def test_unknown(self, client: BearerClient, target: str) -> None:
        client.get(target, bad=True).expect(404, "not_found")

    @pytest.mark.parametrize("target", PATHS)
    def test_wrong_method_names_the_right_ones(self, client: BearerClient, target: str) -> None:
        described = API.methods_of(target)
        for method in ("GET", "POST", "PUT", "DELETE", "PATCH"):
            if method in described:
                continue
            answer = client.request(method, target, bad=True).expect(405, "method_not_allowed")
            allowed = {name.strip() for name in answer.headers["allow"].split(",")}
            assert allowed - {"HEAD", "OPTIONS"} == described

    def test_head_is_get_without_a_body(self, kernel: Kernel) -> None:
        with RawConnection(kernel.port) as connection:
            connection.send(b"HEAD /v0/health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            data = b""
            while chunk := connection.socket.recv(65536):
                data += chunk
        head, _, body = data.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ")
        assert body == b""


class TestRequestId:
    @pytest.mark.parametrize("value", ["x", "req-1 with spaces", "~!@#$%^&*()", "r" * 128])
    def test_is_echoed(self, client: BearerClient, value: str) -> None:
        answer = client.get("/v0/executions?limit=1", headers={"X-Request-Id": value})
        assert answer.expect(200).headers["x-request-id"] == value

    @pytest.mark.parametrize("value", ["", "r" * 129, "r" * 12800, "tab\there", "é"])
    def test_unusable_is_replaced(self, client: BearerClient, value: str) -> None:
        answer = client.get("/v0/executions?limit=1", headers={"X-Request-Id": value})
        assert answer.expect(200).headers["x-request-id"] != value

    def test_each_has_its_own(self, client: BearerClient) -> None:
        ids = {client.get("/v0/health").headers["x-request-id"] for _ in range(10)}
        assert len(ids) == 10

    @pytest.mark.parametrize(
        "target", ["/v0/nothing", "/v0/executions/x", f"/v0/executions/{UNKNOWN}", "/v0/health"]
    )
    def test_on_every_answer(self, client: BearerClient, target: str) -> None:
        wanted = uuid.uuid4().hex
        answer = client.get(target, headers={"X-Request-Id": wanted}, bad=True)
        assert answer.headers["x-request-id"] == wanted

    def test_is_in_the_log(self, kernel: Kernel, new_run: Callable[..., Attempt]) -> None:
        """Whether success is logged is a matter of level; the id must never break a line."""
        kernel.client().get("/v0/health", headers={"X-Request-Id": "a b=c"}).expect(200)
        assert all(line for line in kernel.log_text().splitlines())


class TestBodies:
    @pytest.mark.parametrize("content_type", ["application/json", None, "text/plain", "x/y"])
    def test_content_type_of_a_request_is_not_looked_at(
        self, client: BearerClient, run: Attempt, content_type: str | None
    ) -> None:
        body = {"agent_id": run.agent.id}
        headers = {"Content-Type": content_type}
        client.post("/v0/executions", body, headers=headers).expect(201)

    def test_posts_without_a_body(self, client: BearerClient, run: Attempt) -> None:
        """As agents send them, with a Content-Type, and as clients do, without."""
        assert run.client.credentials("POST", "/", b"")["Content-Type"] == "application/json"
        run.heartbeat().expect(204)
        run.suspend().expect(200)
        client.cancel(run.id)

    def test_published_spelling(self, client: BearerClient, run: Attempt) -> None:
        text = json.dumps({"kind": "tool_call", "target": "t", "args": {"s": "é😀"}})
        assert "\\ud83d\\ude00" in text
        text = text[:-1] + ', "idempotency": "safe_to_retry", "resources": []}'
        run.client.post(run.path("/steps"), text.encode()).expect(200)

    def test_chunked(self, kernel: Kernel, run: Attempt) -> None:
        body = json.dumps({"agent_id": run.agent.id, "input": "x" * 1000}).encode()
        chunks = [body[n : n + 100] for n in range(0, len(body), 100)]
        framed = b"".join(b"%x\r\n%b\r\n" % (len(c), c) for c in chunks) + b"0\r\n\r\n"
        head = (
            "POST /v0/executions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
            f"Authorization: Bearer {TOKEN}\r\n\r\n"
        )
        with RawConnection(kernel.port) as connection:
            connection.send(head.encode() + framed)
            answer = connection.answer()
        assert answer.status == 201
        assert json.loads(answer.body)["input"] == "x" * 1000


class TestConnections:
    HEALTH = b"GET /v0/health HTTP/1.1\r\nHost: x\r\n\r\n"

    def test_kept_open(self, kernel: Kernel) -> None:
        with RawConnection(kernel.port) as connection:
            for _ in range(20):
                connection.send(self.HEALTH)
                assert connection.answer().status == 200

    def test_open_after_an_error(self, kernel: Kernel) -> None:
        with RawConnection(kernel.port) as connection:
            for target, status in (("/v0/x", 404), ("/v0/executions", 401)):
                connection.send(f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
                assert connection.answer().status == status
            connection.send(self.HEALTH)
            assert connection.answer().status == 200

    def test_pipelined_in_order(self, kernel: Kernel) -> None:
        requests = b"".join(
            f"GET /v0/health HTTP/1.1\r\nHost: x\r\nX-Request-Id: n{n}\r\n\r\n".encode()
            for n in range(30)
        )
        with RawConnection(kernel.port) as connection:
            connection.send(requests)
            ids = [connection.answer().headers["x-request-id"] for _ in range(30)]
        assert ids == [f"n{n}" for n in range(30)]

    def test_byte_by_byte(self, kernel: Kernel) -> None:
        with RawConnection(kernel.port) as connection:
            for byte in self.HEALTH:
                connection.send(bytes([byte]))
            assert connection.answer().status == 200

    def test_close_is_honoured(self, kernel: Kernel) -> None:
        with RawConnection(kernel.port) as connection:
            connection.send(self.HEALTH[:-2] + b"Connection: close\r\n\r\n")
            assert connection.answer().status == 200
            assert connection.closed()

    def test_a_lost_client_does_no_harm(self, kernel: Kernel, client: BearerClient) -> None:
        for part in range(1, len(self.HEALTH), 7):
            with RawConnection(kernel.port) as connection:
                connection.send(self.HEALTH[:part])
        client.get("/v0/health").expect(200)

    @pytest.mark.parametrize(
        "head",
        [
            b"GET /v0/health HTTP/1.1\r\n\r\n",
            b"GET /v0/health HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
            b"GET /v0/health HTTP/1.1\nHost: x\n\n",
            b"GET http://x/v0/health HTTP/1.1 y\r\nHost: x\r\n\r\n",
            b"POST /v0/executions HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n",
            b"POST /v0/executions HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n"
            b"Content-Length: 2\r\n\r\n",
            b"POST /v0/executions HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n",
            b"POST /v0/executions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n",
            b"GET /v0/health HTTP/1.1\r\nHost: x\r\nBad Name: x\r\n\r\n",
            b"GET /v0/health HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n",
            b"hello\r\n\r\n",
        ],
    )
    def test_what_is_not_http(self, kernel: Kernel, head: bytes) -> None:
        with RawConnection(kernel.port) as connection:
            connection.send(head)
            answer = connection.answer()
            assert answer.status == 400
            API.check_named(json.loads(answer.body), "Error")
            assert connection.closed()


class TestOperations:
    def test_health(self, kernel: Kernel) -> None:
        assert BaseClient(kernel.url).get("/v0/health").expect(200).json == {"status": "ok"}

    def test_ready(self, kernel: Kernel) -> None:
        assert BaseClient(kernel.url).get("/v0/ready").expect(200).json == {"status": "ready"}

    def test_metrics_are_prometheus_text(self, kernel: Kernel, run: Attempt) -> None:
        run.record("x", 1, "r")
        run.complete().expect(204)
        text = BaseClient(kernel.url).get("/metrics").expect(200).body.decode()
        line = re.compile(r'^[a-z_:][a-z0-9_:]*(\{([a-z_]+="(?:[^"\\]|\\.)*",?)*\})? [^ ]+$')
        typed: set[str] = set()
        for text_line in text.splitlines():
            if text_line.startswith("# TYPE "):
                typed.add(text_line.split()[2])
            elif text_line and not text_line.startswith("#"):
                assert line.match(text_line), text_line
                name = re.split(r"[{ ]", text_line)[0]
                assert re.sub("_(bucket|sum|count)$", "", name) in typed or name in typed, text_line

    def test_metrics_count(self, kernel: Kernel, new_run: Callable[..., Attempt]) -> None:
        def values() -> dict[str, float]:
            text = BaseClient(kernel.url).get("/metrics").expect(200).body.decode()
            lines = [line for line in text.splitlines() if line and not line.startswith("#")]
            return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}

        before = values()
        run = new_run()
        run.record("x", 1, "r")
        later = run.released()
        later.replay("x", 1)
        later.complete().expect(204)
        after = eventually(lambda: values())

        def grown(name: str) -> float:
            return after.get(name, 0) - before.get(name, 0)

        assert grown("rebuno_executions_created_total") == 1
        assert grown('rebuno_executions_completed_total{status="completed"}') == 1
        assert grown('rebuno_steps_submitted_total{kind="tool_call"}') == 2
        assert grown('rebuno_replay_total{hit="true"}') == 1

    def test_nothing_personal_in_the_metrics(self, kernel: Kernel, run: Attempt) -> None:
        text = BaseClient(kernel.url).get("/metrics").expect(200).body.decode()
        assert run.id not in text
        assert run.agent.id not in text
