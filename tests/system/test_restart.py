"""The kernel is killed and stopped: what was acknowledged is there, and agents do not notice.

Guarantees 1 and 7 of ARCHITECTURE.md.
"""

import contextlib
import os
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from harness import Attempt, Deadline, FakeAgent, Kernel, Reply, eventually
from harness.waiting import let_pass
from harness.worker import Worker, expected, persistent

NewKernel = Callable[..., Kernel]
NewAgent = Callable[..., FakeAgent]
KILLS = int(os.environ.get("REBUNO_TEST_KILLS", "200"))
ways = pytest.mark.parametrize("kill", [True, False], ids=["SIGKILL", "SIGTERM"])


def begun(kernel: Kernel, agent: FakeAgent, **fields: Any) -> Attempt:
    run = agent.take_attempt(kernel.client().create(agent.id, **fields)["id"])
    eventually(lambda: "dispatch.acked" in kernel.client().event_types(run.id))
    return run


class TestAttemptsGoOn:
    @ways
    def test_under_the_same_dispatch_and_attempt(
        self, new_kernel: NewKernel, new_agent: NewAgent, kill: bool
    ) -> None:
        kernel = new_kernel()
        agent, client = new_agent(kernel), kernel.client()
        run = begun(kernel, agent)
        run.record("x", 1, "before")
        open_id = run.proceed("x", 2)
        kernel.restart(kill=kill)
        run.heartbeat().expect(204)
        run.complete_step(open_id, "across").expect(200)
        run.record("x", 3, "after")
        run.complete("done").expect(204)
        assert agent.count(run.id) == 1
        assert client.execution(run.id)["output"] == "done"
        assert [s["result"] for s in client.steps(run.id)] == ["before", "across", "after"]

    @ways
    def test_occurrences_go_on(
        self, new_kernel: NewKernel, new_agent: NewAgent, kill: bool
    ) -> None:
        kernel = new_kernel()
        agent, client = new_agent(kernel), kernel.client()
        run = begun(kernel, agent)
        ids = [run.record("poll", 1, n) for n in range(2)]
        kernel.restart(kill=kill)
        ids += [run.record("poll", 1, n) for n in (2, 3)]
        assert [client.step(run.id, i)["occurrence"] for i in ids] == [0, 1, 2, 3]

    @ways
    def test_replays_are_counted_too(
        self, new_kernel: NewKernel, new_agent: NewAgent, kill: bool
    ) -> None:
        """A lost count would hand the agent the wrong step's result."""
        kernel = new_kernel()
        run = begun(kernel, new_agent(kernel))
        for n in range(4):
            run.record("poll", 1, n)
        later = run.released()
        assert [later.replay("poll", 1)["result"] for _ in range(2)] == [0, 1]
        kernel.restart(kill=kill)
        assert [later.replay("poll", 1)["result"] for _ in range(2)] == [2, 3]
        fresh = later.proceed("poll", 1)
        assert kernel.client().step(run.id, fresh)["occurrence"] == 4

    @ways
    def test_repeated_submission_across_it(
        self, new_kernel: NewKernel, new_agent: NewAgent, kill: bool
    ) -> None:
        kernel = new_kernel()
        run = begun(kernel, new_agent(kernel))
        lost = run.submit("x", 1, key="k").expect(200).json
        kernel.restart(kill=kill)
        assert run.submit("x", 1, key="k").expect(200).json == lost
        run.submit("x", 2, key="k").expect(409, "conflict")
        assert len(kernel.client().steps(run.id)) == 1

    @ways
    def test_leases_get_a_full_term(
        self, new_kernel: NewKernel, new_agent: NewAgent, kill: bool
    ) -> None:
        """The kernel is away for longer than a lease; the agent lives through it."""
        kernel = new_kernel(env={"REBUNO_DISPATCH_LEASE_TIMEOUT": "2s"})
        agent = new_agent(kernel)
        run = begun(kernel, agent)
        if kill:
            kernel.kill()
        else:
            kernel.stop()
        let_pass(3)
        kernel.start()
        let_pass(1)
        run.heartbeat().expect(204)
        let_pass(1)
        run.heartbeat().expect(204)
        assert agent.count(run.id) == 1

    def test_a_lease_that_nobody_keeps_is_reclaimed_after_it(
        self, new_kernel: NewKernel, new_agent: NewAgent
    ) -> None:
        kernel = new_kernel(env={"REBUNO_DISPATCH_LEASE_TIMEOUT": "2s"})
        run = begun(kernel, new_agent(kernel))
        kernel.restart(kill=True)
        run.next(timeout=8).complete().expect(204)


class TestDeliveries:
    @ways
    def test_queued_are_delivered(
        self, new_kernel: NewKernel, new_agent: NewAgent, kill: bool
    ) -> None:
        kernel = new_kernel()
        agent, client = new_agent(kernel), kernel.client()
        agent.stop()
        ids = {client.create(agent.id)["id"] for _ in range(10)}
        if kill:
            kernel.kill()
        else:
            kernel.stop()
        agent.start()
        kernel.start()
        for _ in range(10):
            run = agent.take_attempt(timeout=40)
            ids.discard(run.id)
            run.complete().expect(204)
        assert not ids

    @ways
    def test_claimed_but_not_acked_come_again(
        self, new_kernel: NewKernel, new_agent: NewAgent, kill: bool
    ) -> None:
        kernel = new_kernel()
        agent = new_agent(kernel)
        agent.behaviour = lambda d: Reply(hang_s=60 if d.attempt == 1 else 0)
        execution = kernel.client().create(agent.id)
        first = agent.take_attempt(execution["id"])
        kernel.restart(kill=kill)
        second = agent.take_attempt(execution["id"], attempt=2)
        assert second.delivery.dispatch_id == first.delivery.dispatch_id
        second.record("x", 1, "r")
        first.submit("x", 1).expect(409, "lease_superseded")
        second.complete().expect(204)

    def test_orderly_stop_charges_no_attempt(
        self, new_kernel: NewKernel, new_agent: NewAgent
    ) -> None:
        kernel = new_kernel(env={"REBUNO_DISPATCH_MAX_ATTEMPTS": "1"})
        agent = new_agent(kernel)
        agent.behaviour = lambda d: Reply(hang_s=60 if d.attempt <= 3 else 0)
        execution = kernel.client().create(agent.id)
        for attempt in (1, 2, 3):
            agent.take(execution["id"], attempt=attempt)
            kernel.restart()
        agent.take_attempt(execution["id"], attempt=4).complete().expect(204)


class TestAcknowledged:
    @pytest.mark.parametrize("round_", range(3))
    def test_writes_are_there(
        self, new_kernel: NewKernel, new_agent: NewAgent, round_: int
    ) -> None:
        """Killed in the middle of many writers: each answered one is on record."""
        kernel = new_kernel()
        agent, client = new_agent(kernel), kernel.client()
        run = begun(kernel, agent)
        answered: dict[str, int] = {}
        enough = threading.Event()

        def write(worker: int) -> None:
            number = 0
            while True:
                number += 1
                try:
                    step_id = run.record("w", [worker, number], number)
                except OSError:
                    return
                except Exception:  # cut off inside an answer
                    return
                answered[step_id] = number
                if len(answered) > 40 + 30 * round_:
                    enough.set()

        with ThreadPoolExecutor(6) as pool:
            for worker in range(6):
                pool.submit(write, worker)
            assert enough.wait(30)
            kernel.kill()
        kernel.start()
        steps = {step["step_id"]: step for step in client.steps(run.id)}
        for step_id, number in answered.items():
            assert steps[step_id]["status"] == "succeeded"
            assert steps[step_id]["result"] == number
        check_log(client.events(run.id), steps)

    def test_events_go_on_without_a_gap(self, new_kernel: NewKernel, new_agent: NewAgent) -> None:
        kernel = new_kernel()
        run = begun(kernel, new_agent(kernel))
        for n in range(5):
            run.record("x", n)
            kernel.restart(kill=True)
        run.complete().expect(204)
        log = kernel.client().events(run.id)
        assert [e["event_seq"] for e in log] == list(range(1, len(log) + 1))

    def test_agents_and_metadata(self, new_kernel: NewKernel, new_agent: NewAgent) -> None:
        kernel = new_kernel()
        agent = new_agent(kernel, lease_timeout_seconds=77)
        target = f"/v0/agents/{agent.id}/metadata"
        agent.client().request("PUT", target, body={"description": "d"}).expect(204)
        before = kernel.client().get("/v0/agents").expect(200).json
        kernel.restart(kill=True)
        assert kernel.client().get("/v0/agents").expect(200).json == before

    def test_idempotent_create(self, new_kernel: NewKernel, new_agent: NewAgent) -> None:
        kernel = new_kernel()
        agent, client = new_agent(kernel), kernel.client()
        first = client.create(agent.id, idempotency_key="k")
        kernel.restart(kill=True)
        assert client.create(agent.id, idempotency_key="k")["id"] == first["id"]


def check_log(events: list[dict[str, Any]], steps: dict[str, dict[str, Any]]) -> None:
    """A projection and the log never tell different stories."""
    assert [e["event_seq"] for e in events] == list(range(1, len(events) + 1))
    last: dict[str, str] = {}
    for event in events:
        if event["type"].startswith("step."):
            last[event["payload"]["step_id"]] = event["type"].removeprefix("step.")
    assert last == {step_id: step["status"] for step_id, step in steps.items()}


class TestDrain:
    def test_requests_in_flight_are_answered(
        self, new_kernel: NewKernel, new_agent: NewAgent
    ) -> None:
        kernel = new_kernel()
        run = begun(kernel, new_agent(kernel))
        outcomes: list[int] = []
        stop = threading.Event()

        def write(worker: int) -> None:
            for number in range(100_000):
                try:
                    answer = run.submit("w", [worker, number])
                except ConnectionRefusedError:
                    return
                outcomes.append(answer.status)
                if stop.is_set():
                    return

        with ThreadPoolExecutor(4) as pool:
            writers = [pool.submit(write, n) for n in range(4)]
            eventually(lambda: len(outcomes) > 50)
            kernel.stop()
            stop.set()
        for writer in writers:
            error = writer.exception()
            assert error is None, f"a request that was accepted got no answer: {error!r}"
        assert set(outcomes) <= {200, 503}

    def test_ends_in_sessions_are_answered(
        self, new_kernel: NewKernel, new_agent: NewAgent, session: str
    ) -> None:
        """Each waits for the next one's start; what is left of that follows after the restart."""
        kernel = new_kernel()
        agent, client = new_agent(kernel), kernel.client()
        runs, waiting = [], []
        for n in range(40):
            runs.append(begun(kernel, agent, session=f"{session}-{n}"))
            waiting.append(client.create(agent.id, session=f"{session}-{n}")["id"])
        statuses: list[int] = []

        def finish(run: Attempt) -> None:
            with contextlib.suppress(ConnectionRefusedError):
                statuses.append(run.complete().status)

        with ThreadPoolExecutor(8) as pool:
            finishing = [pool.submit(finish, run) for run in runs]
            eventually(lambda: len(statuses) > 4, interval=0.001)
            kernel.stop()
        for future in finishing:
            error = future.exception()
            assert error is None, f"a request that was accepted got no answer: {error!r}"
        assert set(statuses) <= {204, 503}
        kernel.start()
        for run, identity in zip(runs, waiting, strict=True):
            if client.execution(run.id)["status"] == "running":
                run.complete().expect(204)
            agent.take_attempt(identity).complete().expect(204)

    def test_within_ten_seconds_whatever_hangs(
        self, new_kernel: NewKernel, new_agent: NewAgent
    ) -> None:
        kernel = new_kernel()
        agent, client = new_agent(kernel), kernel.client()
        agent.behaviour = lambda d: Reply(hang_s=60)
        execution = client.create(agent.id)
        agent.take(execution["id"])
        target = f"/v0/executions/{execution['id']}/events"
        with client.stream(target) as one, client.stream(target) as two:
            assert one.next() is not None
            assert two.next() is not None
            kernel.stop()

    def test_twice_is_no_harm(self, new_kernel: NewKernel) -> None:
        kernel = new_kernel()
        kernel.terminate()
        assert kernel.wait_exit() == 0


class TestManyKills:
    def test_results_are_the_same_and_effects_happen_once(
        self, new_kernel: NewKernel, new_agent: NewAgent
    ) -> None:
        """Killed and stopped at random moments under running agents. One attempt that was charged
        for it would fail its run.
        """
        seed = int(os.environ.get("REBUNO_TEST_SEED", random.randrange(2**32)))
        chance = random.Random(seed)
        print(f"REBUNO_TEST_SEED={seed}")
        kernel = new_kernel(env={"REBUNO_DISPATCH_MAX_ATTEMPTS": "1"})
        agent, client = new_agent(kernel), kernel.client()
        worker = Worker(agent, steps=9)
        ids: list[str] = []
        for kill in range(KILLS):
            for _ in range(2):
                body = {"agent_id": agent.id, "idempotency_key": f"run-{len(ids)}"}
                answer = persistent(lambda body=body: client.post("/v0/executions", body))
                ids.append(answer.json["id"])
            wanted = worker.total + chance.randrange(1, 25)
            deadline = Deadline(chance.uniform(0.05, 0.4))
            while worker.total < wanted and not deadline.passed:
                deadline.pause(0.001)
            kernel.restart(kill=chance.random() < 0.7 or kill == 0)
        assert len(set(ids)) == len(ids)

        def all_done() -> bool:
            return all(client.execution(i)["status"] != "running" for i in ids)

        eventually(all_done, 120, what="all executions end", interval=0.2)
        wanted_output = {"results": [expected(n) for n in range(9)]}
        for execution_id in ids:
            execution = client.execution(execution_id)
            assert execution["status"] == "completed", (execution, worker.problems)
            assert execution["output"] == wanted_output
            steps = {s["step_id"]: s for s in client.steps(execution_id)}
            assert len(steps) == 9
            check_log(client.events(execution_id), steps)
        assert set(worker.effects.values()) == {1}, worker.effects.most_common(3)
        assert len(worker.effects) == 9 * len(ids)
        assert not worker.problems
