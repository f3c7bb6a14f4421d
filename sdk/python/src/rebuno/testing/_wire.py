# SPDX-License-Identifier: Apache-2.0
"""How three model APIs put an answer on the wire, whole or as server-sent events. Pure.

OpenAI chat completions and responses, Anthropic messages. Knows nothing of scripts or servers.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

_ARGUMENT_CHARS = 8  # of a tool call's arguments, a piece
_ASSISTANT_ITEMS = ("function_call", "reasoning")


@dataclass(frozen=True)
class ToolUse:
    """A tool call that the model makes; `arguments` is JSON text, so it can also be broken."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Reply:
    """What the model says to one request."""

    model: str
    text: str
    tools: Sequence[ToolUse] = ()
    input_tokens: int = 1
    output_tokens: int = 1
    piece_chars: int = 0  # of the text, in a stream; 0: a word
    ids: str = "1"  # what its ids end with
    options: Mapping[str, Any] = field(default_factory=dict)  # the request's `stream_options`

    def pieces(self) -> Iterator[str]:
        """The text in the pieces that a stream sends."""
        if not self.piece_chars:
            yield from (found[0] for found in re.finditer(r"\s*\S+(?:\s+\Z)?|\s+\Z", self.text))
            return
        for start in range(0, len(self.text), self.piece_chars):
            yield self.text[start : start + self.piece_chars]


def _argument_pieces(arguments: str) -> Iterator[str]:
    for start in range(0, len(arguments), _ARGUMENT_CHARS):
        yield arguments[start : start + _ARGUMENT_CHARS]


def _event(data: Any, name: str = "") -> bytes:
    head = f"event: {name}\n" if name else ""
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    return f"{head}data: {text}\n\n".encode()


class Wire:
    """One API: its bodies and events, its errors, and how far a conversation has come."""

    path: ClassVar[str]

    def body(self, reply: Reply) -> dict[str, Any]:
        """The answer as a whole."""
        raise NotImplementedError

    def events(self, reply: Reply) -> tuple[Iterator[bytes], Iterator[bytes], Iterator[bytes]]:
        """The answer as a stream: what comes before the text, the text, what comes after."""
        raise NotImplementedError

    def error(self, status: int, message: str) -> dict[str, Any]:
        """The body of an answer with this status."""
        kind = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
        named = kind.get(status, "server_error" if status >= 500 else "invalid_request_error")
        return {"error": {"message": message, "type": named, "param": None, "code": None}}

    def answers(self, request: Mapping[str, Any]) -> int:
        """How often the model has answered in the conversation that the request carries."""
        turns = [self._is_answer(item) for item in self._conversation(request)]
        return sum(now and not before for before, now in zip([False, *turns], turns, strict=False))

    def ids(self, request: Mapping[str, Any]) -> str:
        """What names the next answer within its conversation; the same for equal ones."""
        model = str(request.get("model", ""))
        # An id of a tool call may have these characters only, and OpenAI takes 40 of them.
        return f"{re.sub('[^A-Za-z0-9_-]', '-', model)[:20]}_{self.answers(request) + 1}"

    def _conversation(self, request: Mapping[str, Any]) -> Sequence[Any]:
        found = request.get("messages")
        return found if isinstance(found, list) else []

    def _is_answer(self, item: Any) -> bool:
        return isinstance(item, dict) and item.get("role") == "assistant"


class Chat(Wire):
    """POST /v1/chat/completions."""

    path = "/chat/completions"

    def body(self, reply: Reply) -> dict[str, Any]:
        """See `Wire`."""
        message: dict[str, Any] = {"role": "assistant", "content": reply.text or None}
        if reply.tools:
            message["tool_calls"] = [_chat_tool(tool) for tool in reply.tools]
        choice = {
            "index": 0,
            "message": message,
            "finish_reason": self._reason(reply),
            "logprobs": None,
        }
        head = self._head(reply, "chat.completion")
        return head | {"choices": [choice], "usage": self._usage(reply)}

    def events(self, reply: Reply) -> tuple[Iterator[bytes], Iterator[bytes], Iterator[bytes]]:
        """See `Wire`."""
        head = self._head(reply, "chat.completion.chunk")

        def chunk(delta: Any, reason: str | None = None) -> bytes:
            choice = {"index": 0, "delta": delta, "finish_reason": reason, "logprobs": None}
            return _event(head | {"choices": [choice]})

        def after() -> Iterator[bytes]:
            for index, tool in enumerate(reply.tools):
                first = _chat_tool(tool) | {"index": index}
                first["function"] = {"name": tool.name, "arguments": ""}
                yield chunk({"tool_calls": [first]})
                for piece in _argument_pieces(tool.arguments):
                    more = {"index": index, "function": {"arguments": piece}}
                    yield chunk({"tool_calls": [more]})
            yield chunk({}, self._reason(reply))
            if reply.options.get("include_usage"):
                yield _event(head | {"choices": [], "usage": self._usage(reply)})
            yield _event("[DONE]")

        text = (chunk({"content": piece}) for piece in reply.pieces())
        return iter([chunk({"role": "assistant", "content": ""})]), text, after()

    def _head(self, reply: Reply, kind: str) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-{reply.ids}",
            "object": kind,
            "created": 0,
            "model": reply.model,
        }

    def _reason(self, reply: Reply) -> str:
        return "tool_calls" if reply.tools else "stop"

    def _usage(self, reply: Reply) -> dict[str, int]:
        return {
            "prompt_tokens": reply.input_tokens,
            "completion_tokens": reply.output_tokens,
            "total_tokens": reply.input_tokens + reply.output_tokens,
        }


def _chat_tool(tool: ToolUse) -> dict[str, Any]:
    function = {"name": tool.name, "arguments": tool.arguments}
    return {"id": tool.id, "type": "function", "function": function}


class Responses(Wire):
    """POST /v1/responses."""

    path = "/responses"

    def body(self, reply: Reply) -> dict[str, Any]:
        """See `Wire`."""
        output = [self._message(reply, reply.text, "completed")] if self._speaks(reply) else []
        output += [self._call(tool, tool.arguments, "completed") for tool in reply.tools]
        return self._response(reply, output, "completed")

    def events(self, reply: Reply) -> tuple[Iterator[bytes], Iterator[bytes], Iterator[bytes]]:
        """See `Wire`."""
        numbers = iter(range(10**9))

        def event(kind: str, **fields: Any) -> bytes:
            return _event({"type": kind, "sequence_number": next(numbers)} | fields, kind)

        item = {"item_id": f"msg_{reply.ids}", "output_index": 0, "content_index": 0}

        def before() -> Iterator[bytes]:
            started = self._response(reply, [], "in_progress")
            yield event("response.created", response=started)
            yield event("response.in_progress", response=started)
            if self._speaks(reply):
                message = self._message(reply, None, "in_progress")
                yield event("response.output_item.added", output_index=0, item=message)
                yield event("response.content_part.added", part=_output_text(""), **item)

        def text() -> Iterator[bytes]:
            for piece in reply.pieces():
                yield event("response.output_text.delta", delta=piece, logprobs=[], **item)

        def after() -> Iterator[bytes]:
            if self._speaks(reply):
                yield event("response.output_text.done", text=reply.text, logprobs=[], **item)
                yield event("response.content_part.done", part=_output_text(reply.text), **item)
                message = self._message(reply, reply.text, "completed")
                yield event("response.output_item.done", output_index=0, item=message)
            for index, tool in enumerate(reply.tools, start=int(self._speaks(reply))):
                place = {"output_index": index}
                call = self._call(tool, "", "in_progress")
                yield event("response.output_item.added", item=call, **place)
                place["item_id"] = call["id"]
                kind = "response.function_call_arguments"
                for piece in _argument_pieces(tool.arguments):
                    yield event(f"{kind}.delta", delta=piece, **place)
                yield event(f"{kind}.done", name=tool.name, arguments=tool.arguments, **place)
                call = self._call(tool, tool.arguments, "completed")
                yield event("response.output_item.done", output_index=index, item=call)
            yield event("response.completed", response=self.body(reply))

        return before(), text(), after()

    def _conversation(self, request: Mapping[str, Any]) -> Sequence[Any]:
        found = request.get("input")
        return found if isinstance(found, list) else []

    def _is_answer(self, item: Any) -> bool:
        if not isinstance(item, dict):
            return False
        return item.get("role") == "assistant" or item.get("type") in _ASSISTANT_ITEMS

    def _speaks(self, reply: Reply) -> bool:
        return bool(reply.text) or not reply.tools

    def _message(self, reply: Reply, text: str | None, status: str) -> dict[str, Any]:
        content = [] if text is None else [_output_text(text)]
        identity = {"type": "message", "id": f"msg_{reply.ids}", "role": "assistant"}
        return identity | {"status": status, "content": content}

    def _call(self, tool: ToolUse, arguments: str, status: str) -> dict[str, Any]:
        identity = {"type": "function_call", "id": f"fc_{tool.id}", "call_id": tool.id}
        return identity | {"name": tool.name, "arguments": arguments, "status": status}

    def _response(self, reply: Reply, output: list[Any], status: str) -> dict[str, Any]:
        usage = {
            "input_tokens": reply.input_tokens,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": reply.output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": reply.input_tokens + reply.output_tokens,
        }
        return {
            "id": f"resp_{reply.ids}",
            "object": "response",
            "created_at": 0,
            "status": status,
            "model": reply.model,
            "output": output,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
            "temperature": 1.0,
            "top_p": 1.0,
            "usage": usage if status == "completed" else None,
        }


def _output_text(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


class Messages(Wire):
    """POST /v1/messages."""

    path = "/messages"

    def body(self, reply: Reply) -> dict[str, Any]:
        """See `Wire`."""
        content: list[dict[str, Any]] = []
        if reply.text:
            content.append({"type": "text", "text": reply.text})
        content += [_use(tool, _parsed(tool.arguments)) for tool in reply.tools]
        usage = {"input_tokens": reply.input_tokens, "output_tokens": reply.output_tokens}
        return self._message(reply, content, self._reason(reply), usage)

    def events(self, reply: Reply) -> tuple[Iterator[bytes], Iterator[bytes], Iterator[bytes]]:
        """See `Wire`."""

        def event(kind: str, **fields: Any) -> bytes:
            return _event({"type": kind} | fields, kind)

        def before() -> Iterator[bytes]:
            usage = {"input_tokens": reply.input_tokens, "output_tokens": 0}
            yield event("message_start", message=self._message(reply, [], None, usage))
            if reply.text:
                block = {"type": "text", "text": ""}
                yield event("content_block_start", index=0, content_block=block)

        def text() -> Iterator[bytes]:
            for piece in reply.pieces():
                delta = {"type": "text_delta", "text": piece}
                yield event("content_block_delta", index=0, delta=delta)

        def after() -> Iterator[bytes]:
            if reply.text:
                yield event("content_block_stop", index=0)
            for index, tool in enumerate(reply.tools, start=int(bool(reply.text))):
                yield event("content_block_start", index=index, content_block=_use(tool, {}))
                for piece in _argument_pieces(tool.arguments):
                    delta = {"type": "input_json_delta", "partial_json": piece}
                    yield event("content_block_delta", index=index, delta=delta)
                yield event("content_block_stop", index=index)
            ending = {"stop_reason": self._reason(reply), "stop_sequence": None}
            yield event("message_delta", delta=ending, usage={"output_tokens": reply.output_tokens})
            yield event("message_stop")

        return before(), text(), after()

    def error(self, status: int, message: str) -> dict[str, Any]:
        """See `Wire`."""
        kinds = {401: "authentication_error", 429: "rate_limit_error", 529: "overloaded_error"}
        named = kinds.get(status, "api_error" if status >= 500 else "invalid_request_error")
        return {"type": "error", "error": {"type": named, "message": message}}

    def _reason(self, reply: Reply) -> str:
        return "tool_use" if reply.tools else "end_turn"

    def _message(
        self, reply: Reply, content: list[Any], reason: str | None, usage: dict[str, int]
    ) -> dict[str, Any]:
        return {
            "id": f"msg_{reply.ids}",
            "type": "message",
            "role": "assistant",
            "model": reply.model,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": None,
            "usage": usage,
        }


def _use(tool: ToolUse, arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": tool.id, "name": tool.name, "input": arguments}


def _parsed(arguments: str) -> Any:
    """The value of JSON text; other text as it is."""
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


WIRES: tuple[Wire, ...] = (Chat(), Responses(), Messages())


def wire_of(path: str) -> Wire | None:
    """The API that a path belongs to, with or without `/v1` before it."""
    return next((wire for wire in WIRES if path.removeprefix("/v1") == wire.path), None)
