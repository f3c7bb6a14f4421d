"""Many clients in one session: exactly one execution runs at any time, and none is forgotten."""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from conftest import NewAgent, NewRun
from harness import BearerClient, FakeAgent
from harness.sessions import ENDED, end, of_session


def check_parents(client: BearerClient, found: list[dict[str, Any]]) -> None:
    """Against the times in the logs. A group's time is taken as it begins, so what was decided on
    at the end of one may bear a later time than the start that saw it."""
    started_at, completed_at = {}, {}
    for execution in found:
        for event in client.events(execution["id"]):
            if event["type"] == "execution.started":
                started_at[execution["id"]] = event["occurred_at"]
            elif event["type"] == "execution.completed":
                completed_at[execution["id"]] = event["occurred_at"]
    for execution in found:
        parent = execution.get("parent_execution_id")
        at = started_at.get(execution["id"])
        if at is None:
            assert parent is None
            continue
        seen = {
            other["id"]
            for other in found
            if other["agent_id"] == execution["agent_id"]
            and completed_at.get(other["id"], "9") <= at
        }
        if parent is not None:
            assert parent in completed_at
            seen.add(parent)
        assert parent == max(seen, default=None), execution


class TestAtOnce:
    def test_concurrent_creates_start_one(
        self, client: BearerClient, agent: FakeAgent, session: str
    ) -> None:
        with ThreadPoolExecutor(16) as pool:
            made = list(pool.map(lambda _: client.create(agent.id, session=session), range(32)))
        assert sorted(e["status"] for e in made) == ["pending"] * 31 + ["running"]
        (running,) = (e["id"] for e in made if e["status"] == "running")
        waiting = sorted(e["id"] for e in made if e["id"] != running)
        done: list[str] = []
        for identity in [running, *waiting]:
            run = agent.take_attempt(identity)
            found = [e["status"] for e in of_session(client, session)]
            assert (found.count("running"), found.count("pending")) == (1, 31 - len(done))
            expected = max(done) if done else None
            assert client.execution(identity).get("parent_execution_id") == expected
            run.complete(len(done)).expect(204)
            done.append(identity)
        assert len(agent.deliveries) == 32

    def test_creates_of_several_agents(
        self, client: BearerClient, new_agent: NewAgent, session: str
    ) -> None:
        agents = [new_agent() for _ in range(4)]
        with ThreadPoolExecutor(12) as pool:
            made = list(
                pool.map(lambda n: client.create(agents[n % 4].id, session=session), range(24))
            )
        assert sorted(e["status"] for e in made) == ["pending"] * 23 + ["running"]

    def test_many_sessions_at_once(
        self, client: BearerClient, agent: FakeAgent, session: str
    ) -> None:
        names = [f"{session}-{n}" for n in range(8)] * 4
        with ThreadPoolExecutor(16) as pool:
            made = list(pool.map(lambda name: client.create(agent.id, session=name), names))
        for name in set(names):
            found = sorted(e["status"] for e in made if e["session"] == name)
            assert found == ["pending"] * 3 + ["running"]

    def test_created_as_the_last_one_ends(
        self, client: BearerClient, new_run: NewRun, session: str
    ) -> None:
        """Whichever comes first: the new one starts, and is not left waiting for nobody."""
        for n in range(20):
            run = new_run(session=f"{session}-{n}")
            with ThreadPoolExecutor(2) as pool:
                ending = pool.submit(end, client, run, ("complete", "fail", "cancel")[n % 3])
                made = pool.submit(client.create, run.agent.id, session=f"{session}-{n}").result()
                ending.result()
            found = client.execution(made["id"])
            assert found["status"] == "running", (made, found)
            assert found.get("parent_execution_id") == (None if n % 3 else run.id)
            client.cancel(made["id"])

    def test_created_ended_and_cancelled_all_the_time(
        self, client: BearerClient, new_agent: NewAgent, session: str
    ) -> None:
        """No two ever run at once, all have their turn, and each continues the right one."""
        agents = [new_agent() for _ in range(2)]
        plan = list(itertools.product(agents, ("complete", "fail", "cancel")))
        over = threading.Event()

        def work(agent: FakeAgent, how: str) -> list[str]:
            ids = []
            for _ in range(10):
                ids.append(client.create(agent.id, session=session)["id"])
                if how == "cancel":
                    client.cancel(ids[-1])
                else:
                    end(client, agent.take_attempt(ids[-1], 60), how)
            return ids

        def look() -> int:
            looks = 0
            while not over.is_set():
                running = of_session(client, session, "&status=running")
                assert len(running) <= 1, running
                looks += 1
            return looks

        with ThreadPoolExecutor(len(plan) + 1) as pool:
            looking = pool.submit(look)
            made = [i for ids in pool.map(lambda p: work(*p), plan) for i in ids]
            over.set()
            assert looking.result() > 0
        found = of_session(client, session)
        assert {e["id"] for e in found} == set(made)
        assert {e["status"] for e in found} <= ENDED
        check_parents(client, found)
