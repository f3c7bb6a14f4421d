"""Streamed answers: to the caller as they come, live to those who watch, recorded at the end."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from conftest import Bench, until
from providers import SSE, URL, Chunks, Provider, recorded, said, streamed
from scripted_kernel import DEADLINE, error

from rebuno import (
    LeaseSuperseded,
    RebunoTransport,
    _model_stream,
    execution,
    step,
)

ASK = {"model": "m1", "stream": True}
EVENTS = [b'data: {"n": 1}\n\n', "data: é😀\n\n".encode(), b"data: [DONE]\n\n"]
TEXT = b"".join(EVENTS).decode()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is published because a test took its time."""
    monkeypatch.setattr(_model_stream, "_STALLED_S", 1000)


def outcome(bench: Bench) -> tuple[str, Any]:
    """The one outcome that was reported of the step s1."""
    (call,) = [
        call
        for call in bench.kernel.calls
        if "/steps/s1/" in call.path and call.name in ("complete", "fail")
    ]
    return call.name, call.body


def deltas(bench: Bench) -> list[str]:
    """What was published; the numbers are checked."""
    bodies = [call.body for call in bench.kernel.named("stream")]
    assert [body["seq"] for body in bodies] == list(range(len(bodies)))
    return [body["data"] for body in bodies]


async def read(provider: Provider, body: Any = ASK) -> bytes:
    async with provider.client() as http, http.stream("POST", URL, json=body) as answer:
        return await answer.aread()


async def collect(answer: httpx2.Response, into: list[bytes]) -> None:
    async for chunk in answer.aiter_raw():
        into.append(chunk)


async def test_a_stream(bench: Bench) -> None:
    """Each chunk is there before the next is written, the record before the end."""
    gates = [asyncio.Event() for _ in EVENTS]
    body = [part for pair in zip(EVENTS, gates, strict=True) for part in pair]
    provider = Provider(streamed(*body, **{"x-request-id": "r"}))

    async def process(given: Any) -> Any:
        got = []
        async with provider.client() as http, http.stream("POST", URL, json=ASK) as answer:
            assert dict(answer.headers) == SSE
            async for chunk in answer.aiter_raw():
                got.append(chunk)
                assert bench.kernel.named("complete") == []
                gates[len(got) - 1].set()
        assert got == EVENTS
        return bench.kernel.named("complete")[0].body

    assert await bench.output(process) == {"result": recorded(TEXT, 200, SSE["content-type"])}
    assert "".join(deltas(bench)) == TEXT
    names = bench.kernel.names()
    assert "stream" not in names[names.index("complete") :]
    assert bench.kernel.named("steps")[0].body["args"] == ASK


async def test_a_replayed_stream(bench: Bench) -> None:
    events = [b"data: %d\r\n\r\n" % number for number in range(20_000)]
    text = b"".join(events).decode()
    result = recorded(text, 200, "text/event-stream; charset=utf-8")
    provider = Provider()

    async def process(given: Any) -> Any:
        async with provider.client() as http, http.stream("POST", URL, json=ASK) as answer:
            assert dict(answer.headers) == {"content-type": "text/event-stream; charset=utf-8"}
            pieces = [piece async for piece in answer.aiter_raw()]
        assert len(pieces) > 1
        assert all(piece.endswith(b"\r\n\r\n") for piece in pieces)
        return b"".join(pieces).decode() == text

    bench.kernel.decide("m1", decision="replay", result=result)
    assert await bench.output(process) is True
    assert bench.kernel.named("stream") == []


async def test_iterating_again_goes_on(bench: Bench) -> None:
    answers = [streamed(*EVENTS)]

    async def process(given: Any) -> Any:
        transport = RebunoTransport(Provider(*answers))
        answer = await transport.handle_async_request(httpx2.Request("POST", URL, json=ASK))
        assert isinstance(answer.stream, httpx2.AsyncByteStream)
        got = []
        for _ in range(5):
            async for chunk in answer.stream:
                got.append(chunk)
                break
        await answer.aclose()
        return b"".join(got).decode()

    assert await bench.output(process) == TEXT
    result = outcome(bench)[1]["result"]
    bench.kernel.decide("m1", decision="replay", result=result)
    assert await bench.output(process) == TEXT


@pytest.mark.parametrize("size", [1, 2, 3, 5])
async def test_characters_are_never_split(bench: Bench, size: int, patient: None) -> None:
    text = "data: aé€😀 \u2028\n\n" * 9
    data = text.encode()
    chunks = [data[start : start + size] for start in range(0, len(data), size)]
    source = Chunks(*chunks)

    async def process(given: Any) -> Any:
        provider = Provider(httpx2.Response(200, headers=SSE, stream=source))
        async with provider.client() as http, http.stream("POST", URL, json=ASK) as answer:
            got = []
            async for chunk in answer.aiter_raw():
                got.append(chunk)
                bench.time.now_s += 0.05
            return got == chunks

    assert await bench.output(process) is True
    assert outcome(bench)[1]["result"]["body"] == text
    assert "".join(deltas(bench)) == text
    assert len(deltas(bench)) > 1


async def test_when_deltas_are_published(bench: Bench, patient: None) -> None:
    """50 ms after the last time, or 2000 characters; 1750 a delta; the rest at the end."""
    chunks = ["a" * 10, "b" * 10, "c" * 1999, "d", "e" * 4000, "f"]
    after_s = [0.03, 0.021, 0.048, 0.0, 0.0, 0.02]  # time that passes before each chunk
    source = Chunks(*(chunk.encode() for chunk in chunks))

    async def ticking() -> AsyncIterator[bytes]:
        passing = iter(after_s)
        async for chunk in source:
            bench.time.now_s += next(passing)
            yield chunk

    class Ticking(httpx2.AsyncByteStream):
        def __aiter__(self) -> AsyncIterator[bytes]:
            return ticking()

    async def process(given: Any) -> Any:
        await read(Provider(httpx2.Response(200, headers=SSE, stream=Ticking())))

    await bench.output(process)
    assert deltas(bench) == [
        "a" * 10 + "b" * 10,
        "c" * 1750,
        "c" * 249 + "d",
        "e" * 1750,
        "e" * 1750,
        "e" * 500,
        "f",
    ]


async def test_a_model_that_pauses_is_seen(bench: Bench) -> None:
    gate = asyncio.Event()

    async def process(given: Any) -> Any:
        reading = asyncio.create_task(read(Provider(streamed(EVENTS[0], gate, EVENTS[1]))))
        call = await bench.kernel.until_called("stream")
        gate.set()
        await reading
        return call.body

    assert await bench.output(process) == {"seq": 0, "data": EVENTS[0].decode()}
    assert "".join(deltas(bench)) == (EVENTS[0] + EVENTS[1]).decode()


@pytest.mark.parametrize("chunks", [0, 1, 2])
async def test_a_caller_that_closes_early(bench: Bench, chunks: int) -> None:
    source = Chunks(*EVENTS)

    async def process(given: Any) -> Any:
        provider = Provider(httpx2.Response(200, headers=SSE, stream=source))
        async with provider.client() as http, http.stream("POST", URL, json=ASK) as answer:
            reader = answer.aiter_raw()
            for _ in range(chunks):
                await anext(reader)
        await answer.aclose()

    await bench.output(process)
    want = b"".join(EVENTS[:chunks]).decode()
    assert outcome(bench) == ("complete", {"result": recorded(want, 200, SSE["content-type"])})
    assert source.given == chunks
    assert "".join(deltas(bench)) == want


async def test_closing_in_the_middle_of_a_character(bench: Bench) -> None:
    async def process(given: Any) -> Any:
        provider = Provider(streamed(b"ab\xe2", b"\x82\xac"))
        async with provider.client() as http, http.stream("POST", URL, json=ASK) as answer:
            async for _ in answer.aiter_raw():
                break

    await bench.output(process)
    assert outcome(bench)[1]["result"]["body"] == "ab"


async def test_what_counts_as_a_stream(bench: Bench) -> None:
    """The request or the answer says so, and the status is below 400."""
    cases = [
        (ASK, httpx2.Response(200, stream=Chunks(b"x")), "text/event-stream", True),
        (ASK, said(b"x"), "application/json", True),
        ({"model": "m"}, streamed(b"x"), "text/event-stream", True),
        ({"model": "m"}, said(b"x"), "application/json", False),
        ({"model": "m", "stream": False}, said(b"x"), "application/json", False),
        (ASK, said(b"x", 500), "application/json", False),
        (ASK, httpx2.Response(429, stream=Chunks(b"x")), "application/json", False),
    ]

    async def process(given: Any) -> Any:
        body, answer, _, _ = cases[given["case"]]
        async with (
            Provider(answer).client() as http,
            http.stream("POST", URL, json=body) as response,
        ):
            is_recorded = bool(bench.kernel.named("complete"))
            await response.aread()
            return [response.headers["content-type"], not is_recorded]

    for number, (_, answer, kind, is_streamed) in enumerate(cases):
        bench.kernel.calls.clear()
        assert await bench.output(process, {"case": number}) == [kind, is_streamed]
        settled = [call for call in bench.kernel.named("complete") if "/steps/" in call.path]
        assert settled[0].body["result"] == recorded("x", answer.status_code, kind)


@pytest.mark.parametrize("where", ["before a chunk", "while reading", "between chunks"])
async def test_a_handler_that_gives_up(bench: Bench, where: str) -> None:
    """Recorded as far as it was read, as if closed; if nothing was, the step fails."""
    never = asyncio.Event()
    source = Chunks(never) if where == "before a chunk" else Chunks(EVENTS[0], never)
    began = asyncio.Event()

    async def reading() -> None:
        provider = Provider(httpx2.Response(200, headers=SSE, stream=source))
        async with provider.client() as http, http.stream("POST", URL, json=ASK) as answer:
            async for _ in answer.aiter_raw():
                began.set()
                if where == "between chunks":
                    await never.wait()

    async def process(given: Any) -> Any:
        task = asyncio.create_task(reading())
        await (began if where == "between chunks" else source.waiting).wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    await bench.output(process)
    if where == "before a chunk":
        assert outcome(bench) == ("fail", {"error": {"message": "cancelled"}})
    else:
        want = recorded(EVENTS[0].decode(), 200, SSE["content-type"])
        assert outcome(bench) == ("complete", {"result": want})
    assert source.is_closed


async def test_a_time_limit(bench: Bench) -> None:
    source = Chunks(EVENTS[0], asyncio.Event())

    async def time_is_up(limit: asyncio.Timeout) -> None:
        await source.waiting.wait()  # however long the machine takes to get there
        limit.reschedule(0)

    async def limited(provider: Provider) -> None:
        async with asyncio.timeout(None) as limit, asyncio.TaskGroup() as beside:
            beside.create_task(time_is_up(limit))
            await read(provider)

    async def process(given: Any) -> Any:
        provider = Provider(httpx2.Response(200, headers=SSE, stream=source))
        with pytest.raises(TimeoutError):
            await limited(provider)

    await bench.output(process)
    assert outcome(bench)[0] == "complete"


@pytest.mark.parametrize("where", ["while reading", "between chunks", "closed"])
async def test_a_stream_beside_a_call_that_waits(bench: Bench, where: str) -> None:
    """What its framework cancels is read to its end and recorded: a person may take days."""
    bench.kernel.decide("send", decision="blocked", approval_id="p1")
    gate, began, stop = asyncio.Event(), asyncio.Event(), asyncio.Event()
    source = Chunks(EVENTS[0], gate, *EVENTS[1:])

    async def reading() -> None:
        provider = Provider(httpx2.Response(200, headers=SSE, stream=source))
        async with provider.client() as http, http.stream("POST", URL, json=ASK) as answer:
            async for _ in answer.aiter_raw():
                began.set()
                if where != "while reading":
                    await stop.wait()
                if where == "closed":
                    break

    async def process(given: Any) -> Any:
        task = asyncio.create_task(reading())
        await (source.waiting if where == "while reading" else began).wait()
        try:
            await step("send", lambda: 1)
        finally:
            if where == "closed":
                stop.set()
            else:
                task.cancel()
            await asyncio.wait({task})

    agent = bench.agent(process)
    bench.kernel.add()
    await bench.deliver(agent)
    await asyncio.wait_for(source.waiting.wait(), DEADLINE)
    await until(lambda: len(bench.kernel.named("steps")) == 2)
    assert bench.kernel.named("complete") == []
    gate.set()
    await asyncio.wait_for(agent.join(), DEADLINE)
    assert outcome(bench)[1] == {"result": recorded(TEXT, 200, SSE["content-type"])}
    assert len(bench.kernel.named("complete")) == 1


async def test_a_superseded_stream(bench: Bench) -> None:
    source = Chunks(EVENTS[0], asyncio.Event())

    async def process(given: Any) -> Any:
        await read(Provider(httpx2.Response(200, headers=SSE, stream=source)))

    bench.kernel.add()
    agent = bench.agent(process)
    await bench.deliver(agent)
    await asyncio.wait_for(source.waiting.wait(), DEADLINE)
    agent.bind(lambda given: "second")
    await bench.deliver(agent, attempt=2)
    await asyncio.wait_for(agent.join(), DEADLINE)
    assert {call.name for call in bench.kernel.calls if "/steps/" in call.path} <= {"stream"}
    assert source.is_closed


@pytest.mark.parametrize("ends", [True, False])
async def test_closing_the_agent(bench: Bench, ends: bool) -> None:
    """It waits for the stream as long as its grace lasts; then the run is given back."""
    gate = asyncio.Event()
    source = Chunks(EVENTS[0], gate, *EVENTS[1:])

    async def process(given: Any) -> Any:
        await read(Provider(httpx2.Response(200, headers=SSE, stream=source)))

    bench.kernel.add()
    agent = bench.agent(process, shutdown_grace=DEADLINE if ends else 0)
    await bench.deliver(agent)
    await asyncio.wait_for(source.waiting.wait(), DEADLINE)
    closing = asyncio.create_task(agent.close())
    await asyncio.sleep(0)
    if ends:
        gate.set()
    await asyncio.wait_for(closing, DEADLINE)
    if ends:
        assert outcome(bench)[0] == "complete"
    else:
        assert bench.kernel.names()[-1] == "release"
        assert {"complete", "fail"}.isdisjoint(bench.kernel.names())


async def test_a_lease_lost_in_mid_stream(bench: Bench) -> None:
    bench.kernel.answer("complete", error("lease_superseded", 409))

    async def process(given: Any) -> Any:
        with pytest.raises(LeaseSuperseded):
            await read(Provider(streamed(*EVENTS)))
        raise LeaseSuperseded

    assert await bench.run(process) is None or bench.kernel.named("fail") == []
    assert len([call for call in bench.kernel.calls if call.name == "complete"]) == 1


async def test_closing_under_a_reader(bench: Bench) -> None:
    source = Chunks(EVENTS[0], asyncio.Event())

    async def process(given: Any) -> Any:
        transport = RebunoTransport(Provider(httpx2.Response(200, headers=SSE, stream=source)))
        answer = await transport.handle_async_request(httpx2.Request("POST", URL, json=ASK))
        reading = asyncio.create_task(answer.aread())
        await source.waiting.wait()
        await asyncio.gather(answer.aclose(), answer.aclose())
        with pytest.raises(httpx2.StreamClosed):
            await reading

    await bench.output(process)
    want = recorded(EVENTS[0].decode(), 200, SSE["content-type"])
    assert outcome(bench) == ("complete", {"result": want})


async def test_streams_side_by_side_and_inside_steps(bench: Bench) -> None:
    bench.kernel.decide("s", decision="proceed", resources=[{"key": "w"}])
    gates = [asyncio.Event(), asyncio.Event()]
    sources = [Chunks(EVENTS[0], gate, EVENTS[1]) for gate in gates]

    async def one(source: Chunks) -> Any:
        return len(await read(Provider(httpx2.Response(200, headers=SSE, stream=source))))

    async def process(given: Any) -> Any:
        inner = asyncio.create_task(step("s", lambda: one(sources[0]), resources=["w"]))
        outer = asyncio.create_task(one(sources[1]))
        await asyncio.gather(*(source.waiting.wait() for source in sources))
        gates[1].set()
        done = await outer
        gates[0].set()
        return [done, await inner, execution().step_id]

    size = len(EVENTS[0] + EVENTS[1])
    assert await bench.output(process) == [size, size, ""]
