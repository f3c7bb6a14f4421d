# SPDX-License-Identifier: Apache-2.0
"""Makes steps of model calls: an HTTP transport that any model's SDK can be given.

A request with a JSON object as its body is a step. The first time it goes to the provider, and
the answer is recorded; afterwards the record answers, and the provider is not called.
"""

import json
from types import TracebackType
from typing import Any, NoReturn, Self

import httpx2

from ._context import ExecutionContext, attempt_of, execution
from ._json import encode
from ._model_calls import ModelCall
from ._requests import StepCall

_SYNC = (
    "this client records async calls only, and a sync one would bypass the record: use the "
    "async client of the model's SDK and its async methods (AsyncOpenAI, ainvoke, astream)"
)


def http_client(**kwargs: Any) -> httpx2.AsyncClient:
    """Returns an HTTP client for a model's SDK, whose calls are recorded as steps.

    `AsyncOpenAI(http_client=http_client())`, `ChatOpenAI(http_async_client=http_client())`,
    `AsyncAnthropic(http_client=…)`, `OpenAIProvider(http_client=…)`. `kwargs` are those of
    `httpx2.AsyncClient`. Only async calls can be recorded. For a proxy, or certificates of one's
    own: `RebunoTransport(httpx2.AsyncHTTPTransport(proxy=…))`.
    """
    return httpx2.AsyncClient(transport=RebunoTransport(), **kwargs)


class RebunoTransport(httpx2.AsyncBaseTransport):
    """An httpx2 transport that records model calls; `http_client` makes a client with one.

    Inside an execution a request whose body is a JSON object becomes an `llm_call` step, with
    the body's `model` as target and the body as arguments. Its answer, of any status, is
    recorded: status, content type and body, never a request's headers. On a re-dispatch the
    record answers, streamed if it was a stream. Other requests pass through to `inner`, by
    default `httpx2.AsyncHTTPTransport()`.

    A call that the kernel does not let through gets an HTTP answer that model SDKs do not
    repeat; what they raise of it, `raise_for_refusal` understands.
    """

    def __init__(self, inner: httpx2.AsyncBaseTransport | None = None) -> None:
        self._inner = httpx2.AsyncHTTPTransport() if inner is None else inner

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Answers from the record, or from the provider and records it."""
        context = _running()
        if context is None:
            return await self._inner.handle_async_request(request)
        inner = attempt_of(context).environment.provider or self._inner
        body = await _json_object(request)
        if body is None:
            return await inner.handle_async_request(request)
        model = body.get("model")
        target = "" if model is None else str(model)
        step = StepCall("llm_call", target, encode(body, "the model's request"))
        call = ModelCall(attempt_of(context), inner, request, step)
        return await call.answer(is_streamed=body.get("stream") is True)

    async def aclose(self) -> None:
        """Closes the connections to the provider."""
        await self._inner.aclose()

    def handle_request(self, request: httpx2.Request) -> NoReturn:
        """Refuses: sync calls cannot be recorded."""
        raise RuntimeError(_SYNC)

    def close(self) -> None:
        """For a sync client that was given this transport: nothing is open."""

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        await self._inner.__aexit__(exc_type, exc_value, traceback)

    def __enter__(self) -> NoReturn:
        raise RuntimeError(_SYNC)

    def __exit__(self, *_: object) -> None: ...


def _running() -> ExecutionContext | None:
    try:
        return execution()
    except RuntimeError:
        return None


async def _json_object(request: httpx2.Request) -> dict[str, Any] | None:
    """Returns the body if it is a JSON object. An upload of files is not read for that."""
    if request.headers.get("content-type", "").lower().startswith("multipart/"):
        return None
    content = await request.aread()
    if content.lstrip()[:1] != b"{":
        return None
    try:
        value = json.loads(content, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
