"""Against the real kernel: the program named by REBUNO_BIN, started here on a free port."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from conftest import readme_blocks
from governed import set_policy
from real_kernel import (
    BIN,
    DEADLINE,
    PROBE,
    SECRET,
    Process,
    register,
    serving,
    types_of,
    until,
    until_watched,
)

import rebuno
from rebuno import Client, Result, ToolError, execution, previous, step, tool

pytestmark = pytest.mark.skipif(not BIN, reason="REBUNO_BIN names no kernel")

EFFECTS = Path(__file__).parent / "agents" / "effects.py"


async def test_end_to_end(kernel_url: str, client: Client) -> None:
    @tool("greet")
    async def greet(name: str, mark: str = "!") -> dict[str, str]:
        return {"text": f"Hello {name}{mark} é😀"}

    @tool
    def bad() -> None:
        raise ValueError("out of luck")

    async def process(name: str) -> Result:
        context = execution()
        assert context.dispatch_attempt == 1
        greeting = await greet(name)
        number = await step("number", lambda: 1.0)
        with pytest.raises(ToolError, match="out of luck"):
            await bad()
        return Result([greeting, number, await previous(), context.session], {"turn": 1})

    async with serving(kernel_url, "greeter", process, description="greets"):
        for _ in range(2):
            created = await client.create("greeter", {"name": "Ada"})
            ended = await client.wait(created.id, DEADLINE)
            assert ended.status == "completed", ended.failure_reason
            assert ended.output == [{"text": "Hello Ada! é😀"}, 1.0, None, ""]
        steps = await client.list_steps(created.id)
        assert [(one.kind, one.target, one.status) for one in steps] == [
            ("tool_call", "greet", "succeeded"),
            ("local", "number", "succeeded"),
            ("tool_call", "bad", "failed"),
        ]
        first = await client.get_step(created.id, steps[0].step_id)
        assert first.args == {"name": "Ada", "mark": "!"}
        assert (await client.get_step(created.id, steps[2].step_id)).error == {
            "message": "out of luck"
        }
        page = await client.list(agent_id="greeter", limit=1)
        assert [one.id for one in page.executions] == [created.id]
        assert page.next_cursor
        shown = await metadata(kernel_url, "greeter")
        assert shown["description"] == "greets"
        assert shown["input_schema"]["required"] == ["name"]


async def metadata(kernel_url: str, agent_id: str) -> dict[str, Any]:
    """The agent as the kernel shows it, once it has published its metadata."""
    async with asyncio.timeout(DEADLINE), httpx2.AsyncClient() as http:
        while True:
            shown: dict[str, Any] = (await http.get(f"{kernel_url}/v0/agents/{agent_id}")).json()
            if "input_schema" in shown:
                return shown


async def test_a_result_that_is_too_large(kernel_url: str, client: Client) -> None:
    large = "x" * (10 << 20)

    async def process(given: Any) -> Any:
        with pytest.raises(rebuno.APIError) as caught:
            await step("large", lambda: large)
        assert caught.value.code == "payload_too_large"
        return large if given == "too" else "small"

    async with serving(kernel_url, "large", process):
        created = await client.create("large")
        assert (await client.wait(created.id, DEADLINE)).output == "small"
        (recorded,) = await client.list_steps(created.id)
        assert recorded.status == "failed"
        assert str(len(large) + 2) in recorded.error["message"]  # with its quotes
        created = await client.create("large", "too")
        ended = await client.wait(created.id, DEADLINE)
        assert ended.failure_reason.startswith("agent_error: APIError: the output of ")


async def test_failures(kernel_url: str, client: Client) -> None:
    def process(a: int) -> Any:
        if a == 1:
            raise ValueError("one")
        return {1, 2}

    async with serving(kernel_url, "failing", process):
        reasons = []
        for given in ({}, {"a": 1}, {"a": 2}):
            created = await client.create("failing", given)
            ended = await client.wait(created.id, DEADLINE)
            assert ended.status == "failed"
            reasons.append(ended.failure_reason)
    assert reasons[0] == "input_invalid: missing required input fields: a"
    assert reasons[1] == "agent_error: ValueError: one"
    assert reasons[2].startswith("agent_error: TypeError: ")


async def test_client_errors(client: Client, kernel_url: str) -> None:
    with pytest.raises(rebuno.NotFoundError):
        await client.create("nobody")
    with pytest.raises(rebuno.RebunoError):
        await client.get("01920000-0000-7000-8000-000000000001")
    async with serving(kernel_url, "quick", lambda given: given):
        first = await client.create("quick", 1, idempotency_key="once")
        again = await client.create("quick", 2, idempotency_key="once")
        assert again.id == first.id
        await client.wait(first.id, DEADLINE)
        with pytest.raises(rebuno.ConflictError):
            await client.cancel(first.id)


async def test_watch_and_stream(kernel_url: str, client: Client) -> None:
    pieces: list[str] = []

    async def process(given: Any) -> str:
        await until_watched(pieces)
        context = execution()
        step_id, _ = await context.begin_llm("model", {"model": "model"})
        for number in range(3):
            await context.publish_llm_delta(step_id, number, f"piece {number} é")
        await context.record_llm(step_id, {"text": "whole"})
        return "done"

    async def collect() -> None:
        async for delta in client.stream(created.id):
            pieces.append(delta.data)

    async with serving(kernel_url, "talker", process):
        created = await client.create("talker")
        streaming = asyncio.create_task(collect())
        seen = [event async for event in client.watch(created.id)]
        await asyncio.wait_for(streaming, DEADLINE)
    assert [event.event_seq for event in seen] == list(range(1, len(seen) + 1))
    assert seen[-1].type == "execution.completed"
    assert seen[-1].payload["output"] == "done"
    told = [piece for piece in pieces if piece != PROBE]
    assert told == [f"piece {number} é" for number in range(3)]


async def test_wait_takes_no_longer_than_asked(kernel_url: str, client: Client) -> None:
    async with serving(kernel_url, "idle", lambda given: asyncio.Event().wait(), shutdown_grace=0):
        created = await client.create("idle")
        with pytest.raises(TimeoutError):
            await client.wait(created.id, timeout=0.1)
        await client.cancel(created.id)
        assert (await client.wait(created.id, DEADLINE)).status == "cancelled"


async def test_heartbeats_keep_the_lease(kernel_url: str, client: Client) -> None:
    beats = 0

    async def body() -> int:
        await until(lambda: beats >= 5)  # longer than the lease of 2 s
        return execution().dispatch_attempt

    async with serving(kernel_url, "slow", lambda given: step("slow", body)) as agent:
        wire = agent._wire
        send = wire.send

        async def counting(request: Any, *args: Any) -> bytes:
            nonlocal beats
            answer = await send(request, *args)
            beats += request.path.endswith("/heartbeat")
            return answer

        wire.send = counting  # type: ignore[assignment,method-assign]
        created = await client.create("slow")
        ended = await client.wait(created.id, DEADLINE)
        assert ended.output == 1
        assert (await types_of(client, created.id)).count("dispatch.acked") == 1


async def test_a_cancelled_execution_stops_its_handler(kernel_url: str, client: Client) -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def process(given: Any) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with serving(kernel_url, "stopped", process) as agent:
        created = await client.create("stopped")
        await asyncio.wait_for(started.wait(), DEADLINE)
        await client.cancel(created.id)
        await asyncio.wait_for(cancelled.wait(), DEADLINE)
        await asyncio.wait_for(agent.join(), DEADLINE)


async def test_an_agent_lives_through_a_restart_of_its_kernel(tmp_path: Path) -> None:
    """Calls made while the kernel is away are repeated, and counted once."""
    started, go = asyncio.Event(), asyncio.Event()

    async def body(n: int) -> int:
        started.set()
        await go.wait()
        return n

    async def process(given: Any) -> Any:
        numbers = [await step("count", body, {"n": n}) for n in (1, 2, 2)]
        return [*numbers, execution().dispatch_attempt]

    command = [BIN, "dev", "--db", str(tmp_path / "kernel.db"), "--listen-addr"]
    kernel = Process([*command, "127.0.0.1:0"], tmp_path)
    try:
        url = kernel.url()
        async with serving(url, "patient", process), Client(url) as client:
            created = await client.create("patient")
            await asyncio.wait_for(started.wait(), DEADLINE)
            kernel.end(signal.SIGKILL)
            go.set()
            kernel = Process([*command, url.removeprefix("http://")], tmp_path)
            ended = await client.wait(created.id, DEADLINE)
            assert ended.output == [1, 2, 2, 1]
            steps = await client.list_steps(created.id)
            assert [one.occurrence for one in steps] == [0, 0, 1]
    finally:
        kernel.end(signal.SIGTERM)


class Effects:
    """The agent of agents/effects.py, as processes that come and go."""

    def __init__(self, kernel_url: str, folder: Path) -> None:
        self.kernel_url = kernel_url
        self.folder = folder
        self.file = folder / "effects"
        self.go = folder / "go"
        self.processes: list[Process] = []

    async def start(self, lease_s: float | None = None, grace_s: float = 0) -> Process:
        process = Process(
            [sys.executable, str(EFFECTS)],
            self.folder,
            REBUNO_URL=self.kernel_url,
            REBUNO_AGENT_SECRET=SECRET,
            EFFECTS=str(self.file),
            GO=str(self.go),
            GRACE=str(grace_s),
        )
        self.processes.append(process)
        more = {} if lease_s is None else {"lease_timeout_seconds": lease_s}
        url = await asyncio.to_thread(process.url)
        await register(self.kernel_url, "effects", url, **more)
        return process

    def seen(self) -> list[str]:
        return self.file.read_text().splitlines() if self.file.exists() else []


@pytest.fixture
async def effects(kernel_url: str, tmp_path: Path) -> AsyncIterator[Effects]:
    effects = Effects(kernel_url, tmp_path)
    yield effects
    for process in effects.processes:
        process.end(signal.SIGKILL)


@pytest.mark.parametrize("mode", ["safe", "once"])
async def test_killed_between_effect_and_record(
    effects: Effects, client: Client, mode: str
) -> None:
    doomed = await effects.start()
    created = await client.create("effects", {"mode": mode})
    await until(lambda: len(effects.seen()) == 2)
    doomed.end(signal.SIGKILL)
    effects.go.touch()
    await effects.start()
    ended = await client.wait(created.id, DEADLINE)
    assert ended.status == "completed", ended.failure_reason
    first, second, last = ended.output["steps"]
    assert (first, last) == ("first done", "last done")
    assert ended.output["attempt"] > 1
    seen = effects.seen()
    assert seen[0].startswith("first ")
    if mode == "safe":
        assert second == "second done"
        assert len(seen) == 3
        assert seen[1] == seen[2]  # the same step, run again
    else:
        assert len(seen) == 2  # never again
        assert second
        steps = await client.list_steps(created.id)
        assert steps[1].error["reason"] == "indeterminate"


async def test_a_graceful_shutdown_hands_over_at_once(effects: Effects, client: Client) -> None:
    leaving = await effects.start(lease_s=600)  # only a release can be quick
    created = await client.create("effects", {"mode": "safe"})
    await until(lambda: len(effects.seen()) == 2)
    await asyncio.to_thread(leaving.end, signal.SIGTERM)
    effects.go.touch()
    await effects.start(lease_s=600)
    ended = await client.wait(created.id, DEADLINE)
    assert ended.output["steps"] == ["first done", "second done", "last done"]
    assert len(effects.seen()) == 3


async def test_a_graceful_shutdown_lets_a_step_finish(effects: Effects, client: Client) -> None:
    leaving = await effects.start(lease_s=600, grace_s=20)
    created = await client.create("effects", {"mode": "once"})
    await until(lambda: len(effects.seen()) == 2)
    ending = asyncio.create_task(asyncio.to_thread(leaving.end, signal.SIGTERM))
    await until(lambda: any("Shutting down" in line for line in leaving.output))
    effects.go.touch()
    await ending
    await effects.start(lease_s=600)
    ended = await client.wait(created.id, DEADLINE)
    assert ended.output["steps"] == ["first done", "second done", "last done"]
    assert len(effects.seen()) == 2


async def test_the_programs_of_the_readme(kernel_url: str, tmp_path: Path) -> None:
    agent, client, decide, _ = readme_blocks()
    _, policy = readme_blocks("yaml")
    (tmp_path / "agent.py").write_text(agent.replace("port=5000", 'host="127.0.0.1", port=0'))
    env = {"REBUNO_URL": kernel_url, "REBUNO_AGENT_SECRET": SECRET, "PYTHONUNBUFFERED": "1"}

    def start(name: str, text: str) -> Process:
        (tmp_path / name).write_text(text)
        return Process([sys.executable, name], tmp_path, **env)

    async def output(process: Process) -> str:
        await asyncio.to_thread(process.child.wait, DEADLINE)
        process.end(signal.SIGKILL)
        return "".join(process.output)

    serving_it = Process([sys.executable, "agent.py"], tmp_path, **env)
    try:
        await register(kernel_url, "greeter", await asyncio.to_thread(serving_it.url))
        assert (await output(start("client.py", client))).startswith("completed {'ticket': '")
        assert any("Hello Ada, your ticket is " in line for line in serving_it.output)
        await set_policy(kernel_url, "greeter", policy)
        asking = start("client.py", client.replace("ada-1", "ada-2"))
        async with Client(kernel_url) as watching:
            await until_held(watching, "greeter")
        assert sum("Hello Ada" in line for line in serving_it.output) == 1
        asked = await output(start("decide.py", decide.replace('input("grant? [y/n] ")', '"y"')))
        assert asked.startswith("greeter send_mail {")
        assert "check the address" in asked
        assert (await output(asking)).startswith("completed {'ticket': '")
        assert sum("Hello Ada" in line for line in serving_it.output) == 2
    finally:
        serving_it.end(signal.SIGTERM)


async def until_held(client: Client, agent_id: str) -> None:
    async with asyncio.timeout(DEADLINE):
        while all(one.agent_id != agent_id for one in await client.list_approvals()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
