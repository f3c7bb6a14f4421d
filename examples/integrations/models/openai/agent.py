# SPDX-License-Identifier: Apache-2.0
"""A shop's assistant: a loop around OpenAI's own client."""

import asyncio
import json
import os

from openai import AsyncOpenAI
from rebuno import Agent, http_client, tool

NEEDED = ["OPENAI_API_KEY", "LLM_MODEL"]
if missing := [name for name in NEEDED if not os.environ.get(name)]:
    raise SystemExit(f"set {', '.join(missing)}: see README.md")

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
    about = {"name": function.__name__, "description": function.__doc__, "parameters": schema}
    return {"type": "function", "function": about}


TOOLS = {function.__name__: function for function in (find_order, check_stock, refund)}
DESCRIBED = [
    described(find_order, number="string"),
    described(check_stock, item="string"),
    described(refund, number="string", amount="number"),
]

client = AsyncOpenAI(http_client=http_client())  # OPENAI_API_KEY, OPENAI_BASE_URL


async def ask(messages: list) -> dict:
    """One model call, streamed, so that whoever follows the run sees the answer grow."""
    text, calls = "", {}
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=messages,
        tools=DESCRIBED,
        stream=True,
        stream_options={"include_usage": True},  # its tokens, so that budgets count them
    )
    async for chunk in stream:
        for choice in chunk.choices:  # the last chunk, with the tokens, has none
            text += choice.delta.content or ""
            for piece in choice.delta.tool_calls or []:
                if piece.index not in calls:  # its first piece names it
                    function = {"name": piece.function.name, "arguments": ""}
                    calls[piece.index] = {"id": piece.id, "type": "function", "function": function}
                calls[piece.index]["function"]["arguments"] += piece.function.arguments or ""
    said = {"role": "assistant", "content": text}
    return said | {"tool_calls": list(calls.values())} if calls else said


async def answer_to(call: dict) -> dict:
    """One tool call of the model, and what came of it."""
    function = call["function"]
    try:
        result = await TOOLS[function["name"]](**json.loads(function["arguments"]))
    except (KeyError, TypeError, ValueError) as error:  # the model called what is not there
        result = f"no such call: {error!r}"
    return {"role": "tool", "tool_call_id": call["id"], "content": result}


async def process(question: str) -> dict:
    """Answers a customer's question."""
    messages = [{"role": "system", "content": PROMPT}, {"role": "user", "content": question}]
    while True:
        said = await ask(messages)
        if "tool_calls" not in said:
            return {"answer": said["content"]}
        results = await asyncio.gather(*(answer_to(call) for call in said["tool_calls"]))
        messages += [said, *results]


if __name__ == "__main__":
    Agent(
        "openai",
        base_url=os.environ.get("REBUNO_URL") or "http://localhost:8080",
        secret=os.environ.get("REBUNO_AGENT_SECRET") or "openai-development-secret",
    ).run(process, host="127.0.0.1", port=5000)
