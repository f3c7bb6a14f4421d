"""Waiting for a condition with a deadline; the only place in the tests that sleeps."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

POLL_S = 0.02


class Deadline:
    """A moment on the monotonic clock. `while not deadline.passed: ...` bounds a loop."""

    def __init__(self, seconds: float) -> None:
        self.started = time.monotonic()
        self.at = self.started + seconds

    @property
    def passed(self) -> bool:
        return time.monotonic() >= self.at

    @property
    def left(self) -> float:
        return max(0.0, self.at - time.monotonic())

    def pause(self, seconds: float = POLL_S) -> None:
        """A short pause inside a polling loop, never past the deadline."""
        time.sleep(min(seconds, self.left))


def let_pass(seconds: float) -> None:
    """For tests whose subject is that time passes, such as a lease that runs out unused."""
    deadline = Deadline(seconds)
    while not deadline.passed:
        deadline.pause()


def eventually(
    condition: Callable[[], T], timeout: float = 10.0, *, what: str = "", interval: float = POLL_S
) -> T:
    """Polls until `condition` returns something true, and returns that.

    A condition that raises AssertionError counts as not met yet; at the deadline its error is the
    reason that is shown.
    """
    deadline = Deadline(timeout)
    last: AssertionError | None = None
    while True:
        try:
            value = condition()
            last = None
            if value:
                return value
        except AssertionError as error:
            last = error
        if deadline.passed:
            text = what or getattr(condition, "__name__", "the condition")
            raise AssertionError(f"not within {timeout} s: {text}") from last
        deadline.pause(interval)
