"""An agent that works by itself, the way published agents do: one handler an execution, and a
kernel that may be gone for a while is asked again where that is safe.
"""

import contextlib
import http.client
import threading
import uuid
from collections import Counter
from collections.abc import Callable
from typing import Any

from harness.agent import OK, Attempt, Delivery, FakeAgent, Reply
from harness.client import Answer, BearerClient
from harness.waiting import Deadline

RETRY_S = 60.0


class StopHandlerError(Exception):
    """The attempt is not the owner any more, or the execution has ended."""


def persistent(call: Callable[[], Answer]) -> Answer:
    """Repeats a call while the kernel does not answer, or answers that its store is away."""
    deadline = Deadline(RETRY_S)
    while True:
        with contextlib.suppress(OSError, http.client.HTTPException):
            answer = call()
            if answer.status != 503:
                return answer
        if deadline.passed:
            raise AssertionError(f"no answer within {RETRY_S} s")
        deadline.pause()


class Worker:
    """Runs `steps` steps for each execution that is delivered, and counts the effects.

    A step's effect is noted under (execution, step number) between `proceed` and the report, and
    its report once it is acknowledged. `padding` makes the arguments larger by so many bytes;
    `releases` gives each run back once, in the midst of its first attempt.
    """

    def __init__(
        self,
        agent: FakeAgent,
        *,
        steps: int,
        idempotency: str = "safe_to_retry",
        padding: int = 0,
        releases: bool = False,
    ) -> None:
        self.agent = agent
        self.steps = steps
        self.idempotency = idempotency
        self.padding = "x" * padding
        self.releases = releases
        self.effects: Counter[tuple[str, int]] = Counter()
        self.recorded: dict[tuple[str, int], str] = {}  # the step's id
        self.finished: set[str] = set()
        self.problems: list[str] = []
        self.total = 0
        self._lock = threading.Lock()
        self._current: dict[str, tuple[str, int]] = {}
        agent.behaviour = self._deliver

    def _deliver(self, delivery: Delivery) -> Reply:
        with self._lock:
            running = self._current.get(delivery.execution_id)
            same = running is not None and running[0] == delivery.dispatch_id
            if same and running is not None and delivery.attempt <= running[1]:
                return OK
            self._current[delivery.execution_id] = (delivery.dispatch_id, delivery.attempt)
        threading.Thread(target=self._handle, args=(delivery,), daemon=True).start()
        return OK

    def _handle(self, delivery: Delivery) -> None:
        attempt = self.agent.attempt(delivery)
        try:
            self._work(attempt)
        except StopHandlerError:
            return
        except Exception as error:
            self.problems.append(f"{delivery}: {error!r}")

    def _owns(self, attempt: Attempt) -> None:
        mine = (attempt.delivery.dispatch_id, attempt.delivery.attempt)
        with self._lock:
            if self._current.get(attempt.id) != mine:
                raise StopHandlerError

    def _change(self, call: Callable[[], Answer]) -> Answer:
        """Every call that may change something."""
        return persistent(call)

    @staticmethod
    def _good(answer: Answer, *statuses: int) -> Answer:
        if answer.status == 409 and answer.code in ("lease_superseded", "execution_terminal"):
            raise StopHandlerError
        assert answer.status in statuses, answer
        return answer

    def _work(self, attempt: Attempt) -> None:
        execution = self._good(persistent(attempt.execution), 200).json
        if execution["status"] in ("completed", "failed", "cancelled"):
            raise StopHandlerError
        results = []
        for n in range(self.steps):
            if self.releases and n == self.steps // 2 and attempt.delivery.attempt == 1:
                self._good(self._change(attempt.release), 204)
                raise StopHandlerError
            results.append(self._step(attempt, n))
        answer = self._change(lambda: attempt.complete({"results": results}))
        self._good(answer, 204)
        self.finished.add(attempt.id)

    def _step(self, attempt: Attempt, number: int) -> Any:
        self._owns(attempt)
        args = {"n": number % 3, "padding": self.padding}  # some are equal, so occurrences count
        decision = self._submitted(attempt, "effect", args)
        if decision["decision"] == "replay":
            assert "error" not in decision, decision
            return decision["result"]
        return self._performed(attempt, number, decision)

    def _submitted(self, attempt: Attempt, target: str, args: Any) -> dict[str, Any]:
        """What the kernel decided; a repeated request is no second step."""
        key = uuid.uuid4().hex
        answer = self._change(
            lambda: attempt.submit(target, args, key=key, idempotency=self.idempotency)
        )
        decision: dict[str, Any] = self._good(answer, 200).json
        if decision["decision"] == "execution_terminal":
            raise StopHandlerError
        return decision

    def _performed(self, attempt: Attempt, number: int, decision: dict[str, Any]) -> Any:
        """Has the effect that the decision allows, and reports it."""
        assert decision["decision"] == "proceed", decision
        self._owns(attempt)
        with self._lock:
            assert (attempt.id, number) not in self.recorded, "a recorded effect happens again"
            self.effects[attempt.id, number] += 1
            self.total += 1
        result = expected(number)
        step_id = decision["step_id"]
        answer = self._change(lambda: attempt.complete_step(step_id, result))
        if self._good(answer, 200).json["decision"] == "execution_terminal":
            raise StopHandlerError
        self.recorded[attempt.id, number] = step_id
        return result


class Family(Worker):
    """Each run leaves its step `DELEGATED` to a subagent of the same agent, if its input says that
    there are more below; then it waits suspended."""

    DELEGATED = 3

    def __init__(self, agent: FakeAgent, client: BearerClient, *, steps: int) -> None:
        super().__init__(agent, steps=steps)
        self.client = client

    def _step(self, attempt: Attempt, number: int) -> Any:
        if number != self.DELEGATED:
            return super()._step(attempt, number)
        below = self._good(persistent(attempt.execution), 200).json["input"]
        if not below:
            return super()._step(attempt, number)
        self._owns(attempt)
        decision = self._submitted(attempt, "delegate", below)
        if decision["decision"] == "proceed":
            decision = self._delegated(attempt, decision["step_id"], below - 1)
        results = [expected(n) for n in range(self.steps)]
        assert decision["result"] == {"results": results}, decision
        return expected(number)

    def _delegated(self, attempt: Attempt, step_id: str, below: int) -> dict[str, Any]:
        """The step with its outcome, if the subagent was faster."""
        spawned_by = {"execution_id": attempt.id, "step_id": step_id}
        body = {"agent_id": self.agent.id, "input": below, "spawned_by": spawned_by}
        answer = persistent(lambda: self.client.post("/v0/executions", body))
        if answer.status == 409:  # the run was cancelled
            raise StopHandlerError
        self._good(answer, 200, 201)
        answer = self._good(self._change(attempt.suspend), 200)
        if answer.json["suspended"]:
            raise StopHandlerError
        step: dict[str, Any] = persistent(
            lambda: attempt.client.get(attempt.path(f"/steps/{step_id}"))
        ).json
        return step


def expected(number: int) -> dict[str, int]:
    """What the effect of a step returns."""
    return {"step": number, "square": number * number}
