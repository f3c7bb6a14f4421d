# SPDX-License-Identifier: Apache-2.0
"""Vercel's Sandbox API on this machine: files, commands, sessions that stop and resume, snapshots.

Network policies act: Git in a sandbox reaches the local GitHub with the header that the policy of
its session adds.
"""

import gzip
import io
import itertools
import json
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from github import GitHub
from machine import Machine
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

HOME = "/vercel/sandbox"
AT_FAKE = Path(__file__).parent / "at_fake_vercel"
TOKEN, TEAM, PROJECT = "vercel-token-of-the-agent", "team_1", "prj_1"
KILLED = 137


class Refused(Exception):
    """An error as the service reports it."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.answer = JSONResponse({"error": {"code": code, "message": message}}, status)


@dataclass
class Box:
    """A sandbox; `session` is its last one, `saved` the network policy of the next ones."""

    name: str
    machine: Machine
    saved: dict[str, Any]
    session: str = ""
    running: bool = False
    starts: int = 0
    interrupted: bool = False
    history: list[str] = field(default_factory=list)

    def apply(self, policy: dict[str, Any]) -> None:
        """Lets the network of the running session add what the policy says."""
        rules = policy.get("allow", {}).get("github.com", [])
        headers = [change["headers"] for rule in rules for change in rule.get("transform", [])]
        self.machine.authorization = headers[0]["Authorization"] if headers else ""

    def start(self) -> None:
        if not self.running:
            self.starts += 1
            self.session = f"sbx_{self.name}_{self.starts}"
            self.running = True
            self.apply(self.saved)
            if self.interrupted:  # by a snapshot, and it goes on: that is no rest
                self.history.pop()
                self.interrupted = False
            else:
                self.history.append("running")

    def stop(self, *, for_snapshot: bool = False) -> None:
        self.running = False
        self.machine.authorization = ""
        self.interrupted = for_snapshot
        self.history.append("stopped")

    def sandbox_json(self) -> dict[str, Any]:
        status = "running" if self.running else "stopped"
        return {"name": self.name, "currentSessionId": self.session, "status": status, "cwd": HOME}

    def session_json(self) -> dict[str, Any]:
        return {"id": self.session, "status": "running" if self.running else "stopped", "cwd": HOME}

    def both(self) -> dict[str, Any]:
        return {"sandbox": self.sandbox_json(), "session": self.session_json(), "routes": []}


class FakeVercel:
    """`calls` holds name and body of each request; `command_limit` stands in for commands' own."""

    runs = "running"
    rests = "stopped"

    def __init__(self, folder: Path, github: GitHub | None = None) -> None:
        self.folder = folder
        self.github = github
        self.url = ""
        self.boxes: dict[str, Box] = {}
        self.snapshots: dict[str, Path] = {}
        self.calls: list[tuple[str, Any]] = []
        self.command_limit: float | None = None
        self._failing: dict[str, int] = {}
        self._busy = 0
        self._cut_short = ""
        self._numbers = itertools.count(1)

    @property
    def env(self) -> dict[str, str]:
        """The package reads no variable for the address of its service; `at_fake_vercel` does."""
        names = {"VERCEL_TOKEN": TOKEN, "VERCEL_TEAM_ID": TEAM, "VERCEL_PROJECT_ID": PROJECT}
        at_fake = {"PYTHONPATH": str(AT_FAKE), "FAKE_VERCEL_URL": self.url}
        return names | at_fake | {"VERCEL_TELEMETRY_DISABLED": "1"}

    def fail_next(self, call: str, status: int) -> None:
        """The next such call is answered with this status, and does nothing."""
        self._failing[call] = status

    def settle_slowly(self, calls: int) -> None:
        """So many calls to resume come while a sandbox is still busy with stopping."""
        self._busy = calls

    def named(self, call: str) -> list[Any]:
        return [body for name, body in self.calls if name == call]

    def cut_short(self, code: str) -> None:
        """The next command's sandbox stops while it runs; for the reason that the code names."""
        self._cut_short = code

    def machines(self) -> dict[str, Machine]:
        return {name: box.machine for name, box in self.boxes.items()}

    def history(self, name: str) -> list[str]:
        return self.boxes[name].history

    def time_out(self, name: str) -> None:
        """Does what happens when a session has lived for its time."""
        self.boxes[name].stop()

    def lose(self, name: str) -> None:
        del self.boxes[name]

    def _box(self, name: str) -> Box:
        if name not in self.boxes:
            raise Refused(404, "not_found", f"there is no sandbox {name}")
        return self.boxes[name]

    def app(self) -> Starlette:
        session, one = "/v2/sandboxes/sessions/{session}", "/v2/sandboxes/{name}"
        routes = [
            ("POST", "/v3/sandboxes", "create", self._create),
            ("GET", "/v2/sandboxes/snapshots/{id}", "get_snapshot", self._get_snapshot),
            ("POST", f"{session}/network-policy", "policy", self._apply_policy),
            ("POST", f"{session}/snapshot", "snapshot", self._snapshot),
            ("POST", f"{session}/stop", "stop", self._stop),
            ("POST", f"{session}/cmd", "command", self._command),
            ("POST", f"{session}/fs/read", "read", self._read),
            ("POST", f"{session}/fs/write", "write", self._write),
            ("GET", one, "get", self._get),
            ("PATCH", one, "update", self._update),
            ("DELETE", one, "destroy", self._destroy),
        ]
        return Starlette(routes=[self._route(*route) for route in routes])

    def _route(
        self, method: str, path: str, name: str, answer: Callable[[Request, Any], Response]
    ) -> Route:
        async def endpoint(request: Request) -> Response:
            content = await request.body()
            is_json = request.headers.get("content-type") == "application/json"
            body = json.loads(content) if content and is_json else content
            self.calls.append((name, body))
            try:
                self._check(request, name)
                return answer(request, body)
            except Refused as refused:
                return refused.answer

        return Route(path, endpoint, methods=[method])

    def _check(self, request: Request, name: str) -> None:
        team, given = request.query_params.get("teamId"), request.headers.get("authorization")
        if given != f"Bearer {TOKEN}" or team != TEAM:
            raise Refused(403, "forbidden", "not authorized")
        if status := self._failing.pop(name, 0):
            raise Refused(status, "internal_error", "told to fail")

    def _session(self, request: Request) -> Box:
        session = request.path_params["session"]
        for box in self.boxes.values():
            if box.session == session and box.running:
                return box
        raise Refused(410, "sandbox_stopped", f"the session {session} has stopped")

    def _create(self, request: Request, body: Any) -> Response:
        if body["projectId"] != PROJECT:
            raise Refused(404, "not_found", "there is no such project")
        name = f"box-{next(self._numbers)}"
        disk, source = self.folder / "boxes" / name, body.get("source")
        if source is None:
            machine = Machine(disk, home=HOME, github=self.github)
        elif source["type"] == "snapshot" and source["snapshotId"] in self.snapshots:
            taken = self.snapshots[source["snapshotId"]]
            machine = Machine.from_snapshot(taken, disk, home=HOME, github=self.github)
        else:
            raise Refused(404, "not_found", f"there is no {source}")
        self.boxes[name] = Box(name, machine, body["networkPolicy"])
        self.boxes[name].start()
        return JSONResponse(self.boxes[name].both())

    def _get(self, request: Request, body: Any) -> Response:
        box = self._box(request.path_params["name"])
        resumed = request.query_params["resume"] == "true" and not box.running
        if resumed and self._busy:
            self._busy -= 1
            raise Refused(409, "sandbox_stopping", "the sandbox is stopping")
        if resumed:
            box.start()
        return JSONResponse(box.both() | {"resumed": resumed})

    def _update(self, request: Request, body: Any) -> Response:
        box = self._box(request.path_params["name"])
        box.saved = body["networkPolicy"]
        return JSONResponse({"sandbox": box.sandbox_json()})

    def _destroy(self, request: Request, body: Any) -> Response:
        box = self._box(request.path_params["name"])
        box.stop()
        del self.boxes[box.name]
        return JSONResponse({"sandbox": box.sandbox_json()})

    def _apply_policy(self, request: Request, body: Any) -> Response:
        box = self._session(request)
        box.apply(body)
        return JSONResponse({"session": box.session_json()})

    def _stop(self, request: Request, body: Any) -> Response:
        box = self._session(request)
        box.stop()
        return JSONResponse({"session": box.session_json(), "sandbox": box.sandbox_json()})

    def _snapshot(self, request: Request, body: Any) -> Response:
        box = self._session(request)
        name = f"snap_{next(self._numbers)}"
        self.snapshots[name] = self.folder / "snapshots" / name
        box.machine.snapshot(self.snapshots[name])
        box.stop(for_snapshot=True)
        made = self._snapshot_json(name) | {"sourceSessionId": box.session}
        return JSONResponse({"snapshot": made, "session": box.session_json()})

    def _get_snapshot(self, request: Request, body: Any) -> Response:
        name = request.path_params["id"]
        if name not in self.snapshots:
            raise Refused(404, "not_found", f"there is no snapshot {name}")
        return JSONResponse({"snapshot": self._snapshot_json(name)})

    def _snapshot_json(self, name: str) -> dict[str, Any]:
        times = {"createdAt": 1, "updatedAt": 1, "sizeBytes": 1, "region": "iad1"}
        return {"id": name, "sourceSessionId": "sbx", "status": "created"} | times

    def _command(self, request: Request, body: Any) -> Response:
        box = self._session(request)
        machine, session = box.machine, box.session
        cut_short, self._cut_short = self._cut_short, ""
        known = {"id": f"cmd_{next(self._numbers)}", "name": body["command"], "args": body["args"]}
        known |= {"cwd": body.get("cwd") or HOME, "sessionId": session, "startedAt": 1}

        limit = self.command_limit or body.get("timeout", 60_000) / 1000

        def records() -> Iterator[str]:
            yield json.dumps({"command": known | {"exitCode": None}}) + "\n"
            if cut_short:
                box.stop()
                told = {"code": cut_short, "message": "the session has ended"}
                yield json.dumps({"stream": "error", "data": told}) + "\n"
                return
            argv = [body["command"], *body["args"]]
            ran = machine.run(argv, body.get("cwd"), limit)
            for stream in ("stdout", "stderr"):
                if text := getattr(ran, stream):
                    yield json.dumps({"stream": stream, "data": text}) + "\n"
            code = KILLED if ran.timed_out else ran.exit_code
            yield json.dumps({"command": known | {"exitCode": code}}) + "\n"

        return StreamingResponse(records(), media_type="application/x-ndjson")

    def _read(self, request: Request, body: Any) -> Response:
        try:
            return Response(self._session(request).machine.read(body["path"]))
        except (FileNotFoundError, IsADirectoryError) as exc:
            raise Refused(404, "not_found", f"there is no file {body['path']}") from exc

    def _write(self, request: Request, body: Any) -> Response:
        box = self._session(request)
        with tarfile.open(fileobj=io.BytesIO(gzip.decompress(body))) as archive:
            for member in archive.getmembers():
                if (file := archive.extractfile(member)) is not None:
                    path = Path(request.headers["x-cwd"], member.name)
                    box.machine.write(str(path), file.read())
        return JSONResponse({})
