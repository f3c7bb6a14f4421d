# SPDX-License-Identifier: Apache-2.0
"""The shop as an MCP server over stdio. It knows nothing of Rebuno."""

import asyncio

try:
    from mcp.server.mcpserver import MCPServer as Server
    from mcp.server.mcpserver.exceptions import ToolError
except ImportError:  # version 1 of the package
    from mcp.server.fastmcp import FastMCP as Server
    from mcp.server.fastmcp.exceptions import ToolError
from mcp.types import ToolAnnotations

ORDERS = {"A1": ("teapot", 40), "A2": ("kettle", 25)}  # the item, and what was paid
STOCK = {"teapot": 3, "kettle": 0}

server = Server("shop")
# By its name in the protocol, which both versions take.
reads = ToolAnnotations.model_validate({"readOnlyHint": True})


@server.tool(annotations=reads)
async def find_order(number: str) -> str:
    """Look an order up: what was bought, and what was paid for it."""
    if number not in ORDERS:
        return f"there is no order {number}"
    item, paid = ORDERS[number]
    return f"order {number}: {item}, {paid:.2f} paid"


@server.tool(annotations=reads)
async def check_stock(item: str) -> str:
    """Tell how many pieces of an item the warehouse holds."""
    await asyncio.sleep(1)  # a system that takes its time
    return f"{STOCK.get(item, 0)} x {item}"


@server.tool()
async def refund(number: str, amount: float) -> str:
    """Pay money back for an order. A person looks at it first."""
    _, paid = ORDERS.get(number, ("", 0))
    if amount > paid:
        # Of this type alone the package tells the model what it says.
        raise ToolError(f"{amount:.2f} is more than the {paid:.2f} paid for order {number}")
    return f"{amount:.2f} paid back for order {number}"


if __name__ == "__main__":
    server.run()
