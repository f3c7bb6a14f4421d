# SPDX-License-Identifier: Apache-2.0
"""Every error of this package, and the text by which an execution records one.

Each `args` holds all of a constructor's arguments, so errors survive pickle and copy.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

_TOKEN = re.compile(r"[a-z0-9_]+")


class RebunoError(Exception):
    """Base of all errors of this package; built as `RebunoError(message)`."""


class NetworkError(RebunoError):
    """The kernel could not be reached, or did not answer in time. The call may have arrived."""


class APIError(RebunoError):
    """The kernel refused a request.

    `code` is the protocol's stable word for it, `status_code` the HTTP status; `args[0]` is the
    kernel's message, and the text is `[code] message (HTTP status)`. `details` holds what else
    the kernel said, such as `status` and `decided_by` of an approval that is decided already.
    """

    details: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, message: str, code: str, status_code: int) -> None:
        super().__init__(message, code, status_code)
        self.code = code
        self.status_code = status_code

    @property
    def message(self) -> str:
        """The kernel's message, without code and status."""
        return str(self.args[0])

    def __str__(self) -> str:
        return f"[{self.code}] {self.message} (HTTP {self.status_code})"


class ValidationError(APIError):
    """The request is malformed (`validation_error`): correct it; a repeat is refused again."""


class UnauthorizedError(APIError):
    """The token or signature was not accepted (`unauthorized`): check the key or secret."""


class ForbiddenError(APIError):
    """The caller may not do this (`forbidden`): it lacks a scope, or is not an approver."""


class NotFoundError(APIError):
    """The kernel knows no such thing (`not_found`)."""


class ConflictError(APIError):
    """The request does not fit the state things are in (`conflict`): read it again."""


class LeaseSuperseded(APIError):
    """Another attempt owns the execution now: stop, without reporting anything."""

    def __init__(
        self,
        message: str = "dispatch lease superseded",
        code: str = "lease_superseded",
        status_code: int = 409,
    ) -> None:
        super().__init__(message, code, status_code)


class PolicyError(APIError):
    """Policy refused the step. The message is the policy's reason, `rule_id` the rule."""

    def __init__(self, message: str, rule_id: str = "") -> None:
        super().__init__(message, "policy_denied", 403)
        self.rule_id = rule_id
        self.args = (message, rule_id)


class ToolError(RebunoError):
    """A step failed, now or when it was recorded; the same on every replay.

    `tool_id` and `step_id` name the step. `retryable` is for the raiser's own use.
    """

    def __init__(
        self, message: str, tool_id: str = "", step_id: str = "", retryable: bool = False
    ) -> None:
        super().__init__(message, tool_id, step_id, retryable)
        self.tool_id = tool_id
        self.step_id = step_id
        self.retryable = retryable

    def __str__(self) -> str:
        message = str(self.args[0])
        return f"{self.tool_id}: {message}" if self.tool_id else message


class RateLimited(RebunoError):
    """A rate limit refused the step; `reason` is a stable token."""

    def __init__(self, reason: str = "rate_limit_exceeded") -> None:
        super().__init__(reason)
        self.reason = reason


class Blocked(RebunoError):
    """Control flow: the execution waits, for an approval say. Let it end the handler.

    The kernel delivers the execution again when the wait is over, and the recorded steps replay.
    """

    def __init__(self, message: str = "step blocked") -> None:
        super().__init__(message)


class CheckpointUnavailable(RebunoError):
    """A driver's word for a checkpoint that is expired or gone; it fails the execution."""


class Terminated(RebunoError):
    """Control flow: the execution has already ended. Let it end the handler."""


def failure_reason(exc: BaseException) -> str:
    """Returns the text with which an execution that died of `exc` is failed.

    What stands before the first colon is a stable token: `tool_error`, `policy_denied`, a
    policy's or rate limit's own reason, or `agent_error` for anything else. A group of a single
    exception, which task groups and the sessions of MCP make of it, counts as that one.
    """
    while isinstance(exc, BaseExceptionGroup) and len(exc.exceptions) == 1:
        exc = exc.exceptions[0]
    if isinstance(exc, PolicyError):
        return exc.message if _TOKEN.fullmatch(exc.message) else f"policy_denied: {exc.message}"
    if isinstance(exc, RateLimited):
        return exc.reason
    if isinstance(exc, ToolError):
        return f"tool_error: {exc}"
    text = exc.message if isinstance(exc, APIError) else str(exc)
    return f"agent_error: {type(exc).__name__}: {text}"
