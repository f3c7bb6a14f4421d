"""A server that answers as a kernel would about executions that a test has written down."""

import hashlib
import http.server
import json
import os
import subprocess
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from harness.cli import COMMAND_S
from harness.kernel import BINARY

TYPE = "application/json; charset=utf-8"
Reply = tuple[int, Any]


def at(seq: int) -> str:
    return f"2026-01-02T03:04:{seq % 60:02}.5Z"


def args_hash(args: Any) -> str:
    text = json.dumps(args, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


class ScriptedExecution:
    """What the kernel has of one execution."""

    def __init__(self, identity: str, **fields: Any) -> None:
        self.id = identity
        self.body = {
            "id": identity,
            "agent_id": "coder",
            "status": "completed",
            "input": None,
            "created_by": "x",
            "created_at": at(1),
            "updated_at": at(9),
            **fields,
        }
        self.steps: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self.fork_points: dict[str, Any] | None = None
        self.previous: Any = None
        self._calls: Counter[tuple[str, str, str]] = Counter()
        self._places: dict[str, int] = {}

    def event(self, kind: str, **payload: Any) -> int:
        seq = len(self.events) + 1
        self.events.append(
            {"event_seq": seq, "type": kind, "occurred_at": at(seq), "payload": payload}
        )
        return seq

    def place(self, step_id: str) -> int:
        return self._places[step_id]

    def step(
        self,
        target: str,
        args: Any = None,
        *,
        result: Any = "done",
        kind: str = "tool_call",
        rule: str = "permissive",
        **more: Any,
    ) -> dict[str, Any]:
        """A step with its events. `error` makes it a failure, `held` (granted or denied) one that
        a person decided on, `denied` one that a rule refused."""
        hashed = args_hash(args)
        occurrence = self._calls[kind, target, hashed]
        self._calls[kind, target, hashed] += 1
        denied = more.get("denied") or more.get("held") == "denied"
        status = "denied" if denied else "failed" if "error" in more else "succeeded"
        step = {
            "step_id": f"{len(self.steps):04}{self.id[:18]}{'0' * 42}",
            "execution_id": self.id,
            "kind": kind,
            "target": target,
            "args": args,
            "args_hash": hashed,
            "occurrence": occurrence,
            "status": more.get("status", status),
            "idempotency": "at_most_once",
        }
        if step["status"] == "succeeded":
            step["result"] = result
        if "error" in more:
            step["error"] = more["error"]
        if "usage" in more:
            step["usage"] = more["usage"]
        self._places[step["step_id"]] = len(self.steps)
        self.steps.append(step)
        self._decide(step, rule, more)
        return step

    def _decide(self, step: dict[str, Any], rule: str, more: dict[str, Any]) -> None:
        names = {"step_id": step["step_id"], "step_type": step["kind"], "target": step["target"]}
        self.event("step.proposed", **names)
        if "held" in more:
            self.event("step.awaiting_approval", rule_id=rule, **names)
            by = {"step_id": step["step_id"], "approval_id": "a", "decided_by": more.get("by")}
            self.event(f"approval.{more['held']}", **{k: v for k, v in by.items() if v})
        if step["status"] == "denied":
            self.event("step.denied", **names, **({} if "held" in more else {"rule_id": rule}))
            return
        self.event("step.allowed", **names, **({} if "held" in more else {"rule_id": rule}))
        self.event("step.executing", **names)
        if step["status"] in ("succeeded", "failed"):
            usage = {"usage": step["usage"]} if "usage" in step else {}
            self.event(f"step.{step['status']}", **names, **usage)


class ScriptedKernel:
    """`on` adds answers of its own: a function of the body for "POST /v0/…"."""

    def __init__(self, *executions: ScriptedExecution) -> None:
        self.executions = {e.id: e for e in executions}
        self.requests: list[tuple[str, bytes]] = []
        self.on: dict[str, Callable[[Any], Reply]] = {}
        owner = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                status, value = owner.answer(f"{self.command} {self.path}", body)
                data = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Type", TYPE)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = answer

            def log_message(self, *args: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def answer(self, line: str, body: bytes) -> Reply:
        self.requests.append((line, body))
        method, _, target = line.partition(" ")
        parts = urlsplit(target)
        if f"{method} {parts.path}" in self.on:
            return self.on[f"{method} {parts.path}"](json.loads(body) if body else None)
        query = {k: v[0] for k, v in parse_qs(parts.query, keep_blank_values=True).items()}
        _, _, _, *path = parts.path.split("/")
        if not path:
            return 200, {"executions": self.listed(query)}
        execution = self.executions.get(path[0])
        found = None if execution is None else self.of(execution, path[1:], query)
        return (200, found) if found is not None else (404, {"code": "not_found", "message": "no"})

    def listed(self, query: dict[str, str]) -> list[Any]:
        found = [
            e.body for e in self.executions.values() if e.id.startswith(query.get("prefix", ""))
        ]
        if "spawned_by" in query:
            spawned = [e for e in found if "spawned_by" in e]
            found = [e for e in spawned if e["spawned_by"]["execution_id"] == query["spawned_by"]]
        return sorted(found, key=lambda e: str(e["id"]), reverse=True)[: int(query["limit"])]

    def of(self, execution: ScriptedExecution, path: list[str], query: dict[str, str]) -> Any:
        match path:
            case []:
                return execution.body
            case ["fork-points"]:
                return execution.fork_points
            case ["previous"]:
                return {"state": execution.previous}
            case ["events"]:
                after = int(query.get("after_seq", "0"))
                return execution.events[after : after + int(query["limit"])]
            case ["steps"]:
                after = execution.place(query["after"]) + 1 if "after" in query else 0
                return execution.steps[after : after + int(query["limit"])]
            case ["steps", step_id]:
                return execution.steps[execution.place(step_id)]
        return None

    def environment(self, env: dict[str, str]) -> dict[str, str]:
        inherited = {
            k: v for k, v in os.environ.items() if not k.startswith("REBUNO_") and k != "NO_COLOR"
        }
        return {**inherited, "REBUNO_URL": self.url, "TZ": "UTC", **env}

    def run(self, *words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [BINARY, *words],
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=self.environment({}),
            cwd=cwd,
            timeout=COMMAND_S,
        )

    def on_terminal(self, columns: int, *words: str, **env: str) -> str:
        """What a terminal of this width shows, its errors too."""
        shell = f"stty cols {columns}; {BINARY} {' '.join(words)}"
        done = subprocess.run(
            ["script", "-qec", shell, "/dev/null"],
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=self.environment({"TERM": "xterm", **env}),
            timeout=COMMAND_S,
        )
        return done.stdout.replace("\r\n", "\n")


Serve = Callable[..., ScriptedKernel]  # a fixture: made of executions, closed after the test
