"""The kernel is gone in the middle of a model call of the Python SDK, and comes back.

The provider has been paid by then: what it says is recorded once the kernel is there again, and it
is not asked twice.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from rebuno import Client, http_client
from rebuno.testing import ScriptedModel
from rebuno.types import Execution, Step

from harness import Kernel
from harness.sdk import serving

NewKernel = Callable[..., Kernel]
SECRET = "agents-secret"
TEXT = "one two three four five six seven eight nine ten"
DEADLINE_S = 60.0

both_ways = pytest.mark.parametrize("is_streamed", [False, True], ids=["plain", "streamed"])


class Asking:
    """An agent that asks a model once, and tells when it has read something of the answer."""

    def __init__(self, model: ScriptedModel, is_streamed: bool) -> None:
        self.has_read = asyncio.Event()
        self._url = f"{model.url}/chat/completions"
        self._body = {"model": "m", "messages": [], "stream": is_streamed}

    async def process(self, given: Any) -> str:
        async with http_client(timeout=DEADLINE_S) as http:
            text = ""
            async with http.stream("POST", self._url, json=self._body) as answer:
                async for piece in answer.aiter_text():
                    text += piece
                    self.has_read.set()
        return text


async def ended(client: Client, created: Execution) -> tuple[str, Step]:
    """The output, and the one step."""
    run = await client.wait(created.id, DEADLINE_S)
    assert run.status == "completed", run.failure_reason
    types = [event.type for event in await client.events(run.id, limit=1000)]
    assert types.count("dispatch.acked") == 1  # the same attempt, which noticed nothing
    assert types.count("step.succeeded") == types.count("step.proposed") == 1
    assert types.count("step.failed") == 0
    (step,) = await client.list_steps(run.id)
    return run.output, step


@both_ways
def test_gone_while_the_provider_thinks(new_kernel: NewKernel, is_streamed: bool) -> None:
    """Killed after the step was allowed; the answer comes while nobody can record it."""
    kernel = new_kernel()

    async def scenario() -> None:
        answers = asyncio.Event()

        async def turn(request: Any) -> str:
            await answers.wait()
            return TEXT

        async with ScriptedModel([turn]) as model:
            asking = Asking(model, is_streamed)
            async with serving(kernel, "asks", SECRET, asking.process) as client:
                created = await client.create("asks", {})
                await asyncio.wait_for(model.until_asked(1), DEADLINE_S)
                await asyncio.to_thread(kernel.kill)
                answers.set()
                if is_streamed:  # the caller gets it all the same, but for its end
                    await asyncio.wait_for(asking.has_read.wait(), DEADLINE_S)
                await asyncio.to_thread(kernel.start)
                output, step = await ended(client, created)
            assert len(model.requests) == 1
        assert step.result["body"] == output
        assert output.endswith("data: [DONE]\n\n") if is_streamed else TEXT in output

    asyncio.run(scenario())


def test_gone_in_mid_stream(new_kernel: NewKernel) -> None:
    """What is watched live is lost meanwhile; what is recorded is whole."""
    kernel = new_kernel()

    async def scenario() -> None:
        async with ScriptedModel([{"text": TEXT, "pause": 0.1}]) as model:
            asking = Asking(model, True)
            async with serving(kernel, "asks", SECRET, asking.process) as client:
                created = await client.create("asks", {})
                await asyncio.wait_for(asking.has_read.wait(), DEADLINE_S)
                await asyncio.to_thread(kernel.kill)
                await asyncio.to_thread(kernel.start)
                output, step = await ended(client, created)
            assert len(model.requests) == 1
        assert step.result["body"] == output
        assert output.count("data: ") > len(TEXT.split())

    asyncio.run(scenario())


@both_ways
def test_gone_while_a_call_is_submitted(new_kernel: NewKernel, is_streamed: bool) -> None:
    """Nothing is asked before the kernel is back and has allowed it."""
    kernel = new_kernel()

    async def scenario() -> None:
        async with ScriptedModel([TEXT]) as model:
            asking, began, may_ask = Asking(model, is_streamed), asyncio.Event(), asyncio.Event()

            async def process(given: Any) -> str:
                began.set()
                await may_ask.wait()
                return await asking.process(given)

            async with serving(kernel, "asks", SECRET, process) as client:
                created = await client.create("asks", {})
                await asyncio.wait_for(began.wait(), DEADLINE_S)
                await asyncio.to_thread(kernel.kill)
                may_ask.set()
                with pytest.raises(httpx2.ConnectError):  # it is gone
                    async with httpx2.AsyncClient() as http:
                        await http.get(f"{kernel.url}/v0/health")
                assert model.requests == []
                await asyncio.to_thread(kernel.start)
                output, step = await ended(client, created)
            assert len(model.requests) == 1
        assert step.result["body"] == output

    asyncio.run(scenario())


def test_a_key_is_nowhere(new_kernel: NewKernel, caplog: pytest.LogCaptureFixture) -> None:
    """Neither in what the kernel stores and shows, nor in a log, whatever is to be logged."""
    kernel = new_kernel(args=["--log-level", "debug"])
    key = "sk-zzsecretzz"

    async def scenario() -> None:
        turns = [{"error": 401, "message": "who are you?"}, {"text": TEXT, "break_after": 3}, TEXT]
        async with ScriptedModel(turns) as model:

            async def process(given: Any) -> str:
                url = f"{model.url}/chat/completions"
                body = {"model": "m", "messages": [], "stream": True}
                headers = {"Authorization": f"Bearer {key}", "x-api-key": key, "Cookie": key}
                async with http_client(headers=headers) as http:
                    assert (await http.post(url, json=body)).status_code == 401
                    with pytest.raises(httpx2.RemoteProtocolError):
                        await http.post(url, json=body)
                    answer = await http.post(url, json=body)
                async with http_client(headers={"Authorization": f"{key}\n"}) as http:
                    with pytest.raises(httpx2.LocalProtocolError):  # it shows the header's value
                        await http.post(url, json=body)
                return answer.text

            async with serving(kernel, "asks", SECRET, process) as client:
                created = await client.create("asks", {})
                run = await client.wait(created.id, DEADLINE_S)
                assert run.status == "completed", run.failure_reason
                steps = await client.list_steps(run.id)
                events = await client.events(run.id, limit=1000)
            assert all(key in str(request.headers) for request in model.requests)
            assert (len(model.requests), len(steps)) == (3, 4)
        for shown in (run, steps, events):
            assert key not in str(shown)
            assert "authorization" not in str(shown).lower()

    with caplog.at_level(logging.DEBUG, "rebuno"):
        asyncio.run(scenario())
    kernel.stop()
    assert key not in caplog.text
    assert "authorization" not in caplog.text.lower()
    files = [path for path in kernel.folder.rglob("*") if path.is_file()]
    assert kernel.log in files
    for path in files:  # with SQLite also the database
        assert key.encode() not in path.read_bytes(), path
        assert b"authorization" not in path.read_bytes().lower(), path
