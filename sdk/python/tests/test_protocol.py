import copy
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from rebuno import _requests, errors
from rebuno._protocol import (
    EventStream,
    Lease,
    Request,
    agent_headers,
    error_from,
    is_webhook_signed,
    read,
    read_field,
    sign_request,
    webhook_signature,
)
from rebuno._requests import Captures, Outcome, StepCall
from rebuno.types import Execution, SpawnedBy, Step

VECTORS = json.loads((Path(__file__).parent / "vectors" / "signature.json").read_text())
LEASE = Lease("d1", 3)
SIGNED = {"Rebuno-Dispatch-Id": "d1", "Rebuno-Dispatch-Attempt": "3"}


@pytest.mark.parametrize("vector", VECTORS["requests"], ids=lambda vector: vector["method"])
def test_request_signatures(vector: dict[str, Any]) -> None:
    signature = sign_request(
        vector["secret"],
        vector["method"],
        vector["path"],
        timestamp=vector["timestamp"],
        dispatch_id=vector["dispatch_id"],
        attempt=vector["attempt"],
        body=vector["body"].encode(),
    )
    assert signature == vector["signature"]


@pytest.mark.parametrize("vector", VECTORS["webhooks"])
def test_webhook_signatures(vector: dict[str, Any]) -> None:
    body = vector["body"].encode()
    assert webhook_signature(vector["secret"], body) == vector["signature"]
    assert is_webhook_signed(vector["secret"], body, vector["signature"])
    assert not is_webhook_signed("other", body, vector["signature"])
    assert not is_webhook_signed(vector["secret"], body + b" ", vector["signature"])
    assert not is_webhook_signed(vector["secret"], body, "")
    assert not is_webhook_signed(vector["secret"], body, "sha256=é")


def test_agent_headers_sign_what_the_request_carries() -> None:
    vector = VECTORS["requests"][0]
    lease = Lease(vector["dispatch_id"], int(vector["attempt"]))
    request = Request("POST", "/ignored", vector["body"].encode(), lease.headers())
    headers = agent_headers(
        request,
        vector["path"],
        agent_id="a",
        secret=vector["secret"],
        timestamp=vector["timestamp"],
    )
    assert headers == {
        "Content-Type": "application/json",
        "Rebuno-Agent-Id": "a",
        "Rebuno-Timestamp": vector["timestamp"],
        "Rebuno-Signature": vector["signature"],
    }


CALL = StepCall("tool_call", "send", '{"to":"x"}', "at_most_once", ("ws",))
OUTCOME = Outcome(
    error='{"message":"m"}',
    captured=Captures(({"key": "k", "generation": 1},), ({"key": "l", "error": "e"},)),
)
SPAWNER = SpawnedBy(execution_id="p", step_id="s")

# request, method, path, body, repeatable
REQUESTS: list[tuple[Request, str, str, Any, bool]] = [
    (
        _requests.submit_step("e1", LEASE, CALL, "key"),
        "POST",
        "/v0/executions/e1/steps",
        {
            "kind": "tool_call",
            "target": "send",
            "args": {"to": "x"},
            "idempotency": "at_most_once",
            "resources": ["ws"],
        },
        True,
    ),
    (
        _requests.settle_step("e1", LEASE, "s1", Outcome(result="null")),
        "POST",
        "/v0/executions/e1/steps/s1/complete",
        {"result": None},
        True,
    ),
    (
        _requests.settle_step("e1", LEASE, "s1", OUTCOME),
        "POST",
        "/v0/executions/e1/steps/s1/fail",
        {
            "error": {"message": "m"},
            "captures": [{"key": "k", "generation": 1}],
            "capture_failures": [{"key": "l", "error": "e"}],
        },
        True,
    ),
    (
        _requests.stream_delta("e1", LEASE, "s1", 4, "é"),
        "POST",
        "/v0/executions/e1/steps/s1/stream",
        {"seq": 4, "data": "é"},
        False,
    ),
    (_requests.heartbeat("e1", LEASE), "POST", "/v0/executions/e1/heartbeat", None, True),
    (_requests.release("e1", LEASE), "POST", "/v0/executions/e1/release", None, True),
    (
        _requests.complete("e1", LEASE, "1", None),
        "POST",
        "/v0/executions/e1/complete",
        {"output": 1},
        True,
    ),
    (
        _requests.complete("e1", LEASE, "1", "2"),
        "POST",
        "/v0/executions/e1/complete",
        {"output": 1, "state": 2},
        True,
    ),
    (_requests.fail("e1", LEASE, "why"), "POST", "/v0/executions/e1/fail", {"error": "why"}, True),
    (
        _requests.put_metadata("a", {"description": None}),
        "PUT",
        "/v0/agents/a/metadata",
        {"description": None},
        False,
    ),
    (_requests.get_execution("e/1"), "GET", "/v0/executions/e%2F1", None, True),
    (_requests.previous("e1"), "GET", "/v0/executions/e1/previous", None, True),
    (_requests.get_step("e1", "s1"), "GET", "/v0/executions/e1/steps/s1", None, True),
    (_requests.list_steps("e1"), "GET", "/v0/executions/e1/steps", None, True),
    (
        _requests.list_steps("e1", "terminal"),
        "GET",
        "/v0/executions/e1/steps?status=terminal",
        None,
        True,
    ),
    (_requests.create_execution("a", None), "POST", "/v0/executions", {"agent_id": "a"}, False),
    (
        _requests.create_execution("a", 0, idempotency_key="k", session="s", spawned_by=SPAWNER),
        "POST",
        "/v0/executions",
        {
            "agent_id": "a",
            "input": 0,
            "idempotency_key": "k",
            "session": "s",
            "spawned_by": {"execution_id": "p", "step_id": "s"},
        },
        True,
    ),
    (
        _requests.list_executions(agent_id="a", session="", status="", cursor="", limit=50),
        "GET",
        "/v0/executions?agent_id=a&limit=50",
        None,
        True,
    ),
    (_requests.events("e1"), "GET", "/v0/executions/e1/events?limit=100", None, True),
    (
        _requests.events("e1", 3, 7),
        "GET",
        "/v0/executions/e1/events?limit=7&after_seq=3",
        None,
        True,
    ),
    (_requests.cancel("e1"), "POST", "/v0/executions/e1/cancel", None, False),
    (
        _requests.fork("e1", 3, session="", policy_bundle=""),
        "POST",
        "/v0/executions/e1/fork",
        {"at_seq": 3},
        False,
    ),
    (
        _requests.fork("e1", 3, session="s", policy_bundle="b"),
        "POST",
        "/v0/executions/e1/fork",
        {"at_seq": 3, "session": "s", "policy_bundle": "b"},
        False,
    ),
    (_requests.fork_points("e1"), "GET", "/v0/executions/e1/fork-points", None, True),
    (_requests.list_approvals("pending"), "GET", "/v0/approvals?status=pending", None, True),
    (_requests.list_approvals(""), "GET", "/v0/approvals?status=", None, True),
    (_requests.get_approval("p1"), "GET", "/v0/approvals/p1", None, True),
    (
        _requests.decide_approval("p1", "grant", decided_by="", rationale=""),
        "POST",
        "/v0/approvals/p1/grant",
        {"rationale": ""},
        False,
    ),
    (
        _requests.decide_approval("p1", "deny", decided_by="me", rationale="why"),
        "POST",
        "/v0/approvals/p1/deny",
        {"rationale": "why", "decided_by": "me"},
        False,
    ),
]


@pytest.mark.parametrize(
    ("request_", "method", "path", "body", "repeatable"),
    REQUESTS,
    ids=[f"{entry[1]} {entry[2]}" for entry in REQUESTS],
)
def test_requests(request_: Request, method: str, path: str, body: Any, repeatable: bool) -> None:
    assert (request_.method, request_.path) == (method, path)
    assert (json.loads(request_.body) if request_.body else None) == body
    assert request_.repeatable is repeatable


def test_calls_under_the_lease_carry_it() -> None:
    assert _requests.heartbeat("e1", LEASE).headers == SIGNED
    submitted = _requests.submit_step("e1", LEASE, CALL, "key").headers
    assert submitted == SIGNED | {"Idempotency-Key": "key", "Content-Type": "application/json"}


def test_an_empty_id_is_no_path() -> None:
    with pytest.raises(ValueError, match="must not be empty"):
        _requests.get_execution("")


# code, status, class
CODES = [
    ("validation_error", 400, errors.ValidationError),
    ("unauthorized", 401, errors.UnauthorizedError),
    ("forbidden", 403, errors.ForbiddenError),
    ("not_found", 404, errors.NotFoundError),
    ("conflict", 409, errors.ConflictError),
    ("lease_superseded", 409, errors.LeaseSuperseded),
    ("payload_too_large", 413, errors.APIError),
    ("unavailable", 503, errors.APIError),
]


@pytest.mark.parametrize(("code", "status", "kind"), CODES)
def test_an_envelope_maps_by_code(code: str, status: int, kind: type[errors.APIError]) -> None:
    error = error_from(status, json.dumps({"code": code, "message": "m"}).encode())
    assert type(error) is kind
    assert (error.args[0], error.code, error.status_code) == ("m", code, status)


@pytest.mark.parametrize("details", [None, "text", {"status": "granted", "decided_by": "alice"}])
def test_the_details_of_an_envelope(details: Any) -> None:
    envelope = {"code": "conflict", "message": "m", "details": details}
    error = error_from(409, json.dumps(envelope).encode())
    assert isinstance(error, errors.ConflictError)
    for each in (error, pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert each.details == (details if isinstance(details, dict) else {})
        assert each.args == ("m", "conflict", 409)


def test_an_envelope_of_control_flow() -> None:
    ended = error_from(409, b'{"code":"execution_terminal","message":"m"}')
    assert (type(ended), str(ended)) == (errors.Terminated, "m")
    denied = error_from(403, b'{"code":"policy_denied","message":"m","rule_id":"r"}')
    assert isinstance(denied, errors.PolicyError)
    assert (denied.args[0], denied.rule_id) == ("m", "r")


@pytest.mark.parametrize(
    ("body", "message"),
    [(b"<html>", "<html>"), (b"", ""), (b"[1]", "[1]"), (b'{"message":"m"}', "m"), (b"\xff", "�")],
)
def test_an_answer_without_an_envelope(body: bytes, message: str) -> None:
    error = error_from(502, body)
    assert type(error) is errors.APIError
    assert (error.args[0], error.code, error.status_code) == (message, "internal_error", 502)


def test_reading_answers() -> None:
    assert read(Execution, b'{"id":"e","new_field":1}').id == "e"
    assert read(list[Step], b"null") == []
    assert read(list[Step], b'[{"step_id":"s"}]')[0].step_id == "s"
    assert read_field(b'{"state":[1]}', "state") == [1]
    assert read_field(b"", "state") is None


@pytest.mark.parametrize("body", [b"<html>", b"{}", b'{"id":null}', b'{"id":"e","session":null}'])
def test_an_answer_that_is_none(body: bytes) -> None:
    with pytest.raises(errors.RebunoError, match="not what the protocol says"):
        read(Execution, body)


def test_server_sent_events() -> None:
    stream = EventStream()
    lines = [": keep-alive", "", "id: 1", "data: a", "", "data:b", "data: c", "event: x", "", ""]
    assert [data for line in lines for data in stream.feed(line)] == ["a", "b\nc"]
