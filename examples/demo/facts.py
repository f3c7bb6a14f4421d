# SPDX-License-Identifier: Apache-2.0
"""What a log says: which steps there were, which replayed, what was cut off. Nothing here knows the demo's story."""

import difflib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from rebuno.types import Event, Step

WORDS = {"executing": "runs", "succeeded": "ok", "awaiting_approval": "held", "checkpointed": "captured"}
SETTLED = ("step.succeeded", "step.failed", "step.denied", "step.cancelled")


@dataclass
class Effect:
    """A step, as its events tell of it."""

    step_id: str
    name: str  # `model`, or the tool's
    is_model: bool
    executed: list[int] = field(default_factory=list)  # the events that let it run
    outcome: Event | None = None

    @property
    def is_denied(self) -> bool:
        return self.outcome is not None and self.outcome.type == "step.denied"


@dataclass(frozen=True)
class Delivery:
    """One time that the run was handed to the agent, which then ran from the top."""

    seq: int
    replayed: list[Effect]  # what had settled by then
    replay_s: float  # until the first thing that was new


class Log:
    """The events of one execution, read together."""

    def __init__(self, events: Sequence[Event]) -> None:
        self.events = list(events)
        self.effects: dict[str, Effect] = {}
        for event in self.events:
            if event.type.startswith("step.") and event.type != "step.rate_limited":
                self._read_step(event)
        acks = [event for event in self.events if event.type == "dispatch.acked"]
        ends = [ack.event_seq for ack in acks[1:]] + [len(self.events) + 1]
        self.deliveries = [self._delivery(ack, end) for ack, end in zip(acks, ends, strict=True)]

    def _read_step(self, event: Event) -> None:
        step_id, is_model = event.payload["step_id"], event.payload["step_type"] == "llm_call"
        name = "model" if is_model else event.payload["target"]
        effect = self.effects.setdefault(step_id, Effect(step_id, name, is_model))
        if event.type == "step.executing":
            effect.executed.append(event.event_seq)
        elif event.type in SETTLED:
            effect.outcome = event

    def _delivery(self, ack: Event, end: int) -> Delivery:
        """An agent that came to something new has replayed all that was there before."""
        own = (event for event in self.events if ack.event_seq < event.event_seq < end)
        new = next((event for event in own if event.type.split(".")[0] in ("step", "execution")), None)
        if new is None:
            return Delivery(ack.event_seq, [], 0.0)
        return Delivery(ack.event_seq, self.settled_by(ack.event_seq), seconds(ack, new))

    def settled_by(self, seq: int) -> list[Effect]:
        return [e for e in self.effects.values() if e.outcome is not None and e.outcome.event_seq <= seq]

    def find(self, event_type: str) -> Event | None:
        return next((event for event in self.events if event.type == event_type), None)

    @property
    def is_gapless(self) -> bool:
        return [event.event_seq for event in self.events] == list(range(1, len(self.events) + 1))

    @property
    def copied(self) -> list[Effect]:
        """Of a fork: the steps that it took over from its source."""
        forked, start = self.find("execution.forked"), self.find("execution.started")
        return self.settled_by(start.event_seq) if forked is not None and start is not None else []

    @property
    def live(self) -> list[Effect]:
        copied = {effect.step_id for effect in self.copied}
        return [effect for effect in self.effects.values() if effect.step_id not in copied]

    @property
    def cut_off(self) -> list[Effect]:
        """What had begun when its agent died, and was run again."""
        return [effect for effect in self.effects.values() if len(effect.executed) > 1]

    def tokens(self, effects: Sequence[Effect]) -> int:
        usages = [effect.outcome.payload.get("usage") or {} for effect in effects if effect.outcome is not None]
        return sum(usage.get("input_tokens", 0) + usage.get("output_tokens", 0) for usage in usages)

    @property
    def end(self) -> str:
        return self.events[-1].type.partition(".")[2]

    @property
    def took_s(self) -> float:
        return seconds(self.events[0], self.events[-1])

    @property
    def waited_s(self) -> float:
        """How long it waited for people."""
        total, asked = 0.0, {}
        for event in self.events:
            if event.type.startswith("approval."):
                approval = event.payload["approval_id"]
                total += seconds(asked[approval], event) if approval in asked else 0.0
                asked.setdefault(approval, event)
        return total


def seconds(start: Event, end: Event) -> float:
    return (datetime.fromisoformat(end.occurred_at) - datetime.fromisoformat(start.occurred_at)).total_seconds()


def counted(effects: Sequence[Effect]) -> str:
    """`model 3x, shell, read_file`"""
    names = [effect.name for effect in effects]
    times = {name: names.count(name) for name in dict.fromkeys(names)}
    return ", ".join(name if n == 1 else f"{name} {n}x" for name, n in times.items()) or "none"


@dataclass
class Row:
    """Events that belong together: those of a step that no other interrupts, say."""

    first: int
    last: int
    name: str
    words: list[str]
    args_hash: str  # of a step

    def text(self) -> str:
        numbers = f"#{self.first}" if self.first == self.last else f"#{self.first}-{self.last}"
        return f"{numbers:<8}{self.name:<11}{', '.join(self.words)}"

    def key(self, side: int) -> tuple[object, ...]:
        """A step is the same step in both runs; of other things each run has its own."""
        return (self.name, self.args_hash) if self.args_hash else (side, self.first)


def rows(log: Log, steps: Sequence[Step]) -> list[Row]:
    hashes = {step.step_id: step.args_hash for step in steps}
    found: list[Row] = []
    owner = None
    for event in log.events:
        area, _, word = event.type.partition(".")
        step_id = event.payload.get("step_id", "") if area == "step" else ""
        name = log.effects[step_id].name if step_id in log.effects else event.payload.get("key", area)
        if found and owner == (area, name, step_id):
            found[-1].last = event.event_seq
        else:
            found.append(Row(event.event_seq, event.event_seq, name, [], hashes.get(step_id, "")))
        owner = (area, name, step_id)
        if event.type != "step.proposed":  # every step begins with it
            found[-1].words.append(WORDS.get(word, word))
    return found


def side_by_side(left: Sequence[Row], right: Sequence[Row]) -> list[tuple[str, str, str]]:
    """Pairs of rows: `=` the same step, `|` with another outcome; without a sign each run's own."""
    keys = ([row.key(0) for row in left], [row.key(1) for row in right])
    pairs = []
    for tag, a, a_end, b, b_end in difflib.SequenceMatcher(None, *keys, autojunk=False).get_opcodes():
        if tag == "equal":
            both = zip(left[a:a_end], right[b:b_end], strict=True)
            pairs += [(one.text(), "=" if one.words == other.words else "|", other.text()) for one, other in both]
        else:
            own = itertools.zip_longest(left[a:a_end], right[b:b_end])
            pairs += [(one.text() if one else "", " ", other.text() if other else "") for one, other in own]
    return pairs
