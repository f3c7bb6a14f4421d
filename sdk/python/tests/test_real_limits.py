"""What is too large for the kernel, or is no JSON; against the real one. It is said at once."""

import asyncio
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from providers import SSE, URL, Provider, said, streamed
from real_kernel import BIN, DEADLINE, Process, serving

from rebuno import APIError, Client, step
from rebuno.types import Step

pytestmark = pytest.mark.skipif(not BIN, reason="REBUNO_BIN names no kernel")

LIMIT = 100_000
MIB = 2**20
ASK = {"model": "m1", "messages": []}


@pytest.fixture
async def small(tmp_path: Path) -> AsyncIterator[Client]:
    """A client of a kernel that takes bodies of so many bytes."""
    command = [BIN, "dev", "--memory", "--listen-addr", "127.0.0.1:0"]
    kernel = Process(command, tmp_path, REBUNO_MAX_BODY_BYTES=str(LIMIT))
    try:
        async with Client(kernel.url()) as client:
            yield client
    finally:
        kernel.end(signal.SIGTERM)


async def run(client: Client, process: Any) -> tuple[Any, list[Step]]:
    """The ended execution, and its steps."""
    async with serving(client.base_url, "limits", process):
        created = await client.create("limits", {})
        ended = await client.wait(created.id, DEADLINE)
        return ended, await client.list_steps(created.id)


def names_both(message: str, what: str) -> int:
    """Checks the message; returns the size that it names."""
    found = re.fullmatch(
        rf"(\[payload_too_large\] )?the {what} of (\d+) bytes is too large to be recorded: "
        rf"the body of (\d+) bytes is over the limit of {LIMIT} bytes( \(HTTP 413\))?",
        message,
    )
    assert found, message
    assert int(found[3]) >= int(found[2])
    return int(found[2])


@pytest.mark.parametrize("size", [LIMIT, 30 * MIB])
async def test_a_tools_result(small: Client, size: int) -> None:
    """The step fails, so that its effect is not left as if it had never ended."""

    async def process(given: Any) -> Any:
        with pytest.raises(APIError) as caught:
            await step("fetch", lambda: "x" * size)
        return [caught.value.code, caught.value.message, await step("after", lambda: "fine")]

    ended, (fetch, after) = await run(small, process)
    code, message, rest = ended.output
    assert (code, rest, after.status) == ("payload_too_large", "fine", "succeeded")
    assert names_both(message, "result") == size + 2
    assert (fetch.status, fetch.error) == ("failed", {"message": message})


@pytest.mark.parametrize("over", [0, 1])
async def test_where_the_limit_is(small: Client, over: int) -> None:
    """It holds for the body, `{"result":"…"}`."""
    length = LIMIT - len('{"result":""}') + over

    async def process(given: Any) -> Any:
        await step("fetch", lambda: "x" * length)

    ended, (fetch,) = await run(small, process)
    assert fetch.status == ("failed" if over else "succeeded")
    assert ended.status == ("failed" if over else "completed")
    if over:
        reason = ended.failure_reason.removeprefix("agent_error: APIError: ")
        assert names_both(reason, "result") == length + 2


async def test_a_tool_that_calls_with_too_much(small: Client) -> None:
    async def process(given: Any) -> Any:
        with pytest.raises(APIError, match=f"over the limit of {LIMIT} bytes") as caught:
            await step("send", lambda text: None, {"text": "x" * LIMIT})
        return caught.value.code

    ended, steps = await run(small, process)
    assert (ended.output, steps) == ("payload_too_large", [])


async def test_a_result_that_is_no_json(small: Client) -> None:
    async def process(given: Any) -> Any:
        for value in (object(), {1, 2}, float("nan"), {"a": {"b": b"bytes"}}):
            with pytest.raises(TypeError, match="the result of 'odd' cannot be JSON"):
                await step("odd", lambda value=value: value)
        return "went on"

    ended, steps = await run(small, process)
    assert (ended.output, len(steps)) == ("went on", 4)
    for one in steps:
        assert one.status == "failed"
        assert one.error["message"].startswith("the result of 'odd' cannot be JSON: ")


async def test_the_output(small: Client) -> None:
    ended, _ = await run(small, lambda given: "x" * LIMIT)
    assert ended.status == "failed"
    found = re.search(
        r"of (\d+) bytes .* of (\d+) bytes is over the limit of (\d+)", ended.failure_reason
    )
    assert found
    assert int(found[1]) == int(found[2]) == LIMIT + len('{"output":""}')
    assert int(found[3]) == LIMIT


@pytest.mark.parametrize("size", [LIMIT, 20 * MIB])
@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_models_answer(small: Client, size: int, is_streamed: bool) -> None:
    pieces = [b"x" * 50_000] * (size // 50_000)
    answer = streamed(*pieces) if is_streamed else said(b"".join(pieces))
    provider = Provider(answer)

    async def process(given: Any) -> Any:
        got = 0
        try:
            async with provider.client() as http, http.stream("POST", URL, json=ASK) as answer:
                if not is_streamed:
                    return [answer.status_code, (await answer.aread()).decode()]
                async for chunk in answer.aiter_raw():
                    got += len(chunk)
        except APIError as exc:
            return [got, exc.message]

    ended, (asked,) = await run(small, process)
    first, told = ended.output
    message = asked.error["message"]
    assert message in told
    assert names_both(message, "answer") > size // 50_000 * 50_000
    assert (asked.status, first) == ("failed", sum(map(len, pieces)) if is_streamed else 413)
    if is_streamed:
        assert asked.error["headers"] == {"content-type": SSE["content-type"]}


async def test_a_models_request(small: Client) -> None:
    provider = Provider()
    body = ASK | {"messages": ["x" * LIMIT]}

    async def process(given: Any) -> Any:
        answer = await asyncio.wait_for(provider.client().post(URL, json=body), DEADLINE)
        return [answer.status_code, answer.json()["error"]["message"]]

    ended, steps = await run(small, process)
    assert (ended.output[0], steps, provider.requests) == (413, [], [])
    assert names_both(ended.output[1], "request") > LIMIT
