"""Model calls whose client, or whose loop, ends because of a call beside them that waits."""

import asyncio
from typing import Any

import httpx2
import pytest
from conftest import Bench
from providers import SSE, URL, Chunks, Provider, recorded
from test_model_suspension import held, settled
from test_streaming import ASK, EVENTS, TEXT

from rebuno import Blocked, http_client
from rebuno.testing import ScriptedModel, Turn

WORDS = Turn(text="word " * 30, pause=0.01)
SLOW = Turn(text="word " * 30, delay=0.2)


async def read(http: httpx2.AsyncClient, url: str, streamed: bool) -> str:
    body = {"model": "m1", "stream": streamed}
    async with http.stream("POST", f"{url}/chat/completions", json=body) as answer:
        return "".join([text async for text in answer.aiter_text()])


def words(bench: Bench) -> int:
    """How many are in the one answer that was recorded."""
    ((what, body),) = settled(bench)
    assert what == "s1 complete", body
    text: str = body["result"]["body"]
    return text.count("word")


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_client_that_the_handler_closes(held_bench: Bench, streamed: bool) -> None:
    """A `with` block that is left by the stop; the calls on its client end first."""
    reading = []

    async with ScriptedModel([WORDS if streamed else SLOW]) as model:

        async def process(given: Any) -> Any:
            async with http_client() as http:
                reading.append(asyncio.create_task(read(http, model.url, streamed)))
                await model.until_asked(1)
                await held()

        assert await held_bench.run(process) is None
    assert words(held_bench) == 30
    assert (await reading[0]).count("word") == 30
    assert held_bench.kernel.named("release") == []


async def test_a_client_with_a_stream_that_is_left_open(
    held_bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rebuno._model_stream._IDLE_S", 0.01)
    async with ScriptedModel([WORDS]) as model:

        async def process(given: Any) -> Any:
            async with http_client() as http:
                request = http.build_request("POST", f"{model.url}/messages", json=ASK)
                answer = await http.send(request, stream=True)
                await anext(answer.aiter_raw())
                await held()

        assert await held_bench.run(process) is None
    assert words(held_bench) == 30


async def behind_a_slow_reader(
    bench: Bench, answer: httpx2.Response
) -> tuple[asyncio.Event, "asyncio.Task[None]"]:
    """Runs a handler whose stream waits for its reader beside a held call; when that is to go on,
    and the reader."""
    go_on = asyncio.Event()
    reading = []

    async def slow(began: asyncio.Event) -> None:
        async with Provider(answer).client() as http, http.stream("POST", URL, json=ASK) as got:
            async for _ in got.aiter_raw():
                began.set()
                await go_on.wait()

    async def process(given: Any) -> Any:
        began = asyncio.Event()
        reading.append(asyncio.create_task(slow(began)))
        await began.wait()
        await held()

    assert await bench.run(process) is None
    return go_on, reading[0]


async def test_a_reader_that_is_slow(held_bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest is read for it. It is told of the stop: what it has is not all."""
    monkeypatch.setattr("rebuno._model_stream._IDLE_S", 0.01)
    answer = httpx2.Response(200, headers=SSE, stream=Chunks(*EVENTS))
    go_on, reader = await behind_a_slow_reader(held_bench, answer)
    want = recorded(TEXT, 200, SSE["content-type"])
    assert settled(held_bench) == [("s1 complete", {"result": want})]
    go_on.set()
    with pytest.raises(Blocked):
        await reader


async def test_a_loop_of_the_handlers_own(
    held_bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not end because nobody was reading just then."""
    monkeypatch.setattr("rebuno._model_stream._IDLE_S", 0.01)

    async def main() -> None:
        began, go_on, gate = asyncio.Event(), asyncio.Event(), asyncio.Event()
        source = Chunks(EVENTS[0], gate, *EVENTS[1:])
        provider = Provider(httpx2.Response(200, headers=SSE, stream=source))

        async def reading() -> None:
            async with provider.client() as http, http.stream("POST", URL, json=ASK) as answer:
                async for _ in answer.aiter_raw():
                    began.set()
                    await go_on.wait()

        task = asyncio.create_task(reading())
        await began.wait()
        asyncio.get_running_loop().call_later(0.1, gate.set)
        try:
            await held()
        finally:
            go_on.set()
            await source.waiting.wait()
            assert not task.cancelled()

    assert await held_bench.run(lambda given: asyncio.run(main())) is None
    want = recorded(TEXT, 200, SSE["content-type"])
    assert settled(held_bench) == [("s1 complete", {"result": want})]


async def test_a_loop_that_ends_in_the_middle(
    held_bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read is not taken for the whole: the call is made again."""
    monkeypatch.setattr("rebuno._attempt._NEIGHBOURS_S", 0.05)

    async def main() -> None:
        source = Chunks(EVENTS[0], asyncio.Event())
        provider = Provider(httpx2.Response(200, headers=SSE, stream=source))
        http = provider.client()
        answer = await http.send(http.build_request("POST", URL, json=ASK), stream=True)
        reading = asyncio.create_task(answer.aread())
        await source.waiting.wait()
        await asyncio.gather(reading, held())

    assert await held_bench.run(lambda given: asyncio.run(main())) is None
    assert settled(held_bench) == []
    assert held_bench.kernel.names()[-1] == "release"
