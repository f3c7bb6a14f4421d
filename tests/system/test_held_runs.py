"""Runs that wait for a person or a rate limit: over leases, restarts, crashes and replicas."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from harness import (
    Attempt,
    BearerClient,
    Cluster,
    Delivery,
    FakeAgent,
    Kernel,
    Reply,
    bundle,
    eventually,
    rule,
)
from harness.waiting import let_pass

NewKernel = Callable[..., Kernel]
NewAgent = Callable[..., FakeAgent]
LEASE_S = 2.0
GATE = rule("gate", "require_approval", {"target": "gated*"})
OPEN = rule("open", "allow", {"target": "open*"})


def when(text: str) -> datetime:
    return datetime.fromisoformat(text)


def begun(kernel: Kernel, agent: FakeAgent) -> Attempt:
    run = agent.take_attempt(kernel.client().create(agent.id)["id"])
    run.execution().expect(200)
    run.heartbeat().expect(204)
    return run


def started(kernel: Kernel, new_agent: NewAgent, *rules: dict[str, Any]) -> Attempt:
    """A run of a new agent under these rules."""
    agent = new_agent(kernel)
    kernel.client().set_policy(agent.id, bundle(*rules))
    return begun(kernel, agent)


def limited(calls: int, window: str, **limit: Any) -> dict[str, Any]:
    config = {"max_calls": calls, "window": window, "per_what": "agent", **limit}
    return rule("limited", "allow", {"target": "x"}, rate_limit=config)


def decision(run: Attempt, target: str, args: Any = None) -> str:
    return str(run.submit(target, args).expect(200).json["decision"])


class TestLeases:
    @pytest.fixture
    def short(self, new_kernel: NewKernel) -> Kernel:
        return new_kernel(env={"REBUNO_DISPATCH_LEASE_TIMEOUT": f"{LEASE_S:.0f}s"})

    def test_a_held_run_has_none(self, short: Kernel, new_agent: NewAgent) -> None:
        run = started(short, new_agent, GATE)
        client, agent = short.client(), run.agent
        approval_id = run.hold("gated")
        agent.stop()
        let_pass(LEASE_S + 3)
        assert client.execution(run.id)["status"] == "blocked"
        assert agent.count(run.id) == 1
        agent.start()
        client.grant(approval_id).expect(204)
        run.redelivered().proceed("gated")

    def test_an_open_call_is_waited_for_one_lease(self, short: Kernel, new_agent: NewAgent) -> None:
        """A lease's term after the ended attempt's last call the run goes on without it."""
        run = started(short, new_agent, GATE, OPEN)
        client, agent = short.client(), run.agent
        slow = run.proceed("open")
        client.grant(run.hold("gated")).expect(204)
        let_pass(LEASE_S / 2)
        run.heartbeat().expect(204)
        last_call = time.monotonic()
        later = run.redelivered(LEASE_S + 6)
        assert later.delivery.at - last_call >= LEASE_S * 0.9
        assert agent.count(run.id) == 2
        run.complete_step(slow, "late").expect(409, "lease_superseded")
        assert later.proceed("open") == slow


@pytest.mark.parametrize("kill", [False, True], ids=["stop", "kill"])
class TestRestart:
    def test_an_approval_is_still_there(
        self, new_kernel: NewKernel, new_agent: NewAgent, kill: bool
    ) -> None:
        kernel = new_kernel()
        run = started(kernel, new_agent, GATE, OPEN)
        run.record("open", 1, "r")
        approval_id = run.hold("gated", {"n": 1})
        before = kernel.client().approval(approval_id)
        kernel.restart(kill=kill)
        client = kernel.client()
        assert client.approvals() == [before]
        assert client.execution(run.id)["waiting_on"][0]["id"] == approval_id
        assert run.agent.count(run.id) == 1
        client.grant(approval_id).expect(204)
        later = run.redelivered()
        assert later.replay("open", 1)["result"] == "r"
        later.complete_step(later.proceed("gated", {"n": 1})).expect(200)
        later.complete().expect(204)

    def test_a_decision_counts(
        self, new_kernel: NewKernel, new_agent: NewAgent, kill: bool
    ) -> None:
        """Granted while nobody could take the delivery."""
        kernel = new_kernel()
        run = started(kernel, new_agent, GATE)
        approval_id = run.hold("gated")
        run.agent.stop()
        kernel.client().grant(approval_id, decided_by="alice").expect(204)
        kernel.restart(kill=kill)
        run.agent.start()
        kernel.client().deny(approval_id).expect(409, "conflict")
        run.redelivered(20.0).proceed("gated")

    def test_it_ran_out_meanwhile(
        self, new_kernel: NewKernel, new_agent: NewAgent, kill: bool
    ) -> None:
        kernel = new_kernel()
        gate = rule("gate", "require_approval", approval_config={"timeout": "500ms"})
        late = rule("late", "require_approval", {"target": "later"})
        run = started(kernel, new_agent, late, gate)
        approval_id = run.hold("gated")
        other = run.hold("later")
        if kill:
            kernel.kill()
        else:
            kernel.terminate()
            assert kernel.wait_exit() == 0
        let_pass(1.0)
        kernel.start()
        client = kernel.client()
        eventually(lambda: client.approval(approval_id)["status"] == "expired", 2.0)
        assert client.approval(other)["status"] == "pending"
        client.grant(approval_id).expect(409, "conflict")
        client.grant(other).expect(204)
        later = run.redelivered()
        assert later.denied("gated")["reason"] == "approval_timeout"
        later.proceed("later")

    def test_an_ended_delivery_still_reports(
        self, new_kernel: NewKernel, new_agent: NewAgent, kill: bool
    ) -> None:
        kernel = new_kernel()
        run = started(kernel, new_agent, GATE, OPEN)
        slow = run.proceed("open", 1)
        approval_id = run.hold("gated")
        kernel.restart(kill=kill)
        client = kernel.client()
        assert decision(run, "open", 2) == "execution_blocked"
        run.heartbeat().expect(204)
        assert run.complete_step(slow, "r").expect(200).json == {"decision": "recorded"}
        run.complete().expect(409, "conflict")
        client.grant(approval_id).expect(204)
        later = run.redelivered()
        assert later.replay("open", 1)["result"] == "r"
        later.proceed("gated")

    def test_an_ended_delivery_still_asks(
        self, new_kernel: NewKernel, new_agent: NewAgent, kill: bool
    ) -> None:
        """A turn's parallel calls are asked for together, and a repeat gets its first answer."""
        kernel = new_kernel()
        run = started(kernel, new_agent, GATE, OPEN)
        first = run.submit("gated", 1, key="k").expect(200).json
        kernel.restart(kill=kill)
        assert run.submit("gated", 1, key="k").expect(200).json == first
        second = run.submit("gated", 1, key="l").expect(200).json
        other = run.submit("gated", 2).expect(200).json
        assert [a["decision"] for a in (first, second, other)] == ["blocked"] * 3
        assert len({a["step_id"] for a in (first, second, other)}) == 3
        client = kernel.client()
        assert client.step(run.id, second["step_id"])["occurrence"] == 1
        for held in (first, second, other):
            client.grant(held["approval_id"]).expect(204)
        later = run.redelivered()
        ran = [later.proceed("gated", n) for n in (1, 1, 2)]
        assert ran == [a["step_id"] for a in (first, second, other)]

    def test_a_grant_waits_for_an_open_call(
        self, new_kernel: NewKernel, new_agent: NewAgent, kill: bool
    ) -> None:
        kernel = new_kernel()
        run = started(kernel, new_agent, GATE, OPEN)
        slow = run.proceed("open")
        kernel.client().grant(run.hold("gated")).expect(204)
        kernel.restart(kill=kill)
        let_pass(1.0)
        assert run.agent.count(run.id) == 1
        run.complete_step(slow, "r").expect(200)
        later = run.redelivered()
        assert later.replay("open")["result"] == "r"
        later.proceed("gated")

    def test_a_parked_run(self, new_kernel: NewKernel, new_agent: NewAgent, kill: bool) -> None:
        """It wakes at its time, finds its token, and nobody else has got that."""
        kernel = new_kernel()
        run = started(kernel, new_agent, limited(1, "4s", max_wait="1m"))
        run.record("x", 0)
        run.park("x", 1)
        (wait,) = kernel.client().execution(run.id)["waiting_on"]
        kernel.restart(kill=kill)
        client = kernel.client()
        assert client.execution(run.id)["waiting_on"] == [wait]
        other = begun(kernel, run.agent)
        assert decision(other, "x", 2) == "blocked"
        (behind,) = client.execution(other.id)["waiting_on"]
        assert when(behind["until"]) - when(wait["until"]) == timedelta(seconds=4)
        later = run.redelivered()
        assert later.delivery.at >= run.delivery.at
        later.replay("x", 0)
        later.proceed("x", 1)
        other.redelivered().proceed("x", 2)

    def test_buckets_and_budgets(
        self, new_kernel: NewKernel, new_agent: NewAgent, kill: bool
    ) -> None:
        kernel = new_kernel()
        spend = rule("spend", "allow", {"step_kind": "llm_call"}, budget={"max_tokens": 100})
        run = started(kernel, new_agent, limited(2, "1h"), spend)
        run.record("x", 0)
        run.record("x", 1)
        usage = {"body": '{"usage":{"input_tokens":60,"output_tokens":40}}'}
        run.record("m", 0, usage, kind="llm_call")
        kernel.restart(kill=kill)
        assert decision(run, "x", 2) == "rate_limited"
        assert run.denied("m", 1, kind="llm_call")["rule_id"] == "spend"


class TestManyParked:
    RUNS, CALLS = 100, 20

    def test_woken_as_tokens_come(self, new_kernel: NewKernel, new_agent: NewAgent) -> None:
        """Twenty a second: none is woken in vain, and none before its token is there."""
        kernel = new_kernel()
        agent, client = new_agent(kernel), kernel.client()
        client.set_policy(agent.id, bundle(limited(self.CALLS, "1s", max_wait="1m")))
        runs = [begun(kernel, agent) for _ in range(self.RUNS)]
        with ThreadPoolExecutor(10) as pool:
            first = list(pool.map(lambda run: decision(run, "x"), runs))
        parked = [run for run, d in zip(runs, first, strict=True) if d == "blocked"]
        assert first.count("proceed") + len(parked) == self.RUNS
        assert len(parked) > self.RUNS // 2
        untils = {run.id: self.until(client, run) for run in parked}
        order = sorted(untils.values())
        gap = timedelta(seconds=1) / self.CALLS
        gaps = [b - a for a, b in pairwise(order)]
        assert all(abs(g - gap) < timedelta(milliseconds=1) for g in gaps)
        for run in parked:
            later = run.redelivered(30.0)
            later.proceed("x")
            queued = [e for e in client.events(run.id) if e["type"] == "dispatch.acked"]
            assert when(queued[-1]["occurred_at"]) >= untils[run.id]
        assert all(agent.count(run.id) == 2 for run in parked)

    @staticmethod
    def until(client: BearerClient, run: Attempt) -> datetime:
        log = client.events(run.id)
        (event,) = [e for e in log if e["type"] == "step.rate_limited"]
        return when(event["payload"]["until"])


class TestReplicas:
    @pytest.fixture
    def pair(self, launch: NewKernel, postgres: Cluster) -> tuple[Kernel, Kernel]:
        url = postgres.new_url()
        return launch(database_url=url), launch(database_url=url)

    @staticmethod
    def on(kernel: Kernel, run: Attempt) -> Attempt:
        """The same attempt, with its calls going to that kernel."""
        agent = FakeAgent(kernel.url, run.agent.id, secret=run.agent.secret)
        agent.stop()
        return Attempt(agent, run.delivery)

    @staticmethod
    def expired(client: BearerClient, approval_id: str, timeout: float) -> dict[str, Any]:
        eventually(lambda: client.approval(approval_id)["status"] == "expired", timeout)
        return client.approval(approval_id)

    def test_a_policy_counts_on_both_at_once(
        self, pair: tuple[Kernel, Kernel], new_agent: NewAgent
    ) -> None:
        run = started(pair[0], new_agent, OPEN)
        both = [self.on(kernel, run) for kernel in pair]
        for n in range(20):
            text = bundle(rule(f"r{n}", ("allow", "deny")[n % 2]))
            pair[n % 2].client().set_policy(run.agent.id, text)
            for call in both:
                assert decision(call, "t", n) == ("proceed", "denied")[n % 2]

    def test_a_bucket_is_shared(self, pair: tuple[Kernel, Kernel], new_agent: NewAgent) -> None:
        """Each token is taken once, by whichever."""
        agent = new_agent(pair[0])
        pair[0].client().set_policy(agent.id, bundle(limited(25, "1h")))
        runs = [begun(pair[0], agent) for _ in range(8)]
        calls = [self.on(pair[n % 2], runs[n]) for n in range(8)]
        with ThreadPoolExecutor(8) as pool:
            made = list(pool.map(lambda c: [decision(c, "x", n) for n in range(10)], calls))
        answers = [answer for row in made for answer in row]
        assert answers.count("proceed") == 25
        assert answers.count("rate_limited") == 55

    def test_one_decision_on_either(self, pair: tuple[Kernel, Kernel], new_agent: NewAgent) -> None:
        agent = new_agent(pair[0])
        pair[0].client().set_policy(agent.id, bundle(GATE))
        clients = [kernel.client() for kernel in pair]
        for _ in range(5):
            run = begun(pair[0], agent)
            approval_id = run.hold("gated")

            def decide(n: int, approval_id: str = approval_id) -> int:
                act = (clients[n % 2].grant, clients[n % 2].deny)[n // 2 % 2]
                return act(approval_id, decided_by=f"person-{n}").status

            with ThreadPoolExecutor(12) as pool:
                statuses = list(pool.map(decide, range(12)))
            assert sorted(statuses) == [204] + [409] * 11
            winner = clients[1].approval(approval_id)["decided_by"]
            assert winner == f"person-{statuses.index(204)}"
            later = run.redelivered()
            assert decision(later, "gated") in ("proceed", "denied")

    def test_expiry_without_the_leader(
        self, pair: tuple[Kernel, Kernel], new_agent: NewAgent
    ) -> None:
        gate = rule("gate", "require_approval", approval_config={"timeout": "3s"})
        run = started(pair[1], new_agent, gate)
        approval_id = run.hold("gated")
        pair[0].kill()
        client = pair[1].client()
        found = self.expired(client, approval_id, 10.0)
        expired = next(e for e in client.events(run.id) if e["type"] == "approval.expired")
        late = when(expired["occurred_at"]) - when(found["timeout_at"])
        assert timedelta(0) <= late < timedelta(seconds=2)
        assert run.redelivered().denied("gated")["reason"] == "approval_timeout"

    def test_expiry_of_what_the_other_made(
        self, pair: tuple[Kernel, Kernel], new_agent: NewAgent
    ) -> None:
        """Whichever leads, it expires within a second or so."""
        gate = rule("gate", "require_approval", approval_config={"timeout": "300ms"})
        agent = new_agent(pair[0])
        pair[0].client().set_policy(agent.id, bundle(gate))
        for kernel in pair:
            run = self.on(kernel, begun(kernel, agent))
            approval_id = run.hold("gated")
            client = kernel.client()
            found = self.expired(client, approval_id, 5.0)
            expired = next(e for e in client.events(run.id) if e["type"] == "approval.expired")
            late = when(expired["occurred_at"]) - when(found["timeout_at"])
            assert timedelta(0) <= late < timedelta(seconds=1.5)


class Clerk:
    """An agent that does `turns` gated things a run, two at once, and stops when it must wait."""

    def __init__(self, agent: FakeAgent, turns: int) -> None:
        self.agent = agent
        self.turns = turns
        self.effects: Counter[str] = Counter()  # by step id
        self.problems: list[str] = []
        agent.behaviour = self.deliver

    def deliver(self, delivery: Delivery) -> Reply:
        threading.Thread(target=self.handle, args=(delivery,), daemon=True).start()
        return Reply()

    def handle(self, delivery: Delivery) -> None:
        attempt = self.agent.attempt(delivery)
        try:
            with ThreadPoolExecutor(2) as pool:
                for turn in range(self.turns):
                    if not all(pool.map(lambda n, t=turn: self.act(attempt, t, n), range(2))):
                        return
            attempt.complete("done").expect(204)
        except Exception as error:
            self.problems.append(f"{delivery}: {error!r}")

    def act(self, attempt: Attempt, turn: int, number: int) -> bool:
        """False: it has to stop."""
        answer = attempt.submit("gated", [turn, number]).expect(200).json
        if answer["decision"] == "proceed":
            self.effects[answer["step_id"]] += 1
            attempt.complete_step(answer["step_id"], turn).expect(200)
        return answer["decision"] in ("proceed", "replay", "denied")


class TestCrowd:
    RUNS, TURNS, DECIDERS = 25, 3, 4

    def decide_all(self, client: BearerClient, agent: FakeAgent, over: threading.Event) -> int:
        """Grants and denies what there is, as fast as it goes; returns how often it was first."""
        won = 0
        chance = random.Random(threading.get_ident())
        while not over.is_set():
            for approval in client.approvals("?limit=20"):
                act = client.deny if chance.random() < 0.3 else client.grant
                answer = act(approval["id"])
                won += answer.status == 204
                if answer.status != 204:
                    answer.expect(409, "conflict")
        return won

    def test_every_decision_is_carried_out_once(
        self, new_kernel: NewKernel, new_agent: NewAgent
    ) -> None:
        kernel = new_kernel()
        agent, client = new_agent(kernel), kernel.client()
        client.set_policy(agent.id, bundle(GATE))
        clerk, over = Clerk(agent, self.TURNS), threading.Event()
        ids = [client.create(agent.id)["id"] for _ in range(self.RUNS)]
        with ThreadPoolExecutor(self.DECIDERS) as pool:
            deciders = [
                pool.submit(self.decide_all, client, agent, over) for _ in range(self.DECIDERS)
            ]
            try:
                for execution_id in ids:
                    eventually(
                        lambda i=execution_id: client.execution(i)["status"] == "completed", 60.0
                    )
            finally:
                over.set()
            won = sum(decider.result() for decider in deciders)
        assert clerk.problems == []
        assert won == self.RUNS * self.TURNS * 2
        granted = [a for a in client.approvals("?status=granted") if a["agent_id"] == agent.id]
        assert clerk.effects == Counter(a["step_id"] for a in granted)
        for execution_id in ids:
            types = client.event_types(execution_id)
            assert types.count("approval.requested") == self.TURNS * 2
            assert types.count("execution.blocked") == types.count("execution.resumed")


class TestDatabaseAway:
    @pytest.fixture
    def cluster(self) -> Iterator[Cluster]:
        cluster = Cluster()
        yield cluster
        cluster.close()

    def test_a_short_absence_is_only_a_wait(
        self, cluster: Cluster, launch: NewKernel, new_agent: NewAgent
    ) -> None:
        kernel = launch(database_url=cluster.new_url())
        run = started(kernel, new_agent, GATE)
        client = kernel.client()
        approval_id = run.hold("gated")
        text = bundle(GATE, OPEN)
        cluster.stop()
        with ThreadPoolExecutor(2) as pool:
            grant = pool.submit(client.grant, approval_id)
            setting = pool.submit(client.set_policy, run.agent.id, text)
            let_pass(1.0)
            assert not grant.done()
            assert not setting.done()
            cluster.start()
            grant.result().expect(204)
            setting.result()
        later = run.redelivered(20.0)
        later.proceed("gated")
        later.proceed("open")

    def test_a_long_one_is_told(
        self, cluster: Cluster, launch: NewKernel, new_agent: NewAgent
    ) -> None:
        kernel = launch(database_url=cluster.new_url())
        run = started(kernel, new_agent, GATE)
        client = kernel.client()
        approval_id = run.hold("gated")
        cluster.stop()
        text = bundle(rule("none", "deny"))
        with ThreadPoolExecutor(3) as pool:
            grant = pool.submit(client.grant, approval_id)
            target = f"/v0/policies/{run.agent.id}"
            setting = pool.submit(client.post, target, {"bundle": text})
            testing = pool.submit(client.test_policy, run.agent.id, bundle=text)
            for refused in (grant, setting, testing):
                refused.result().expect(503, "unavailable")
        cluster.start()
        eventually(lambda: client.get("/v0/ready").status == 200, 15)
        assert client.approval(approval_id)["status"] == "pending"
        shown = client.get(f"/v0/agents/{run.agent.id}").expect(200).json
        assert shown["policy_bundle"] == bundle(GATE)
        client.grant(approval_id).expect(204)
        run.redelivered(20.0).proceed("gated")
