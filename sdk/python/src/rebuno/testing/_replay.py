# SPDX-License-Identifier: Apache-2.0
"""Runs a handler offline against an exported run; see `rebuno.testing.replay`."""

import asyncio
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from os import PathLike
from typing import Any, NoReturn

from .._dispatch import Dispatch
from .._handler import Handler
from .._protocol import Delivery
from .._transport import Environment, Wire
from ..errors import RebunoError
from ._divergence import ended_early, place_of
from ._recording import RecordedStep, Recording
from ._replay_kernel import NoProvider, ReplayKernel

_GRACE_S = 10.0  # for a handler that is told to stop
_DELIVERY = {"dispatch_id": "replay", "dispatch_attempt": 1, "lease_timeout_seconds": 3600}


@dataclass(frozen=True, kw_only=True)
class Replay:
    """What a handler came to.

    status: `completed`, `failed`, or `open` if the recording ends before the handler did; then
    `ends_at` is the step without an outcome that it came to, None if it came to a step beyond the
    last one. output, state: what it completed with. failure_reason: what it failed with, and
    error what it raised. steps: what it asked for, in this order. unasked: the recorded steps
    that it did not ask for. recording: the run.
    """

    status: str
    output: Any = None
    state: Any = None
    failure_reason: str = ""
    error: BaseException | None = field(default=None, repr=False)
    ends_at: RecordedStep | None = None
    steps: tuple[RecordedStep, ...] = field(default=(), repr=False)
    unasked: tuple[RecordedStep, ...] = field(default=(), repr=False)
    recording: Recording = field(repr=False)


async def replay(
    run: str | PathLike[str] | Mapping[str, Any] | Recording,
    process: Callable[..., Any],
    *,
    resources: Mapping[str, Any] | None = None,
    any_order: bool = False,
    allow_missing: bool = False,
) -> Replay:
    """Runs the handler `process` against an exported run; returns what it came to.

    run: a file of `rebuno exec export`, or its content. Every step gets its recorded outcome, by
    what it is known by: kind, target, arguments and how often they came before. No tool's body
    runs, no model is called, no driver is used, no kernel is there. What the handler does outside
    of steps it does.

    Raises Divergence at the first step that was not recorded, or that comes before one which had
    ended before it began (not with `any_order`: steps that ran side by side come in any order
    anyway, and of what a fork has copied the order is not known); and when the handler completes
    or fails and has not asked for every step (not with `allow_missing`). A step that ran within
    the time of another may have been part of that one's body, which does not run: it is not
    missed. Nor is one that a fork has copied, if a tool or a local step began after it.

    resources: what `resource()` returns, by key. Without one the handler gets an object that
    raises when it is used.

    The output and the failure are the caller's to compare:
    `assert result.output == result.recording.output`.
    """
    __tracebackhide__ = True  # by pytest
    recording = Recording.of(run)
    kernel = ReplayKernel(recording, any_order=any_order)
    handler = _Watched(process)
    delivery = Delivery.model_validate(_DELIVERY | {"execution_id": recording.id})
    wire = Wire(
        "http://replay.invalid",
        lambda request, target: {},
        timeout_s=_GRACE_S,
        refused_from=300,
        environment=Environment(
            transport=kernel,
            provider=NoProvider(kernel),
            driver=lambda key: _StandIn(key, resources or {}, kernel),
        ),
    )
    try:
        await _until_over(Dispatch(wire, delivery, handler), kernel)
    finally:
        await wire.close()
    result = _result(kernel, handler, recording)
    if (missed := kernel.missed) and result.status != "open" and not allow_missing:
        how = result.failure_reason or "the handler's end"
        broke = None if isinstance(result.error, RebunoError) else result.error
        raise ended_early(missed, how, kernel.standing, broke) from result.error
    return result


async def _until_over(dispatch: Dispatch, kernel: ReplayKernel) -> None:
    stopped = asyncio.create_task(kernel.stopped.wait())
    try:
        await asyncio.wait({dispatch.task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not dispatch.task.done():
            await asyncio.wait({dispatch.task}, timeout=_GRACE_S)
    finally:
        stopped.cancel()
        if not dispatch.task.done():
            dispatch.cancel()
            await asyncio.wait({dispatch.task})


def _result(kernel: ReplayKernel, handler: "_Watched", recording: Recording) -> Replay:
    __tracebackhide__ = True
    if kernel.problem is not None:
        place = place_of(handler.raised)
        if place:
            kernel.problem.add_note(f"asked for in {place}")
        raise kernel.problem
    how, body = kernel.report or ("", {})
    if not how and kernel.ends_at is None and not kernel.is_past_the_end:
        raise RuntimeError("the handler stopped without an outcome") from handler.raised
    return Replay(
        status={"complete": "completed", "fail": "failed"}.get(how, "open"),
        output=body.get("output"),
        state=body.get("state"),
        failure_reason=body.get("error", ""),
        error=handler.raised,
        ends_at=kernel.ends_at,
        steps=tuple(kernel.replayed),
        unasked=tuple(kernel.unasked),
        recording=recording,
    )


class _Watched(Handler):
    """A handler that remembers what it raised."""

    raised: BaseException | None = None

    async def run(self, arguments: inspect.BoundArguments) -> Any:
        try:
            return await super().run(arguments)
        except BaseException as exc:
            self.raised = exc
            raise


class _StandIn:
    """In the place of a driver: opens what the test has given."""

    driver_id = "rebuno.testing.replay"

    def __init__(self, key: str, given: Mapping[str, Any], kernel: ReplayKernel) -> None:
        self._key = key
        self._given = given
        self._kernel = kernel

    async def open(self, binding: Any) -> Any:
        if self._key in self._given:
            return self._given[self._key]
        return _NotGiven(self._key, self._kernel)


class _NotGiven:
    """In the place of a handle. A tool's body, which would use it, does not run."""

    def __init__(self, key: str, kernel: ReplayKernel) -> None:
        self.__key = key
        self.__kernel = kernel

    def __repr__(self) -> str:
        return f"<resource {self.__key!r}, not given to the replay>"

    def __raise(self, what: str) -> NoReturn:
        problem = RuntimeError(
            f"the handler used {what} of resource {self.__key!r}, which a replay does not open: "
            f"give it one with replay(…, resources={{{self.__key!r}: …}})"
        )
        self.__kernel.stop(problem)
        raise problem

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what libraries look for
            raise AttributeError(name)
        self.__raise(f"{name!r}")

    def __truediv__(self, other: Any) -> Any:
        self.__raise("a path")

    def __fspath__(self) -> str:
        self.__raise("the path")

    def __getitem__(self, key: Any) -> Any:
        self.__raise("an item")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.__raise("a call")
