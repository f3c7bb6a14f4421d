# SPDX-License-Identifier: Apache-2.0
"""Blocking work in a thread that is never left behind."""

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from .._calls import call, see_through

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Runs it in a thread. When the caller is cancelled, this first waits for it to end."""
    result: T = await see_through(asyncio.ensure_future(call(work, *args, **kwargs)), lambda: None)
    return result
