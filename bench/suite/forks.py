"""Forks of a long run, and what others feel of them.

The others work at a modest rate all the while. Beside each fork stands a time that is as long, just
before it and without a fork: what is slow in both is the machine's.
"""

import http.client
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from suite.world import TOKEN, BenchError, Figures, Server, loadgen, loadgen_beside

SETTLE_S = 0.5  # after a fork


class Kernel:
    """The few requests that the load generator does not make."""

    def __init__(self, server: Server) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        self.connection.request(method, path, json.dumps(body) if body else None, headers)
        answer = self.connection.getresponse()
        text = answer.read()
        if answer.status not in (200, 201):
            raise BenchError(f"{method} {path}: {answer.status} {text[:200]!r}")
        return json.loads(text)


@dataclass(frozen=True)
class Window:
    """A time on the monotonic clock, in seconds."""

    begin: float
    end: float

    @property
    def ms(self) -> float:
        return 1000 * (self.end - self.begin)

    def slowest_ms(self, records: Figures) -> float:
        """Of the records that were under way at some moment of it."""
        begin, end = 1e6 * self.begin, 1e6 * self.end
        each = zip(records["began_us"], records["took_us"], strict=True)
        slowest = max((took for at, took in each if at < end and at + took > begin), default=None)
        if slowest is None:
            raise BenchError("nobody was at work beside a fork")
        return float(slowest) / 1000


def _forks(
    kernel: Kernel, source: str, at_seq: int, until: float
) -> Iterator[tuple[Window, Window]]:
    """The time before each fork, and that of the fork."""
    took = 1.0
    while time.monotonic() + SETTLE_S + 2 * took < until:
        time.sleep(SETTLE_S)
        settled = time.monotonic()
        time.sleep(took)
        began = time.monotonic()
        kernel.ask("POST", f"/v0/executions/{source}/fork", {"at_seq": at_seq})
        ended = time.monotonic()
        took = ended - began
        yield Window(max(settled, began - took), began), Window(began, ended)


def measure(server: Server, *, steps: int, seconds: float, others: dict[str, Any]) -> Figures:
    """A run of so many steps; then forks of it for so long, while others work."""
    loadgen(server, "long", steps=steps, connections=1, agent="long")
    kernel = Kernel(server)
    source = kernel.ask("GET", "/v0/executions?agent_id=long&limit=1")["executions"][0]["id"]
    last = kernel.ask("GET", f"/v0/executions/{source}/fork-points")["latest_seq"]
    options = {"agent": "others", "seconds": seconds, "each": True, **others}
    with loadgen_beside(server, "record", **options) as beside:
        time.sleep(others["warmup"])
        forks = list(_forks(kernel, source, last, time.monotonic() + seconds))
    if not forks:
        raise BenchError(f"{seconds} s were not enough for a fork")
    return {
        "steps": steps,
        "fork_ms": [fork.ms for _, fork in forks],
        "beside_ms": [fork.slowest_ms(beside.figures) for _, fork in forks],
        "quiet_ms": [quiet.slowest_ms(beside.figures) for quiet, _ in forks],
    }
