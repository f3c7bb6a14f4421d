from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from rebuno import types

# model, the least it takes, the rest
MODELS: list[tuple[type[BaseModel], dict[str, Any], dict[str, Any]]] = [
    (
        types.Execution,
        {"id": "e"},
        {
            "agent_id": "",
            "input": None,
            "status": "pending",
            "output": None,
            "failure_reason": "",
            "session": "",
            "parent_execution_id": None,
            "forked_from": None,
            "fork_seq": 0,
            "restoration": None,
            "idempotency_key": "",
            "spawned_by": None,
            "created_by": "",
            "on_behalf_of": "",
            "subject_groups": [],
        },
    ),
    (types.SpawnedBy, {"execution_id": "e", "step_id": "s"}, {}),
    (
        types.Step,
        {"step_id": "s"},
        {
            "execution_id": "",
            "kind": "",
            "target": "",
            "args_hash": "",
            "occurrence": 0,
            "status": "",
            "idempotency": "",
            "args": None,
            "result": None,
            "error": None,
        },
    ),
    (
        types.StepDecision,
        {"decision": "proceed"},
        {
            "step_id": "",
            "result": None,
            "error": None,
            "approval_id": None,
            "reason": "",
            "rule_id": "",
            "resources": [],
        },
    ),
    (types.StepResource, {"key": "k"}, {"generation": 0, "due": False}),
    (
        types.Resource,
        {"key": "k"},
        {
            "generation": 0,
            "binding": None,
            "checkpoint_ref": "",
            "covered": False,
            "every_steps": 0,
            "on_completion": False,
        },
    ),
    (
        types.Event,
        {},
        {"execution_id": "", "event_seq": 0, "type": "", "payload": None, "occurred_at": ""},
    ),
    (
        types.Approval,
        {"id": "p"},
        {
            "step_id": "",
            "execution_id": "",
            "status": "",
            "message": "",
            "decided_by": "",
            "asserted_by": "",
            "rationale": "",
            "agent_id": "",
            "kind": "",
            "target": "",
            "args": None,
            "approvers": [],
            "timeout_at": "",
        },
    ),
]


@pytest.mark.parametrize(("model", "least", "rest"), MODELS, ids=lambda value: str(value)[:40])
def test_models(model: type[BaseModel], least: dict[str, Any], rest: dict[str, Any]) -> None:
    made = model.model_validate(least | {"a_field_of_tomorrow": 1})
    assert made.model_dump() == least | rest
    for name in least:
        with pytest.raises(ValidationError):
            model.model_validate({key: value for key, value in least.items() if key != name})
    for name, default in (least | rest).items():
        if default is not None:
            with pytest.raises(ValidationError):
                model.model_validate(least | {name: None})


def test_status() -> None:
    running = types.Execution(id="e", status="running").status
    assert running is types.ExecutionStatus.RUNNING
    assert types.Execution(id="e", status="paused").status == "paused"
    assert [status.value for status in types.ExecutionStatus] == [
        "pending",
        "running",
        "blocked",
        "completed",
        "failed",
        "cancelled",
    ]


def test_the_wrong_type_is_refused() -> None:
    with pytest.raises(ValidationError):
        types.Event.model_validate({"occurred_at": 1})
    with pytest.raises(ValidationError):
        types.Event.model_validate({"event_seq": "x"})
