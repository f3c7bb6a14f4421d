# SPDX-License-Identifier: Apache-2.0
"""`resource()`: external state that is found again, captured on the way, and restored in a fork."""

import asyncio
import logging
from typing import Any

from . import _requests
from ._attempt import Attempt, Opened
from ._calls import call, is_async, see_through
from ._captures import CONTROL_FLOW, capture
from ._context import attempt_of, current
from ._json import encode
from ._protocol import Request, read
from ._requests import Captures
from .types import Resource

logger = logging.getLogger("rebuno")


class CheckpointPolicy:
    """When a resource is captured.

    every_steps: after every so many calls that declare a change of it. on_completion: also when
    the handler returns, if it has changed since. ValueError for `every_steps` below 1.
    """

    def __init__(self, every_steps: int = 1, on_completion: bool = True) -> None:
        if every_steps < 1:
            raise ValueError("every_steps must be positive")
        self.every_steps = every_steps
        self.on_completion = on_completion


async def resource(key: str, *, driver: Any, checkpoints: CheckpointPolicy | None = None) -> Any:
    """Returns the handle of a piece of external state, such as a sandbox.

    The first time the driver creates it: in a fork from the checkpoint that was chosen, else
    anew. Later deliveries, and later turns of the session, open what is there. A second call for
    the key gives the same handle. With `checkpoints` its state is captured: now, unless a
    checkpoint covers it; then as the policy says.

    driver: an object with `driver_id`, `create(checkpoint_ref=None)` that returns (handle,
    binding), `open(binding)` that returns a handle, and, to be captured, `checkpoint(handle)`
    that returns a reference. The methods may be sync. `configuration` (JSON) and
    `coverage_reuse` (all changes are made by steps that declare them) are optional.

    From the first call on, the tools and steps of the execution run one at a time. What the
    driver raises is raised; RuntimeError outside an execution.
    """
    attempt = attempt_of(current(f"rebuno.resource({key!r})", "belongs to an execution"))
    if key not in attempt.opened:
        await _Opening(attempt, key, driver).run(checkpoints)
    return attempt.opened[key].handle


async def capture_on_completion(attempt: Attempt) -> None:
    """Captures what has changed since its last checkpoint, as the policies in force say."""
    try:
        states = [
            read(Resource, await attempt.send(opened.registration))
            for opened in tuple(attempt.opened.values())
        ]
        due = [state for state in states if state.on_completion and not state.covered]
        await _report(attempt, await capture(attempt, due))
    except CONTROL_FLOW:
        raise
    except Exception as exc:
        logger.warning(
            "execution %s: no checkpoints on completion", attempt.execution_id, exc_info=exc
        )


async def _report(attempt: Attempt, captured: Captures) -> None:
    if captured.captures or captured.failures:
        await attempt.send(
            _requests.checkpoint_resources(attempt.execution_id, attempt.lease, captured)
        )


class _Opening:
    """The first call for a key in a delivery."""

    def __init__(self, attempt: Attempt, key: str, driver: Any) -> None:
        stand_in = attempt.environment.driver
        self._attempt = attempt
        self._key = key
        self._driver = driver if stand_in is None else stand_in(key)
        self._cancelled = False
        self._is_making = False  # something exists, or may, that is not recorded

    async def run(self, policy: CheckpointPolicy | None) -> None:
        """Opens it in a task of its own, which waits for its turn."""
        request = self._registration(policy)
        self._attempt.turns.serial = True
        task = self._attempt.spawn(self._run(request))
        await see_through(task, lambda: self._interrupt(task))

    def _registration(self, policy: CheckpointPolicy | None) -> Request:
        driver = self._driver
        registration = {
            "key": self._key,
            "driver_id": driver.driver_id,
            "configuration": getattr(driver, "configuration", None),
            "coverage_reuse": bool(getattr(driver, "coverage_reuse", False)),
            "every_steps": policy.every_steps if policy else 0,
            "on_completion": policy.on_completion if policy else False,
        }
        attempt = self._attempt
        return _requests.register_resource(attempt.execution_id, attempt.lease, registration)

    async def _run(self, request: Request) -> None:
        attempt = self._attempt
        async with attempt.turn(), attempt.turns.take(key=self._key):
            if self._key not in attempt.opened:  # by a call that stood before this one
                await self._open(request)

    def _interrupt(self, task: "asyncio.Task[None]") -> None:
        """The caller was cancelled. What was made is recorded first, so that it is not lost."""
        self._cancelled = True
        if not self._is_making:
            task.cancel()

    async def _open(self, request: Request) -> None:
        driver, attempt = self._driver, self._attempt
        state = read(Resource, await attempt.send(request))
        is_captured = state.every_steps > 0
        if is_captured and not callable(getattr(driver, "checkpoint", None)):
            raise ValueError("checkpoint policy requires driver.checkpoint()")
        if state.binding is not None:
            handle = await call(driver.open, state.binding)
        else:
            handle = await self._create(state.checkpoint_ref or None)
        attempt.opened[self._key] = Opened(self._key, driver, handle, request)
        if is_captured and not state.covered:
            await _report(attempt, await capture(attempt, [state]))

    async def _create(self, checkpoint_ref: str | None) -> Any:
        self._is_making = not is_async(self._driver.create)  # a thread cannot be interrupted
        made = await call(self._driver.create, checkpoint_ref)
        self._is_making = True
        try:
            handle = await self._bind(made)
        finally:
            self._is_making = False
        if self._cancelled:
            raise asyncio.CancelledError
        return handle

    async def _bind(self, made: Any) -> Any:
        """Records how to find what was made. Until then only the log knows of it."""
        what = (self._attempt.execution_id, self._key, self._driver.driver_id)
        try:
            handle, binding = made
        except (TypeError, ValueError) as exc:
            logger.warning("execution %s: resource %r: driver %s made %r", *what, made)
            raise TypeError("driver.create() must return a handle and a binding") from exc
        logger.info("execution %s: resource %r: driver %s created %s", *what, _readable(binding))
        attempt = self._attempt
        try:
            text = encode(binding, "the binding")
            await attempt.send(
                _requests.bind_resource(attempt.execution_id, attempt.lease, self._key, text)
            )
        except BaseException:
            logger.warning(
                "execution %s: resource %r: driver %s created %s, which was not recorded: "
                "nothing will find it or remove it",
                *what,
                _readable(binding),
            )
            raise
        return handle


def _readable(binding: Any) -> str:
    try:
        return encode(binding)
    except TypeError:
        return repr(binding)
