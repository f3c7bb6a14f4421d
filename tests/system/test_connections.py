"""`--db-max-conns`: the most connections that a kernel opens to PostgreSQL, whatever it does."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

import pytest

from harness import Attempt, Cluster, FakeAgent, Kernel, bundle, eventually, rule
from harness.client import Answer
from harness.roles import Role
from harness.worker import Family, persistent

NewKernel = Callable[..., Kernel]
NewAgent = Callable[..., FakeAgent]
LEAST = 11
LONG_S = 90.0
LARGE_EVENTS = 5001  # a fork so far into its source is a large one
SMALL_EVENTS = 8  # up to the end of the first step
EVENTS_A_CALL = 3  # proposed, allowed, executing
LARGE_ARGUMENTS = {"text": "x" * 1_200_000}  # no other decision may wait for a look at them
POLICY = bundle(
    rule("ask", "require_approval", {"target": "ask"}),
    rule("look", "deny", {"target": "look", "arguments": {"text": {"regex": "y$"}}}),
    default="allow",
)


@pytest.fixture(scope="module")
def own_cluster() -> Iterator[Cluster]:
    """A cluster that these tests may stop."""
    cluster = Cluster()
    yield cluster
    cluster.close()


class Load:
    """All that a kernel does, at once, again and again; and how often it was done."""

    def __init__(self, kernel: Kernel, new_agent: NewAgent) -> None:
        self.client = kernel.client(timeout=LONG_S)
        self.idle, self.asker, self.family = (new_agent(kernel) for _ in range(3))
        self.client.set_policy(self.asker.id, POLICY)
        Family(self.family, self.client, steps=5)
        self.small, self.large = self.begun(self.idle), self.begun(self.idle)
        self.small.record("read", 1, "r" * 200_000)  # an answer of one piece: it is whole, or 503
        self.looks = self.begun(self.asker)
        self.done: Counter[str] = Counter()
        self.problems: list[str] = []
        self._stop = threading.Event()
        self._fill_large()
        self.activities: list[Callable[[], None]] = [
            *[self.family_completes] * 2,
            *[self.small_fork] * 3,
            *[self.large_fork] * 3,
            *[self.read] * 4,
            *[self.look] * 2,
            self.orphan_ends,
            self.policy_test,
            self.approval,
            self.stream,
        ]
        self._pool = ThreadPoolExecutor(len(self.activities))

    def create(self, agent: FakeAgent, **fields: Any) -> str:
        body = {"agent_id": agent.id, **fields}
        answer = persistent(lambda: self.client.post("/v0/executions", body))
        return str(answer.expect(201).json["id"])

    def begun(self, agent: FakeAgent) -> Attempt:
        run = agent.take_attempt(self.create(agent), LONG_S)
        eventually(lambda: "dispatch.acked" in self.client.event_types(run.id), LONG_S)
        return run

    def _fill_large(self) -> None:
        self.large.record("read", 1, "l")

        def submit(number: int) -> None:
            self.large.submit("call", number).expect(200)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(submit, range(LARGE_EVENTS // EVENTS_A_CALL + 1)))

    def get(self, target: str) -> Answer:
        return persistent(lambda: self.client.get(target)).expect(200)

    def ends(self, execution_id: str, status: str) -> None:
        target = f"/v0/executions/{execution_id}"
        eventually(lambda: self.get(target).json["status"] == status, LONG_S)

    # What is done

    def family_completes(self) -> None:
        self.ends(self.create(self.family, input=1), "completed")

    def fork(self, source: Attempt, at_seq: int) -> None:
        target, body = f"/v0/executions/{source.id}/fork", {"at_seq": at_seq}
        fork = persistent(lambda: self.client.post(target, body)).expect(201).json["id"]
        steps = self.get(f"/v0/executions/{fork}/steps").json
        assert [step["target"] for step in steps] == ["read"]
        persistent(lambda: self.client.post(f"/v0/executions/{fork}/cancel"))

    def small_fork(self) -> None:
        self.fork(self.small, SMALL_EVENTS)

    def large_fork(self) -> None:
        self.fork(self.large, LARGE_EVENTS)

    def read(self) -> None:
        assert self.get(f"/v0/executions/{self.small.id}/steps").json[0]["result"][0] == "r"
        assert self.get("/v0/executions?limit=50").json["executions"]
        self.get("/metrics")

    def look(self) -> None:
        answer = persistent(lambda: self.looks.submit("look", LARGE_ARGUMENTS)).expect(200)
        assert answer.json["decision"] in ("proceed", "replay"), answer

    def orphan_ends(self) -> None:
        parent = self.begun(self.idle)
        answer = persistent(lambda: parent.submit("delegate", 1)).expect(200)
        spawned_by = {"execution_id": parent.id, "step_id": answer.json["step_id"]}
        child = self.create(self.idle, spawned_by=spawned_by)
        persistent(lambda: self.client.post(f"/v0/executions/{parent.id}/cancel"))
        self.ends(child, "cancelled")

    def policy_test(self) -> None:
        persistent(lambda: self.client.test_policy(self.asker.id)).expect(200)

    def approval(self) -> None:
        run = self.begun(self.asker)
        held = persistent(lambda: run.submit("ask", 1)).expect(200).json
        if "approval_id" in held:
            path = f"/v0/approvals/{held['approval_id']}/grant"
            persistent(lambda: self.client.post(path, {}))
        persistent(lambda: self.client.post(f"/v0/executions/{run.id}/cancel"))

    def stream(self) -> None:
        def first_event() -> bool:
            with self.client.stream(f"/v0/executions/{self.small.id}/events") as events:
                return events.next(LONG_S) is not None

        eventually(first_event, LONG_S)

    # All of it

    def __enter__(self) -> Self:
        for activity in self.activities:
            self._pool.submit(self._again, activity)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._pool.shutdown()

    def _again(self, activity: Callable[[], None]) -> None:
        while not self._stop.is_set() and not self.problems:
            try:
                activity()
            except Exception as error:
                self.problems.append(f"{activity.__name__}: {error!r}")
            self.done[activity.__name__] += 1

    def each_is_done(self, times: int) -> None:
        """From now on, so many times."""
        before, names = self.done.copy(), {activity.__name__ for activity in self.activities}

        def all_done() -> bool:
            missing = {name for name in names if self.done[name] - before[name] < times}
            assert self.problems or not missing, (missing, self.done)
            return True

        eventually(all_done, LONG_S)
        assert not self.problems, self.problems


class Watch:
    """Counts the connections of a role, now and then."""

    def __init__(self, role: Role) -> None:
        self.role = role
        self.counts: list[int] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._count)

    def _count(self) -> None:
        while not self._stop.wait(0.05):
            try:
                self.counts.append(self.role.connections())
            except RuntimeError:  # the server is away
                continue

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


@pytest.mark.parametrize("most", [LEAST, 24])
def test_never_more(
    own_cluster: Cluster, launch: NewKernel, new_agent: NewAgent, most: int
) -> None:
    """A kernel does all it can do; its connections are cut; the server is restarted. With the
    least number everything goes on as well."""
    role = Role(own_cluster, most)
    env = {"REBUNO_RETENTION": "2s", "REBUNO_CLEANUP_INTERVAL": "1s"}
    kernel = launch(database_url=role.url, args=["--db-max-conns", str(most)], env=env)
    with Load(kernel, new_agent) as load, Watch(role) as watch:
        load.each_is_done(2)
        for _ in range(2):
            role.break_connections()
            load.each_is_done(1)
        own_cluster.stop()
        own_cluster.start()
        load.each_is_done(2)
    assert not load.problems, load.problems  # also of those that were in hand
    assert role.refusals() == 0
    assert "connections_exhausted" not in kernel.log_text()
    assert "retention.removed" in kernel.log_text()
    assert LEAST - 2 <= max(watch.counts) <= most, watch.counts


def test_fewer_are_refused_at_the_start(postgres: Cluster, launch: NewKernel) -> None:
    kernel = launch(
        database_url=postgres.new_url(), args=["--db-max-conns", str(LEAST - 1)], start=False
    )
    kernel.spawn()
    assert kernel.wait_exit() == 2
    assert f"needs at least {LEAST} connections, not {LEAST - 1}" in kernel.log.read_text()


def test_a_server_that_refuses_more(
    postgres: Cluster, launch: NewKernel, new_agent: NewAgent
) -> None:
    """What was answered stays; what cannot be done is answered 503 and logged with the reason; when
    there is room again everything goes on without a restart."""
    role = Role(postgres, 100)
    kernel = launch(database_url=role.url)
    agent, client = new_agent(kernel), kernel.client()
    created = [client.create(agent.id)["id"] for _ in range(4)]
    runs = [agent.take_attempt(execution_id) for execution_id in created]
    step_ids = [run.record("x", 1, "before") for run in runs]
    role.limit(0)
    role.break_connections()
    runs[0].submit("x", 2).expect(503, "unavailable")
    client.get(f"/v0/executions/{runs[0].id}").expect(503, "unavailable")
    client.get("/v0/ready").expect(503)
    eventually(lambda: "too many connections for role" in kernel.log_text())
    kernel.assert_alive()
    role.limit(100)
    eventually(lambda: client.get("/v0/ready").status == 200, LONG_S)
    for run, step_id in zip(runs, step_ids, strict=True):
        assert client.step(run.id, step_id)["result"] == "before"
        assert persistent(lambda run=run: run.submit("x", 2)).json["decision"] == "proceed"
        assert persistent(run.complete).status == 204
