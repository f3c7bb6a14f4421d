"""Calls that run beside one that waits; against the real kernel."""

import asyncio
import signal
import threading
from pathlib import Path
from typing import Any

import httpx2
import pytest
from governed import (
    HOLD,
    LIMIT,
    deploy,
    done,
    ended,
    event_types,
    governed,
    look,
    pending,
)
from real_kernel import BIN, DEADLINE, Process, register

from rebuno import Blocked, Client, execution, step, tool

pytestmark = pytest.mark.skipif(not BIN, reason="REBUNO_BIN names no kernel")


@pytest.fixture(autouse=True)
def no_effects() -> None:
    done.clear()


class Slow:
    """A tool that runs until it is let go, never twice."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.started = asyncio.Event()
        self.cancelled = False
        self.call = tool("slow", idempotency="at_most_once")(self.run)

    async def run(self) -> str:
        done["slow"] += 1
        self.started.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        return "slow done"


async def test_several_held_calls_of_one_turn(kernel_url: str, client: Client) -> None:
    async def process(given: Any) -> Any:
        calls = (deploy("a"), deploy("b"), look(), deploy("c"))
        return [*await asyncio.gather(*calls), execution().dispatch_attempt]

    async with governed(kernel_url, "several", HOLD % "", process):
        created = await client.create("several")
        approvals = {one.args["to"]: one.id for one in await pending(client, created.id, 3)}
        assert sorted(approvals) == ["a", "b", "c"]  # asked for in one pass
        await client.grant_approval(approvals["c"])
        await client.deny_approval(approvals["a"], rationale="not a")
        assert (await client.get(created.id)).status == "blocked"
        await client.grant_approval(approvals["b"])
        run = await ended(client, created.id)
        assert run.output[:2] == ["deploy not allowed. reason: not a", "deployed to b"]
        assert run.output[3] == "deployed to c"
        assert (done["deploy b"], done["deploy c"], done["deploy a"]) == (1, 1, 0)
        assert done["look"] == 1
        acks = (await event_types(client, created.id))["dispatch.acked"]
        assert acks == 2  # one delivery for the asking, one for the answers


@pytest.mark.parametrize("decide_first", [False, True], ids=["it ends first", "granted first"])
@pytest.mark.parametrize("how", ["gather", "task group", "cancelling framework"])
async def test_a_call_beside_a_held_one_is_not_lost(
    kernel_url: str, client: Client, how: str, decide_first: bool
) -> None:
    """It runs to its end, once, and is replayed: whatever the framework does about the stop."""
    slow = Slow()

    async def held() -> Any:
        await slow.started.wait()
        return await deploy()

    async def process(given: Any) -> Any:
        if how == "gather":
            return await asyncio.gather(slow.call(), held())
        if how == "task group":
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(slow.call()), group.create_task(held())]
            return [task.result() for task in tasks]
        beside = asyncio.create_task(slow.call())
        try:
            other = await held()
        except BaseException:
            beside.cancel()  # and does not wait for it
            raise
        return [await beside, other]

    agent_id = f"beside-{how.replace(' ', '-')}"
    async with governed(kernel_url, agent_id, HOLD % "", process) as agent:
        created = await client.create(agent_id)
        (approval,) = await pending(client, created.id)
        if decide_first:
            await client.grant_approval(approval.id)
            assert (await client.get(created.id)).status == "running"
        slow.go.set()
        if not decide_first:
            await asyncio.wait_for(agent.join(), DEADLINE)
            (recorded,) = [
                one for one in await client.list_steps(created.id) if one.target == "slow"
            ]
            assert (recorded.status, recorded.result) == ("succeeded", "slow done")
            await client.grant_approval(approval.id)
        run = await ended(client, created.id)
        assert run.output == ["slow done", "deployed to prod"]
        assert done == {"slow": 1, "deploy prod": 1}
        assert not slow.cancelled


async def test_a_sync_handler_with_a_loop_of_its_own(kernel_url: str, client: Client) -> None:
    """Such a loop ends with the first exception and cancels what is left on it: not before."""
    go = threading.Event()
    cancelled: list[str] = []

    @tool("nap", idempotency="at_most_once")
    async def nap() -> str:
        done["nap"] += 1
        try:
            while not go.is_set():  # noqa: ASYNC110 (set from another loop)
                await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            cancelled.append(execution().step_id)
            raise
        return "rested"

    async def main() -> Any:
        return await asyncio.gather(nap(), deploy())

    async with governed(kernel_url, "own-loop", HOLD % "", lambda given: asyncio.run(main())):
        created = await client.create("own-loop")
        (approval,) = await pending(client, created.id)
        await client.grant_approval(approval.id)
        go.set()
        assert (await ended(client, created.id)).output == ["rested", "deployed to prod"]
        assert done == {"nap": 1, "deploy prod": 1}
        assert cancelled == []


@pytest.mark.parametrize("granted_first", [False, True])
async def test_a_held_call_inside_a_tool(
    kernel_url: str, client: Client, granted_first: bool
) -> None:
    """The tool stays executing and is run again after the grant, at once: the lease is long."""
    slow = Slow()

    @tool("outer")
    async def outer() -> Any:
        done["outer"] += 1
        await slow.started.wait()
        return ["outer", await deploy()]

    async def process(given: Any) -> Any:
        return await asyncio.gather(slow.call(), outer())

    async with governed(kernel_url, "nested", HOLD % "", process) as agent:
        await lengthen_lease(kernel_url, "nested")
        created = await client.create("nested")
        (approval,) = await pending(client, created.id)
        if granted_first:
            await client.grant_approval(approval.id)
        slow.go.set()
        if not granted_first:
            await asyncio.wait_for(agent.join(), DEADLINE)
            await client.grant_approval(approval.id)
        run = await ended(client, created.id)
        assert run.output == ["slow done", ["outer", "deployed to prod"]]
        assert done == {"slow": 1, "outer": 2, "deploy prod": 1}


async def test_closing_beside_a_held_call(kernel_url: str, client: Client) -> None:
    """What the closing cuts off is run again by the next agent, at once: the lease is long."""
    slow = Slow()

    async def held() -> Any:
        await slow.started.wait()
        return await deploy()

    async def process(given: Any) -> Any:
        return await asyncio.gather(step("slow", slow.run), held())

    async with governed(kernel_url, "closing", HOLD % "", process, shutdown_grace=0):
        await lengthen_lease(kernel_url, "closing")
        created = await client.create("closing")
        (approval,) = await pending(client, created.id)
        await client.grant_approval(approval.id)  # the next delivery waits for the slow call
        assert (await client.get(created.id)).status == "running"
    assert slow.cancelled
    slow = Slow()
    slow.go.set()
    async with governed(kernel_url, "closing", HOLD % "", process):
        assert (await ended(client, created.id)).output == ["slow done", "deployed to prod"]
        assert done == {"slow": 2, "deploy prod": 1}


async def lengthen_lease(kernel_url: str, agent_id: str) -> None:
    async with httpx2.AsyncClient() as http:
        shown = (await http.get(f"{kernel_url}/v0/agents/{agent_id}")).json()
    url = shown["webhook_url"].removesuffix("/webhook")
    await register(kernel_url, agent_id, url, lease_timeout_seconds=600)


async def test_a_call_beside_a_parked_one_is_not_lost(kernel_url: str, client: Client) -> None:
    slow = Slow()
    parked = asyncio.Event()

    async def twice() -> Any:
        await slow.started.wait()
        try:
            return [await look(), await look()]
        except Blocked:
            parked.set()
            raise

    async def process(given: Any) -> Any:
        return await asyncio.gather(slow.call(), twice())

    async with governed(
        kernel_url, "beside-parked", LIMIT % (1, "100ms", ", max_wait: 1m"), process
    ):
        created = await client.create("beside-parked")
        await asyncio.wait_for(parked.wait(), DEADLINE)
        slow.go.set()
        assert (await ended(client, created.id)).output == ["slow done", ["looked", "looked"]]
        assert done == {"slow": 1, "look": 2}
        assert not slow.cancelled


async def test_a_call_beside_a_held_one_outlives_its_kernel(tmp_path: Path) -> None:
    """Killed and started again while one call waits for a person and another runs."""
    slow = Slow()

    async def held() -> Any:
        await slow.started.wait()
        return await deploy()

    async def process(given: Any) -> Any:
        return await asyncio.gather(slow.call(), held())

    command = [BIN, "dev", "--db", str(tmp_path / "kernel.db"), "--listen-addr"]
    kernel = Process([*command, "127.0.0.1:0"], tmp_path)
    try:
        url = kernel.url()
        async with governed(url, "patient", HOLD % "", process), Client(url) as client:
            created = await client.create("patient")
            (approval,) = await pending(client, created.id)
            kernel.end(signal.SIGKILL)
            kernel = Process([*command, url.removeprefix("http://")], tmp_path)
            kernel.url()
            assert [one.id for one in await client.list_approvals()] == [approval.id]
            await client.grant_approval(approval.id)
            slow.go.set()
            assert (await ended(client, created.id)).output == ["slow done", "deployed to prod"]
            assert done == {"slow": 1, "deploy prod": 1}
    finally:
        kernel.end(signal.SIGTERM)
