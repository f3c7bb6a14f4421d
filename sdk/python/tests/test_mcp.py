"""The tools of an MCP server as steps; the descriptors in every form that they come in."""

import inspect
from dataclasses import dataclass, field
from typing import Any

import pytest
from conftest import Bench

import rebuno.mcp
from rebuno.mcp import wrap_mcp_tool, wrap_mcp_tools

SCHEMA = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "depth": {"type": "integer"}},
    "required": ["path"],
}


@dataclass
class Snake:
    """As version 2 of the package lists a tool."""

    name: str
    description: str | None
    input_schema: dict[str, Any]


@dataclass
class Camel:
    """As version 1 does."""

    name: str
    description: str | None
    inputSchema: dict[str, Any]  # noqa: N815


FORMS = [
    Snake("list", "Lists.", SCHEMA),
    Camel("list", "Lists.", SCHEMA),
    {"name": "list", "description": "Lists.", "input_schema": SCHEMA},
    {"name": "list", "description": "Lists.", "inputSchema": SCHEMA},
]


@pytest.mark.parametrize("descriptor", FORMS)
async def test_a_tool(bench: Bench, descriptor: Any) -> None:
    asked: list[Any] = []

    async def call(name: str, args: dict[str, Any]) -> Any:
        asked.append((name, args))
        return "found"

    tool = wrap_mcp_tool(descriptor, call=call, prefix="files", idempotency="at_most_once")
    assert tool.__name__ == "files_list"
    assert tool.__doc__ == "Lists."
    assert inspect.iscoroutinefunction(tool)
    assert tool.__input_schema__ == SCHEMA  # type: ignore[attr-defined]
    parameters = inspect.signature(tool).parameters
    assert {name: one.default for name, one in parameters.items()} == {
        "path": inspect.Parameter.empty,
        "depth": None,
    }

    async def process(given: Any) -> Any:
        return [await tool(path="/", depth=None), await tool(path="/", depth=2)]

    assert await bench.output(process) == ["found", "found"]
    assert asked == [("list", {"path": "/"}), ("list", {"path": "/", "depth": 2})]
    bodies = [call.body for call in bench.kernel.named("steps")]
    assert [body["args"] for body in bodies] == [args for _, args in asked]
    assert bodies[0]["target"] == "files_list"
    assert bodies[0]["kind"] == "tool_call"
    assert bodies[0]["idempotency"] == "at_most_once"


async def test_several(bench: Bench) -> None:
    tools = wrap_mcp_tools(
        [{"name": "a"}, {"name": "b", "description": None}], call=lambda name, args: name
    )
    assert [tool.__name__ for tool in tools] == ["a", "b"]
    assert [tool.__doc__ for tool in tools] == [None, None]

    async def process(given: Any) -> Any:
        return [await tool(x=1) for tool in tools]

    assert await bench.output(process) == ["a", "b"]


@dataclass
class Block:
    text: str


@dataclass
class Image:
    data: str

    def __str__(self) -> str:
        return f"image {self.data}"


@dataclass
class Version2:
    content: list[Any] = field(default_factory=list)
    structured_content: Any = None


@dataclass
class Version1:
    content: list[Any]
    structuredContent: Any = None  # noqa: N815


@pytest.mark.parametrize(
    ("raw", "result"),
    [
        (Version2([Block("one")]), "one"),
        (Version1([Block("one")]), "one"),
        (Version2([Block("one"), Image("i"), Block("two")]), "one\nimage i\ntwo"),
        (Version2([Image("i")]), "image i"),
        (Version2([Block("one")], {"n": 1}), {"n": 1}),
        (Version1([Block("one")], {}), {}),
        (Version2([]), ""),
        ({"content": [{"text": "one"}]}, {"content": [{"text": "one"}]}),
        ({"plain": 1}, {"plain": 1}),
        ([1], [1]),
        ("text", "text"),
        (None, None),
    ],
)
async def test_results(bench: Bench, raw: Any, result: Any) -> None:
    tool = wrap_mcp_tool({"name": "t"}, call=lambda name, args: raw)

    async def process(given: Any) -> Any:
        return await tool()

    assert await bench.output(process) == result


async def test_a_result_of_ones_own(bench: Bench) -> None:
    tool = wrap_mcp_tool({"name": "t"}, call=lambda name, args: 2, to_result=lambda raw: raw + 1)

    async def process(given: Any) -> Any:
        return await tool()

    assert await bench.output(process) == 3


async def test_a_denied_tool(bench: Bench) -> None:
    bench.kernel.decide("files_rm", decision="denied", reason="never")
    tool = wrap_mcp_tool({"name": "rm"}, call=lambda name, args: 1, prefix="files")

    async def process(given: Any) -> Any:
        return await tool()

    assert await bench.output(process) == "files_rm not allowed. reason: never"
    assert rebuno.mcp.__all__ == ["wrap_mcp_tool", "wrap_mcp_tools"]
