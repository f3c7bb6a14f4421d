"""Streamed answers that are long, or have no end."""

import asyncio
import json
import tracemalloc
from typing import Any

import httpx2
import pytest
from conftest import Bench
from providers import SSE, URL, Chunks, Provider, streamed
from scripted_kernel import error
from test_streaming import ASK, EVENTS, TEXT, collect, outcome, read
from test_streaming_faults import broken

from rebuno import APIError, RebunoError, _model_record


async def test_a_stream_too_large_for_the_kernel(bench: Bench) -> None:
    def refuse(call: Any) -> Any:
        refused = "/steps/" in call.path
        return error("payload_too_large", 413, "at most 9 bytes") if refused else None

    bench.kernel.answer("complete", refuse, 9)

    async def process(given: Any) -> Any:
        got: list[bytes] = []
        async with (
            Provider(streamed(*EVENTS)).client() as http,
            http.stream("POST", URL, json=ASK) as answer,
        ):
            with pytest.raises(APIError, match="at most 9 bytes"):
                await collect(answer, got)
        return b"".join(got).decode()

    assert await bench.output(process) == TEXT
    failed = bench.kernel.named("fail")[0].body["error"]
    assert "at most 9 bytes" in failed["message"]
    assert failed == broken(message=failed["message"])  # a replay breaks, too


async def test_what_came_of_a_stream_that_broke_is_too_large(bench: Bench) -> None:
    """Then it is recorded without that."""
    bench.kernel.answer("fail", lambda call: error("payload_too_large", 413), 1)

    async def process(given: Any) -> Any:
        with pytest.raises(httpx2.ReadError):
            await read(Provider(streamed(*EVENTS, httpx2.ReadError("cut off"))))

    await bench.output(process)
    first, second = bench.kernel.named("fail")
    failed = {"message": "cut off", "type": "ReadError"}
    assert first.body == {"error": broken(*EVENTS, **failed)}
    assert second.body == {"error": failed}


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_an_answer_that_never_ends(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, is_streamed: bool
) -> None:
    monkeypatch.setattr(_model_record, "_LONGEST", 10_000)
    source = Chunks(*[b"x" * 100] * 1000)

    async def process(given: Any) -> Any:
        headers = SSE if is_streamed else {}
        answer = httpx2.Response(200, headers=headers, stream=source)
        if not is_streamed:
            return json.loads(await read(Provider(answer), {"model": "m1"}))["error"]["message"]
        with pytest.raises(RebunoError, match="longer than 10000 bytes") as caught:
            await read(Provider(answer), {"model": "m1"})
        return caught.value.args[0]

    message = await bench.output(process)
    assert message == "the model's answer is longer than 10000 bytes: it is given up"
    (name, body) = outcome(bench)
    assert (name, body["error"]["message"]) == ("fail", message)
    assert body["error"]["status"] == (200 if is_streamed else 413)
    assert source.given < 110
    assert source.is_closed


@pytest.mark.parametrize("piece", [2_000, 65_536])
async def test_a_long_stream_is_in_memory_no_more_than_thrice(bench: Bench, piece: int) -> None:
    """At the worst moment, with the request that records it; 5 MB, half of it escaped in JSON."""
    text = (b'data: {"t": "' + b"word " * 6 + b'"}\n\n') * (5_000_000 // 47)
    length = len(text)
    chunks = [text[start : start + piece] for start in range(0, length, piece)]
    sizes: list[int] = []

    class Kernel(httpx2.AsyncBaseTransport):
        """Keeps nothing of what it is sent."""

        def __init__(self, inner: httpx2.AsyncBaseTransport) -> None:
            self._inner = inner

        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            if request.url.path.endswith("/stream"):
                return httpx2.Response(204)
            if request.url.path.endswith("/s1/complete"):
                sizes.append(len(request.content))
                return httpx2.Response(200, json={"decision": "recorded"})
            return await self._inner.handle_async_request(request)

    async def process(given: Any) -> Any:
        count = 0
        provider = Provider(streamed(*chunks))
        async with provider.client() as http, http.stream("POST", URL, json=ASK) as answer:
            tracemalloc.start()
            try:
                async for chunk in answer.aiter_raw():
                    count += len(chunk)
                return [count, tracemalloc.get_traced_memory()[1]]
            finally:
                tracemalloc.stop()

    agent = bench.agent(process)
    client = httpx2.AsyncClient(transport=Kernel(bench.kernel.transport()))
    agent._wire._client = client
    bench.kernel.add()
    await bench.deliver(agent)
    await asyncio.wait_for(agent.join(), 240)
    count, peak = bench.kernel.named("complete")[0].body["output"]
    assert count == length
    assert sizes[0] > length
    assert peak <= 3 * length
