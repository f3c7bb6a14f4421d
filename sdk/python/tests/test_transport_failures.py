"""Model calls that go wrong, that are packed, or that the kernel cannot take."""

import gzip
import logging
from typing import Any

import httpx2
import pytest
from conftest import Bench
from providers import URL, Chunks, Provider, said
from scripted_kernel import error
from starlette.responses import Response as KernelAnswer
from test_transport import ASK, outcome

from rebuno import NetworkError, RebunoError, http_client
from rebuno.testing import ScriptedModel


class Late(httpx2.ConnectTimeout):
    """An inner transport's own."""


@pytest.mark.parametrize(
    ("recorded_error", "message"),
    [
        ({"message": "it broke"}, "it broke"),
        ({"message": "it broke", "type": "AsyncClient"}, "it broke"),
        ({"message": "it broke", "type": "nothing"}, "it broke"),
        ({"message": "it broke", "type": ["ReadTimeout"]}, "it broke"),
        ({"reason": "indeterminate"}, "indeterminate"),
        ("plain", '"plain"'),
    ],
)
async def test_a_replayed_error(bench: Bench, recorded_error: Any, message: str) -> None:
    bench.kernel.decide("m1", decision="replay", error=recorded_error)
    provider = Provider()

    async def process(given: Any) -> Any:
        with pytest.raises(RebunoError) as caught:
            await provider.client().post(URL, json=ASK)
        assert type(caught.value) is RebunoError
        return str(caught.value)

    assert await bench.output(process) == message
    assert provider.requests == []


@pytest.mark.parametrize(
    ("death", "error"),
    [
        (httpx2.ConnectError("no route"), {"message": "no route", "type": "ConnectError"}),
        (httpx2.ReadTimeout(""), {"message": "ReadTimeout", "type": "ReadTimeout"}),
        (Late("too late"), {"message": "too late", "type": "ConnectTimeout"}),
        (ValueError("of an inner transport"), {"message": "of an inner transport"}),
    ],
)
async def test_a_call_without_an_answer(bench: Bench, death: Exception, error: Any) -> None:
    """The step has failed before the caller knows, so that a retry is another step."""

    async def process(given: Any) -> Any:
        with pytest.raises(type(death)) as caught:
            await Provider(death).client().post(URL, json=ASK)
        assert caught.value is death
        return [call.body for call in bench.kernel.named("fail")]

    assert await bench.output(process) == [{"error": error}]

    async def replayed(given: Any) -> Any:
        with pytest.raises(RebunoError) as caught:
            await Provider().client().post(URL, json=ASK)
        for kind in (httpx2.TimeoutException, httpx2.TransportError, httpx2.RequestError):
            assert isinstance(caught.value, kind) is isinstance(death, kind)
        return str(caught.value)

    bench.kernel.decide("m1", decision="replay", error=error)
    assert await bench.output(replayed) == error["message"]


async def test_an_answer_that_breaks_off(bench: Bench) -> None:
    broken = Chunks(b'{"te', httpx2.ReadError("gone"))

    async def process(given: Any) -> Any:
        answer = httpx2.Response(200, stream=broken)
        with pytest.raises(httpx2.ReadError, match="gone"):
            await Provider(answer).client().post(URL, json=ASK)

    await bench.output(process)
    assert outcome(bench) == ("fail", {"error": {"message": "gone", "type": "ReadError"}})
    assert broken.is_closed


async def test_a_content_encoding_is_undone(bench: Bench) -> None:
    packed = gzip.compress(b'{"a": "plain"}')
    provider = Provider(said(packed, headers={"content-encoding": "gzip", "content-length": "9"}))

    async def process(given: Any) -> Any:
        answer = await provider.client().post(URL, json=ASK)
        return [answer.text, dict(answer.headers)]

    live = ['{"a": "plain"}', {"content-type": "application/json"}]
    assert await bench.output(process) == live
    assert outcome(bench)[1]["result"]["body"] == '{"a": "plain"}'


async def test_an_encoding_that_is_none(bench: Bench) -> None:
    async def process(given: Any) -> Any:
        answer = said(b"not gzip", headers={"content-encoding": "gzip"})
        with pytest.raises(httpx2.DecodingError):
            await Provider(answer).client().post(URL, json=ASK)

    await bench.output(process)
    assert outcome(bench)[0] == "fail"


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_an_encoding_that_cannot_be_undone(bench: Bench, is_streamed: bool) -> None:
    """httpx2 would hand it on as it is; without its header nobody could read it."""
    source = Chunks(b"packed")
    headers = {"content-encoding": "gzip, Compress"}

    async def process(given: Any) -> Any:
        answer = httpx2.Response(200, headers=headers, stream=source)
        with pytest.raises(httpx2.DecodingError, match="content-encoding 'compress'") as caught:
            await Provider(answer).client().post(URL, json=ASK | {"stream": is_streamed})
        return str(caught.value)

    message = await bench.output(process)
    assert outcome(bench) == ("fail", {"error": {"message": message, "type": "DecodingError"}})
    assert source.is_closed


async def test_an_encoding_that_is_no_change(bench: Bench) -> None:
    async def process(given: Any) -> Any:
        answer = said({"a": 1}, headers={"content-encoding": "Identity"})
        return (await Provider(answer).client().post(URL, json=ASK)).json()

    assert await bench.output(process) == {"a": 1}


async def test_a_body_that_is_no_text(bench: Bench) -> None:
    """Such as speech: it comes back byte for byte."""
    sound = bytes(range(256))
    provider = Provider(said(sound, headers={"content-type": "audio/mpeg"}))

    async def process(given: Any) -> Any:
        answer = await provider.client().post(URL, json=ASK)
        return [answer.content.hex(), dict(answer.headers)]

    live = await bench.output(process)
    assert live == [sound.hex(), {"content-type": "audio/mpeg"}]
    result = outcome(bench)[1]["result"]
    assert isinstance(result["body"], str)
    bench.kernel.decide("m1", decision="replay", result=result)
    assert await bench.output(process) == live


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("Authorization", "Bearer sk-secret\n"),
        ("x-goog-api-key", "sk-secret\n"),
        ("OpenAI-Organization", "sk-secret\x00"),
        ("x-of-a-gateway", "sk-secret\\more\n"),
        ("x-quoted", '"so" sk-se\'cret\n'),
    ],
)
async def test_a_key_in_an_error_is_not_recorded(
    bench: Bench, caplog: pytest.LogCaptureFixture, header: str, value: str
) -> None:
    """A line's end in a key is a common mistake, and the HTTP library's error shows it."""
    async with ScriptedModel(["never"]) as model:

        async def process(given: Any) -> Any:
            async with http_client(headers={header: value}) as http:
                await http.post(f"{model.url}/chat/completions", json=ASK)

        with caplog.at_level(logging.DEBUG, "rebuno"):
            reason = await bench.failure(process)
    assert reason.startswith("agent_error: LocalProtocolError: Illegal header value")
    assert "[a header's value]" in reason
    assert header not in reason
    assert outcome(bench)[0] == "fail"
    assert all(b"sk-se" not in call.raw for call in bench.kernel.calls)
    assert "sk-se" not in caplog.text


class OfAGateway(Exception):
    """One with an attribute, as applications have."""

    def __init__(self, about: str, *, retry: bool) -> None:
        super().__init__(f"refused for {about}")
        self.retry = retry


class OwnText(OfAGateway):
    """It makes its text of something else than its arguments."""

    def __str__(self) -> str:
        return "of its own: tenant-7"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OfAGateway("tenant-7", retry=True), OfAGateway),
        (httpx2.ConnectError("no route for tenant-7"), httpx2.ConnectError),
        (ConnectionRefusedError(111, "not for tenant-7"), ConnectionRefusedError),
        (OwnText("x", retry=True), RuntimeError),
        (ExceptionGroup("of tenant-7", [ValueError()]), RuntimeError),
        (UnicodeEncodeError("ascii", "é", 0, 1, "tenant-7"), RuntimeError),
    ],
)
async def test_an_error_that_shows_a_header_stays_what_it_is(
    bench: Bench, error: Exception, kind: type[Exception]
) -> None:
    """A handler may catch it by its class."""

    async def process(given: Any) -> Any:
        async with Provider(error).client(headers={"x-tenant": "tenant-7"}) as http:
            with pytest.raises(kind) as caught:
                await http.post(URL, json=ASK)
        assert type(caught.value) is kind
        assert getattr(caught.value, "retry", True)
        return str(caught.value)

    text = await bench.output(process)
    assert text == str(error).replace("tenant-7", "[a header's value]")
    assert outcome(bench)[1]["error"]["message"] == text


def too_large(call: Any) -> KernelAnswer | None:
    refused = call.name == "complete" and "/steps/" in call.path
    return error("payload_too_large", 413, "at most 9 bytes") if refused else None


async def test_an_answer_too_large_for_the_kernel(bench: Bench) -> None:
    """The caller gets an answer that no SDK repeats; it costs money. So does a replay's."""
    bench.kernel.answer("complete", too_large, 9)
    provider = Provider(said({"text": "x" * 20}))

    async def process(given: Any) -> Any:
        answer = await provider.client().post(URL, json=ASK)
        return [answer.status_code, answer.json()]

    live = await bench.output(process)
    size = len(bench.kernel.named("complete")[0].raw)
    message = f"the answer of {size} bytes is too large to be recorded: at most 9 bytes"
    assert live == [413, {"error": {"type": "rebuno_too_large", "message": message}}]
    failed = bench.kernel.named("fail")[0].body["error"]
    assert failed["message"] == message
    bench.kernel.decide("m1", decision="replay", error=failed)
    assert await bench.output(process) == live
    assert len(provider.requests) == 1


async def test_a_request_too_large_for_the_kernel(bench: Bench) -> None:
    bench.kernel.answer("steps", error("payload_too_large", 413, "at most 9 bytes"))
    provider = Provider()

    async def process(given: Any) -> Any:
        answer = await provider.client().post(URL, json={"model": "m1", "x": "é"})
        return [answer.status_code, dict(answer.headers), answer.json()["error"]["message"]]

    assert await bench.output(process) == [
        413,
        {"content-type": "application/json", "x-should-retry": "false"},
        "the request of 23 bytes is too large to be recorded: at most 9 bytes",
    ]
    assert provider.requests == []
    assert bench.kernel.names() == ["get", "steps", "complete"]


async def test_a_kernel_that_is_gone_for_a_while(bench: Bench) -> None:
    """The answer is recorded once it is back; the provider is asked once."""
    bench.kernel.answer("steps", KernelAnswer(status_code=503))
    bench.kernel.answer("complete", KernelAnswer(status_code=503), 3)
    provider = Provider(said({"text": "x"}))

    async def process(given: Any) -> Any:
        return (await provider.client().post(URL, json=ASK)).json()

    assert await bench.output(process) == {"text": "x"}
    assert len(provider.requests) == 1
    keys = {call.headers["idempotency-key"] for call in bench.kernel.named("steps")}
    assert len(keys) == 1


async def test_a_kernel_that_does_not_come_back(bench: Bench) -> None:
    bench.kernel.answer("complete", httpx2.ConnectError("refused"), 10**6)

    async def process(given: Any) -> Any:
        with pytest.raises(NetworkError):
            await Provider(said({})).client().post(URL, json=ASK)
        bench.kernel.rules.clear()

    await bench.output(process)
    assert bench.kernel.named("fail") == []  # the step stays executing: its outcome is known


async def test_nothing_is_asked_beside_an_outcome_that_is_lost(bench: Bench) -> None:
    """A model's SDK takes it for the provider's error and calls again: that would be paid twice."""
    bench.kernel.answer("complete", httpx2.ConnectError("refused"), 30)
    provider = Provider(said({}))

    async def process(given: Any) -> Any:
        http = provider.client()
        for _ in range(2):
            with pytest.raises(NetworkError, match="refused"):
                await http.post(URL, json=ASK)

    await bench.output(process)
    assert len(provider.requests) == len(bench.kernel.named("steps")) == 1
