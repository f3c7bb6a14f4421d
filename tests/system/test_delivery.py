"""Deliveries: retries and their end, and bad agents that others do not wait for."""

import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from harness import BearerClient, Deadline, Delivery, FakeAgent, Kernel, Reply, eventually
from harness.waiting import let_pass

NewKernel = Callable[..., Kernel]
NewAgent = Callable[..., FakeAgent]


def types(client: BearerClient, execution_id: str) -> list[str]:
    return client.event_types(execution_id)


def ended(client: BearerClient, execution_id: str, timeout: float = 20.0) -> dict[str, Any]:
    """The execution once it has ended."""

    def terminal() -> dict[str, Any] | None:
        execution = client.execution(execution_id)
        return execution if "waiting_on" not in execution else None

    found = eventually(terminal, timeout, what="the execution ends")
    assert found is not None
    return found


def failures(client: BearerClient, execution_id: str) -> int:
    return types(client, execution_id).count("dispatch.failed")


class TestRetries:
    @pytest.mark.parametrize("status", [301, 302, 307, 400, 401, 404, 429, 500, 503])
    def test_anything_but_2xx_fails(self, kernel: Kernel, new_agent: NewAgent, status: int) -> None:
        agent, client = new_agent(), kernel.client()
        agent.behaviour = lambda d: Reply(status=status if d.attempt == 1 else 200)
        execution = client.create(agent.id)
        agent.take_attempt(execution["id"], attempt=2).complete().expect(204)
        assert failures(client, execution["id"]) == 1

    @pytest.mark.parametrize("status", [200, 201, 202, 204])
    def test_any_2xx_is_an_ack(self, kernel: Kernel, new_agent: NewAgent, status: int) -> None:
        agent, client = new_agent(), kernel.client()
        agent.behaviour = lambda d: Reply(status=status)
        execution = client.create(agent.id)
        run = agent.take_attempt(execution["id"])
        eventually(lambda: "dispatch.acked" in types(client, run.id))
        run.complete().expect(204)
        assert failures(client, run.id) == 0

    def test_connection_refused_then_back(self, kernel: Kernel, new_agent: NewAgent) -> None:
        agent, client = new_agent(), kernel.client()
        agent.stop()
        execution = client.create(agent.id)
        eventually(lambda: failures(client, execution["id"]) >= 2)
        agent.start()
        run = agent.take_attempt(execution["id"], 15)
        assert run.delivery.attempt >= 3
        run.complete().expect(204)

    def test_cut_connection(self, kernel: Kernel, new_agent: NewAgent) -> None:
        agent, client = new_agent(), kernel.client()
        agent.behaviour = lambda d: Reply(cut=d.attempt == 1)
        execution = client.create(agent.id)
        agent.take_attempt(execution["id"], attempt=2).complete().expect(204)

    def test_back_off(self, new_kernel: NewKernel, new_agent: NewAgent) -> None:
        kernel = new_kernel(env={"REBUNO_DISPATCH_MAX_ATTEMPTS": "4"})
        agent, client = new_agent(kernel), kernel.client()
        agent.behaviour = lambda d: Reply(status=500)
        execution = client.create(agent.id)
        failed = ended(client, execution["id"], 30)
        assert failed["status"] == "failed"
        assert failed["failure_reason"] == "dispatch_exhausted"
        times = [d.at for d in agent.deliveries]
        assert len(times) == 4
        for n, (earlier, later) in enumerate(zip(times, times[1:], strict=False)):
            assert later - earlier <= 2**n + 1.5, f"after attempt {n + 1}"

    def test_exhausted(self, new_kernel: NewKernel, new_agent: NewAgent) -> None:
        kernel = new_kernel(env={"REBUNO_DISPATCH_MAX_ATTEMPTS": "2"})
        agent, client = new_agent(kernel), kernel.client()
        agent.stop()
        execution = client.create(agent.id)
        assert ended(client, execution["id"])["failure_reason"] == "dispatch_exhausted"
        log = client.events(execution["id"])
        assert [e["type"] for e in log] == [
            "execution.created",
            "execution.started",
            "dispatch.queued",
            "dispatch.failed",
            "dispatch.failed",
            "execution.failed",
        ]
        assert [e["payload"]["attempt"] for e in log[3:5]] == [1, 2]
        assert log[5]["payload"]["reason"] == "dispatch_exhausted"

    @pytest.mark.slow
    def test_not_exhausted_before_ten_minutes(self, kernel: Kernel, new_agent: NewAgent) -> None:
        agent, client = new_agent(), kernel.client()
        agent.behaviour = lambda d: Reply(status=500)
        execution = client.create(agent.id)
        eventually(lambda: agent.count(execution["id"]) >= 7, 150, what="seven attempts")
        assert client.execution(execution["id"])["status"] == "running"
        agent.behaviour = lambda d: Reply()
        run = agent.take_attempt(execution["id"], 60, attempt=agent.count(execution["id"]) + 1)
        run.complete().expect(204)

    def test_cancel_between_tries(self, kernel: Kernel, new_agent: NewAgent) -> None:
        agent, client = new_agent(), kernel.client()
        agent.stop()
        execution = client.create(agent.id)
        eventually(lambda: failures(client, execution["id"]) >= 1)
        client.cancel(execution["id"])
        agent.start()
        other = client.create(agent.id)
        agent.take_attempt(other["id"]).complete().expect(204)
        assert agent.count(execution["id"]) == 0


class TestSlowAgents:
    def test_never_answers(self, new_kernel: NewKernel, new_agent: NewAgent) -> None:
        kernel = new_kernel(env={"REBUNO_DISPATCH_TIMEOUT": "1s"})
        agent, client = new_agent(kernel), kernel.client()
        agent.behaviour = lambda d: Reply(hang_s=60 if d.attempt == 1 else 0)
        execution = client.create(agent.id)
        run = agent.take_attempt(execution["id"], attempt=2)
        first, second = (d.at for d in agent.deliveries)
        assert second - first >= 0.9
        run.complete().expect(204)
        assert failures(client, run.id) == 1

    def test_call_under_an_unanswered_delivery_is_an_ack(
        self, new_kernel: NewKernel, new_agent: NewAgent
    ) -> None:
        kernel = new_kernel(env={"REBUNO_DISPATCH_TIMEOUT": "1s"})
        agent, client = new_agent(kernel), kernel.client()
        agent.behaviour = lambda d: Reply(hang_s=2.5)
        run = agent.take_attempt(client.create(agent.id)["id"])
        run.record("x", 1, "r")
        assert "dispatch.acked" in types(client, run.id)
        follow = f"/v0/executions/{run.id}/events?after_seq=50&wait=2"
        assert client.get(follow).expect(200).json == []
        assert failures(client, run.id) == 0
        assert agent.count(run.id) == 1
        run.complete().expect(204)

    def test_unanswered_is_not_reclaimed_before_the_timeout(
        self, new_kernel: NewKernel, new_agent: NewAgent
    ) -> None:
        kernel = new_kernel(env={"REBUNO_DISPATCH_LEASE_TIMEOUT": "500ms"})
        agent, client = new_agent(kernel), kernel.client()
        agent.behaviour = lambda d: Reply(hang_s=3)
        run = agent.take_attempt(client.create(agent.id)["id"])
        eventually(lambda: "dispatch.acked" in types(client, run.id))
        run.heartbeat().expect(204)
        assert run.delivery.attempt == 1
        assert failures(client, run.id) == 0
        run.complete().expect(204)

    @pytest.mark.parametrize("kind", ["hang", "dead", "redirect", "error"])
    def test_does_not_delay_others(
        self, new_kernel: NewKernel, new_agent: NewAgent, kind: str
    ) -> None:
        kernel = new_kernel(env={"REBUNO_DISPATCH_CONCURRENCY": "8"})
        bad, good, client = new_agent(kernel), new_agent(kernel), kernel.client()
        misbehave(bad, kind)
        blocked = [client.create(bad.id)["id"] for _ in range(40)]
        eventually(lambda: bad.deliveries or kind == "dead")
        for _ in range(20):
            begun = time.monotonic()
            execution = client.create(good.id)
            run = good.take_attempt(execution["id"])
            assert run.delivery.at - begun < 1.5, kind
            run.complete().expect(204)
        for execution_id in blocked:
            client.cancel(execution_id)

    def test_all_of_a_slow_agent_arrive(self, new_kernel: NewKernel, new_agent: NewAgent) -> None:
        kernel = new_kernel(env={"REBUNO_DISPATCH_CONCURRENCY": "4"})
        agent, client = new_agent(kernel), kernel.client()
        agent.behaviour = lambda d: Reply(hang_s=0.1)
        ids = {client.create(agent.id)["id"] for _ in range(20)}
        for _ in range(20):
            run = agent.take_attempt(timeout=20)
            ids.discard(run.id)
            run.complete().expect(204)
        assert not ids


class Slots:
    """How many webhooks of some agents are being answered at once."""

    def __init__(self, agents: list[FakeAgent], seconds: float, first_s: float = 0) -> None:
        """An answer takes so long; `first_s` at most until an agent has two at once."""
        self.now: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.most_in_all = 0
        self.seconds = seconds
        self.first_s = first_s
        self._lock = threading.Lock()
        for agent in agents:
            agent.behaviour = lambda delivery, agent=agent: self.answer(agent, delivery)

    def answer(self, agent: FakeAgent, delivery: Delivery) -> Reply:
        with self._lock:
            self.now[agent.id] += 1
            self.most[agent.id] = max(self.most[agent.id], self.now[agent.id])
            self.most_in_all = max(self.most_in_all, self.now.total())
        let_pass(self.seconds)
        first = Deadline(self.first_s)
        while max(self.most.values()) < 2 and not first.passed:
            first.pause()
        with self._lock:
            self.now[agent.id] -= 1
        agent.attempt(delivery).complete()
        return Reply()


class TestSlots:
    def test_are_shared(self, new_kernel: NewKernel, new_agent: NewAgent) -> None:
        """No agent holds more than a quarter of them, and together they hold no more than all."""
        kernel = new_kernel(env={"REBUNO_DISPATCH_CONCURRENCY": "8"})
        agents, client = [new_agent(kernel) for _ in range(6)], kernel.client()
        slots = Slots(agents, 0.05, first_s=1.0)
        ids = [client.create(agent.id)["id"] for _ in range(8) for agent in agents]
        for execution_id in ids:
            assert ended(client, execution_id)["status"] == "completed"
        assert set(slots.most.values()) <= {1, 2}, slots.most
        assert max(slots.most.values()) == 2
        assert 4 <= slots.most_in_all <= 8, slots.most_in_all

    def test_one_for_who_does_not_answer(self, new_kernel: NewKernel, new_agent: NewAgent) -> None:
        """From its first unanswered delivery on, until it answers one."""
        env = {"REBUNO_DISPATCH_CONCURRENCY": "16", "REBUNO_DISPATCH_TIMEOUT": "300ms"}
        kernel = new_kernel(env=env)
        agent, client = new_agent(kernel), kernel.client()
        agent.behaviour = lambda d: Reply(hang_s=60)
        first = client.create(agent.id)
        eventually(lambda: failures(client, first["id"]) >= 1)
        slots = Slots([agent], 0.35)
        ids = [client.create(agent.id)["id"] for _ in range(6)]
        eventually(lambda: agent.count(ids[-1]) >= 1, 20)
        assert slots.most[agent.id] <= 2, "one, and the next while its thread still sleeps"
        slots.seconds = 0
        for execution_id in [first["id"], *ids]:
            assert ended(client, execution_id, 60)["status"] == "completed"


def misbehave(agent: FakeAgent, kind: str) -> None:
    if kind == "dead":
        agent.stop()
    elif kind == "hang":
        agent.behaviour = lambda d: Reply(hang_s=60)
    elif kind == "redirect":
        agent.behaviour = lambda d: Reply(status=307, headers={"Location": agent.webhook_url})
    else:
        agent.behaviour = lambda d: Reply(status=500)


class TestRedirects:
    @pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
    def test_are_not_followed(self, kernel: Kernel, new_agent: NewAgent, status: int) -> None:
        client, trap = kernel.client(), new_agent(register=False)
        agent = new_agent(secret=trap.secret)
        headers = {"Location": trap.webhook_url}
        agent.behaviour = lambda d: Reply(status=status if d.attempt == 1 else 200, headers=headers)
        execution = client.create(agent.id)
        agent.take_attempt(execution["id"], attempt=2).complete().expect(204)
        assert trap.deliveries == []
        assert failures(client, execution["id"]) == 1


class TestAddresses:
    @pytest.mark.parametrize(
        "host", ["169.254.169.254", "169.254.1.1", "[fe80::1]", "[::ffff:169.254.169.254]"]
    )
    def test_link_local_is_refused(self, kernel: Kernel, host: str) -> None:
        client = kernel.client()
        agent_id = f"metadata-{time.monotonic_ns()}"
        registration = {"id": agent_id, "webhook_url": f"http://{host}/x", "secret": "s"}
        client.post("/v0/agents", registration).expect(201)
        execution = client.create(agent_id)
        eventually(lambda: failures(client, execution["id"]) >= 1, 5)
        client.cancel(execution["id"])

    def test_private_can_be_switched_off(self, new_kernel: NewKernel, new_agent: NewAgent) -> None:
        env = {"REBUNO_WEBHOOK_PRIVATE": "off", "REBUNO_DISPATCH_MAX_ATTEMPTS": "1"}
        kernel = new_kernel(env=env)
        agent, client = new_agent(kernel), kernel.client()
        execution = client.create(agent.id)
        assert ended(client, execution["id"])["failure_reason"] == "dispatch_exhausted"
        assert agent.deliveries == []


class TestLatency:
    def test_no_poll_stands_between(self, kernel: Kernel, new_agent: NewAgent) -> None:
        """The poll behind the signals comes every 2 s, so with it alone the median would be 1 s."""
        agent, client = new_agent(), kernel.client()
        delays = []
        for _ in range(25):
            begun = time.monotonic()
            execution = client.create(agent.id)
            run = agent.take_attempt(execution["id"])
            delays.append(run.delivery.at - begun)
            run.complete().expect(204)
        assert statistics.median(delays) < 0.5, sorted(delays)

    def test_waiting_on_says_when(self, kernel: Kernel, new_agent: NewAgent) -> None:
        agent, client = new_agent(), kernel.client()
        agent.stop()
        execution = client.create(agent.id)
        eventually(lambda: failures(client, execution["id"]) >= 2)
        [entry] = client.execution(execution["id"])["waiting_on"]
        assert entry["kind"] == "dispatch"
        if "until" in entry:
            datetime.fromisoformat(entry["until"])
        client.cancel(execution["id"])

    def test_many_at_once(self, kernel: Kernel, new_agent: NewAgent) -> None:
        agent, client = new_agent(), kernel.client()
        ids = {client.create(agent.id)["id"] for _ in range(150)}
        for _ in range(150):
            run = agent.take_attempt(timeout=20)
            ids.remove(run.id)
            run.complete(run.id).expect(204)
        assert not ids
        assert len(agent.deliveries) == 150
