# SPDX-License-Identifier: Apache-2.0
"""An exported run: what `rebuno exec export` has written, and what it says of order.

Knows nothing of agents or transports.
"""

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Self

VERSION = 1
_EXPECTED = "make one with 'rebuno exec export ID --output FILE'"

_ENDED = ("completed", "failed", "cancelled")
_SETTLED = ("succeeded", "failed", "denied")
# The kernel's own reasons: the run was cut off, its handler had not come to an end.
_CUT_OFF = ("dispatch_exhausted",)


@dataclass(frozen=True)
class RecordedStep:
    """A step of the run. `number` counts from 1, in the order in which they were submitted."""

    number: int
    step_id: str
    kind: str
    target: str
    args: Any = None
    args_hash: str = ""
    occurrence: int = 0
    status: str = ""
    idempotency: str = ""
    resources: tuple[str, ...] = ()
    result: Any = None
    error: Any = None
    usage: Mapping[str, int] = field(default_factory=dict)
    rule_id: str = ""

    @property
    def is_settled(self) -> bool:
        """Whether it has an outcome to replay."""
        return self.status in _SETTLED


@dataclass(frozen=True)
class Refusal:
    """A submission that a rate limit refused. It left no step."""

    seq: int
    rule_id: str
    is_parked: bool


@dataclass
class Course:
    """When a step was on its way, by the numbers of events; None where the log does not say."""

    proposed: int | None = None
    started: int | None = None  # the first time
    settled: int | None = None
    proposed_in: int = -1  # the delivery, counted by its ack
    settled_in: int = -1
    is_copied: bool = False  # by the fork: its log does not say in which deliveries of the source


@dataclass(frozen=True, kw_only=True)
class Recording:
    """An exported run. `source` names it in messages."""

    execution: Mapping[str, Any]
    previous: Any
    steps: tuple[RecordedStep, ...]
    events: tuple[Mapping[str, Any], ...] = ()
    source: str = "the run"

    @classmethod
    def of(cls, run: "str | PathLike[str] | Mapping[str, Any] | Recording") -> "Recording":
        """Reads a file of `rebuno exec export`, or takes its content; ValueError if it is none."""
        if isinstance(run, Recording):
            return run
        if isinstance(run, Mapping):
            return cls._read(run, "the run")
        name = fspath(run)
        try:
            content = json.loads(Path(name).read_bytes())
        except OSError as exc:
            # Its text alone: that names the file already.
            raise type(exc)(f"{name} cannot be read: {exc.strerror}; {_EXPECTED}") from None
        except ValueError as exc:
            raise ValueError(f"{name} is no JSON: {exc}; {_EXPECTED}") from None
        return cls._read(content, name)

    @classmethod
    def _read(cls, content: Any, source: str) -> Self:
        version = content.get("rebuno_export") if isinstance(content, Mapping) else None
        if version is None:
            raise ValueError(f"{source} is no export of a run; {_EXPECTED}")
        if version != VERSION:
            raise ValueError(
                f"{source} is an export of version {version}, and this package reads version "
                f"{VERSION}: use the package that belongs to the kernel"
            )
        events = tuple(content.get("events") or ())
        rules = _rules(events)
        return cls(
            execution=content["execution"],
            previous=content.get("previous"),
            steps=tuple(
                _step(number, one, rules.get(one["step_id"], ""))
                for number, one in enumerate(content["steps"], 1)
            ),
            events=events,
            source=source,
        )

    @property
    def id(self) -> str:
        """The execution's id."""
        return str(self.execution["id"])

    @property
    def output(self) -> Any:
        """What it completed with."""
        return self.execution.get("output")

    @property
    def failure_reason(self) -> str:
        """What it failed with, `""` if it did not."""
        return str(self.execution.get("failure_reason") or "")

    @property
    def is_open(self) -> bool:
        """Whether the handler had more to do when the recording ends."""
        status = self.execution.get("status")
        return status not in _ENDED or status == "cancelled" or self.failure_reason in _CUT_OFF

    def courses(self) -> dict[str, Course]:
        """When each step was on its way, by its id."""
        found: dict[str, Course] = defaultdict(Course)
        is_copied = False
        for delivery, event in _delivered(self.events):
            kind, seq = str(event.get("type")), event["event_seq"]
            is_copied = kind == "execution.forked" or (is_copied and kind != "execution.started")
            course = found[(event.get("payload") or {}).get("step_id", "")]
            if kind == "step.proposed":
                course.proposed, course.proposed_in = seq, delivery
                course.is_copied = is_copied
            elif kind == "step.executing" and course.started is None:
                course.started = seq
            elif kind in ("step.succeeded", "step.failed", "step.denied"):
                course.settled, course.settled_in = seq, delivery
        return found

    def refusals(self) -> dict[str, list[Refusal]]:
        """What rate limits refused in the last delivery, by the id that the step would have had.

        Those of an earlier one were decided anew in the last.
        """
        found: dict[str, list[Refusal]] = defaultdict(list)
        last = max((delivery for delivery, _ in _delivered(self.events)), default=0)
        for delivery, event in _delivered(self.events):
            if event.get("type") == "step.rate_limited" and delivery == last:
                said = event["payload"]
                refusal = Refusal(event["event_seq"], said.get("rule_id", ""), "until" in said)
                found[said["step_id"]].append(refusal)
        return found


def nested(steps: Iterable[RecordedStep], courses: Mapping[str, Course]) -> frozenset[int]:
    """The numbers of the steps that ran within another's time, and may be of its body.

    A body does not run in a replay, so these are not missed.
    """
    known = [(one, courses[one.step_id]) for one in steps if one.step_id in courses]
    bodies = sorted(
        (course.started, math.inf if course.settled is None else course.settled)
        for one, course in known
        if one.kind != "llm_call" and course.started is not None
    )
    asked = sorted(
        (course.proposed, course.settled, one.number)
        for one, course in known
        if course.proposed is not None and course.settled is not None
    )
    found, last_end, at = set(), -math.inf, 0
    for proposed, settled, number in asked:
        while at < len(bodies) and bodies[at][0] < proposed:
            last_end = max(last_end, bodies[at][1])
            at += 1
        if settled < last_end:
            found.add(number)
    return frozenset(found)


def copied_for_bodies(
    steps: Iterable[RecordedStep], courses: Mapping[str, Course]
) -> frozenset[int]:
    """The numbers of the copied steps that may be of the body of one that began after them.

    A step that had not ended at the point of a fork is not copied, but what had ended in it is. It
    began anew in the fork, or in the source, if that was a fork itself.
    """
    known = [(one, courses[one.step_id]) for one in steps if one.step_id in courses]
    begun = (course.started or 0 for one, course in known if one.kind != "llm_call")
    last = max(begun, default=0)
    return frozenset(
        one.number for one, course in known if course.is_copied and (course.settled or 0) < last
    )


def _delivered(events: Iterable[Mapping[str, Any]]) -> Iterable[tuple[int, Mapping[str, Any]]]:
    """Each event with the number of deliveries that had begun."""
    delivery = 0
    for event in events:
        delivery += event.get("type") == "dispatch.acked"
        yield delivery, event


def _rules(events: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The rule that denied a step, or had it held until a person did."""
    found: dict[str, str] = {}
    for event in events:
        said = event.get("payload") or {}
        if event.get("type") in ("step.denied", "step.awaiting_approval") and "rule_id" in said:
            found[said["step_id"]] = said["rule_id"]
    return found


def _step(number: int, one: Mapping[str, Any], rule_id: str) -> RecordedStep:
    return RecordedStep(
        number=number,
        step_id=one["step_id"],
        kind=one["kind"],
        target=one["target"],
        args=one.get("args"),
        args_hash=one.get("args_hash", ""),
        occurrence=one.get("occurrence", 0),
        status=one.get("status", ""),
        idempotency=one.get("idempotency", ""),
        resources=tuple(one.get("resources") or ()),
        result=one.get("result"),
        error=one.get("error"),
        usage=one.get("usage") or {},
        rule_id=rule_id,
    )
