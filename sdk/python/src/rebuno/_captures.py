# SPDX-License-Identifier: Apache-2.0
"""Captures of external state: has a driver make a checkpoint, keeps its failure from the rest."""

import asyncio
import logging
from collections.abc import Iterable
from typing import Any, Protocol

from ._attempt import Attempt
from ._calls import call
from ._json import encode
from ._requests import Captures
from .errors import (
    Blocked,
    LeaseSuperseded,
    PolicyError,
    RateLimited,
    RebunoError,
    Terminated,
)

logger = logging.getLogger("rebuno")

CONTROL_FLOW = (Blocked, Terminated, LeaseSuperseded, PolicyError, RateLimited)


class Due(Protocol):
    """What is to be captured: the kernel takes a capture under the current generation only."""

    key: str
    generation: int


async def capture(attempt: Attempt, due: Iterable[Due]) -> Captures:
    """Captures one resource after the other; a failure is logged, and told to the kernel.

    The errors by which the kernel steers the handler are raised.
    """
    captures: list[dict[str, Any]] = []
    failures: list[dict[str, Any]] = []
    for one in due:
        entry = {"key": one.key, "generation": one.generation}
        try:
            captures.append(entry | {"checkpoint_ref": await _checkpoint(attempt, one.key)})
        except CONTROL_FLOW as exc:
            if isinstance(exc, Blocked | Terminated):
                attempt.suspend(exc)
            raise
        except (Exception, asyncio.CancelledError) as exc:
            if isinstance(exc, asyncio.CancelledError) and dispatch_is_over(attempt):
                raise
            logger.warning(
                "execution %s: no checkpoint of resource %r",
                attempt.execution_id,
                one.key,
                exc_info=exc,
            )
            failures.append(entry | {"error": str(exc) or type(exc).__name__})
    return Captures(tuple(captures), tuple(failures))


def dispatch_is_over(attempt: Attempt) -> bool:
    """Tells whose a cancellation is that was met here: the dispatch's, not the handler's own."""
    task = asyncio.current_task()
    return attempt.abandoned or (task is not None and task.cancelling() > 0)


async def _checkpoint(attempt: Attempt, key: str) -> Any:
    opened = attempt.opened.get(key)
    if opened is None:
        raise RebunoError("resource() was not called in this dispatch")
    reference = await call(opened.driver.checkpoint, opened.handle)
    encode(reference, "the checkpoint reference")  # what is none the kernel refuses, not us
    return reference
