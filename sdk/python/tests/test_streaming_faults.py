"""Streamed answers that break, are compressed, or that nobody can watch."""

import asyncio
import logging
import zlib
from typing import Any

import httpx2
import pytest
from conftest import Bench
from providers import SSE, URL, Chunks, Provider, recorded, streamed
from scripted_kernel import Call, error
from test_streaming import ASK, EVENTS, TEXT, collect, deltas, outcome, read

from rebuno import RebunoError, _model_stream, step


def broken(*chunks: bytes, **error: str) -> dict[str, Any]:
    """The error that the record holds of a stream that broke after these."""
    return error | recorded(b"".join(chunks).decode(), 200, SSE["content-type"])


async def test_what_is_no_text(bench: Bench) -> None:
    """The caller gets the bytes, the record their closest text."""

    async def process(given: Any) -> Any:
        return (await read(Provider(streamed(b"a\xffb", b"\xe2\x82")))).hex()

    assert await bench.output(process) == b"a\xffb\xe2\x82".hex()
    assert outcome(bench)[1]["result"]["body"] == "a\ufffdb\ufffd"


async def test_nobody_can_watch(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.kernel.answer("stream", error("conflict", 409), 100)

    async def process(given: Any) -> Any:
        got = b""
        provider = Provider(streamed(*EVENTS))
        async with provider.client() as http, http.stream("POST", URL, json=ASK) as answer:
            async for chunk in answer.aiter_raw():
                bench.time.now_s += 1
                got += chunk
        return got.decode()

    with caplog.at_level(logging.WARNING, "rebuno"):
        assert await bench.output(process) == TEXT
    assert outcome(bench)[0] == "complete"
    assert len(bench.kernel.named("stream")) >= 1
    assert len([record for record in caplog.records if "seen live" in record.message]) == 1


async def test_a_kernel_that_takes_no_deltas(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not hold the answer up for good."""
    monkeypatch.setattr(_model_stream, "_PATIENCE_S", 0.05)

    async def never(call: Call) -> None:
        await asyncio.Event().wait()

    bench.kernel.answer("stream", never, 100)

    async def process(given: Any) -> Any:
        return len(await read(Provider(streamed(*[b"x" * 10_000] * 50))))

    assert await bench.output(process) == 500_000
    assert outcome(bench)[0] == "complete"


async def test_a_stream_that_breaks(bench: Bench) -> None:
    source = Chunks(EVENTS[0], httpx2.RemoteProtocolError("cut off"))

    async def process(given: Any) -> Any:
        got: list[bytes] = []
        provider = Provider(httpx2.Response(200, headers=SSE, stream=source))
        async with provider.client() as http, http.stream("POST", URL, json=ASK) as answer:
            with pytest.raises(httpx2.RemoteProtocolError, match="cut off"):
                await collect(answer, got)
            assert [chunk async for chunk in answer.stream] == []  # type: ignore[union-attr]
        return b"".join(got).decode()

    assert await bench.output(process) == EVENTS[0].decode()
    error = broken(EVENTS[0], message="cut off", type="RemoteProtocolError")
    assert outcome(bench) == ("fail", {"error": error})
    assert deltas(bench) == [EVENTS[0].decode()]
    assert source.is_closed


@pytest.mark.parametrize("parts", [[], EVENTS[:1], [b"data: \xe2\x82"]])
async def test_a_stream_that_broke_breaks_again(bench: Bench, parts: list[bytes]) -> None:
    """At the same place, so that a handler and its SDK, which did not repeat it, do the same."""
    live = Provider(streamed(*parts, httpx2.ReadError("cut off")))
    providers = [live, Provider()]

    async def process(given: Any) -> Any:
        got: list[bytes] = []
        async with (
            providers[given].client() as http,
            http.stream("POST", URL, json=ASK) as answer,
        ):
            with pytest.raises(httpx2.ReadError, match="cut off") as caught:
                await collect(answer, got)
            assert isinstance(caught.value, RebunoError) is bool(given)
            assert [chunk async for chunk in answer.stream] == []
        return [
            answer.status_code,
            answer.headers["content-type"],
            b"".join(got).decode("utf-8", "replace"),
        ]

    seen = await bench.output(process, 0)
    bench.kernel.decide("m1", decision="replay", error=outcome(bench)[1]["error"])
    assert (await bench.output(process, 1))[:2] == seen[:2]
    assert seen[2].rstrip("\ufffd") == b"".join(parts).decode("utf-8", "ignore")


async def test_compressed_streams(bench: Bench) -> None:
    packer = zlib.compressobj(wbits=zlib.MAX_WBITS | 16)
    packed = [packer.compress(event) + packer.flush(zlib.Z_SYNC_FLUSH) for event in EVENTS]
    packed.append(packer.flush())

    async def process(given: Any) -> Any:
        answer = streamed(*packed, **{"content-encoding": "gzip"})
        async with (
            Provider(answer).client() as http,
            http.stream("POST", URL, json=ASK) as response,
        ):
            assert dict(response.headers) == SSE
            return [chunk.decode() async for chunk in response.aiter_raw()]

    assert await bench.output(process) == [event.decode() for event in EVENTS]
    assert outcome(bench)[1]["result"]["body"] == TEXT


async def test_a_compressed_stream_that_is_none(bench: Bench) -> None:
    packed = b"no gzip at all"

    async def process(given: Any) -> Any:
        answer = streamed(packed[:9], b"garbage" * 9, **{"content-encoding": "gzip"})
        with pytest.raises(httpx2.DecodingError):
            await read(Provider(answer))

    await bench.output(process)
    assert outcome(bench)[0] == "fail"


async def test_a_provider_that_breaks_while_shielded(bench: Bench) -> None:
    bench.kernel.decide("send", decision="blocked", approval_id="p1")
    gate = asyncio.Event()
    source = Chunks(EVENTS[0], gate, httpx2.ReadError("cut off"))

    async def process(given: Any) -> Any:
        provider = Provider(httpx2.Response(200, headers=SSE, stream=source))
        async with asyncio.TaskGroup() as group:
            group.create_task(read(provider))
            await source.waiting.wait()
            asyncio.get_running_loop().call_soon(gate.set)
            await step("send", lambda: 1)

    assert await bench.run(process) is None
    error = broken(EVENTS[0], message="cut off", type="ReadError")
    assert outcome(bench) == ("fail", {"error": error})
