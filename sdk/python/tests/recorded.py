"""Runs as `rebuno exec export` writes them down, made by a test."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

from rebuno import tool

ID = "0199c2a4-7d10-7c4e-8abc-0123456789ab"


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


class Run:
    """A run of one delivery, unless the test says otherwise. Arguments are plain ASCII."""

    def __init__(self, **execution: Any) -> None:
        known = {"id": ID, "agent_id": "coder", "status": "completed", "input": None}
        self.execution = known | execution
        self.previous: Any = None
        self.steps: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self._counts: Counter[tuple[str, str, str]] = Counter()
        self.delivery()

    def delivery(self) -> None:
        self.event("dispatch.acked", status="acked")

    def event(self, kind: str, **payload: Any) -> None:
        seq = len(self.events) + 1
        self.events.append({"event_seq": seq, "type": kind, "payload": payload})

    def begin(self, target: str, args: Any = None, *, kind: str = "tool_call") -> dict[str, Any]:
        """A step that is told to proceed."""
        step = self._new(target, args, kind)
        self._counts[kind, target, step["args_hash"]] += 1
        self.steps.append(step)
        for moment in ("proposed", "allowed", "executing"):
            self.event(f"step.{moment}", step_id=step["step_id"])
        return step

    def end(self, step: dict[str, Any], **outcome: Any) -> dict[str, Any]:
        """`result`, or an `error`, or `denied` with a reason, or a `status` without an event."""
        if "status" in outcome:
            step["status"] = outcome["status"]
            return step
        if "denied" in outcome:
            step |= {"status": "denied", "error": {"reason": outcome["denied"]}}
            self.event("step.denied", step_id=step["step_id"], rule_id=outcome.get("rule", "r"))
        elif "error" in outcome:
            step |= {"status": "failed", "error": outcome["error"]}
            self.event("step.failed", step_id=step["step_id"])
        else:
            step |= {"status": "succeeded", "result": outcome.get("result")}
            self.event("step.succeeded", step_id=step["step_id"])
        return step

    def step(
        self, target: str, args: Any = None, *, kind: str = "tool_call", **outcome: Any
    ) -> dict[str, Any]:
        return self.end(self.begin(target, args, kind=kind), **outcome)

    def rate_limited(self, target: str, args: Any = None, **more: Any) -> None:
        """A submission that left no step. `until`: it was parked."""
        step = self._new(target, args, "tool_call")
        self.event("step.rate_limited", step_id=step["step_id"], rule_id="slow", **more)

    def _new(self, target: str, args: Any, kind: str) -> dict[str, Any]:
        hashed = _sha256(json.dumps(args, sort_keys=True, separators=(",", ":")))
        occurrence = self._counts[kind, target, hashed]
        parts = (self.execution["id"], kind, target, hashed, str(occurrence))
        return {
            "step_id": _sha256("".join(f"{len(part)}:{part}" for part in parts)),
            "kind": kind,
            "target": target,
            "args": args,
            "args_hash": hashed,
            "occurrence": occurrence,
            "status": "executing",
            "idempotency": "safe_to_retry",
        }

    def export(self) -> dict[str, Any]:
        return {
            "rebuno_export": 1,
            "execution": self.execution,
            "previous": self.previous,
            "steps": self.steps,
            "events": self.events,
        }


def answer(text: str) -> dict[str, Any]:
    """What is recorded of a model that says this."""
    body = json.dumps({"choices": [{"message": {"content": text}}]})
    return {"status": 200, "headers": {"content-type": "application/json"}, "body": body}


def unrun(target: str) -> Callable[..., Any]:
    """A tool whose body must not run."""

    @tool(target)
    def body(n: Any = None) -> Any:
        raise AssertionError(f"the body of {target} ran")

    return body
