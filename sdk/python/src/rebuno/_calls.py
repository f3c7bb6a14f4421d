# SPDX-License-Identifier: Apache-2.0
"""Calls a function of the user's, sync or async, without blocking the loop."""

import asyncio
import functools
import inspect
import math
from collections.abc import Callable
from typing import Any, TypeVar

import anyio
import anyio.to_thread

_T = TypeVar("_T")


async def call(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Returns what `fn` returns, awaited if it is awaitable.

    A sync function runs in a thread that sees the same context variables. There is no limit on
    the number of threads: a handler may wait in one for a tool that needs another.
    """
    if is_async(fn):
        result = fn(*args, **kwargs)
    else:
        bound = functools.partial(fn, *args, **kwargs)
        limiter = anyio.CapacityLimiter(math.inf)
        result = await anyio.to_thread.run_sync(bound, abandon_on_cancel=True, limiter=limiter)
    if inspect.isawaitable(result):
        return await result
    return result


async def see_through(task: asyncio.Task[_T], interrupt: Callable[[], None]) -> _T:
    """Waits for a task, whatever cancels the caller; returns its result.

    Each cancellation becomes a call of `interrupt`, and goes on when the task has ended.
    """
    try:
        await asyncio.wait({task})
    except asyncio.CancelledError:
        interrupt()
        with anyio.CancelScope(shield=True):  # anyio would cancel again at each turn of the loop
            while not task.done():
                try:
                    await asyncio.wait({task})
                except asyncio.CancelledError:
                    interrupt()
        if not task.cancelled():
            task.exception()  # the caller's cancellation goes on; this one has been reported
        raise
    return task.result()


def name_of(fn: Callable[..., Any]) -> str:
    """Returns the name of a function, or the class of a callable that has none."""
    name: str = getattr(fn, "__name__", type(fn).__name__)
    return name


def is_async(fn: Callable[..., Any]) -> bool:
    """Tells whether a call of `fn` gives an awaitable at once, without a thread."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return any(inspect.iscoroutinefunction(form) for form in (fn, type(fn).__call__))
