# SPDX-License-Identifier: Apache-2.0
"""`subagent()`: another agent's run as the outcome of a step, waited for without a process."""

from typing import Any

from . import _requests
from ._attempt import Attempt, current_step
from ._client import Client
from ._context import attempt_of, current
from ._protocol import read
from ._steps import replayed
from ._turns import current_turn
from .types import SpawnedBy, Step, StepDecision


async def subagent(
    agent_id: str, input: Any = None, *, session: str = "", client: Client | None = None
) -> Any:
    """Runs another agent inside a tool's body and returns its output, for the tool to return.

    The run settles the tool's step: with its output, or, if it fails or is cancelled, with an
    error, raised as ToolError. A tool has one subagent. While it works nothing waits for it: once
    every call in flight waits like this, Blocked ends the handler, and the execution is delivered
    again when the subagents have ended. So the tool returns what this gives, and leaves
    Blocked alone.

    session: the subagent's own. client: whom to create it with; by default a Client() for the
    agent's kernel. RuntimeError outside a tool's body.
    """
    who = f"subagent({agent_id!r})"
    attempt = attempt_of(current(who, "settles a tool's step"))
    step_id, turn = current_step.get(), current_turn.get()
    if not step_id or turn is None:
        raise RuntimeError(f"{who} called outside a tool body: call it inside a tool or step")
    spawned_by = SpawnedBy(execution_id=attempt.execution_id, step_id=step_id)
    if client is not None:
        await client.create(agent_id, input, session=session, spawned_by=spawned_by)
    else:
        async with _client_of(attempt) as own:
            await own.create(agent_id, input, session=session, spawned_by=spawned_by)
    await attempt.wait_for_subagent(turn)
    step = read(Step, await attempt.send(_requests.get_step(attempt.execution_id, step_id)))
    turn.recorded = StepDecision(
        decision="replay", step_id=step_id, result=step.result, error=step.error
    )
    return replayed(turn.recorded, step.target)


def _client_of(attempt: Attempt) -> Client:
    client = Client(attempt.base_url)
    client._wire = client._wire_to(attempt.environment)
    return client
