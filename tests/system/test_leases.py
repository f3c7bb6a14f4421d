"""Leases: what keeps one, what happens when one runs out, and what a late attempt may do.

Guarantee 6 of ARCHITECTURE.md.
"""

from collections.abc import Callable
from typing import Any

import pytest

from harness import Attempt, BearerClient, Deadline, FakeAgent, Kernel, eventually

NewKernel = Callable[..., Kernel]
NewAgent = Callable[..., FakeAgent]
LEASE_S = 2.0
LONG_LEASE_S = 120.0  # where none is set


@pytest.fixture
def short(new_kernel: NewKernel) -> Kernel:
    """A kernel whose leases are short."""
    return new_kernel(env={"REBUNO_DISPATCH_LEASE_TIMEOUT": f"{LEASE_S:.0f}s"})


def begun(kernel: Kernel, agent: FakeAgent, **fields: Any) -> Attempt:
    execution = kernel.client().create(agent.id, **fields)
    run = agent.take_attempt(execution["id"])
    eventually(lambda: "dispatch.acked" in kernel.client().event_types(run.id))
    return run


def snapshot(client: BearerClient, execution_id: str) -> tuple[Any, ...]:
    execution = client.execution(execution_id)
    return execution, client.events(execution_id), client.steps(execution_id)


class TestReclaim:
    def test_vanished_after_its_answer(self, short: Kernel, new_agent: NewAgent) -> None:
        agent = new_agent(short)
        run = begun(short, agent)
        assert run.delivery.lease_s == LEASE_S
        later = run.next(timeout=LEASE_S + 6)
        assert later.delivery.dispatch_id == run.delivery.dispatch_id
        assert later.delivery.at - run.delivery.at >= LEASE_S * 0.9
        later.complete("carried on").expect(204)
        log = short.client().event_types(run.id)
        assert "dispatch.failed" not in log
        assert log.count("dispatch.acked") == 2

    def test_work_is_carried_on(self, short: Kernel, new_agent: NewAgent) -> None:
        """Dies between an effect and its report: run again, and the rest replayed."""
        agent = new_agent(short)
        run = begun(short, agent)
        first = run.record("first", 1, "one")
        orphan = run.proceed("second", 2)
        later = run.next(timeout=LEASE_S + 6)
        assert later.replay("first", 1) == {
            "decision": "replay",
            "step_id": first,
            "result": "one",
        }
        assert later.proceed("second", 2) == orphan
        later.complete_step(orphan, "two").expect(200)
        later.complete().expect(204)

    def test_at_most_once_is_not_run_again(self, short: Kernel, new_agent: NewAgent) -> None:
        agent = new_agent(short)
        run = begun(short, agent)
        orphan = run.proceed("charge", 2, idempotency="at_most_once")
        later = run.next(timeout=LEASE_S + 6)
        decision = later.replay("charge", 2, idempotency="at_most_once")
        assert decision["step_id"] == orphan
        assert decision["error"]["reason"] == "indeterminate"
        later.complete().expect(204)

    def test_exhausted_without_progress(self, new_kernel: NewKernel, new_agent: NewAgent) -> None:
        env = {"REBUNO_DISPATCH_LEASE_TIMEOUT": "500ms", "REBUNO_DISPATCH_MAX_ATTEMPTS": "3"}
        kernel = new_kernel(env=env)
        agent, client = new_agent(kernel), kernel.client()
        execution = client.create(agent.id)

        def failed() -> bool:
            return bool(client.execution(execution["id"])["status"] == "failed")

        eventually(failed, 20)
        assert client.execution(execution["id"])["failure_reason"] == "dispatch_exhausted"
        assert agent.count(execution["id"]) == 3

    def test_progress_is_not_charged(self, new_kernel: NewKernel, new_agent: NewAgent) -> None:
        env = {"REBUNO_DISPATCH_LEASE_TIMEOUT": "500ms", "REBUNO_DISPATCH_MAX_ATTEMPTS": "2"}
        kernel = new_kernel(env=env)
        run = begun(kernel, new_agent(kernel))
        for n in range(6):
            for earlier in range(n):
                run.replay("x", earlier)
            run.record("x", n, n)
            run = run.next()
        run.complete().expect(204)

    def test_nor_for_ever(self, new_kernel: NewKernel, new_agent: NewAgent) -> None:
        """Ten times the maximum bounds even those that make progress."""
        env = {"REBUNO_DISPATCH_LEASE_TIMEOUT": "1s", "REBUNO_DISPATCH_MAX_ATTEMPTS": "1"}
        kernel = new_kernel(env=env)
        agent, client = new_agent(kernel), kernel.client()
        run = begun(kernel, agent)
        for attempt in range(1, 11):
            assert run.delivery.attempt == attempt
            for earlier in range(1, attempt):
                run.replay("x", earlier)
            run.record("x", attempt)
            if attempt < 10:
                run = run.next()

        def failed() -> bool:
            return bool(client.execution(run.id)["status"] == "failed")

        eventually(failed)
        assert client.execution(run.id)["failure_reason"] == "dispatch_exhausted"
        assert agent.count(run.id) == 10


class TestKeeping:
    @pytest.mark.parametrize("how", ["heartbeats", "submissions", "outcomes"])
    def test_by_calls(self, short: Kernel, new_agent: NewAgent, how: str) -> None:
        agent = new_agent(short)
        run = begun(short, agent)
        deadline, n = Deadline(LEASE_S * 3), 0
        step_ids = [run.proceed("y", k) for k in range(40)] if how == "outcomes" else []
        while not deadline.passed:
            n += 1
            if how == "heartbeats":
                run.heartbeat().expect(204)
            elif how == "submissions":
                run.proceed("x", n)
            else:
                run.complete_step(step_ids[n], n).expect(200)
            deadline.pause(LEASE_S / 5)
        assert agent.count(run.id) == 1
        run.complete().expect(204)

    def test_reading_does_not(self, short: Kernel, new_agent: NewAgent) -> None:
        agent = new_agent(short)
        run = begun(short, agent)
        deadline = Deadline(LEASE_S + 6)
        while agent.count(run.id) == 1:
            assert not deadline.passed, "reads must not renew the lease"
            run.execution().expect(200)
            deadline.pause(0.2)

    def test_refused_calls_do_not(self, short: Kernel, new_agent: NewAgent) -> None:
        agent = new_agent(short)
        run = begun(short, agent)
        deadline = Deadline(LEASE_S + 6)
        bad = {"kind": "nonsense", "target": "x"}
        while agent.count(run.id) == 1:
            assert not deadline.passed, "a refused call must not renew the lease"
            run.client.post(run.path("/steps"), bad, bad=True)
            deadline.pause(0.2)


class TestStalled:
    def late_calls(self, run: Attempt, step_id: str) -> list[Any]:
        return [
            run.submit("open"),
            run.submit("new"),
            run.complete_step(step_id, "late"),
            run.fail_step(step_id),
            run.publish(step_id, 1, "late"),
            run.heartbeat(),
            run.release(),
            run.suspend(),
            run.complete("late"),
            run.fail("late"),
        ]

    def test_beside_its_successor(self, short: Kernel, new_agent: NewAgent) -> None:
        """Every write is refused, and the successor's lease is left alone."""
        agent, client = new_agent(short), short.client()
        run = begun(short, agent)
        step_id = run.proceed("open")
        later = run.next(timeout=LEASE_S + 6)
        assert later.proceed("open") == step_id
        eventually(lambda: client.event_types(run.id).count("dispatch.acked") == 2)
        later.heartbeat().expect(204)
        before = snapshot(client, run.id)
        for answer in self.late_calls(run, step_id):
            answer.expect(409, "lease_superseded")
        assert snapshot(client, run.id) == before
        later.complete_step(step_id, "mine").expect(200)
        later.complete("mine").expect(204)

    def test_after_its_successor_finished(self, short: Kernel, new_agent: NewAgent) -> None:
        agent, client = new_agent(short), short.client()
        run = begun(short, agent)
        step_id = run.proceed("open")
        later = run.next(timeout=LEASE_S + 6)
        later.proceed("open")
        later.complete_step(step_id, "mine").expect(200)
        later.complete("mine").expect(204)
        before = snapshot(client, run.id)
        for answer in self.late_calls(run, step_id):
            if answer.status == 200:
                assert answer.json == {"decision": "execution_terminal"}
            else:
                assert answer.status == 409, answer
                assert answer.code in ("lease_superseded", "execution_terminal"), answer
        assert snapshot(client, run.id) == before


class TestRelease:
    def test_agent_that_is_away_for_a_while(
        self, new_kernel: NewKernel, new_agent: NewAgent
    ) -> None:
        """Stopping an agent and starting it again costs nothing, whatever the maximum."""
        env = {"REBUNO_DISPATCH_LEASE_TIMEOUT": "30s", "REBUNO_DISPATCH_MAX_ATTEMPTS": "2"}
        kernel = new_kernel(env=env)
        agent, client = new_agent(kernel), kernel.client()
        run = begun(kernel, agent)
        run.record("x", 1, "r")
        agent.stop()
        run.release().expect(204)

        def failures() -> int:
            return client.event_types(run.id).count("dispatch.failed")

        eventually(lambda: failures() >= 4, 30, what="four failed deliveries")
        assert client.execution(run.id)["status"] == "running"
        agent.start()
        later = agent.take_attempt(run.id, 30)
        assert later.replay("x", 1)["result"] == "r"
        later.complete().expect(204)

    def test_successor_waits_for_open_steps_only_while_it_is_owned(
        self, kernel: Kernel, new_agent: NewAgent
    ) -> None:
        run = begun(kernel, new_agent())
        run.proceed("open")
        run.released(timeout=LONG_LEASE_S / 4).complete().expect(204)
