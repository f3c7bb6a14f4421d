"""Retention: ended runs go, with all that is theirs, and what others need of them stays."""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from harness import Attempt, BearerClient, FakeAgent, Kernel, eventually
from harness.forks import ask_fork
from harness.worker import Worker

NewKernel = Callable[..., Kernel]
NewAgent = Callable[..., FakeAgent]
STEPS = 5
LONG_S = 30.0


@pytest.fixture
def forgetful(new_kernel: NewKernel) -> Kernel:
    """A kernel that keeps ended runs for two seconds."""
    return new_kernel(env={"REBUNO_RETENTION": "2s", "REBUNO_CLEANUP_INTERVAL": "1s"})


def status(client: BearerClient, execution_id: str) -> str | None:
    """None: there is no such run."""
    answer = client.get(f"/v0/executions/{execution_id}")
    return None if answer.status == 404 else str(answer.expect(200).json["status"])


def completed(client: BearerClient, agent: FakeAgent, **fields: Any) -> str:
    execution_id = str(client.create(agent.id, **fields)["id"])
    eventually(lambda: status(client, execution_id) == "completed")
    return execution_id


def gone(client: BearerClient, execution_id: str) -> None:
    eventually(lambda: status(client, execution_id) is None, LONG_S)


def test_what_ended_goes(forgetful: Kernel, new_agent: NewAgent) -> None:
    agent, idle = new_agent(forgetful), new_agent(forgetful)
    client = forgetful.client()
    Worker(agent, steps=STEPS, padding=3000)
    live = client.create(idle.id)["id"]
    old = completed(client, agent, idempotency_key="once")
    gone(client, old)
    for rest in ("/events", "/steps", "/previous", "/cancel"):
        target = f"/v0/executions/{old}{rest}"
        answer = client.post(target) if rest == "/cancel" else client.get(target)
        answer.expect(404, "not_found")
    ask_fork(client, old, 1).expect(404, "not_found")
    assert status(client, live) == "running"
    again = client.create(agent.id, idempotency_key="once")["id"]
    assert again != old
    eventually(lambda: "retention.removed" in forgetful.log_text())


def test_a_session_stays_while_one_of_it_lives(
    forgetful: Kernel, new_agent: NewAgent, session: str
) -> None:
    agent, idle = new_agent(forgetful), new_agent(forgetful)
    client = forgetful.client()
    Worker(agent, steps=STEPS)
    first = completed(client, agent, session=session)
    live = client.create(idle.id, session=session)["id"]
    gone(client, completed(client, agent))  # younger, and in no session
    assert status(client, first) == "completed"
    client.cancel(live)
    gone(client, first)
    gone(client, live)
    assert client.create(idle.id, session=session)["status"] == "running"


def test_a_fork_outlives_its_source(forgetful: Kernel, new_agent: NewAgent) -> None:
    """What it has copied is its own, however large."""
    idle, client = new_agent(forgetful), forgetful.client()
    source = client.create(idle.id)["id"]
    run = idle.take_attempt(source)
    large = "x" * 300_000
    for number in range(STEPS):
        run.record("work", number, [number, large])
    fork = client.fork(source, len(client.events(source)))["id"]
    steps = client.steps(fork)
    assert [step["result"] for step in steps] == [[n, large] for n in range(STEPS)]
    run.complete("done").expect(204)
    gone(client, source)
    assert client.steps(fork) == steps
    later = idle.take_attempt(fork)
    for number in range(STEPS):
        assert later.replay("work", number)["result"] == [number, large]
    later.complete("done too").expect(204)
    gone(client, fork)


CountRows = Callable[[Kernel, str], int]


@pytest.fixture
def count_rows(request: pytest.FixtureRequest, database: Any) -> CountRows:
    """Rows of a table, by another way than the kernel's."""
    cluster = request.getfixturevalue("postgres") if database.kind == "postgres" else None

    def count(kernel: Kernel, table: str) -> int:
        assert kernel.database_url is not None
        path = urlsplit(kernel.database_url).path
        sql = f"SELECT count(*) FROM {table}"
        if cluster is not None:
            return int(cluster.psql(sql, path.removeprefix("/")))
        db = sqlite3.connect(Path(path), timeout=10)
        try:
            return int(db.execute(sql).fetchone()[0])
        finally:
            db.close()

    return count


def talk(run: Attempt, turns: int, done: int = 0) -> None:
    """So many turns, of which the first are recorded already."""
    messages: list[dict[str, str]] = []
    for number in range(turns):
        messages.append({"role": "user", "content": f"{number} " * 900})
        if number >= done:
            run.record("chat", {"messages": messages}, {"content": "x" * 3000}, kind="llm_call")


def test_a_family_leaves_nothing(
    forgetful: Kernel, new_agent: NewAgent, session: str, count_rows: CountRows
) -> None:
    """Turns of a session, forks of them and a branch share what was said, until the last goes."""
    agent, client = new_agent(forgetful), forgetful.client()
    runs = []
    for turns in (4, 5):
        run = agent.take_attempt(client.create(agent.id, session=session)["id"])
        talk(run, turns)
        forked = client.fork(run.id, len(client.events(run.id)))["id"]
        runs.append(agent.take_attempt(forked))
        run.complete("done", state={"said": "so " * 2000}).expect(204)
    branch = client.create(agent.id, parent_execution_id=run.id)["id"]
    last = agent.take_attempt(branch)
    talk(last, 5)
    shared = count_rows(forgetful, "chunks")
    assert 0 < shared < 20
    for done, run in zip((4, 5), runs, strict=True):
        talk(run, 6, done)
        run.complete("done").expect(204)
        gone(client, run.id)
    talk(last, 6, done=5)
    last_steps = client.steps(branch)
    assert [len(step["args"]["messages"]) for step in last_steps] == [1, 2, 3, 4, 5, 6]
    last.complete("done").expect(204)
    gone(client, branch)
    for table in ("chunks", "blobs", "steps"):
        eventually(lambda table=table: count_rows(forgetful, table) == 0, LONG_S)
