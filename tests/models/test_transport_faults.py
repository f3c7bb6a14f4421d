# SPDX-License-Identifier: Apache-2.0
"""Providers that fail, stall, compress or talk nonsense, under the published SDKs, and a replay.

Each case runs twice against the real kernel: live, and as a fork of the same run, which must come
to the same end without asking the provider.
"""

import asyncio
import signal
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import brotli
import httpx2
import pytest
from backports import zstd
from openai import AsyncOpenAI
from real_kernel import BIN, Process, serving
from rebuno import Client, http_client
from rebuno.testing import ScriptedModel
from rebuno.types import Step
from sdks import NAME, Setting, anthropic_messages, openai_chat
from test_sdks import ANSWER, process_of

PATIENCE = 120.0  # 200 MB take a busy machine half a minute
LIMIT = 10 * 2**20  # of a kernel that is not told another
QUESTION: Any = {"model": NAME, "messages": [{"role": "user", "content": "Say it."}]}

both_sdks = pytest.mark.parametrize(
    "loop", [openai_chat, anthropic_messages], ids=lambda loop: str(loop.__name__)
)
both_ways = pytest.mark.parametrize("is_streamed", [False, True], ids=["plain", "streamed"])


@pytest.fixture(scope="module")
def kernel_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A kernel whose leases outlast what keeps this process busy with 200 MB."""
    command = [BIN, "dev", "--memory", "--listen-addr", "127.0.0.1:0"]
    process = Process(command, tmp_path_factory.mktemp("kernel"))
    try:
        yield process.url()
    finally:
        process.end(signal.SIGTERM)


Handler = Callable[[Any], Awaitable[Any]]


async def live_and_replayed(
    client: Client, process: Handler, asked: Callable[[], int]
) -> tuple[Any, list[Step]]:
    """Runs the handler, then forks the run at its end: the same output, and no more questions.

    Returns the output and the steps of the first.
    """
    async with serving(client.base_url, "faulty", process):
        created = await client.create("faulty", {})
        first = await client.wait(created.id, PATIENCE)
        assert first.status == "completed", first.failure_reason
        questions = asked()
        last = (await client.fork_points(first.id)).latest_seq
        fork = await client.fork(first.id, at_seq=last - 1)  # before execution.completed
        again = await client.wait(fork.id, PATIENCE)
        assert (again.status, again.output) == ("completed", first.output), again.failure_reason
        assert asked() == questions
        steps = await client.list_steps(first.id)
        assert [one.status for one in await client.list_steps(fork.id)] == [
            one.status for one in steps
        ]
        return first.output, steps


def told(process: Handler) -> Handler:
    """The handler's output, or the name and text of the error that it met."""

    async def telling(given: Any) -> Any:
        try:
            return await process(given)
        except Exception as exc:
            return [type(exc).__name__, str(exc)]

    return telling


def statuses(steps: list[Step]) -> list[int]:
    return [one.result["status"] for one in steps]


@both_sdks
@both_ways
@pytest.mark.parametrize("status", [429, 500])
async def test_each_try_of_the_sdk_is_one_step(
    client: Client, loop: Any, is_streamed: bool, status: int
) -> None:
    script = [{"error": status, "headers": {"retry-after": "0"}}] * 2
    async with ScriptedModel([*script, ANSWER]) as model:
        process = process_of(loop, Setting(model.origin, [], is_streamed))
        output, steps = await live_and_replayed(client, process, lambda: len(model.requests))
    assert output == ANSWER
    assert statuses(steps) == [status, status, 200]
    assert len({str(one.args) for one in steps}) == 1


@both_sdks
@both_ways
@pytest.mark.parametrize("status", [400, 429, 500])
async def test_a_provider_that_only_refuses(
    client: Client, loop: Any, is_streamed: bool, status: int
) -> None:
    script = [{"error": status, "message": "no more", "headers": {"retry-after": "0"}}] * 3
    async with ScriptedModel(script) as model:
        process = told(process_of(loop, Setting(model.origin, [], is_streamed)))
        (_, text), steps = await live_and_replayed(client, process, lambda: len(model.requests))
    assert "no more" in text
    assert statuses(steps) == [status] * (1 if status == 400 else 3)


@both_sdks
@both_ways
@pytest.mark.parametrize("body", ["", "<html>busy</html>", "data: {broken\n\n", "é\u2028\x00"])
async def test_garbage(client: Client, loop: Any, is_streamed: bool, body: str) -> None:
    """Recorded as it is; what the SDK makes of it, it makes of it again."""
    kind = "text/event-stream" if is_streamed else "application/json"
    async with ScriptedModel([{"body": body, "content_type": kind}] * 3) as model:
        process = told(process_of(loop, Setting(model.origin, [], is_streamed)))
        _, steps = await live_and_replayed(client, process, lambda: len(model.requests))
    assert [one.result["body"] for one in steps] == [body] * len(steps)


@both_sdks
async def test_a_truncated_stream(client: Client, loop: Any) -> None:
    """Its SDK does not call again, live; so it must not on a replay."""
    async with ScriptedModel([{"text": ANSWER, "break_after": 4}, "never asked"]) as model:
        process = told(process_of(loop, Setting(model.origin, [], True)))
        (name, _), (step,) = await live_and_replayed(client, process, lambda: len(model.requests))
    assert name in ("RemoteProtocolError", "APIConnectionError")
    assert step.status == "failed"
    assert "incomplete chunked read" in step.error["message"]
    assert step.error["body"].count("data: ") == 4


@both_sdks
async def test_a_truncated_answer(client: Client, loop: Any) -> None:
    """No answer has reached the SDK, so it calls again, live and replayed."""
    async with ScriptedModel([{"text": ANSWER, "break_after": 9}, ANSWER]) as model:
        process = process_of(loop, Setting(model.origin, []))
        output, steps = await live_and_replayed(client, process, lambda: len(model.requests))
    assert output == ANSWER
    assert [one.status for one in steps] == ["failed", "succeeded"]


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_provider_that_does_not_answer(client: Client, is_streamed: bool) -> None:
    """The SDK's own time limit ends each try, and with it its step."""
    async with ScriptedModel([{"text": ANSWER, "stall_after": 0}] * 2) as model:

        async def process(given: Any) -> Any:
            async with http_client() as http:
                openai = AsyncOpenAI(
                    base_url=model.url, api_key="k", http_client=http, timeout=1, max_retries=1
                )
                await openai.chat.completions.create(stream=is_streamed, **QUESTION)

        (name, _), steps = await live_and_replayed(
            client, told(process), lambda: len(model.requests)
        )
    assert name == "APITimeoutError"
    assert [one.error for one in steps] == [{"message": "ReadTimeout", "type": "ReadTimeout"}] * 2


@both_sdks
async def test_a_stream_that_never_ends(
    client: Client, monkeypatch: pytest.MonkeyPatch, loop: Any
) -> None:
    monkeypatch.setattr("rebuno._model_record._LONGEST", 200_000)
    async with ScriptedModel([{"text": "on and on ", "endless": True}]) as model:
        process = told(process_of(loop, Setting(model.origin, [], True)))

        async def ending(given: Any) -> Any:
            _, text = await process(given)
            return "it is given up" in text

        output, (step,) = await live_and_replayed(client, ending, lambda: len(model.requests))
    assert output is True
    assert step.status == "failed"


async def test_a_stream_that_is_read_as_far_as_needed(client: Client) -> None:
    """Recorded so far, and the provider let go."""
    async with ScriptedModel([{"text": "on and on ", "endless": True}]) as model:

        async def process(given: Any) -> Any:
            words = []
            async with http_client() as http:
                openai = AsyncOpenAI(base_url=model.url, api_key="k", http_client=http)
                stream = await openai.chat.completions.create(stream=True, **QUESTION)
                async with stream:
                    async for chunk in stream:
                        words.append(chunk.choices[0].delta.content or "")
                        if len(words) == 20:
                            return "".join(words)
            return "it ended"

        output, (step,) = await live_and_replayed(client, process, lambda: len(model.requests))
    assert output.startswith("on and on")
    assert step.status == "succeeded"


@pytest.mark.parametrize("megabytes", [11, 200])
async def test_a_body_that_the_kernel_does_not_take(client: Client, megabytes: int) -> None:
    """It is paid for once: the SDK gets an answer that it does not repeat, with both sizes."""
    body = b'{"choices": "' + b"x" * (megabytes * 1_000_000) + b'"}'
    async with ScriptedModel([{"body": body}]) as model:
        process = told(process_of(openai_chat, Setting(model.origin, [])))
        (name, text), (step,) = await live_and_replayed(
            client, process, lambda: len(model.requests)
        )
    assert name == "APIStatusError"
    message = step.error["message"]
    assert message in text
    assert f"is over the limit of {LIMIT} bytes" in message
    assert int(message.split(" bytes", 1)[0].rsplit(" ", 1)[1]) > len(body)


async def test_a_question_that_the_kernel_does_not_take(client: Client) -> None:
    async with ScriptedModel([]) as model:
        setting = Setting(model.origin, [], prompt="x" * LIMIT)
        process = told(process_of(openai_chat, setting))
        (name, text), steps = await live_and_replayed(client, process, lambda: len(model.requests))
        assert model.requests == []
    assert (name, steps) == ("APIStatusError", [])
    assert "the request of" in text
    assert f"is over the limit of {LIMIT} bytes" in text


async def test_calls_side_by_side(client: Client) -> None:
    """Each gets its own answer, also when the answers come in another order."""
    count = 12

    def slowly(request: Any) -> Any:
        said = request.body["messages"][-1]["content"]
        return {"text": f"to {said}", "delay": 0.02 * (count - int(said))}

    async with ScriptedModel([slowly] * count) as model, http_client() as http:

        async def process(given: Any) -> Any:
            settings = [
                Setting(model.origin, [], number % 2 == 0, http, str(number))
                for number in range(count)
            ]
            return await asyncio.gather(*map(openai_chat, settings))

        output, steps = await live_and_replayed(client, process, lambda: len(model.requests))
    assert output == [f"to {number}" for number in range(count)]
    assert len(steps) == count


# Compressed answers


def pieces(encoding: str, content: bytes) -> Iterator[bytes]:
    """The content as a provider sends it that flushes after each event, in parts of three bytes."""
    packer: Any
    match encoding:
        case "br":
            packer = brotli.Compressor()
            pack, flush, end = packer.process, packer.flush, packer.finish
        case "zstd":
            packer = zstd.ZstdCompressor()
            pack, end = packer.compress, packer.flush

            def flush() -> bytes:
                return bytes(packer.flush(packer.FLUSH_BLOCK))
        case _:
            bits = zlib.MAX_WBITS | (16 if encoding == "gzip" else 0)
            packer = zlib.compressobj(wbits=bits)
            pack, end = packer.compress, packer.flush

            def flush() -> bytes:
                return bytes(packer.flush(zlib.Z_SYNC_FLUSH))

    for event in content.split(b"\n\n"):
        data = pack(event + b"\n\n") + flush()
        yield from (data[start : start + 3] for start in range(0, len(data), 3))
    yield end()


@asynccontextmanager
async def packing(model: ScriptedModel, encoding: str) -> AsyncIterator[str]:
    """A server before the model that compresses what it says; gives its URL."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        lines = dict(line.split(": ", 1) for line in head.lower().split("\r\n")[1:] if ": " in line)
        body = await reader.readexactly(int(lines["content-length"]))
        async with httpx2.AsyncClient() as http:
            answer = await http.post(model.origin + head.split()[1], content=body)
        writer.write(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n"
            + f"Content-Encoding: {encoding}\r\n".encode()
            + f"Content-Type: {answer.headers['content-type']}\r\n\r\n".encode()
        )
        for piece in pieces(encoding, answer.content):
            if piece:
                writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                await writer.drain()
        writer.write(b"0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@both_sdks
@both_ways
@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd"])
async def test_a_compressed_answer(
    client: Client, loop: Any, is_streamed: bool, encoding: str
) -> None:
    """In parts that split characters and events; the record holds the text."""
    said = "Grüße, 世界 😀, und viele weitere Wörter. " * 20
    async with ScriptedModel([{"text": said}] * 2) as model, packing(model, encoding) as url:
        process = process_of(loop, Setting(url, [], is_streamed))
        output, (step,) = await live_and_replayed(client, process, lambda: len(model.requests))
    assert output == said
    assert "世界" in step.result["body"]
    assert list(step.result["headers"]) == ["content-type"]
