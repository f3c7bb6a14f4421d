"""Agents under a policy: bundles, tools that count their effects, and what to wait for."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from real_kernel import DEADLINE, serving

from rebuno import Agent, Client, tool
from rebuno.types import Approval, Execution

HOLD = """
default_action: allow
rules:
  - id: ask
    when: { target: deploy* }
    then:
      decision: require_approval
      reason: somebody should look
      approval_config: { timeout: 1h%s }
"""

LIMIT = """
default_action: allow
rules:
  - id: slowly
    when: { target: look }
    then:
      decision: allow
      rate_limit: { max_calls: %d, window: %s, per_what: execution%s }
"""

done: Counter[str] = Counter()  # the effects of the tools below


@tool("deploy")
async def deploy(to: str = "prod") -> str:
    done[f"deploy {to}"] += 1
    return f"deployed to {to}"


@tool("look", idempotency="at_most_once")
async def look() -> str:
    done["look"] += 1
    return "looked"


async def set_policy(kernel_url: str, agent_id: str, bundle: str) -> None:
    async with httpx2.AsyncClient() as http:
        answer = await http.post(f"{kernel_url}/v0/policies/{agent_id}", json={"bundle": bundle})
    assert answer.status_code == 204, answer.text


@asynccontextmanager
async def governed(
    kernel_url: str, agent_id: str, bundle: str, process: Callable[..., Any], **options: Any
) -> AsyncIterator[Agent]:
    """An agent under a policy."""
    async with serving(kernel_url, agent_id, process, **options) as agent:
        await set_policy(kernel_url, agent_id, bundle)
        yield agent


async def pending(
    client: Client, execution_id: str, count: int = 1, within: float = DEADLINE
) -> list[Approval]:
    """The approvals that an execution waits for, once there are so many."""
    async with asyncio.timeout(within):
        while True:
            mine = [
                approval
                for approval in await client.list_approvals()
                if approval.execution_id == execution_id
            ]
            if len(mine) >= count:
                assert (await client.get(execution_id)).status == "blocked"
                return mine


async def ended(client: Client, execution_id: str, within: float = DEADLINE) -> Execution:
    run = await client.wait(execution_id, within)
    assert run.status == "completed", run.failure_reason
    return run


async def event_types(client: Client, execution_id: str) -> Counter[str]:
    return Counter(event.type for event in await client.events(execution_id, limit=1000))
