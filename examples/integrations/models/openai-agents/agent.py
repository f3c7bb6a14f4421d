# SPDX-License-Identifier: Apache-2.0
"""A shop's assistant, on the OpenAI Agents SDK."""

import asyncio
import os

import agents
from openai import AsyncOpenAI
from rebuno import Agent, http_client, tool

NEEDED = ["OPENAI_API_KEY", "LLM_MODEL"]
if missing := [name for name in NEEDED if not os.environ.get(name)]:
    raise SystemExit(f"set {', '.join(missing)}: see README.md")

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


# Without failure_error_function=None the SDK makes a sentence for the model of everything a tool
# raises, of Blocked too.
TOOLS = [
    agents.function_tool(function, failure_error_function=None)
    for function in (find_order, check_stock, refund)
]

# OPENAI_API_KEY, OPENAI_BASE_URL. Servers that only speak like OpenAI mostly know chat completions.
provider = agents.OpenAIProvider(
    openai_client=AsyncOpenAI(http_client=http_client()),
    use_responses=os.environ.get("LLM_API", "responses") != "chat",
)
# Traces would be sent to OpenAI, past the record.
config = agents.RunConfig(model_provider=provider, tracing_disabled=True)
assistant = agents.Agent(
    "assistant",
    instructions=PROMPT,
    model=os.environ["LLM_MODEL"],
    # Chat completions say their tokens only if asked, and budgets count them.
    model_settings=agents.ModelSettings(include_usage=True),
    tools=TOOLS,
)


async def process(question: str) -> dict:
    """Answers a customer's question."""
    run = agents.Runner.run_streamed(assistant, question, run_config=config)
    async for _ in run.stream_events():  # whoever follows the run sees the answer grow
        pass
    return {"answer": run.final_output}


if __name__ == "__main__":
    Agent(
        "openai-agents",
        base_url=os.environ.get("REBUNO_URL") or "http://localhost:8080",
        secret=os.environ.get("REBUNO_AGENT_SECRET") or "openai-agents-development-secret",
    ).run(process, host="127.0.0.1", port=5000)
