"""The order of calls, by chance: trees of calls that run, wait, fail and are cancelled."""

import asyncio
import random
from contextvars import Context
from typing import Any

import pytest
from scripted_kernel import DEADLINE

from rebuno._turns import Turn, Turns


class World:
    """Runs calls under Turns and looks at what may run beside what.

    Every call is in one scope: that of the call around it. In a scope no two calls work at once
    when they are to run one at a time, but for those that wait (`pause`).
    """

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.changes = 0
        self.turns = Turns(self._changed)
        self.turns.serial = self.chance.random() < 0.3
        self.working: dict[Turn | None, set[Turn]] = {}
        self.wrong: list[str] = []
        self.ended = 0
        self.started = 0
        self.tasks: list[asyncio.Task[None]] = []

    def _changed(self) -> None:
        self.changes += 1

    def begin(self, turn: Turn) -> None:
        beside = self.working.setdefault(turn.parent, set())
        if beside and self.turns.serial:
            self.wrong.append("works beside another")
        beside.add(turn)
        if self.turns.all_wait():
            self.wrong.append("works, and counts as waiting")

    def end(self, turn: Turn) -> None:
        self.working[turn.parent].discard(turn)

    async def some_turns(self) -> None:
        for _ in range(self.chance.randrange(4)):
            await asyncio.sleep(0)

    async def call(self, depth: int) -> None:
        """One call: works, perhaps makes calls of its own, perhaps waits, perhaps fails."""
        self.started += 1
        try:
            async with self.turns.take() as turn:
                self.begin(turn)
                try:
                    await self.work(turn, depth)
                finally:
                    self.end(turn)
        finally:
            self.ended += 1

    async def work(self, turn: Turn, depth: int) -> None:
        await self.some_turns()
        if depth and self.chance.random() < 0.5:
            await self.several(depth - 1)
        if self.chance.random() < 0.02:
            self.turns.serial = True
        if self.chance.random() < 0.3:
            self.end(turn)
            self.turns.pause(turn)
            await self.some_turns()
            await self.turns.hold(turn)
            self.begin(turn)
        await self.some_turns()
        if self.chance.random() < 0.2:
            raise ValueError("no luck")

    async def several(self, depth: int) -> None:
        tasks = [asyncio.create_task(self.call(depth)) for _ in range(self.chance.randrange(1, 6))]
        self.tasks += tasks
        await self.some_turns()
        for task in tasks:
            if self.chance.random() < 0.2:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("seed", range(60))
async def test_by_chance(seed: int) -> None:
    world = World(seed)
    async with asyncio.timeout(DEADLINE):
        for _ in range(5):
            await world.several(depth=3)
        await asyncio.gather(*world.tasks, return_exceptions=True)  # what was left behind, too
    assert world.wrong == []
    assert world.ended == world.started
    assert world.turns.all_wait()  # nothing is in flight
    assert not any(world.working.values())
    async with world.turns.take():  # and nothing is in the way
        assert not world.turns.all_wait()


async def test_a_paused_call_counts_as_waiting_but_what_it_calls_does_not() -> None:
    turns = Turns(lambda: None)
    seen: list[bool] = []

    async def inner() -> None:
        async with turns.take():
            seen.append(turns.all_wait())

    async with turns.take() as turn:
        seen.append(turns.all_wait())
        turns.pause(turn)
        seen.append(turns.all_wait())
        await asyncio.create_task(inner())
        seen.append(turns.all_wait())
        await turns.hold(turn)
        seen.append(turns.all_wait())
    assert seen == [False, True, False, True, False]


async def test_who_was_paused_comes_before_those_that_wait() -> None:
    turns = Turns(lambda: None)
    turns.serial = True
    order: list[str] = []
    paused, go = asyncio.Event(), asyncio.Event()

    async def first() -> None:
        async with turns.take() as turn:
            turns.pause(turn)
            paused.set()
            await go.wait()
            order.append("asks")
            await turns.hold(turn)
            order.append("first")

    async def second() -> None:
        async with turns.take():
            go.set()
            for _ in range(5):
                await asyncio.sleep(0)
            order.append("second")

    async def third() -> None:
        async with turns.take():
            order.append("third")

    one = asyncio.create_task(first())
    await paused.wait()
    await asyncio.gather(one, second(), third())
    assert order == ["asks", "second", "first", "third"]


async def test_a_pause_of_what_waits_its_turn_changes_nothing() -> None:
    """A body may wait for its subagent twice at once; the turn is the same."""
    turns = Turns(lambda: None)
    turns.serial = True
    paused, go = asyncio.Event(), asyncio.Event()

    async def first() -> None:
        async with turns.take() as turn:
            turns.pause(turn)
            await paused.wait()
            holding = [asyncio.create_task(turns.hold(turn)) for _ in range(2)]
            await asyncio.sleep(0)
            turns.pause(turn)
            go.set()
            await asyncio.gather(*holding)

    async def second() -> None:
        async with turns.take():
            paused.set()
            await go.wait()

    async with asyncio.timeout(DEADLINE):
        await asyncio.gather(first(), second())
    assert turns.all_wait()


def test_a_loop_that_is_gone_is_passed_over() -> None:
    turns = Turns(lambda: None)
    turns.serial = True
    order: list[Any] = []
    abandoned = asyncio.new_event_loop()

    async def takes(name: str) -> None:
        async with turns.take():
            order.append(name)

    async def main() -> None:
        async with turns.take():
            left = abandoned.create_task(takes("left behind"), context=Context())
            await asyncio.to_thread(abandoned.run_until_complete, asyncio.sleep(0))
            await asyncio.to_thread(abandoned.close)
            last = asyncio.create_task(takes("last"), context=Context())
            await asyncio.sleep(0)
            del left
        async with asyncio.timeout(DEADLINE):
            await last

    asyncio.run(main())
    assert order == ["last"]
