"""What a type checker sees; mypy checks this file, running it only imports it."""

from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, assert_type

from rebuno import CheckpointPolicy, Client, execution, resource, subagent, tool
from rebuno.types import Event, Execution, ForkPoints, StepDecision


@tool
async def plain(x: int) -> str:
    return str(x)


@tool("named", idempotency="at_most_once", resources=["workspace"])
async def named(x: int, *, y: bool = False) -> list[int]:
    return [x, y]


@tool()
def sync(x: int) -> float:
    return x / 2


async def calls() -> None:
    assert_type(await plain(1), str)
    assert_type(await named(1, y=True), list[int])
    assert_type(await sync(x=1), float)
    assert_type(execution().id, str)
    assert_type(await execution().begin_llm("m", {}), tuple[str, StepDecision])


@tool("ask", resources=("workspace",))
async def ask(question: str) -> dict[str, str]:
    handle: str = await resource("ws", driver=object(), checkpoints=CheckpointPolicy(5))
    answer: dict[str, str] = await subagent("helper", {"question": question, "in": handle})
    return answer


async def clients(client: Client) -> None:
    assert_type(await client.fork("e", at_seq=3), Execution)
    assert_type(await client.fork_points("e"), ForkPoints)
    assert_type(await client.create("a"), Execution)
    assert_type(await client.events("e"), list[Event])
    events: AsyncIterator[Event] = client.watch("e")
    async for event in events:
        assert_type(event, Event)


def test_a_tool_is_a_coroutine_function() -> None:
    made: Callable[[int], Coroutine[Any, Any, str]] = plain
    assert made.__name__ == "plain"
