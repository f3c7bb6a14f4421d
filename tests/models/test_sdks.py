# SPDX-License-Identifier: Apache-2.0
"""The published SDKs and frameworks over `http_client()`: recorded, replayed, refused."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest
import sdks
from conftest import Bench, Time
from rebuno import http_client, tool
from rebuno.testing import ScriptedModel
from recorder import Recorder
from sdks import LOOPS, Setting

ANSWER = "It is sunny, the high is 20 °C."
SCRIPT: list[Any] = [{"tool": "weather", "args": {"city": "Ulm"}}, ANSWER]

every_loop = pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: str(loop.__name__))
both_ways = pytest.mark.parametrize("is_streamed", [False, True], ids=["plain", "streamed"])

done: Counter[str] = Counter()


@tool
async def weather(city: str) -> str:
    """Tells the weather of a city."""
    done[city] += 1
    return f"sunny in {city}"


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    done.clear()
    bench = Bench(Recorder(), Time())
    yield bench
    for agent in bench.agents:
        agent.shutdown_grace = 0
        await agent.close()


def process_of(loop: Callable[[Setting], Any], setting: Setting) -> Callable[[Any], Any]:
    async def process(given: Any) -> Any:
        async with http_client() as http:
            return await loop(replace(setting, http=http))

    return process


@every_loop
@both_ways
async def test_recorded_then_replayed(bench: Bench, loop: Any, is_streamed: bool) -> None:
    async with ScriptedModel(SCRIPT) as model:
        process = process_of(loop, Setting(model.origin, [weather], is_streamed))
        assert await bench.output(process) == ANSWER
        assert await bench.output(process) == ANSWER
        assert await bench.output(process) == ANSWER
        assert [request.is_streamed for request in model.requests] == [is_streamed] * 2
        assert all("sk-secret" in str(request.headers) for request in model.requests)
    assert done == {"Ulm": 1}
    kernel = bench.kernel
    assert isinstance(kernel, Recorder)
    name = sdks.CLAUDE if "anthropic" in loop.__name__ else sdks.NAME
    assert kernel.order == [("llm_call", name), ("tool_call", "weather"), ("llm_call", name)]
    assert all(b"sk-secret" not in call.raw for call in kernel.calls)
    bodies = [
        outcome["result"]["body"]
        for outcome in kernel.outcomes.values()
        if isinstance(outcome["result"], dict)
    ]
    kinds = {
        outcome["result"]["headers"]["content-type"]
        for outcome in kernel.outcomes.values()
        if isinstance(outcome["result"], dict)
    }
    assert kinds == {"text/event-stream" if is_streamed else "application/json"}
    assert "".join(call.body["data"] for call in kernel.named("stream")) == (
        "".join(bodies) if is_streamed else ""
    )


DECISIONS = [
    ({"decision": "denied", "reason": "no_models", "rule_id": "r"}, "no_models"),
    ({"decision": "denied", "reason": "not on a Friday"}, "policy_denied: not on a Friday"),
    ({"decision": "rate_limited", "reason": "hourly"}, "hourly"),
    ({"decision": "blocked", "approval_id": "p1"}, None),
    ({"decision": "execution_terminal"}, None),
]


@every_loop
@both_ways
@pytest.mark.parametrize(("decision", "reason"), DECISIONS, ids=lambda value: str(value)[:40])
async def test_a_refusal_is_not_repeated(
    bench: Bench, loop: Any, is_streamed: bool, decision: dict[str, Any], reason: str | None
) -> None:
    """The SDK calls once, and whatever it makes of the answer, the kernel's word is found."""
    for name in (sdks.NAME, sdks.CLAUDE):
        bench.kernel.decide(name, **decision)
    async with ScriptedModel([]) as model:
        process = process_of(loop, Setting(model.origin, [weather], is_streamed))
        if reason is None:
            assert await bench.run(process) is None
        else:
            assert await bench.failure(process) == reason
        assert model.requests == []
    assert len(bench.kernel.named("steps")) == 1


@every_loop
@both_ways
async def test_a_refusal_after_a_tool(bench: Bench, loop: Any, is_streamed: bool) -> None:
    for name in (sdks.NAME, sdks.CLAUDE):
        bench.kernel.decide(name, decision="proceed")
        bench.kernel.decide(name, decision="denied", reason="enough")
    async with ScriptedModel(SCRIPT) as model:
        process = process_of(loop, Setting(model.origin, [weather], is_streamed))
        assert await bench.failure(process) == "enough"
        assert len(model.requests) == 1


@every_loop
@both_ways
async def test_a_denied_tool_is_told_to_the_model(
    bench: Bench, loop: Any, is_streamed: bool
) -> None:
    bench.kernel.decide("weather", decision="denied", reason="not outside")
    async with ScriptedModel(SCRIPT) as model:
        process = process_of(loop, Setting(model.origin, [weather], is_streamed))
        assert await bench.output(process) == ANSWER
        assert "weather not allowed. reason: not outside" in str(model.requests[1].body)
    assert not done


@every_loop
@both_ways
async def test_a_tool_that_raises(bench: Bench, loop: Any, is_streamed: bool) -> None:
    @tool("weather")
    async def broken(city: str) -> str:
        """Tells the weather of a city."""
        raise ValueError("no luck")

    broken.__name__ = "weather"
    async with ScriptedModel(SCRIPT) as model:
        process = process_of(loop, Setting(model.origin, [broken], is_streamed))
        reason = await bench.failure(process)
        assert "weather: no luck" in reason
        assert await bench.failure(process) == reason  # replayed
        assert len(model.requests) == 1


@every_loop
async def test_parallel_tool_calls(bench: Bench, loop: Any) -> None:
    calls = [{"name": "weather", "args": {"city": city}} for city in ("Ulm", "Bonn", "Trier")]
    async with ScriptedModel([{"tools": calls}, ANSWER]) as model:
        process = process_of(loop, Setting(model.origin, [weather]))
        assert await bench.output(process) == ANSWER
        assert await bench.output(process) == ANSWER
        assert len(model.requests) == 2
        for city in ("Ulm", "Bonn", "Trier"):
            assert f"sunny in {city}" in str(model.requests[1].body)
    assert done == {"Ulm": 1, "Bonn": 1, "Trier": 1}


@pytest.mark.parametrize("status", [429, 500, 503])
@pytest.mark.parametrize("loop", [sdks.openai_chat, sdks.anthropic_messages])
@both_ways
async def test_a_provider_that_fails_at_first(
    bench: Bench, loop: Any, is_streamed: bool, status: int
) -> None:
    """Each of the SDK's tries is a step of its own, and all of them replay."""
    script = [{"error": status}, *SCRIPT]
    async with ScriptedModel(script) as model:
        process = process_of(loop, Setting(model.origin, [weather], is_streamed))
        assert await bench.output(process) == ANSWER
        assert await bench.output(process) == ANSWER
        assert len(model.requests) == 3
    statuses = [
        outcome["result"]["status"]
        for outcome in bench.kernel.outcomes.values()  # type: ignore[attr-defined]
        if isinstance(outcome["result"], dict)
    ]
    assert statuses == [status, 200, 200]


@every_loop
async def test_a_provider_that_refuses(bench: Bench, loop: Any) -> None:
    async with ScriptedModel([{"error": 401, "message": "no such key"}]) as model:
        process = process_of(loop, Setting(model.origin, [weather]))
        reason = await bench.failure(process)
        assert reason.startswith("agent_error: ")
        assert "no such key" in reason
        assert await bench.failure(process) == reason
        assert len(model.requests) == 1


@every_loop
async def test_a_stream_that_breaks(bench: Bench, loop: Any) -> None:
    async with ScriptedModel([{"text": ANSWER, "break_after": 4}]) as model:
        process = process_of(loop, Setting(model.origin, [weather], is_streamed=True))
        reason = await bench.failure(process)
        assert reason.startswith("agent_error: ")
        assert len(model.requests) == 1
    settled = [call for call in bench.kernel.named("fail") if "/steps/" in call.path]
    assert "incomplete chunked read" in settled[0].body["error"]["message"]


@every_loop
async def test_chunks_that_split_events_and_characters(bench: Bench, loop: Any) -> None:
    turns = [SCRIPT[0] | {"split": 7}, {"text": ANSWER, "split": 3, "piece_chars": 1, "gzip": True}]
    async with ScriptedModel(turns) as model:
        process = process_of(loop, Setting(model.origin, [weather], is_streamed=True))
        assert await bench.output(process) == ANSWER
        assert await bench.output(process) == ANSWER
        assert len(model.requests) == 2


@every_loop
async def test_a_stalled_model_that_is_given_up(bench: Bench, loop: Any) -> None:
    async with ScriptedModel([{"text": ANSWER, "stall_after": 4}]) as model:
        setting = Setting(model.origin, [weather], is_streamed=True)

        async def process(given: Any) -> Any:
            running = asyncio.create_task(process_of(loop, setting)(given))
            await bench.kernel.until_called("stream")
            running.cancel()
            await asyncio.wait({running})
            return running.cancelled()

        await bench.output(process)
    settled = [call.name for call in bench.kernel.calls if "/steps/s1/" in call.path]
    assert settled.count("complete") + settled.count("fail") == 1
