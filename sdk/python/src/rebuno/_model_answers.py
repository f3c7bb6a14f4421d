# SPDX-License-Identifier: Apache-2.0
"""The HTTP answers that a model's SDK gets: the provider's, the recorded one, or a refusal."""

import base64
import binascii
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx2

from ._json import encode
from ._protocol import EVENT_STREAM, JSON_TYPE
from ._steps import replayed
from .errors import (
    Blocked,
    LeaseSuperseded,
    PolicyError,
    RateLimited,
    RebunoError,
    Terminated,
    ToolError,
)
from .types import StepDecision

Refusal = Blocked | Terminated | LeaseSuperseded | PolicyError | RateLimited
REFUSALS = (Blocked, Terminated, LeaseSuperseded, PolicyError, RateLimited)

_PIECE = 16_384  # bytes of a replayed stream that come at once, to the end of an event
_FIRST_REFUSAL = 400  # of the HTTP statuses
_EVENT_END = re.compile(rb"\r?\n\r?\n")


def is_event_stream(content_type: str) -> bool:
    """Tells whether a body of this type comes as server-sent events."""
    return content_type.partition(";")[0].strip().lower() == EVENT_STREAM


def answer(status: int, content_type: str, stream: httpx2.AsyncByteStream) -> httpx2.Response:
    """The HTTP answer with this one header. Given a stream, httpx2 adds none."""
    return httpx2.Response(status, headers={"content-type": content_type}, stream=stream)


def plain_answer(status: int, content_type: str, content: bytes) -> httpx2.Response:
    """The HTTP answer with a body that is there already."""
    return answer(status, content_type, httpx2.ByteStream(content))


def replay(decision: StepDecision, target: str) -> httpx2.Response:
    """Returns the recorded answer, which breaks off if the call's did.

    Raises RebunoError if the call failed before an answer began. Where the call had met an error
    of the HTTP library it is of that class, too: so a model's SDK calls again if it did then.
    """
    failure = None
    try:
        recorded = _recorded(replayed(decision, target))
    except ToolError as exc:
        failure = _failure(decision.error, str(exc.args[0]))
        begun = _begun(decision.error)
        if begun is None:
            raise failure from None
        recorded = begun
    status, content_type, content = recorded
    if is_event_stream(content_type) or (failure is not None and status < _FIRST_REFUSAL):
        return answer(status, content_type, ReplayedStream(content, failure))
    return plain_answer(status, content_type, content)


def _failure(error: Any, message: str) -> RebunoError:
    name = error.get("type") if isinstance(error, dict) else None
    kind = getattr(httpx2, name, None) if isinstance(name, str) else None
    if not isinstance(kind, type) or not issubclass(kind, httpx2.RequestError):
        return RebunoError(message)
    failure: RebunoError = type(kind.__name__, (RebunoError, kind), {})(message)
    return failure


def _recorded(result: Any) -> tuple[int, str, bytes]:
    """The answer that a result stands for. Any JSON may have been recorded as one."""
    return _begun(result) or (200, JSON_TYPE, encode(result).encode())


def _begun(result: Any) -> tuple[int, str, bytes] | None:
    match result:
        case {"status": int(status), "headers": dict(headers), "body": str(body)}:
            content_type = str(headers.get("content-type") or JSON_TYPE)
            if result.get("encoding") != "base64":
                return status, content_type, _utf8(body)
            try:
                return status, content_type, base64.b64decode(body, validate=True)
            except binascii.Error:
                return status, content_type, _utf8(body)
    return None


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "replace")  # "replace" for a lone surrogate of another's record


class ReplayedStream(httpx2.AsyncByteStream):
    """A recorded stream: in pieces that end with an event, never twice; then its failure."""

    def __init__(self, content: bytes, failure: RebunoError | None = None) -> None:
        self._pieces = _pieces(content)
        self._failure = failure

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        for piece in self._pieces:
            return piece
        failure, self._failure = self._failure, None
        raise failure or StopAsyncIteration


def _pieces(content: bytes) -> Iterator[bytes]:
    start = 0
    while start < len(content):
        end = _EVENT_END.search(content, start + _PIECE)
        stop = end.end() if end else len(content)
        yield content[start:stop]
        start = stop


def refusal(exc: Refusal) -> httpx2.Response:
    """Returns the HTTP answer that tells a model's SDK of a refusal, and not to call again."""
    match exc:
        case Blocked():
            status, what = 403, "blocked"
        case Terminated():
            status, what = 403, "execution_terminal"
        case LeaseSuperseded():
            status, what = 409, "lease_superseded"
        case RateLimited():
            status, what = 429, _with_reason("rate_limited", exc.reason)
        case PolicyError():
            status, what = 403, _with_reason("denied", exc.message)
    return _final(status, {"type": "rebuno_refusal", "message": f"rebuno_refusal: {what}"})


TOO_LARGE = 413  # model SDKs do not repeat what is answered so, on a replay either


def too_large_body(message: str) -> bytes:
    """The body of `too_large_answer`."""
    return encode({"error": _too_large_error(message)}).encode()


def too_large_answer(message: str) -> httpx2.Response:
    """Returns the HTTP answer of a call whose request or answer the kernel does not take."""
    return _final(TOO_LARGE, _too_large_error(message))


def _too_large_error(message: str) -> dict[str, str]:
    return {"type": "rebuno_too_large", "message": message}


def _final(status: int, error: dict[str, str]) -> httpx2.Response:
    headers = {"content-type": JSON_TYPE, "x-should-retry": "false"}
    body = encode({"error": error}).encode()
    return httpx2.Response(status, headers=headers, stream=httpx2.ByteStream(body))


def _with_reason(decision: str, reason: str) -> str:
    """The marker ends with its line, so a reason of several lines becomes one."""
    return f"{decision} reason={' '.join(reason.splitlines())}" if reason else decision
