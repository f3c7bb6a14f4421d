# SPDX-License-Identifier: Apache-2.0
"""Daytona on this machine, as its published package speaks to it: sandboxes, snapshots, secrets.

Point the package at it with the variables of `env`. What the package calls is in `calls`;
`fail_next` answers one call with an error, `command_limit` cuts commands short as Daytona does at
their time-out. A change of state shows as such in the answer that begins it, and is over at the
next look.
"""

import asyncio
import itertools
import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from github import GitHub
from machine import Machine, Ran
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

HOME = "/home/daytona"
KEY = "dtn_00000000000000000000000000000000"
DAEMON = "DAYTONA_DAEMON"
WHEN = "2026-01-01T00:00:00.000Z"


@dataclass
class Sandbox:
    id: str
    machine: Machine
    env: dict[str, str]
    labels: dict[str, str]
    state: str = "started"
    history: list[str] = field(default_factory=lambda: ["started"])
    becoming: str = ""
    looks: int = 1  # until a change is over
    error_reason: str | None = None

    def begin(self, through: str, to: str) -> None:
        self.state, self.becoming = through, to

    def settle(self) -> None:
        self.looks -= 1
        if self.becoming and self.looks <= 0:
            self.become(self.becoming)

    def become(self, state: str) -> None:
        self.becoming = ""
        self.state = state
        if state != self.history[-1]:
            self.history.append(state)


@dataclass
class Secret:
    id: str
    name: str
    value: str
    hosts: list[str]

    @property
    def placeholder(self) -> str:
        return f"dtn-secret-{self.id}"

    def shown(self) -> dict[str, Any]:
        return {
            "id": self.id, "name": self.name, "placeholder": self.placeholder, "hosts": self.hosts,
            "createdAt": WHEN, "updatedAt": WHEN,
        }  # fmt: skip


class FakeDaytona:
    runs = "started"
    rests = "stopped"

    def __init__(self, folder: Path, github: GitHub | None = None) -> None:
        self.folder = folder
        self.github = github
        self.url = ""
        self.sandboxes: dict[str, Sandbox] = {}
        self.snapshots: dict[str, Path] = {}
        self.snapshot_states: dict[str, str] = {}
        self.secrets: dict[str, Secret] = {}
        self.calls: list[tuple[str, Any]] = []
        self.command_limit: float | None = None
        self.before: dict[str, Callable[[], None]] = {}  # done once, as a call of that name arrives
        self._failing: dict[str, int] = {}
        self._numbers = itertools.count(1)

    @property
    def env(self) -> dict[str, str]:
        return {"DAYTONA_API_KEY": KEY, "DAYTONA_API_URL": f"{self.url}/api"}

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
        """Does what happens to a sandbox that was idle for long."""
        self.sandboxes[sandbox_id].become("stopped")

    def add_secret(self, name: str, value: str, hosts: list[str]) -> Secret:
        secret = Secret(f"sec{next(self._numbers)}", name, value, hosts)
        self.secrets[secret.id] = secret
        return secret

    def app(self) -> Starlette:
        one, tools = "/api/sandbox/{id}", "/toolbox/{id}"
        routes = [
            ("POST", "/api/sandbox", self._create),
            ("GET", one, self._get),
            ("DELETE", one, self._delete),
            ("POST", f"{one}/start", self._begin("start", "starting", "started")),
            ("POST", f"{one}/stop", self._begin("stop", "stopping", "stopped")),
            ("POST", f"{one}/snapshot", self._snapshot),
            ("GET", "/api/snapshots/{name}", self._get_snapshot),
            ("POST", "/api/snapshots/{name}/activate", self._activate),
            ("POST", "/api/secret", self._create_secret),
            ("GET", "/api/secret/paginated", self._list_secrets),
            ("PATCH", "/api/secret/{id}", self._update_secret),
            ("POST", f"{tools}/process/execute", self._execute),
            ("POST", f"{tools}/files/bulk-download", self._download),
            ("POST", f"{tools}/files/bulk-upload", self._upload),
        ]
        return Starlette(
            routes=[Route(path, handler, methods=[how]) for how, path, handler in routes],
            exception_handlers={Refused: _refusal},
        )

    async def _called(self, request: Request, name: str) -> Any:
        """Notes a call of the API; refuses it if it must."""
        raw = await request.body()
        body = json.loads(raw) if raw else dict(request.query_params)
        self.calls.append((name, body))
        if request.headers.get("authorization") != f"Bearer {KEY}":
            raise Refused(401, "Invalid credentials")
        self.before.pop(name, lambda: None)()
        if status := self._failing.pop(name, 0):
            raise Refused(status, "told to fail")
        return body

    def _sandbox(self, request: Request) -> Sandbox:
        id = request.path_params["id"]
        if id not in self.sandboxes:
            raise Refused(404, "Sandbox not found")
        return self.sandboxes[id]

    async def _create(self, request: Request) -> Response:
        body = await self._called(request, "create")
        env = dict(body.get("env") or {})
        for mounted in body.get("secrets") or []:
            for variable, name in mounted.items():
                found = [secret for secret in self.secrets.values() if secret.name == name]
                if not found:
                    raise Refused(400, f"Secret {name} not found")
                env[variable] = found[0].placeholder
        id = f"sandbox-{next(self._numbers):04}"
        place = {"home": HOME, "github": self.github}
        if snapshot := body.get("snapshot"):
            if self.snapshot_states.get(snapshot) != "active":
                raise Refused(400, f"Snapshot {snapshot} is not available")
            machine = await asyncio.to_thread(
                Machine.from_snapshot, self.snapshots[snapshot], self.folder / id, **place
            )
        else:
            machine = Machine(self.folder / id, **place)
        sandbox = Sandbox(id, machine, env, body.get("labels") or {})
        sandbox.begin("creating", "started")
        self.sandboxes[id] = sandbox
        return JSONResponse(self._shown(sandbox))

    async def _get(self, request: Request) -> Response:
        await self._called(request, "get")
        sandbox = self._sandbox(request)
        sandbox.settle()
        return JSONResponse(self._shown(sandbox))

    async def _delete(self, request: Request) -> Response:
        await self._called(request, "delete")
        sandbox = self._sandbox(request)
        self.lose(sandbox.id)
        sandbox.become("destroyed")
        return JSONResponse(self._shown(sandbox))

    def _begin(self, name: str, through: str, to: str) -> Any:
        async def handler(request: Request) -> Response:
            await self._called(request, name)
            sandbox = self._sandbox(request)
            if sandbox.state == to:
                raise Refused(400, f"Sandbox is already {to}")
            sandbox.begin(through, to)
            return JSONResponse(self._shown(sandbox))

        return handler

    async def _snapshot(self, request: Request) -> Response:
        body = await self._called(request, "snapshot")
        sandbox = self._sandbox(request)
        if sandbox.state != "started":
            raise Refused(400, "Sandbox is not started")
        if body["name"] in self.snapshots:
            raise Refused(409, f"Snapshot {body['name']} already exists")
        to = self.folder / body["name"]
        await asyncio.to_thread(sandbox.machine.snapshot, to)
        self.snapshots[body["name"]] = to
        self.snapshot_states[body["name"]] = "active"
        sandbox.begin("snapshotting", "started")
        return JSONResponse(self._shown(sandbox))

    def _shown(self, sandbox: Sandbox) -> dict[str, Any]:
        return {
            "id": sandbox.id, "organizationId": "org", "name": sandbox.id, "user": "daytona",
            "env": {}, "labels": sandbox.labels, "public": False, "networkBlockAll": False,
            "kvm": False, "target": "us", "cpu": 1, "gpu": 0, "memory": 1, "disk": 3,
            "state": sandbox.state, "errorReason": sandbox.error_reason,
            "toolboxProxyUrl": f"{self.url}/toolbox",
        }  # fmt: skip

    async def _get_snapshot(self, request: Request) -> Response:
        await self._called(request, "get_snapshot")
        name = request.path_params["name"]
        if name not in self.snapshots:
            raise Refused(404, f"Snapshot {name} not found")
        return JSONResponse(self._snapshot_shown(name))

    async def _activate(self, request: Request) -> Response:
        await self._called(request, "activate")
        name = request.path_params["name"]
        self.snapshot_states[name] = "active"
        return JSONResponse(self._snapshot_shown(name))

    def _snapshot_shown(self, name: str) -> dict[str, Any]:
        return {
            "id": name, "general": False, "name": name, "state": self.snapshot_states[name],
            "size": 1, "entrypoint": None, "cpu": 1, "gpu": 0, "mem": 1, "disk": 3,
            "errorReason": None, "createdAt": WHEN, "updatedAt": WHEN, "lastUsedAt": None,
            "sourceSandboxId": None,
        }  # fmt: skip

    async def _create_secret(self, request: Request) -> Response:
        body = await self._called(request, "create_secret")
        if any(secret.name == body["name"] for secret in self.secrets.values()):
            raise Refused(409, f"Secret {body['name']} already exists")
        secret = self.add_secret(body["name"], body["value"], body.get("hosts") or [])
        return JSONResponse(secret.shown(), 201)

    async def _list_secrets(self, request: Request) -> Response:
        """One a page, so that who looks for a name has to turn pages."""
        asked = await self._called(request, "list_secrets")
        found = [one for one in self.secrets.values() if asked.get("name", "") in one.name]
        start = int(asked.get("cursor", 0))
        following = str(start + 1) if start + 1 < len(found) else None
        items = [secret.shown() for secret in found[start : start + 1]]
        return JSONResponse({"items": items, "nextCursor": following, "total": len(found)})

    async def _update_secret(self, request: Request) -> Response:
        body = await self._called(request, "update_secret")
        secret = self.secrets[request.path_params["id"]]
        secret.value = body.get("value", secret.value)
        secret.hosts = body.get("hosts", secret.hosts)
        return JSONResponse(secret.shown())

    def _running(self, request: Request) -> Sandbox:
        sandbox = self._sandbox(request)
        if sandbox.state != "started":
            raise Refused(400, f"Sandbox is {sandbox.state}, not started")
        return sandbox

    def _authorization(self, machine: Machine) -> str:
        """The header that Git is told to send, as it leaves for github.com."""
        config = machine.root / ".gitconfig"
        key = "http.https://github.com/.extraheader"
        command = ["git", "config", "--file", str(config), "--get", key]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        sent = done.stdout.strip().removeprefix("Authorization: ")
        for secret in self.secrets.values():
            if "github.com" in secret.hosts:
                sent = sent.replace(secret.placeholder, secret.value)
        return sent

    async def _execute(self, request: Request) -> Response:
        asked = await self._called(request, "command")
        sandbox = self._running(request)
        limit = asked.get("timeout") if self.command_limit is None else self.command_limit
        ran = await asyncio.to_thread(self._run, sandbox, asked, limit)
        if ran.timed_out:
            raise Refused(408, "command execution timeout", "PROCESS_EXECUTION_TIMEOUT")
        return JSONResponse({"exitCode": ran.exit_code, "result": ran.stdout})

    def _run(self, sandbox: Sandbox, asked: dict[str, Any], limit: float | None) -> Ran:
        machine = sandbox.machine
        machine.authorization = self._authorization(machine)
        # Both streams in one, as Daytona gives them.
        argv = ["/bin/bash", "-c", 'exec 2>&1; eval "$1"', "bash", asked["command"]]
        try:
            return machine.run(
                argv, asked.get("cwd"), limit, sandbox.env | (asked.get("envs") or {})
            )
        except FileNotFoundError as exc:
            return Ran(1, f"{exc}\n", "")

    async def _download(self, request: Request) -> Response:
        asked = await self._called(request, "download")
        machine = self._running(request).machine
        boundary = "part-of-a-download"
        parts = b"".join(_part(machine, path, boundary) for path in asked["paths"])
        kind = f"multipart/form-data; boundary={boundary}"
        return Response(parts + f"--{boundary}--\r\n".encode(), media_type=kind)

    async def _upload(self, request: Request) -> Response:
        machine = self._running(request).machine
        async with request.form() as form:
            path = str(form["files[0].path"])
            machine.write(path, await form["files[0].file"].read())  # type: ignore[union-attr]
        self.calls.append(("upload", path))
        return JSONResponse({})


class Refused(Exception):
    def __init__(self, status: int, message: str, code: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.code = code


def _error(exc: Refused) -> dict[str, Any]:
    error: dict[str, Any] = {"statusCode": exc.status, "message": str(exc)}
    return error | ({"source": DAEMON, "code": exc.code} if exc.code else {})


async def _refusal(_: Request, exc: Exception) -> Response:
    assert isinstance(exc, Refused)
    return JSONResponse(_error(exc), exc.status)


def _part(machine: Machine, path: str, boundary: str) -> bytes:
    try:
        name, kind, content = "file", "application/octet-stream", machine.read(path)
    except FileNotFoundError:
        refused = Refused(404, f"{path}: no such file", "FILE_NOT_FOUND")
        name, kind, content = "error", "application/json", json.dumps(_error(refused)).encode()
    head = f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"; filename="{path}"\r\n'
    head += f"Content-Type: {kind}\r\nContent-Length: {len(content)}\r\n\r\n"
    return head.encode() + content + b"\r\n"
