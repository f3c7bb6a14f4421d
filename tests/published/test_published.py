"""The published SDK, agent and client, against this kernel."""

import asyncio

import pytest
import rebuno
from rebuno import Client
from world import World, ended, until


@pytest.fixture
def world(tmp_path):
    w = World(tmp_path)
    yield w
    w.close()


def check_output(output: dict) -> None:
    assert output["sums"] == [3, 3, 5]
    assert output["broken"] == "ToolError: breaks: no luck"
    assert output["local"] == 42
    assert output["greeting"] == "hello Ada"
    assert output["previous"] is None


def test_turns_of_a_session(world):
    async def main():
        async with Client(world.url) as client:
            made = [
                await client.create("pub", {"mode": "plain"}, session="ada-7") for _ in range(3)
            ]
            assert made[0].status == "running" and made[2].status == "pending"
            runs = [await ended(client, one.id) for one in made]
            assert [run.status for run in runs] == ["completed"] * 3
            assert [run.output["previous"] for run in runs] == [None, {"turn": 1}, {"turn": 1}]
            assert [run.parent_execution_id for run in runs] == [None, made[0].id, made[1].id]
            assert {run.session for run in runs} == {"ada-7"}
            branch = await client.create(
                "pub", {"mode": "plain"}, session="ada-8", parent_execution_id=made[0].id
            )
            assert (await ended(client, branch.id)).output["previous"] == {"turn": 1}
            with pytest.raises(rebuno.ConflictError):
                await client.create("pub", session="ada-8", parent_execution_id=made[0].id)

    asyncio.run(main())


def test_a_whole_run_and_every_client_call(world):
    async def main():
        async with Client(world.url) as client:
            made = await client.create(
                "pub", {"mode": "plain"}, idempotency_key="k1", on_behalf_of="Ada"
            )
            again = await client.create("pub", {"mode": "other"}, idempotency_key="k1")
            assert again.id == made.id
            run = await ended(client, made.id)
            assert (run.status, run.on_behalf_of, run.created_by) == (
                "completed",
                "Ada",
                "anonymous",
            )
            check_output(run.output)
            assert run.output["paid"] == {"paid": 5, "note": "naïve ☃ \U0001f600"}
            events = await client.events(made.id, limit=1000)
            assert [e.event_seq for e in events] == list(range(1, len(events) + 1))
            assert events[0].type == "execution.created"
            assert (
                events[-1].type == "execution.completed"
                and events[-1].payload["output"] == run.output
            )
            assert await client.events(made.id, after_seq=len(events)) == []
            steps = await client.list_steps(made.id)
            assert sorted(s.target for s in steps) == [
                "add",
                "add",
                "add",
                "breaks",
                "greet",
                "local",
                "pay",
            ]
            assert sorted(s.occurrence for s in steps if s.args == {"a": 1, "b": 2}) == [0, 1]
            one = await client.get_step(made.id, steps[0].step_id)
            assert one == steps[0]
            assert len(await client.list_steps(made.id, status="failed")) == 1
            with pytest.raises(rebuno.ConflictError):
                await client.cancel(made.id)
            with pytest.raises(rebuno.NotFoundError):
                await client.get("018f3a2b-4c5d-7e6f-8a9b-0c1d2e3f4a5b")
            with pytest.raises(rebuno.ValidationError):
                await client.get("no-id")

    asyncio.run(main())
    assert sorted(world.lines()) == ["add 1 2", "add 1 2", "add 2 3", "pay 5", "wrapped"]


def test_an_agent_that_dies_goes_on_without_doing_it_twice(world):
    async def main():
        async with Client(world.url) as client:
            made = await client.create("pub", {"mode": "die-once"})
            until(lambda: world.agent.poll() is not None)
            world.start_agent()
            run = await ended(client, made.id)
            assert run.status == "completed" and run.output["attempt"] >= 2
            check_output(run.output)

    asyncio.run(main())
    assert sorted(world.lines()) == ["add 1 2", "add 1 2", "add 2 3", "pay 5", "wrapped"]


def test_an_orphaned_at_most_once_step_is_not_run_again(world):
    async def main():
        async with Client(world.url) as client:
            made = await client.create("pub", {"mode": "die-paying"})
            until(lambda: world.agent.poll() is not None)
            world.start_agent()
            run = await ended(client, made.id)
            assert run.status == "completed"
            assert run.output["paid"].startswith("ToolError: pay: ")

    asyncio.run(main())
    assert world.lines().count("pay 5") == 1


def test_cancel_stops_a_running_handler(world):
    async def main():
        async with Client(world.url) as client:
            made = await client.create("pub", {"mode": "slow"})
            until(lambda: "wrapped" in world.lines())
            await client.cancel(made.id)
            assert (await ended(client, made.id)).status == "cancelled"

    asyncio.run(main())


def test_a_kernel_that_is_killed_does_not_disturb_the_agent(world):
    async def main():
        async with Client(world.url) as client:
            made = await client.create("pub", {"mode": "slow"})
            until(lambda: "wrapped" in world.lines())
            world.kernel.kill()
            world.kernel.wait()
            world.start_kernel()
            run = await client.get(made.id)
            assert run.status == "running"
            await asyncio.sleep(0)
            await client.cancel(made.id)

    asyncio.run(main())
    assert len(world.lines()) == 5
