"""A cancel against every other write, both at once: either order is fine, a mixture is not.

Guarantees 2, 3 and 6 of ARCHITECTURE.md.
"""

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from harness import Attempt, BearerClient, Delivery, FakeAgent, Kernel, Reply, eventually
from harness.client import Answer
from harness.waiting import let_pass

NewKernel = Callable[..., Kernel]
NewAgent = Callable[..., FakeAgent]
NewRun = Callable[..., Attempt]
ROUNDS = 12
ENDS = {"execution.completed", "execution.failed", "execution.cancelled"}

# What an agent writes, with an executing step at hand.
WRITES: dict[str, Callable[[Attempt, str], Answer]] = {
    "submit": lambda run, step_id: run.submit("new"),
    "submit at most once": lambda run, step_id: run.submit("new", idempotency="at_most_once"),
    "complete the step": lambda run, step_id: run.complete_step(step_id, "done"),
    "fail the step": lambda run, step_id: run.fail_step(step_id),
    "publish": lambda run, step_id: run.publish(step_id, 1, "delta"),
    "heartbeat": lambda run, step_id: run.heartbeat(),
    "release": lambda run, step_id: run.release(),
    "suspend": lambda run, step_id: run.suspend(),
    "complete": lambda run, step_id: run.complete("won"),
    "fail": lambda run, step_id: run.fail("lost"),
}


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """Their results; they begin together, the first a little earlier or later than the others."""
    begin = threading.Barrier(len(calls))
    ahead = random.uniform(-0.002, 0.002)

    def call(number: int) -> Any:
        begin.wait()
        if (number == 0) == (ahead > 0):
            let_pass(abs(ahead))
        return calls[number]()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(call, range(len(calls))))


def whole(client: BearerClient, execution_id: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The ended execution and its log, which tell the same story and end once."""
    execution, log = client.execution(execution_id), client.events(execution_id)
    types = [event["type"] for event in log]
    [end] = [kind for kind in types if kind in ENDS]
    assert end == f"execution.{execution['status']}"
    after = {"dispatch.discarded"} | ({"step.cancelled"} if end == "execution.cancelled" else set())
    assert set(types[types.index(end) + 1 :]) <= after, types
    last = {e["payload"]["step_id"]: e["type"] for e in log if e["type"].startswith("step.")}
    steps = client.steps(execution_id)
    assert {step["step_id"]: f"step.{step['status']}" for step in steps} == last
    if end == "execution.cancelled":
        assert not {step["status"] for step in steps} & {"proposed", "allowed", "executing"}
    assert "waiting_on" not in execution
    return execution, log


@pytest.mark.parametrize("name", WRITES)
def test_against_what_an_agent_writes(client: BearerClient, new_run: NewRun, name: str) -> None:
    write = WRITES[name]
    for _ in range(ROUNDS):
        run = new_run()
        step_id = run.proceed("open")
        cancelled, written = at_once(
            lambda run=run: client.post(run.path("/cancel")),
            lambda run=run, step_id=step_id: write(run, step_id),
        )
        execution, log = whole(client, run.id)
        check_answers(cancelled, written, execution, client.steps(run.id))
        again = write(run, step_id)
        assert again.status == 409 or again.json["decision"] == "execution_terminal", again
        assert whole(client, run.id)[1][: len(log)] == log


def check_answers(
    cancelled: Answer, written: Answer, execution: dict[str, Any], steps: list[dict[str, Any]]
) -> None:
    """Each got an answer that is true of the record."""
    if cancelled.status == 204:
        assert execution["status"] == "cancelled"
    else:
        cancelled.expect(409, "conflict")
        written.expect(204)
        assert execution["status"] in ("completed", "failed")
    if written.status == 409:
        assert written.code in ("execution_terminal", "lease_superseded", "conflict"), written
        return
    assert written.status in (200, 204), written
    answer = written.json if written.status == 200 else {}
    if answer.get("decision") == "proceed":
        assert answer["step_id"] in {step["step_id"] for step in steps}
    elif answer.get("decision") == "recorded":
        assert steps[0]["status"] in ("succeeded", "failed")
    elif answer.get("decision") == "execution_terminal":
        assert [step["status"] for step in steps] == ["cancelled"]


class TestAgainstDeliveries:
    def test_claim(self, kernel: Kernel, new_agent: NewAgent) -> None:
        """Delivered or not, nobody works on it."""
        agent, client = new_agent(), kernel.client()
        for _ in range(ROUNDS):
            execution_id = client.create(agent.id)["id"]
            let_pass(random.uniform(0, 0.002))
            client.cancel(execution_id)
            whole(client, execution_id)
            for delivery in [d for d in agent.deliveries if d.execution_id == execution_id]:
                late = agent.attempt(delivery)
                assert late.submit("x").json["decision"] == "execution_terminal"
        self.goes_on(agent, client)

    @pytest.mark.parametrize("status", [200, 500], ids=["ack", "failure"])
    def test_answer(self, kernel: Kernel, new_agent: NewAgent, status: int) -> None:
        agent, client = new_agent(), kernel.client()
        for _ in range(ROUNDS):
            answer = threading.Event()

            def behave(delivery: Delivery, answer: threading.Event = answer) -> Reply:
                answer.wait(10)
                return Reply(status=status)

            agent.behaviour = behave
            execution_id = client.create(agent.id)["id"]
            agent.take(execution_id)
            at_once(lambda i=execution_id: client.cancel(i), answer.set)
            whole(client, execution_id)
        agent.behaviour = lambda d: Reply()
        self.goes_on(agent, client)

    def test_reclaim(self, new_kernel: NewKernel, new_agent: NewAgent) -> None:
        kernel = new_kernel(env={"REBUNO_DISPATCH_LEASE_TIMEOUT": "400ms"})
        agent, client = new_agent(kernel), kernel.client()
        for _ in range(ROUNDS):
            execution_id = client.create(agent.id)["id"]
            agent.take(execution_id)
            let_pass(random.uniform(0.35, 0.55))
            client.cancel(execution_id)
            whole(client, execution_id)
        self.goes_on(agent, client)

    def test_deadline(self, new_kernel: NewKernel, new_agent: NewAgent) -> None:
        """Two that want to cancel: one of them does."""
        env = {"REBUNO_DEADLINE_TIMEOUT": "200ms", "REBUNO_DEADLINE_CHECK_INTERVAL": "20ms"}
        kernel = new_kernel(env=env)
        agent, client = new_agent(kernel), kernel.client()
        for _ in range(ROUNDS):
            execution_id = client.create(agent.id)["id"]
            let_pass(random.uniform(0.18, 0.24))
            answer = client.post(f"/v0/executions/{execution_id}/cancel")
            execution, _ = whole(client, execution_id)
            wanted = "client_cancelled" if answer.status == 204 else "deadline_exceeded"
            assert execution["failure_reason"] == wanted

    def test_a_crowd_past_its_deadline(self, new_kernel: NewKernel, new_agent: NewAgent) -> None:
        """More than one batch of the clock, found by the one look that a start takes."""
        kernel = new_kernel(
            env={"REBUNO_DEADLINE_TIMEOUT": "1ms", "REBUNO_DEADLINE_CHECK_INTERVAL": "1h"}
        )
        agent, client = new_agent(kernel), kernel.client()
        with ThreadPoolExecutor(8) as pool:
            ids = list(pool.map(lambda _: client.create(agent.id)["id"], range(600)))
        kernel.restart()
        client = kernel.client()
        for execution_id in ids:
            eventually(lambda i=execution_id: client.execution(i)["status"] == "cancelled", 30)
        assert client.execution(ids[-1])["failure_reason"] == "deadline_exceeded"

    @staticmethod
    def goes_on(agent: FakeAgent, client: BearerClient) -> None:
        """The next run is delivered as ever."""
        run = agent.take_attempt(client.create(agent.id)["id"])
        eventually(lambda: "dispatch.acked" in client.event_types(run.id))
        run.complete().expect(204)
