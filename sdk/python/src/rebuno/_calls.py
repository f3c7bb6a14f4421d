# SPDX-License-Identifier: Apache-2.0
"""Calls a function of the user's, sync or async, without blocking the loop."""

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any

import anyio
import anyio.to_thread


async def call(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Returns what `fn` returns, awaited if it is awaitable.

    A sync function runs in a thread that sees the same context variables. There is no limit on
    the number of threads: a handler may wait in one for a tool that needs another.
    """
    if _is_async(fn):
        result = fn(*args, **kwargs)
    else:
        bound = functools.partial(fn, *args, **kwargs)
        limiter = anyio.CapacityLimiter(math.inf)
        result = await anyio.to_thread.run_sync(bound, abandon_on_cancel=True, limiter=limiter)
    if inspect.isawaitable(result):
        return await result
    return result


def name_of(fn: Callable[..., Any]) -> str:
    """Returns the name of a function, or the class of a callable that has none."""
    name: str = getattr(fn, "__name__", type(fn).__name__)
    return name


def _is_async(fn: Callable[..., Any]) -> bool:
    while isinstance(fn, functools.partial):
        fn = fn.func
    return any(inspect.iscoroutinefunction(form) for form in (fn, type(fn).__call__))
