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
_OF_THE_TRANSPORT = ("verify", "cert", "http1", "http2", "limits", "proxy")


def http_client(**kwargs: Any) -> httpx2.AsyncClient:
    """Returns an HTTP client for a model's SDK, whose calls are recorded as steps.

    `AsyncOpenAI(http_client=http_client())`, `ChatOpenAI(http_async_client=http_client())`,
    `AsyncAnthropic(http_client=…)`, `OpenAIProvider(http_client=…)`. `kwargs` are those of
    `httpx2.AsyncClient`, but for `transport`; calls through a `proxy` or one of the `mounts` are
    recorded, too. Only async calls can be recorded.
    """
    # httpx2 would not apply these to a transport that it is given, or go past it.
    settings = {name: kwargs.pop(name) for name in _OF_THE_TRANSPORT if name in kwargs}
    if "trust_env" in kwargs:
        settings["trust_env"] = kwargs["trust_env"]
    if kwargs.get("mounts"):
        kwargs["mounts"] = {key: _recording(inner) for key, inner in kwargs["mounts"].items()}
    inner = httpx2.AsyncHTTPTransport(**settings)
    return httpx2.AsyncClient(transport=RebunoTransport(inner), **kwargs)


def _recording(inner: httpx2.AsyncBaseTransport | None) -> httpx2.AsyncBaseTransport | None:
    """A transport of a client's `mounts`, where None stands for the client's own."""
    return inner if inner is None or isinstance(inner, RebunoTransport) else RebunoTransport(inner)


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
        try:
            await self._until_answered()
        finally:
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
        try:
            await self._until_answered()
        finally:
            await self._inner.__aexit__(exc_type, exc_value, traceback)

    async def _until_answered(self) -> None:
        if (context := _running()) is not None:
            await attempt_of(context).until_answered(self._inner)

    def __enter__(self) -> NoReturn:
        raise RuntimeError(_SYNC)

    def __exit__(self, *_: object) -> None: ...


def _running() -> ExecutionContext | None:
    try:
        return execution()
    except RuntimeError:
        return None


async def _json_object(request: httpx2.Request) -> dict[str, Any] | None:
    """Returns the body if it is a JSON object. An upload of files is not read for that.

    TypeError if it is one that Python cannot read: to pass it on would go past record and policy.
    """
    if request.headers.get("content-type", "").lower().startswith("multipart/"):
        return None
    content = await request.aread()
    if content.lstrip()[:1] != b"{":
        return None
    try:
        value = json.loads(content, parse_constant=_refuse)
    except (json.JSONDecodeError, UnicodeDecodeError, _NotJson):
        return None
    except (ValueError, RecursionError) as exc:  # an integer of thousands of digits, say
        raise TypeError(f"the model's request cannot be recorded: {exc}") from exc
    return value if isinstance(value, dict) else None


class _NotJson(Exception):
    """NaN and the like, which Python reads."""


def _refuse(constant: str) -> NoReturn:
    raise _NotJson(constant)
