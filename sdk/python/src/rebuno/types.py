# SPDX-License-Identifier: Apache-2.0
"""What the kernel answers, as pydantic models.

A model ignores fields it does not know, so a newer kernel can be read by an older package. A
field that the kernel left out has its default: `""`, 0, False, or None for JSON of the user's.
"""

from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, Field


class ExecutionStatus(StrEnum):
    """The states of an execution; the last three are final."""

    PENDING = "pending"
    RUNNING = "running"
    BLOCKED = "blocked"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class SpawnedBy(BaseModel):
    """The step of another execution that started this one, as a subagent."""

    execution_id: str
    step_id: str


class Execution(BaseModel):
    """One run of an agent. `status` is an ExecutionStatus, or text that this package predates."""

    id: str
    agent_id: str = ""
    input: Any = None
    status: Annotated[ExecutionStatus | str, Field(union_mode="left_to_right")] = (
        ExecutionStatus.PENDING
    )
    output: Any = None
    failure_reason: str = ""
    session: str = ""
    parent_execution_id: str | None = None
    forked_from: str | None = None
    fork_seq: int = 0
    restoration: dict[str, dict[str, Any]] | None = None
    idempotency_key: str = ""
    spawned_by: SpawnedBy | None = None
    created_by: str = ""
    on_behalf_of: str = ""
    subject_groups: list[str] = []


class ExecutionList(BaseModel):
    """One page of executions, newest first; `next_cursor` is empty on the last one."""

    executions: list[Execution] = []
    next_cursor: str = ""


class Step(BaseModel):
    """One recorded effect. `error` is None unless the step failed or was denied."""

    step_id: str
    execution_id: str = ""
    kind: str = ""
    target: str = ""
    args_hash: str = ""
    occurrence: int = 0
    status: str = ""
    idempotency: str = ""
    args: Any = None
    result: Any = None
    error: Any = None


class StepResource(BaseModel):
    """A resource that a step touches; `due` asks for a capture under `generation`."""

    key: str
    generation: int = 0
    due: bool = False


class StepDecision(BaseModel):
    """The kernel's answer to a submitted step."""

    decision: str
    step_id: str = ""
    result: Any = None
    error: Any = None
    approval_id: str | None = None
    reason: str = ""
    rule_id: str = ""
    resources: list[StepResource] = []


class Resource(BaseModel):
    """A registered resource, with the checkpoint policy in force (`every_steps`: in steps)."""

    key: str
    generation: int = 0
    binding: Any = None
    checkpoint_ref: str = ""
    covered: bool = False
    every_steps: int = 0
    on_completion: bool = False


class Event(BaseModel):
    """One entry of an execution's log. `event_seq` counts from 1; `occurred_at` is RFC 3339."""

    execution_id: str = ""
    event_seq: int = 0
    type: str = ""
    payload: Any = None
    occurred_at: str = ""


class Delta(BaseModel):
    """A piece of a model's answer as it is written; `seq` counts from 0 within the step."""

    step_id: str = ""
    seq: int = 0
    data: str = ""


class Approval(BaseModel):
    """A person's decision that one step waits for, or has got.

    `status` is pending, granted, denied or expired. `agent_id`, `kind`, `target` and `args` are
    the step's: what would happen. `approvers`, if any, are the names that may decide;
    `timeout_at` (RFC 3339) is when it expires. `decided_by` is the name that counts,
    `asserted_by` the caller who stated it, if it was not their own.
    """

    id: str
    step_id: str = ""
    execution_id: str = ""
    status: str = ""
    message: str = ""
    decided_by: str = ""
    asserted_by: str = ""
    rationale: str = ""
    agent_id: str = ""
    kind: str = ""
    target: str = ""
    args: Any = None
    approvers: list[str] = []
    timeout_at: str = ""


class Checkpoint(BaseModel):
    """A captured state, valid for the events `covered_seq <= seq < invalidated_seq`.

    `invalidated_seq` is None while nothing has touched the resource since.
    """

    key: str
    generation: int = 0
    checkpoint_ref: str = ""
    covered_seq: int = 0
    invalidated_seq: int | None = None


class ForkPoints(BaseModel):
    """Where an execution can be forked: any event up to `latest_seq`.

    `resources` maps each resource to the event that registered it; `checkpoints` says where
    external state can be restored exactly.
    """

    latest_seq: int = 0
    resources: dict[str, int] = {}
    checkpoints: list[Checkpoint] = []
