# SPDX-License-Identifier: Apache-2.0
"""Finds the kernel's word in an exception that a framework made of it."""

from collections.abc import Iterator

from .errors import Blocked, LeaseSuperseded, PolicyError, RateLimited, Terminated, ToolError

Refusal = Blocked | Terminated | LeaseSuperseded | PolicyError | RateLimited

_REFUSALS = (Blocked, Terminated, LeaseSuperseded, PolicyError, RateLimited)
_DEPTH = 10  # how far down the chain of causes a refusal is looked for


def find_refusal(exc: BaseException) -> Refusal | None:
    """Returns the refusal that `exc` is, or was raised from; None if it has nothing of one.

    A ToolError is an outcome of its own: what it was raised beside does not count.
    """
    for link in _chain(exc):
        if isinstance(link, ToolError):
            return None
        if isinstance(link, _REFUSALS):
            return link
        if isinstance(link, BaseExceptionGroup):
            found = (find_refusal(member) for member in link.exceptions)
            return next((refusal for refusal in found if refusal is not None), None)
    return None


def _chain(exc: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = exc
    for _ in range(_DEPTH):
        if link is None:
            return
        yield link
        link = link.__cause__ or link.__context__
