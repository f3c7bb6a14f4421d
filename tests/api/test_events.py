"""The log: order and payload of each transition, and the three ways to read it."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from harness import Attempt, BearerClient, FakeAgent, Kernel, Reply, eventually
from harness.kernel import TOKEN
from harness.raw import RawConnection

UNKNOWN = "01920000-0000-7000-8000-000000000000"
BEGINNING = ["execution.created", "execution.started", "dispatch.queued", "dispatch.acked"]


def acked(client: BearerClient, run: Attempt) -> list[dict[str, Any]]:
    """The log once the ack of the current attempt stands in it."""

    def log() -> list[dict[str, Any]] | None:
        events = client.events(run.id)
        attempts = [e["payload"]["attempt"] for e in events if e["type"] == "dispatch.acked"]
        return events if run.delivery.attempt in attempts else None

    found = eventually(log, what="dispatch.acked")
    assert found is not None
    return found


def types(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events]


@pytest.fixture
def settled(client: BearerClient, run: Attempt) -> tuple[Attempt, int]:
    """A run whose ack is recorded, and the number of its last event."""
    return run, acked(client, run)[-1]["event_seq"]


class TestTransitions:
    def test_create_and_ack(self, client: BearerClient, new_run: Callable[..., Attempt]) -> None:
        run = new_run(on_behalf_of="zoe")
        created, started, queued, ack = acked(client, run)
        assert types([created, started, queued, ack]) == BEGINNING
        assert created["payload"] == {
            "execution_id": run.id,
            "status": "pending",
            "created_by": "bootstrap",
            "on_behalf_of": "zoe",
        }
        assert started["payload"] == {"execution_id": run.id, "status": "running"}
        dispatch = {"execution_id": run.id, "dispatch_id": run.delivery.dispatch_id}
        assert queued["payload"].items() >= {**dispatch, "attempt": 0}.items()
        assert ack["payload"].items() >= {**dispatch, "attempt": 1}.items()
        assert created["occurred_at"] <= started["occurred_at"] <= ack["occurred_at"]

    def test_allowed_step(self, client: BearerClient, settled: tuple[Attempt, int]) -> None:
        run, last = settled
        step_id = run.proceed("x", {"secret": 1}, kind="local")
        events = client.events(run.id, last)
        assert types(events) == ["step.proposed", "step.allowed", "step.executing"]
        step = {"step_id": step_id, "step_type": "local", "target": "x"}
        assert events[0]["payload"] == step
        assert events[1]["payload"] == {**step, "rule_id": "permissive"}
        assert events[2]["payload"] == step

    def test_succeeded(self, client: BearerClient, settled: tuple[Attempt, int]) -> None:
        run, last = settled
        step_id = run.record("x", 1, {"big": "result"})
        event = client.events(run.id, last)[-1]
        assert event["type"] == "step.succeeded"
        assert event["payload"] == {"step_id": step_id, "step_type": "tool_call", "target": "x"}

    def test_failed(self, client: BearerClient, settled: tuple[Attempt, int]) -> None:
        run, last = settled
        step_id = run.proceed("x")
        run.fail_step(step_id, {"message": "m"}).expect(200)
        event = client.events(run.id, last)[-1]
        assert event["type"] == "step.failed"
        step = {"step_id": step_id, "step_type": "tool_call", "target": "x"}
        assert event["payload"] == {**step, "error": {"message": "m"}}

    def test_indeterminate_then_denied(
        self, client: BearerClient, settled: tuple[Attempt, int]
    ) -> None:
        run, _ = settled
        step_id = run.proceed("x", idempotency="at_most_once")
        later = run.released()
        last = acked(client, later)[-1]["event_seq"]
        later.replay("x", idempotency="at_most_once")
        later.submit("x", idempotency="at_most_once").expect(200)
        events = client.events(run.id, last)
        assert types(events) == ["step.failed", "step.proposed", "step.denied"]
        assert events[0]["payload"]["step_id"] == step_id
        assert events[0]["payload"]["error"]["reason"] == "indeterminate"
        assert events[2]["payload"]["rule_id"] == "__indeterminate_retry"
        assert events[2]["payload"]["step_id"] == events[1]["payload"]["step_id"] != step_id

    @pytest.mark.parametrize("output", [None, 0, {"a": [1]}])
    def test_completed(
        self, client: BearerClient, settled: tuple[Attempt, int], output: Any
    ) -> None:
        run, last = settled
        run.complete(output, state="s").expect(204)
        [event] = client.events(run.id, last)
        assert event["type"] == "execution.completed"
        assert event["payload"] == {"execution_id": run.id, "status": "completed", "output": output}

    def test_execution_failed(self, client: BearerClient, settled: tuple[Attempt, int]) -> None:
        run, last = settled
        open_id = run.proceed("x")
        run.fail("tool_error: x: no").expect(204)
        event = client.events(run.id, last)[-1]
        assert event["type"] == "execution.failed"
        reason = {"status": "failed", "reason": "tool_error: x: no"}
        assert event["payload"] == {"execution_id": run.id, **reason}
        assert client.step(run.id, open_id)["status"] == "executing"

    def test_cancelled(self, client: BearerClient, settled: tuple[Attempt, int]) -> None:
        run, _ = settled
        run.record("done")
        ids = [run.proceed("open", n) for n in range(3)]
        last = client.events(run.id)[-1]["event_seq"]
        client.cancel(run.id)
        events = client.events(run.id, last)
        assert types(events) == ["execution.cancelled"] + ["step.cancelled"] * 3
        reason = {"status": "cancelled", "reason": "client_cancelled"}
        assert events[0]["payload"] == {"execution_id": run.id, **reason}
        assert [e["payload"]["step_id"] for e in events[1:]] == ids
        for event in events[1:]:
            assert event["payload"]["error"]["reason"] == "execution_cancelled"

    def test_failed_delivery(
        self, client: BearerClient, new_agent: Callable[..., FakeAgent]
    ) -> None:
        agent = new_agent()
        agent.behaviour = lambda delivery: Reply(status=500 if delivery.attempt == 1 else 200)
        execution = client.create(agent.id)
        run = agent.take_attempt(execution["id"], attempt=2)
        events = acked(client, run)
        assert types(events)[3:] == ["dispatch.failed", "dispatch.acked"]
        failed = events[3]["payload"]
        assert failed["attempt"] == 1
        assert failed["dispatch_id"] == run.delivery.dispatch_id

    def test_discarded(self, client: BearerClient, new_agent: Callable[..., FakeAgent]) -> None:
        """An ack that comes after the end is not recorded."""
        agent = new_agent()
        release = threading.Event()

        def late(delivery: Any) -> Reply:
            release.wait(10)
            return Reply()

        agent.behaviour = late
        execution = client.create(agent.id)
        agent.take(execution["id"])
        client.cancel(execution["id"])
        release.set()
        follow = f"/v0/executions/{execution['id']}/events?after_seq=4&wait=1"
        for event in client.get(follow).expect(200).json:
            assert event["type"] == "dispatch.discarded"
        assert client.event_types(execution["id"])[:4] == [*BEGINNING[:3], "execution.cancelled"]

    def test_next_attempt(self, client: BearerClient, settled: tuple[Attempt, int]) -> None:
        run, last = settled
        later = run.released()
        events = [e for e in acked(client, later) if e["event_seq"] > last]
        assert events[-1]["type"] == "dispatch.acked"
        assert events[-1]["payload"]["attempt"] == 2
        assert set(types(events)) <= {"dispatch.queued", "dispatch.acked"}

    def test_a_good_call_is_an_ack_too(
        self, client: BearerClient, new_agent: Callable[..., FakeAgent]
    ) -> None:
        agent = new_agent()
        worked = threading.Event()

        def slow(delivery: Any) -> Reply:
            worked.wait(10)
            return Reply(status=500)

        agent.behaviour = slow
        execution = client.create(agent.id)
        run = agent.take_attempt(execution["id"])
        run.record("x", 1, "r")
        assert "dispatch.acked" in client.event_types(run.id)
        worked.set()
        run.record("y", 1, "r")
        run.complete().expect(204)
        log = client.event_types(run.id)
        assert "dispatch.failed" not in log
        assert log.count("dispatch.acked") == 1
        assert agent.count(run.id) == 1


class TestPages:
    @pytest.mark.parametrize("limit", [1, 2, 3, 100])
    def test_by_limit(self, client: BearerClient, run: Attempt, limit: int) -> None:
        for n in range(4):
            run.record("x", n)
        whole = acked(client, run)
        found: list[dict[str, Any]] = []
        while True:
            seq = found[-1]["event_seq"] if found else 0
            page = client.get(run.path(f"/events?after_seq={seq}&limit={limit}")).json
            assert len(page) <= limit
            if not page:
                break
            found += page
        assert found == whole

    def test_default_is_a_hundred(self, client: BearerClient, run: Attempt) -> None:
        acked(client, run)
        for n in range(30):
            run.record("x", n)
        page = client.get(run.path("/events")).expect(200).json
        assert [e["event_seq"] for e in page] == list(range(1, 101))

    def test_past_the_end(self, client: BearerClient, run: Attempt) -> None:
        last = acked(client, run)[-1]["event_seq"]
        for seq in (last, last + 1, 10**6, 2**63 - 1):
            assert client.get(run.path(f"/events?after_seq={seq}")).expect(200).json == []

    @pytest.mark.parametrize(
        "query",
        ["after_seq=-1", "after_seq=x", "limit=0", "limit=x", "wait=-1", "wait=x"],
    )
    def test_bad_parameters(self, client: BearerClient, run: Attempt, query: str) -> None:
        client.get(run.path(f"/events?{query}"), bad=True).invalid(query.split("=")[0])

    def test_unknown(self, client: BearerClient) -> None:
        client.get(f"/v0/executions/{UNKNOWN}/events").expect(404, "not_found")

    def test_agents_have_no_access(self, run: Attempt) -> None:
        run.client.get(run.path("/events")).expect(401, "unauthorized")


class TestWait:
    def test_answers_as_the_event_commits(
        self, client: BearerClient, settled: tuple[Attempt, int]
    ) -> None:
        run, last = settled
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(client.get, run.path(f"/events?after_seq={last}&wait=20"))
            eventually(lambda: waiting.running())
            begun = time.monotonic()
            run.proceed("x")
            page = waiting.result(timeout=10).expect(200).json
        assert time.monotonic() - begun < 15
        assert types(page) == ["step.proposed", "step.allowed", "step.executing"]

    def test_answers_at_once_what_is_there(
        self, client: BearerClient, settled: tuple[Attempt, int]
    ) -> None:
        run, last = settled
        begun = time.monotonic()
        page = client.get(run.path(f"/events?after_seq={last - 1}&wait=30")).expect(200).json
        assert [e["event_seq"] for e in page] == [last]
        assert time.monotonic() - begun < 15

    def test_empty_when_the_time_is_up(
        self, client: BearerClient, settled: tuple[Attempt, int]
    ) -> None:
        run, last = settled
        begun = time.monotonic()
        assert client.get(run.path(f"/events?after_seq={last}&wait=1")).expect(200).json == []
        assert 0.9 <= time.monotonic() - begun < 15

    def test_at_once_at_the_end_of_an_ended_log(
        self, client: BearerClient, settled: tuple[Attempt, int]
    ) -> None:
        run, _ = settled
        run.complete().expect(204)
        last = client.events(run.id)[-1]["event_seq"]
        begun = time.monotonic()
        assert client.get(run.path(f"/events?after_seq={last}&wait=30")).expect(200).json == []
        assert time.monotonic() - begun < 15

    def test_many_waiters(self, client: BearerClient, settled: tuple[Attempt, int]) -> None:
        run, last = settled
        target = run.path(f"/events?after_seq={last}&wait=20")
        with ThreadPoolExecutor(20) as pool:
            waiting = [pool.submit(client.get, target) for _ in range(20)]
            eventually(lambda: all(w.running() for w in waiting))
            run.proceed("x")
            pages = [w.result(timeout=15).expect(200).json for w in waiting]
        assert {len(page) for page in pages} == {3}


class TestServerSentEvents:
    def test_whole_log_then_end(self, client: BearerClient, settled: tuple[Attempt, int]) -> None:
        run, _ = settled
        run.record("x", 1, "r")
        run.complete("out").expect(204)
        with client.stream(run.path("/events")) as stream:
            events = stream.rest()
        assert [e.json for e in events] == client.events(run.id)
        assert [int(e.id or 0) for e in events] == list(range(1, len(events) + 1))

    def test_follows(self, client: BearerClient, settled: tuple[Attempt, int]) -> None:
        run, last = settled
        with client.stream(run.path(f"/events?after_seq={last}")) as stream:
            step_id = run.proceed("x")
            for wanted in ("step.proposed", "step.allowed", "step.executing"):
                event = stream.next()
                assert event is not None
                assert event.json["type"] == wanted
                assert event.json["payload"]["step_id"] == step_id
            run.complete().expect(204)
            assert [e.json["type"] for e in stream.rest()] == ["execution.completed"]

    @pytest.mark.parametrize("after", ["", "?after_seq=1", "?after_seq=999"])
    def test_last_event_id_wins(
        self, client: BearerClient, settled: tuple[Attempt, int], after: str
    ) -> None:
        run, _ = settled
        run.complete().expect(204)
        log = client.events(run.id)
        with client.stream(run.path("/events") + after, {"Last-Event-ID": "2"}) as stream:
            assert [e.json for e in stream.rest()] == log[2:]

    def test_reconnecting_misses_nothing(
        self, client: BearerClient, settled: tuple[Attempt, int]
    ) -> None:
        run, _ = settled
        seen: list[int] = []
        for n in range(4):
            run.record("x", n)
            headers = {"Last-Event-ID": str(seen[-1])} if seen else None
            with client.stream(run.path("/events"), headers) as stream:
                for _ in range(3):
                    event = stream.next()
                    assert event is not None
                    seen.append(int(event.id or 0))
        assert seen == list(range(1, 13))

    def test_bad_last_event_id(self, client: BearerClient, run: Attempt) -> None:
        for value in ("x", "-1", "1.5", "2 3"):
            headers = {"Accept": "text/event-stream", "Last-Event-ID": value}
            client.get(run.path("/events"), headers=headers, bad=True).expect(
                400, "validation_error"
            )

    def test_last_event_id_of_the_future_waits(
        self, client: BearerClient, settled: tuple[Attempt, int]
    ) -> None:
        run, last = settled
        with client.stream(run.path("/events"), {"Last-Event-ID": str(last + 2)}) as stream:
            run.proceed("x")
            event = stream.next()
            assert event is not None
            assert event.json["event_seq"] == last + 3
            assert event.json["type"] == "step.executing"

    def test_ends_after_the_whole_transition(
        self, client: BearerClient, settled: tuple[Attempt, int]
    ) -> None:
        run, _ = settled
        for n in range(5):
            run.proceed("open", n)
        with client.stream(run.path("/events")) as stream:
            client.cancel(run.id)
            events = [e.json["type"] for e in stream.rest()]
        assert events.count("step.cancelled") == 5
        assert events[-1] in ("step.cancelled", "dispatch.discarded")

    def test_ended_and_all_seen(self, client: BearerClient, settled: tuple[Attempt, int]) -> None:
        run, _ = settled
        run.complete().expect(204)
        last = client.events(run.id)[-1]["event_seq"]
        with client.stream(run.path(f"/events?after_seq={last}")) as stream:
            assert stream.rest() == []

    @pytest.mark.parametrize("accept", ["*/*", "application/json", "text/*", None])
    def test_json_unless_named_outright(
        self, client: BearerClient, run: Attempt, accept: str | None
    ) -> None:
        answer = client.get(run.path("/events"), headers={"Accept": accept}).expect(200)
        assert answer.headers["content-type"] == "application/json; charset=utf-8"

    def test_named_among_others(self, client: BearerClient, run: Attempt) -> None:
        run.complete().expect(204)
        headers = {"Accept": "application/json, text/event-stream;q=0.9"}
        with client.stream(run.path("/events"), headers) as stream:
            assert stream.next() is not None

    def test_errors_are_json(self, client: BearerClient) -> None:
        headers = {"Accept": "text/event-stream"}
        target = f"/v0/executions/{UNKNOWN}/events"
        client.get(target, headers=headers).expect(404, "not_found")

    @pytest.mark.slow
    def test_keep_alive_comment(self, client: BearerClient, run: Attempt) -> None:
        with client.stream(run.path("/events")) as stream:
            eventually(lambda: stream.comments > 0, 20, what="a comment within 15 s")

    def test_many_readers(self, client: BearerClient, settled: tuple[Attempt, int]) -> None:
        run, last = settled
        target = run.path(f"/events?after_seq={last}")

        def read(_: int) -> list[str]:
            with client.stream(target) as stream:
                ready.release()
                return [event.json["type"] for event in stream.rest(20)]

        ready = threading.Semaphore(0)
        with ThreadPoolExecutor(30) as pool:
            readers = [pool.submit(read, n) for n in range(30)]
            for _ in range(30):
                assert ready.acquire(timeout=20)
            run.proceed("x")
            run.complete().expect(204)
            logs = [reader.result(timeout=30) for reader in readers]
        wanted = ["step.proposed", "step.allowed", "step.executing", "execution.completed"]
        assert all(log == wanted for log in logs)


class TestShutdown:
    def test_long_poll_answers_and_stream_ends(
        self, new_kernel: Callable[..., Kernel], new_agent: Callable[..., FakeAgent]
    ) -> None:
        kernel = new_kernel()
        client, agent = kernel.client(), new_agent(kernel)
        run = agent.take_attempt(client.create(agent.id)["id"])
        last = acked(client, run)[-1]["event_seq"]
        health = b"GET /v0/health HTTP/1.1\r\nHost: x\r\n\r\n"
        poll = (
            f"GET {run.path(f'/events?after_seq={last}&wait=60')} HTTP/1.1\r\nHost: x\r\n"
            f"Authorization: Bearer {TOKEN}\r\n\r\n"
        )
        with RawConnection(kernel.port) as waiting, client.stream(run.path("/events")) as stream:
            waiting.send(health + poll.encode())  # when the one is answered, the other has come
            assert waiting.answer().status == 200
            for _ in range(last):
                assert stream.next() is not None
            begun = time.monotonic()
            kernel.stop()
            answer = waiting.answer()
            assert (answer.status, answer.body) == (200, b"[]")
            assert stream.rest() == []
            assert time.monotonic() - begun < 5, "they are ended, not waited for"
