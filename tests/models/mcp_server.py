# SPDX-License-Identifier: Apache-2.0
"""An MCP server over stdio, for either major version of the package."""

from dataclasses import dataclass
from typing import Any

try:
    from mcp.server.mcpserver import MCPServer as Server
except ImportError:  # version 1
    from mcp.server.fastmcp import FastMCP as Server

server: Any = Server("things")


@dataclass
class Sum:
    total: int
    terms: list[int]


@server.tool()
def add(first: int, second: int | None = None) -> Sum:
    """Adds two numbers."""
    terms = [first] if second is None else [first, second]
    return Sum(sum(terms), terms)


@server.tool(structured_output=False)
def say(what: str) -> str:
    """Says it."""
    return f"said {what}"


@server.tool(structured_output=False)
def twice(what: str) -> list[str]:
    """Says it twice."""
    return [what, what]


if __name__ == "__main__":
    server.run()
