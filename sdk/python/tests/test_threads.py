"""Sync functions, other threads, other event loops."""

import asyncio
import functools
import threading
import time
from typing import Any

import pytest
from conftest import Bench
from scripted_kernel import DEADLINE

from rebuno import ToolError, execution, previous, step, tool


@tool
def double(n: int) -> int:
    assert execution().step_id
    return 2 * n


async def test_a_sync_handler_and_a_sync_tool(bench: Bench) -> None:
    threads: list[int] = []

    def body() -> str:
        threads.append(threading.get_ident())
        return execution().id

    async def process(input: Any) -> Any:
        threads.append(threading.get_ident())
        return [await double(3), await step("s", body)]

    assert await bench.output(process) == [6, "e1"]
    assert len(set(threads)) == 2


async def test_an_awaitable_that_a_sync_function_returns(bench: Bench) -> None:
    def process(input: Any) -> Any:
        return double(4)

    assert await bench.output(process) == 8
    assert await bench.output(lambda given: step("s", lambda: double(5))) == 10


async def test_a_sync_handler_runs_tools_on_a_loop_of_its_own(bench: Bench) -> None:
    loops: set[int] = set()

    async def body() -> int:
        loops.add(id(asyncio.get_running_loop()))
        await asyncio.sleep(0)
        return 1

    async def calls() -> Any:
        loops.add(id(asyncio.get_running_loop()))
        results = await asyncio.gather(step("a", body), double(2), previous())
        with pytest.raises(ToolError):
            await step("bad", lambda: 1 / 0)
        return results

    def process(input: Any) -> Any:
        return asyncio.run(calls())

    bench.kernel.previous = "before"
    assert await bench.output(process) == [1, 4, "before"]
    assert id(asyncio.get_running_loop()) not in loops
    assert len(loops) == 1  # bodies run where they were called


async def test_a_call_from_a_plain_thread(bench: Bench) -> None:
    async def process(input: Any) -> Any:
        work = functools.partial(asyncio.run, double(5))
        return await asyncio.to_thread(work)

    assert await bench.output(process) == 10


async def test_a_timeout_on_another_loop_fails_the_step(bench: Bench) -> None:
    async def calls() -> str:
        try:
            async with asyncio.timeout(None) as limit:

                async def body() -> None:
                    limit.reschedule(0)  # its time is up, once it has begun
                    await asyncio.Event().wait()

                await step("s", body)
        except TimeoutError:
            return "timed out"
        return "not reached"

    assert await bench.output(lambda given: asyncio.run(calls())) == "timed out"
    assert bench.kernel.named("fail")[0].body == {"error": {"message": "cancelled"}}


async def test_closing_cancels_what_runs_on_another_loop(bench: Bench) -> None:
    started = asyncio.Event()
    loop = asyncio.get_running_loop()
    cancelled: asyncio.Future[None] = loop.create_future()

    async def body() -> None:
        loop.call_soon_threadsafe(started.set)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            loop.call_soon_threadsafe(cancelled.set_result, None)
            raise

    bench.kernel.add()
    agent = bench.agent(lambda given: asyncio.run(step("s", body)), shutdown_grace=0)
    await bench.deliver(agent)
    await started.wait()
    await agent.close()
    await asyncio.wait_for(cancelled, DEADLINE)
    assert bench.kernel.names() == ["get", "steps", "release"]


async def test_sync_bodies_do_not_wait_for_each_other(bench: Bench) -> None:
    count = 60  # more than a default pool of threads has
    barrier = threading.Barrier(count)

    def body(n: int) -> int:
        barrier.wait(DEADLINE)
        return n

    async def process(input: Any) -> Any:
        steps = (step("s", body, {"n": n}) for n in range(count))
        return sum(await asyncio.gather(*steps))

    assert await bench.output(process) == sum(range(count))


async def test_the_loop_is_not_blocked_by_a_sync_body(bench: Bench) -> None:
    ticked = threading.Event()

    def body() -> bool:
        return ticked.wait(DEADLINE)

    async def process(input: Any) -> Any:
        task = asyncio.create_task(step("s", body))
        started = time.monotonic()
        await asyncio.sleep(0)
        ticked.set()
        assert await task
        return time.monotonic() - started < DEADLINE

    assert await bench.output(process)


async def test_a_stop_iteration_in_a_thread_is_an_error_like_others(bench: Bench) -> None:
    empty: list[int] = []
    reason = await bench.failure(lambda given: step("s", lambda: next(iter(empty))))
    assert reason.startswith("tool_error: s: ")
    reason = await bench.failure(lambda given: next(iter(empty)))
    assert reason.startswith("agent_error: ")
