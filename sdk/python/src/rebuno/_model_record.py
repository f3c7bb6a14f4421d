# SPDX-License-Identifier: Apache-2.0
"""What becomes of a model call in the record.

Its result is `{"status", "headers": {"content-type"}, "body"}`. A body that is no UTF-8 (audio,
say) is kept as base64, with `"encoding": "base64"` beside it.

Its error is `{"message"}`, with the `"type"` of an HTTP library's error, and with the three fields
of a result if an answer had begun. A model's SDK goes by these when it decides whether to call
again, and must decide the same on a replay.
"""

import asyncio
import base64
import codecs
import logging
from collections.abc import Callable
from dataclasses import replace

import httpx2

from . import _requests
from ._attempt import Attempt
from ._json import encode
from ._model_answers import TOO_LARGE, too_large_body
from ._protocol import JSON_TYPE
from ._requests import Outcome
from ._steps import PAYLOAD_TOO_LARGE, too_large
from .errors import APIError, LeaseSuperseded, NetworkError, RebunoError

logger = logging.getLogger("rebuno")

_LONGEST = 256 * 2**20
_BLOCK = 2**18
_RESULT = b'{"result":{'


class Transcript:
    """An answer as its bytes come in, kept as the JSON text that its step will be completed with.

    Kept in this form only, so that a long answer is in memory once, and a second time while it is
    sent. Bytes that are no UTF-8 stand as U+FFFD, or with `strict` are a UnicodeDecodeError.
    TooLarge when it grows longer than any kernel takes: a stream may never end.
    """

    def __init__(self, status: int, content_type: str, errors: str = "replace") -> None:
        self._begun = status, content_type
        head = encode({"status": status, "headers": {"content-type": content_type}})
        self._json = bytearray(_RESULT + f'{head[1:-1]},"body":"'.encode())
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors)

    def add(self, chunk: bytes, *, is_last: bool = False) -> str:
        """Takes the next bytes; returns what they add to the text, whole characters only."""
        text = self._decoder.decode(chunk, final=is_last)
        self._json += encode(text)[1:-1].encode()
        check_length(len(self._json))
        return text

    def close(self) -> bytes:
        """Returns the request body that records the answer; the transcript is used up."""
        self._json += b'"}}'
        body = bytes(self._json)
        self._json = bytearray()
        return body

    def break_off(self, error: dict[str, str]) -> bytes:
        """Returns the request body that fails the step, with what has come; as `close`."""
        start = b'{"error":{' + encode(error)[1:-1].encode() + b","
        self._json[: len(_RESULT)] = start
        return self.close()

    def without_body(self) -> "Transcript":
        """Returns one of the same answer, of which nothing has come yet."""
        return Transcript(*self._begun)


class TooLarge(APIError):
    """An answer that is not kept for its size."""

    def __init__(self, message: str) -> None:
        super().__init__(message, PAYLOAD_TOO_LARGE, 413)


def check_length(length: int) -> None:
    """TooLarge if an answer is longer than is ever kept."""
    if length > _LONGEST:
        raise TooLarge(f"the model's answer is longer than {_LONGEST} bytes: it is given up")


async def plain_record(status: int, content_type: str, content: bytes) -> bytes:
    """Returns the request body that records an answer which came whole.

    Others have their turn in between: a heartbeat is not held up by a body of megabytes.
    """
    transcript = Transcript(status, content_type, "strict")
    try:
        for start in range(0, len(content), _BLOCK):
            if start:
                await asyncio.sleep(0)
            transcript.add(content[start : start + _BLOCK])
        transcript.add(b"", is_last=True)
        return transcript.close()
    except UnicodeDecodeError:
        packed = Transcript(status, content_type)
        packed.add(base64.b64encode(content))
        return packed.close()[:-2] + b',"encoding":"base64"}}'


def refused_record(message: str) -> Transcript:
    """What is recorded of an answer that is too large: the one that its caller got instead."""
    transcript = Transcript(TOO_LARGE, JSON_TYPE)
    transcript.add(too_large_body(message), is_last=True)
    return transcript


def error_of(exc: Exception) -> dict[str, str]:
    """What is recorded of an error."""
    error = {"message": str(exc) or type(exc).__name__}
    if isinstance(exc, httpx2.RequestError):
        kinds = (kind.__name__ for kind in type(exc).__mro__)
        error["type"] = next(name for name in kinds if hasattr(httpx2, name))
    return error


CANCELLED = {"message": "cancelled"}


class Record:
    """The outcome of a model call that was told to proceed. It gets one, or stays executing."""

    def __init__(self, attempt: Attempt, step_id: str, way: object) -> None:
        self.step_id = step_id
        self._attempt = attempt
        self._settled = False
        attempt.begin_model_call(step_id, way=way)

    async def complete(self, body: bytes, if_refused: Callable[[str], Transcript]) -> None:
        """Records an answer; `body` is a Transcript's.

        TooLarge if the kernel refuses it for its size: the step has failed, with what `if_refused`
        makes of the message.
        """
        try:
            await self._report(Outcome(result=""), body)
        except LeaseSuperseded:
            self._log("the answer was dropped: the lease was superseded")
            raise
        except APIError as exc:
            if exc.code != PAYLOAD_TOO_LARGE:
                self._attempt.lost = exc
                raise
            message = too_large("answer", len(body), exc)
            await self.fail({"message": message}, if_refused(message))
            raise TooLarge(message) from exc
        except NetworkError as exc:
            self._attempt.lost = exc
            raise

    async def fail(self, error: dict[str, str], begun: Transcript | None = None) -> None:
        """Records that the call failed, and what had come of its answer.

        An error in that is logged, but for a lost lease.
        """
        bodies = [f'{{"error":{encode(error)}}}'.encode()]
        if begun is not None:
            bodies.insert(0, begun.break_off(error))
        try:
            await self._fail(bodies)
        except LeaseSuperseded:
            raise
        except RebunoError as exc:
            self._attempt.lost = exc
            self._log(f"the failure was not reported: {exc}")

    async def _fail(self, bodies: list[bytes]) -> None:
        """Reports the first of these that is not too large."""
        for body in bodies:
            try:
                await self._report(Outcome(error=""), body)
                return
            except APIError as exc:
                if exc.code != PAYLOAD_TOO_LARGE or body is bodies[-1]:
                    raise

    async def _report(self, outcome: Outcome, body: bytes) -> None:
        attempt = self._attempt
        request = _requests.settle_step(attempt.execution_id, attempt.lease, self.step_id, outcome)
        await attempt.send(replace(request, body=body))
        self._settled = True

    def close(self) -> None:
        """Nothing is done any more for the call."""
        self._attempt.left_open |= not self._settled
        self._attempt.end_model_call(self.step_id)

    def _log(self, text: str) -> None:
        logger.warning(
            "execution %s, model call %s: %s", self._attempt.execution_id, self.step_id, text
        )
