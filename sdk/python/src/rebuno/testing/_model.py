# SPDX-License-Identifier: Apache-2.0
"""A model server that says what a script tells it to, for tests and demos without a model.

It speaks OpenAI chat completions and responses, and Anthropic messages, whole and streaming:

    async with ScriptedModel([{"tool": "search", "args": {"q": "tea"}}, "Tea it is."]) as model:
        client = AsyncOpenAI(base_url=model.url, api_key="any", http_client=http_client())

For Anthropic the base URL is `model.origin`. Or as a process of its own, with the script as JSON:

    python -m rebuno.testing.model script.json --port 8090
"""

import argparse
import asyncio
import contextlib
import dataclasses
import inspect
import json
import socket
import sys
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, cycle
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import uvicorn

from .._ports import why_not
from .._protocol import EVENT_STREAM, JSON_TYPE
from ._wire import WIRES, Reply, ToolUse, Wire, wire_of

__all__ = ["ModelRequest", "ScriptedModel", "Turn"]

_Send = Callable[[dict[str, Any]], Any]


@dataclass(frozen=True, kw_only=True)
class Turn:
    """What the model does about one request: says something, calls tools, or goes wrong.

    text: what it says. tool, args: one tool call; tools: several, each `{"name", "args"}`, with
    an `id` if it matters. `args` may be a text that is no JSON; Anthropic's API has it as a text
    where it would be an object.
    usage: `{"input": n, "output": n}` tokens; else counted roughly.
    error: answers with this HTTP status, and `message`. headers: more of the answer's headers.
    body, content_type: answers with this text, whatever was asked.
    delay: seconds before it answers. pause: seconds between the events of a stream.
    stall_after: events after which a stream says no more but stays open; a plain answer, and 0,
    never begins. break_after: events, or bytes of a plain answer, after which the connection
    breaks. endless: a stream that says `text` again and again.
    piece_chars: characters an event, by default a word. split: bytes a write, so that events and
    characters come in parts. repeat: says `text` so many times. gzip: compresses the body.
    """

    text: str = ""
    tool: str = ""
    args: Any = field(default_factory=dict)
    tools: Sequence[Mapping[str, Any]] = ()
    usage: Mapping[str, int] | None = None
    error: int = 0
    message: str = "scripted error"
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str | bytes | None = None
    content_type: str = ""
    delay: float = 0
    pause: float = 0
    stall_after: int | None = None
    break_after: int | None = None
    endless: bool = False
    piece_chars: int = 0
    split: int = 0
    repeat: int = 1
    gzip: bool = False

    @classmethod
    def of(cls, given: "Turn | Mapping[str, Any] | str") -> "Turn":
        """Makes a turn of a text or an object's fields; ValueError names a field it has not."""
        if isinstance(given, Turn):
            return given
        if isinstance(given, str):
            return cls(text=given)
        known = {one.name for one in dataclasses.fields(cls)}
        if not isinstance(given, Mapping):
            raise ValueError(f"not a turn of a script: {given!r}; a turn is a text or an object")
        if unknown := sorted(set(given) - known):
            fields = ", ".join(sorted(known))
            raise ValueError(f"a turn of a script has no {', '.join(unknown)}; it has {fields}")
        return cls(**given)

    def reply(self, request: "ModelRequest") -> Reply:
        """What the model says, as the wire formats take it."""
        body = request.body
        calls = [{"name": self.tool, "args": self.args}] if self.tool else []
        tools = tuple(
            ToolUse(
                str(call.get("id") or f"call_{request.ids}_{index}"),
                str(call["name"]),
                _arguments(call.get("args", {})),
            )
            for index, call in enumerate([*calls, *self.tools])
        )
        text = self.text * self.repeat
        said = len(text) + sum(len(tool.arguments) for tool in tools)
        usage = {"input": len(json.dumps(body)) // 4, "output": said // 4 or 1}
        usage.update(self.usage or {})
        return Reply(
            model=str(body.get("model", "scripted")),
            text=text,
            tools=tools,
            input_tokens=usage["input"],
            output_tokens=usage["output"],
            piece_chars=self.piece_chars,
            ids=request.ids,
            options=body.get("stream_options") or {},
        )


def _arguments(args: Any) -> str:
    return args if isinstance(args, str) else json.dumps(args)


@dataclass(frozen=True)
class ModelRequest:
    """A request as it arrived. `number` counts from 1; headers in lower case.

    ids: what the ids of its answer and of the tool calls in it are made of.
    """

    number: int
    path: str
    headers: Mapping[str, str]
    body: dict[str, Any]
    ids: str = "1"

    @property
    def is_streamed(self) -> bool:
        """Whether the answer is to be a stream."""
        return self.body.get("stream") is True


Script = Sequence[Any] | Mapping[str, Sequence[Any]]


class ScriptedModel:
    """A model server on this machine, as an async context manager.

    script: turns, in order: a Turn, a dict of its fields, a text to say, or a function, sync or
    async, that gets the ModelRequest and returns one of these. A dict gives each model (the
    request's `model`) a script of its own. by: `order` takes a turn a request; `conversation`
    takes the one after the answers that the request's conversation holds already, so that
    executions, forks and retries do not disturb each other, and makes ids of the model and that
    turn, so that equal conversations get equal answers. With `order` ids count the requests.

    `requests` holds what was asked. `url` ends with `/v1`, `origin` does not. A request that the
    script has no turn for is answered 400.
    """

    def __init__(
        self, script: Script, *, by: str = "order", host: str = "127.0.0.1", port: int = 0
    ) -> None:
        if by not in ("order", "conversation"):
            raise ValueError(f"by must be 'order' or 'conversation', not {by!r}")
        named = script if isinstance(script, Mapping) else {"": script}
        self._turns = {
            model: [turn if callable(turn) else Turn.of(turn) for turn in turns]
            for model, turns in named.items()
        }
        self.requests: list[ModelRequest] = []
        self.origin = ""
        self._by = by
        self._address = (host, port)
        self._taken: Counter[str] = Counter()
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self._asked = asyncio.Condition()

    @property
    def url(self) -> str:
        """The base URL for OpenAI's clients, and what is built on them."""
        return f"{self.origin}/v1"

    async def until_asked(self, times: int) -> ModelRequest:
        """Waits for the request of this number; returns it."""
        async with self._asked:
            await self._asked.wait_for(lambda: len(self.requests) >= times)
        return self.requests[times - 1]

    async def __aenter__(self) -> Self:
        # The protocol is named so that asyncio turns Nagle's algorithm off: it costs 40 ms.
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(self._address)
            listener.listen()
        except BaseException:
            listener.close()
            raise
        host, port = listener.getsockname()[:2]
        self.origin = f"http://{host}:{port}"
        config = uvicorn.Config(
            self._app,
            interface="asgi3",
            log_level="critical",
            lifespan="off",
            timeout_keep_alive=60,  # clients leave after 5 s; who closes first breaks a call
            timeout_graceful_shutdown=1,
        )
        self._server = _Server(config)
        self._serving = asyncio.create_task(self._server.serve(sockets=[listener]))
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        self._closing.set()
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await self._serving

    async def _app(self, scope: dict[str, Any], receive: Any, send: _Send) -> None:
        content = b""
        while (message := await receive())["type"] == "http.request":
            content += message.get("body", b"")
            if not message.get("more_body"):
                break
        gone = asyncio.create_task(_until_gone(receive))
        closing = asyncio.create_task(self._closing.wait())
        answering = asyncio.create_task(self._answer(scope, content, send))
        await asyncio.wait({gone, closing, answering}, return_when=asyncio.FIRST_COMPLETED)
        for task in (gone, closing, answering):
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await answering

    async def _answer(self, scope: dict[str, Any], content: bytes, send: _Send) -> None:
        path, wire = scope["path"], wire_of(scope["path"])
        if scope["method"] != "POST" or wire is None:
            known = ", ".join(f"POST /v1{one.path}" for one in WIRES)
            await _whole(send, Turn(), 404, WIRES[0].error(404, f"{path}: there is only {known}"))
            return
        try:
            body = json.loads(content)
        except (ValueError, RecursionError):
            body = None
        if not isinstance(body, dict):
            await _whole(send, Turn(), 400, wire.error(400, "the body is no JSON object"))
            return
        headers = {
            name.decode().lower(): value.decode("latin-1") for name, value in scope["headers"]
        }
        number = len(self.requests) + 1
        ids = wire.ids(body) if self._by == "conversation" else str(number)
        request = ModelRequest(number, path, headers, body, ids)
        self.requests.append(request)
        async with self._asked:
            self._asked.notify_all()
        turn = await self._turn(wire, request)
        await asyncio.sleep(turn.delay)
        await _perform(send, turn, wire, request)

    async def _turn(self, wire: Wire, request: ModelRequest) -> Turn:
        model = str(request.body.get("model", ""))
        name = model if model in self._turns else ""
        turns = self._turns.get(name, [])
        index = wire.answers(request.body) if self._by == "conversation" else self._taken[name]
        self._taken[name] += 1
        if index >= len(turns):
            missing = f"the script has {len(turns)} turns for model {model!r}, not {index + 1}"
            return Turn(error=400, message=missing)
        turn = turns[index]
        if callable(turn):
            turn = turn(request)
            turn = Turn.of(await turn if inspect.isawaitable(turn) else turn)
        return turn


class _Server(uvicorn.Server):
    """Leaves the process's signals to the program that it runs in."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _until_gone(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _perform(send: _Send, turn: Turn, wire: Wire, request: ModelRequest) -> None:
    if turn.error:
        await _whole(send, turn, turn.error, wire.error(turn.error, turn.message))
    elif turn.body is not None:
        await _whole(send, turn, 200, turn.body)
    elif request.is_streamed:
        await _stream(send, turn, wire.events(turn.reply(request)))
    else:
        await _whole(send, turn, 200, wire.body(turn.reply(request)))


async def _whole(send: _Send, turn: Turn, status: int, body: Any) -> None:
    if turn.stall_after is not None:
        await asyncio.Event().wait()
    text = body if isinstance(body, str | bytes) else json.dumps(body, ensure_ascii=False)
    content = text.encode() if isinstance(text, str) else text
    if turn.gzip:
        packer = _packer()
        content = packer.compress(content) + packer.flush()
    length = {"content-length": str(len(content))}
    await _start(send, turn, status, turn.content_type or JSON_TYPE, length)
    if turn.break_after is not None:
        content = content[: turn.break_after]
    is_broken = turn.break_after is not None
    await send({"type": "http.response.body", "body": content, "more_body": is_broken})


async def _stream(
    send: _Send, turn: Turn, parts: tuple[Iterator[bytes], Iterator[bytes], Iterator[bytes]]
) -> None:
    before, text, after = parts
    events = chain(before, cycle(text)) if turn.endless else chain(before, text, after)
    if turn.stall_after == 0:
        await asyncio.Event().wait()
    await _start(send, turn, 200, turn.content_type or EVENT_STREAM, {})
    packer = _packer() if turn.gzip else None
    async for event in _paced(turn, events):
        data = packer.compress(event) + packer.flush(zlib.Z_SYNC_FLUSH) if packer else event
        for start in range(0, len(data), turn.split or len(data)):
            piece = data[start : start + (turn.split or len(data))]
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            if turn.split:
                await asyncio.sleep(0)
    if turn.break_after is None:
        rest = packer.flush() if packer else b""
        await send({"type": "http.response.body", "body": rest, "more_body": False})


async def _paced(turn: Turn, events: Iterator[bytes]) -> AsyncIterator[bytes]:
    """The events as they are due. Ends where the connection is to break."""
    for number, event in enumerate(events):
        if number == turn.break_after:
            return
        if number == turn.stall_after:
            await asyncio.Event().wait()
        if number:
            await asyncio.sleep(turn.pause)
        yield event


async def _start(
    send: _Send, turn: Turn, status: int, content_type: str, more: Mapping[str, str]
) -> None:
    named = {"content-type": content_type} | dict(more) | dict(turn.headers)
    if turn.gzip:
        named["content-encoding"] = "gzip"
    headers = [(name.encode(), value.encode("latin-1")) for name, value in named.items()]
    await send({"type": "http.response.start", "status": status, "headers": headers})


def _packer() -> Any:
    return zlib.compressobj(wbits=zlib.MAX_WBITS | 16)


_IS = "a JSON list of turns, or an object with turns or models"


def load(path: Path) -> tuple[Script, str]:
    """Reads a list of turns, or `{"turns" or "models", "by"}`: the script, and how it is taken."""
    try:
        content = json.loads(path.read_text())
    except OSError as exc:
        raise ValueError(f"cannot be read: {exc.strerror}; it is to hold a script, {_IS}") from exc
    except ValueError as exc:
        raise ValueError(f"no JSON: {exc}; a script is {_IS}") from exc
    if isinstance(content, list):
        return content, "order"
    if not isinstance(content, dict) or not ({"turns", "models"} & content.keys()):
        raise ValueError(f"no script, which is {_IS}")
    return content.get("models") or content["turns"], content.get("by", "order")


def main(argv: Sequence[str] | None = None) -> None:
    """Serves a script until it is told to stop."""
    parser = argparse.ArgumentParser(
        prog="python -m rebuno.testing.model",
        description="A model server that says what a script tells it to.",
    )
    parser.add_argument("script", type=Path, help="a JSON file: a list of turns")
    parser.add_argument(
        "--port", type=int, default=0, help="0 for a free one, which is the default"
    )
    parser.add_argument("--host", default="127.0.0.1")
    options = parser.parse_args(argv)
    try:
        script, by = load(options.script)
        model = ScriptedModel(script, by=by, host=options.host, port=options.port)
    except ValueError as exc:
        sys.exit(f"{options.script}: {exc}")

    async def serve() -> None:
        async with contextlib.AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(model)
            except (OSError, OverflowError) as exc:  # the second: a port over 65535
                sys.exit(why_not(options.host, options.port) or f"cannot listen: {exc}")
            print(f"scripted model at {model.url}", flush=True)
            await asyncio.Event().wait()

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve())
