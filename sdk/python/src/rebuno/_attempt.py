# SPDX-License-Identifier: Apache-2.0
"""One delivery attempt of an execution: in whose name it speaks, and what is in flight.

It belongs to the event loop that received the delivery. Calls from other threads and loops are
carried over to that loop, so the HTTP client and the counts have one owner.
"""

import asyncio
import contextlib
import copy
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from . import _requests
from ._calls import see_through
from ._protocol import Lease, Request, read_field
from ._transport import LASTING, Environment, Patience, Wire
from ._turns import Turn, Turns, current_turn
from .errors import Blocked, LeaseSuperseded, RebunoError, Terminated

_T = TypeVar("_T")

# The step in whose body the code runs, "" outside of one.
current_step: ContextVar[str] = ContextVar("rebuno_step", default="")

_NEIGHBOURS_S = 60.0


class Stream(Protocol):
    """A streamed answer of a model."""

    async def until_left(self) -> None:
        """Waits until it is over, or nobody reads it any more."""

    async def cut(self, *, is_cancelled: bool) -> None:
        """Ends and records it for its reader."""


@dataclass
class _OpenCall:
    """A model call that was told to proceed and has no outcome yet."""

    caller: asyncio.Task[Any] | None = None  # when it ends, nobody reports the call any more
    way: object = None  # the transport to the provider
    loop: asyncio.AbstractEventLoop | None = None
    stream: Stream | None = None  # its answer, on `loop`


@dataclass(frozen=True)
class Opened:
    """A resource that `resource()` has opened in this delivery, as it was registered."""

    key: str
    driver: Any
    handle: Any
    registration: Request


class Attempt:
    """The state that the steps, the handler and the agent share."""

    def __init__(self, wire: Wire, execution_id: str, lease: Lease) -> None:
        self.execution_id = execution_id
        self.lease = lease
        self.suspension: Blocked | Terminated | None = None
        self.abandoned = False  # superseded or shut down: nothing is reported any more
        self.draining = False  # the agent is closing: nothing new is started
        self.left_open = False  # a body has ended without an outcome: its step is executing
        self.lost: RebunoError | None = None  # why a model call's outcome could not be reported
        self.turns = Turns(self._wake)
        self.opened: dict[str, Opened] = {}
        self._sealed = False  # suspended, and the handler has ended
        self._wire = wire
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._tasks: dict[asyncio.Task[Any], asyncio.AbstractEventLoop] = {}
        self._held: set[asyncio.Task[Any]] = set()  # of `_tasks`: met a stop
        self._busy = 0
        self._waiting: list[asyncio.Future[bool]] = []  # of the calls that wait for subagents
        self._asking = False  # whether they may be suspended
        self._is_suspended = False  # they are: the kernel waits for their steps
        self._open_model_calls: dict[str, _OpenCall] = {}
        self._calling: dict[object, object] = {}  # the transports of calls without an answer
        self._changed = asyncio.Event()

    async def send(self, request: Request, patience: Patience = LASTING) -> bytes:
        """Sends a request by the owner's loop, whichever loop the caller runs on."""
        try:
            return await self._on_owner(lambda: self._wire.send(request, patience))
        except Terminated as exc:
            self.suspend(exc)
            raise

    def suspend(self, reason: Blocked | Terminated) -> None:
        """Remembers the first stop that was met: a handler may swallow the exception."""
        if self.suspension is None:
            self.suspension = reason

    def stop(self) -> RebunoError:
        """What those are told for whom nothing goes on: the attempt is given up, or suspended."""
        if self.abandoned or self.suspension is None:
            return LeaseSuperseded("this delivery was given up; another attempt carries on")
        return copy.copy(self.suspension)

    @property
    def base_url(self) -> str:
        """The kernel's URL."""
        return self._wire.base_url

    @property
    def environment(self) -> Environment:
        """The clocks and the network that the agent runs on."""
        return self._wire.environment

    @property
    def has_open_steps(self) -> bool:
        """Whether steps are executing of which no outcome will come from this attempt.

        The next delivery would wait for them until the lease has run out.
        """
        return self.left_open or bool(self._open_model_calls)

    async def admit(self, *, is_model_call: bool = False) -> None:
        """Returns when a new step may be sent. An agent that is closing starts none.

        Nor does a suspended execution ask a model: mostly a framework has swallowed the stop and
        wants to tell the model of it. A tool's call may stand beside the one that waits, and is
        asked for in the same pass. What a running step's body needs is let through: the step
        could not finish otherwise.
        """
        if not self.turns.is_inside():
            if self.draining:
                await self._on_owner(
                    lambda: self._until(lambda: self.abandoned or not self.draining)
                )
            if (self._sealed or is_model_call) and self.suspension is not None:
                raise copy.copy(self.suspension)
        if self.abandoned:
            raise self.stop()
        if is_model_call and self.lost is not None:  # its SDK calls again: not beside that step
            raise copy.copy(self.lost)

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[Turn]:
        """Runs the block, the rest of the current task, as a call: admitted, and in its turn."""
        is_inside = self.turns.is_inside()
        while True:
            await self.admit()
            async with self.turns.take() as turn:
                closed = self.draining or (self._sealed and self.suspension is not None)
                if not self.abandoned and (is_inside or not closed):  # things as admitted
                    with self.busy():
                        yield turn
                    return

    async def wait_for_subagent(self, turn: Turn) -> None:
        """Waits until every call in flight waits like this; then has the execution suspended.

        Raises what suspended it; returns, in its turn again, if every subagent has ended.
        """
        if await self._on_owner(lambda: self._wait_for_others(turn)):
            assert self.suspension is not None
            turn.is_awaited = self._is_suspended
            raise copy.copy(self.suspension)
        await self.turns.hold(turn)

    async def _wait_for_others(self, turn: Turn) -> bool:
        """Tells whether the execution is suspended. Whoever wakes first asks for all."""
        mine: asyncio.Future[bool] = self._loop.create_future()
        self._waiting.append(mine)
        self.turns.pause(turn)
        try:
            while not mine.done():
                await self._until(
                    lambda: mine.done() or (not self._asking and self.turns.all_wait())
                )
                if not mine.done():
                    await self._ask_for_all(tuple(self._waiting))
            return mine.result()
        finally:
            self._waiting.remove(mine)

    async def _ask_for_all(self, waiting: tuple["asyncio.Future[bool]", ...]) -> None:
        self._asking = True
        try:
            if self.suspension is None:
                request = _requests.suspend(self.execution_id, self.lease)
                if read_field(await self.send(request), "suspended"):
                    self._is_suspended = True
                    self.suspend(Blocked("waits for its subagents"))
            for future in waiting:
                if not future.done():
                    future.set_result(self.suspension is not None)
        finally:
            self._asking = False
            self._wake()

    def spawn(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """Starts a task on the caller's loop that ends with the attempt."""
        task = asyncio.create_task(work)
        with self._lock:
            self._tasks[task] = asyncio.get_running_loop()
        task.add_done_callback(self._forget)
        return task

    def abandon(self) -> None:
        """Cancels what runs; nothing of it is reported."""
        self.abandoned = True
        with self._lock:
            running = list(self._tasks.items())
        for task, loop in running:
            with contextlib.suppress(RuntimeError):  # its loop has closed: it is gone
                loop.call_soon_threadsafe(task.cancel)
        self._wake()

    def seal(self) -> None:
        """The handler of a suspended execution has ended: what it left behind starts nothing."""
        self._sealed = True

    def finish(self) -> None:
        """The dispatch is over: nothing has to wait for it."""
        self.draining = False
        self._wake()

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """Marks work that a closing agent waits for."""
        self._count(1)
        try:
            yield
        finally:
            self._count(-1)

    @contextlib.contextmanager
    def calling(self, way: object) -> Iterator[None]:
        """Marks a model call by this transport: until it is recorded, or its stream has begun.

        From before it is submitted on: it may be let through after the transport is closed.
        """
        with self.busy():
            mark = object()
            self._calling[mark] = way
            try:
                yield
            finally:
                del self._calling[mark]

    def begin_model_call(
        self, step_id: str, caller: asyncio.Task[Any] | None = None, way: object = None
    ) -> None:
        """Marks a model call that a closing agent waits for, until `end_model_call`.

        The `caller`, if one is given, is who will report it.
        """
        self._open_model_calls[step_id] = _OpenCall(caller, way)
        if caller is not None:
            caller.add_done_callback(lambda _: self._wake())

    def begin_stream(self, step_id: str, stream: Stream) -> None:
        """The model call's answer is a stream."""
        call = self._open_model_calls[step_id]
        call.loop, call.stream = asyncio.get_running_loop(), stream

    def end_model_call(self, step_id: str) -> None:
        """The call was recorded, or given up."""
        self._open_model_calls.pop(step_id, None)
        self._wake()

    async def until_answered(self, way: object) -> None:
        """Called before a transport to a model's provider is closed.

        Once the execution is suspended that is mostly a client's block, left because of the call
        that waits. The calls beside it end first: cut off, they would be recorded so.
        """
        if self.suspension is not None and not self.abandoned:
            await see_through(self.spawn(self._until_answered(way)), lambda: None)

    async def _until_answered(self, way: object) -> None:
        def is_free() -> bool:
            return all(one is not way for one in tuple(self._calling.values()))

        await self._on_owner(lambda: self._until(is_free))
        await self._until_read(lambda call: call.way is way)

    async def _until_read(self, is_meant: Callable[[_OpenCall], bool]) -> None:
        """Waits for the streams on this loop: for their readers, or reads them for those."""
        loop = asyncio.get_running_loop()
        for call in tuple(self._open_model_calls.values()):
            if call.stream is not None and call.loop is loop and is_meant(call):
                await call.stream.until_left()
                with contextlib.suppress(Exception):  # its reader's to see
                    await call.stream.cut(is_cancelled=False)

    async def until_settled(self) -> None:
        """Returns when no step is in flight, and of the model calls nothing more will come.

        Called once the handler of a suspended execution has ended, by the task it ran in.
        """
        handler = asyncio.current_task()

        def is_under_way(call: _OpenCall) -> bool:
            return call.caller not in (None, handler) and not call.caller.done()

        await self._until(lambda: self._busy == 0)
        await self._until_read(lambda _: True)
        with contextlib.suppress(TimeoutError):  # a caller may have given up, and live on
            async with asyncio.timeout(_NEIGHBOURS_S):
                await self._until(
                    lambda: not any(map(is_under_way, tuple(self._open_model_calls.values())))
                )
        await self._until(lambda: self._busy == 0)

    async def until_neighbours_end(self) -> None:
        """Called by a step's task that met a stop: lets the steps beside it end first.

        Only on a loop of the caller's own. Such a loop (`asyncio.run` in a sync handler) ends
        with its main coroutine, and then cancels all that still runs on it, bodies too. A body
        that waits for what the caller does after the stop would wait in vain, so not for ever.
        """
        loop, me = asyncio.get_running_loop(), asyncio.current_task()
        if loop is self._loop or me is None:
            return
        around = current_turn.get()
        apart = {me, *(around.tasks() if around else ())}
        self._held.add(me)
        deadline = loop.time() + _NEIGHBOURS_S
        while (left_s := deadline - loop.time()) > 0:
            with self._lock:
                beside = {task for task, home in self._tasks.items() if home is loop}
            beside -= self._held | apart
            if not beside:  # but a stream may be between two reads
                calls = tuple(self._open_model_calls.values())
                if not any(call.loop is loop for call in calls):
                    return
                reading = self.spawn(self._until_read(lambda _: True))
                self._held.add(reading)
                beside = {reading}
            await asyncio.wait(beside, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)

    async def until_stopped(self) -> None:
        """Returns when the tasks of this loop have ended, after `abandon`."""
        with self._lock:
            mine = {task for task, loop in self._tasks.items() if loop is self._loop}
        if mine:
            await asyncio.wait(mine)

    async def until_idle(self) -> None:
        """Returns when no step and no model call is in flight."""
        await self._until(lambda: self._busy == 0 and not self._open_model_calls)

    def _count(self, change: int) -> None:
        with self._lock:
            self._busy += change
        self._wake()

    def _forget(self, task: asyncio.Task[Any]) -> None:
        with self._lock:
            self._tasks.pop(task, None)
            self._held.discard(task)

    def _wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # the owner's loop has closed
            self._loop.call_soon_threadsafe(self._changed.set)

    async def _until(self, condition: Callable[[], bool]) -> None:
        # A change made elsewhere sets the event by a callback, so after this clear, never before.
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    async def _on_owner(self, work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        if asyncio.get_running_loop() is self._loop:
            return await work()
        if self._loop.is_closed():
            raise LeaseSuperseded("the agent that received this delivery has shut down")
        future = asyncio.run_coroutine_threadsafe(work(), self._loop)
        return await asyncio.wrap_future(future)
