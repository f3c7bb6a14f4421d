"""The kernel dies between every two transitions of a run that waits for a person.

Policy holds the run's three steps; one is granted, one denied, and one runs out. The run is resumed
and delivered again, runs what was granted, and ends. Guarantees 1 to 7 of ARCHITECTURE.md.
"""

import contextlib
import http.client
import shutil
import signal
import sqlite3
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from harness import Cluster, Deadline, FakeAgent, Kernel, eventually
from harness.faults import POINTS, Point, cases
from harness.held import OUTCOMES, HeldRun, policy
from harness.kernel import KernelDiedError

NewAgent = Callable[..., FakeAgent]
Recorded = Callable[[Kernel], int]
Order = tuple[str, ...]
LIFE_S = 5.0
ENDS_S = 100.0
# The last answer resumes the run. What is to run out before the others does so at once.
ORDERS: dict[Order, str] = {
    ("expired", "granted", "denied"): "50ms",
    ("expired", "denied", "granted"): "50ms",
    ("granted", "denied", "expired"): "2s",
}
NOT_PASSED = ("sqlite.checkpoint.", "fork.")  # by such a run
PASSED = [p for p in POINTS if not p.at_start and not p.name.startswith(NOT_PASSED)]
# Nothing is recorded yet; all is recorded and nobody knows.
AROUND = [p for p in PASSED if p.name in ("store.commit.before", "engine.answers.before")]
orders = pytest.mark.parametrize("order", ORDERS, ids=[f"{order[-1]} last" for order in ORDERS])


@pytest.fixture
def recorded(request: pytest.FixtureRequest, database: Any, tmp_path: Path) -> Recorded:
    """How many events there are in the database of a kernel that is dead; it is left as it is."""
    sql = "SELECT coalesce(max(first_seq + count - 1), 0) FROM events"

    def in_sqlite(kernel: Kernel) -> int:
        path = Path(urlsplit(str(kernel.database_url)).path)
        copy = tmp_path / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        copy.mkdir()
        for file in (path, path.with_name(path.name + "-wal")):
            if file.exists():
                shutil.copy(file, copy)
        db = sqlite3.connect(copy / path.name)
        (count,) = db.execute(sql).fetchone()
        db.close()
        return int(count)

    if database.kind == "sqlite":
        return in_sqlite
    cluster: Cluster = request.getfixturevalue("postgres")
    # What the dead one has sent may still be on its way.
    others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"

    def in_postgres(kernel: Kernel) -> int:
        name = urlsplit(str(kernel.database_url)).path.removeprefix("/")

        def alone() -> str:
            connected, count = cluster.psql(f"{others}; {sql}", name).split()
            return count if connected == "1" else ""

        return int(eventually(alone))

    return in_postgres


def held_run(kernel: Kernel, agent: FakeAgent, order: Order) -> HeldRun:
    client = kernel.client()
    client.set_policy(agent.id, policy(ORDERS[order]))
    return HeldRun(agent, client, order)


DECIDED = {
    "approval.granted": "step.allowed",
    "approval.denied": "step.denied",
    "approval.expired": "step.denied",
}
# What the transitions of this run begin with.
BEGINS = {
    *("execution.created", "dispatch.acked", "step.proposed", *DECIDED),
    *("step.executing", "step.succeeded", "execution.completed"),
}
HELD = ["step.proposed", "step.awaiting_approval", "approval.requested"]
STEPS = {
    "granted": [*HELD, "approval.granted", "step.allowed", "step.executing", "step.succeeded"],
    "denied": [*HELD, "approval.denied", "step.denied"],
    "expired": [*HELD, "approval.expired", "step.denied"],
}


def check(run: HeldRun) -> list[str]:
    """Whether all is well in the end; the types of its events."""
    assert not run.problems
    client = run.client
    log = client.events(run.execution_id)
    assert log[: len(run.seen)] == run.seen, "what was read before is not what is there"
    targets = {step["step_id"]: step["target"] for step in client.steps(run.execution_id)}
    assert sorted(targets.values()) == sorted(STEPS)
    for step_id, target in targets.items():
        of_step = [e["type"] for e in log if e["payload"].get("step_id") == step_id]
        assert of_step == STEPS[target]
    types = [event["type"] for event in log]
    check_order(types)
    assert run.effects == {(run.execution_id, 0): 1}
    assert client.execution(run.execution_id)["output"] == "done"
    check_approvals(run, [event["payload"] for event in log if event["type"] in DECIDED], targets)
    assert client.event_types(run.execution_id) == types
    return types


def check_approvals(run: HeldRun, decided: list[dict[str, Any]], targets: dict[str, str]) -> None:
    """What was acknowledged holds, and nobody decides anything again."""
    outcomes = {payload["approval_id"]: targets[payload["step_id"]] for payload in decided}
    assert run.acknowledged.items() <= outcomes.items()
    for approval_id, outcome in outcomes.items():
        assert run.client.approval(approval_id)["status"] == outcome
        for again in (run.client.grant, run.client.deny):
            again(approval_id).expect(409, "conflict")


def check_order(types: list[str]) -> None:
    """Whole transitions: it is blocked while something waits, then resumed and delivered once."""
    expected: list[str] = []
    waiting = 0
    for kind in types:
        if kind == "step.proposed":
            expected += HELD if waiting else [*HELD, "execution.blocked"]
            waiting += 1
        elif kind in DECIDED:
            waiting -= 1
            resumed = ["execution.resumed", "dispatch.queued"]
            expected += [kind, DECIDED[kind], *([] if waiting else resumed)]
        elif kind == "execution.created":
            expected += [kind, "execution.started", "dispatch.queued"]
        elif kind in BEGINS:
            expected.append(kind)
    assert types == expected
    assert types.count("dispatch.queued") == types.count("dispatch.acked")
    assert types[-1] == "execution.completed"


def missed(types: list[str], deaths: list[int]) -> list[str]:
    """Between which transitions it did not die, from the first death on. The expiry, which comes
    when it comes, may share its life with the one before and the one after."""
    begins = [at for at, kind in enumerate(types) if kind in BEGINS]
    return [
        f"{types[at - 1]} | {types[at]}"
        for before, at in pairwise(begins)
        if at >= deaths[0] and at not in deaths
        if "approval.expired" not in (types[before], types[at])
    ]


def one_life(
    kernel: Kernel, run: HeldRun, fault: str = "", ends: Callable[[], bool] = lambda: False
) -> None:
    """In which the run gets one turn. When that is over the kernel is killed, if it still lives."""
    run.turns.end()
    if fault:
        kernel.env["REBUNO_FAULT"] = fault
    with contextlib.suppress(KernelDiedError):
        kernel.start()
        run.turns.give()
        deadline = Deadline(LIFE_S)  # a late delivery of the life before may have got the turn
        while not (run.turns.over.is_set() or run.problems or deadline.passed or ends()):
            kernel.assert_alive()
            deadline.pause(0.002)
    kernel.kill()
    assert kernel.ended_with == -signal.SIGKILL, kernel.log_tail()
    kernel.env.pop("REBUNO_FAULT", None)


def dies_on_the_way(kernel: Kernel, point: Point, run: HeldRun, recorded: Recorded) -> None:
    """Each life ends at the point, about the first passing that gets the run on. In the end all is
    well, and it has died between every two transitions."""
    deaths, passing = [recorded(kernel)], 1
    deadline = Deadline(ENDS_S)
    while not run.over:
        assert not deadline.passed, kernel.log_tail()
        one_life(kernel, run, f"{point.name}:{passing}")
        deaths.append(recorded(kernel))
        passing = max(1, passing - 1) if deaths[-1] > deaths[-2] else passing + 1
    well(kernel, run, deaths)


def well(kernel: Kernel, run: HeldRun, deaths: list[int]) -> None:
    print(f"events at each death: {deaths}")
    assert deaths == sorted(deaths), "what was recorded is gone"
    kernel.start()
    assert missed(check(run), deaths) == []


@cases(PASSED)
def test_killed_at(
    point: Point, fault_kernel: Kernel, new_agent: NewAgent, recorded: Recorded
) -> None:
    """From the creation on."""
    kernel = fault_kernel.start()
    run = held_run(kernel, new_agent(kernel), ("expired", "granted", "denied"))
    kernel.kill()
    run.may_decide.set()
    run.begin()
    dies_on_the_way(kernel, point, run, recorded)


@orders
@cases(AROUND)
def test_killed_at_while_three_wait(
    point: Point,
    order: Order,
    fault_kernel: Kernel,
    new_agent: NewAgent,
    recorded: Recorded,
) -> None:
    kernel = fault_kernel.start()
    run = held_run(kernel, new_agent(kernel), order)
    run.begin()
    eventually(lambda: len(run.client.approvals("?status=")) == len(OUTCOMES))
    kernel.kill()
    run.may_decide.set()
    dies_on_the_way(kernel, point, run, recorded)


@orders
def test_killed_after_each_event(
    order: Order,
    new_kernel: Callable[..., Kernel],
    new_agent: NewAgent,
    recorded: Recorded,
) -> None:
    """At once, as soon as a reader was given it."""
    kernel = new_kernel()
    run = held_run(kernel, new_agent(kernel), order)
    kernel.kill()
    run.may_decide.set()
    run.begin()
    deaths = [recorded(kernel)]

    def grown() -> bool:
        if not run.execution_id:
            return False
        with contextlib.suppress(OSError, http.client.HTTPException):
            return len(run.client.events(run.execution_id)) > deaths[-1]
        return False

    deadline = Deadline(ENDS_S)
    while not run.over:
        assert not deadline.passed, kernel.log_tail()
        one_life(kernel, run, ends=grown)
        deaths.append(recorded(kernel))
    well(kernel, run, deaths)
