"""What is special about PostgreSQL: it can be away, break off, and serve several kernels."""

import http.client
import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from harness import Attempt, Cluster, Deadline, Delivery, FakeAgent, Kernel, Reply, eventually
from harness.proxy import Proxy
from harness.waiting import let_pass
from harness.worker import Family, Worker

NewKernel = Callable[..., Kernel]
NewAgent = Callable[..., FakeAgent]
PATIENCE_S = 5.0  # how long a request waits for the store


def begun(kernel: Kernel, agent: FakeAgent) -> Attempt:
    run = agent.take_attempt(kernel.client().create(agent.id)["id"])
    eventually(lambda: "dispatch.acked" in kernel.client().event_types(run.id))
    return run


@pytest.fixture(scope="module")
def own_cluster() -> Iterator[Cluster]:
    """A cluster that these tests may stop."""
    cluster = Cluster()
    yield cluster
    cluster.close()


@pytest.fixture
def cluster(own_cluster: Cluster) -> Iterator[Cluster]:
    if own_cluster.process is None:
        own_cluster.start()
    yield own_cluster
    if own_cluster.process is None:
        own_cluster.start()


class TestAway:
    def test_requests_wait_then_fail(
        self, cluster: Cluster, launch: NewKernel, new_agent: NewAgent
    ) -> None:
        kernel = launch(database_url=cluster.new_url())
        agent, client = new_agent(kernel), kernel.client()
        run = begun(kernel, agent)
        run.record("x", 1, "before")
        cluster.stop()
        begin = time.monotonic()
        run.submit("x", 2).expect(503, "unavailable")
        waited = time.monotonic() - begin
        assert PATIENCE_S * 0.7 <= waited <= PATIENCE_S + 4, waited
        client.get("/v0/ready").expect(503)
        client.get("/v0/health").expect(200)
        client.get("/metrics").expect(200)
        kernel.assert_alive()
        cluster.start()
        eventually(lambda: client.get("/v0/ready").status == 200, 15)
        run.heartbeat().expect(204)
        assert run.submit("x", 2).expect(200).json["decision"] == "proceed"
        assert agent.count(run.id) == 1
        assert [s["args"] for s in client.steps(run.id)] == [1, 2]
        run.complete().expect(204)

    @pytest.mark.parametrize("immediate", [False, True], ids=["restart", "crash"])
    def test_short_absence_is_only_a_wait(
        self, cluster: Cluster, launch: NewKernel, new_agent: NewAgent, immediate: bool
    ) -> None:
        kernel = launch(database_url=cluster.new_url())
        run = begun(kernel, new_agent(kernel))
        run.record("x", 1, "before")
        cluster.stop(immediate=immediate)
        begin = time.monotonic()
        with ThreadPoolExecutor(4) as pool:
            calls = [pool.submit(run.submit, "x", n) for n in range(2, 6)]
            eventually(lambda: all(call.running() for call in calls))
            cluster.start()
            away = time.monotonic() - begin
            answers = [call.result(timeout=20) for call in calls]
        if away < PATIENCE_S - 1:  # its own recovery may take longer on a busy machine
            assert {a.expect(200).json["decision"] for a in answers} == {"proceed"}
        assert {a.status for a in answers} <= {200, 503}
        eventually(lambda: run.heartbeat().status == 204, 15)
        run.complete().expect(204)

    def test_acknowledged_writes_survive_its_crash(
        self, cluster: Cluster, launch: NewKernel, new_agent: NewAgent
    ) -> None:
        kernel = launch(database_url=cluster.new_url())
        run = begun(kernel, new_agent(kernel))
        answered: dict[str, int] = {}
        enough = threading.Event()
        stop = threading.Event()

        def write(worker: int) -> None:
            number = 0
            while not stop.is_set():
                number += 1
                submitted = run.submit("w", [worker, number])
                if submitted.status == 200:
                    step_id = submitted.json["step_id"]
                    if run.complete_step(step_id, number).status == 200:
                        answered[step_id] = number
                if len(answered) > 60:
                    enough.set()

        with ThreadPoolExecutor(4) as pool:
            writers = [pool.submit(write, n) for n in range(4)]
            assert enough.wait(30)
            cluster.stop(immediate=True)
            cluster.start()
            count = len(answered)
            eventually(lambda: len(answered) > count + 20, 30, what="writing goes on")
            stop.set()
        for writer in writers:
            writer.result()
        steps = {step["step_id"]: step for step in kernel.client().steps(run.id)}
        for step_id, number in answered.items():
            assert steps[step_id]["status"] == "succeeded"
            assert steps[step_id]["result"] == number

    def test_acknowledged_writes_survive_many_crashes(
        self, cluster: Cluster, launch: NewKernel, new_agent: NewAgent
    ) -> None:
        """A crashed server gives the ids of lost transactions to others: they prove nothing."""
        kernel = launch(database_url=cluster.new_url())
        agent = new_agent(kernel)
        runs = [begun(kernel, agent) for _ in range(4)]
        answered: list[set[str]] = [set() for _ in runs]
        stop = threading.Event()

        def write(worker: int) -> None:
            number = 0
            while not stop.is_set():
                number += 1
                answer = runs[worker].submit("w", number, key=f"k{number}")
                if answer.status == 200:
                    answered[worker].add(answer.json["step_id"])

        with ThreadPoolExecutor(len(runs)) as pool:
            writers = [pool.submit(write, worker) for worker in range(len(runs))]
            for _ in range(8):
                before = sum(map(len, answered))
                eventually(lambda n=before: sum(map(len, answered)) > n + 100, 30)
                cluster.stop(immediate=True)
                cluster.start()
            stop.set()
        for writer in writers:
            writer.result()
        for run, ids in zip(runs, answered, strict=True):
            lost = ids - {step["step_id"] for step in kernel.client().steps(run.id)}
            assert not lost, f"{len(lost)} of {len(ids)} are lost"

    def test_deliveries_go_on_after_it(
        self, cluster: Cluster, launch: NewKernel, new_agent: NewAgent
    ) -> None:
        kernel = launch(database_url=cluster.new_url())
        agent, client = new_agent(kernel), kernel.client()
        agent.stop()
        execution = client.create(agent.id)
        cluster.stop()
        cluster.start()
        agent.start()
        agent.take_attempt(execution["id"], 40).complete().expect(204)

    @pytest.mark.parametrize("status", [200, 500])
    def test_answer_of_a_webhook_that_comes_meanwhile(
        self, cluster: Cluster, launch: NewKernel, new_agent: NewAgent, status: int
    ) -> None:
        """What became of a delivery is recorded when the database is back, not forgotten."""
        kernel = launch(database_url=cluster.new_url())
        agent, client = new_agent(kernel), kernel.client()
        away = threading.Event()

        def answer(delivery: Delivery) -> Reply:
            away.wait(20)
            return Reply(status=status if delivery.attempt == 1 else 200)

        agent.behaviour = answer
        execution = client.create(agent.id)
        run = agent.take_attempt(execution["id"])
        cluster.stop()
        away.set()
        let_pass(1)
        cluster.start()
        if status == 500:
            run = run.next(timeout=30)
        eventually(lambda: "dispatch.acked" in client.event_types(run.id), 30)
        run.complete().expect(204)

    def test_not_there_at_the_start(self, cluster: Cluster, launch: NewKernel) -> None:
        """A clear end, or patience until it is there; never a hang without a word."""
        url = cluster.new_url()
        cluster.stop()
        kernel = launch(database_url=url, start=False)
        kernel.spawn()
        try:
            assert kernel.wait_exit(15) == 1
        except AssertionError:
            assert "postgres" in kernel.log.read_text().lower()
            kernel.kill()
        cluster.start()


class TestBrokenCommit:
    @pytest.fixture
    def proxy(self, postgres: Cluster) -> Iterator[Proxy]:
        proxy = Proxy(postgres.port)
        yield proxy
        proxy.close()

    @pytest.mark.parametrize("deliver", [True, False], ids=["committed", "lost"])
    def test_answer_tells_the_truth(
        self,
        postgres: Cluster,
        proxy: Proxy,
        launch: NewKernel,
        new_agent: NewAgent,
        deliver: bool,
    ) -> None:
        """Whether the COMMIT arrived or not: 201 means it is there, 503 that it is not."""
        name = postgres.create_database()
        kernel = launch(database_url=postgres.url(name, port=proxy.port))
        agent, client = new_agent(kernel), kernel.client()
        for number in range(8):
            proxy.deliver = deliver
            proxy.cut_on = lambda chunk: b"COMMIT" in chunk.upper()
            key = f"k{number}"
            body = {"agent_id": agent.id, "idempotency_key": key}
            answer = client.post("/v0/executions", body)
            count = postgres_count(client, agent, key)
            if answer.status == 201:
                assert count == 1
            else:
                answer.expect(503, "unavailable")
                unknown = answer.json.get("details", {}).get("outcome") == "unknown"
                assert unknown or count == 0
        assert proxy.cuts >= 1

    @pytest.mark.parametrize("deliver", [True, False], ids=["unanswered", "unasked"])
    def test_what_is_committed_is_shown(
        self, proxy: Proxy, postgres: Cluster, launch: NewKernel, new_agent: NewAgent, deliver: bool
    ) -> None:
        """The connection that reads the new row for its answer breaks: another one reads it."""
        name = postgres.create_database()
        kernel = launch(database_url=postgres.url(name, port=proxy.port))
        agent, client = new_agent(kernel), kernel.client()
        proxy.deliver = deliver
        for _ in range(8):
            proxy.cut_on = lambda chunk: b"execution_read" in chunk
            client.post("/v0/executions", {"agent_id": agent.id}).expect(201)
            proxy.cut_on = lambda chunk: b"agent_read" in chunk
            client.post("/v0/agents", agent.registration()).expect(201)
        assert proxy.cuts >= 4

    def test_terminated_backends_decide_nothing_twice(
        self, postgres: Cluster, launch: NewKernel, new_agent: NewAgent
    ) -> None:
        """The same call again and again: what was refused left no step, what was told has one."""
        name = postgres.create_database()
        kernel = launch(database_url=postgres.url(name))
        agent = new_agent(kernel)
        runs = [begun(kernel, agent) for _ in range(3)]
        stop = threading.Event()

        def submit(run: Attempt, told: list[str]) -> int:
            unknown = 0
            while not stop.is_set():
                answer = run.submit("same", {"v": 1})
                if answer.status == 200:
                    told.append(answer.json["step_id"])
                else:
                    answer.expect(503, "unavailable")
                    unknown += answer.json.get("details", {}).get("outcome") == "unknown"
            return unknown

        all_told: list[list[str]] = [[] for _ in runs]

        def enough() -> bool:
            return all(len(told) > 100 for told in all_told)

        with ThreadPoolExecutor(len(runs)) as pool:
            calls = [pool.submit(submit, *each) for each in zip(runs, all_told, strict=True)]
            deadline, last = Deadline(8), Deadline(90)
            while not (deadline.passed and enough()) and not last.passed:
                postgres.psql(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    f" WHERE datname = '{name}' ORDER BY random() LIMIT 3"
                )
                deadline.pause(random.uniform(0.01, 0.06))
            stop.set()
        for run, told, call in zip(runs, all_told, calls, strict=True):
            unknown = call.result()
            steps = kernel.client().steps(run.id)
            assert [step["occurrence"] for step in steps] == list(range(len(steps)))
            assert len(set(told)) == len(told) > 100
            assert set(told) <= {step["step_id"] for step in steps}
            assert len(told) <= len(steps) <= len(told) + unknown

    def test_every_connection_broken_at_once(
        self, postgres: Cluster, proxy: Proxy, launch: NewKernel, new_agent: NewAgent
    ) -> None:
        name = postgres.create_database()
        kernel = launch(database_url=postgres.url(name, port=proxy.port))
        run = begun(kernel, new_agent(kernel))
        for number in range(6):
            proxy.break_all()
            run.record("x", number, number)
        run.complete().expect(204)
        assert len(kernel.client().steps(run.id)) == 6


def postgres_count(client: Any, agent: FakeAgent, key: str) -> int:
    page = client.get(f"/v0/executions?agent_id={agent.id}&limit=200").expect(200).json
    return sum(1 for e in page["executions"] if e.get("idempotency_key") == key)


class TestReplicas:
    def test_five_start_at_once_on_an_empty_database(
        self, postgres: Cluster, launch: NewKernel, new_agent: NewAgent
    ) -> None:
        url = postgres.new_url()
        kernels = [launch(database_url=url, start=False) for _ in range(5)]
        with ThreadPoolExecutor(5) as pool:
            list(pool.map(lambda kernel: kernel.start(), kernels))
        agent = new_agent(kernels[0])
        ids = {kernel.client().create(agent.id)["id"] for kernel in kernels for _ in range(4)}
        for _ in range(20):
            run = agent.take_attempt(timeout=15)
            ids.remove(run.id)
            run.complete().expect(204)
        assert not ids
        assert len(agent.deliveries) == 20

    @pytest.fixture
    def pair(self, postgres: Cluster, launch: NewKernel) -> tuple[Kernel, Kernel]:
        url = postgres.new_url()
        return launch(database_url=url), launch(database_url=url)

    def test_background_work_goes_on_without_its_leader(
        self, postgres: Cluster, launch: NewKernel, new_agent: NewAgent
    ) -> None:
        """Whichever kernel watched over the leases: when it is killed, another one does."""
        url, env = postgres.new_url(), {"REBUNO_DISPATCH_LEASE_TIMEOUT": "2s"}
        first = launch(database_url=url, env=env)
        agent = new_agent(first)
        run = begun(first, agent)
        second = launch(database_url=url, env=env)
        agent.kernel_url = second.url
        first.kill()
        again = agent.take_attempt(run.id, 15)
        assert again.delivery.attempt == run.delivery.attempt + 1
        again.complete().expect(204)

    def test_either_serves_an_attempt(
        self, pair: tuple[Kernel, Kernel], new_agent: NewAgent
    ) -> None:
        one, two = pair
        agent = new_agent(one)
        run = begun(one, agent)
        first = run.record("x", 1, "r1")
        agent.kernel_url = two.url
        beside = agent.attempt(run.delivery)
        second = beside.record("x", 1, "r2")
        steps = one.client().steps(run.id)
        assert [(s["step_id"], s["occurrence"]) for s in steps] == [(first, 0), (second, 1)]
        third = run.record("x", 1, "r3")
        assert two.client().step(run.id, third)["occurrence"] == 2
        beside.complete().expect(204)
        run.complete().expect(409, "execution_terminal")

    def test_events_are_seen_on_the_other(
        self, pair: tuple[Kernel, Kernel], new_agent: NewAgent
    ) -> None:
        one, two = pair
        run = begun(one, new_agent(one))
        last = two.client().events(run.id)[-1]["event_seq"]
        target = run.path(f"/events?after_seq={last}")
        with two.client().stream(target) as stream, ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(two.client().get, f"{target}&wait=20")
            eventually(lambda: waiting.running())
            begin = time.monotonic()
            run.record("x", 1, "r")
            event = stream.next()
            assert event is not None
            assert event.json["type"] == "step.proposed"
            assert waiting.result(timeout=10).expect(200).json
            assert time.monotonic() - begin < 10, "a notification, not a poll: these are 15 s apart"
            run.complete().expect(204)
            assert stream.rest()[-1].json["type"] == "execution.completed"

    def test_deltas_cross(self, pair: tuple[Kernel, Kernel], new_agent: NewAgent) -> None:
        """Live deltas may be lost, but not all of them."""
        one, two = pair
        run = begun(one, new_agent(one))
        step_id = run.proceed("model", {}, kind="llm_call")
        stop = threading.Event()

        def publish() -> None:
            for seq in range(10_000):
                if stop.is_set():
                    return
                run.publish(step_id, seq, "token " * 20).expect(204)

        with two.client().stream(run.path("/stream")) as stream, ThreadPoolExecutor(1) as pool:
            publishing = pool.submit(publish)
            seqs = []
            for _ in range(5):
                event = stream.next()
                assert event is not None
                seqs.append(event.json["seq"])
            stop.set()
            publishing.result()
            assert seqs == sorted(seqs)

    def test_one_dies_the_other_carries_on(
        self, pair: tuple[Kernel, Kernel], new_agent: NewAgent
    ) -> None:
        one, two = pair
        agent = new_agent(one)
        run = begun(one, agent)
        run.record("x", 1, "r")
        one.kill()
        agent.kernel_url = two.url
        beside = agent.attempt(run.delivery)
        beside.record("x", 2, "r")
        beside.complete().expect(204)
        execution = two.client().create(agent.id)
        agent.take_attempt(execution["id"], 15).complete().expect(204)

    def test_leases_of_a_dead_replica_are_reclaimed(
        self, postgres: Cluster, launch: NewKernel, new_agent: NewAgent
    ) -> None:
        url, env = postgres.new_url(), {"REBUNO_DISPATCH_LEASE_TIMEOUT": "2s"}
        one, two = launch(database_url=url, env=env), launch(database_url=url, env=env)
        agent = new_agent(one)
        run = begun(one, agent)
        one.kill()
        agent.kernel_url = two.url
        agent.attempt(run.next(timeout=10).delivery).complete().expect(204)

    def test_racing_creates_with_one_key(
        self, pair: tuple[Kernel, Kernel], new_agent: NewAgent
    ) -> None:
        agent = new_agent(pair[0])
        body = {"agent_id": agent.id, "idempotency_key": "race"}
        clients = [kernel.client() for kernel in pair]
        with ThreadPoolExecutor(16) as pool:
            calls = [pool.submit(clients[n % 2].post, "/v0/executions", body) for n in range(16)]
        answers = [call.result() for call in calls]
        assert sorted(a.status for a in answers) == [200] * 15 + [201]
        assert len({a.json["id"] for a in answers}) == 1

    def test_one_session_on_three(
        self, postgres: Cluster, launch: NewKernel, new_agent: NewAgent, session: str
    ) -> None:
        """Whoever creates where: exactly one runs, and the others follow in their order."""
        url = postgres.new_url()
        kernels = [launch(database_url=url) for _ in range(3)]
        agent = new_agent(kernels[0])
        clients = [kernel.client() for kernel in kernels]
        with ThreadPoolExecutor(10) as pool:
            made = list(
                pool.map(lambda n: clients[n % 3].create(agent.id, session=session), range(10))
            )
        assert sorted(e["status"] for e in made) == ["pending"] * 9 + ["running"]
        (running,) = (e["id"] for e in made if e["status"] == "running")
        done: list[str] = []
        for n, identity in enumerate([running, *sorted({e["id"] for e in made} - {running})]):
            agent.kernel_url = kernels[n % 3].url
            run = agent.take_attempt(identity)
            found = run.execution().expect(200).json
            assert found["status"] == "running"
            assert found.get("parent_execution_id") == max(done, default=None)
            run.complete(n).expect(204)
            done.append(identity)

    def test_created_on_one_as_it_ends_on_the_other(
        self, pair: tuple[Kernel, Kernel], new_agent: NewAgent, session: str
    ) -> None:
        one, two = pair
        agent = new_agent(one)
        agent.kernel_url = two.url
        for n in range(30):
            name = f"{session}-{n}"
            run = agent.take_attempt(one.client().create(agent.id, session=name)["id"])
            with ThreadPoolExecutor(3) as pool:
                made = [
                    pool.submit(kernel.client().create, agent.id, session=name) for kernel in pair
                ]
                pool.submit(run.complete).result().expect(204)
            ids = sorted(future.result()["id"] for future in made)
            found = [one.client().execution(i) for i in ids]
            assert sorted(e["status"] for e in found) == ["pending", "running"]
            (running,) = (e for e in found if e["status"] == "running")
            assert running["parent_execution_id"] == run.id

    def test_turns_on_both_while_one_dies(
        self, postgres: Cluster, launch: NewKernel, new_agent: NewAgent, session: str
    ) -> None:
        """Each has its turn, whichever kernel would have started it. What the dead one was just
        delivering is delivered again when its lease, and the time for an answer, are over."""
        env = {"REBUNO_DISPATCH_LEASE_TIMEOUT": "2s", "REBUNO_DISPATCH_TIMEOUT": "1s"}
        url = postgres.new_url()
        one, two = pair = [launch(database_url=url, env=env) for _ in range(2)]
        agent = new_agent(two)
        worker = Worker(agent, steps=2)
        ids: list[str] = []

        def create(kernel: Kernel) -> None:
            client = kernel.client()
            for n in range(20):
                try:
                    ids.append(client.create(agent.id, session=f"{session}-{n % 4}")["id"])
                except (OSError, http.client.HTTPException):
                    assert kernel is one
                    return

        with ThreadPoolExecutor(2) as pool:
            creating = [pool.submit(create, kernel) for kernel in pair]
            eventually(lambda: len(worker.finished) > 3)
            one.kill()
            for future in creating:
                future.result()
        found = []
        for n in range(4):
            target = f"/v0/executions?limit=200&session={session}-{n}"

            def all_of_it(target: str = target) -> Any:
                return two.client().get(target).expect(200).json["executions"]

            eventually(lambda: {e["status"] for e in all_of_it()} == {"completed"}, 60)
            turns = all_of_it()
            parents = [e.get("parent_execution_id") for e in turns]
            assert parents.count(None) == 1
            assert set(parents) <= {None, *(e["id"] for e in turns)}
            found += [e["id"] for e in turns]
        assert set(ids) <= set(found)
        assert not worker.problems

    def test_families_on_both_without_a_deadlock(
        self,
        postgres: Cluster,
        pair: tuple[Kernel, Kernel],
        new_agent: NewAgent,
        session: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Parents, children, claims and cancels, each on the kernel that comes next."""
        logged = len(postgres.log.read_text())
        agent, clients = new_agent(pair[0]), [kernel.client() for kernel in pair]
        urls = itertools.cycle(kernel.url for kernel in pair)

        def attempt(delivery: Delivery) -> Attempt:
            agent.kernel_url = next(urls)
            return Attempt(agent, delivery)

        monkeypatch.setattr(agent, "attempt", attempt)
        worker = Family(agent, clients[0], steps=5)

        def create(number: int) -> str:
            fields = {"session": f"{session}-{number % 5}"} if number % 2 else {}
            made = clients[number % 2].create(agent.id, input=2, **fields)["id"]
            if number % 3 == 0:
                let_pass(random.random() / 5)
                clients[(number + 1) % 2].post(f"/v0/executions/{made}/cancel")
            return str(made)

        with ThreadPoolExecutor(8) as pool:
            made = set(pool.map(create, range(60)))

        def all_have_ended() -> bool:
            page = clients[1].get(f"/v0/executions?agent_id={agent.id}&limit=200").expect(200)
            found = {e["id"]: e["status"] for e in page.json["executions"]}
            return made <= set(found) and set(found.values()) == {"completed", "cancelled"}

        eventually(all_have_ended, 60)
        assert not worker.problems
        assert "deadlock" not in postgres.log.read_text()[logged:]

    def test_racing_writes_to_one_execution(
        self, pair: tuple[Kernel, Kernel], new_agent: NewAgent
    ) -> None:
        one, two = pair
        agent = new_agent(one)
        run = begun(one, agent)
        agent.kernel_url = two.url
        beside = agent.attempt(run.delivery)
        with ThreadPoolExecutor(8) as pool:
            calls = [
                pool.submit((run, beside)[n % 2].record, "same", {"a": 1}, n) for n in range(40)
            ]
        assert len({call.result() for call in calls}) == 40
        steps = one.client().steps(run.id)
        assert sorted(s["occurrence"] for s in steps) == list(range(40))
        assert len(one.client().events(run.id)) >= 160
