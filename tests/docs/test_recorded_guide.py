"""docs/recorded.md: its table of model calls is what the kernel holds; what it rules out is not."""

import asyncio
import contextlib
import gzip
import json
import logging
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx2
import pytest
from rebuno import Client, Result, ToolError, http_client, step, tool
from rebuno.types import Execution, Step

from harness import Kernel
from harness.documents import code, read
from harness.kernel import TOKEN
from harness.sdk import serving

GUIDE = read("docs/recorded.md")
SECRET = "zz-the-agents-secret"
KEY = "zz-the-models-key"
PATH = "/zz-path"
HEADER = "zz-of-the-answer"
S = 30.0

JSON, SSE = "application/json", "text/event-stream"
TEXT = b'{"text": "tea"}'
EVENTS = (b"data: one\n\n", b"data: two\n\n")


def http(content: bytes, kind: str = JSON, status: int = 200, **headers: str) -> bytes:
    named = {"content-type": kind, "content-length": str(len(content)), "x-request-id": HEADER}
    lines = [f"{name}: {value}" for name, value in (named | headers).items()]
    return f"HTTP/1.1 {status} X\r\n{chr(10).join(lines)}\r\n\r\n".encode() + content


def streamed(*events: bytes, ends: bool = True) -> bytes:
    head = f"HTTP/1.1 200 OK\r\ncontent-type: {SSE}\r\ntransfer-encoding: chunked\r\n\r\n"
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(event), event) for event in events)
    return head.encode() + chunks + (b"0\r\n\r\n" if ends else b"")


# What the provider says, in the words of the guide; None: it says nothing.
ANSWERS: dict[str, bytes | None] = {
    "an answer": http(TEXT),
    "a refusal by the provider": http(b'{"error": "busy"}', status=429),
    "a compressed answer": http(gzip.compress(TEXT), **{"content-encoding": "gzip"}),
    "an answer that is no text": http(b"\xff\x00\x01", "audio/mpeg"),
    "a stream": streamed(*EVENTS),
    "a stream that the caller closes early": streamed(*EVENTS),
    "a stream that breaks": streamed(EVENTS[0], ends=False),
    "no answer": None,
    "a call that the handler gives up waiting for": None,
}


@contextlib.asynccontextmanager
async def provider(answer: bytes | None, asked: list[bytes]) -> AsyncIterator[str]:
    """A server that says this, or holds on to the request, and closes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            writer.close()
            return
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        asked.append(head + await reader.readexactly(length))
        if answer is None:
            await reader.read()
        else:
            writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}{PATH}"


async def ask(url: str, case: str) -> Any:
    """Asks as an agent does; whatever comes of it is the output."""
    body = {"model": "m", "messages": [], "stream": "stream" in case}
    headers = {"Authorization": f"Bearer {KEY}", "x-api-key": KEY, "Cookie": f"c={KEY}"}
    async with http_client(headers=headers) as client:
        try:
            async with client.stream("POST", url, json=body) as answer:
                parts = []
                async for part in answer.aiter_raw():
                    parts.append(part)
                    if "early" in case:
                        break
        except httpx2.TransportError as exc:
            return str(exc)
        return [answer.status_code, dict(answer.headers), b"".join(parts).hex()]


async def give_up(asking: asyncio.Task[Any], asked: list[bytes]) -> str:
    """Cancels the call once the provider has it."""
    async with asyncio.timeout(S):
        while not asked:
            await asyncio.sleep(0.01)
    asking.cancel()
    await asyncio.wait({asking})
    return "given up"


async def ended(client: Client, run: Execution) -> Execution:
    run = await client.wait(run.id, S)
    assert run.status == "completed", run.failure_reason
    return run


@pytest.fixture
def recording(new_kernel: Callable[..., Kernel]) -> Kernel:
    return new_kernel(args=["--log-level", "debug"])


def test_every_row_is_a_case() -> None:
    assert [row.cells[0] for row in GUIDE.rows("Model calls", "what happens")] == list(ANSWERS)


@pytest.mark.parametrize(
    "row", GUIDE.rows("Model calls", "what happens"), ids=lambda row: row.cells[0]
)
def test_what_is_recorded_of_a_model_call(recording: Kernel, row: Any) -> None:
    case, cell = row.cells
    which, recorded = cell.split()[0], json.loads(code(cell))
    asked: list[bytes] = []

    async def scenario() -> tuple[Step, list[Any]]:
        async with provider(ANSWERS[case], asked) as open_url:
            closed_url = f"http://127.0.0.1:{closed_port()}{PATH}"
            url = closed_url if case == "no answer" else open_url

            async def process(given: Any) -> Any:
                if "gives up" in case:
                    return await give_up(asyncio.create_task(ask(url, case)), asked)
                return await ask(url, case)

            async with serving(recording, "recorded", SECRET, process) as client:
                run = await ended(client, await client.create("recorded", {}))
                (found,) = await client.list_steps(run.id)
                shown: list[Any] = [run, found, await client.events(run.id, limit=1000)]
                if "gives up" not in case:
                    await replayed(client, run, asked)
        return found, shown

    found, shown = asyncio.run(scenario())
    assert (found.kind, found.target) == ("llm_call", "m")
    assert found.args == {"model": "m", "messages": [], "stream": "stream" in case}
    assert (found.result if which == "result" else found.error) == recorded
    assert found.status == ("succeeded" if which == "result" else "failed")
    for text in map(str, shown):
        assert not [word for word in (KEY, PATH, HEADER, "127.0.0.1") if word in text]


async def replayed(client: Client, run: Execution, asked: list[bytes]) -> None:
    """The same comes of it again, and nobody is asked."""
    questions = len(asked)
    last = (await client.fork_points(run.id)).latest_seq
    fork = await ended(client, await client.fork(run.id, at_seq=last))
    assert fork.output == run.output
    assert len(asked) == questions


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_what_passes_through(recording: Kernel) -> None:
    """Bodies that are no JSON object, and what is asked outside of a run."""
    asked: list[bytes] = []

    async def scenario() -> None:
        async with provider(http(TEXT), asked) as url:

            async def process(given: Any) -> None:
                async with http_client() as client:
                    for content in (b"[1]", b"no json"):
                        assert (await client.post(url, content=content)).content == TEXT
                    await client.post(url, files={"file": b'{"a": 1}'})

            async with serving(recording, "recorded", SECRET, process) as client:
                run = await ended(client, await client.create("recorded", {}))
                assert await client.list_steps(run.id) == []
            async with http_client() as bare:
                assert (await bare.post(url, json={})).headers["x-request-id"] == HEADER
        assert len(asked) == 4

    asyncio.run(scenario())


def test_a_key_that_an_error_shows(recording: Kernel, caplog: pytest.LogCaptureFixture) -> None:
    async def process(given: str) -> str:
        async with http_client(headers={"Authorization": f"{KEY}\n"}) as client:
            try:
                await client.post(given, json={"model": "m"})
            except httpx2.LocalProtocolError as exc:
                return str(exc)
        return "no error"

    async def scenario() -> None:
        async with (
            provider(None, []) as url,
            serving(recording, "recorded", SECRET, process) as client,
        ):
            run = await ended(client, await client.create("recorded", {"given": url}))
            (found,) = await client.list_steps(run.id)
            assert "[a header's value]" in found.error["message"]
            assert run.output == found.error["message"]
            assert KEY not in str((run, found, await client.events(run.id)))

    with caplog.at_level(logging.DEBUG, "rebuno"):
        asyncio.run(scenario())
    assert KEY not in caplog.text


def test_of_tools_and_of_the_run(
    recording: Kernel, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a tool is given, returns or raises, and nothing that it prints or reads; no secret of
    the kernel's own; and of all that not a word in the kernel's log."""
    monkeypatch.setenv("ZZ_TOKEN", "zz-environment")
    argument, result, raised, state = "zz-argument", "zz-result", "zz-raised", "zz-state"

    @tool
    async def look(what: str, deep: bool = True) -> str:
        print("zz-printed")
        return result

    @tool
    async def fail(what: str) -> None:
        secret = "zz-variable"
        assert secret
        raise ValueError(raised)

    async def process(given: Any) -> Any:
        await look(argument)
        with contextlib.suppress(ToolError):
            await fail(argument)
        await step("nothing", lambda: None)
        return Result("zz-output", state={"kept": state})

    async def scenario() -> tuple[list[Any], str]:
        async with serving(recording, "recorded", SECRET, process) as client:
            run = await ended(
                client, await client.create("recorded", {"i": "zz-input"}, session="s")
            )
            shown = [run, await client.list_steps(run.id), await client.events(run.id, limit=1000)]
            return shown, str(await client.list(agent_id="recorded"))

    (run, steps, events), listed = asyncio.run(scenario())
    agents = str(recording.client().get("/v0/agents/recorded").expect(200).json)
    assert [one.args for one in steps] == [
        {"what": argument, "deep": True},
        {"what": argument},
        {},
    ]
    assert [one.result for one in steps] == [result, None, None]
    assert steps[1].error == {"message": raised}
    assert (run.input, run.output) == ({"i": "zz-input"}, "zz-output")
    for word in (argument, result):
        assert word not in str(events)
    for text in (str(run), str(steps), str(events), listed, agents):
        for word in ("zz-printed", "zz-environment", "zz-variable", SECRET, TOKEN, "Traceback"):
            assert word not in text
    recording.stop()
    assert "zz-printed" in capsys.readouterr().out
    log = recording.log_text()
    assert "route=/v0/executions/{execution_id}/steps" in log
    assert [line for line in log.splitlines() if "zz-" in line] == []
    assert TOKEN not in log


def test_who_may_read(recording: Kernel) -> None:
    """The token is asked for."""

    async def scenario() -> None:
        async with serving(recording, "recorded", SECRET, lambda given: 1) as client:
            run = await ended(client, await client.create("recorded", {}))
        async with httpx2.AsyncClient() as http:
            for path in ("", "/steps", "/events"):
                url = f"{recording.url}/v0/executions/{run.id}{path}"
                assert (await http.get(url)).status_code == 401

    asyncio.run(scenario())


def words_of(table: str) -> Iterator[str]:
    for found in GUIDE.tables:
        if found.heading == table:
            yield from (row.cells[0] for row in found.rows)


def test_what_the_tests_rule_out_is_what_the_guide_names() -> None:
    """A row that is added needs a test above."""
    assert list(words_of("What of a model call is not recorded")) == [
        "the request's headers",
        "the request's address",
        "the answer's other headers",
        "what is published live",
    ]
