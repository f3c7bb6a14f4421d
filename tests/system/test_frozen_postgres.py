"""A PostgreSQL server that hangs: its connections stay open, and it answers nothing."""

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException

import pytest

from harness import Attempt, Cluster, FakeAgent, Kernel, eventually

NewKernel = Callable[..., Kernel]
NewAgent = Callable[..., FakeAgent]
WRITERS = 4


@pytest.fixture
def own_cluster() -> Iterator[Cluster]:
    """A cluster that a test may freeze."""
    cluster = Cluster()
    yield cluster
    cluster.close()


def begun(kernel: Kernel, agent: FakeAgent) -> Attempt:
    run = agent.take_attempt(kernel.client().create(agent.id)["id"])
    eventually(lambda: "dispatch.acked" in kernel.client().event_types(run.id))
    return run


def test_a_stop_does_not_wait_for_it(
    own_cluster: Cluster, launch: NewKernel, new_agent: NewAgent
) -> None:
    """Its threads are at statements that end when the server does. What was answered is there
    afterwards, and what was not may be asked for again."""
    kernel = launch(database_url=own_cluster.new_url())
    agent = new_agent(kernel, lease_timeout_seconds=600)
    runs = [begun(kernel, agent) for _ in range(WRITERS)]
    before = [run.record("x", 1, "before") for run in runs]
    with own_cluster.frozen(), ThreadPoolExecutor(WRITERS) as pool:
        calls = [pool.submit(run.submit, "x", 2) for run in runs]
        eventually(lambda: all(call.running() for call in calls))
        kernel.client().get("/v0/health").expect(200)
        kernel.stop()
        for call in calls:
            with contextlib.suppress(OSError, HTTPException):
                call.result().expect(503)
    kernel.start()
    for run, step_id in zip(runs, before, strict=True):
        assert kernel.client().step(run.id, step_id)["result"] == "before"
        assert run.submit("x", 2).expect(200).json["decision"] == "proceed"
