"""The kernel dies, or its disk fails, at every named point of src/base/fault.h.

Guarantees 1 to 7 of ARCHITECTURE.md: what was acknowledged or seen is there after the restart, a
recorded effect happens once, results are the same, and the log has no gap. The points stand in
tests/harness/faults.py.
"""

import contextlib
import http.client
import os
import random
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

from harness import Deadline, FakeAgent, Kernel, eventually
from harness.faults import FAULT_BINARY, POINTS, Point, cases
from harness.forks import ask_fork, check_fork, read_source
from harness.kernel import BINARY, REPOSITORY, KernelDiedError
from harness.worker import Family, Worker, expected, persistent

NewKernel = Callable[..., Kernel]
NewAgent = Callable[..., FakeAgent]
MORE = int(os.environ.get("REBUNO_TEST_FAULTS", "0"))  # passings at random, beside the table's
USE = re.compile(r'\bFAULT(_FAILS)?\(\s*"([^"]+)"')
DIES_S = 60.0
ENDS_S = 60.0


class TestPoints:
    def test_each_is_in_the_table(self) -> None:
        """And has a name of its own."""
        used = [
            (name, bool(fails))
            for file in sorted((REPOSITORY / "src").glob("*/*.c"))
            for fails, name in USE.findall(file.read_text())
        ]
        assert sorted(used) == sorted((point.name, point.fails) for point in POINTS)
        assert len(set(used)) == len(used)

    def test_a_release_has_none(self) -> None:
        assert b"REBUNO_FAULT" not in BINARY.read_bytes()
        assert b"REBUNO_FAULT" in FAULT_BINARY.read_bytes(), "make FAULT=1"


class Runs:
    """Clients that create, cancel and read executions, and agents that work them off, whatever
    becomes of the kernel meanwhile; and in the end the questions whether all is well.
    """

    STEPS = 7
    OPEN_MAX = 6
    AT_LEAST = 15

    def __init__(self, kernel: Kernel, agent: FakeAgent, *, padding: int = 0) -> None:
        self.kernel, self.agent = kernel, agent
        self.client = kernel.client()
        self.worker = Worker(agent, steps=self.STEPS, padding=padding, releases=True)
        self.created: dict[str, str] = {}  # idempotency key → id
        self.cancelled: set[str] = set()  # acknowledged
        self.seen: dict[str, list[dict[str, Any]]] = {}  # events that a reader was given
        self._over: set[str] = set()
        self._enough = threading.Event()

    # What goes on

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Until the end of the block executions are created; then the last ones end."""
        failures: list[BaseException] = []

        def safely(work: Callable[..., None], *args: Any) -> None:
            try:
                work(*args)
            except BaseException as error:
                failures.append(error)

        creating = threading.Thread(target=safely, args=(self._create,), daemon=True)
        looking = threading.Thread(target=safely, args=(self._look, creating), daemon=True)
        creating.start()
        looking.start()
        try:
            yield
        finally:
            self._enough.set()
            looking.join(ENDS_S)
        assert not failures, failures
        assert not looking.is_alive(), self._open()

    def _create(self) -> None:
        while not self._enough.is_set():
            if len(self.created) - len(self._over) >= self.OPEN_MAX:
                self._enough.wait(0.01)
                continue
            self._create_one(f"run-{len(self.created)}")
            if len(self.created) % 5 == 0:
                self._cancel(self.created[f"run-{len(self.created) - 3}"])

    def _fields(self, number: int) -> dict[str, Any]:
        """What the creation of this run says beside its key."""
        return {}

    def _create_one(self, key: str) -> None:
        more = self._fields(len(self.created))
        body = {"agent_id": self.agent.id, "idempotency_key": key, **more}
        answer = persistent(lambda: self.client.post("/v0/executions", body))
        assert answer.status in (200, 201), answer
        self.created[key] = answer.json["id"]

    def _cancel(self, execution_id: str) -> None:
        target = f"/v0/executions/{execution_id}/cancel"
        answer = persistent(lambda: self.client.post(target))
        if answer.status == 409:  # it had ended, or the answer to the first try was lost
            answer.expect(409, "conflict")
        else:
            answer.expect(204)
            self.cancelled.add(execution_id)

    def _look(self, creating: threading.Thread) -> None:
        """Reads every log as it grows; over when each one has its end."""
        while creating.is_alive() or len(self._over) < len(self.created):
            for execution_id in list(self.created.values()):
                if execution_id not in self._over:
                    self._look_at(execution_id)
            self._enough.wait(0.01)

    def _look_at(self, execution_id: str) -> None:
        log = self.seen.setdefault(execution_id, [])
        target = f"/v0/executions/{execution_id}/events?limit=1000&after_seq={len(log)}"
        log += persistent(lambda: self.client.get(target)).expect(200).json
        if any(event["type"] in ENDS for event in log):
            self._over.add(execution_id)

    def _open(self) -> str:
        """Those that do not end, and where they stand."""
        lines = [f"do not end; {self.worker.problems}"]
        for execution_id, log in self.seen.items():
            if execution_id not in self._over:
                tail = [(e["event_seq"], e["type"], e["payload"]) for e in log[-4:]]
                lines.append(f"{self.client.execution(execution_id)}: {tail}")
        return "\n".join(lines)

    # Whether all is well

    def check(self) -> None:
        print(f"{len(self.created)} executions, {len(self.cancelled)} cancelled")
        assert not self.worker.problems
        assert self.created
        for key, execution_id in self.created.items():
            self._check_execution(key, execution_id)
        assert set(self.worker.effects.values()) == {1}, self.worker.effects.most_common(3)

    def _check_execution(self, key: str, execution_id: str) -> None:
        execution = self.client.execution(execution_id)
        self._check_key(key, execution)
        steps = {step["step_id"]: step for step in self.client.steps(execution_id)}
        events = self.client.events(execution_id)
        seen = self.seen[execution_id]
        assert events[: len(seen)] == seen, "what was read before is not what is there"
        assert {event["type"] for event in events[len(seen) :]} <= {"dispatch.discarded"}
        check_log(events, steps)
        ends = [event["type"] for event in events if event["type"] in ENDS]
        assert ends == [f"execution.{execution['status']}"]
        if execution["status"] == "completed":
            assert execution["output"] == {"results": [expected(n) for n in range(self.STEPS)]}
            assert len(steps) == self.STEPS
        else:
            assert execution["status"] == "cancelled"
        assert (execution_id in self.cancelled) <= (execution["status"] == "cancelled")
        assert (execution_id in self.worker.finished) <= (execution["status"] == "completed")
        for (of, number), step_id in self.worker.recorded.items():
            if of == execution_id:
                assert steps[step_id]["status"] == "succeeded"
                assert steps[step_id]["result"] == expected(number)

    def _check_key(self, key: str, execution: dict[str, Any]) -> None:
        assert execution["idempotency_key"] == key


class Turns(Runs):
    """The same in a few sessions: between an end and the start of what waited for it the kernel may
    die at any moment, and it goes on."""

    SESSIONS = 3
    OPEN_MAX = 9

    def _fields(self, number: int) -> dict[str, Any]:
        return {"session": f"session-{number % self.SESSIONS}"}

    def _look_at(self, execution_id: str) -> None:
        super()._look_at(execution_id)
        session = f"session-{len(self._over) % self.SESSIONS}"
        target = f"/v0/executions?status=running&session={session}"
        running = persistent(lambda: self.client.get(target)).expect(200).json["executions"]
        assert len(running) <= 1, running

    def check(self) -> None:
        super().check()
        for number in range(self.SESSIONS):
            target = f"/v0/executions?limit=200&session=session-{number}"
            page = self.client.get(target).expect(200).json
            self._check_parents(page["executions"][::-1])

    def _check_parents(self, executions: list[dict[str, Any]]) -> None:
        """One client creates them all, so they run in the order of their ids."""
        last = None
        for execution in executions:
            started = "execution.started" in self.client.event_types(execution["id"])
            assert execution.get("parent_execution_id") == (last if started else None)
            if execution["status"] == "completed":
                last = execution["id"]


class Forks(Runs):
    """Completed runs are forked where they ended: a fork is there whole or not at all, and repeats
    no effect. One whose making was not acknowledged may be there too."""

    OPEN_MAX = 12

    def __init__(self, kernel: Kernel, agent: FakeAgent) -> None:
        super().__init__(kernel, agent)
        self.forks: set[str] = set()  # keys

    def _create_one(self, key: str) -> None:
        done = [i for i in self._over if self.seen[i][-1]["type"] == "execution.completed"]
        if len(self.created) % 3 == 0 or not done:
            super()._create_one(key)
            return
        source = random.choice(done)
        body = {"at_seq": len(self.seen[source])}
        answer = persistent(lambda: self.client.post(f"/v0/executions/{source}/fork", body))
        self.created[key] = answer.expect(201).json["id"]
        self.forks.add(key)

    def check(self) -> None:
        super().check()
        assert self.forks
        forks = {self.created[key] for key in self.forks}
        assert not {of for of, _ in self.worker.effects} & forks
        page = self.client.get("/v0/executions?limit=200").expect(200).json
        for execution_id in {e["id"] for e in page["executions"]} - set(self.created.values()):
            eventually(partial(self._completed, execution_id))
            steps = {step["step_id"]: step for step in self.client.steps(execution_id)}
            check_log(self.client.events(execution_id), steps)
            assert len(steps) == self.STEPS

    def _completed(self, execution_id: str) -> bool:
        return bool(self.client.execution(execution_id)["status"] == "completed")

    def _check_key(self, key: str, execution: dict[str, Any]) -> None:
        if key not in self.forks:
            super()._check_key(key, execution)


class Trees(Runs):
    """Each run has a subagent, which has one: their results come back up, and a cancel goes all the
    way down, whenever the kernel dies."""

    OPEN_MAX = 4
    BELOW = 2

    def __init__(self, kernel: Kernel, agent: FakeAgent) -> None:
        super().__init__(kernel, agent)
        self.worker = Family(agent, self.client, steps=self.STEPS)

    def _fields(self, number: int) -> dict[str, Any]:
        return {"input": self.BELOW}

    def check(self) -> None:
        super().check()
        for execution_id in self.created.values():
            above, status = execution_id, self.client.execution(execution_id)["status"]
            for _ in range(self.BELOW):
                target = f"/v0/executions?spawned_by={above}"
                children = self.client.get(target).expect(200).json["executions"]
                assert len(children) == 1 or (status == "cancelled" and not children)
                if not children:
                    break
                above = children[0]["id"]
                eventually(partial(self._has_ended, above, status), ENDS_S)

    def _has_ended(self, child: str, above: str) -> bool:
        """What is below a completed run completed before it."""
        found = self.client.execution(child)["status"]
        assert above != "completed" or found == "completed"
        return found in ("completed", "cancelled")


ENDS = {"execution.completed", "execution.failed", "execution.cancelled"}


def check_log(events: list[dict[str, Any]], steps: dict[str, dict[str, Any]]) -> None:
    """Its numbers have no gap, and it tells of the steps what the steps tell of themselves."""
    assert [event["event_seq"] for event in events] == list(range(1, len(events) + 1))
    last: dict[str, str] = {}
    for event in events:
        if event["type"].startswith("step."):
            last[event["payload"]["step_id"]] = event["type"].removeprefix("step.")
    assert last == {step_id: step["status"] for step_id, step in steps.items()}


TRAFFIC: dict[str, Callable[[Kernel, FakeAgent], Runs]] = {
    "runs": Runs,
    # A MiB in a few groups, so that the log is copied and started anew again and again.
    "large runs": lambda kernel, agent: Runs(kernel, agent, padding=40_000),
    "turns": Turns,
    "forks": Forks,
    "trees": Trees,
}


def passings(point: Point) -> list[int]:
    seed = int(os.environ.get("REBUNO_TEST_SEED", random.randrange(2**32)))
    print(f"REBUNO_TEST_SEED={seed}")
    chance = random.Random(seed)
    most = max(point.passings)
    return [
        *point.passings,
        *(chance.randint(1, 2 * most if most > 1 else 1) for _ in range(MORE)),
    ]


def dies_at(kernel: Kernel, point: Point, passing: int) -> None:
    """A life of the kernel that ends at the point."""
    kernel.env["REBUNO_FAULT"] = f"{point.name}:{passing}"
    kernel.spawn()
    assert kernel.wait_exit(DIES_S) == -signal.SIGKILL, kernel.log_tail()
    del kernel.env["REBUNO_FAULT"]


@cases(POINTS)
def test_killed_at(point: Point, fault_kernel: Kernel, new_agent: NewAgent) -> None:
    """One life after another ends at the point, while agents and clients live through them all."""
    kernel = fault_kernel
    if point.at_start:
        dies_at(kernel, point, 1)
    kernel.start()
    traffic = TRAFFIC[point.traffic](kernel, new_agent(kernel))
    with traffic.going_on():
        eventually(lambda: traffic.worker.total > 2)
        kernel.kill()
        for passing in passings(point):
            dies_at(kernel, point, passing)
        kernel.start()
        eventually(lambda: len(traffic.created) >= Runs.AT_LEAST, 30)
    traffic.check()


AROUND_AN_END = ["store.apply.before", "store.commit.after", "engine.answers.before"]


@cases(
    [replace(p, traffic="turns", passings=(1, 7, 23)) for p in POINTS if p.name in AROUND_AN_END]
)
def test_turns_of_a_kernel_killed_at(
    point: Point, fault_kernel: Kernel, new_agent: NewAgent
) -> None:
    test_killed_at(point, fault_kernel, new_agent)


@cases(
    [replace(p, traffic="trees", passings=(1, 9, 30)) for p in POINTS if p.name in AROUND_AN_END]
)
def test_trees_of_a_kernel_killed_at(
    point: Point, fault_kernel: Kernel, new_agent: NewAgent
) -> None:
    test_killed_at(point, fault_kernel, new_agent)


@cases([point for point in POINTS if point.name == "fork.part"])
def test_dies_between_the_slices_of_a_large_fork(
    point: Point, fault_kernel: Kernel, new_agent: NewAgent
) -> None:
    """After each of them in turn: nobody ever sees a part of it, and the next one is whole."""
    kernel = fault_kernel.start()
    agent, client = new_agent(kernel), kernel.client()
    run = agent.take_attempt(client.create(agent.id)["id"])
    for n in range(500):
        run.record("x", n, n)
    run.complete().expect(204)
    source = read_source(client, run.id)
    source.log = client.events(run.id)
    for passing in range(1, 20):
        kernel.kill()
        kernel.env["REBUNO_FAULT"] = f"{point.name}:{passing}"
        kernel.start()
        try:
            made = ask_fork(client, run.id, len(source.log))
            break
        except (OSError, http.client.HTTPException):
            assert kernel.wait_exit(DIES_S) == -signal.SIGKILL, kernel.log_tail()
        del kernel.env["REBUNO_FAULT"]
        kernel.start()
        page = client.get("/v0/executions").expect(200).json
        assert [e["id"] for e in page["executions"]] == [run.id]
    assert passing > 3
    check_fork(client, source, len(source.log), made.expect(201).json)
    assert client.events(run.id) == source.log


@cases([point for point in POINTS if point.fails])
def test_failing_at(point: Point, fault_kernel: Kernel, new_agent: NewAgent) -> None:
    """The call fails as a broken disk would; the kernel lives, and takes writes again by itself."""
    kernel = fault_kernel.start()
    traffic = TRAFFIC[point.traffic](kernel, new_agent(kernel))
    with traffic.going_on():
        for passing in passings(point):
            eventually(lambda: traffic.worker.total > 2)
            kernel.kill()
            kernel.env["REBUNO_FAULT"] = f"{point.name}:{passing}:fail"
            kernel.start()
            eventually(lambda: "fault.failing" in kernel.log_text(), DIES_S)
            kernel.wait_answering()
            enough, deadline = traffic.worker.total + 20, Deadline(DIES_S)
            while traffic.worker.total < enough and not deadline.passed:
                kernel.assert_alive()
                deadline.pause()
            assert traffic.worker.total >= enough, kernel.log_tail()
    traffic.check()


def test_dies_between_an_end_and_the_next_start(
    fault_kernel: Kernel, new_agent: NewAgent, session: str
) -> None:
    """The end is on disk and was not answered; its session's next one starts after the restart."""
    kernel = fault_kernel.start()
    agent, client = new_agent(kernel), kernel.client()
    run = agent.take_attempt(client.create(agent.id, session=session)["id"])
    eventually(lambda: "dispatch.acked" in client.event_types(run.id))
    waiting = client.create(agent.id, session=session)["id"]
    for passing in range(1, 20):  # the start commits as well
        kernel.kill()
        kernel.env["REBUNO_FAULT"] = f"store.commit.after:{passing}"
        with contextlib.suppress(KernelDiedError):
            kernel.start()
            with contextlib.suppress(OSError, http.client.HTTPException):
                run.complete("o", state=passing)
        kernel.kill()
        del kernel.env["REBUNO_FAULT"]
        begin = time.time()
        kernel.start()
        if client.execution(run.id)["status"] == "completed":
            break
    eventually(lambda: client.execution(waiting)["status"] == "running")
    started = client.events(waiting)[1]
    assert started["type"] == "execution.started"
    assert datetime.fromisoformat(started["occurred_at"]).timestamp() >= begin
    later = agent.take_attempt(waiting)
    assert later.previous().expect(200).json == {"state": passing}
