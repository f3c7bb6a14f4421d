# SPDX-License-Identifier: Apache-2.0
"""Rebuno: durable execution for AI agents.

An `Agent` runs a handler for each execution that the kernel delivers to it. What the handler
does through tools and steps is recorded; when the agent dies, the kernel delivers the execution
again, the handler runs from the top, and every recorded step comes back from the record.
A `Client` creates executions and follows them.
"""

from importlib import metadata as _metadata
from typing import TYPE_CHECKING as _TYPE_CHECKING

from . import types
from ._agent import Agent
from ._client import Client
from ._context import execution, previous
from ._handler import Result
from ._models import RebunoTransport, http_client
from ._refusals import raise_for_refusal
from ._resources import CheckpointPolicy, resource
from ._subagents import subagent
from ._tools import step, tool, wrap_tool
from .errors import (
    APIError,
    Blocked,
    CheckpointUnavailable,
    ConflictError,
    ForbiddenError,
    LeaseSuperseded,
    NetworkError,
    NotFoundError,
    PolicyError,
    RateLimited,
    RebunoError,
    Terminated,
    ToolError,
    UnauthorizedError,
    ValidationError,
    failure_reason,
)

__all__ = [
    "APIError",
    "Agent",
    "Blocked",
    "CheckpointPolicy",
    "CheckpointUnavailable",
    "Client",
    "ConflictError",
    "ForbiddenError",
    "LeaseSuperseded",
    "NetworkError",
    "NotFoundError",
    "PolicyError",
    "RateLimited",
    "RebunoError",
    "RebunoTransport",
    "Result",
    "Terminated",
    "ToolError",
    "UnauthorizedError",
    "ValidationError",
    "execution",
    "failure_reason",
    "http_client",
    "previous",
    "raise_for_refusal",
    "resource",
    "step",
    "subagent",
    "tool",
    "types",
    "wrap_tool",
]

__version__: str

if not _TYPE_CHECKING:

    def __getattr__(name: str) -> str:
        """Looks the version up when it is asked for."""
        if name != "__version__":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return _metadata.version("rebuno")
