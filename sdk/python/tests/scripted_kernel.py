"""A small kernel that answers as a test tells it to, and remembers every request.

It is an ASGI application, driven in process by httpx2's ASGITransport. It decides nothing by
itself: steps proceed, outcomes are recorded, unless a test queued another answer. Tests wait on
conditions with `until`, never on time.
"""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx2
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

DEADLINE = 30.0  # seconds a test waits for what must happen, on a busy machine too


@dataclass
class Call:
    """One request as it arrived."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    raw: bytes

    @property
    def body(self) -> Any:
        return json.loads(self.raw) if self.raw else None

    @property
    def name(self) -> str:
        """What the call is about: the path's last word, or `get` for the execution itself."""
        before, last = self.path.rsplit("/", 1)
        is_execution = self.method == "GET" and before.endswith("/executions")
        return "get" if is_execution else last


Answer = Response | Exception | Callable[[Call], Any]


@dataclass
class Rule:
    """The answer to the next `times` requests that match."""

    match: Callable[[Call], bool]
    answer: Answer
    times: int


@dataclass
class ScriptedKernel:
    """Executions by id, decisions by target, and the log of all calls."""

    executions: dict[str, dict[str, Any]] = field(default_factory=dict)
    decisions: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    previous: Any = None
    resources: dict[str, dict[str, Any]] = field(default_factory=dict)  # what is known of a key
    subagents: int = 0
    calls: list[Call] = field(default_factory=list)
    rules: list[Rule] = field(default_factory=list)
    steps: int = 0
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    def add(self, execution_id: str = "e1", **fields: Any) -> dict[str, Any]:
        execution = {"id": execution_id, "agent_id": "a", "status": "running", "input": None}
        self.executions[execution_id] = execution | fields
        return self.executions[execution_id]

    def decide(self, target: str, **decision: Any) -> None:
        """Queues the decision for the next submission of this target."""
        self.decisions.setdefault(target, []).append(decision)

    def answer(self, what: str, answer: Answer, times: int = 1) -> None:
        """Answers the next `times` calls of this name (`steps`, `heartbeat`, …) with `answer`."""
        self.rules.append(Rule(lambda call: call.name == what, answer, times))

    def named(self, name: str) -> list[Call]:
        return [call for call in self.calls if call.name == name]

    def traffic(self) -> list[tuple[str, Any]]:
        """The calls under the first execution but for the first GET: what each says of what."""
        return [
            (call.path.removeprefix("/v0/executions").removeprefix("/e1").strip("/"), call.body)
            for call in self.calls
            if call.name != "get"
        ]

    def names(self) -> list[str]:
        return [call.name for call in self.calls]

    async def until(self, condition: Callable[[], Any], deadline: float = DEADLINE) -> None:
        """Waits until the condition holds; it is looked at after every request."""
        async with asyncio.timeout(deadline), self.changed:
            await self.changed.wait_for(lambda: bool(condition()))

    async def until_called(self, name: str, times: int = 1) -> Call:
        await self.until(lambda: len(self.named(name)) >= times)
        return self.named(name)[times - 1]

    async def handle(self, request: Request) -> Response:
        call = Call(
            request.method,
            request.scope["raw_path"].decode().partition("?")[0],
            request.scope["query_string"].decode(),
            dict(request.headers),
            await request.body(),
        )
        self.calls.append(call)
        async with self.changed:
            self.changed.notify_all()
        for rule in self.rules:
            if rule.times and rule.match(call):
                rule.times -= 1
                return await self._scripted(rule.answer, call)
        return self._default(call)

    async def _scripted(self, answer: Answer, call: Call) -> Response:
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, Response):
            return answer
        result = answer(call)
        if asyncio.iscoroutine(result):
            result = await result
        return result if isinstance(result, Response) else self._default(call)

    def _default(self, call: Call) -> Response:
        if call.name == "steps" and call.method == "POST":
            return JSONResponse(self._decide(call.body))
        if call.name == "previous":
            return JSONResponse({"state": self.previous})
        if call.name == "get":
            found = self.executions.get(call.path.rsplit("/", 1)[1])
            return JSONResponse(found) if found else error("not_found", 404, "no such execution")
        if call.name == "resources":
            return JSONResponse(self._register(call.body))
        if call.name == "suspend":
            return JSONResponse({"suspended": True})
        if call.method == "POST" and call.name == "executions":
            self.subagents += 1
            created = {"id": f"sub{self.subagents}", "agent_id": call.body["agent_id"]}
            return JSONResponse(created, status_code=201)
        if call.name in ("complete", "fail") and "/steps/" in call.path:
            return JSONResponse({"decision": "recorded"})
        return Response(status_code=204)

    def _decide(self, body: dict[str, Any]) -> dict[str, Any]:
        self.steps += 1
        queued = self.decisions.get(body["target"])
        decision = queued.pop(0) if queued else {"decision": "proceed"}
        return {"step_id": f"s{self.steps}"} | decision

    def _register(self, body: dict[str, Any]) -> dict[str, Any]:
        known = {"generation": 1, "count": 0, "registered_seq": 4, "covered": False}
        return body | known | self.resources.get(body["key"], {})

    def app(self) -> Starlette:
        methods = ["GET", "POST", "PUT", "DELETE"]
        return Starlette(routes=[Route("/{rest:path}", self.handle, methods=methods)])

    def transport(self) -> httpx2.AsyncBaseTransport:
        return httpx2.ASGITransport(app=self.app())


def error(code: str, status: int, message: str = "refused", **more: Any) -> Response:
    """The error envelope of the protocol."""
    return JSONResponse({"code": code, "message": message} | more, status_code=status)
