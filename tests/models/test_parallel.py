# SPDX-License-Identifier: Apache-2.0
"""Several calls of one turn, of which more than one does not simply run; the real kernel."""

import asyncio
from typing import Any

import agents
import pytest
from agents.models.openai_chatcompletions import OpenAIChatCompletionsModel
from governed import ended, governed, pending
from real_kernel import DEADLINE
from rebuno import Client, http_client, tool
from rebuno.testing import ScriptedModel
from rebuno.types import Approval
from sdks import NAME, Setting
from test_held import HOLD, PARALLEL, Slow, agent_id, anew, deploy, done, slow
from test_sdks import ANSWER, both_ways, process_of

__all__ = ["anew"]  # clears what is counted, before each test
parallel_loop = pytest.mark.parametrize("loop", PARALLEL, ids=lambda loop: loop.__name__)


def turn(*calls: tuple[str, str]) -> dict[str, object]:
    return {"tools": [{"name": name, "args": {"city": city}} for name, city in calls]}


async def next_approval(client: Client, execution_id: str) -> Approval:
    """One that is not decided yet; others may wait beside it, and the run need not be blocked."""
    async with asyncio.timeout(DEADLINE):
        while True:
            for approval in await client.list_approvals():
                if approval.execution_id == execution_id:
                    return approval
            await asyncio.sleep(0.02)


@parallel_loop
@both_ways
async def test_two_of_three_calls_wait(
    kernel_url: str,
    client: Client,
    request: pytest.FixtureRequest,
    loop: Any,
    is_streamed: bool,
) -> None:
    """Somebody is asked about both, and no matter in which order, each is what was decided."""
    name = agent_id(request)
    Slow.may_end.set()
    calls = turn(("deploy", "Ulm"), ("slow", "Bonn"), ("deploy", "Trier"))
    async with ScriptedModel([calls, ANSWER]) as model:
        process = process_of(loop, Setting(model.origin, [slow, deploy], is_streamed))
        async with governed(kernel_url, name, HOLD % "deploy", process):
            created = await client.create(name, {})
            first = await next_approval(client, created.id)
            await client.grant_approval(first.id)
            second = await next_approval(client, created.id)
            await client.deny_approval(second.id, rationale="one is enough")
            assert second.args != first.args
            assert (await ended(client, created.id)).output == ANSWER
        assert len(model.requests) == 2
        told = str(model.requests[1].body)
    granted = first.args["city"]
    assert f"deployed to {granted}" in told
    assert "slow in Bonn" in told
    assert "deploy not allowed. reason: one is enough" in told
    assert done == {f"deploy {granted}": 1, "slow Bonn": 1}


@parallel_loop
@both_ways
async def test_one_of_two_calls_raises(
    kernel_url: str,
    client: Client,
    request: pytest.FixtureRequest,
    loop: Any,
    is_streamed: bool,
) -> None:
    """The run fails with what was raised, and what was under way beside it is not run again."""

    @tool(idempotency="at_most_once")
    async def broken(city: str) -> str:
        """Breaks."""
        await Slow.began.wait()
        raise ValueError(f"no road to {city}")

    name = agent_id(request)
    async with ScriptedModel([turn(("slow", "Bonn"), ("broken", "Ulm")), ANSWER]) as model:
        process = process_of(loop, Setting(model.origin, [slow, broken], is_streamed))
        async with governed(kernel_url, name, "default_action: allow\n", process) as agent:
            created = await client.create(name, {})
            run = await client.wait(created.id, DEADLINE)
            assert run.status == "failed"
            assert "broken: no road to Ulm" in run.failure_reason
            Slow.may_end.set()
            await asyncio.wait_for(agent.join(), DEADLINE)
            steps = {one.target: one for one in await client.list_steps(created.id)}
        assert len(model.requests) == 1
    assert steps["broken"].error == {"message": "no road to Ulm"}
    assert done == {"slow Bonn": 1}
    assert steps["slow"].error == {"message": "cancelled"}  # by the framework


async def test_a_framework_that_swallows_the_wait(kernel_url: str, client: Client) -> None:
    """It makes a sentence of it for the model, which is not asked before the decision."""

    async def process(given: Any) -> str:
        async with http_client() as http:
            model = OpenAIChatCompletionsModel(
                NAME, Setting(scripted.origin, [], http=http).openai()
            )
            assistant = agents.Agent("a", model=model, tools=[agents.function_tool(deploy)])
            return str((await agents.Runner.run(assistant, "Deploy it.")).final_output)

    async with (
        ScriptedModel([turn(("deploy", "Ulm")), ANSWER]) as scripted,
        governed(kernel_url, "swallows", HOLD % "deploy", process),
    ):
        created = await client.create("swallows", {})
        (approval,) = await pending(client, created.id)
        await client.grant_approval(approval.id)
        assert (await ended(client, created.id)).output == ANSWER
        assert len(scripted.requests) == 2
        assert "deployed to Ulm" in str(scripted.requests[1].body)
