# SPDX-License-Identifier: Apache-2.0
"""Modal on this machine, as its published package speaks to it.

An API and a command router, both gRPC without TLS. Outbound policies act: Git in a sandbox reaches
the local GitHub with the header that they make of a secret. Answers are found by the name of the
method, and get the type that the package's own generated base says.
"""

import asyncio
import base64
import contextlib
import itertools
import json
import string
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from github import GitHub
from google.protobuf.message import Message
from grpclib import GRPCError, Status
from grpclib.const import Handler
from grpclib.server import Server, Stream
from machine import Machine, Ran
from modal_proto import api_pb2
from modal_proto import task_command_router_pb2 as router_pb2
from modal_proto.api_grpc import ModalClientBase
from modal_proto.task_command_router_grpc import TaskCommandRouterBase

HOME = "/root"
TOKEN_ID, TOKEN_SECRET = "ak-of-the-agent", "as-secret-of-the-agent"
BUILDER = "2025.06"
FILE_TOOL = "modal-sandbox-fs-tools"
STDOUT = router_pb2.TASK_EXEC_STDIO_FILE_DESCRIPTOR_STDOUT
DEADLINE = 30.0

Answer = Callable[[Any], Awaitable[dict[str, Any]]]


def access_token() -> str:
    """Three parts, of which the package reads when it runs out."""
    told = json.dumps({"exp": int(time.time()) + 3600}).encode()
    return f"e30.{base64.urlsafe_b64encode(told).decode().rstrip('=')}.e30"


@dataclass
class Box:
    id: str
    machine: Machine
    timeout: int
    ended: int = 0  # a GenericResult's status

    @property
    def task(self) -> str:
        return f"ta-{self.id}"


@dataclass
class Command:
    box: Box
    stdin: asyncio.Future[bytes] = field(default_factory=asyncio.Future)
    ran: asyncio.Future[Ran] = field(default_factory=asyncio.Future)


class FakeModal:
    """`calls` holds name and request of each call; `command_limit` stands in for commands' own."""

    runs = "running"
    rests = "running"  # Modal has nothing else

    def __init__(self, folder: Path, github: GitHub | None = None) -> None:
        self.folder = folder
        self.github = github
        self.url = ""
        self.boxes: dict[str, Box] = {}
        self.built: set[str] = set()
        self.snapshots: dict[str, Path] = {}
        self.secrets: dict[str, dict[str, str]] = {}
        self.calls: list[tuple[str, Any]] = []
        self.command_limit: float | None = None
        self._commands: dict[str, Command] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._failing: dict[str, int] = {}
        self._numbers = itertools.count(1)

    @property
    def env(self) -> dict[str, str]:
        names = {"MODAL_TOKEN_ID": TOKEN_ID, "MODAL_TOKEN_SECRET": TOKEN_SECRET}
        return names | {"MODAL_SERVER_URL": self.url}

    def named(self, call: str) -> list[Any]:
        return [request for name, request in self.calls if name == call]

    def fail_next(self, call: str, status: int) -> None:
        """The next such call is answered with this gRPC status, and does nothing."""
        self._failing[call] = status

    def machines(self) -> dict[str, Machine]:
        return {id: box.machine for id, box in self.boxes.items()}

    def history(self, sandbox_id: str) -> list[str]:
        return [self.runs] * (not self.boxes[sandbox_id].ended)

    def time_out(self, sandbox_id: str) -> None:
        """Does what happens when a sandbox has lived for its time-out."""
        self.boxes[sandbox_id].ended = api_pb2.GenericResult.GENERIC_STATUS_TIMEOUT

    def lose(self, sandbox_id: str) -> None:
        del self.boxes[sandbox_id]

    def servicers(self) -> list[Any]:
        api: dict[str, Answer] = {
            "AuthTokenGet": self._token,
            "ClientHello": self._hello,
            "EnvironmentGetOrCreate": self._environment,
            "AppGetOrCreate": self._app,
            "SecretGetOrCreate": self._secret,
            "ImageGetOrCreate": self._build,
            "ImageFromId": self._image,
            "SandboxCreateV2": self._create,
            "SandboxWaitV2": self._wait,
            "SandboxGetTaskIdV2": self._task,
            "SandboxGetCommandRouterAccess": self._access,
            "SandboxTerminateV2": self._terminate,
        }
        router: dict[str, Answer] = {
            "TaskExecStart": self._start,
            "TaskExecStdioRead": self._stdio,
            "TaskExecWait": self._exit,
            "TaskExecStdinWriteStream": self._stdin,
            "TaskSnapshotFilesystem": self._snapshot,
            "TaskSetOutboundPolicy": self._policy,
        }
        return [
            self._servicer(ModalClientBase, api, self._check_credentials),
            self._servicer(TaskCommandRouterBase, router, lambda stream: None),
        ]

    def _servicer(
        self, base: type[Any], answers: dict[str, Answer], check: Callable[[Any], None]
    ) -> Any:
        replies: dict[str, type[Message]] = {}

        def method(name: str) -> Callable[[Any, Any], Awaitable[None]]:
            async def respond(_: Any, stream: "Stream[Any, Any]") -> None:
                check(stream)
                request = await stream.recv_message()
                self.calls.append(("command" if name == "TaskExecStart" else name, request))
                if status := self._failing.pop(name, 0):
                    raise GRPCError(Status(status), "told to fail")
                if name not in answers:
                    raise GRPCError(Status.UNIMPLEMENTED, f"the fake has no {name}")
                if name == "TaskExecStdinWriteStream":
                    request = [request, *[part async for part in stream]]
                answer = await answers[name](request)
                if answer or name != "TaskExecStdioRead":  # a stream may be empty
                    await stream.send_message(replies[name](**answer))

            return respond

        methods = {name: method(name) for name in base.__abstractmethods__}
        servicer = type("Servicer", (base,), methods)()
        handlers: dict[str, Handler] = servicer.__mapping__()
        replies |= {path.rpartition("/")[2]: one.reply_type for path, one in handlers.items()}
        return servicer

    def _check_credentials(self, stream: Any) -> None:
        given = stream.metadata.get("x-modal-token-id"), stream.metadata.get("x-modal-token-secret")
        if given != (TOKEN_ID, TOKEN_SECRET):
            raise GRPCError(Status.UNAUTHENTICATED, "no such token")

    def _box(self, sandbox_id: str) -> Box:
        if sandbox_id not in self.boxes:
            raise GRPCError(Status.NOT_FOUND, f"there is no sandbox {sandbox_id}")
        return self.boxes[sandbox_id]

    def _box_of(self, task_id: str) -> Box:
        box = self._box(task_id.removeprefix("ta-"))
        if box.ended:
            raise GRPCError(Status.NOT_FOUND, f"the task {task_id} has ended")
        return box

    async def _token(self, request: Any) -> dict[str, Any]:
        return {"token": access_token()}

    async def _hello(self, request: Any) -> dict[str, Any]:
        return {"image_builder_version": BUILDER}

    async def _environment(self, request: Any) -> dict[str, Any]:
        settings = {"image_builder_version": BUILDER}
        return {"environment_id": "en-1", "metadata": {"name": "main", "settings": settings}}

    async def _app(self, request: Any) -> dict[str, Any]:
        return {"app_id": f"ap-{request.app_name}"}

    async def _secret(self, request: Any) -> dict[str, Any]:
        name = request.deployment_name
        if request.object_creation_type:
            self.secrets.setdefault(name, dict(request.env_dict))
        elif name not in self.secrets:
            raise GRPCError(Status.NOT_FOUND, f"there is no secret {name}")
        return {"secret_id": f"st-{name}"}

    async def _build(self, request: Any) -> dict[str, Any]:
        image_id = f"im-built-{len(self.built)}"
        self.built.add(image_id)
        return {"image_id": image_id, "result": {"status": "GENERIC_STATUS_SUCCESS"}}

    async def _image(self, request: Any) -> dict[str, Any]:
        self._disk(request.image_id)
        return {"image_id": request.image_id}

    def _disk(self, image_id: str) -> Path | None:
        if image_id not in self.snapshots and image_id not in self.built:
            raise GRPCError(Status.NOT_FOUND, f"there is no image {image_id}")
        return self.snapshots.get(image_id)

    async def _create(self, request: Any) -> dict[str, Any]:
        asked = request.definition
        taken, name = self._disk(asked.image_id), f"sb-fake-{next(self._numbers)}"
        place: dict[str, Any] = {"home": HOME, "github": self.github}
        if taken is None:
            machine = Machine(self.folder / name, **place)
        else:
            machine = await asyncio.to_thread(
                Machine.from_snapshot, taken, self.folder / name, **place
            )
        machine.authorization = self._authorization(asked.experimental_outbound_policy)
        box = self.boxes[name] = Box(name, machine, asked.timeout_secs)
        return {"sandbox_id": name, "task_id": box.task}

    def _authorization(self, policy: Any) -> str:
        """What Git's requests to github.com get. The secret is resolved outside of the sandbox."""
        for one in policy.header_replacements:
            if one.domain == "github.com" and "Authorization" in one.headers:
                values = self.secrets[one.secret_id.removeprefix("st-")]
                return string.Template(one.headers["Authorization"]).substitute(values)
        return ""

    async def _wait(self, request: Any) -> dict[str, Any]:
        return {"result": {"status": self._box(request.sandbox_id).ended}}

    async def _task(self, request: Any) -> dict[str, Any]:
        box = self._box(request.sandbox_id)
        return {"task_result": {"status": box.ended}} if box.ended else {"task_id": box.task}

    async def _access(self, request: Any) -> dict[str, Any]:
        self._box(request.sandbox_id)
        return {"url": self.url, "jwt": access_token()}

    async def _terminate(self, request: Any) -> dict[str, Any]:
        box = self._box(request.sandbox_id)
        box.ended = api_pb2.GenericResult.GENERIC_STATUS_TERMINATED
        return {}

    async def _start(self, request: Any) -> dict[str, Any]:
        command = self._commands[request.exec_id] = Command(self._box_of(request.task_id))
        task = asyncio.create_task(self._run(command, request))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return {}

    async def _run(self, command: Command, request: Any) -> None:
        argv, machine = list(request.command_args), command.box.machine
        if argv[0].endswith(FILE_TOOL):
            command.ran.set_result(await _file_call(machine, argv[1], command.stdin))
            return
        seconds = self.command_limit or request.timeout_secs or None
        try:
            ran = await asyncio.to_thread(machine.run, argv, request.workdir or HOME, seconds)
        except FileNotFoundError as exc:
            ran = Ran(1, "", f"{exc}\n")
        command.ran.set_result(ran)

    async def _stdio(self, request: Any) -> dict[str, Any]:
        ran = await self._commands[request.exec_id].ran
        text = ran.stdout if request.file_descriptor == STDOUT else ran.stderr
        data = text.encode()[request.offset :]
        return {"data": data} if data else {}

    async def _exit(self, request: Any) -> dict[str, Any]:
        ran = await self._commands[request.exec_id].ran
        return {"signal": -ran.exit_code} if ran.exit_code < 0 else {"code": ran.exit_code}

    async def _stdin(self, parts: Any) -> dict[str, Any]:
        data = b"".join(part.data for part in parts if part.WhichOneof("payload") == "data")
        self._commands[parts[0].start.exec_id].stdin.set_result(data)
        return {}

    async def _snapshot(self, request: Any) -> dict[str, Any]:
        box, image_id = self._box_of(request.task_id), f"im-snapshot-{next(self._numbers)}"
        self.snapshots[image_id] = self.folder / image_id
        await asyncio.to_thread(box.machine.snapshot, self.folder / image_id)
        return {"image_id": image_id}

    async def _policy(self, request: Any) -> dict[str, Any]:
        box = self._box_of(request.task_id)
        box.machine.authorization = self._authorization(request.experimental_outbound_policy)
        return {}


async def _file_call(machine: Machine, told: str, stdin: asyncio.Future[bytes]) -> Ran:
    ((kind, asked),) = json.loads(told).items()
    try:
        if kind == "ReadFile":
            return Ran(0, machine.read(asked["path"]).decode(), "")
        machine.write(asked["path"], await stdin)
        return Ran(0, "", "")
    except FileNotFoundError as exc:
        return Ran(1, "", json.dumps({"error_kind": "NotFound", "message": str(exc)}))


@contextlib.contextmanager
def served(fake: FakeModal) -> Iterator[FakeModal]:
    """A Modal that answers at `url`, in a thread with an event loop of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def call(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(DEADLINE)

    async def start() -> Server:
        server = Server(fake.servicers())
        await server.start("127.0.0.1", 0)
        return server

    async def stop(server: Server) -> None:
        server.close()
        await server.wait_closed()

    try:
        server = call(start())
        try:
            port = server._server.sockets[0].getsockname()[1]
            fake.url = f"http://127.0.0.1:{port}"
            yield fake
        finally:
            call(stop(server))
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(DEADLINE)
        loop.close()
