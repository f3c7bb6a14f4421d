# SPDX-License-Identifier: Apache-2.0
"""Whose turn it is: the calls of one delivery that are in flight, and the order they run in.

Side by side, until the execution has resources; then one at a time, in order of arrival. A call
that is made inside a step's body belongs to that step: it waits for its siblings there, never for
the step around it. Calls may come from any thread and event loop.
"""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from enum import Enum, auto
from typing import Optional

from .types import StepDecision


class _State(Enum):
    NEW = auto()
    QUEUED = auto()
    RUNNING = auto()
    PAUSED = auto()  # waits in `subagent`, and lets others go on
    OVER = auto()


class Turn:
    """One call in flight, and the queue of the calls that are made inside it."""

    def __init__(self, parent: Optional["Turn"], scope: Optional["Turn"]) -> None:
        self.parent = parent
        self.is_awaited = False  # ended, and the kernel waits for its subagent to settle the step
        self.recorded: StepDecision | None = None  # the outcome that its subagent gave the step
        self._scope = scope  # in whose queue it stands, mostly the parent
        self._state = _State.NEW
        self._inside = 0  # calls in flight inside it
        self._running: set[Turn] = set()
        self._queue: deque[Turn] = deque()
        self._waiters: list[asyncio.Future[None]] = []
        self._task = None if parent is None else asyncio.current_task()

    @property
    def is_leaf(self) -> bool:
        """It runs, and nothing inside it is in flight: it can go on by itself."""
        return self._state is _State.RUNNING and not self._inside

    def tasks(self) -> Iterator["asyncio.Task[object]"]:
        """The tasks of this call and of those around it."""
        turn: Turn | None = self
        while turn is not None:
            if turn._task is not None:
                yield turn._task
            turn = turn.parent


# The innermost call inside which the code runs.
current_turn: ContextVar[Turn | None] = ContextVar("rebuno_turn", default=None)


class Turns:
    """The calls of one delivery. Invariant: a call is queued only while another stands before it.

    `changed` is called after every change, from any thread.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        self.serial = False  # the execution has resources
        self._changed = changed
        self._lock = threading.Lock()
        self._root = Turn(None, None)
        self._keys: dict[str, Turn] = {}
        self._leaves = 0

    def is_inside(self) -> bool:
        """Tells whether the code runs inside a call that is in flight."""
        return self._around() is not self._root

    def all_wait(self) -> bool:
        """Tells whether no call in flight can go on by itself: all wait for subagents."""
        return self._leaves == 0

    @contextlib.asynccontextmanager
    async def take(self, *, key: str = "") -> AsyncIterator[Turn]:
        """Runs the block as a call, when its turn has come.

        With a `key` it stands in the queue of that key only. The block is the last thing that the
        current task does.
        """
        around = self._around()
        scope = self._keys.setdefault(key, Turn(None, None)) if key else around
        turn = Turn(around, scope)
        with self._lock, self._counting(around):
            around._inside += 1
        try:
            await self.hold(turn)
            current_turn.set(turn)
            yield turn
        finally:
            self._leave(turn)

    async def hold(self, turn: Turn) -> None:
        """Returns when the call runs: at once, unless it waits for its turn, or was paused."""
        with self._lock:
            scope = self._scope_of(turn)
            if turn._state is _State.PAUSED:
                scope._queue.appendleft(turn)  # it had its turn before those that wait
            elif turn._state is _State.NEW:
                scope._queue.append(turn)
            if turn._state is not _State.RUNNING:
                turn._state = _State.QUEUED
                self._grant(scope)
            if turn._state is _State.RUNNING:
                return
            granted = asyncio.get_running_loop().create_future()
            turn._waiters.append(granted)
        await granted

    def pause(self, turn: Turn) -> None:
        """Lets others go on; `hold` takes the turn up again."""
        with self._lock:
            if turn._state is _State.RUNNING:
                self._stop(turn, _State.PAUSED)
        self._changed()

    def _leave(self, turn: Turn) -> None:
        with self._lock:
            self._stop(turn, _State.OVER)
            if turn.parent is not None:
                with self._counting(turn.parent):
                    turn.parent._inside -= 1
        self._changed()

    def _stop(self, turn: Turn, state: _State) -> None:
        scope = self._scope_of(turn)
        with self._counting(turn):
            turn._state = state
        scope._running.discard(turn)
        self._grant(scope)

    def _grant(self, scope: Turn) -> None:
        """Gives the turn to those whose time has come, in order."""
        while scope._queue:
            turn = scope._queue[0]
            if turn._state is _State.QUEUED:
                if self.serial and scope._running:
                    return
                if _tell(turn._waiters):
                    with self._counting(turn):
                        turn._state = _State.RUNNING
                    scope._running.add(turn)
                else:
                    turn._state = _State.OVER
            scope._queue.popleft()

    def _around(self) -> Turn:
        turn = current_turn.get()
        while turn is not None and turn._state is _State.OVER:  # a task that a body left behind
            turn = turn.parent
        return turn or self._root

    def _scope_of(self, turn: Turn) -> Turn:
        return turn._scope or self._root

    @contextlib.contextmanager
    def _counting(self, turn: Turn) -> Iterator[None]:
        """Keeps the number of leaves right while the block changes this call."""
        before = turn.is_leaf
        try:
            yield
        finally:
            self._leaves += turn.is_leaf - before


def _tell(waiters: "list[asyncio.Future[None]]") -> bool:
    """Wakes who waits, if anybody does; false if all their loops have closed."""
    reached = not waiters
    for granted in waiters:
        with contextlib.suppress(RuntimeError):
            granted.get_loop().call_soon_threadsafe(_fulfil, granted)
            reached = True
    waiters.clear()
    return reached


def _fulfil(granted: "asyncio.Future[None]") -> None:
    if not granted.done():
        granted.set_result(None)
