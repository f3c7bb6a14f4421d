# SPDX-License-Identifier: Apache-2.0
"""Makes steps of functions: `@tool`, `wrap_tool` for tools of other kinds, and `step`."""

import functools
import inspect
import keyword
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, ParamSpec, Protocol, TypeVar, cast, overload

from ._calls import call, name_of
from ._context import current
from .errors import PolicyError

_P = ParamSpec("_P")
_R = TypeVar("_R")


class _Decorator(Protocol):
    """What `@tool(...)` returns: it takes the function, async or sync."""

    @overload
    def __call__(
        self, fn: Callable[_P, Coroutine[Any, Any, _R]], /
    ) -> Callable[_P, Coroutine[Any, Any, _R]]: ...

    @overload
    def __call__(self, fn: Callable[_P, _R], /) -> Callable[_P, Coroutine[Any, Any, _R]]: ...


@overload
def tool(
    tool_id: Callable[_P, Coroutine[Any, Any, _R]], /
) -> Callable[_P, Coroutine[Any, Any, _R]]: ...


@overload
def tool(tool_id: Callable[_P, _R], /) -> Callable[_P, Coroutine[Any, Any, _R]]: ...


@overload
def tool(
    tool_id: str | None = None,
    *,
    idempotency: str = "safe_to_retry",
    resources: Sequence[str] | None = None,
) -> _Decorator: ...


def tool(
    tool_id: Any = None,
    *,
    idempotency: str = "safe_to_retry",
    resources: Sequence[str] | None = None,
) -> Any:
    """Makes a durable step of a function: `@tool`, `@tool("id")`, `@tool("id", …)`.

    The result is a coroutine function with the name, signature and docstring of the original,
    so a framework takes it as a plain function. The id, by default the function's name, is what
    policy rules and the record go by. Arguments and results must be JSON; pydantic models and
    dataclasses are converted.

    A refusal of policy is returned, as text that tells the model so. RateLimited, Blocked and
    Terminated are raised; ToolError when the call failed, now or when it was recorded.

    idempotency: `safe_to_retry`, or `at_most_once` for an effect that must never be repeated
    when its outcome is unknown. resources: keys of the resources that a call changes.
    """

    def decorate(fn: Callable[..., Any]) -> Callable[..., Any]:
        target = tool_id if isinstance(tool_id, str) and tool_id else name_of(fn)
        signature = inspect.signature(fn)

        @functools.wraps(fn)
        async def invoke(*args: Any, **kwargs: Any) -> Any:
            try:
                bound = signature.bind(*args, **kwargs)
            except TypeError as exc:
                raise TypeError(f"tool {target!r}: {exc}; it takes {signature}") from None
            bound.apply_defaults()
            recorded = dict(bound.arguments)
            run = functools.partial(call, fn, *bound.args, **bound.kwargs)
            return await _invoke(f"@tool {target!r}", target, recorded, run, settings)

        cast(Any, invoke).__idempotency__ = idempotency
        return invoke

    settings = _settings(idempotency, resources)
    return decorate(tool_id) if callable(tool_id) else decorate


def wrap_tool(
    name: str,
    invoke: Callable[[Any], Any],
    *,
    description: str = "",
    args_schema: dict[str, Any] | None = None,
    idempotency: str = "safe_to_retry",
    to_result: Callable[[Any], Any] | None = None,
    transform_args: Callable[[dict[str, Any]], Any] | None = None,
    resources: Sequence[str] | None = None,
) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Makes a durable step of a tool that is no plain function, such as another system's.

    Returns a coroutine function that takes keywords. Its signature follows `args_schema`, a
    JSON Schema of an object; keywords that the schema does not name pass through.
    `transform_args` turns the keywords into the arguments that are recorded and given to
    `invoke`, sync or async; `to_result` turns what that returns into the JSON that is recorded
    and returned. Refusals, errors and the other options are those of `tool`.
    """
    settings = _settings(idempotency, resources)

    async def wrapped(**kwargs: Any) -> Any:
        args = kwargs if transform_args is None else transform_args(kwargs)

        async def run() -> Any:
            raw = await call(invoke, args)
            return raw if to_result is None else to_result(raw)

        return await _invoke(f"tool {name!r}", name, args, run, settings)

    attributes = {
        "__name__": name,
        "__qualname__": name,
        "__doc__": description or None,
        "__signature__": _schema_signature(args_schema or {}),
        "__input_schema__": args_schema or {},
        "__idempotency__": idempotency,
    }
    for attribute, value in attributes.items():
        setattr(wrapped, attribute, value)
    return wrapped


async def step(
    name: str,
    fn: Callable[..., Any],
    args: dict[str, Any] | None = None,
    idempotency: str = "safe_to_retry",
    resources: Sequence[str] | None = None,
) -> Any:
    """Runs `fn(**args)`, sync or async, as a local step named `name`; returns its JSON result.

    For effects of the handler's own, such as the current time or a random choice: a re-dispatch
    gets the recorded value. Unlike a tool it raises PolicyError. The other errors and options
    are those of `tool`.
    """
    context = current(f"rebuno.step({name!r})")
    given = args or {}
    return await context.invoke_tool(
        name,
        given,
        run=functools.partial(call, fn, **given),
        kind="local",
        **_settings(idempotency, resources),
    )


def _settings(idempotency: str, resources: Sequence[str] | None) -> dict[str, Any]:
    if idempotency not in ("safe_to_retry", "at_most_once"):
        raise ValueError(
            f"idempotency must be 'safe_to_retry' or 'at_most_once', not {idempotency!r}"
        )
    if isinstance(resources, str):
        raise ValueError(f"resources is a list of keys: write [{resources!r}]")
    return {"idempotency": idempotency, "resources": list(resources or ())}


async def _invoke(
    who: str, target: str, args: Any, run: Callable[[], Any], settings: dict[str, Any]
) -> Any:
    """Runs a tool's step; a refusal of policy becomes text for the model."""
    context = current(who)
    try:
        return await context.invoke_tool(target, args, run=run, **settings)
    except PolicyError as exc:
        return f"{target} not allowed. reason: {exc.message}"


def _schema_signature(schema: dict[str, Any]) -> inspect.Signature:
    required = schema.get("required") or ()
    return inspect.Signature(
        [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if name in required else None,
            )
            for name in schema.get("properties") or ()
            if name.isidentifier() and not keyword.iskeyword(name)  # the others pass through
        ]
    )
