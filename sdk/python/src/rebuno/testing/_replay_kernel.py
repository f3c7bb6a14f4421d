# SPDX-License-Identifier: Apache-2.0
"""A kernel that has one execution, and knows what was recorded of it: an httpx2 transport.

It answers an agent's routes as the kernel does when all has been recorded, and lets no step run:
one that was not recorded ends the execution. Nothing is sent anywhere.
"""

import asyncio
import heapq
import json
from collections import Counter, defaultdict
from typing import Any
from urllib.parse import unquote

import httpx2

from .._model_answers import refusal
from ..errors import Terminated
from . import _divergence, _identity
from ._divergence import Asked, Standing
from ._recording import RecordedStep, Recording, copied_for_bodies, nested

_OVER = {"decision": "execution_terminal"}


class ReplayKernel(httpx2.AsyncBaseTransport):
    """Answers from a recording. One replay each; belongs to the loop that it is made on."""

    def __init__(self, recording: Recording, *, any_order: bool) -> None:
        self.problem: Exception | None = None  # the first; it ends the replay
        self.stopped = asyncio.Event()  # there is a problem
        self.replayed: list[RecordedStep] = []
        self.ends_at: RecordedStep | None = None
        self.is_past_the_end = False
        self.report: tuple[str, dict[str, Any]] | None = None  # complete or fail, and its body
        self._recording = recording
        self._any_order = any_order
        self._steps = {step.step_id: step for step in recording.steps}
        self._left = {step.number: step for step in recording.steps}  # not asked for, in order
        self._courses = recording.courses()
        self._nested = nested(recording.steps, self._courses)
        self._refusals = recording.refusals()
        self._counts: Counter[tuple[str, str, str]] = Counter()
        self._ends = self._by_end()
        self._loop = asyncio.get_running_loop()

    @property
    def missing(self) -> list[RecordedStep]:
        """What was not asked for, but for what may have been part of another step's body."""
        return [step for step in self._left.values() if step.number not in self._nested]

    @property
    def missed(self) -> list[RecordedStep]:
        """What was not asked for when the handler has ended, and should have been."""
        excused = copied_for_bodies(self._recording.steps, self._courses)
        return [step for step in self.missing if step.number not in excused]

    @property
    def unasked(self) -> list[RecordedStep]:
        """All that was not asked for."""
        return list(self._left.values())

    @property
    def standing(self) -> Standing:
        """How far it has got, for messages."""
        return Standing(self._recording, len(self.replayed), self.missing)

    def stop(self, problem: Exception) -> None:
        """Ends the replay for this reason, unless there is one. From any thread."""
        if self.problem is None:
            self.problem = problem
            self._loop.call_soon_threadsafe(self.stopped.set)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Answers an agent's call, after the calls that stand beside it have come too."""
        content = await request.aread()
        answer = self._respond(request, content)
        await asyncio.sleep(0)
        return answer

    def _respond(self, request: httpx2.Request, content: bytes) -> httpx2.Response:
        body = json.loads(content) if content else {}
        path = request.url.raw_path.decode("ascii").partition("?")[0]
        _, _, collection, execution_id, *rest = [*map(unquote, path.split("/")), "", ""]
        if (collection, execution_id) != ("executions", self._recording.id):
            return _answer({"code": "not_found", "message": f"a replay has no {path}"}, 404)
        match request.method, [name for name in rest if name]:
            case "GET", []:
                return _answer(self._execution())
            case "GET", ["previous"]:
                return _answer({"state": self._recording.previous})
            case "POST", ["steps"]:
                return _answer(self._decide(body, _identity.parse(content).get("args")))
            case "POST", ["resources"]:
                known = {"key": body["key"], "generation": 0, "covered": True}
                return _answer(known | {"binding": {}, "every_steps": 0, "on_completion": False})
            case "POST", ["suspend"]:
                return _answer({"suspended": True})
            case "POST", [("complete" | "fail") as how]:
                self.report = (how, body)
        return httpx2.Response(204)  # heartbeats and the like

    # What is recorded

    def _execution(self) -> dict[str, Any]:
        """As it was when its handler ran."""
        hidden = ("output", "failure_reason", "waiting_on")
        known = {k: v for k, v in self._recording.execution.items() if k not in hidden}
        return known | {"status": "running"}

    def _decide(self, body: dict[str, Any], args: Any) -> dict[str, Any]:
        """What becomes of a submission; `args` has its numbers as they were written."""
        call = (body["kind"], body["target"], _identity.args_hash(args))
        step_id = _identity.step_id(self._recording.id, *call, self._counts[call])
        step = self._steps.get(step_id)
        if self.problem is not None:
            return _OVER
        if (refused := self._refused(step_id)) is not None:
            return refused
        if step is None:
            return self._unknown(Asked(call[0], call[1], body.get("args")))
        if not self._any_order and (due := self._due_before(step)) is not None:
            self.stop(_divergence.too_early(step, due, self.standing))
            return _OVER
        self._counts[call] += 1
        del self._left[step.number]
        return self._outcome(step)

    def _outcome(self, step: RecordedStep) -> dict[str, Any]:
        if not step.is_settled:
            self.ends_at = self.ends_at or step
            return {"decision": "blocked", "step_id": step.step_id}
        self.replayed.append(step)
        resources = [{"key": key, "generation": 0} for key in step.resources]
        known = {"step_id": step.step_id, "resources": resources}
        if step.status == "denied":
            reason = (step.error or {}).get("reason") or "policy_denied"
            return {"decision": "denied", "reason": reason, "rule_id": step.rule_id, **known}
        return {"decision": "replay", "result": step.result, "error": step.error, **known}

    def _refused(self, step_id: str) -> dict[str, Any] | None:
        """What a rate limit said when this was submitted at this point of the run."""
        refusals = self._refusals.get(step_id)
        proposed = self._courses[step_id].proposed
        if not refusals or (proposed is not None and proposed < refusals[0].seq):
            return None
        refused = refusals.pop(0)
        if refused.is_parked:
            self.is_past_the_end = True
            return {"decision": "blocked"}
        reason = "rate_limit_exceeded"
        return {"decision": "rate_limited", "reason": reason, "rule_id": refused.rule_id}

    def _unknown(self, asked: Asked) -> dict[str, Any]:
        """No such step was recorded."""
        if self.ends_at is not None:
            return {"decision": "execution_blocked"}
        due = self.missing
        if self._recording.is_open and not due:
            self.is_past_the_end = True
            return {"decision": "blocked"}
        named = (one for one in due if (one.kind, one.target) == asked[:2])
        self.stop(_divergence.other_step(asked, next(named, None), self.standing))
        return _OVER

    # In which order

    def _by_end(self) -> dict[int, list[tuple[int, int]]]:
        """The steps of each delivery, by the event that settled them; heaps."""
        found = defaultdict(list)
        for step in self._recording.steps:
            course = self._courses.get(step.step_id)
            if course is None or course.is_copied or step.number in self._nested:
                continue
            if course.settled is not None:
                found[course.settled_in].append((course.settled, step.number))
        for heap in found.values():
            heapq.heapify(heap)
        return found

    def _due_before(self, step: RecordedStep) -> RecordedStep | None:
        """A step that has not been asked for, and had ended in this delivery before this began."""
        course = self._courses.get(step.step_id)
        if course is None or course.proposed is None or course.is_copied:
            return None
        heap = self._ends.get(course.proposed_in, [])
        while heap and heap[0][1] not in self._left:
            heapq.heappop(heap)
        return self._left[heap[0][1]] if heap and heap[0][0] < course.proposed else None


class NoProvider(httpx2.AsyncBaseTransport):
    """In the place of a model's provider: a replay asks none."""

    def __init__(self, kernel: ReplayKernel) -> None:
        self._kernel = kernel

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Ends the replay."""
        gone = _divergence.went_out(request.method, str(request.url), self._kernel.standing)
        self._kernel.stop(gone)
        return refusal(Terminated("nothing is sent in a replay"))


def _answer(value: Any, status: int = 200) -> httpx2.Response:
    return httpx2.Response(status, content=json.dumps(value).encode())
