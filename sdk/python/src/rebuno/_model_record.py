# SPDX-License-Identifier: Apache-2.0
"""What becomes of a model call in the record.

Its result is `{"status", "headers": {"content-type"}, "body"}`. A body that is no UTF-8 (audio,
say) is kept as base64, with `"encoding": "base64"` beside it.
"""

import base64
import codecs
import logging
from dataclasses import replace

from . import _requests
from ._attempt import Attempt
from ._json import encode
from ._requests import Outcome
from ._steps import settle, too_large
from .errors import APIError, LeaseSuperseded, RebunoError

logger = logging.getLogger("rebuno")

_LONGEST = 256 * 2**20
_BLOCK = 65_536


class Transcript:
    """An answer as its bytes come in, kept as the JSON text that its step will be completed with.

    Kept in this form only, so that a long answer is in memory once, and a second time while it is
    sent. Bytes that are no UTF-8 stand as U+FFFD, or with `strict` are a UnicodeDecodeError.
    RebunoError when it grows longer than any kernel takes: a stream may never end.
    """

    def __init__(self, status: int, content_type: str, errors: str = "replace") -> None:
        head = encode({"status": status, "headers": {"content-type": content_type}})
        self._json = bytearray(f'{{"result":{head[:-1]},"body":"'.encode())
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


def check_length(length: int) -> None:
    """RebunoError if an answer is longer than is ever kept."""
    if length > _LONGEST:
        raise RebunoError(f"the model's answer is longer than {_LONGEST} bytes: it is given up")


def plain_record(status: int, content_type: str, content: bytes) -> bytes:
    """Returns the request body that records an answer which came whole."""
    transcript = Transcript(status, content_type, "strict")
    try:
        for start in range(0, len(content), _BLOCK):
            transcript.add(content[start : start + _BLOCK])
        transcript.add(b"", is_last=True)
        return transcript.close()
    except UnicodeDecodeError:
        packed = Transcript(status, content_type)
        packed.add(base64.b64encode(content))
        return packed.close()[:-2] + b',"encoding":"base64"}}'


class Record:
    """The outcome of a model call that was told to proceed. It gets one, or stays executing."""

    def __init__(self, attempt: Attempt, step_id: str) -> None:
        self.step_id = step_id
        self._attempt = attempt
        self._settled = False
        attempt.begin_model_call(step_id)

    async def complete(self, body: bytes) -> None:
        """Records an answer; `body` is a Transcript's.

        One that the kernel refuses for its size fails the step; the refusal is raised.
        """
        attempt = self._attempt
        outcome = Outcome(result="")
        request = _requests.settle_step(attempt.execution_id, attempt.lease, self.step_id, outcome)
        try:
            await attempt.send(replace(request, body=body))
            self._settled = True
        except LeaseSuperseded:
            self._log("the answer was dropped: the lease was superseded")
            raise
        except APIError as exc:
            if exc.code != "payload_too_large":
                raise
            message = too_large("answer", len(body), exc)
            await self.fail(message)
            raise APIError(message, exc.code, exc.status_code) from exc

    async def fail(self, message: str) -> None:
        """Records that the call failed. An error in that is logged, but for a lost lease."""
        try:
            failed = Outcome(error=encode({"message": message}))
            await settle(self._attempt, self.step_id, failed)
            self._settled = True
        except LeaseSuperseded:
            raise
        except RebunoError as exc:
            self._log(f"the failure was not reported: {exc}")

    def close(self) -> None:
        """Nothing is done any more for the call."""
        self._attempt.has_open_steps |= not self._settled
        self._attempt.end_model_call(self.step_id)

    def _log(self, text: str) -> None:
        logger.warning(
            "execution %s, model call %s: %s", self._attempt.execution_id, self.step_id, text
        )
