# SPDX-License-Identifier: Apache-2.0
"""What code inside an execution sees: `execution()`, its context, and `previous()`."""

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NoReturn

from . import _requests
from ._attempt import Attempt, current_step
from ._calls import call
from ._json import encode
from ._protocol import read_field
from ._requests import Outcome, StepCall
from ._steps import run_step, settle, submit
from ._turns import current_turn
from .errors import Blocked, Terminated
from .types import Execution, ExecutionStatus, StepDecision

_current: ContextVar["ExecutionContext | None"] = ContextVar("rebuno_execution", default=None)


class ExecutionContext:
    """The execution that the calling code belongs to; `execution()` returns it.

    The methods are what `tool`, `step` and the model transport are made of, for gateways and
    frameworks of one's own. Any thread or event loop may call them.
    """

    def __init__(self, attempt: Attempt, execution: Execution) -> None:
        self._attempt = attempt
        self._execution = execution

    @property
    def id(self) -> str:
        """The execution's id."""
        return self._execution.id

    @property
    def agent_id(self) -> str:
        """The agent that runs it."""
        return self._execution.agent_id

    @property
    def input(self) -> Any:
        """The input it was created with, any JSON."""
        return self._execution.input

    @property
    def session(self) -> str:
        """The session it is a turn of, `""` without one."""
        return self._execution.session

    @property
    def status(self) -> ExecutionStatus | str:
        """Its state when this dispatch began."""
        return self._execution.status

    @property
    def dispatch_id(self) -> str:
        """The delivery that started this run of the handler."""
        return self._attempt.lease.dispatch_id

    @property
    def dispatch_attempt(self) -> int:
        """How often the delivery was tried, counted from 1."""
        return self._attempt.lease.attempt

    @property
    def suspension(self) -> Blocked | Terminated | None:
        """The Blocked or Terminated that this run has met, also if a framework swallowed it."""
        return self._attempt.suspension

    @property
    def step_id(self) -> str:
        """The id of the step in whose body the caller runs, `""` outside of one.

        It is the same on every retry and re-dispatch and another in a fork, so it serves as an
        idempotency key for an outside API.
        """
        return current_step.get()

    async def previous(self) -> Any:
        """Returns the state that the session's turn before this one left, None without one."""
        body = await self._attempt.send(_requests.previous(self.id))
        return read_field(body, "state")

    async def invoke_tool(
        self,
        target: str,
        args: Any,
        *,
        idempotency: str = "safe_to_retry",
        run: Callable[[], Any] | None = None,
        kind: str = "tool_call",
        resources: list[str] | None = None,
    ) -> Any:
        """Runs `run()`, sync or async, as a step; returns its result as JSON gives it back.

        `args` is any JSON and identifies the step together with `target` and `kind`
        (`tool_call` or `local`). With `at_most_once`, an effect whose outcome is unknown is
        never run again. `resources` names what the step changes. Raises PolicyError,
        RateLimited, Blocked or Terminated as the kernel decides, ToolError when the body or
        the recorded step failed, TypeError for what is not JSON, and the kernel's errors.
        """
        submitted = StepCall(
            kind,
            target,
            encode(args, f"the arguments of {target!r}"),
            idempotency,
            tuple(resources or ()),
        )

        async def body() -> Any:
            return None if run is None else await call(run)

        return await run_step(self._attempt, submitted, body)

    async def begin_llm(self, target: str, request: Any) -> tuple[str, StepDecision]:
        """Submits a model call; `target` is the model, `request` any JSON.

        Returns the step's id and the decision: on `proceed` call the model and `record_llm`
        the answer, on `replay` use the decision's `result` or `error`. Others are raised.
        """
        submitted = StepCall("llm_call", target, encode(request, "the model's request"))
        await self._attempt.admit(is_model_call=True)
        try:
            decision = await submit(self._attempt, submitted)
        except asyncio.CancelledError:
            self._attempt.left_open = True  # the kernel may have told it to proceed
            raise
        if decision.decision == "proceed":
            self._attempt.begin_model_call(decision.step_id, asyncio.current_task())
        return decision.step_id, decision

    async def record_llm(self, step_id: str, result: Any) -> None:
        """Records the answer of a model call that was told to proceed."""
        try:
            text = encode(result, "the model's answer")
            await settle(self._attempt, step_id, Outcome(result=text))
        finally:
            self._attempt.end_model_call(step_id)

    async def publish_llm_delta(self, step_id: str, seq: int, data: str) -> None:
        """Publishes a piece of a model's answer to the live stream.

        `seq` counts from 0; `data` is at most 7000 bytes of UTF-8. Nothing of it is kept.
        """
        lease = self._attempt.lease
        request = _requests.stream_delta(self.id, lease, step_id, seq, data)
        await self._attempt.send(request)


class _Accessor:
    """`execution()` returns the context of the execution that the caller runs in.

    The context's attributes: `id`, `agent_id`, `input`, `session`, `status` (when this dispatch
    began), `dispatch_id`, `dispatch_attempt`, `suspension` (the Blocked or Terminated that was
    met, else None) and `step_id` (inside a step's body, else `""`). Its methods, all async:
    `previous`, `invoke_tool`, `begin_llm`, `record_llm`, `publish_llm_delta`.

    An attribute of `execution` itself, not called, is a mistake.
    """

    __name__ = "execution"

    def __call__(self) -> ExecutionContext:
        """Returns the context of the execution that the caller runs in.

        RuntimeError outside of an execution.
        """
        context = _current.get()
        if context is None:
            raise RuntimeError(
                "execution() called without an active execution context: it works inside a "
                "handler that an Agent runs, and in what that calls"
            )
        return context

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(f"rebuno.execution must be called: use execution().{name}")


execution = _Accessor()


def enter(context: ExecutionContext) -> None:
    """Makes `context` the one that the current task, and what it starts, runs in."""
    _current.set(context)
    current_step.set("")
    current_turn.set(None)


def current(who: str, does: str = "records a step") -> ExecutionContext:
    """Returns the context; the RuntimeError outside of one names who needs it, and what for."""
    context = _current.get()
    if context is None:
        raise RuntimeError(
            f"{who} called outside an active execution: it {does}, so it works inside "
            "a handler that an Agent runs, and in what that calls"
        )
    return context


def attempt_of(context: ExecutionContext) -> Attempt:
    """The delivery attempt that the context's code runs under, for this package's own use."""
    return context._attempt


async def previous() -> Any:
    """Returns the state that the session's turn before this one left.

    It is the `Result.state` of the last completed turn, else that turn's output, else None.
    RuntimeError outside an execution.
    """
    return await execution().previous()
