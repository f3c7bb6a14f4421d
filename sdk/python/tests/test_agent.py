"""The webhook, one handler an execution, heartbeats, metadata."""

import asyncio
import json
from typing import Any

import httpx2
import pytest
from conftest import SECRET, Bench, until
from fastapi import FastAPI
from pydantic import BaseModel
from scripted_kernel import DEADLINE, error

from rebuno import Agent, execution, step, tool
from rebuno._protocol import sign_request, webhook_signature


class Gate:
    """A handler that waits, and tells what became of it."""

    def __init__(self) -> None:
        self.started = 0
        self.ended: list[str] = []
        self.open = asyncio.Event()
        self.changed = asyncio.Event()

    async def process(self, input: Any) -> str:
        self.started += 1
        mine = f"{execution().dispatch_id}/{execution().dispatch_attempt}"
        self.changed.set()
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.ended.append(f"{mine} cancelled")
            raise
        else:
            self.ended.append(mine)
        finally:
            self.changed.set()
        return mine

    async def until(self, started: int, ended: int = 0) -> None:
        async with asyncio.timeout(DEADLINE):
            while self.started < started or len(self.ended) < ended:
                self.changed.clear()
                await self.changed.wait()


def test_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REBUNO_URL", "REBUNO_AGENT_SECRET"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match="agent_id"):
        Agent("", secret="s", base_url="http://k")
    with pytest.raises(ValueError, match="REBUNO_AGENT_SECRET"):
        Agent("a", base_url="http://k")
    with pytest.raises(ValueError, match="REBUNO_URL"):
        Agent("a", secret="s")
    monkeypatch.setenv("REBUNO_URL", "http://env/")
    monkeypatch.setenv("REBUNO_AGENT_SECRET", "env")
    agent = Agent("a")
    assert (agent.agent_id, agent.secret, agent.base_url) == ("a", "env", "http://env")
    assert (agent.webhook_path, agent.description, agent.output_schema) == ("/webhook", None, None)
    agent = Agent("a", secret="arg", base_url="http://arg/x/", webhook_path="/hook")
    assert (agent.secret, agent.base_url) == ("arg", "http://arg/x")
    assert agent.app is agent.app
    assert isinstance(agent.app, FastAPI)


async def test_webhook_signatures(bench: Bench) -> None:
    bench.kernel.add()
    agent = bench.agent(lambda given: 1)
    body = b'{"execution_id":"e1","dispatch_id":"d","dispatch_attempt":1,"lease_timeout_seconds":99'
    body += b',"of_tomorrow":1}'
    assert await bench.post(agent, body, "") == 401
    assert await bench.post(agent, body, webhook_signature("other", body)) == 401
    assert await bench.post(agent, body + b" ", webhook_signature(SECRET, body)) == 401
    assert bench.kernel.calls == []
    assert await bench.post(agent, body, webhook_signature(SECRET, body)) == 200
    await agent.join()
    assert bench.kernel.names() == ["get", "complete"]


async def test_an_unreadable_delivery_is_not_acknowledged(bench: Bench) -> None:
    agent = bench.agent(lambda given: 1)
    assert await bench.post(agent, b"{}", webhook_signature(SECRET, b"{}")) == 400


async def test_without_a_handler_the_kernel_tries_again(bench: Bench) -> None:
    assert await bench.deliver(bench.agent(None)) == 503


async def test_requests_are_signed_with_the_path_of_the_base_url(bench: Bench) -> None:
    bench.kernel.add()
    agent = bench.agent(lambda given: 1)
    agent.base_url = "http://kernel/base"
    agent._wire = agent._wire_to(bench.environment())
    await bench.deliver(agent)
    await agent.join()
    call = bench.kernel.calls[0]
    assert call.path == "/base/v0/executions/e1"
    assert call.headers["rebuno-agent-id"] == "a"
    timestamp = str(int(bench.time.now()))
    assert call.headers["rebuno-timestamp"] == timestamp
    signature = sign_request(SECRET, "GET", call.path, timestamp=timestamp)
    assert call.headers["rebuno-signature"] == signature


async def test_the_answer_comes_before_the_handler_ends(bench: Bench) -> None:
    bench.kernel.add()
    gate = Gate()
    agent = bench.agent(gate.process)
    assert await bench.deliver(agent) == 200
    await gate.until(started=1)
    gate.open.set()
    await agent.join()
    assert gate.ended == ["d1/1"]


# a second delivery while d1/2 runs: dispatch, attempt, whether it starts anew
SECOND = [
    ("d1", 2, False),
    ("d1", 1, False),
    ("d1", 3, True),
    ("d2", 1, True),
    ("d0", 2, True),
]


@pytest.mark.parametrize(("dispatch_id", "attempt", "anew"), SECOND)
async def test_one_handler_an_execution(
    bench: Bench, dispatch_id: str, attempt: int, anew: bool
) -> None:
    bench.kernel.add()
    gate = Gate()
    agent = bench.agent(gate.process)
    await bench.deliver(agent, attempt=2)
    await gate.until(started=1)
    assert await bench.deliver(agent, dispatch_id=dispatch_id, attempt=attempt) == 200
    if anew:
        await gate.until(started=2, ended=1)
        assert gate.ended == ["d1/2 cancelled"]
    gate.open.set()
    await agent.join()
    ends = [call.headers["rebuno-dispatch-id"] for call in bench.kernel.named("complete")]
    assert ends == [dispatch_id if anew else "d1"]
    assert gate.started == (2 if anew else 1)


async def test_a_superseded_handler_is_not_waited_for(bench: Bench) -> None:
    bench.kernel.add()
    release = asyncio.Event()
    started: list[int] = []

    async def process(input: Any) -> int:
        started.append(execution().dispatch_attempt)
        try:
            await asyncio.Event().wait() if len(started) == 1 else None
        except asyncio.CancelledError:
            await release.wait()  # swallows its cancellation
        return execution().dispatch_attempt

    agent = bench.agent(process)
    await bench.deliver(agent)
    await until(lambda: started)
    await bench.deliver(agent, attempt=2)
    await bench.kernel.until_called("complete")
    release.set()
    await agent.join()
    assert [call.body for call in bench.kernel.named("complete")] == [{"output": 2}]


async def test_executions_run_side_by_side(bench: Bench) -> None:
    gate = Gate()
    agent = bench.agent(gate.process)
    for name in ("e1", "e2"):
        bench.kernel.add(name)
        await bench.deliver(agent, name, dispatch_id=name)
    await gate.until(started=2)
    gate.open.set()
    await agent.join()
    assert sorted(gate.ended) == ["e1/1", "e2/1"]


@pytest.mark.parametrize(("lease_s", "interval_s"), [(60, 20), (120, 30), (21, 7)])
async def test_heartbeats(bench: Bench, lease_s: float, interval_s: float) -> None:
    bench.kernel.add()
    gate = Gate()
    agent = bench.agent(gate.process)
    await bench.deliver(agent, lease_s=lease_s)
    await gate.until(started=1)
    assert bench.kernel.named("heartbeat") == []
    for beats in (1, 2, 3):
        await bench.time.elapse(interval_s - 0.5)
        assert len(bench.kernel.named("heartbeat")) == beats - 1
        await bench.time.elapse(0.5)
        beat = await bench.kernel.until_called("heartbeat", beats)
        assert (beat.raw, beat.headers["rebuno-dispatch-id"]) == (b"", "d1")
        await until(lambda: bench.time.sleepers)
    gate.open.set()
    await agent.join()
    assert bench.kernel.names()[-1] == "complete"


@pytest.mark.parametrize("code", ["lease_superseded", "execution_terminal"])
async def test_a_heartbeat_that_lost_its_lease_stops_the_handler(bench: Bench, code: str) -> None:
    bench.kernel.add()
    gate = Gate()
    agent = bench.agent(gate.process)
    bench.kernel.answer("heartbeat", error(code, 409))
    await bench.deliver(agent)
    await gate.until(started=1)
    await bench.time.elapse(30)
    await agent.join()
    assert gate.ended == ["d1/1 cancelled"]
    assert bench.kernel.names() == ["get", "heartbeat"]


async def test_a_heartbeat_that_fails_is_followed_by_the_next(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.kernel.add()
    gate = Gate()
    agent = bench.agent(gate.process)
    bench.kernel.answer("heartbeat", error("internal_error", 500))
    await bench.deliver(agent)
    await gate.until(started=1)
    await bench.time.elapse(30)
    await bench.kernel.until_called("heartbeat", 1)
    await until(lambda: bench.time.sleepers)
    await bench.time.elapse(30)
    await bench.kernel.until_called("heartbeat", 2)
    gate.open.set()
    await agent.join()
    assert "heartbeat failed" in caplog.text


async def test_a_handler_that_cancels_itself_fails(bench: Bench) -> None:
    async def process(input: Any) -> None:
        raise asyncio.CancelledError("by itself")

    assert await bench.failure(process) == "agent_error: CancelledError: by itself"


class Answer(BaseModel):
    text: str


async def test_metadata(bench: Bench) -> None:
    def process(task: str) -> None: ...

    agent = bench.agent(process, description="d", output_schema=Answer)
    await agent.publish_metadata()
    (call,) = bench.kernel.calls
    assert (call.method, call.path) == ("PUT", "/v0/agents/a/metadata")
    assert "rebuno-dispatch-id" not in call.headers
    assert call.body["description"] == "d"
    assert call.body["input_schema"]["required"] == ["task"]
    assert call.body["output_schema"]["title"] == "Answer"


async def test_metadata_without_any(bench: Bench) -> None:
    await bench.agent(lambda given: 1).publish_metadata()
    empty = {"description": None, "input_schema": None, "output_schema": None}
    assert bench.kernel.calls[0].body == empty


@pytest.mark.parametrize("failure", [httpx2.ConnectError("down"), error("internal_error", 500)])
async def test_metadata_is_published_with_the_next_delivery(
    bench: Bench, failure: Any, caplog: pytest.LogCaptureFixture
) -> None:
    bench.kernel.add()
    agent = bench.agent(lambda given: 1)
    agent._published = False
    bench.kernel.answer("metadata", failure)
    await agent.publish_metadata()
    assert "metadata not published" in caplog.text
    for attempt in (1, 2):
        await bench.deliver(agent, attempt=attempt)
        await agent.join()
        await bench.kernel.until_called("complete", attempt)
    await bench.kernel.until_called("metadata", 2)
    assert len(bench.kernel.named("metadata")) == 2


async def test_the_app_publishes_at_start_and_closes_at_the_end(bench: Bench) -> None:
    bench.kernel.add()
    gate = Gate()
    agent = bench.agent(gate.process, shutdown_grace=0)
    agent._published = False
    async with agent.app.router.lifespan_context(agent.app):
        await bench.kernel.until_called("metadata")
        await bench.deliver(agent)
        await gate.until(started=1)
    assert gate.ended == ["d1/1 cancelled"]
    assert bench.kernel.names() == ["metadata", "get", "release"]


async def test_the_app_can_be_mounted(bench: Bench) -> None:
    bench.kernel.add()
    agent = bench.agent(lambda given: 1)
    site = FastAPI()
    site.mount("/agents/a", agent.app)
    body = json.dumps(
        {
            "execution_id": "e1",
            "dispatch_id": "d1",
            "dispatch_attempt": 1,
            "lease_timeout_seconds": 120,
        }
    ).encode()
    transport = httpx2.ASGITransport(app=site)
    async with httpx2.AsyncClient(transport=transport, base_url="http://site") as http:
        headers = {"Rebuno-Signature": webhook_signature(SECRET, body)}
        answer = await http.post("/agents/a/webhook", content=body, headers=headers)
    assert answer.status_code == 200
    await agent.join()
    assert bench.kernel.names() == ["get", "complete"]


def test_run_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    served: dict[str, Any] = {}
    monkeypatch.setattr("uvicorn.run", lambda app, **options: served.update(options, app=app))
    agent = Agent("a", secret="s", base_url="http://k")
    agent.run(lambda given: 1, host="127.0.0.1", port=5123)
    served.pop("log_config")
    assert served == {"app": agent.app, "host": "127.0.0.1", "port": 5123}


async def test_a_tool_may_be_made_in_the_handler(bench: Bench) -> None:
    async def process(input: Any) -> Any:
        @tool
        async def local(n: int) -> int:
            return n + 1

        return await local(1)

    assert await bench.output(process) == 2


async def test_a_delivery_taken_inside_a_step_is_apart_from_it(bench: Bench) -> None:
    """An agent that is called in process must not pass its own step on."""
    bench.kernel.add("outer", input="outer")
    bench.kernel.add("inner", input="inner")
    seen: dict[str, list[str]] = {}

    async def process(given: Any) -> None:
        seen[given] = [execution().id, execution().step_id]
        if given == "outer":
            await step("deliver", lambda: bench.deliver(agent, "inner"))

    agent = bench.agent(process)
    await bench.deliver(agent, "outer")
    await agent.join()
    assert seen == {"outer": ["outer", ""], "inner": ["inner", ""]}
