"""The published SDK, agent and client, against this kernel."""

import asyncio
import os
import pathlib
import socket
import subprocess
import sys
import time
import urllib.request

import pytest
import rebuno
from rebuno import Client

ROOT = pathlib.Path(__file__).resolve().parents[2]
KERNEL = os.environ.get("REBUNO_BIN", str(ROOT / "build" / "rebuno"))
HERE = pathlib.Path(__file__).resolve().parent


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def until(condition, seconds=30.0):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.05)
    raise AssertionError("the condition did not come true in time")


class World:
    def __init__(self, folder: pathlib.Path) -> None:
        self.folder, self.port, self.agent_port = folder, free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.effects = folder / "effects"
        self.effects.touch()
        (folder / "rebuno.yaml").write_text(
            f"agents:\n  - id: pub\n    webhook_url: http://127.0.0.1:{self.agent_port}/webhook\n    secret: s3cret\n"
        )
        self.env = dict(
            os.environ,
            REBUNO_URL=self.url,
            REBUNO_AGENT_SECRET="s3cret",
            EFFECTS=str(self.effects),
            REBUNO_DISPATCH_LEASE_TIMEOUT="2s",
        )
        self.processes: list[subprocess.Popen] = []
        self.kernel = self.spawn(
            KERNEL, "dev", "--config", "rebuno.yaml", "--listen-addr", f"127.0.0.1:{self.port}"
        )
        until(self.ready)
        self.start_agent()

    def spawn(self, *argv: str) -> subprocess.Popen:
        log = open(self.folder / "log", "ab")
        process = subprocess.Popen(
            argv, cwd=self.folder, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        log.close()
        self.processes.append(process)
        return process

    def start_agent(self) -> None:
        self.agent = self.spawn(sys.executable, str(HERE / "agent.py"), str(self.agent_port))
        until(lambda: socket.socket().connect_ex(("127.0.0.1", self.agent_port)) == 0)

    def ready(self) -> bool:
        try:
            with urllib.request.urlopen(self.url + "/v0/ready") as answer:
                return answer.status == 200
        except OSError:
            return False

    def lines(self) -> list[str]:
        return self.effects.read_text().splitlines()

    def close(self) -> None:
        for p in self.processes:
            if p.poll() is None:
                p.terminate()
        for p in self.processes:
            try:
                p.wait(15)
            except subprocess.TimeoutExpired:
                p.kill()
                p.wait()


@pytest.fixture
def world(tmp_path):
    w = World(tmp_path)
    yield w
    w.close()


async def ended(client: Client, execution_id: str) -> rebuno.types.Execution:
    deadline = time.monotonic() + 40
    while time.monotonic() < deadline:
        run = await client.get(execution_id)
        if run.status in ("completed", "failed", "cancelled"):
            return run
        await asyncio.sleep(0.05)
    raise AssertionError("the execution did not end in time")


def check_output(output: dict) -> None:
    assert output["sums"] == [3, 3, 5]
    assert output["broken"] == "ToolError: breaks: no luck"
    assert output["local"] == 42
    assert output["greeting"] == "hello Ada"
    assert output["previous"] is None


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
            world.kernel = world.spawn(
                KERNEL, "dev", "--config", "rebuno.yaml", "--listen-addr", f"127.0.0.1:{world.port}"
            )
            until(world.ready)
            run = await client.get(made.id)
            assert run.status == "running"
            await asyncio.sleep(0)
            await client.cancel(made.id)

    asyncio.run(main())
    assert len(world.lines()) == 5
