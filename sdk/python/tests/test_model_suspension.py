"""Model calls beside a call that waits, and after a stop that somebody swallowed."""

import asyncio
import contextlib
from typing import Any

import httpx2
import pytest
from conftest import Bench, until
from governed import ended, event_types, governed, pending
from providers import SSE, URL, Chunks, Provider, recorded, said
from real_kernel import BIN
from scripted_kernel import DEADLINE, Call
from test_streaming import ASK, EVENTS, TEXT

from rebuno import Blocked, Client, Terminated, execution, raise_for_refusal, step, tool


def settled(bench: Bench) -> list[tuple[str, Any]]:
    return [
        (call.path.rsplit("/", 2)[1] + " " + call.name, call.body)
        for call in bench.kernel.calls
        if "/steps/" in call.path and call.name in ("complete", "fail")
    ]


async def held() -> None:
    await step("send", lambda: 1)


@pytest.fixture
def held_bench(bench: Bench) -> Bench:
    bench.kernel.decide("send", decision="blocked", approval_id="p1")
    return bench


@pytest.mark.parametrize(
    ("decision", "stop"), [("blocked", Blocked), ("execution_terminal", Terminated)]
)
async def test_a_swallowed_stop_asks_no_model(bench: Bench, decision: str, stop: Any) -> None:
    """As a framework does that turns a tool's error into text for the model."""
    bench.kernel.decide("send", decision=decision, approval_id="p1")
    provider = Provider()

    async def process(given: Any) -> Any:
        with contextlib.suppress(Exception):
            await held()
        async with provider.client() as http:
            answer = await http.post(URL, json=ASK)
        assert answer.status_code == 403
        assert answer.headers["x-should-retry"] == "false"
        with pytest.raises(stop):
            raise_for_refusal(RuntimeError(answer.text))
        with pytest.raises(stop):
            await execution().begin_llm("m1", {})
        return "not for the kernel"

    assert await bench.run(process) is None
    assert provider.requests == []
    assert bench.kernel.names() == ["get", "steps"]


async def test_a_model_call_inside_a_neighbour_is_the_kernels_to_decide(bench: Bench) -> None:
    """A body that runs beside the call that waits may still need it."""
    bench.kernel.decide("send", decision="blocked", approval_id="p1")
    provider = Provider(said({}))
    began, go = asyncio.Event(), asyncio.Event()

    async def body() -> Any:
        began.set()
        await go.wait()
        return (await provider.client().post(URL, json=ASK)).json()

    async def process(given: Any) -> Any:
        beside = asyncio.create_task(step("beside", body))
        await began.wait()
        try:
            await held()
        finally:
            go.set()
            await asyncio.wait({beside})

    assert await bench.run(process) is None
    targets = [call.body["target"] for call in bench.kernel.named("steps")]
    assert targets == ["beside", "send", "m1"]
    assert len(settled(bench)) == 2


@pytest.mark.parametrize("read", [0, 1])
async def test_a_stream_that_is_left_open(
    held_bench: Bench, monkeypatch: pytest.MonkeyPatch, read: int
) -> None:
    """Nobody reads on and nobody closes it: it is read to its end, and the lease kept so long."""
    monkeypatch.setattr("rebuno._model_stream._IDLE_S", 0.01)
    source = Chunks(*EVENTS)
    kept: list[httpx2.Response] = []

    async def process(given: Any) -> Any:
        http = Provider(httpx2.Response(200, headers=SSE, stream=source)).client()
        answer = await http.send(http.build_request("POST", URL, json=ASK), stream=True)
        kept.append(answer)
        chunks = answer.aiter_raw()
        kept.append(chunks)  # type: ignore[arg-type]
        for _ in range(read):
            await anext(chunks)
        await held()

    assert await held_bench.run(process) is None
    want = recorded(TEXT, 200, SSE["content-type"])
    assert settled(held_bench) == [("s1 complete", {"result": want})]
    assert held_bench.kernel.named("release") == []


async def test_a_stream_that_begins_after_the_stop(held_bench: Bench) -> None:
    """Between the provider's answer and the reader's first read the dispatch goes on."""
    gate = asyncio.Event()
    source = Chunks(*EVENTS)
    provider = Provider(gate, httpx2.Response(200, headers=SSE, stream=source))
    got: list[bytes] = []

    async def reading() -> None:
        async with provider.client() as http, http.stream("POST", URL, json=ASK) as answer:
            async for chunk in answer.aiter_raw():
                got.append(chunk)

    tasks = []

    async def process(given: Any) -> Any:
        tasks.append(asyncio.create_task(reading()))
        await provider.asked.wait()
        await held()

    held_bench.kernel.add()
    agent = held_bench.agent(process)
    await held_bench.deliver(agent)
    await held_bench.kernel.until_called("steps", 2)
    for _ in range(20):
        await asyncio.sleep(0)
    assert settled(held_bench) == []
    gate.set()
    await asyncio.wait_for(agent.join(), DEADLINE)
    await tasks[0]
    assert got == EVENTS
    assert [what for what, _ in settled(held_bench)] == ["s1 complete"]
    assert held_bench.kernel.named("release") == []


async def test_a_gateways_call_beside_one_that_waits(held_bench: Bench) -> None:
    """What began with begin_llm is waited for, with heartbeats, until it is recorded."""
    gate, stopped = asyncio.Event(), asyncio.Event()
    tasks = []

    async def gateway() -> None:
        step_id, _ = await execution().begin_llm("m1", {})
        await gate.wait()
        await execution().record_llm(step_id, "said")

    async def process(given: Any) -> Any:
        tasks.append(asyncio.create_task(gateway()))
        await held_bench.kernel.until_called("steps")
        await asyncio.sleep(0)
        try:
            await held()
        finally:
            stopped.set()

    held_bench.kernel.add()
    agent = held_bench.agent(process)
    await held_bench.deliver(agent)
    await asyncio.wait_for(stopped.wait(), DEADLINE)
    for _ in range(20):
        await asyncio.sleep(0)
    await until(lambda: held_bench.time.sleepers)
    await held_bench.time.elapse(40)
    await held_bench.kernel.until_called("heartbeat")
    gate.set()
    await asyncio.wait_for(agent.join(), DEADLINE)
    assert settled(held_bench) == [("s1 complete", {"result": "said"})]
    assert held_bench.kernel.names()[-1] == "complete"


@pytest.mark.parametrize("who", ["the handler", "a task that is cancelled", "one that lives on"])
async def test_a_gateways_call_that_is_given_up(
    held_bench: Bench, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    """Nobody will report it: the run is given back, so that the next attempt asks at once."""
    monkeypatch.setattr("rebuno._attempt._NEIGHBOURS_S", 0.02)
    never, asked = asyncio.Event(), asyncio.Event()
    tasks = []

    async def gateway() -> None:
        await execution().begin_llm("m1", {})
        asked.set()
        await never.wait()

    async def process(given: Any) -> Any:
        if who == "the handler":
            await execution().begin_llm("m1", {})
            await held()
        tasks.append(asyncio.create_task(gateway()))
        await asked.wait()
        try:
            await held()
        finally:
            if who == "a task that is cancelled":
                tasks[0].cancel()

    assert await held_bench.run(process) is None
    assert settled(held_bench) == []
    assert held_bench.kernel.names()[-1] == "release"
    for task in tasks:
        task.cancel()


async def test_a_gateways_call_that_is_cancelled_on_its_way(held_bench: Bench) -> None:
    """The kernel may have told it to proceed: the same."""
    never, arrived = asyncio.Event(), asyncio.Event()

    async def late(call: Call) -> None:
        arrived.set()
        await never.wait()

    async def process(given: Any) -> Any:
        asking = asyncio.create_task(execution().begin_llm("m1", {}))
        await arrived.wait()
        asking.cancel()
        await held()

    held_bench.kernel.answer("steps", late)
    assert await held_bench.run(process) is None
    assert held_bench.kernel.names() == ["get", "steps", "steps", "release"]


HOLD_ALL = """
default_action: allow
rules:
  - id: ask
    when: { target: "deploy" }
    then: { decision: require_approval, reason: look, approval_config: { timeout: 1h } }
  - id: models
    when: { step_kind: llm_call }
    then: { decision: require_approval, reason: costly, approval_config: { timeout: 1h } }
"""


@pytest.mark.skipif(not BIN, reason="REBUNO_BIN names no kernel")
async def test_no_approval_is_asked_for_a_swallowed_stop(kernel_url: str, client: Client) -> None:
    """A person would decide about a question that nobody is ever going to ask."""
    provider = Provider(said({"text": "fine"}))

    @tool
    async def deploy() -> str:
        return "deployed"

    async def process(given: Any) -> Any:
        try:
            told = await deploy()
        except Exception as exc:
            told = f"the tool failed: {exc!r}"
        answer = await provider.client().post(URL, json={"model": "m1", "told": told})
        return answer.json()["text"]

    async with governed(kernel_url, "swallows", HOLD_ALL, process) as agent:
        created = await client.create("swallows", {})
        (first,) = await pending(client, created.id)
        await asyncio.wait_for(agent.join(), DEADLINE)
        assert [one.target for one in await pending(client, created.id)] == ["deploy"]
        await client.grant_approval(first.id)
        async with asyncio.timeout(DEADLINE):
            while not (waiting := await pending(client, created.id)):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert [one.args["told"] for one in waiting] == ["deployed"]
        await client.grant_approval(waiting[0].id)
        assert (await ended(client, created.id)).output == "fine"
    assert (await event_types(client, created.id))["step.proposed"] == 2
