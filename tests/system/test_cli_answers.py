"""The command line against servers that are no kernel, or one that is not well."""

import http.server
import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.cli import COMMAND_S
from harness.kernel import BINARY

ID = "01933d2a-7b1c-7abc-8def-0123456789ab"
OTHER = "01933d2a-7b1c-7abd-8def-0123456789ab"


class Server:
    """Answers each request with the next of `answers`, the last one for ever."""

    def __init__(self, *answers: tuple[int, str, str]) -> None:
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        owner, left = self, list(answers)

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                headers = {name.lower(): value for name, value in self.headers.items()}
                owner.requests.append((f"{self.command} {self.path}", headers, body))
                status, kind, text = left.pop(0) if len(left) > 1 else left[0]
                data = text.encode()
                self.send_response(status)
                self.send_header("Content-Type", kind)
                if kind == "text/event-stream":
                    self.send_header("Connection", "close")
                    self.close_connection = True
                else:
                    self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_DELETE = answer

            def log_message(self, *args: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def run(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("REBUNO_")}
        return subprocess.run(
            [BINARY, *words],
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env={**inherited, "REBUNO_URL": self.url, **env},
            timeout=COMMAND_S,
        )


Serve = Callable[..., Server]


@pytest.fixture
def serve() -> Iterator[Serve]:
    made: list[Server] = []

    def start(*answers: tuple[int, str, str]) -> Server:
        made.append(Server(*answers))
        return made[-1]

    yield start
    for server in made:
        server.close()


def as_json(value: Any, status: int = 200) -> tuple[int, str, str]:
    return status, "application/json; charset=utf-8", json.dumps(value)


def stream(*events: dict[str, Any]) -> tuple[int, str, str]:
    text = "".join(f"id: {e['event_seq']}\ndata: {json.dumps(e)}\n\n" for e in events)
    return 200, "text/event-stream", ": hello\n\n" + text


def event(seq: int, kind: str, **payload: Any) -> dict[str, Any]:
    at = f"2026-01-02T03:04:{seq:02}.5Z"
    return {"event_seq": seq, "type": kind, "occurred_at": at, "payload": payload}


COMPLETED = event(3, "execution.completed", output={"x": 1})
PAGE = (200, "text/html", "<html>hello</html>")


MANIFEST = """\
agents:
  - { id: plain, webhook_url: http://localhost:1, secret: s }
  - { id: governed, webhook_url: http://localhost:2, secret: s, policy: "default_action: deny" }
"""


class TestAgentAdd:
    def test_policies_go_with_the_agents(self, serve: Serve, tmp_path: Path) -> None:
        """In one request each: in between a new agent would be allowed everything."""
        (tmp_path / "agents.yaml").write_text(MANIFEST)
        server = serve(as_json({}, 201))
        done = server.run("agent", "add", str(tmp_path / "agents.yaml"))
        assert (done.returncode, done.stderr) == (0, "")
        assert [line for line, _, _ in server.requests] == ["POST /v0/agents"] * 2
        plain, governed = (json.loads(body) for _, _, body in server.requests)
        assert plain == {"id": "plain", "webhook_url": "http://localhost:1", "secret": "s"}
        assert governed == {
            "id": "governed",
            "webhook_url": "http://localhost:2",
            "secret": "s",
            "policy_bundle": "default_action: deny",
        }

    def test_the_agent_that_is_refused_is_named(self, serve: Serve, tmp_path: Path) -> None:
        (tmp_path / "agents.yaml").write_text(MANIFEST)
        wrong = {"code": "validation_error", "message": "line 1, column 1: no"}
        server = serve(as_json({}, 201), as_json(wrong, 400))
        done = server.run("agent", "add", str(tmp_path / "agents.yaml"))
        assert (done.returncode, done.stdout) == (1, "registered plain at http://localhost:1\n")
        assert done.stderr.startswith('error: agent "governed": line 1, column 1: no')


class TestNoKernel:
    @pytest.mark.parametrize(
        ("answer", "message"),
        [
            (PAGE, "is not a kernel: invalid JSON at byte 0"),
            ((200, "application/json", ""), "is not a kernel: an empty answer"),
            ((200, "application/json", '{"a":'), "is not a kernel: invalid JSON"),
            (
                (502, "text/html", "bad gateway"),
                "answered with HTTP status 502, which is no answer",
            ),
            ((302, "text/plain", ""), "answered with HTTP status 302, which is no answer"),
            (as_json({"detail": "x"}, 404), "status 404 and no reason; is it a kernel?"),
        ],
    )
    def test_is_said(self, serve: Serve, answer: tuple[int, str, str], message: str) -> None:
        server = serve(answer)
        for words in (["agent", "ls"], ["exec", "get", ID], ["exec", "ls"], ["exec", "steps", ID]):
            done = server.run(*words)
            assert (done.returncode, done.stdout) == (1, "")
            assert message in done.stderr and server.url in done.stderr

    @pytest.mark.parametrize(
        ("answer", "message"),
        [
            (PAGE, "no event stream"),
            ((200, "text/event-stream", "data: hello\n\n"), "are no events"),
            (as_json({"code": "not_found", "message": "no such execution"}, 404), "(not_found)"),
        ],
    )
    def test_watch_gives_up(self, serve: Serve, answer: tuple[int, str, str], message: str) -> None:
        done = serve(answer).run("exec", "watch", ID)
        assert done.returncode == 1 and message in done.stderr

    def test_lists_that_are_none(self, serve: Serve) -> None:
        server = serve(as_json({"executions": 5}))
        assert "has no executions" in server.run("exec", "ls").stderr
        assert "has no executions" in server.run("exec", "get", "0193").stderr
        assert "is no list" in server.run("exec", "events", ID).stderr

    def test_errors_cannot_drive_the_terminal(self, serve: Serve) -> None:
        server = serve(as_json({"code": "conflict", "message": "a\x1b[2J\u202eb\x9b"}, 409))
        done = server.run("exec", "cancel", ID)
        assert done.stderr == "error: a\\x1b[2J\\u202eb\\x9b (conflict)\n"


class TestRequests:
    def test_what_is_sent(self, serve: Serve) -> None:
        server = serve(as_json({"id": ID, "status": "running"}, 201))
        server.run(
            "exec",
            "create",
            "a",
            ' [1.0, "\\u00e9"] ',
            "--on-behalf-of",
            'z"',
            REBUNO_API_KEY="key",
        )
        line, headers, body = server.requests[0]
        assert line == "POST /v0/executions"
        assert body == b'{"agent_id":"a","input": [1.0, "\\u00e9"] ,"on_behalf_of":"z\\""}'
        assert headers["authorization"] == "Bearer key"
        assert headers["content-type"] == "application/json"
        assert "expect" not in headers

    def test_names_are_escaped(self, serve: Serve) -> None:
        server = serve(as_json({"executions": []}))
        server.run("exec", "ls", "--agent", "a&b=c d/é", "--status", "failed")
        assert server.requests[0][0] == (
            "GET /v0/executions?limit=50&agent_id=a%26b%3Dc%20d%2F%C3%A9&status=failed"
        )
        server.run("agent", "get", "../executions")
        assert server.requests[1][0] == "GET /v0/agents/..%2Fexecutions"
        assert server.run("agent", "get", "..").returncode == 1
        assert len(server.requests) == 2

    def test_cancel_has_no_body(self, serve: Serve) -> None:
        server = serve((204, "text/plain", ""))
        assert server.run("exec", "cancel", ID).stdout == f"cancelled {ID[:18]}\n"
        line, headers, body = server.requests[0]
        assert (line, body) == (f"POST /v0/executions/{ID}/cancel", b"")
        assert headers["content-length"] == "0" and "content-type" not in headers

    def test_a_url_may_have_a_path(self, serve: Serve) -> None:
        server = serve(as_json([]))
        done = server.run("agent", "ls", "--url", server.url + "/behind/proxy/")
        assert server.requests[0][0] == "GET /behind/proxy/v0/agents"
        assert done.stderr.startswith("no agents")


class TestPrefix:
    def test_candidates_are_listed(self, serve: Serve) -> None:
        found = [
            {
                "id": i,
                "agent_id": "a\x1b[1m",
                "status": "running",
                "created_at": "2026-01-02T03:04:05Z",
            }
            for i in (OTHER, ID)
        ]
        server = serve(as_json({"executions": found}))
        done = server.run("exec", "cancel", "01933D2A-7")
        assert server.requests[0][0].startswith("GET /v0/executions?prefix=01933d2a-7&")
        assert len(server.requests) == 1 and done.returncode == 1 and done.stdout == ""
        assert ID in done.stderr and OTHER in done.stderr and "\x1b" not in done.stderr

    def test_one_is_taken(self, serve: Serve) -> None:
        server = serve(as_json({"executions": [{"id": ID}]}), (204, "text/plain", ""))
        assert server.run("exec", "cancel", "01933d2a-7b1c-7abc").returncode == 0
        assert server.requests[1][0] == f"POST /v0/executions/{ID}/cancel"

    @pytest.mark.parametrize("given", ["x", "01933d2a7", "01933d2a-", ID + "0", "", "0193 "])
    def test_what_is_no_id(self, serve: Serve, given: str) -> None:
        server = serve(as_json({"executions": []}))
        done = server.run("exec", "get", given)
        assert done.returncode == 1
        assert bool(server.requests) == (given == "01933d2a-")


class TestApprovals:
    def test_who_may_decide_need_not_read(self, serve: Serve) -> None:
        no = as_json({"code": "forbidden", "message": "the key has no scope for that"}, 403)
        server = serve((204, "text/plain", ""), no)
        done = server.run("approval", "grant", ID, "--by", "é", "--reason", 'x"')
        assert (done.returncode, done.stdout, done.stderr) == (0, f"granted {ID[:18]}\n", "")
        line, _, body = server.requests[0]
        assert line == f"POST /v0/approvals/{ID}/grant"
        assert json.loads(body) == {"decided_by": "é", "rationale": 'x"'}
        server = serve((204, "text/plain", ""), no)
        done = server.run("approval", "deny", ID, "--json", USER="")
        assert json.loads(done.stdout) == {"id": ID, "status": "denied"}
        assert server.requests[0][2] == b"{}"

    @pytest.mark.parametrize(
        ("details", "message"),
        [
            ({"status": "granted", "decided_by": "b\x1b[1m"}, "already granted by b\\x1b[1m"),
            ({"status": "expired"}, "already expired"),
            ({}, "too late (conflict)"),
            (None, "too late (conflict)"),
        ],
    )
    def test_what_won_is_said(
        self, serve: Serve, details: dict[str, str] | None, message: str
    ) -> None:
        envelope = {"code": "conflict", "message": "too late"}
        full = envelope if details is None else {**envelope, "details": details}
        done = serve(as_json(full, 409)).run("approval", "deny", ID)
        assert (done.returncode, done.stderr) == (1, f"error: {message}\n")

    def test_found_in_every_state(self, serve: Serve) -> None:
        server = serve(as_json([{"id": ID, "status": "expired"}]), as_json({"id": ID}))
        assert server.run("approval", "get", ID[:9]).returncode == 0
        assert server.requests[0][0] == f"GET /v0/approvals?status=&prefix={ID[:9]}&limit=11"

    def test_lists(self, serve: Serve) -> None:
        server = serve(as_json([]))
        for words, query in (
            ([], "limit=51"),
            (["--limit", "1000"], "limit=1000"),
            (["--status", "all", "--json"], "limit=50&status="),
            (["--status", "granted"], "limit=51&status=granted"),
        ):
            assert server.run("approval", "ls", *words).returncode == 0
            assert server.requests[-1][0] == f"GET /v0/approvals?{query}"
        assert "is no list" in serve(as_json({})).run("approval", "ls").stderr

    @pytest.mark.parametrize("status", [404, 500])
    def test_a_watch_that_may_not_see_it(self, serve: Serve, status: int) -> None:
        """It goes on all the same, and names the command that shows it where that may help."""
        asks = event(2, "approval.requested", approval_id=ID, status="pending")
        server = serve(
            stream(event(1, "execution.created"), asks),
            as_json({"code": "x", "message": "y"}, status),
            stream(COMPLETED),
        )
        done = server.run("exec", "watch", OTHER)
        assert (done.returncode, server.requests[1][0]) == (0, f"GET /v0/approvals/{ID}")
        assert (f"rebuno approval get {ID[:18]}" in done.stderr) == (status == 404)


class TestReconnect:
    def test_goes_on_behind_the_last_event(self, serve: Serve) -> None:
        busy = as_json({"code": "unavailable", "message": "starting"}, 503)
        server = serve(
            stream(event(1, "execution.created", created_by="x")),
            busy,
            busy,
            stream(event(1, "execution.created"), event(2, "execution.started")),
            stream(COMPLETED),
        )
        done = server.run("exec", "watch", ID, "--json")
        assert done.returncode == 0
        assert [json.loads(line)["event_seq"] for line in done.stdout.splitlines()] == [1, 2, 3]
        last_ids = [headers.get("last-event-id") for _, headers, _ in server.requests]
        assert last_ids == [None, "1", "1", "1", "2"]
        lost = f"the connection to {server.url} is lost; waiting for the kernel\n"
        assert done.stderr == lost * 2  # once for each time, however many tries it took

    def test_what_is_known_needs_no_kernel(self, serve: Serve) -> None:
        """The end was seen; that the rest of the stream is cut off changes nothing."""
        server = serve(stream(COMPLETED), (500, "text/plain", ""))
        done = server.run("exec", "watch", ID)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.splitlines()[-1] == 'completed: {"x": 1}'
        assert len(server.requests) == 1

    def test_a_kernel_that_forgot_is_an_error(self, serve: Serve) -> None:
        gone = as_json({"code": "not_found", "message": "no such execution"}, 404)
        done = serve(stream(event(1, "execution.created")), gone).run("exec", "watch", ID)
        assert done.returncode == 1 and done.stderr.endswith(
            "error: no such execution (not_found)\n"
        )
