# SPDX-License-Identifier: Apache-2.0
"""The step engine: submit, obey the decision, run the body, report how it ended.

Everything durable goes through here. It knows nothing of tools, signatures or handlers; who
calls it has made JSON of the arguments.
"""

import asyncio
import contextvars
import logging
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from . import _requests
from ._attempt import Attempt, current_step
from ._calls import see_through
from ._captures import capture, dispatch_is_over
from ._json import decode, encode
from ._protocol import read
from ._refusals import find_refusal, raise_as
from ._requests import Captures, Outcome, StepCall
from ._turns import Turn
from .errors import (
    APIError,
    Blocked,
    LeaseSuperseded,
    PolicyError,
    RateLimited,
    RebunoError,
    Terminated,
    ToolError,
)
from .types import StepDecision

logger = logging.getLogger("rebuno")

Body = Callable[[], Awaitable[Any]]

PAYLOAD_TOO_LARGE = "payload_too_large"


async def submit(attempt: Attempt, call: StepCall) -> StepDecision:
    """Submits a step; returns a decision to proceed or to replay, raises any other."""
    request = _requests.submit_step(attempt.execution_id, attempt.lease, call, uuid.uuid4().hex)
    decision = read(StepDecision, await attempt.send(request))
    if decision.resources:
        attempt.turns.serial = True
    refusal = _refusal(decision, call)
    if isinstance(refusal, Blocked | Terminated):
        attempt.suspend(refusal)
    if refusal is not None:
        raise refusal
    return decision


def _refusal(decision: StepDecision, call: StepCall) -> RebunoError | None:
    match decision.decision:
        case "proceed" | "replay":
            return None
        case "denied":
            return PolicyError(decision.reason, decision.rule_id)
        case "rate_limited":
            return RateLimited(decision.reason) if decision.reason else RateLimited()
        case "blocked" if decision.approval_id:
            return Blocked(f"{call.target!r} waits for approval {decision.approval_id}")
        case "blocked" | "execution_blocked":
            return Blocked()
        case "execution_terminal":
            return Terminated("the execution has already ended")
    return RebunoError(
        f"unexpected step decision: {decision.decision}; this package may be older than the kernel"
    )


def replayed(decision: StepDecision, target: str) -> Any:
    """Returns the recorded result, or raises the recorded error as ToolError."""
    if decision.error is None:
        return decision.result
    error = decision.error if isinstance(decision.error, dict) else {}
    text = error.get("message") or error.get("reason") or encode(decision.error)
    raise ToolError(str(text), target, decision.step_id)


async def settle(attempt: Attempt, step_id: str, outcome: Outcome) -> None:
    """Reports how a step ended.

    A result that the kernel refuses for its size fails the step, so that the effect is not left
    as if it had never ended; the refusal is raised.
    """
    request = _requests.settle_step(attempt.execution_id, attempt.lease, step_id, outcome)
    try:
        await attempt.send(request)
    except LeaseSuperseded:
        logger.warning(
            "execution %s: the outcome of step %s was dropped: the lease was superseded",
            attempt.execution_id,
            step_id,
        )
        raise
    except APIError as exc:
        if exc.code != PAYLOAD_TOO_LARGE or outcome.error is not None:
            raise
        message = too_large("result", len((outcome.result or "").encode()), exc)
        failed = Outcome(error=encode({"message": message}), captured=outcome.captured)
        await settle(attempt, step_id, failed)
        raise APIError(message, exc.code, exc.status_code) from exc


def too_large(what: str, size_bytes: int, refusal: APIError) -> str:
    """Says how large the thing is, and, in the kernel's words, how large it may be."""
    return f"the {what} of {size_bytes} bytes is too large to be recorded: {refusal.message}"


async def run_step(attempt: Attempt, call: StepCall, body: Body) -> Any:
    """Runs `body` as a step, once; returns the JSON value, the same live as on replay.

    A cancellation of the caller reaches the step as `_Step.interrupt` decides.
    """
    step = _Step(attempt, call, body)
    task = attempt.spawn(step.run())
    return await see_through(task, lambda: step.interrupt(task))


class _Step:
    """One step on its way from submission to report."""

    def __init__(self, attempt: Attempt, call: StepCall, body: Body) -> None:
        self._attempt = attempt
        self._call = call
        self._body = body
        self._turn: Turn | None = None
        self._submitted = False
        self._cancelled = False
        self._settled = False
        self._running: asyncio.Task[Any] | None = None

    async def run(self) -> Any:
        """The step's life. It runs in a task of its own, apart from the caller's."""
        try:
            async with self._attempt.turn() as self._turn:
                return await self._live()
        except Blocked:
            await self._attempt.until_neighbours_end()
            raise

    async def _live(self) -> Any:
        self._submitted = True
        decision = await submit(self._attempt, self._call)
        if decision.decision == "replay":
            return replayed(decision, self._call.target)
        try:
            value = await self._perform(decision)
        except ToolError:
            if self._held().recorded is None:
                raise
        finally:
            is_open = not self._settled and not self._held().is_awaited
            self._attempt.left_open |= is_open
        if (recorded := self._held().recorded) is None:
            return value
        return replayed(recorded, self._call.target)  # a replay has nothing but that, either

    def _held(self) -> Turn:
        assert self._turn is not None  # what asks has been let in
        return self._turn

    def interrupt(self, task: asyncio.Task[Any]) -> None:
        """The caller was cancelled: by its handler (a timeout, a neighbour that failed).

        Nothing sent: the step never was. Otherwise the body is cancelled and the step fails;
        what is due is captured and reported all the same. But once the execution is suspended
        the cancellation is only a framework tidying up beside the call that waits: a body runs
        to its end, and a call whose turn has yet to come is asked for, as it would have been
        side by side.
        """
        if self._attempt.suspension is not None and not self._attempt.draining:
            return
        if not self._submitted:
            task.cancel()
        elif self._attempt.suspension is None:
            self._cancelled = True
            if self._running is not None:
                self._running.cancel()

    async def _perform(self, decision: StepDecision) -> Any:
        step_id = decision.step_id
        if self._cancelled:  # while the submission was on its way
            await self._report_failure(decision, "cancelled")
            raise asyncio.CancelledError
        try:
            value = await self._run_body(step_id)
        except asyncio.CancelledError:
            if dispatch_is_over(self._attempt):
                raise  # the dispatch, not the handler: the step stays executing
            await self._report_failure(decision, "cancelled")
            raise
        except Exception as exc:
            self._pass_refusal(exc)
            self._log_failure(exc, step_id)
            message = str(exc) or type(exc).__name__
            await self._report_failure(decision, message)
            if isinstance(exc, ToolError):
                raise
            raise ToolError(message, self._call.target, step_id) from exc
        return await self._report_result(decision, value)

    async def _run_body(self, step_id: str) -> Any:
        context = contextvars.copy_context()
        context.run(current_step.set, step_id)

        async def body() -> Any:
            try:
                return await self._body()
            except SystemExit as exc:  # out of a task it would end the event loop
                raise RuntimeError(f"SystemExit: {exc}") from exc

        self._running = asyncio.create_task(body(), context=context)
        try:
            return await self._running
        finally:
            self._running = None

    def _pass_refusal(self, exc: Exception) -> None:
        """Raises a refusal met inside the body: the step stays executing, to be run again."""
        refusal = find_refusal(exc)
        if isinstance(refusal, Blocked | Terminated):
            self._attempt.suspend(refusal)
        if refusal is not None:
            raise_as(refusal, exc)

    def _log_failure(self, exc: Exception, step_id: str) -> None:
        """Logs why the step fails, but for the error of a step inside it, logged with that."""
        if isinstance(exc, ToolError) and exc.step_id not in ("", step_id):
            return
        logger.error(
            "step %s of execution %s failed",
            self._call.target,
            self._attempt.execution_id,
            exc_info=exc,
        )

    async def _report_result(self, decision: StepDecision, value: Any) -> Any:
        try:
            text = encode(value, f"the result of {self._call.target!r}")
        except TypeError as exc:
            self._log_failure(exc, decision.step_id)
            await self._report_failure(decision, str(exc))
            raise
        captured = await self._capture(decision)
        await settle(self._attempt, decision.step_id, Outcome(result=text, captured=captured))
        self._settled = True
        return decode(text)

    async def _report_failure(self, decision: StepDecision, message: str) -> None:
        outcome = Outcome(
            error=encode({"message": message}), captured=await self._capture(decision)
        )
        try:
            await settle(self._attempt, decision.step_id, outcome)
            self._settled = True
        except LeaseSuperseded:
            raise
        except RebunoError as exc:
            logger.warning(
                "execution %s: failure of step %s was not reported: %s",
                self._attempt.execution_id,
                decision.step_id,
                exc,
            )

    async def _capture(self, decision: StepDecision) -> Captures:
        """Captures what is due, after the body and before the report."""
        await self._attempt.turns.hold(self._held())  # a body that waited gave its turn away
        return await capture(self._attempt, [one for one in decision.resources if one.due])
