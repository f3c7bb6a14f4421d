# SPDX-License-Identifier: Apache-2.0
"""examples/integrations/models: each agent does its work, and survives what may come."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from governed import set_policy
from real_kernel import BIN
from rebuno.testing import ModelRequest
from rebuno.types import Execution
from shop import VARIANTS, Shop

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(not BIN, reason="REBUNO_BIN names no kernel"),
]
ANSWER = "Your money is on its way, 25 €."


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=VARIANTS, ids=str)
async def shop(
    request: pytest.FixtureRequest,
) -> AsyncIterator[Shop]:
    async with Shop(request.param) as shop:
        yield shop


FIND = ("find_order", {"number": "A2"})
STOCK = ("check_stock", {"item": "kettle"})
REFUND = ("refund", {"number": "A2", "amount": 25})
FOUND, IN_STOCK, REFUNDED = (
    "order A2: kettle, 25.00 paid",
    "0 x kettle",
    "25.00 paid back for order",
)


def calls(shop: Shop, *calls: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    """A turn of the model that makes these calls at once."""
    return {"tools": [shop.variant.call(name, **args) for name, args in calls]}


def asked(shop: Shop, run: Execution) -> list[str]:
    return [str(request.body) for request in shop.requests(run)]


async def test_it_completes(shop: Shop) -> None:
    run = await shop.ask(calls(shop, FIND), calls(shop, STOCK), ANSWER)
    assert await shop.answer(run) == ANSWER
    requests = shop.requests(run)
    assert [(one.path, one.is_streamed) for one in requests] == [(shop.variant.path, True)] * 3
    assert FOUND in str(requests[1].body)
    assert IN_STOCK in str(requests[2].body)


async def test_an_approval_that_is_granted(shop: Shop) -> None:
    run = await shop.ask(calls(shop, REFUND), ANSWER)
    approval = await shop.pending(run)
    assert approval.target == shop.variant.target("refund")
    assert approval.args == REFUND[1]
    assert len(shop.requests(run)) == 1
    await shop.client.grant_approval(approval.id)
    assert await shop.answer(run) == ANSWER
    assert len(shop.requests(run)) == 2
    assert REFUNDED in asked(shop, run)[1]
    (step,) = await shop.steps(run, "refund")
    assert step.idempotency == "at_most_once"


async def test_an_approval_that_is_denied(shop: Shop) -> None:
    run = await shop.ask(calls(shop, REFUND), "Nothing is paid back.")
    await shop.client.deny_approval((await shop.pending(run)).id, rationale="it was delivered")
    assert await shop.answer(run) == "Nothing is paid back."
    name = shop.variant.target("refund")
    assert f"{name} not allowed. reason: it was delivered" in asked(shop, run)[1]


async def test_a_tool_that_the_policy_denies(shop: Shop) -> None:
    bundle = (shop.example / "policy.yaml").read_text()
    name = shop.variant.target("find_order")
    rule = "  - id: no\n    when: {target: %s}\n    then: {decision: deny, reason: not now}\n"
    denied = bundle.replace("rules:\n", "rules:\n" + rule % name)
    await set_policy(shop.url, shop.variant.name, denied)
    run = await shop.ask(calls(shop, FIND), "I cannot look.")
    assert await shop.answer(run) == "I cannot look."
    await set_policy(shop.url, shop.variant.name, bundle)
    assert f"{name} not allowed. reason: not now" in asked(shop, run)[1]


async def test_an_agent_killed_in_a_tool(shop: Shop) -> None:
    """The model is not asked again for what it has said."""
    run = await shop.ask(calls(shop, FIND, STOCK), ANSWER)
    await shop.until_step(run, "check_stock", "executing")
    await shop.kill_agent()
    await shop.start_agent()
    assert await shop.answer(run) == ANSWER
    first, second = asked(shop, run)
    assert FOUND not in first
    assert FOUND in second
    assert IN_STOCK in second


async def test_an_agent_killed_while_the_model_thinks(shop: Shop) -> None:
    """That call alone, which nothing is recorded of, is made again."""
    may_answer = asyncio.Event()

    async def thinks(request: ModelRequest) -> str:
        await may_answer.wait()
        return ANSWER

    run = await shop.ask(calls(shop, FIND), thinks)
    await shop.until_asked(run, 2)
    await shop.kill_agent()
    may_answer.set()
    await shop.start_agent()
    assert await shop.answer(run) == ANSWER
    _, second, again = asked(shop, run)
    assert second == again
    assert len(await shop.steps(run, "find_order")) == 1


async def test_an_agent_killed_while_a_person_thinks(shop: Shop) -> None:
    run = await shop.ask(calls(shop, FIND, REFUND), ANSWER)
    approval = await shop.pending(run)
    await shop.kill_agent()
    await shop.client.grant_approval(approval.id)
    await shop.start_agent()
    assert await shop.answer(run) == ANSWER
    assert len(shop.requests(run)) == 2


async def test_one_of_three_calls_waits(shop: Shop) -> None:
    """Its neighbours run on to their end, and are not run again."""
    name = shop.variant.target
    shop.gate.let_in_first(name("refund"), name("find_order"), name("check_stock"))
    run = await shop.ask(calls(shop, FIND, REFUND, STOCK), ANSWER)
    approval = await shop.pending(run)
    step = await shop.until_step(run, "check_stock", "succeeded")
    (found,) = await shop.steps(run, "find_order")
    assert found.status == "succeeded"
    assert (await shop.client.get(run.id)).status == "blocked"
    await shop.client.grant_approval(approval.id)
    assert await shop.answer(run) == ANSWER
    assert [one.step_id for one in await shop.steps(run, "check_stock")] == [step.step_id]
    events = await shop.client.events(run.id, limit=1000)
    begun = [event.payload["step_id"] for event in events if event.type == "step.executing"]
    assert len(begun) == len(set(begun)) == 5  # two model calls and three tools, once each
    assert len(shop.requests(run)) == 2
    for said in (FOUND, IN_STOCK, REFUNDED):
        assert said in asked(shop, run)[1]


async def test_a_tool_that_raises(shop: Shop) -> None:
    too_much = ("refund", {"number": "A2", "amount": 99})
    run = await shop.ask(calls(shop, too_much), "I cannot do that.")
    await shop.client.grant_approval((await shop.pending(run)).id)
    ended = await shop.ended(run)
    why = "99.00 is more than the 25.00 paid for order A2"
    if shop.variant.name == "mcp":  # a server answers with what went wrong, which the model reads
        assert ended.output == {"answer": "I cannot do that."}
        assert why in asked(shop, run)[1]
    else:
        assert ended.status == "failed"
        assert why in ended.failure_reason
        assert len(shop.requests(run)) == 1


async def test_a_call_that_does_not_fit(shop: Shop) -> None:
    run = await shop.ask(calls(shop, ("find_order", {"nummer": "A2"})), "I mean another.")
    ended = await shop.ended(run)
    if shop.variant.name == "openai-agents":  # which is strict with its models
        assert ended.failure_reason.startswith("agent_error: ModelBehaviorError: Invalid JSON")
    else:
        assert ended.output == {"answer": "I mean another."}
        assert "number" in asked(shop, run)[1]
    if shop.variant.name != "mcp":  # where the server knows what fits
        assert await shop.steps(run, "find_order") == []
