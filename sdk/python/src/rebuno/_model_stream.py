# SPDX-License-Identifier: Apache-2.0
"""What a model is writing, on its way to the caller and to those who watch live."""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator

import httpx2

from . import _requests
from ._attempt import Attempt
from ._calls import see_through
from ._model_record import CANCELLED, Record, TooLarge, Transcript, error_of
from .errors import RebunoError, Terminated

logger = logging.getLogger("rebuno")

_FLUSH_CHARS = 2000
_FLUSH_S = 0.05
_STALLED_S = 0.075  # a model that pauses is seen as far as it has come
_SLICE_CHARS = 1750  # at most 7000 bytes of UTF-8, which is all the kernel takes
_BACKLOG = 512  # slices that wait for a slow kernel before the reader waits, too
_IDLE_S = 1.0  # a reader that asks for nothing more for so long may have left the stream
_PATIENCE_S = 2.0  # what the reader waits for it in all, and once more at the end


class LiveText:
    """Publishes the text of one answer piece by piece, beside those who read it.

    Nothing of it is kept, so what fails is only logged, once, and a kernel that does not answer
    holds the answer up for a moment, not for good.
    """

    def __init__(self, attempt: Attempt, step_id: str) -> None:
        self._attempt = attempt
        self._step_id = step_id
        self._pending: list[str] = []
        self._chars = 0
        self._flushed_s = attempt.environment.monotonic()
        self._stalled: asyncio.TimerHandle | None = None
        self._slices: deque[str] = deque()
        self._seq = 0
        self._sender: asyncio.Task[None] | None = None
        self._sent = asyncio.Event()
        self._has_failed = False
        self._patience_s = _PATIENCE_S

    async def add(self, text: str) -> None:
        """Takes what was written; publishes when it is enough, or was a while ago."""
        if not text:
            return
        self._pending.append(text)
        self._chars += len(text)
        since_s = self._attempt.environment.monotonic() - self._flushed_s
        if self._chars >= _FLUSH_CHARS or since_s >= _FLUSH_S:
            self._flush()
            if len(self._slices) > _BACKLOG:
                self._patience_s = await self._until_sent(_BACKLOG, self._patience_s)
        elif self._stalled is None:
            self._stalled = asyncio.get_running_loop().call_later(_STALLED_S, self._flush)

    async def finish(self) -> None:
        """Publishes the rest. The step must not end before: the kernel then takes no more."""
        self._flush()
        await self._until_sent(0, _PATIENCE_S)

    def stop(self) -> None:
        """Drops what has not been published."""
        self._take()
        self._slices.clear()
        if self._sender is not None:
            self._sender.cancel()
            self._sender = None

    def _flush(self) -> None:
        self._flushed_s = self._attempt.environment.monotonic()
        text = self._take()
        self._slices.extend(
            text[start : start + _SLICE_CHARS] for start in range(0, len(text), _SLICE_CHARS)
        )
        if self._slices and self._sender is None:
            self._sender = self._attempt.spawn(self._send())

    def _take(self) -> str:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
        text = "".join(self._pending)
        self._pending.clear()
        self._chars = 0
        return text

    async def _send(self) -> None:
        try:
            while self._slices:
                await self._publish(self._slices.popleft())
                self._sent.set()
        finally:
            self._sender = None
            self._sent.set()

    async def _publish(self, data: str) -> None:
        seq, self._seq = self._seq, self._seq + 1
        attempt = self._attempt
        request = _requests.stream_delta(
            attempt.execution_id, attempt.lease, self._step_id, seq, data
        )
        try:
            await attempt.send(request)
        except RebunoError as exc:
            level = logging.DEBUG if self._has_failed else logging.WARNING
            self._has_failed = True
            logger.log(
                level,
                "execution %s: step %s is not seen live: %s",
                attempt.execution_id,
                self._step_id,
                exc,
            )

    async def _until_sent(self, backlog: int, patience_s: float) -> float:
        """Waits until no more than so many slices wait. When the time is over they are dropped.

        Returns how much of the time is left.
        """

        def is_behind() -> bool:
            return len(self._slices) > backlog or (not backlog and self._sender is not None)

        now_s = asyncio.get_running_loop().time
        until_s = now_s() + patience_s
        try:
            async with asyncio.timeout_at(until_s):
                while is_behind():
                    self._sent.clear()
                    await self._sent.wait()
        except TimeoutError:
            self.stop()
        return max(0.0, until_s - now_s())


class _Activity:
    """Marks an attempt as busy while a stream is read; also a moment longer than it is.

    A suspended execution's dispatch waits for what is busy, so a reader that has gone must not
    count for ever. And to mark each chunk by itself would cost more than to read it.
    """

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self.idle = asyncio.Event()
        self._busy: contextlib.ExitStack | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_reading = False

    def begin(self) -> None:
        """A read has begun."""
        self._is_reading = True
        self.idle.clear()
        if self._busy is None:
            self._busy = contextlib.ExitStack()
            self._busy.enter_context(self._attempt.busy())

    def pause(self) -> None:
        """It has ended; another may follow."""
        self._is_reading = False
        if self._timer is None and self._busy is not None:
            self._timer = asyncio.get_running_loop().call_later(_IDLE_S, self._look)

    def end(self) -> None:
        """Nothing is read any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.idle.set()
        if self._busy is not None:
            self._busy.close()
            self._busy = None

    def _look(self) -> None:
        self._timer = None
        if not self._is_reading:
            self.end()


class LiveStream(httpx2.AsyncByteStream):
    """A streamed answer: to the caller as it comes, to those who watch, and at last recorded.

    It is read when the caller asks for more, in a task apart from the caller's. The record comes
    before the caller sees the end. Iterating again goes on where it stopped.
    """

    def __init__(
        self, attempt: Attempt, record: Record, response: httpx2.Response, transcript: Transcript
    ) -> None:
        self._attempt = attempt
        self._record = record
        self._response = response
        self._chunks = response.aiter_bytes()  # with the content-encoding undone
        self._transcript = transcript
        self._live = LiveText(attempt, record.step_id)
        self._activity = _Activity(attempt)
        self._activity.begin()  # from the start: what waits for the call waits for its reader, too
        self._activity.pause()
        self._reading: asyncio.Task[bytes | None] | None = None
        self._has_begun = False
        self._cancelled = False  # the reading was; it cannot go on
        self._closing = False
        self._cutting: asyncio.Task[None] | None = None
        self._torn = False  # a read was cancelled: nothing more can be read
        self._is_short = False  # it was ended for its reader before the reader has seen its end
        self._ending = False  # all is read, or cut off: the outcome is being reported
        self._over = False
        attempt.begin_stream(record.step_id, self)

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if self._over or self._closing:
            await self._until_cut()
            if self._is_short:
                raise self._attempt.stop()
            raise StopAsyncIteration
        task = self._reading = self._attempt.spawn(self._next())
        try:
            chunk = await see_through(task, lambda: self._interrupt(task))
        except asyncio.CancelledError:
            await self.cut(is_cancelled=True)
            raise
        if chunk is None:
            raise StopAsyncIteration
        return chunk

    async def aclose(self) -> None:
        """Ends it; what the caller has read is recorded."""
        task = asyncio.current_task()
        await self.cut(is_cancelled=task is not None and task.cancelling() > 0)

    async def cut(self, *, is_cancelled: bool) -> None:
        """Ends it before its end, if that has not come: what was read of it is recorded.

        One of which nothing was read fails, if it is a cancellation that ends it. And once the
        execution is suspended it is read to its end all the same: what cuts it off then is mostly
        a framework that tidies up beside the call that waits.
        """
        if not self._over and not self._closing:
            self._closing = True
            self._cutting = self._attempt.spawn(self._cut(is_cancelled))
        await self._until_cut()

    async def until_left(self) -> None:
        """Waits until it is over, or nobody reads it any more."""
        await self._activity.idle.wait()

    async def _until_cut(self) -> None:
        """Whoever closes it, or reads on, may close the connection next."""
        if self._cutting is not None and not self._cutting.done():
            await see_through(self._cutting, lambda: None)

    def _interrupt(self, task: "asyncio.Task[bytes | None]") -> None:
        if self._attempt.suspension is None and not self._ending:
            self._cancelled = True
            task.cancel()

    async def _next(self) -> bytes | None:
        self._activity.begin()
        try:
            if self._attempt.abandoned:
                raise self._attempt.stop()
            return await self._read()
        except asyncio.CancelledError:
            if self._closing and not self._cancelled:  # by another task than the one that reads
                raise httpx2.StreamClosed from None
            raise
        finally:
            self._activity.pause()

    async def _cut(self, is_cancelled: bool) -> None:
        if self._over:  # before this began
            return
        suspension = self._attempt.suspension
        self._activity.begin()
        try:
            await self._stop_reading(go_on=suspension is not None)
            if self._over:
                return
            if self._attempt.abandoned or isinstance(suspension, Terminated):
                self._is_short = True
            elif suspension is not None and not self._cancelled:
                await self._read_rest()
            elif is_cancelled and not self._has_begun:
                await self._fail(CANCELLED)
            else:
                await self._finish()
        finally:
            await self._end()

    async def _read_rest(self) -> None:
        """Reads it for the record only. Its reader is told, unless that had seen all."""
        self._is_short = True
        if self._torn:
            return  # its loop ends: the call is made again, rather than recorded in part
        with contextlib.suppress(Exception):  # reported, and nobody is there to see it
            self._is_short = await self._read() is not None
            while not self._over:
                await self._read()

    async def _stop_reading(self, *, go_on: bool) -> None:
        """Lets no other task read beside this one."""
        task = self._reading
        if task is not None and not task.done():
            if not go_on and not self._ending:
                task.cancel()
            await asyncio.wait({task})

    async def _read(self) -> bytes | None:
        """Returns the next bytes; None at the end, once it is recorded."""
        try:
            while (chunk := await anext(self._chunks, None)) == b"":
                pass
            text = self._transcript.add(chunk or b"", is_last=chunk is None)
        except asyncio.CancelledError:
            self._torn = True
            raise
        except TooLarge as exc:
            await self._fail({"message": exc.message}, self._transcript.without_body())
            raise
        except Exception as exc:
            await self._fail(error_of(exc), self._transcript)
            raise
        await self._live.add(text)
        if chunk is None:
            await self._finish()
        else:
            self._has_begun = True
        return chunk

    async def _finish(self) -> None:
        self._ending = True
        try:
            await self._live.finish()
            transcript = self._transcript
            await self._record.complete(transcript.close(), lambda _: transcript.without_body())
        finally:
            await self._end()

    async def _fail(self, error: dict[str, str], begun: Transcript | None = None) -> None:
        self._ending = True
        try:
            await self._live.finish()
            await self._record.fail(error, begun)
        finally:
            await self._end()

    async def _end(self) -> None:
        if not self._over:
            self._over = True
            self._live.stop()
            self._record.close()
            try:
                await self._chunks.aclose()
                await self._response.aclose()
            finally:
                self._activity.end()
