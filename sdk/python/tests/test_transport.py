"""Model calls that come whole: recorded, replayed, passed through."""

import asyncio
import json
from typing import Any

import httpx2
import pytest
from conftest import Bench, until
from providers import URL, Chunks, Provider, recorded, said
from scripted_kernel import DEADLINE

import rebuno
from rebuno import (
    RebunoTransport,
    execution,
    http_client,
    step,
)
from rebuno.testing import ScriptedModel

ASK = {"model": "m1", "messages": [{"role": "user", "content": "hé"}], "temperature": 0.5}


def outcome(bench: Bench) -> tuple[str, Any]:
    """The one outcome that was reported of a step."""
    (call,) = [call for call in bench.kernel.calls if "/steps/" in call.path]
    return call.name, call.body


async def test_a_call_is_recorded(bench: Bench) -> None:
    """By its body: no header of the request goes to the kernel."""
    text = json.dumps({"text": 'a "quoted"\n line é \u2028 😀\x00'}, ensure_ascii=False)
    provider = Provider(said(text.encode(), headers={"x-request-id": "r1", "set-cookie": "a=b"}))

    async def process(given: Any) -> Any:
        async with provider.client(headers={"Authorization": "Bearer sk-secret"}) as http:
            answer = await http.post(URL, json=ASK)
            assert answer.status_code == 200
            assert dict(answer.headers) == {"content-type": "application/json"}
            return answer.text

    assert await bench.output(process) == text
    assert bench.kernel.named("steps")[0].body == {
        "kind": "llm_call",
        "target": "m1",
        "args": ASK,
        "idempotency": "safe_to_retry",
        "resources": [],
    }
    assert outcome(bench) == ("complete", {"result": recorded(text)})
    assert provider.requests[0].headers["authorization"] == "Bearer sk-secret"
    for call in bench.kernel.calls:
        assert b"sk-secret" not in call.raw
        assert "sk-secret" not in str(call.headers)


@pytest.mark.parametrize("model", ["", 5, None, ["m"], "absent"])
async def test_the_target_is_the_model_as_text(bench: Bench, model: Any) -> None:
    body = {} if model == "absent" else {"model": model}

    async def process(given: Any) -> Any:
        await Provider(said({})).client().post(URL, json=body | {"x": 1})

    await bench.output(process)
    want = {"": "", "5": "5", "None": "", "['m']": "['m']", "absent": ""}[str(model)]
    assert bench.kernel.named("steps")[0].body["target"] == want


@pytest.mark.parametrize("status", [200, 201, 400, 401, 429, 500, 529])
async def test_a_status_is_recorded_and_replayed(bench: Bench, status: int) -> None:
    provider = Provider(
        said({"why": "é"}, status, headers={"content-type": "application/problem+json"})
    )

    async def process(given: Any) -> Any:
        answer = await provider.client().post(URL, json=ASK)
        return [answer.status_code, dict(answer.headers), answer.json()]

    live = await bench.output(process)
    assert live == [status, {"content-type": "application/problem+json"}, {"why": "é"}]
    name, body = outcome(bench)
    assert name == "complete"
    bench.kernel.decide("m1", decision="replay", result=body["result"])
    assert await bench.output(process) == live
    assert len(provider.requests) == 1


@pytest.mark.parametrize(
    "value",
    [{"text": "é"}, [1], "just text", None, 5, {"status": 200}, {"status": "x", "body": ""}],
)
async def test_a_value_of_another_shape_replays_as_its_json(bench: Bench, value: Any) -> None:
    bench.kernel.decide("m1", decision="replay", result=value)

    async def process(given: Any) -> Any:
        answer = await Provider().client().post(URL, json=ASK)
        return [answer.status_code, dict(answer.headers), answer.json()]

    assert await bench.output(process) == [200, {"content-type": "application/json"}, value]


@pytest.mark.parametrize(
    "content", [b"", b"not json", b"[1]", b'"s"', b"{]", b'{"a": NaN}', b"{\xff}"]
)
async def test_other_bodies_pass_through(bench: Bench, content: bytes) -> None:
    provider = Provider(said({}, headers={"x-request-id": "r1"}))

    async def process(given: Any) -> Any:
        answer = await provider.client().post(URL, content=content)
        return answer.headers["x-request-id"]

    assert await bench.output(process) == "r1"
    assert provider.requests[0].content == content
    assert bench.kernel.named("steps") == []


@pytest.mark.parametrize("value", [b"[" * 5000 + b"]" * 5000, b"9" * 5000], ids=["deep", "long"])
async def test_an_object_that_cannot_be_read_does_not_pass_by(bench: Bench, value: bytes) -> None:
    """The provider would be asked without record and policy."""
    provider = Provider()

    async def process(given: Any) -> Any:
        await provider.client().post(URL, content=b'{"model": "m1", "x": ' + value + b"}")

    reason = await bench.failure(process)
    assert reason.startswith("agent_error: TypeError: the model's request cannot be recorded: ")
    assert provider.requests == []


@pytest.mark.parametrize("option", ["proxy", "mounts"])
async def test_what_httpx2_sends_by_another_way_is_recorded(bench: Bench, option: str) -> None:
    """It would go past the client's transport."""
    mounted = Provider(said({"text": "tea"}))
    async with ScriptedModel(["tea"]) as model:
        options = {"proxy": model.origin, "mounts": {"https://": None, "http://": mounted}}

        async def process(given: Any) -> Any:
            async with http_client(**{option: options[option]}) as http:
                answer = await http.post("http://model.invalid/v1/messages", json={"model": "m1"})
                return answer.status_code

        assert await bench.output(process) == 200
        assert outcome(bench)[0] == "complete"
        assert (len(mounted.requests), len(model.requests)) == (
            (0, 1) if option == "proxy" else (1, 0)
        )


async def test_a_proxy_of_the_environment_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    async with ScriptedModel(["tea"]) as model, http_client() as http:
        answer = await http.post(f"{model.url}/messages", json={"model": "m1"})
    assert answer.status_code == 200


def test_options_of_the_network_reach_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """httpx2 does not apply them to a transport that it is given."""
    made: list[Any] = []

    def make(**given: Any) -> Provider:
        made.append(given)
        return Provider()

    monkeypatch.setattr(httpx2, "AsyncHTTPTransport", make)
    network = {"verify": False, "limits": httpx2.Limits(max_connections=1), "trust_env": False}
    assert http_client(timeout=3, **network).timeout == httpx2.Timeout(3)
    assert made == [network]


async def test_other_requests_pass_through(bench: Bench) -> None:
    provider = Provider(said([]), said({}), said({}))

    async def upload() -> Any:
        yield b'{"not": '
        yield b'"read"}'

    async def process(given: Any) -> Any:
        async with provider.client() as http:
            await http.get(URL)
            await http.post(URL, files={"file": b'{"a": 1}'})
            assert not hasattr(provider.requests[1], "_content")
        assert bench.kernel.named("steps") == []
        async with provider.client() as http:
            await http.post(URL, content=upload())

    await bench.output(process)
    assert provider.closed == 2
    assert bench.kernel.named("steps")[0].body["args"] == {"not": "read"}
    assert provider.requests[2].content == b'{"not": "read"}'


async def test_outside_of_an_execution() -> None:
    async with ScriptedModel(["one", "two"]) as model, http_client(timeout=DEADLINE) as http:
        url = f"{model.url}/chat/completions"
        answer = await http.post(url, json=ASK)
        assert answer.json()["choices"][0]["message"]["content"] == "one"
        assert int(answer.headers["content-length"]) == len(answer.content)
        async with http.stream("POST", url, json=ASK | {"stream": True}) as stream:
            assert b"two" in await stream.aread()
    assert isinstance(http, httpx2.AsyncClient)


async def test_the_default_content_type(bench: Bench) -> None:
    answer = httpx2.Response(200, stream=Chunks(b"{}"))

    async def process(given: Any) -> Any:
        return dict((await Provider(answer).client().post(URL, json=ASK)).headers)

    assert await bench.output(process) == {"content-type": "application/json"}


async def test_calls_run_side_by_side(bench: Bench) -> None:
    """Also when the execution has resources."""
    bench.kernel.decide("s", decision="proceed", resources=[{"key": "w"}])
    gates = [asyncio.Event() for _ in range(3)]
    providers = [Provider(gate, said({"n": n})) for n, gate in enumerate(gates)]

    async def process(given: Any) -> Any:
        await step("s", lambda: 1, resources=["w"])
        calls = [asyncio.create_task(one.client().post(URL, json=ASK)) for one in providers]
        await asyncio.gather(*(one.asked.wait() for one in providers))
        for gate, call in reversed(list(zip(gates, calls, strict=True))):
            gate.set()
            await call
        return [call.result().json()["n"] for call in calls]

    assert await bench.output(process) == [0, 1, 2]


async def test_a_call_in_a_thread_of_its_own(bench: Bench) -> None:
    async def ask() -> Any:
        async with Provider(said({"text": "x"})).client() as http:
            return (await http.post(URL, json=ASK)).json()

    assert await bench.output(lambda given: asyncio.run(ask())) == {"text": "x"}
    assert outcome(bench)[0] == "complete"


async def test_a_handler_that_gives_up_waiting(bench: Bench) -> None:
    """Whatever of the call is done then: the step fails, the cancellation goes on."""
    never = asyncio.Event()
    provider = Provider(never)

    async def process(given: Any) -> Any:
        call = asyncio.create_task(provider.client().post(URL, json=ASK))
        await provider.asked.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    await bench.output(process)
    assert outcome(bench) == ("fail", {"error": {"message": "cancelled"}})


async def test_giving_up_while_the_kernel_decides(bench: Bench) -> None:
    provider = Provider(said({}))
    asked, go = asyncio.Event(), asyncio.Event()

    async def slowly(call: Any) -> None:
        asked.set()
        await go.wait()

    bench.kernel.answer("steps", slowly)

    async def process(given: Any) -> Any:
        call = asyncio.create_task(provider.client().post(URL, json=ASK))
        await asked.wait()
        call.cancel()
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await call

    await bench.output(process)
    assert outcome(bench) == ("fail", {"error": {"message": "cancelled"}})
    assert provider.requests == []


async def test_a_call_beside_one_that_waits_is_shielded(bench: Bench) -> None:
    """A framework cancels it; it is answered, recorded, and only then cancelled."""
    bench.kernel.decide("send", decision="blocked", approval_id="p1")
    gate = asyncio.Event()
    provider = Provider(gate, said({"text": "x"}))

    async def process(given: Any) -> Any:
        call = asyncio.create_task(provider.client().post(URL, json=ASK))
        await provider.asked.wait()
        try:
            await step("send", lambda: 1)
        finally:
            call.cancel()

    agent = bench.agent(process)
    bench.kernel.add()
    await bench.deliver(agent)
    await until(lambda: len(bench.kernel.named("steps")) == 2)
    assert bench.kernel.named("complete") == []
    gate.set()
    await asyncio.wait_for(agent.join(), DEADLINE)
    assert outcome(bench)[1]["result"]["body"] == '{"text": "x"}'


async def test_a_superseded_call_reports_nothing(bench: Bench) -> None:
    provider = Provider(asyncio.Event())

    async def process(given: Any) -> Any:
        await provider.client().post(URL, json=ASK)

    bench.kernel.add()
    agent = bench.agent(process)
    await bench.deliver(agent)
    await asyncio.wait_for(provider.asked.wait(), DEADLINE)
    agent.bind(lambda given: "second")
    await bench.deliver(agent, attempt=2)
    await asyncio.wait_for(agent.join(), DEADLINE)
    assert [call.path for call in bench.kernel.calls if "/steps/" in call.path] == []


async def test_closing_waits_for_the_answer(bench: Bench) -> None:
    gate = asyncio.Event()
    provider = Provider(gate, said({}))

    async def process(given: Any) -> Any:
        await provider.client().post(URL, json=ASK)

    bench.kernel.add()
    agent = bench.agent(process)
    await bench.deliver(agent)
    await asyncio.wait_for(provider.asked.wait(), DEADLINE)
    closing = asyncio.create_task(agent.close())
    await asyncio.sleep(0)
    gate.set()
    await asyncio.wait_for(closing, DEADLINE)
    assert outcome(bench)[0] == "complete"


def test_a_sync_request_is_an_error() -> None:
    transport = RebunoTransport()
    client = httpx2.Client(transport=transport)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="records async calls only"):
        client.post(URL, json=ASK)
    client.close()
    with (
        pytest.raises(RuntimeError, match="records async calls only"),
        httpx2.Client(transport=transport),  # type: ignore[arg-type]
    ):
        pass


async def test_a_call_in_a_tool(bench: Bench) -> None:
    seen: list[str] = []

    async def body() -> Any:
        seen.append(execution().step_id)
        answer = await Provider(said({"n": 1})).client().post(URL, json=ASK)
        seen.append(execution().step_id)
        return answer.json()

    async def process(given: Any) -> Any:
        return await step("around", body)

    assert await bench.output(process) == {"n": 1}
    assert seen == ["s1", "s1"]
    assert rebuno.http_client is http_client
