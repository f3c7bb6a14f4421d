# SPDX-License-Identifier: Apache-2.0
"""A shop's assistant whose tools are those of an MCP server; the loop is LangChain's."""

import os
import sys
from pathlib import Path

from langchain.agents import create_agent
from langchain_core.tools import StructuredTool
from langchain_openai import ChatOpenAI
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from rebuno import Agent, http_client
from rebuno.mcp import wrap_mcp_tool

NEEDED = ["OPENAI_API_KEY", "LLM_MODEL"]
if missing := [name for name in NEEDED if not os.environ.get(name)]:
    raise SystemExit(f"set {', '.join(missing)}: see README.md")

SHOP = StdioServerParameters(
    command=sys.executable, args=[str(Path(__file__).with_name("shop_server.py"))]
)
PROMPT = """\
You are the assistant of a shop. Look orders and the stock up before you answer.
Give money back only if the item cannot be sent, and never more than was paid.
"""

model = ChatOpenAI(  # OPENAI_API_KEY, OPENAI_BASE_URL
    model=os.environ["LLM_MODEL"],
    http_async_client=http_client(),
    streaming=True,  # whoever follows the run sees the answer grow
    stream_usage=True,  # the answer says its tokens, so that budgets count them
)


def durable(listed, session: ClientSession) -> StructuredTool:
    """A tool of the server as a step, and that as a tool of LangChain."""
    about = listed.model_dump(by_alias=True)  # the same names in both versions of the package
    only_reads = (about["annotations"] or {}).get("readOnlyHint")
    step = wrap_mcp_tool(
        about,
        call=session.call_tool,
        prefix="shop",
        idempotency="safe_to_retry" if only_reads else "at_most_once",
    )
    return StructuredTool.from_function(
        coroutine=step,
        name=step.__name__,
        description=step.__doc__,
        args_schema=step.__input_schema__,
    )


async def process(question: str) -> dict:
    """Answers a customer's question."""
    async with stdio_client(SHOP) as streams, ClientSession(*streams) as session:
        await session.initialize()
        listed = await session.list_tools()
        tools = [durable(one, session) for one in listed.tools]
        assistant = create_agent(model, tools=tools, system_prompt=PROMPT)
        result = await assistant.ainvoke({"messages": [{"role": "user", "content": question}]})
    return {"answer": result["messages"][-1].text}


if __name__ == "__main__":
    Agent(
        "mcp",
        base_url=os.environ.get("REBUNO_URL") or "http://localhost:8080",
        secret=os.environ.get("REBUNO_AGENT_SECRET") or "mcp-development-secret",
    ).run(process, host="127.0.0.1", port=5000)
