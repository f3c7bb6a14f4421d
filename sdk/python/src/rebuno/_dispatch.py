# SPDX-License-Identifier: Apache-2.0
"""One delivery from webhook to outcome: read, bind, run the handler beside heartbeats, report."""

import asyncio
import inspect
import logging

from . import _requests
from ._attempt import Attempt
from ._context import ExecutionContext, enter
from ._handler import Handler, InputInvalid, Result
from ._json import encode
from ._protocol import Delivery, Request, read
from ._refusals import find_refusal
from ._resources import capture_on_completion
from ._steps import PAYLOAD_TOO_LARGE, too_large
from ._transport import BRIEF, LASTING, Wire
from .errors import (
    APIError,
    Blocked,
    LeaseSuperseded,
    NotFoundError,
    PolicyError,
    RateLimited,
    RebunoError,
    Terminated,
    ToolError,
    UnauthorizedError,
    failure_reason,
)
from .types import Execution, ExecutionStatus

logger = logging.getLogger("rebuno")

_ENDED = (ExecutionStatus.COMPLETED, ExecutionStatus.FAILED, ExecutionStatus.CANCELLED)
_LONGEST_HEARTBEAT_S = 30.0


class Dispatch:
    """Runs the handler for one delivery; `task` ends when nothing of it is left to do."""

    def __init__(
        self, wire: Wire, delivery: Delivery, handler: Handler, *, agent_id: str = ""
    ) -> None:
        self.agent_id = agent_id
        self.delivery = delivery
        self.execution_id = delivery.execution_id
        self._wire = wire
        self._handler = handler
        self._attempt = Attempt(wire, delivery.execution_id, delivery.lease)
        self.task = asyncio.create_task(self._run(), name=f"rebuno {delivery.execution_id}")

    def is_superseded_by(self, other: Delivery) -> bool:
        """Tells whether `other` is a newer delivery than this, rather than a repeat of it."""
        mine = self.delivery
        return (
            other.dispatch_id != mine.dispatch_id or other.dispatch_attempt > mine.dispatch_attempt
        )

    def cancel(self) -> None:
        """Gives the delivery up: what runs is cancelled, nothing is reported."""
        self._attempt.abandon()
        self.task.cancel()

    async def stop(self, grace_s: float) -> None:
        """Lets running steps finish, starts none; then cancels and gives the run back."""
        if self._attempt.abandoned:
            await asyncio.wait({self.task})
            return
        self._attempt.draining = True
        idle = asyncio.create_task(self._attempt.until_idle())
        first = asyncio.FIRST_COMPLETED
        await asyncio.wait({self.task, idle}, timeout=grace_s, return_when=first)
        idle.cancel()
        if self.task.done():
            return
        self.cancel()
        await asyncio.wait({self.task})
        await self._attempt.until_stopped()
        if self._attempt.suspension is None or self._attempt.has_open_steps:
            await self._release()

    async def _run(self) -> None:
        try:
            await self._serve()
        except asyncio.CancelledError:
            if not self._attempt.abandoned:
                raise
        except (LeaseSuperseded, Terminated) as exc:
            self._log_stop(exc)
        except RebunoError as exc:
            self._log(logging.ERROR, "given up, to be delivered again", exc)
        finally:
            self._attempt.finish()

    async def _serve(self) -> None:
        request = _requests.get_execution(self.execution_id)
        body = await self._wire.send(request, LASTING)
        execution = read(Execution, body)
        if execution.status in _ENDED:
            return
        enter(ExecutionContext(self._attempt, execution))
        report = await self._outcome(execution)
        if report is not None:
            await self._report(report)
        elif self._attempt.has_open_steps:
            await self._release()

    async def _outcome(self, execution: Execution) -> Request | None:
        """Runs the handler; returns what to report, None if the kernel knows it already."""
        try:
            arguments = self._handler.bind(execution.input)
        except InputInvalid as exc:
            return self._failure(f"input_invalid: {exc}")
        except Exception as exc:  # of a model's own validators
            return self._died(exc)
        heart = asyncio.create_task(self._beat())
        try:
            await asyncio.sleep(0)  # the heart counts from before the handler, which may block
            report = await self._handle(arguments)
            if self._attempt.suspension is None:
                return report
            # Calls beside the one that waits run to their end, under a lease that is kept.
            self._attempt.seal()
            await self._attempt.until_settled()
            return None
        finally:
            heart.cancel()

    async def _handle(self, arguments: inspect.BoundArguments) -> Request | None:
        try:
            report = self._completion(await self._handler.run(arguments))
            if self._attempt.suspension is None:
                with self._attempt.busy():
                    await capture_on_completion(self._attempt)
            return report
        except asyncio.CancelledError as exc:
            if self._attempt.abandoned or self.task.cancelling():
                raise
            return self._failure(failure_reason(exc))  # it cancelled itself
        except (Exception, SystemExit) as exc:  # SystemExit would end the event loop
            return self._died(exc)

    def _completion(self, value: object) -> Request:
        result = value if isinstance(value, Result) else Result(value)
        output = encode(result.output, "the handler's output")
        state = None if result.state is None else encode(result.state, "the handler's state")
        return _requests.complete(self.execution_id, self.delivery.lease, output, state)

    def _died(self, exc: BaseException) -> Request | None:
        refusal = find_refusal(exc)
        if isinstance(refusal, PolicyError | RateLimited):
            return self._failure(failure_reason(refusal))
        if isinstance(refusal, Blocked | Terminated):  # met, or told by another that met it
            self._attempt.suspend(refusal)
        if refusal is not None:
            return None
        if not isinstance(exc, ToolError) and self._attempt.suspension is None:
            logger.error("execution %s: the handler failed", self.execution_id, exc_info=exc)
        return self._failure(failure_reason(exc))

    def _failure(self, reason: str) -> Request:
        return _requests.fail(self.execution_id, self.delivery.lease, reason)

    async def _report(self, report: Request) -> None:
        if self._attempt.abandoned:  # the handler swallowed its cancellation
            return
        with self._attempt.busy():
            try:
                await self._wire.send(report, LASTING)
            except APIError as exc:
                if exc.code != PAYLOAD_TOO_LARGE:
                    raise
                reason = too_large("output", len(report.body), exc)
                failed = self._failure(f"agent_error: {type(exc).__name__}: {reason}")
                await self._wire.send(failed, LASTING)

    async def _beat(self) -> None:
        """Renews the lease for as long as the handler runs."""
        request = _requests.heartbeat(self.execution_id, self.delivery.lease)
        interval_s = min(self.delivery.lease_timeout_seconds / 3, _LONGEST_HEARTBEAT_S)
        while True:
            await self._pause(interval_s)
            try:
                await self._wire.send(request, BRIEF)
            except (LeaseSuperseded, Terminated) as exc:
                self._log_stop(exc)
                self.cancel()
                return
            except RebunoError as exc:
                self._log(logging.WARNING, "heartbeat failed", exc)

    async def _pause(self, seconds: float) -> None:
        """Sleeps; warns if the loop, blocked by some call, came back too late for the lease."""
        env, lease_s = self._wire.environment, self.delivery.lease_timeout_seconds
        due = env.monotonic() + seconds
        try:
            await env.sleep(seconds)
        finally:  # cancelled, too: a handler may block and then end
            late_s = env.monotonic() - due
            if late_s > lease_s / 2:
                logger.warning(
                    "execution %s: the event loop was blocked for %.0f s; the lease is %.0f s: "
                    'make the tool a plain "def" (it runs in a thread) or use asyncio.to_thread',
                    self.execution_id,
                    late_s,
                    lease_s,
                )

    async def _release(self) -> None:
        request = _requests.release(self.execution_id, self.delivery.lease)
        try:
            await self._wire.send(request)
        except (NotFoundError, LeaseSuperseded, Terminated):
            pass  # a kernel that does not know the route, or nothing left to give back
        except RebunoError as exc:
            self._log(logging.WARNING, "not released, to be delivered when its lease ends", exc)

    def _log_stop(self, exc: LeaseSuperseded | Terminated) -> None:
        if isinstance(exc, LeaseSuperseded):
            self._log(logging.WARNING, "stopped, what was not recorded yet is dropped", exc)
        else:
            self._log(logging.INFO, "stopped", exc)

    def _log(self, level: int, text: str, error: RebunoError) -> None:
        said = explained(error, self.agent_id)
        logger.log(level, "execution %s: %s: %s", self.execution_id, text, said)


def explained(error: Exception, agent_id: str) -> str:
    """The error, for the log; where the kernel knows no such signature, what may be the cause."""
    if not isinstance(error, UnauthorizedError):
        return str(error)
    return (
        f"{error}: this process signs as agent {agent_id!r}: is it registered under another id, "
        "not registered yet, or with another secret than REBUNO_AGENT_SECRET?"
    )
