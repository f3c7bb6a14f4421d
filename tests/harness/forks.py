"""Coverage and forks, worked out from what an execution shows of itself.

A second way of computing, from the protocol's text: what a fork at an event must have copied, and
what its resources must be restored from.
"""

import hashlib
from dataclasses import dataclass
from typing import Any

from harness.client import Answer, BearerClient

Json = dict[str, Any]

SETTLED = {"step.succeeded", "step.failed", "step.denied"}
STATE_OF_POLICY = ("driver_id", "coverage_reuse", "every_steps", "on_completion")
BEHIND_HEAD = 3  # execution.created and execution.forked come before what is copied


def step_id(execution_id: str, step: Json, occurrence: int) -> str:
    parts = (
        execution_id,
        step["kind"],
        step["target"],
        step["args_hash"],
        str(occurrence),
    )
    framed = b"".join(b"%d:%b" % (len(p.encode()), p.encode()) for p in parts)
    return hashlib.sha256(framed).hexdigest()


# Coverage


def covers(checkpoint: Json, seq: int) -> bool:
    end = checkpoint.get("invalidated_seq")
    return bool(checkpoint["covered_seq"] <= seq and (end is None or seq < end))


def covered_at(points: Json, seq: int) -> bool:
    """A fork at this event finds every resource that was registered by then as it was."""
    return all(
        any(c["key"] == key and covers(c, seq) for c in points["checkpoints"])
        for key, registered in points["resources"].items()
        if registered <= seq
    )


def points_of_log(log: list[Json]) -> Json:
    """What the fork points of an execution that is no fork must be, by its log alone."""
    resources: dict[str, int] = {}
    checkpoints: list[Json] = []
    for event in log:
        payload, seq = event["payload"], event["event_seq"]
        if event["type"] == "resource.registered":
            resources.setdefault(payload["key"], seq)
        elif event["type"] == "resource.checkpointed":
            checkpoints.append(dict(payload))
        elif event["type"] == "step.executing":
            for checkpoint in checkpoints:
                if checkpoint["key"] in payload.get("generations", {}):
                    checkpoint.setdefault("invalidated_seq", seq)
    return {"latest_seq": len(log), "resources": resources, "checkpoints": checkpoints}


# Forks


@dataclass
class Source:
    """All that an execution shows, and the bytes in which it does."""

    execution: Json
    log: list[Json]
    steps: list[Json]
    points: Json
    raw: list[bytes]


def read_source(client: BearerClient, execution_id: str) -> Source:
    base = f"/v0/executions/{execution_id}"
    targets = ["", "/events?limit=1000", "/steps", "/fork-points", "/previous"]
    answers = [client.get(base + target).expect(200) for target in targets]
    return Source(
        execution=answers[0].json,
        log=answers[1].json,
        steps=answers[2].json,
        points=answers[3].json,
        raw=[answer.body for answer in answers],
    )


def ask_fork(client: BearerClient, execution_id: str, at_seq: Any, **fields: Any) -> Answer:
    """For what is refused; see BearerClient.fork."""
    target = f"/v0/executions/{execution_id}/fork"
    return client.post(target, {"at_seq": at_seq, **fields})


@dataclass
class Expected:
    events: list[tuple[str, Json]]  # of the log up to execution.started
    times: list[str | None]  # of those; None: the fork's own
    steps: list[Json]
    restoration: Json
    states: dict[str, Json]  # of resources, as registering them again must show
    checkpoints: list[Json]


class _Model:
    def __init__(self, source: Source, at_seq: int, fork: Json, inherited: dict[str, Json]) -> None:
        self.source, self.at_seq, self.fork, self.inherited = (
            source,
            at_seq,
            fork,
            inherited,
        )
        self.past = source.log[:at_seq]
        settled = {e["payload"]["step_id"] for e in self.past if e["type"] in SETTLED}
        self.steps = [step for step in source.steps if step["step_id"] in settled]
        self.ids = {s["step_id"]: step_id(fork["id"], s, s["occurrence"]) for s in self.steps}
        assert set(self.ids) == settled
        self.copied = [event for event in self.past if self._is_copied(event)]
        self.seqs = {e["event_seq"]: n for n, e in enumerate(self.copied, BEHIND_HEAD)}
        self.registered: dict[str, int] = {}
        for event in self.copied:
            if event["type"] == "resource.registered":
                self.registered.setdefault(event["payload"]["key"], event["event_seq"])

    def _is_copied(self, event: Json) -> bool:
        if event["type"].startswith("step."):
            return event["payload"]["step_id"] in self.ids
        return event["type"] in ("resource.registered", "resource.initialized")

    # What is restored

    def best(self, key: str) -> Json | None:
        known = [
            c
            for c in self.source.points["checkpoints"]
            if c["key"] == key and c["covered_seq"] <= self.at_seq
        ]
        covering = [c for c in known if covers(c, self.at_seq)]
        newest = (covering or known)[-1:]
        return newest[0] if newest else None

    def restored(self, key: str) -> Json:
        own = self.best(key)
        if own is not None:
            return {
                "checkpoint_ref": own["checkpoint_ref"],
                "checkpoint_seq": own["covered_seq"],
                "covered": covers(own, self.at_seq),
            }
        return {**self.inherited.get(key, {}), "covered": False}

    def generation(self, key: str) -> int:
        seen = [0]
        for event in self.copied:
            payload = event["payload"]
            if event["type"] == "step.executing":
                seen.append(payload.get("generations", {}).get(key, 0))
            elif event["type"] == "resource.initialized" and payload["key"] == key:
                seen.append(payload["generation"])
        own = self.best(key)
        if own is not None and covers(own, self.at_seq):
            return int(max(*seen, own["generation"]))
        return max(seen) + 1

    def count(self, key: str) -> int:
        affecting = {
            e["payload"]["step_id"]
            for e in self.copied
            if e["type"] == "step.executing" and key in e["payload"].get("resources", [])
        }
        return sum(
            step["step_id"] in affecting and step["status"] in ("succeeded", "failed")
            for step in self.steps
        )

    def state(self, key: str) -> Json:
        payload = next(
            e["payload"]
            for e in reversed(self.copied)
            if e["type"] == "resource.registered" and e["payload"]["key"] == key
        )
        restored = self.restored(key)
        state = {
            "key": key,
            **{name: payload[name] for name in STATE_OF_POLICY},
            "generation": self.generation(key),
            "count": self.count(key),
            "registered_seq": self.seqs[self.registered[key]],
            "covered": restored["covered"],
        }
        if "configuration" in payload:
            state["configuration"] = payload["configuration"]
        if "checkpoint_ref" in restored:
            state["checkpoint_ref"] = restored["checkpoint_ref"]
        return state

    def checkpoints(self, started_seq: int) -> list[Json]:
        made: list[Json] = []
        for key in self.registered:
            by_place: dict[int, Json] = {}
            for checkpoint in self.source.points["checkpoints"]:
                if checkpoint["key"] == key and checkpoint["covered_seq"] <= self.at_seq:
                    mapped = self._mapped(checkpoint, started_seq)
                    by_place[mapped["covered_seq"]] = mapped
            made += by_place.values()
        return made

    def _mapped(self, checkpoint: Json, started_seq: int) -> Json:
        place = max(seq for seq in self.seqs if seq <= checkpoint["covered_seq"])
        mapped = {**checkpoint, "covered_seq": self.seqs[place]}
        end = mapped.pop("invalidated_seq", None)
        if end is not None and end <= self.at_seq:
            later = [seq for seq in self.seqs if seq >= end]
            mapped["invalidated_seq"] = self.seqs[min(later)] if later else started_seq
        return mapped

    # What is there

    def expected(self, *, policy_override: bool) -> Expected:
        n_checkpoints = len(self.checkpoints(0))
        started = BEHIND_HEAD + len(self.copied) + len(self.registered) + n_checkpoints
        restoration = {key: self.restored(key) for key in self.registered}
        checkpoints = self.checkpoints(started)
        events: list[tuple[str, Json]] = [
            self._created(),
            self._forked(policy_override),
        ]
        events += [(e["type"], self._payload(e)) for e in self.copied]
        events += [("resource.initialized", self._initialized(key)) for key in self.registered]
        events += [("resource.checkpointed", self._checkpointed(c)) for c in checkpoints]
        events.append(self._started())
        assert len(events) == started
        times: list[str | None] = [None] * started
        for event in self.copied:
            times[self.seqs[event["event_seq"]] - 1] = event["occurred_at"]
        return Expected(
            events=events,
            times=times,
            steps=[self._step(step) for step in self.steps],
            restoration=restoration,
            states={key: self.state(key) for key in self.registered},
            checkpoints=checkpoints,
        )

    def _head(self, status: str) -> Json:
        head = {"execution_id": self.fork["id"], "status": status}
        return {**head, **{k: self.fork[k] for k in ("session",) if k in self.fork}}

    def _created(self) -> tuple[str, Json]:
        payload = {**self._head("pending"), "created_by": self.fork["created_by"]}
        if "on_behalf_of" in self.source.execution:
            payload["on_behalf_of"] = self.source.execution["on_behalf_of"]
        return "execution.created", payload

    def _forked(self, policy_override: bool) -> tuple[str, Json]:
        payload = {
            **self._head("pending"),
            "source_execution_id": self.source.execution["id"],
            "fork_seq": self.at_seq,
            "policy_override": policy_override,
        }
        restoration = {key: self.restored(key) for key in self.registered}
        return "execution.forked", {
            **payload,
            **({"restoration": restoration} if restoration else {}),
        }

    def _started(self) -> tuple[str, Json]:
        payload = self._head("running")
        if "parent_execution_id" in self.source.execution:
            payload["parent_execution_id"] = self.source.execution["parent_execution_id"]
        return "execution.started", payload

    def _payload(self, event: Json) -> Json:
        payload = dict(event["payload"])
        if "step_id" in payload:
            payload["step_id"] = self.ids[payload["step_id"]]
        return payload

    def _initialized(self, key: str) -> Json:
        state = self.state(key)
        return {k: state[k] for k in ("key", "generation", "checkpoint_ref") if k in state}

    @staticmethod
    def _checkpointed(checkpoint: Json) -> Json:
        return {k: v for k, v in checkpoint.items() if k != "invalidated_seq"}

    def _step(self, step: Json) -> Json:
        return {
            **step,
            "step_id": self.ids[step["step_id"]],
            "execution_id": self.fork["id"],
        }


def expected_fork(
    source: Source,
    at_seq: int,
    fork: Json,
    *,
    inherited: dict[str, Json] | None = None,
    policy_override: bool = False,
) -> Expected:
    """`inherited`: what the parent's newest checkpoint of a resource restores, by its key."""
    model = _Model(source, at_seq, fork, inherited or {})
    return model.expected(policy_override=policy_override)


def check_fork(
    client: BearerClient,
    source: Source,
    at_seq: int,
    fork: Json,
    *,
    inherited: dict[str, Json] | None = None,
    policy_override: bool = False,
) -> Expected:
    """Compares all that a new fork shows, before its agent has done anything."""
    want = expected_fork(source, at_seq, fork, inherited=inherited, policy_override=policy_override)
    where = f"fork at {at_seq}"
    log = client.events(fork["id"])
    length = len(want.events)
    got = [(e["type"], e["payload"]) for e in log[:length]]
    assert [t for t, _ in got] == [t for t, _ in want.events], where
    for found, wanted in zip(got, want.events, strict=True):
        assert found == wanted, f"{where}: {found} {wanted}"
    kept = [e["occurred_at"] if t else None for e, t in zip(log, want.times, strict=False)]
    assert kept == want.times, where
    assert [e["type"] for e in log[length:]] in (
        ["dispatch.queued"],
        ["dispatch.queued", "dispatch.acked"],
    ), where
    assert client.steps(fork["id"]) == want.steps, where
    points = client.fork_points(fork["id"])
    assert points["resources"] == {
        key: state["registered_seq"] for key, state in want.states.items()
    }, where
    assert sorted(points["checkpoints"], key=str) == sorted(want.checkpoints, key=str), where
    assert points["latest_seq"] >= length, where
    _check_execution(source, at_seq, fork, want)
    return want


def _check_execution(source: Source, at_seq: int, fork: Json, want: Expected) -> None:
    own = source.execution
    assert fork["forked_from"] == own["id"]
    assert fork["fork_seq"] == at_seq
    assert fork.get("restoration", {}) == want.restoration
    assert fork["status"] == "running"
    for name in ("agent_id", "input", "parent_execution_id", "on_behalf_of"):
        assert fork.get(name) == own.get(name), name
    for name in ("idempotency_key", "spawned_by", "output", "failure_reason"):
        assert name not in fork
