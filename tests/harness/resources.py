"""Resources as tests play with them."""

from typing import Any

from harness.agent import Attempt
from harness.client import BearerClient

Json = dict[str, Any]


def of_key(key: str, generation: int, ref: Any = "ref") -> Json:
    return {"key": key, "generation": generation, "checkpoint_ref": ref}


def failure(key: str, generation: int, error: str = "no space") -> Json:
    return {"key": key, "generation": generation, "error": error}


def state(run: Attempt, key: str = "disk", **fields: Any) -> Json:
    found: Json = run.register(key, **fields).expect(200).json
    return found


def submit(run: Attempt, target: str, resources: list[str], *args: Any, **fields: Any) -> Json:
    decision: Json = run.submit(target, *args, resources=resources, **fields).expect(200).json
    assert decision["decision"] == "proceed", decision
    return decision


def affect(run: Attempt, number: int, *keys: str, **report: Any) -> Json:
    """A whole step that affects these; returns its decision."""
    decision = submit(run, "write", list(keys or ("disk",)), number)
    run.complete_step(decision["step_id"], **report).expect(200)
    return decision


def new_events(client: BearerClient, run: Attempt, after_seq: int) -> list[tuple[str, Json]]:
    return [(e["type"], e["payload"]) for e in client.events(run.id, after_seq)]


def last_seq(client: BearerClient, run: Attempt) -> int:
    return int(client.events(run.id)[-1]["event_seq"])
