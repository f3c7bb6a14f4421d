# SPDX-License-Identifier: Apache-2.0
"""The protocol apart from transport: requests, signatures, answers, errors; all pure.

`_requests` builds one Request per endpoint from what is here. Nothing in either opens a
connection, reads a clock or waits.
"""

import functools
import hashlib
import hmac
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import BaseModel, Field, TypeAdapter

from . import errors

JSON_TYPE = "application/json"
EVENT_STREAM = "text/event-stream"

_T = TypeVar("_T")

# One for each type: to make it takes longer than to read a decision with it.
_adapter: Callable[[Any], TypeAdapter[Any]] = functools.cache(TypeAdapter)

_CLASSES: dict[str, type[errors.APIError]] = {
    "validation_error": errors.ValidationError,
    "unauthorized": errors.UnauthorizedError,
    "forbidden": errors.ForbiddenError,
    "not_found": errors.NotFoundError,
    "conflict": errors.ConflictError,
    "lease_superseded": errors.LeaseSuperseded,
}


@dataclass(frozen=True)
class Request:
    """A request before it is signed. `path` is escaped and holds the query.

    `repeatable`: sending it twice has the effect of sending it once.
    """

    method: str
    path: str
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    repeatable: bool = False


@dataclass(frozen=True)
class Lease:
    """The delivery attempt in whose name an agent speaks."""

    dispatch_id: str
    attempt: int

    def headers(self) -> dict[str, str]:
        """The two headers that every call under the lease carries, and signs."""
        return {
            "Rebuno-Dispatch-Id": self.dispatch_id,
            "Rebuno-Dispatch-Attempt": str(self.attempt),
        }


class Delivery(BaseModel):
    """The body of a webhook: run this execution, under this attempt."""

    execution_id: str
    dispatch_id: str
    dispatch_attempt: int
    lease_timeout_seconds: float = Field(gt=0)

    @property
    def lease(self) -> Lease:
        """The attempt as the agent's calls name it."""
        return Lease(self.dispatch_id, self.dispatch_attempt)


def sign_request(
    secret: str,
    method: str,
    target: str,
    *,
    timestamp: str,
    dispatch_id: str = "",
    attempt: str = "",
    body: bytes = b"",
) -> str:
    """Returns the Rebuno-Signature of an agent's request; `target` is escaped, with its query."""
    fields = ("rebuno-request-v1", method, target, timestamp, dispatch_id, attempt)
    message = "".join(f"{field}\n" for field in fields).encode() + body
    return "v1=" + hmac.new(secret.encode(), message, hashlib.sha256).hexdigest()


def agent_headers(
    request: Request, target: str, *, agent_id: str, secret: str, timestamp: str
) -> dict[str, str]:
    """Returns the headers that prove a request to be this agent's."""
    return {
        "Content-Type": JSON_TYPE,
        "Rebuno-Agent-Id": agent_id,
        "Rebuno-Timestamp": timestamp,
        "Rebuno-Signature": sign_request(
            secret,
            request.method,
            target,
            timestamp=timestamp,
            dispatch_id=request.headers.get("Rebuno-Dispatch-Id", ""),
            attempt=request.headers.get("Rebuno-Dispatch-Attempt", ""),
            body=request.body,
        ),
    }


def webhook_signature(secret: str, body: bytes) -> str:
    """Returns the Rebuno-Signature that the kernel puts on a webhook with this body."""
    return "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


def is_webhook_signed(secret: str, body: bytes, signature: str) -> bool:
    """Tells whether a webhook came from the kernel; takes the same time whatever differs."""
    return hmac.compare_digest(webhook_signature(secret, body).encode(), signature.encode())


def error_from(status: int, body: bytes) -> errors.RebunoError:
    """Returns the error that an answer stands for; its class goes by `code`, not by status."""
    text = body.decode(errors="replace")
    try:
        envelope = json.loads(text)
    except ValueError:
        envelope = {}
    if not isinstance(envelope, dict):
        envelope = {}
    code = str(envelope.get("code") or "internal_error")
    message = str(envelope.get("message") or text)
    if code == "execution_terminal":
        return errors.Terminated(message)
    if code == "policy_denied":
        return errors.PolicyError(message, str(envelope.get("rule_id") or ""))
    error = _CLASSES.get(code, errors.APIError)(message, code, status)
    if isinstance(details := envelope.get("details"), dict):
        error.details = details
    return error


def is_unavailable(error: errors.RebunoError) -> bool:
    """Tells whether the kernel said that it cannot serve just now (503)."""
    return isinstance(error, errors.APIError) and error.status_code == 503


def read(kind: type[_T], body: bytes) -> _T:
    """Returns an answer's body as `kind`, a model or a list of them; null counts as empty."""
    try:
        value = json.loads(body or b"null")
        if value is None:
            value = [] if getattr(kind, "__origin__", None) is list else {}
        answer: _T = _adapter(kind).validate_python(value)
        return answer
    except (ValueError, RecursionError) as exc:
        raise errors.RebunoError(
            f"the kernel's answer is not what the protocol says; is the URL a kernel's? {exc}"
        ) from exc


def read_field(body: bytes, name: str) -> Any:
    """Returns one field of an answer, None if it is missing."""
    return read(dict[str, Any], body).get(name)


class EventStream:
    """Reads server-sent events: feed it lines, it gives the data of each event.

    Comments, which keep the connection alive, and all other fields are skipped.
    """

    def __init__(self) -> None:
        self._data: list[str] = []

    def feed(self, line: str) -> Iterator[str]:
        """Takes a line without its end; yields an event's data when the line completed one."""
        name, _, value = line.partition(":")
        if name == "data":
            self._data.append(value.removeprefix(" "))
        elif not line and self._data:
            yield "\n".join(self._data)
            self._data = []
