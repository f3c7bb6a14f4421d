# SPDX-License-Identifier: Apache-2.0
"""One model call on its way from submission to record, whole or as a stream.

What runs for it runs in tasks of the attempt, apart from the caller's, so that a cancelled caller
leaves the step with an outcome. Model calls are never serialised, and hold no lock.
"""

import asyncio
import functools
import re
from typing import Any

import httpx2

from ._attempt import Attempt
from ._calls import see_through
from ._model_answers import (
    REFUSALS,
    answer,
    is_event_stream,
    plain_answer,
    refusal,
    replay,
    too_large_answer,
)
from ._model_record import (
    CANCELLED,
    Record,
    TooLarge,
    Transcript,
    check_length,
    error_of,
    plain_record,
    refused_record,
)
from ._model_stream import LiveStream
from ._protocol import EVENT_STREAM, JSON_TYPE
from ._requests import StepCall
from ._steps import PAYLOAD_TOO_LARGE, submit, too_large
from .errors import APIError, Blocked
from .types import StepDecision

# Headers that say nothing of who asks. An HTTP library may show the others' values in its errors,
# and which of them is a secret only the provider knows.
_PUBLIC = frozenset(
    [
        "accept",
        "accept-encoding",
        "connection",
        "content-length",
        "content-type",
        "host",
        "transfer-encoding",
        "user-agent",
    ]
)


class ModelCall:
    """One request to a model's provider, as a step."""

    def __init__(
        self,
        attempt: Attempt,
        inner: httpx2.AsyncBaseTransport,
        request: httpx2.Request,
        step: StepCall,
    ) -> None:
        self._attempt = attempt
        self._inner = inner
        self._request = request
        self._step = step
        self._submitted = False
        self._cancelled = False
        self._provider: asyncio.Task[tuple[httpx2.Response, bytes | None]] | None = None
        self._stream: LiveStream | None = None

    async def answer(self, *, is_streamed: bool) -> httpx2.Response:
        """Returns the provider's answer, the recorded one, or one that tells of a refusal."""
        task = self._attempt.spawn(self._live(is_streamed))
        try:
            return await see_through(task, lambda: self._interrupt(task))
        except asyncio.CancelledError:
            if self._stream is not None:  # it has begun, and nobody is left to read it
                await self._stream.cut(is_cancelled=True)
            raise

    def _interrupt(self, task: asyncio.Task[Any]) -> None:
        """The caller was cancelled; see `_Step.interrupt`: the same rules."""
        if self._attempt.suspension is not None and not self._attempt.draining:
            return
        if not self._submitted:
            task.cancel()
        elif self._attempt.suspension is None:
            self._cancelled = True
            if self._provider is not None:
                self._provider.cancel()

    async def _live(self, is_streamed: bool) -> httpx2.Response:
        try:
            await self._attempt.admit(is_model_call=True)
            with self._attempt.calling(self._inner):
                self._submitted = True
                decision = await self._submit()
                if decision.decision == "replay":
                    return replay(decision, self._step.target)
                return await self._perform(decision.step_id, is_streamed)
        except TooLarge as exc:
            return too_large_answer(exc.message)
        except REFUSALS as exc:
            if isinstance(exc, Blocked):
                await self._attempt.until_neighbours_end()
            return refusal(exc)

    async def _submit(self) -> StepDecision:
        try:
            return await submit(self._attempt, self._step)
        except APIError as exc:
            if exc.code != PAYLOAD_TOO_LARGE:
                raise
            raise TooLarge(too_large("request", len(self._step.args.encode()), exc)) from exc

    async def _perform(self, step_id: str, is_streamed: bool) -> httpx2.Response:
        record = Record(self._attempt, step_id, self._inner)
        try:
            response, content = await self._ask(record, is_streamed)
            if content is None:
                status, content_type = response.status_code, _content_type(response, is_streamed)
                transcript = Transcript(status, content_type)
                self._stream = LiveStream(self._attempt, record, response, transcript)
                return answer(status, content_type, self._stream)
            content_type = _content_type(response, False)
            body = await plain_record(response.status_code, content_type, content)
            await record.complete(body, refused_record)
            return plain_answer(response.status_code, content_type, content)
        finally:
            if self._stream is None:
                record.close()

    async def _ask(self, record: Record, is_streamed: bool) -> tuple[httpx2.Response, bytes | None]:
        """Asks the provider. A call that it does not answer fails, and its error is raised."""
        try:
            if self._cancelled:  # while the submission was on its way
                raise asyncio.CancelledError
            self._provider = asyncio.create_task(self._send(is_streamed))
            return await self._provider
        except asyncio.CancelledError:
            if self._cancelled and not self._attempt.abandoned:  # else the step stays executing
                await record.fail(CANCELLED)
            raise
        except REFUSALS:  # of a gateway that is the inner transport
            raise
        except TooLarge as exc:
            await record.fail({"message": exc.message}, refused_record(exc.message))
            raise
        except Exception as exc:
            shown = _without_secrets(exc, self._request)
            await record.fail(error_of(shown))
            if shown is exc:
                raise
            raise shown from None
        finally:
            self._provider = None

    async def _send(self, is_streamed: bool) -> tuple[httpx2.Response, bytes | None]:
        """The provider's answer; without its content if that is to be streamed."""
        response = await self._inner.handle_async_request(self._request)
        encoding = response.headers.get("content-encoding")
        if encoding is not None and (unknown := _not_undone(encoding)):
            await response.aclose()
            raise httpx2.DecodingError(
                f"the provider's answer has the content-encoding {unknown!r}, which httpx2 cannot "
                "undo here: install what it needs (httpx2[brotli], httpx2[zstd]), or send another "
                "Accept-Encoding",
                request=self._request,
            )
        if response.status_code < 400 and (
            is_streamed or is_event_stream(_content_type(response, False))
        ):
            return response, None
        try:
            parts, length = [], 0
            async for part in response.aiter_bytes():
                parts.append(part)
                length += len(part)
                check_length(length)
            return response, b"".join(parts)
        finally:
            await response.aclose()


@functools.cache
def _undone() -> frozenset[str]:
    """The content-encodings that a client asks for here; some need a package."""
    with httpx2.Client(transport=httpx2.BaseTransport(), trust_env=False) as client:
        accepted = client.headers["accept-encoding"]
    return frozenset(name.strip() for name in accepted.split(",")) | {"identity", ""}


def _not_undone(encodings: str) -> str:
    """Returns the first encoding that httpx2 would leave as it is, without a word."""
    names = (name.strip().lower() for name in encodings.split(","))
    return next((name for name in names if name not in _undone()), "")


def _content_type(response: httpx2.Response, is_streamed: bool) -> str:
    return response.headers.get("content-type") or (EVENT_STREAM if is_streamed else JSON_TYPE)


def _without_secrets(exc: Exception, request: httpx2.Request) -> Exception:
    """Returns the error, or one like it whose text does not show what the request proves."""
    held = {
        form
        for name, value in request.headers.raw
        if name.decode("latin-1").lower() not in _PUBLIC
        for word in value.split()
        if len(word) > 6  # the others are words such as Bearer
        for form in _forms(word)
    }
    if not held:
        return exc
    longest_first = sorted(held, key=len, reverse=True)
    text = str(exc)
    shown = re.sub("|".join(map(re.escape, longest_first)), "[a header's value]", text)
    return exc if shown == text else _like(exc, shown)


def _forms(word: bytes) -> set[str]:
    """How a text may show it: as it is, or as Python quotes it, among whatever else."""
    quoted = repr(word)[2:-1]
    return {word.decode("latin-1"), quoted, quoted.replace("'", r"\'")}


def _like(exc: Exception, text: str) -> Exception:
    """Returns one of its class with this text, a RuntimeError if the class makes its own."""
    kind = type(exc)
    try:
        again = kind.__new__(kind)
    except TypeError:  # a class that wants more
        return RuntimeError(text)
    again.__dict__.update(exc.__dict__)
    again.args = (text,)
    return again if str(again) == text else RuntimeError(text)
