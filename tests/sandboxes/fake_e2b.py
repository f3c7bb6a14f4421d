# SPDX-License-Identifier: Apache-2.0
"""E2B on this machine, as its published package speaks to it: sandboxes, pauses, snapshots.

Point the package at it with the variables of `env`. What the package calls is in `calls`;
`fail_next` answers one call with an error, `command_limit` cuts commands short as E2B does at
their time-out.
"""

import asyncio
import base64
import itertools
import json
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from github import GitHub
from machine import Machine, Ran
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

HOME = "/home/user"
KEY = "e2b_0000000000000000000000000000000000000000"


@dataclass
class Sandbox:
    id: str
    machine: Machine
    timeout: int
    on_timeout: str
    auto_resume: bool
    state: str = "running"
    epoch: int = 0  # connections of an earlier one are dropped
    history: list[str] = field(default_factory=lambda: ["running"])

    def become(self, state: str) -> None:
        if state != self.state:
            self.state = state
            self.history.append(state)


class FakeE2B:
    runs = "running"
    rests = "paused"

    def __init__(self, folder: Path, github: GitHub | None = None) -> None:
        self.folder = folder
        self.github = github
        self.url = ""
        self.sandboxes: dict[str, Sandbox] = {}
        self.snapshots: dict[str, Path] = {}
        self.calls: list[tuple[str, Any]] = []
        self.command_limit: float | None = None
        self._failing: dict[str, int] = {}
        self._numbers = itertools.count(1)

    @property
    def env(self) -> dict[str, str]:
        return {"E2B_API_KEY": KEY, "E2B_API_URL": self.url, "E2B_SANDBOX_URL": self.url}

    def fail_next(self, call: str, status: int) -> None:
        self._failing[call] = status

    def named(self, call: str) -> list[Any]:
        return [body for name, body in self.calls if name == call]

    def machines(self) -> dict[str, Machine]:
        return {id: sandbox.machine for id, sandbox in self.sandboxes.items()}

    def history(self, sandbox_id: str) -> list[str]:
        return self.sandboxes[sandbox_id].history

    def lose(self, sandbox_id: str) -> None:
        del self.sandboxes[sandbox_id]

    def time_out(self, sandbox_id: str) -> None:
        """Does what happens when a sandbox has lived for its time-out."""
        sandbox = self.sandboxes[sandbox_id]
        if sandbox.on_timeout == "pause":
            sandbox.become("paused")
        else:
            self.lose(sandbox_id)

    def app(self) -> Starlette:
        one = "/sandboxes/{id}"
        routes = [
            ("POST", "/v2/sandboxes", self._create),
            ("POST", f"/v2{one}/connect", self._connect),
            ("POST", f"{one}/snapshots", self._snapshot),
            ("POST", f"{one}/pause", self._pause),
            ("PUT", f"{one}/network", self._network),
            ("DELETE", one, self._kill),
            ("GET", "/files", self._read),
            ("POST", "/files", self._write),
            ("POST", "/process.Process/Start", self._start),
        ]
        return Starlette(
            routes=[Route(path, handler, methods=[how]) for how, path, handler in routes],
            exception_handlers={Refused: _refusal},
        )

    async def _called(self, request: Request, name: str) -> Any:
        """Notes a call of the control API; refuses it if it must."""
        raw = await request.body()
        body = json.loads(raw) if raw else {}
        self.calls.append((name, body))
        if request.headers.get("x-api-key") != KEY:
            raise Refused(401, "no such API key")
        if status := self._failing.pop(name, 0):
            raise Refused(status, "told to fail")
        return body

    def _sandbox(self, id: str) -> Sandbox:
        if id not in self.sandboxes:
            raise Refused(404, f"sandbox {id!r} doesn't exist")
        return self.sandboxes[id]

    async def _create(self, request: Request) -> Response:
        body = await self._called(request, "create")
        template = body["templateID"]
        id = f"isb{next(self._numbers):06}"
        place = {"home": HOME, "github": self.github}
        if template in self.snapshots:
            machine = await asyncio.to_thread(
                Machine.from_snapshot, self.snapshots[template], self.folder / id, **place
            )
        elif template == "base":
            machine = Machine(self.folder / id, **place)
        else:
            raise Refused(404, f"template '{template}' not found")
        sandbox = Sandbox(
            id,
            machine,
            body.get("timeout", 300),
            "pause" if body.get("autoPause") else "kill",
            bool(body.get("autoResume", {}).get("enabled")),
        )
        machine.authorization = _authorization(body.get("network", {}))
        self.sandboxes[id] = sandbox
        return JSONResponse(self._shown(sandbox), 201)

    async def _connect(self, request: Request) -> Response:
        body = await self._called(request, "connect")
        sandbox = self._sandbox(request.path_params["id"])
        sandbox.timeout = body.get("timeout", sandbox.timeout)
        sandbox.become("running")
        return JSONResponse(self._shown(sandbox), 200)

    async def _snapshot(self, request: Request) -> Response:
        await self._called(request, "snapshot")
        sandbox = self._sandbox(request.path_params["id"])
        if sandbox.state != "running":
            raise Refused(409, f"sandbox {sandbox.id} is not running")
        id = f"snapshot-{next(self._numbers):06}:default"
        to = self.folder / id
        await asyncio.to_thread(sandbox.machine.snapshot, to)
        self.snapshots[id] = to
        sandbox.epoch += 1
        return JSONResponse({"snapshotID": id, "names": []}, 201)

    async def _pause(self, request: Request) -> Response:
        await self._called(request, "pause")
        sandbox = self._sandbox(request.path_params["id"])
        if sandbox.state == "paused":
            raise Refused(409, f"sandbox {sandbox.id} is paused already")
        sandbox.become("paused")
        return Response(status_code=204)

    async def _network(self, request: Request) -> Response:
        body = await self._called(request, "network")
        sandbox = self._sandbox(request.path_params["id"])
        sandbox.machine.authorization = _authorization(body)
        return Response(status_code=204)

    async def _kill(self, request: Request) -> Response:
        await self._called(request, "kill")
        del self.sandboxes[self._sandbox(request.path_params["id"]).id]
        return Response(status_code=204)

    def _shown(self, sandbox: Sandbox) -> dict[str, Any]:
        """`envdAccessToken` names the connection: an old one does not work."""
        return {
            "sandboxID": sandbox.id,
            "templateID": "base",
            "clientID": "c",
            "envdVersion": "0.5.0",
            "envdAccessToken": f"{sandbox.id}.{sandbox.epoch}",
        }

    def _reached(self, request: Request) -> Sandbox:
        """The sandbox that a call goes to; a paused one answers only if activity wakes it."""
        id, _, epoch = request.headers.get("x-access-token", "").partition(".")
        sandbox = self.sandboxes.get(id)
        if sandbox is None or (sandbox.state == "paused" and not sandbox.auto_resume):
            raise Refused(502, "The sandbox was not found")
        if epoch != str(sandbox.epoch):
            raise Refused(401, "the connection was dropped")
        sandbox.become("running")
        return sandbox

    async def _read(self, request: Request) -> Response:
        path = request.query_params["path"]
        machine = self._reached(request).machine
        try:
            return Response(machine.read(path), media_type="application/octet-stream")
        except FileNotFoundError:
            raise Refused(404, f"path '{path}' does not exist") from None

    async def _write(self, request: Request) -> Response:
        machine = self._reached(request).machine
        path = request.query_params["path"]
        self.calls.append(("write", path))
        async with request.form() as form:
            machine.write(path, await form["file"].read())  # type: ignore[union-attr]
        name = path.rpartition("/")[2]
        return JSONResponse([{"name": name, "type": "file", "path": path}])

    async def _start(self, request: Request) -> Response:
        sandbox = self._reached(request)
        asked = json.loads((await request.body())[5:])["process"]
        self.calls.append(("command", asked))
        limit = float(request.headers.get("connect-timeout-ms", 0)) / 1000 or None
        if self.command_limit is not None:
            limit = self.command_limit
        events = self._events(sandbox.machine, asked, limit)
        return StreamingResponse(events, media_type="application/connect+json")

    async def _events(
        self, machine: Machine, asked: dict[str, Any], limit: float | None
    ) -> AsyncIterator[bytes]:
        yield _event({"start": {"pid": 1}})
        argv = [asked["cmd"], *asked["args"]]
        try:
            ran = await asyncio.to_thread(
                machine.run, argv, asked.get("cwd"), limit, asked.get("envs")
            )
        except FileNotFoundError as exc:
            ran = Ran(1, "", f"{exc}\n")
        for name, text in (("stdout", ran.stdout), ("stderr", ran.stderr)):
            if text:
                yield _event({"data": {name: base64.b64encode(text.encode()).decode()}})
        if ran.timed_out:
            yield _frame(2, {"error": {"code": "deadline_exceeded", "message": "time is up"}})
            return
        status = f"exit status {ran.exit_code}"
        yield _event({"end": {"exitCode": ran.exit_code, "exited": True, "status": status}})
        yield _frame(2, {})


class Refused(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


async def _refusal(_: Request, exc: Exception) -> Response:
    assert isinstance(exc, Refused)
    return JSONResponse({"code": exc.status, "message": str(exc)}, exc.status)


def _authorization(network: dict[str, Any]) -> str:
    """The header that goes to github.com; none unless traffic is let out."""
    if "0.0.0.0/0" not in network.get("allowOut", []):
        return ""
    rules = network.get("rules", {}).get("github.com", [])
    headers = [rule["transform"]["headers"] for rule in rules]
    return str(headers[0].get("Authorization", "")) if headers else ""


def _frame(flag: int, content: dict[str, Any]) -> bytes:
    data = json.dumps(content).encode()
    return struct.pack(">BI", flag, len(data)) + data


def _event(event: dict[str, Any]) -> bytes:
    return _frame(0, {"event": event})
