"""A run, its subagent and that one's subagent, whose process or kernel dies at each moment.

The agent is of the real SDK, in a process of its own. All it says to the kernel and all the kernel
says to it goes through a relay. When a message was answered, so that something may have been
recorded, the process or the kernel is killed and the answer lost. A delivery and the report of an
effect are also lost before they arrive. Then the dead one is started again, and the tree goes on to
its next moment.
"""

import contextlib
import http.client
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from harness import BearerClient, Deadline, Kernel, eventually
from harness.kernel import TOKEN
from harness.relay import Message, Relay
from harness.waiting import POLL_S

NewKernel = Callable[..., Kernel]
Victim = Literal["agent", "kernel"]
PROGRAM = Path(__file__).with_name("tree_agent.py")
SECRET = "secret-of-the-tree"
DEPTH = 2
ENDS_S = 400.0
TERMINAL = ("completed", "failed", "cancelled")
# A dead agent's lease is waited for, and a living one must keep it on a busy machine; a dead kernel's
# agent keeps its own.
LEASE = {"agent": "3s", "kernel": "2m"}
RUN = re.compile(r"/v0/executions/([^/]+)/")
STEPS = re.compile(r"/v0/executions/([^/]+)/steps")
SETTLES = re.compile(r"/v0/executions/([^/]+)/steps/([^/]+)/complete")
ENDS = re.compile(r"/v0/executions/([^/]+)/(suspend|complete)")
# The depths at which the process dies with the effect that may happen once: before it, and before
# its report arrives. At the third the report is recorded, and only the answer lost.
BEFORE, AFTER = 1, 2
DELIVERIES = ("delivered", "delivered again")
WAITS_S = 25.0  # a delivery is given up after 30
Json = dict[str, Any]
Place = tuple[str, ...]  # whose run, what was said, and whether it was "asked" or "answered"


class AgentProcess:
    """Serves on one port all its lives long."""

    def __init__(self, folder: Path, kernel_url: str) -> None:
        self.effects = folder / "effects"
        self.effects.touch()
        self.log = folder / "agent.log"
        own = {
            "EFFECTS": str(self.effects),
            "REBUNO_URL": kernel_url,
            "REBUNO_AGENT_SECRET": SECRET,
            "REBUNO_API_KEY": TOKEN,
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        with self.log.open("wb") as log:
            self._parent = subprocess.Popen(
                [sys.executable, PROGRAM],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=os.environ | own,
                text=True,
            )
        self.port = self._number()
        self._child: int | None = None

    def _number(self) -> int:
        assert self._parent.stdout is not None
        return int(self._parent.stdout.readline())

    def start(self) -> None:
        assert self._parent.stdin is not None
        self._parent.stdin.write("\n")
        self._parent.stdin.flush()
        self._child = self._number()

    def kill(self) -> None:
        if self._child is not None:
            os.kill(self._child, signal.SIGKILL)
            self._child = None

    def close(self) -> None:
        self.kill()
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        self._parent.stdin.close()
        self._parent.wait(20)
        self._parent.stdout.close()


class Tree:
    """The tree, and where it died."""

    def __init__(self, kernel: Kernel, folder: Path, victim: Victim) -> None:
        self.kernel, self.victim = kernel, victim
        self.client: BearerClient = kernel.client()
        self.deaths: list[Place] = []
        self._born = time.monotonic()
        self._dying = threading.Event()  # nothing gets through
        self._changed = threading.Condition()
        self._given: set[str] = set()  # runs whose delivery is not answered yet
        self._to_kernel = Relay(kernel.url, lambda message: self._lost(message, self._said))
        self.agent = AgentProcess(folder, self._to_kernel.url)
        self._to_agent = Relay(
            f"http://127.0.0.1:{self.agent.port}",
            lambda message: self._lost(message, self._delivered),
        )
        body = {"id": "tree", "webhook_url": f"{self._to_agent.url}/webhook", "secret": SECRET}
        self.client.post("/v0/agents", body).expect(201)
        self.agent.start()

    def _lost(self, message: Message, place_of: Callable[[Message], Place | None]) -> bool:
        place = place_of(message)
        with self._changed:
            here = None if place is None else (*place, "answered" if message.answered else "asked")
            left_over = message.arrived < self._born  # lost with the one that died
            if here is not None and here not in self.deaths:
                self.deaths.append(here)
                if not left_over:
                    self._dying.set()
            if place is not None and place[1] in DELIVERIES:
                (self._given.discard if message.answered else self._given.add)(place[0])
            if self._dying.is_set():
                self._given.clear()
            self._changed.notify_all()
            return left_over or self._dying.is_set()

    def _delivered(self, message: Message) -> Place | None:
        run = message.json["execution_id"]
        with contextlib.suppress(OSError, http.client.HTTPException):
            if self.victim == "agent" and not message.answered:
                self._wait_for_above(run)
            resumed = "execution.resumed" in self.client.event_types(run)
            return run, DELIVERIES[resumed]
        return None  # the one that asked is gone

    def _wait_for_above(self, run: str) -> None:
        """One runs at a time, so that the death of the process is the death of that one alone."""
        if above := self.client.execution(run).get("spawned_by"):
            id_ = above["execution_id"]
            eventually(lambda: self.client.execution(id_)["status"] == "blocked", WAITS_S)

    def _said(self, message: Message) -> Place | None:
        if found := RUN.match(message.path):
            run = found[1]
            with self._changed:  # it has begun while the kernel does not know that it will
                self._changed.wait_for(lambda: run not in self._given, WAITS_S)
        if found := SETTLES.fullmatch(message.path):
            spared = self.victim == "agent" and message.json["result"] == "once 0"
            return None if spared and not message.answered else (found[1], found[2])
        if message.method != "POST" or not message.answered:
            return None
        if found := ENDS.fullmatch(message.path):
            return found[1], found[2]
        if message.path == "/v0/executions":
            return message.json["spawned_by"]["execution_id"], "created"
        if found := STEPS.fullmatch(message.path):
            return self._submitted(found[1], message.json)
        return None

    def _submitted(self, run: str, step: Json) -> Place | None:
        """What may happen once and was allowed to is lost with the process."""
        target, depth = step["target"], step["args"]["depth"]
        return (run, target) if may_die(self.victim, target, depth, step["idempotency"]) else None

    def run(self) -> str:
        """To its end, through all deaths; the id of the topmost run."""
        victim = self.agent if self.victim == "agent" else self.kernel
        created = self.client.create("tree", input={"depth": DEPTH})
        deadline = Deadline(ENDS_S)
        while self._dying.wait(POLL_S) or not self._is_over(created["id"]):
            assert not deadline.passed, f"{self.deaths}\n{self.kernel.log_tail()}"
            if self._dying.is_set():
                victim.kill()
                self._born = time.monotonic()
                self._dying.clear()
                victim.start()
        eventually(lambda: (created["id"], "complete", "answered") in self.deaths)
        return str(created["id"])

    def _is_over(self, execution_id: str) -> bool:
        return self.client.execution(execution_id)["status"] in TERMINAL

    def effects(self) -> Counter[str]:
        """How often each step had its effect."""
        return Counter(self.agent.effects.read_text().split())

    def close(self) -> None:
        self._dying.set()
        self.agent.close()
        self._to_kernel.close()
        self._to_agent.close()


def may_die(victim: Victim, target: str, depth: int, idempotency: str) -> bool:
    """When a step was allowed; what may happen once is lost then, with all that comes of it."""
    return (
        victim == "kernel" or idempotency != "at_most_once" or (target, depth) == ("once", BEFORE)
    )


@pytest.fixture(params=["agent", "kernel"])
def tree(request: pytest.FixtureRequest, new_kernel: NewKernel, tmp_path: Path) -> Iterator[Tree]:
    env = {
        "REBUNO_DISPATCH_LEASE_TIMEOUT": LEASE[request.param],
        "REBUNO_DISPATCH_MAX_ATTEMPTS": "1000",
    }
    made = Tree(new_kernel(env=env), tmp_path, request.param)
    yield made
    made.close()


def runs_of(client: BearerClient) -> dict[int, Json]:
    """All runs that there are, by depth: one each, spawned by the step of the one above."""
    listed = client.get("/v0/executions?limit=200").expect(200).json["executions"]
    runs = {one["input"]["depth"]: client.execution(one["id"]) for one in listed}
    assert len(listed) == len(runs) == DEPTH + 1
    for depth in range(DEPTH):
        above = runs[depth + 1]["id"]
        (delegated,) = (s for s in client.steps(above) if s["target"] == "delegate")
        spawned_by = {"execution_id": above, "step_id": delegated["step_id"]}
        assert runs[depth]["spawned_by"] == spawned_by
        assert delegated["result"] == runs[depth]["output"]
    return runs


def output_of(depth: int, victim: Victim) -> Json:
    """What each run says in the end, whatever died when."""
    unknown = victim == "agent" and depth in (BEFORE, AFTER)
    return {
        "once": "unknown" if unknown else f"once {depth}",
        "below": output_of(depth - 1, victim) if depth else None,
        "again": f"again {depth}",
    }


def expected_deaths(
    depth: int, run: str, steps: dict[str, Json], victim: Victim, *, waited: bool
) -> set[Place]:
    both = ("asked", "answered")
    found = {(run, "delivered", when) for when in both} | {(run, "complete", "answered")}
    for target, step in steps.items():
        if may_die(victim, target, depth, step["idempotency"]):
            found.add((run, target, "answered"))
        if target != "delegate":
            found |= {(run, step["step_id"], when) for when in reports(victim, target, depth)}
    if not depth:
        return found
    found.add((run, "created", "answered"))
    delegated = steps["delegate"]
    # The next process is told that such a step waits, and does not ask. And a kernel that dies of
    # what the run below says may have granted it.
    if victim == "agent" and delegated["idempotency"] != "at_most_once":
        found.add((run, "suspend", "answered"))
    if waited:
        return found | {(run, "delivered again", when) for when in both}
    return found | {(run, delegated["step_id"], when) for when in both}  # it could return at once


def reports(victim: Victim, target: str, depth: int) -> tuple[str, ...]:
    """When it dies with the report of an effect."""
    if victim == "kernel" or target == "again":
        return ("asked", "answered")
    return {BEFORE: (), AFTER: ("asked",)}.get(depth, ("answered",))


def check_steps(tree: Tree, depth: int, steps: dict[str, Json], effects: Counter[str]) -> None:
    """Each is recorded once, with the effects that its record allows."""
    assert sorted(steps) == sorted({"once", "again"} | ({"delegate"} if depth else set()))
    killed = tree.victim == "agent"
    unknown = killed and depth in (BEFORE, AFTER)
    failed = {target for target, step in steps.items() if step["status"] != "succeeded"}
    assert failed == ({"once"} if unknown else set())
    # A report that was lost with the process is an effect that happens again, or is not known of.
    assert effects[steps["again"]["step_id"]] == (2 if killed else 1)
    assert effects[steps["once"]["step_id"]] == (0 if killed and depth == BEFORE else 1)


def check_log(types: list[str], depth: int, victim: Victim) -> bool:
    """It begins and ends once and nothing is left open. Whether it waited for what is below, which
    may have ended by then where the process of both goes on."""
    assert types[:3] == ["execution.created", "execution.started", "dispatch.queued"]
    counts = Counter(types)
    assert counts["execution.created"] == counts["execution.completed"] == 1
    assert types[-1] == "execution.completed"
    waited = counts["execution.blocked"]
    assert waited == counts["execution.resumed"]
    assert waited in ((0, 1) if depth and victim == "kernel" else (1 if depth else 0,))
    assert counts["step.proposed"] == counts["step.allowed"] == (3 if depth else 2)
    assert counts["step.succeeded"] + counts["step.failed"] == counts["step.proposed"]
    return waited == 1


@pytest.mark.slow
def test_a_tree_ends_the_same(tree: Tree) -> None:
    tree.run()
    effects = tree.effects()
    expected: set[Place] = set()
    for depth, run in runs_of(tree.client).items():
        assert (run["status"], run["output"]) == ("completed", output_of(depth, tree.victim))
        listed = tree.client.steps(run["id"])
        steps = {step["target"]: step for step in listed}
        assert len(steps) == len(listed)
        check_steps(tree, depth, steps, effects)
        waited = check_log(tree.client.event_types(run["id"]), depth, tree.victim)
        expected |= expected_deaths(depth, run["id"], steps, tree.victim, waited=waited)
    assert expected <= set(tree.deaths)
    assert {place[1:] for place in set(tree.deaths) - expected} <= {("suspend", "answered")}
