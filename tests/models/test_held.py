# SPDX-License-Identifier: Apache-2.0
"""Approvals in the middle of a framework's own loop, and limits; against the real kernel."""

import asyncio
import json
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import sdks
from governed import ended, event_types, governed, pending
from real_kernel import DEADLINE, PROBE, SECRET, Process, live, register, until_watched
from rebuno import Client, tool
from rebuno.testing import ModelRequest, ScriptedModel, Turn
from sdks import LOOPS, Setting
from test_sdks import ANSWER, both_ways, every_loop, process_of

HOLD = """
default_action: allow
rules:
  - id: ask
    when: { target: "%s" }
    then: { decision: require_approval, reason: look, approval_config: { timeout: 1h } }
"""
LIMIT = """
default_action: allow
rules:
  - id: slowly
    when: { step_kind: llm_call }
    then: { decision: allow, rate_limit: { max_calls: 1, window: 1h, per_what: execution } }
"""

# These run the calls of one turn side by side.
PARALLEL = [
    loop for loop in LOOPS if loop.__name__.startswith(("langchain", "openai_agents", "pyd"))
]

done: Counter[str] = Counter()


class Slow:
    """When the tool of that name has begun, and may end."""

    began: asyncio.Event
    may_end: asyncio.Event


@pytest.fixture(autouse=True)
def anew() -> None:
    done.clear()
    Slow.began, Slow.may_end = asyncio.Event(), asyncio.Event()


@tool(idempotency="at_most_once")
async def deploy(city: str) -> str:
    """Deploys to a city."""
    done[f"deploy {city}"] += 1
    return f"deployed to {city}"


@tool(idempotency="at_most_once")
async def slow(city: str) -> str:
    """Takes its time."""
    done[f"slow {city}"] += 1
    Slow.began.set()
    await Slow.may_end.wait()
    return f"slow in {city}"


async def deploy_beside(city: str) -> str:
    """Deploys to a city."""
    await Slow.began.wait()  # the kernel starts nothing beside a call that waits already
    return str(await deploy(city=city))


def agent_id(request: pytest.FixtureRequest) -> str:
    return "".join(c if c.isalnum() else "-" for c in request.node.name).strip("-")[:60]


@every_loop
@both_ways
async def test_a_tool_that_waits_for_approval(
    kernel_url: str, client: Client, request: pytest.FixtureRequest, loop: Any, is_streamed: bool
) -> None:
    name = agent_id(request)
    script = [{"tool": "deploy", "args": {"city": "Ulm"}}, ANSWER]
    async with ScriptedModel(script) as model:
        process = process_of(loop, Setting(model.origin, [deploy], is_streamed))
        async with governed(kernel_url, name, HOLD % "deploy", process):
            created = await client.create(name, {})
            (approval,) = await pending(client, created.id)
            assert len(model.requests) == 1
            await client.grant_approval(approval.id)
            run = await ended(client, created.id)
            assert (run.status, run.output) == ("completed", ANSWER)
        assert len(model.requests) == 2
    assert done == {"deploy Ulm": 1}


@every_loop
async def test_a_denied_approval_is_told_to_the_model(
    kernel_url: str, client: Client, request: pytest.FixtureRequest, loop: Any
) -> None:
    name = agent_id(request)
    script = [{"tool": "deploy", "args": {"city": "Ulm"}}, ANSWER]
    async with ScriptedModel(script) as model:
        process = process_of(loop, Setting(model.origin, [deploy], True))
        async with governed(kernel_url, name, HOLD % "deploy", process):
            created = await client.create(name, {})
            (approval,) = await pending(client, created.id)
            await client.deny_approval(approval.id, rationale="not today")
            assert (await ended(client, created.id)).output == ANSWER
        assert "deploy not allowed. reason: not today" in str(model.requests[1].body)
    assert not done


@pytest.mark.parametrize("loop", PARALLEL, ids=lambda loop: loop.__name__)
@both_ways
async def test_one_of_several_calls_waits(
    kernel_url: str, client: Client, request: pytest.FixtureRequest, loop: Any, is_streamed: bool
) -> None:
    """Its neighbour, which the framework may cancel, runs to its end, once, and is replayed."""
    name = agent_id(request)
    calls = [{"name": one, "args": {"city": "Ulm"}} for one in ("slow", "deploy_beside")]
    async with ScriptedModel([{"tools": calls}, ANSWER]) as model:
        process = process_of(loop, Setting(model.origin, [slow, deploy_beside], is_streamed))
        async with governed(kernel_url, name, HOLD % "deploy", process) as agent:
            created = await client.create(name, {})
            (approval,) = await pending(client, created.id)
            Slow.may_end.set()
            await asyncio.wait_for(agent.join(), DEADLINE)
            steps = {one.target: one for one in await client.list_steps(created.id)}
            assert (steps["slow"].status, steps["slow"].result) == ("succeeded", "slow in Ulm")
            await client.grant_approval(approval.id)
            assert (await ended(client, created.id)).output == ANSWER
        assert len(model.requests) == 2
        for said in ("slow in Ulm", "deployed to Ulm"):
            assert said in str(model.requests[1].body)
    assert done == {"slow Ulm": 1, "deploy Ulm": 1}


@every_loop
async def test_a_model_call_that_waits_for_approval(
    kernel_url: str, client: Client, request: pytest.FixtureRequest, loop: Any
) -> None:
    name = agent_id(request)
    async with ScriptedModel([ANSWER]) as model:
        process = process_of(loop, Setting(model.origin, [deploy], True))
        async with governed(kernel_url, name, HOLD % "*-test", process):
            created = await client.create(name, {})
            (approval,) = await pending(client, created.id)
            assert model.requests == []
            await client.grant_approval(approval.id)
            assert (await ended(client, created.id)).output == ANSWER
        assert len(model.requests) == 1


@every_loop
async def test_a_rate_limit(
    kernel_url: str, client: Client, request: pytest.FixtureRequest, loop: Any
) -> None:
    name = agent_id(request)
    script = [{"tool": "deploy", "args": {"city": "Ulm"}}, ANSWER]
    async with ScriptedModel(script) as model:
        process = process_of(loop, Setting(model.origin, [deploy]))
        async with governed(kernel_url, name, LIMIT, process):
            created = await client.create(name, {})
            run = await client.wait(created.id, DEADLINE)
            assert (run.status, run.failure_reason) == ("failed", "rate_limit_exceeded")
        assert len(model.requests) == 1


async def test_a_stream_beside_a_held_call(kernel_url: str, client: Client) -> None:
    """A model's answer is read to its end though the framework has cancelled its reader."""
    turn = {"text": "one two three four", "pause": 0.05}

    async def process(given: Any) -> Any:
        async def ask() -> str:
            return await process_of(sdks.openai_chat, Setting(model.origin, [], True))(given)

        async def held() -> Any:
            await model.until_asked(1)
            return await deploy(city="Ulm")

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(ask()), group.create_task(held())]
        return [task.result() for task in tasks]

    async with (
        ScriptedModel([turn]) as model,
        governed(kernel_url, "beside-stream", HOLD % "deploy", process) as agent,
    ):
        created = await client.create("beside-stream", {})
        (approval,) = await pending(client, created.id)
        await asyncio.wait_for(agent.join(), DEADLINE)
        (asked,) = [one for one in await client.list_steps(created.id) if one.kind == "llm_call"]
        assert asked.status == "succeeded"
        assert asked.result["body"].endswith("data: [DONE]\n\n")
        await client.grant_approval(approval.id)
        assert (await ended(client, created.id)).output == ["one two three four", "deployed to Ulm"]
        assert len(model.requests) == 1


async def test_live_deltas(kernel_url: str, client: Client) -> None:
    """A watcher has each word before the model, which pauses, writes the next one."""
    seen: list[str] = []

    async def process(given: Any) -> Any:
        await until_watched(seen)
        return await process_of(sdks.openai_chat, Setting(model.origin, [], True))(given)

    async def watch() -> None:
        async for delta in client.stream(created.id):
            seen.append(delta.data)

    async with (
        ScriptedModel([{"text": "one two three", "pause": 0.5}]) as model,
        governed(kernel_url, "watched", "default_action: allow\n", process),
    ):
        created = await client.create("watched", {})
        watching = asyncio.create_task(watch())
        assert (await ended(client, created.id)).output == "one two three"
        await asyncio.wait_for(watching, DEADLINE)
    words = [delta for delta in seen if delta != PROBE]
    assert "".join(words).endswith("data: [DONE]\n\n")
    for word in ("one", " two", " three"):
        (delta,) = [delta for delta in words if json.dumps(word) in delta]
        assert delta.count("data: ") == 1


class Doomed:
    """An agent of its own process, to be killed."""

    def __init__(self, kernel_url: str, folder: Path, origin: str) -> None:
        self._env = {"REBUNO_URL": kernel_url, "REBUNO_AGENT_SECRET": SECRET, "MODEL": origin}
        self._kernel_url = kernel_url
        self._folder = folder
        self.processes: list[Process] = []

    async def start(self) -> Process:
        program = str(Path(__file__).parent / "doomed_agent.py")
        process = Process([sys.executable, program], self._folder, **self._env)
        self.processes.append(process)
        url = await asyncio.to_thread(process.url)
        await register(self._kernel_url, "doomed", url)
        return process


async def test_killed_in_mid_stream(kernel_url: str, client: Client, tmp_path: Path) -> None:
    """The next attempt asks again; one outcome is recorded."""
    watched = asyncio.Event()

    async def first(request: ModelRequest) -> Turn:
        await watched.wait()
        return Turn(text="one two three", stall_after=2)

    async with ScriptedModel([first, "one two three"]) as model:
        doomed = Doomed(kernel_url, tmp_path, model.origin)
        try:
            process = await doomed.start()
            created = await client.create("doomed", {})
            async with live(client, created.id) as lines, asyncio.timeout(DEADLINE):
                watched.set()
                async for line in lines:
                    if line.startswith("data: "):
                        break
            process.end(signal.SIGKILL)
            await doomed.start()
            assert (await ended(client, created.id)).output == "one two three"
        finally:
            for process in doomed.processes:
                process.end(signal.SIGKILL)
        assert len(model.requests) == 2
    events = await event_types(client, created.id)
    assert events["step.succeeded"] == 1
    assert events["step.failed"] == 0
