"""`@tool`, `wrap_tool`, `step`: what they look like, record and return."""

import dataclasses
import inspect
from typing import Any

import pytest
from conftest import Bench
from pydantic import BaseModel
from scripted_kernel import ScriptedKernel

import rebuno
from rebuno import ToolError, execution, step, tool, wrap_tool


class Point(BaseModel):
    x: int


@dataclasses.dataclass
class Pair:
    left: int


def submitted(kernel: ScriptedKernel) -> list[Any]:
    return [call.body for call in kernel.named("steps")]


def test_a_tool_looks_like_the_function() -> None:
    async def send(to: str, subject: str = "hi") -> str:
        """Sends a mail."""
        return to

    for made in (tool(send), tool()(send), tool("mail")(send)):
        assert inspect.iscoroutinefunction(made)
        assert (made.__name__, made.__doc__) == ("send", "Sends a mail.")
        assert inspect.signature(made) == inspect.signature(send)
        assert made.__annotations__ == {"to": str, "subject": str, "return": str}
    assert tool(send).__idempotency__ == "safe_to_retry"  # type: ignore[attr-defined]
    once: Any = tool("mail", idempotency="at_most_once")(send)
    assert once.__idempotency__ == "at_most_once"


def test_settings_are_checked_when_the_tool_is_made() -> None:
    with pytest.raises(ValueError, match="idempotency must be"):
        tool("a", idempotency="once")
    with pytest.raises(ValueError, match=r"write \['workspace'\]"):
        tool("a", resources="workspace")


async def test_outside_an_execution() -> None:
    @tool
    async def send(to: str) -> str:
        return to

    with pytest.raises(RuntimeError, match="@tool 'send' called outside an active execution"):
        await send("x")
    with pytest.raises(RuntimeError, match="tool 'w' called outside an active execution"):
        await wrap_tool("w", lambda args: args)()
    with pytest.raises(RuntimeError, match=r"rebuno.step\('s'\) called outside an active"):
        await step("s", lambda: 1)
    with pytest.raises(RuntimeError, match="without an active execution context"):
        execution()
    with pytest.raises(RuntimeError, match="without an active execution context"):
        await rebuno.previous()
    with pytest.raises(AttributeError, match=r"must be called: use execution\(\).id"):
        execution.id  # type: ignore[attr-defined]  # noqa: B018


async def test_recorded_arguments(bench: Bench) -> None:
    @tool("mail", idempotency="at_most_once", resources=["outbox"])
    async def send(to, subject="hi", *more, urgent=False, **extra) -> Any:  # type: ignore[no-untyped-def]
        return [to, subject, more, urgent, extra]

    @tool
    def at(point: Point, pair: Pair) -> Any:
        return [point.x + pair.left, point, pair]

    async def process(input: Any) -> Any:
        return [await send(1, "s", 2, 3, z=4), await send(to=1), await at(Point(x=1), Pair(2))]

    assert await bench.output(process) == [
        [1, "s", [2, 3], False, {"z": 4}],
        [1, "hi", [], False, {}],
        [3, {"x": 1}, {"left": 2}],
    ]
    assert submitted(bench.kernel) == [
        {
            "kind": "tool_call",
            "target": "mail",
            "args": {"to": 1, "subject": "s", "more": [2, 3], "urgent": False, "extra": {"z": 4}},
            "idempotency": "at_most_once",
            "resources": ["outbox"],
        },
        {
            "kind": "tool_call",
            "target": "mail",
            "args": {"to": 1, "subject": "hi", "more": [], "urgent": False, "extra": {}},
            "idempotency": "at_most_once",
            "resources": ["outbox"],
        },
        {
            "kind": "tool_call",
            "target": "at",
            "args": {"point": {"x": 1}, "pair": {"left": 2}},
            "idempotency": "safe_to_retry",
            "resources": [],
        },
    ]


async def test_a_call_that_cannot_be_recorded_sends_nothing(bench: Bench) -> None:
    @tool
    async def send(to: Any) -> None: ...

    async def process(input: Any) -> Any:
        with pytest.raises(TypeError) as caught:
            await send()  # type: ignore[call-arg]
        wanted = "tool 'send': missing a required argument: 'to'; it takes (to: Any) -> None"
        assert str(caught.value).replace("typing.", "") == wanted
        with pytest.raises(TypeError, match="the arguments of 'send' cannot be JSON"):
            await send(float("nan"))
        with pytest.raises(TypeError, match="set cannot be converted"):
            await step("s", lambda a: a, {"a": {1}})

    await bench.output(process)
    assert submitted(bench.kernel) == []


async def test_an_await_that_was_forgotten(bench: Bench) -> None:
    """In the output and in another tool's arguments; the call is named."""

    @tool
    async def send(to: Any) -> None: ...

    calls = [send("Ada")]

    async def process(input: Any) -> Any:
        with pytest.raises(TypeError, match=r"a call of .*send was not awaited"):
            await send(calls)
        return {"sent": calls}

    reason = await bench.failure(process)
    calls[0].close()
    assert reason.startswith("agent_error: TypeError: the handler's output cannot be JSON: a call")
    assert reason.endswith("send was not awaited: write await before it")
    assert submitted(bench.kernel) == []


async def test_live_and_replay_give_the_same(bench: Bench) -> None:
    @tool
    async def get() -> Any:
        return {3: (1, Point(x=2))}

    async def process(input: Any) -> Any:
        live, replay = await get(), await get()
        assert live == replay == {"3": [1, {"x": 2}]}

    bench.kernel.decide("get", decision="proceed")
    bench.kernel.decide("get", decision="replay", result={"3": [1, {"x": 2}]})
    await bench.output(process)
    assert bench.kernel.names() == ["get", "steps", "complete", "steps", "complete"]


async def test_a_refusal_is_text_for_the_model(bench: Bench) -> None:
    @tool("mail")
    async def send() -> str:
        return "sent"

    async def process(input: Any) -> Any:
        return [await send(), await wrap_tool("w", lambda args: 1)()]

    bench.kernel.decide("mail", decision="denied", reason="not on a Friday", rule_id="r")
    bench.kernel.decide("w", decision="denied", reason="never")
    assert await bench.output(process) == [
        "mail not allowed. reason: not on a Friday",
        "w not allowed. reason: never",
    ]


def test_a_wrapped_tool_looks_like_its_schema() -> None:
    schema = {
        "type": "object",
        "properties": {"b": {"type": "string"}, "from": {}, "a-b": {}, "a": {"type": "integer"}},
        "required": ["b"],
    }
    wrapped: Any = wrap_tool("search", lambda args: args, description="Finds.", args_schema=schema)
    assert str(inspect.signature(wrapped)) == "(*, b, a=None)"
    assert (wrapped.__name__, wrapped.__doc__) == ("search", "Finds.")
    assert (wrapped.__input_schema__, wrapped.__idempotency__) == (schema, "safe_to_retry")
    assert inspect.iscoroutinefunction(wrapped)
    bare: Any = wrap_tool("bare", lambda args: args, idempotency="at_most_once")
    assert (bare.__doc__, bare.__input_schema__) == (None, {})
    assert (bare.__idempotency__, str(inspect.signature(bare))) == ("at_most_once", "()")


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_wrapped_tool_runs(bench: Bench, is_async: bool) -> None:
    async def invoke_async(args: Any) -> Any:
        return args

    wrapped = wrap_tool(
        "search",
        invoke_async if is_async else lambda args: args,
        args_schema={"properties": {"q": {}}},
        transform_args=lambda given: given | {"page": 1},
        to_result=lambda raw: {"raw": raw},
        resources=["index"],
    )

    async def process(input: Any) -> Any:
        with pytest.raises(TypeError):
            await wrapped("positional")
        return await wrapped(q="x", **{"a-b": 2})

    args = {"q": "x", "a-b": 2, "page": 1}
    assert await bench.output(process) == {"raw": args}
    (call,) = submitted(bench.kernel)
    assert (call["kind"], call["target"], call["args"]) == ("tool_call", "search", args)
    assert call["resources"] == ["index"]
    assert bench.kernel.named("complete")[0].body == {"result": {"raw": args}}


async def test_a_local_step(bench: Bench) -> None:
    async def process(input: Any) -> Any:
        return [
            await step("now", lambda: 17),
            await step("add", lambda a, b: a + b, {"a": 1, "b": 2}, "at_most_once", ["r"]),
        ]

    assert await bench.output(process) == [17, 3]
    assert submitted(bench.kernel) == [
        {
            "kind": "local",
            "target": "now",
            "args": {},
            "idempotency": "safe_to_retry",
            "resources": [],
        },
        {
            "kind": "local",
            "target": "add",
            "args": {"a": 1, "b": 2},
            "idempotency": "at_most_once",
            "resources": ["r"],
        },
    ]


async def test_a_local_step_raises_its_refusal(bench: Bench) -> None:
    async def process(input: Any) -> Any:
        await step("now", lambda: 17)

    bench.kernel.decide("now", decision="denied", reason="no_clock")
    assert await bench.failure(process) == "no_clock"


async def test_a_tool_in_a_tool(bench: Bench) -> None:
    seen = []

    @tool
    async def inner() -> str:
        seen.append(execution().step_id)
        return "in"

    @tool
    async def outer() -> str:
        seen.append(execution().step_id)
        got = await inner()
        seen.append(execution().step_id)
        return got + "out"

    async def process(input: Any) -> Any:
        seen.append(execution().step_id)
        got = await outer()
        seen.append(execution().step_id)
        return got

    assert await bench.output(process) == "inout"
    assert seen == ["", "s1", "s2", "s1", ""]
    assert [call.path.split("/")[-2] for call in bench.kernel.named("complete")[:2]] == ["s2", "s1"]


async def test_a_failed_tool(bench: Bench) -> None:
    @tool("mail")
    async def send(error: str) -> None:
        raise ValueError(error)

    async def process(input: Any) -> Any:
        with pytest.raises(ToolError) as caught:
            await send("lost")
        error = caught.value
        assert (error.args[0], error.tool_id, error.step_id) == ("lost", "mail", "s1")
        assert isinstance(error.__cause__, ValueError)
        with pytest.raises(ToolError) as caught:
            await send("")
        assert caught.value.args[0] == "ValueError"  # an error without text is no help
        await send("again")

    assert await bench.failure(process) == "tool_error: mail: again"
    fails = [call.body for call in bench.kernel.named("fail")[:2]]
    assert fails == [{"error": {"message": "lost"}}, {"error": {"message": "ValueError"}}]
