"""A run whose steps wait for a person, and that person; both live through the kernel's deaths."""

import contextlib
import http.client
import threading
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from harness.agent import Attempt, Delivery, FakeAgent, Reply
from harness.client import Answer, BearerClient
from harness.policies import bundle, rule
from harness.waiting import Deadline
from harness.worker import StopHandlerError, Worker, expected, persistent

OUTCOMES = ("granted", "denied", "expired")  # each what becomes of the step that is called so
RATIONALE = "use a copy"
PATIENCE_S = 60.0


def policy(timeout: str) -> str:
    """Of all three steps one runs out by itself."""
    short = {"timeout": timeout}
    return bundle(
        rule("expires", "require_approval", {"target": "expired"}, approval_config=short),
        rule("waits", "require_approval"),
    )


class Turns:
    """Who may act next: anybody at any time at first, and one call or delivery in each life of the
    kernel after `end` was called once."""

    def __init__(self) -> None:
        self.over = threading.Event()  # what was done in this life's turn is done
        self._changed = threading.Condition()
        self._life = 0
        self._free = True

    @property
    def life(self) -> int:
        return self._life

    def end(self) -> None:
        """With the life: whoever has got no turn in it waits for the next."""
        with self._changed:
            self._life += 1
            self._free = False
            self._changed.notify_all()

    def give(self) -> None:
        with self._changed:
            self.over.clear()
            self._free = True
            self._changed.notify_all()

    def take(self, life: int | None = None) -> bool:
        """False if that life has ended; without one, any will do."""
        with self._changed:
            while not self._free and life in (None, self._life):
                self._changed.wait()
            if life not in (None, self._life):
                return False
            self._free = self._life == 0
            return True


class HeldRun(Worker):
    """One execution with a step for each of OUTCOMES.

    Each delivery submits them all; as long as some are held, it then plays the person, who decides
    in the given order, once `may_decide` is set. What was granted is run. The steps are
    at_most_once, so an attempt too many would show.
    """

    def __init__(self, agent: FakeAgent, client: BearerClient, order: Sequence[str]) -> None:
        super().__init__(agent, steps=1, idempotency="at_most_once")
        self.client = client
        self.order = order
        self.turns = Turns()
        self.may_decide = threading.Event()
        self.execution_id = ""
        self.acknowledged: dict[str, str] = {}  # of an approval's id: what was answered 204
        self.seen: list[dict[str, Any]] = []  # the log as it was read at some time
        self._over = threading.Event()

    @property
    def over(self) -> bool:
        return self._over.is_set() or bool(self.problems)

    def begin(self) -> None:
        """Creates the execution, as soon as a kernel takes it."""
        threading.Thread(target=self._create, daemon=True).start()

    def _create(self) -> None:
        body = {"agent_id": self.agent.id, "idempotency_key": uuid.uuid4().hex}
        answer = self._change(lambda: self.client.post("/v0/executions", body))
        if answer.status in (200, 201):
            self.execution_id = answer.json["id"]
        else:
            self.problems.append(str(answer))

    def _deliver(self, delivery: Delivery) -> Reply:
        if not self.turns.take(self.turns.life):
            return Reply(cut=True)  # nobody is there to hear it
        return super()._deliver(delivery)

    def _change(self, call: Callable[[], Answer]) -> Answer:
        """Asked again only in another turn, since one may be all that this life has."""
        deadline = Deadline(PATIENCE_S)
        while True:
            self.turns.take()
            with contextlib.suppress(OSError, http.client.HTTPException):
                while (answer := call()).status == 503 and not deadline.passed:
                    deadline.pause()
                self.turns.over.set()
                return answer
            assert not deadline.passed, "no answer"
            deadline.pause()

    def _work(self, attempt: Attempt) -> None:
        self._wait_for_ack(attempt)
        if not all([self._is_settled(attempt, target) for target in OUTCOMES]):
            self._decide_what_waits()
            raise StopHandlerError
        answer = self._change(lambda: attempt.complete("done"))
        if answer.status == 409:  # the answer to the first try was lost
            answer.expect(409, "execution_terminal")
        else:
            answer.expect(204)
            self.finished.add(attempt.id)
        self._over.set()

    def _wait_for_ack(self, attempt: Attempt) -> None:
        """So that the log has one order: no call of the attempt is taken for its ack."""
        target = f"/v0/executions/{attempt.id}/events?limit=1000"
        deadline = Deadline(PATIENCE_S)
        while True:
            self._owns(attempt)
            log = persistent(lambda: self.client.get(target)).expect(200).json
            acked = {e["payload"]["dispatch_id"] for e in log if e["type"] == "dispatch.acked"}
            if attempt.delivery.dispatch_id in acked:
                self.seen = log
                self.turns.over.set()
                return
            assert not deadline.passed, log
            deadline.pause()

    def _is_settled(self, attempt: Attempt, target: str) -> bool:
        decision = self._submitted(attempt, target, None)
        if decision["decision"] in ("blocked", "execution_blocked"):
            return False
        if target != "granted":
            reason = {"denied": RATIONALE, "expired": "approval_timeout"}[target]
            assert (decision["decision"], decision["reason"]) == ("denied", reason), decision
        elif decision["decision"] == "replay":
            assert decision["result"] == expected(0), decision
        else:
            self._performed(attempt, 0, decision)
        return True

    # The person

    def _decide_what_waits(self) -> None:
        assert self.may_decide.wait(PATIENCE_S)
        pending = self._change(lambda: self.client.get("/v0/approvals")).expect(200).json
        waiting = {approval["target"]: approval["id"] for approval in pending}
        for target in self.order:
            if target in waiting:
                self._decide(target, waiting[target])

    def _decide(self, target: str, approval_id: str) -> None:
        path = f"/v0/approvals/{approval_id}"
        if target == "expired":
            self.turns.take()
            deadline = Deadline(PATIENCE_S)
            while persistent(lambda: self.client.get(path)).expect(200).json["status"] != target:
                assert not deadline.passed, approval_id
                deadline.pause()
            self.turns.over.set()
            return
        verb = {"granted": "grant", "denied": "deny"}[target]
        body = {"rationale": RATIONALE}
        answer = self._change(lambda: self.client.post(f"{path}/{verb}", body))
        if answer.status == 409:  # the answer to the first try was lost
            assert answer.json["details"]["status"] == target, answer
        else:
            answer.expect(204)
            self.acknowledged[approval_id] = target
