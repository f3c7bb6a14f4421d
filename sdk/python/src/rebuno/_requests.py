# SPDX-License-Identifier: Apache-2.0
"""One function per endpoint: from values to a Request. Pure; see `_protocol`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

from ._json import encode, join
from ._protocol import EVENT_STREAM, JSON_TYPE, Lease, Request


@dataclass(frozen=True)
class StepCall:
    """A step as the agent submits it; `args` is JSON text, `resources` the keys it changes."""

    kind: str
    target: str
    args: str
    idempotency: str = "safe_to_retry"
    resources: tuple[str, ...] = ()


@dataclass(frozen=True)
class Captures:
    """What was captured of the resources that a step's decision marked as due."""

    captures: tuple[dict[str, Any], ...] = ()
    failures: tuple[dict[str, Any], ...] = ()

    def fields(self) -> dict[str, str]:
        """The fields of an outcome's body, each left out when empty."""
        named = {"captures": self.captures, "capture_failures": self.failures}
        return {name: encode(entries) for name, entries in named.items() if entries}


@dataclass(frozen=True)
class Outcome:
    """How a step ended: exactly one of the two is JSON text."""

    result: str | None = None
    error: str | None = None
    captured: Captures = field(default_factory=Captures)


def _segment(value: str) -> str:
    if not value:
        raise ValueError("an id must not be empty")
    return quote(value, safe="")


def _execution(execution_id: str, *rest: str) -> str:
    return "/".join(("/v0/executions", _segment(execution_id), *rest))


def _query(path: str, **params: Any) -> str:
    given = {name: value for name, value in params.items() if value is not None}
    return f"{path}?{urlencode(given)}" if given else path


def _given(**fields: Any) -> dict[str, str]:
    """The fields that are set, as JSON texts."""
    return {name: encode(value, name) for name, value in fields.items() if value}


def _post(path: str, fields: Mapping[str, str] | None = None, **more: Any) -> Request:
    if fields is None:
        return Request("POST", path, **more)
    headers = {"Content-Type": JSON_TYPE} | more.pop("headers", {})
    return Request("POST", path, join(fields), headers, **more)


# Agent routes.


def put_metadata(agent_id: str, metadata: Mapping[str, Any]) -> Request:
    """What the agent says of itself."""
    fields = {name: encode(value, name) for name, value in metadata.items()}
    return Request("PUT", f"/v0/agents/{_segment(agent_id)}/metadata", join(fields))


def submit_step(execution_id: str, lease: Lease, call: StepCall, key: str) -> Request:
    """Submits a step. The key makes a repeat of the request the same submission."""
    fields = {
        "kind": encode(call.kind),
        "target": encode(call.target),
        "args": call.args,
        "idempotency": encode(call.idempotency),
        "resources": encode(call.resources),
    }
    headers = lease.headers() | {"Idempotency-Key": key}
    return _post(_execution(execution_id, "steps"), fields, headers=headers, repeatable=True)


def settle_step(execution_id: str, lease: Lease, step_id: str, outcome: Outcome) -> Request:
    """Reports a step's outcome; a step that has one already keeps it."""
    if outcome.error is None:
        verb, fields = "complete", {"result": outcome.result or "null"}
    else:
        verb, fields = "fail", {"error": outcome.error}
    return _post(
        _execution(execution_id, "steps", _segment(step_id), verb),
        fields | outcome.captured.fields(),
        headers=lease.headers(),
        repeatable=True,
    )


def stream_delta(execution_id: str, lease: Lease, step_id: str, seq: int, data: str) -> Request:
    """Publishes a piece of a model's answer to those who watch live."""
    fields = {"seq": encode(seq), "data": encode(data)}
    path = _execution(execution_id, "steps", _segment(step_id), "stream")
    return _post(path, fields, headers=lease.headers())


def heartbeat(execution_id: str, lease: Lease) -> Request:
    """Renews the lease."""
    path = _execution(execution_id, "heartbeat")
    return _post(path, headers=lease.headers(), repeatable=True)


def release(execution_id: str, lease: Lease) -> Request:
    """Gives the run back: it is delivered again at once."""
    path = _execution(execution_id, "release")
    return _post(path, headers=lease.headers(), repeatable=True)


def suspend(execution_id: str, lease: Lease) -> Request:
    """Asks to wait for subagents without a process; once it was granted, a repeat is, too."""
    path = _execution(execution_id, "suspend")
    return _post(path, headers=lease.headers(), repeatable=True)


def register_resource(execution_id: str, lease: Lease, registration: Mapping[str, Any]) -> Request:
    """Registers a resource; a repeat reads its state."""
    fields = {name: encode(value, f"the resource's {name}") for name, value in registration.items()}
    path = _execution(execution_id, "resources")
    return _post(path, fields, headers=lease.headers(), repeatable=True)


def bind_resource(execution_id: str, lease: Lease, key: str, binding: str) -> Request:
    """Records how the live resource is found; the same again changes nothing."""
    path = _execution(execution_id, "resources", _segment(key), "binding")
    return _post(path, {"binding": binding}, headers=lease.headers(), repeatable=True)


def checkpoint_resources(execution_id: str, lease: Lease, captured: Captures) -> Request:
    """Reports captures made outside a step; made again they would cover the same events."""
    path = _execution(execution_id, "resources", "checkpoints")
    return _post(path, captured.fields(), headers=lease.headers(), repeatable=True)


def complete(execution_id: str, lease: Lease, output: str, state: str | None) -> Request:
    """Ends the execution with an output and, for the session's next turn, a state."""
    fields = {"output": output} | ({} if state is None else {"state": state})
    path = _execution(execution_id, "complete")
    return _post(path, fields, headers=lease.headers(), repeatable=True)


def fail(execution_id: str, lease: Lease, reason: str) -> Request:
    """Ends the execution as failed."""
    path = _execution(execution_id, "fail")
    return _post(path, {"error": encode(reason)}, headers=lease.headers(), repeatable=True)


# Routes for either.


def get_execution(execution_id: str) -> Request:
    """Reads an execution."""
    return Request("GET", _execution(execution_id), repeatable=True)


def previous(execution_id: str) -> Request:
    """Reads the state that the session's turn before this one left."""
    return Request("GET", _execution(execution_id, "previous"), repeatable=True)


def list_steps(execution_id: str, status: str = "") -> Request:
    """Reads the steps of an execution in order of creation."""
    path = _query(_execution(execution_id, "steps"), status=status or None)
    return Request("GET", path, repeatable=True)


def get_step(execution_id: str, step_id: str) -> Request:
    """Reads one step."""
    path = _execution(execution_id, "steps", _segment(step_id))
    return Request("GET", path, repeatable=True)


# Client routes.


def create_execution(
    agent_id: str, input: Any, *, idempotency_key: str = "", **fields: Any
) -> Request:
    """Starts an execution.

    With an idempotency key, or for a step that it is to settle, a repeat finds the one that is
    there.
    """
    is_known = bool(idempotency_key or fields.get("spawned_by"))
    body = _given(agent_id=agent_id)
    if input is not None:
        body["input"] = encode(input, "input")
    body |= _given(idempotency_key=idempotency_key, **fields)
    return _post("/v0/executions", body, repeatable=is_known)


def list_executions(**filters: Any) -> Request:
    """Reads a page of executions, newest first."""
    given = {name: value or None for name, value in filters.items()}
    return Request("GET", _query("/v0/executions", **given), repeatable=True)


def events(
    execution_id: str, after_seq: int = 0, limit: int = 100, wait_s: int | None = None
) -> Request:
    """Reads a page of the log; with `wait_s` an empty one only after so many seconds."""
    path = _execution(execution_id, "events")
    path = _query(path, limit=limit, after_seq=after_seq or None, wait=wait_s)
    return Request("GET", path, repeatable=True)


def watch_deltas(execution_id: str) -> Request:
    """Follows what models are writing, from now on."""
    headers = {"Accept": EVENT_STREAM}
    return Request("GET", _execution(execution_id, "stream"), headers=headers, repeatable=True)


def cancel(execution_id: str) -> Request:
    """Cancels an execution."""
    return _post(_execution(execution_id, "cancel"))


def fork(execution_id: str, at_seq: int, *, session: str, policy_bundle: str) -> Request:
    """Starts a copy of an execution from a point of its log."""
    fields = {"at_seq": encode(at_seq)} | _given(session=session, policy_bundle=policy_bundle)
    return _post(_execution(execution_id, "fork"), fields)


def fork_points(execution_id: str) -> Request:
    """Reads where an execution can be forked."""
    return Request("GET", _execution(execution_id, "fork-points"), repeatable=True)


def list_approvals(status: str) -> Request:
    """Reads approvals, soonest timeout first; an empty status means all."""
    return Request("GET", _query("/v0/approvals", status=status), repeatable=True)


def get_approval(approval_id: str) -> Request:
    """Reads one approval."""
    return Request("GET", f"/v0/approvals/{_segment(approval_id)}", repeatable=True)


def decide_approval(approval_id: str, verb: str, *, decided_by: str, rationale: str) -> Request:
    """Grants or denies."""
    fields = {"rationale": encode(rationale)} | _given(decided_by=decided_by)
    return _post(f"/v0/approvals/{_segment(approval_id)}/{verb}", fields)
