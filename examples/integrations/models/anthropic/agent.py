# SPDX-License-Identifier: Apache-2.0
"""A shop's assistant: a loop around Anthropic's own client."""

import asyncio
import os

from anthropic import AsyncAnthropic
from rebuno import Agent, http_client, tool

if not os.environ.get("LLM_MODEL"):
    raise SystemExit("set LLM_MODEL: see README.md")

MODEL = os.environ["LLM_MODEL"]
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


def described(function, **properties: str) -> dict:
    """What the model is told of a tool, with the JSON types of its arguments."""
    schema = {
        "type": "object",
        "properties": {name: {"type": kind} for name, kind in properties.items()},
        "required": list(properties),
    }
    return {
        "name": function.__name__,
        "description": function.__doc__,
        "input_schema": schema,
    }


TOOLS = {function.__name__: function for function in (find_order, check_stock, refund)}
DESCRIBED = [
    described(find_order, number="string"),
    described(check_stock, item="string"),
    described(refund, number="string", amount="number"),
]

client = AsyncAnthropic(http_client=http_client())  # ANTHROPIC_API_KEY, ANTHROPIC_BASE_URL


async def ask(messages: list) -> object:
    """One model call, streamed, so that whoever follows the run sees the answer grow."""
    async with client.messages.stream(
        model=MODEL,
        max_tokens=4096,
        system=PROMPT,
        messages=messages,
        tools=DESCRIBED,
    ) as stream:
        return await stream.get_final_message()


async def answer_to(call) -> dict:
    """One tool call of the model, and what came of it."""
    try:
        result = await TOOLS[call.name](**call.input)
    except (KeyError, TypeError) as error:  # the model called what is not there
        result = f"no such call: {error!r}"
    return {"type": "tool_result", "tool_use_id": call.id, "content": result}


async def process(question: str) -> dict:
    """Answers a customer's question."""
    messages = [{"role": "user", "content": question}]
    while True:
        message = await ask(messages)
        calls = [block for block in message.content if block.type == "tool_use"]
        if not calls:
            return {"answer": "".join(b.text for b in message.content if b.type == "text")}
        messages.append({"role": "assistant", "content": message.content})
        results = await asyncio.gather(*(answer_to(call) for call in calls))
        messages.append({"role": "user", "content": results})


if __name__ == "__main__":
    Agent(
        "anthropic",
        base_url=os.environ.get("REBUNO_URL") or "http://localhost:8080",
        secret=os.environ.get("REBUNO_AGENT_SECRET") or "anthropic-development-secret",
    ).run(process, host="127.0.0.1", port=5000)
