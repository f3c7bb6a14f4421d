# SPDX-License-Identifier: Apache-2.0
"""Finds the kernel's word in an exception that a framework or a model's SDK made of it.

Two forms of it are known: one of the five errors, somewhere in the chain of causes, and the
marker `rebuno_refusal: <decision>[ reason=<why>]` in the text of an exception, which is what is
left of a refused model call once the model's own SDK has seen it.
"""

import copy
import re
from collections.abc import Iterator
from typing import NoReturn

from .errors import Blocked, LeaseSuperseded, PolicyError, RateLimited, Terminated, ToolError

Refusal = Blocked | Terminated | LeaseSuperseded | PolicyError | RateLimited

_REFUSALS = (Blocked, Terminated, LeaseSuperseded, PolicyError, RateLimited)
_DEPTH = 10  # how far down the chain of causes a refusal is looked for
_MARKER = re.compile(r"rebuno_refusal: (\w+)(?: reason=(.*))?")
_CLOSING = " \t\r\\'\"}"  # what ends the text when it is a dict's repr, or JSON, or JSON in it


def raise_for_refusal(exc: BaseException) -> None:
    """Raises what the kernel said, if `exc` is or was made of that; else does nothing.

    Model SDKs and frameworks wrap errors in their own. This looks through `exc` and its causes
    (ten at most) for Blocked, Terminated, LeaseSuperseded, PolicyError and RateLimited, and for
    their mark in the text of a model SDK's error, and raises the one it finds from `exc`. It is
    applied to whatever a handler or a step's body raises; call it yourself where you catch
    exceptions broadly.
    """
    refusal = find_refusal(exc)
    if refusal is not None:
        raise_as(refusal, exc)


def raise_as(refusal: Refusal, exc: BaseException) -> NoReturn:
    """Raises the refusal that was found in `exc`."""
    if refusal is exc:
        raise exc
    raise copy.copy(refusal) from exc


def find_refusal(exc: BaseException) -> Refusal | None:
    """Returns the refusal that `exc` is, or was made of; None if it has nothing of one.

    A ToolError is an outcome of its own: the errors that it was raised beside do not count.
    """
    return _find(exc, is_outcome=False)


def _find(exc: BaseException, is_outcome: bool) -> Refusal | None:
    for link in _chain(exc):
        is_outcome = is_outcome or isinstance(link, ToolError)
        if isinstance(link, _REFUSALS) and not is_outcome:
            return link
        if (marked := _read_marker(link)) is not None:
            return marked
        if isinstance(link, BaseExceptionGroup):
            for member in link.exceptions:
                if (found := _find(member, is_outcome)) is not None:
                    return found
    return None


def _read_marker(exc: BaseException) -> Refusal | None:
    try:
        marker = _MARKER.search(str(exc))
    except Exception:  # an exception that cannot even say what it is
        return None
    if marker is None:
        return None
    reason = (marker[2] or "").rstrip(_CLOSING)
    match marker[1]:
        case "blocked":
            return Blocked()
        case "execution_terminal":
            return Terminated("the execution has already ended")
        case "lease_superseded":
            return LeaseSuperseded()
        case "denied":
            return PolicyError(reason or "policy_denied")
        case "rate_limited":
            return RateLimited(reason or "rate_limit_exceeded")
    return None


def _chain(exc: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = exc
    for _ in range(_DEPTH):
        if link is None:
            return
        yield link
        link = link.__cause__ or link.__context__
