# SPDX-License-Identifier: Apache-2.0
"""Calls the tools of `mcp_server.py` as steps, live and replayed, and prints what it saw."""

import asyncio
import inspect
import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from conftest import Bench, Time
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from rebuno.mcp import wrap_mcp_tools
from recorder import Recorder

SERVER = Path(__file__).parent / "mcp_server.py"


async def main() -> dict[str, Any]:
    bench = Bench(Recorder(), Time())
    called: list[str] = []
    parameters = StdioServerParameters(command=sys.executable, args=[str(SERVER)])
    async with stdio_client(parameters) as streams, ClientSession(*streams) as session:
        await session.initialize()
        listed = await session.list_tools()

        async def call(name: str, args: dict[str, Any]) -> Any:
            called.append(name)
            return await session.call_tool(name, args)

        tools = {one.__name__: one for one in wrap_mcp_tools(listed.tools, call=call, prefix="x")}

        async def process(given: Any) -> Any:
            return {
                "one": await tools["x_add"](first=1),
                "two": await tools["x_add"](first=1, second=2),
                "say": await tools["x_say"](what="é"),
                "twice": await tools["x_twice"](what="a"),
                "error": await tools["x_add"](first="no number"),
            }

        live = await bench.output(process)
        replayed = await bench.output(process)
    for agent in bench.agents:
        await agent.close()
    return {
        "version": version("mcp"),
        "live": live,
        "replayed": replayed,
        "called": called,
        "docs": {name: one.__doc__ for name, one in tools.items()},
        "signature": str(inspect.signature(tools["x_add"])),
        "required": tools["x_add"].__input_schema__["required"],
        "args": [call.body["args"] for call in bench.kernel.named("steps")][:2],
    }


print(json.dumps(asyncio.run(main())))
