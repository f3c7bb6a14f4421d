"""Subagents against the real kernel."""

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from governed import HOLD, deploy, done, ended, pending, set_policy
from provider import Boxes
from real_kernel import BIN, DEADLINE, Process, serving, types_of, until

from rebuno import Agent, Client, ToolError, execution, resource, step, subagent, tool
from rebuno.types import Execution

pytestmark = pytest.mark.skipif(not BIN, reason="REBUNO_BIN names no kernel")

ran: Counter[str] = Counter()  # how often each helper ran


@tool("ask", idempotency="at_most_once")
async def ask(question: str) -> Any:
    return await subagent("helper", {"question": question})


async def helps(question: str) -> Any:
    ran[question] += 1
    if question == "deploy":
        return await deploy()
    if question == "fail":
        raise ValueError("no luck")
    if question == "wait":
        await asyncio.Event().wait()
    return await step("think", lambda: {"answer": question.upper()})


async def of(client: Client, parent: str) -> list[Execution]:
    """The subagents of an execution."""
    page = await client.list(agent_id="helper", limit=200)
    spawned = [(one, one.spawned_by) for one in page.executions]
    return [one for one, by in spawned if by is not None and by.execution_id == parent]


async def until_blocked(client: Client, execution_id: str) -> None:
    async with asyncio.timeout(DEADLINE):
        while (await client.get(execution_id)).status != "blocked":  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@asynccontextmanager
async def parent_and_helper(kernel_url: str, process: Any) -> AsyncIterator[Agent]:
    ran.clear()
    async with (
        serving(kernel_url, "helper", helps, shutdown_grace=0),
        serving(kernel_url, "parent", process, shutdown_grace=0) as parent,
    ):
        yield parent


async def test_one(kernel_url: str, client: Client) -> None:
    async def process(given: Any) -> Any:
        return [await ask("why"), execution().dispatch_attempt]

    async with parent_and_helper(kernel_url, process):
        created = await client.create("parent")
        run = await ended(client, created.id)
        (helper,) = await of(client, created.id)
    assert run.output[0] == {"answer": "WHY"}
    assert helper.output == {"answer": "WHY"}
    (asked,) = await client.list_steps(created.id)
    assert helper.spawned_by is not None
    assert helper.spawned_by.step_id == asked.step_id
    assert (asked.status, asked.result) == ("succeeded", {"answer": "WHY"})
    types = await types_of(client, created.id)
    assert types.count("execution.blocked") == types.count("execution.resumed") <= 1


async def test_several_at_once_and_one_at_a_time(
    kernel_url: str, client: Client, tmp_path: Path
) -> None:
    async def process(given: Any) -> Any:
        if given == "serial":
            await resource("ws", driver=Boxes(tmp_path))
        return await asyncio.gather(*(ask(question) for question in "abcde"))

    async with parent_and_helper(kernel_url, process):
        for given in ("side by side", "serial"):
            run = await ended(client, (await client.create("parent", given)).id)
            assert run.output == [{"answer": question} for question in "ABCDE"]
            types = await types_of(client, run.id)
            assert types.count("execution.blocked") <= 1
    assert set(ran.values()) == {2}


async def test_one_that_fails(kernel_url: str, client: Client) -> None:
    async def process(given: Any) -> Any:
        with pytest.raises(ToolError) as caught:
            await ask("fail")
        return str(caught.value)

    async with parent_and_helper(kernel_url, process):
        created = await client.create("parent")
        run = await ended(client, created.id)
        (helper,) = await of(client, created.id)
    assert helper.failure_reason == "agent_error: ValueError: no luck"
    assert run.output.startswith("ask: ")
    assert helper.failure_reason in run.output
    (asked,) = await client.list_steps(created.id)
    assert asked.error["reason"] == "subagent_failed"
    assert asked.error["execution_id"] == helper.id


async def test_a_cancelled_parent_cancels_it(kernel_url: str, client: Client) -> None:
    async with parent_and_helper(kernel_url, lambda given: ask("wait")):
        created = await client.create("parent")
        await until(lambda: ran["wait"])
        (helper,) = await of(client, created.id)
        await client.cancel(created.id)
        cancelled = await client.wait(helper.id, DEADLINE)
        assert (cancelled.status, cancelled.failure_reason) == (
            "cancelled",
            "parent_agent_terminal",
        )


async def test_one_that_is_cancelled(kernel_url: str, client: Client) -> None:
    async def process(given: Any) -> Any:
        with pytest.raises(ToolError):
            await ask("wait")
        return "went on"

    async with parent_and_helper(kernel_url, process):
        created = await client.create("parent")
        await until(lambda: ran["wait"])
        (helper,) = await of(client, created.id)
        await client.cancel(helper.id)
        assert (await ended(client, created.id)).output == "went on"
        (asked,) = await client.list_steps(created.id)
        assert asked.error["reason"] == "subagent_cancelled"


async def test_while_it_waits_no_process_is_needed(kernel_url: str, client: Client) -> None:
    """The helper waits for a person; the parent's agent is gone, and another takes over."""

    async def process(given: Any) -> Any:
        return await ask("deploy")

    done.clear()
    ran.clear()
    async with serving(kernel_url, "helper", helps):
        await set_policy(kernel_url, "helper", HOLD % "")
        async with serving(kernel_url, "parent", process):
            created = await client.create("parent")
            await until(lambda: ran["deploy"])
            (helper,) = await of(client, created.id)
            (approval,) = await pending(client, helper.id)
            await until_blocked(client, created.id)
        await client.grant_approval(approval.id)
        async with serving(kernel_url, "parent", process):
            assert (await ended(client, created.id)).output == "deployed to prod"
    assert done == {"deploy prod": 1}


async def test_a_held_call_beside_it(kernel_url: str, client: Client) -> None:
    done.clear()

    async def process(given: Any) -> Any:
        return await asyncio.gather(ask("why"), deploy())

    async with parent_and_helper(kernel_url, process):
        await set_policy(kernel_url, "parent", HOLD % "")
        created = await client.create("parent")
        (approval,) = await pending(client, created.id)
        await client.grant_approval(approval.id)
        run = await ended(client, created.id)
        await set_policy(kernel_url, "parent", "default_action: allow\nrules: []\n")
    assert run.output == [{"answer": "WHY"}, "deployed to prod"]
    assert ran["why"] == 1


async def test_a_tool_around_it(kernel_url: str, client: Client) -> None:
    async def process(given: Any) -> Any:
        return await step("outer", lambda: ask("why"))

    async with parent_and_helper(kernel_url, process):
        run = await ended(client, (await client.create("parent")).id)
    assert run.output == {"answer": "WHY"}
    assert ran["why"] == 1


async def test_a_chain_of_them(kernel_url: str, client: Client) -> None:
    """Each waits for the next one down."""

    @tool("down")
    async def down(depth: int) -> Any:
        return await subagent("parent", {"depth": depth - 1})

    async def process(depth: int = 3) -> Any:
        return [depth, *(await down(depth) if depth else [])]

    async with parent_and_helper(kernel_url, process):
        run = await ended(client, (await client.create("parent", {})).id)
    assert run.output == [3, 2, 1, 0]


async def test_in_a_session_of_its_own(kernel_url: str, client: Client) -> None:
    async def process(given: Any) -> Any:
        return await step("s", lambda: subagent("helper", {"question": "a"}, session=given))

    async with parent_and_helper(kernel_url, process):
        created = await client.create("parent", "sub-1", session="main-1")
        assert (await ended(client, created.id)).output == {"answer": "A"}
        (helper,) = await of(client, created.id)
        assert helper.session == "sub-1"
        # In its parent's it would wait for the parent, which waits for it.
        failed = await client.create("parent", "main-2", session="main-2")
        reason = (await client.wait(failed.id, DEADLINE)).failure_reason
        assert reason.startswith("tool_error: s: [validation_error] ")


async def test_a_kernel_that_is_killed_while_they_work(tmp_path: Path) -> None:
    go = asyncio.Event()
    begun: list[str] = []

    async def helper(question: str) -> str:
        begun.append(question)
        await go.wait()
        return question.upper()

    async def process(given: Any) -> Any:
        return await asyncio.gather(ask("a"), ask("b"))

    command = [BIN, "dev", "--db", str(tmp_path / "kernel.db"), "--listen-addr"]
    kernel = Process([*command, "127.0.0.1:0"], tmp_path)
    try:
        url = kernel.url()
        async with (
            serving(url, "helper", helper),
            serving(url, "parent", process),
            Client(url) as client,
        ):
            created = await client.create("parent")
            await until(lambda: len(begun) == 2)
            kernel.end(signal.SIGKILL)
            go.set()
            kernel = Process([*command, url.removeprefix("http://")], tmp_path)
            last = await client.wait(created.id, DEADLINE)
            assert last.output == ["A", "B"], last.failure_reason
            assert set(begun) == {"a", "b"}  # again, if its delivery was not acked yet
    finally:
        kernel.end(signal.SIGTERM)
