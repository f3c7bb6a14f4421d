"""Forks of a long run, and what others feel of them."""

import http.client
import json
import time
from typing import Any

from suite.world import TOKEN, BenchError, Figures, Server, loadgen, loadgen_beside

SETTLE_S = 0.3  # between two forks


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


def measure(server: Server, *, steps: int, forks: int, others: dict[str, Any]) -> Figures:
    """A run of so many steps; then others at a modest rate, by themselves and beside forks of it."""
    loadgen(server, "long", steps=steps, connections=1, agent="long")
    kernel = Kernel(server)
    source = kernel.ask("GET", "/v0/executions?agent_id=long&limit=1")["executions"][0]["id"]
    last = kernel.ask("GET", f"/v0/executions/{source}/fork-points")["latest_seq"]
    seconds = forks * (SETTLE_S + 1)
    options = {"agent": "others", "seconds": seconds, **others}
    quiet = loadgen(server, "record", **options)
    took = []
    with loadgen_beside(server, "record", **options) as beside:
        time.sleep(others["warmup"] + SETTLE_S)
        for _ in range(forks):
            began = time.monotonic()
            kernel.ask("POST", f"/v0/executions/{source}/fork", {"at_seq": last})
            took.append(1000 * (time.monotonic() - began))
            time.sleep(SETTLE_S)
    return {
        "steps": steps, "fork_ms": took, "quiet": quiet["record_us"],
        "beside": beside.figures["record_us"],
    }  # fmt: skip
