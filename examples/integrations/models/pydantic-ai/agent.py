# SPDX-License-Identifier: Apache-2.0
"""A shop's assistant, on Pydantic AI."""

import asyncio
import os

import pydantic_ai
from pydantic_ai.models import infer_model
from pydantic_ai.providers import Provider
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from rebuno import Agent, http_client, tool

if not os.environ.get("LLM_MODEL"):
    raise SystemExit("set LLM_MODEL: see README.md")

ORDERS = {"A1": ("teapot", 40), "A2": ("kettle", 25)}  # the item, and what was paid
STOCK = {"teapot": 3, "kettle": 0}
PROMPT = """\
You are the assistant of a shop. Look orders and the stock up before you answer.
Give money back only if the item cannot be sent, and never more than was paid.
"""


@tool
async def find_order(number: str) -> str:
    """Look an order up: what was bought, and what was paid for it."""
    if number not in ORDERS:
        return f"there is no order {number}"  # not an exception: the model can ask again
    item, paid = ORDERS[number]
    return f"order {number}: {item}, {paid:.2f} paid"


@tool
async def check_stock(item: str) -> str:
    """Tell how many pieces of an item the warehouse holds."""
    await asyncio.sleep(1)  # a system that takes its time
    return f"{STOCK.get(item, 0)} x {item}"


@tool(idempotency="at_most_once")
async def refund(number: str, amount: float) -> str:
    """Pay money back for an order. A person looks at it first."""
    _, paid = ORDERS.get(number, ("", 0))
    if amount > paid:
        raise ValueError(f"{amount:.2f} is more than the {paid:.2f} paid for order {number}")
    return f"{amount:.2f} paid back for order {number}"


PROVIDERS = {  # by what a model's name begins with; keys and base URLs: OPENAI_…, ANTHROPIC_…
    "anthropic": AnthropicProvider,
    "openai": OpenAIProvider,  # responses
    "openai-chat": OpenAIProvider,
}


def provider(name: str) -> Provider:
    """The provider of that name, its calls recorded."""
    kind = PROVIDERS[name]
    return kind(http_client=http_client())


model = infer_model(os.environ["LLM_MODEL"], provider_factory=provider)
assistant = pydantic_ai.Agent(model, instructions=PROMPT, tools=[find_order, check_stock, refund])


async def streamed(context, events) -> None:
    """For its sake the answers are streamed; whoever follows the run sees them grow."""
    async for _ in events:
        pass


async def process(question: str) -> dict:
    """Answers a customer's question."""
    result = await assistant.run(question, event_stream_handler=streamed)
    return {"answer": result.output}


if __name__ == "__main__":
    Agent(
        "pydantic-ai",
        base_url=os.environ.get("REBUNO_URL") or "http://localhost:8080",
        secret=os.environ.get("REBUNO_AGENT_SECRET") or "pydantic-ai-development-secret",
    ).run(process, host="127.0.0.1", port=5000)
