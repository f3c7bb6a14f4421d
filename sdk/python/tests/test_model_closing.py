"""Clients that are closed, and streams that are cut, at bad moments beside a call that waits."""

import asyncio
import contextlib
from typing import Any

import anyio
import httpx2
import pytest
from conftest import Bench
from providers import SSE, URL, Chunks, Provider, recorded, said, streamed
from real_kernel import until
from scripted_kernel import DEADLINE, Call, error
from test_model_neighbours import behind_a_slow_reader
from test_model_suspension import held, settled
from test_streaming import ASK, EVENTS, TEXT

from rebuno import Blocked, http_client
from rebuno._model_record import Record
from rebuno.testing import ScriptedModel, Turn


class Closable(Provider):
    """One that, like most, takes nothing once it is closed."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if self.closed:
            raise RuntimeError("the provider's client is closed")
        return await super().handle_async_request(request)


async def test_a_call_that_the_kernel_still_decides(held_bench: Bench) -> None:
    """It has been submitted beside the call that waits, and will be made."""
    arrived, decided = asyncio.Event(), asyncio.Event()

    async def late(call: Call) -> None:
        arrived.set()
        await decided.wait()

    async def process(given: Any) -> Any:
        provider = Closable(said({"text": "tea"}))
        try:
            async with provider.client() as http:
                beside = asyncio.create_task(http.post(URL, json=ASK))
                await arrived.wait()
                asyncio.get_running_loop().call_later(0.05, decided.set)
                await held()
        finally:
            assert (provider.closed, beside.done()) == (1, True)

    held_bench.kernel.answer("steps", late)
    assert await held_bench.run(process) is None
    want = recorded('{"text": "tea"}')
    assert settled(held_bench) == [("s2 complete", {"result": want})]


async def test_a_client_on_a_loop_of_the_handlers_own(
    held_bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the call on it takes: longer than the stop waits for what runs beside it."""
    monkeypatch.setattr("rebuno._attempt._NEIGHBOURS_S", 0.05)
    async with ScriptedModel([Turn(text="tea", delay=0.5)]) as model:

        async def main() -> None:
            async with http_client() as http:
                url = f"{model.url}/chat/completions"
                beside.append(asyncio.create_task(http.post(url, json={"model": "m1"})))
                await until(lambda: model.requests)
                await held()

        beside: list[Any] = []
        assert await held_bench.run(lambda given: asyncio.run(main())) is None
    ((what, body),) = settled(held_bench)
    assert what == "s1 complete", body


@pytest.mark.parametrize("rest", [(), (EVENTS[1],)])
async def test_a_stream_that_breaks_off_behind_its_reader(
    held_bench: Bench, monkeypatch: pytest.MonkeyPatch, rest: Any
) -> None:
    """The reader is not told that it has seen all."""
    monkeypatch.setattr("rebuno._model_stream._IDLE_S", 0.01)
    answer = streamed(EVENTS[0], *rest, httpx2.ReadError("broken"))
    go_on, reader = await behind_a_slow_reader(held_bench, answer)
    assert [what for what, _ in settled(held_bench)] == ["s1 fail"]
    go_on.set()
    with pytest.raises(Blocked):
        await reader


async def test_one_that_ends_as_it_is_cut(
    held_bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing counts as under way afterwards: the dispatch would wait for it for ever."""
    reporting, reported = asyncio.Event(), asyncio.Event()

    async def complete(self: Record, *_: Any) -> None:
        reporting.set()
        await reported.wait()
        self._settled = True

    monkeypatch.setattr(Record, "complete", complete)

    async def process(given: Any) -> Any:
        async with Provider(streamed(*EVENTS)).client() as http:
            answer = await http.send(http.build_request("POST", URL, json=ASK), stream=True)
            reading = asyncio.create_task(answer.aread())
            await reporting.wait()
            reported.set()  # the reader goes on before what is started from here on
            await answer.aclose()
            assert await reading == TEXT.encode()
        await held()

    assert await held_bench.run(process) is None
    assert held_bench.kernel.named("release") == []


@pytest.mark.parametrize("how", ["closed", "superseded"])
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("own_loop", [False, True])
async def test_a_provider_that_never_answers(
    held_bench: Bench, monkeypatch: pytest.MonkeyPatch, own_loop: bool, streamed: bool, how: str
) -> None:
    """The lease is kept for as long as its client waits to be closed: until that is given up."""
    monkeypatch.setattr("rebuno._attempt._NEIGHBOURS_S", 0.05)
    kernel, time = held_bench.kernel, held_bench.time
    source = Chunks(EVENTS[0], asyncio.Event())
    answer = httpx2.Response(200, headers=SSE, stream=source)
    provider = Provider(answer) if streamed else Provider(asyncio.Event())
    asked = source.waiting if streamed else provider.asked
    beside: list[Any] = []
    closing: list[Blocked] = []

    async def main() -> None:
        async with provider.client() as http:
            beside.append(asyncio.create_task(http.post(URL, json=ASK)))
            await until(asked.is_set)
            try:
                await held()
            except Blocked as exc:
                closing.append(exc)
                raise

    def sync(given: Any) -> None:
        asyncio.run(main())

    async def process(given: Any) -> None:
        await main()

    kernel.add()
    agent = held_bench.agent(sync if own_loop else process, shutdown_grace=0.05)
    await held_bench.deliver(agent)
    await until(lambda: closing and time.sleepers)
    await time.elapse(40)
    await kernel.until_called("heartbeat")
    assert provider.closed == 0
    if how == "superseded":
        kernel.answer("heartbeat", error("lease_superseded", 409))
        await until(lambda: time.sleepers)
        await time.elapse(40)
        await asyncio.wait_for(agent.join(), DEADLINE)
    else:
        await asyncio.wait_for(agent.close(), DEADLINE)
    await until(lambda: provider.closed == 1)
    assert settled(held_bench) == []
    assert kernel.names()[-1] == ("release" if how == "closed" else "heartbeat")


@pytest.mark.parametrize("limit", [asyncio.timeout, anyio.fail_after, anyio.move_on_after])
async def test_a_time_limit_around_a_client(held_bench: Bench, limit: Any) -> None:
    """It runs out while the client waits: the call on it ends all the same, and is recorded."""
    gate = asyncio.Event()
    provider = Closable(gate, said({"text": "tea"}))
    beside: list[Any] = []

    async def process(given: Any) -> Any:
        async with contextlib.AsyncExitStack() as stack:
            scope = limit(3600)
            if isinstance(scope, asyncio.Timeout):
                await stack.enter_async_context(scope)
            else:
                scope = stack.enter_context(scope)
            http = await stack.enter_async_context(provider.client())
            beside.append(asyncio.create_task(http.post(URL, json=ASK)))
            await provider.asked.wait()
            try:
                await held()
            finally:
                if isinstance(scope, asyncio.Timeout):
                    scope.reschedule(0)
                else:
                    scope.deadline = 0
                asyncio.get_running_loop().call_later(0.05, gate.set)

    assert await held_bench.run(process) is None
    assert settled(held_bench) == [("s1 complete", {"result": recorded('{"text": "tea"}')})]
    assert (provider.closed, held_bench.kernel.named("release")) == (1, [])
