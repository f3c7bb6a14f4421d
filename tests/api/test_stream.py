"""The live stream of what steps emit."""

import socket
import threading
from collections.abc import Callable

import pytest

from harness import Attempt, BearerClient, EventStream, FakeAgent, eventually

UNKNOWN = "01920000-0000-7000-8000-000000000000"


def arrives(run: Attempt, step_id: str, stream: EventStream) -> None:
    """What is published once the stream's head has come arrives."""
    run.publish(step_id, -1, "ready?").expect(204)
    event = stream.next()
    assert event is not None
    assert event.json == {"step_id": step_id, "seq": -1, "data": "ready?"}


def test_deltas_arrive_in_order(client: BearerClient, run: Attempt) -> None:
    step_id = run.proceed("model", {}, kind="llm_call")
    with client.stream(run.path("/stream")) as stream:
        arrives(run, step_id, stream)
        for seq in range(20):
            run.publish(step_id, seq, f"token {seq} é😀\n").expect(204)
        for seq in range(20):
            event = stream.next()
            assert event is not None
            assert event.json == {"step_id": step_id, "seq": seq, "data": f"token {seq} é😀\n"}
        run.complete().expect(204)
        assert stream.next() is None


def test_none_is_missed_once_the_head_has_come(client: BearerClient, run: Attempt) -> None:
    """The subscription is in place before the head leaves: many times, since it is a race."""
    step_id = run.proceed("x")
    for _ in range(100):
        with client.stream(run.path("/stream")) as stream:
            arrives(run, step_id, stream)


def test_every_subscriber_gets_them(client: BearerClient, run: Attempt) -> None:
    step_id = run.proceed("x")
    with client.stream(run.path("/stream")) as one, client.stream(run.path("/stream")) as two:
        run.publish(step_id, 7, "x").expect(204)
        for stream in (one, two):
            event = stream.next()
            assert event is not None
            assert event.json["seq"] == 7


def test_only_those_of_the_execution(client: BearerClient, new_run: Callable[..., Attempt]) -> None:
    first, second = new_run(), new_run()
    mine, other = first.proceed("x"), second.proceed("x")
    with client.stream(first.path("/stream")) as stream:
        second.publish(other, 1, "not yours").expect(204)
        first.publish(mine, 2, "yours").expect(204)
        event = stream.next()
        assert event is not None
        assert event.json == {"step_id": mine, "seq": 2, "data": "yours"}


def test_nothing_from_before(client: BearerClient, run: Attempt) -> None:
    step_id = run.proceed("x")
    run.publish(step_id, 1, "early").expect(204)
    with client.stream(run.path("/stream")) as stream:
        run.publish(step_id, 2, "late").expect(204)
        event = stream.next()
        assert event is not None
        assert event.json["seq"] == 2


def test_leaves_nothing_in_the_record(client: BearerClient, run: Attempt) -> None:
    step_id = run.proceed("x")
    run.heartbeat().expect(204)
    before = client.events(run.id), client.step(run.id, step_id)
    run.publish(step_id, 1, "x").expect(204)
    assert (client.events(run.id), client.step(run.id, step_id)) == before


@pytest.mark.parametrize("end", ["complete", "fail", "cancel"])
def test_ends_with_the_execution(client: BearerClient, run: Attempt, end: str) -> None:
    with client.stream(run.path("/stream")) as stream:
        if end == "cancel":
            client.cancel(run.id)
        else:
            getattr(run, end)().expect(204)
        assert stream.rest() == []
    with client.stream(run.path("/stream")) as stream:
        assert stream.rest() == []


def test_dispatch_headers_are_optional(client: BearerClient, run: Attempt) -> None:
    step_id = run.proceed("x")
    target = run.path(f"/steps/{step_id}/stream")
    with client.stream(run.path("/stream")) as stream:
        run.agent.client().post(target, {"seq": 1, "data": "x"}).expect(204)
        event = stream.next()
        assert event is not None
        assert event.json["seq"] == 1


def test_superseded_attempt_is_refused(client: BearerClient, run: Attempt) -> None:
    step_id = run.proceed("x")
    later = run.released()
    later.proceed("x")
    with client.stream(run.path("/stream")) as stream:
        run.publish(step_id, 1, "old").expect(409, "lease_superseded")
        later.publish(step_id, 2, "new").expect(204)
        event = stream.next()
        assert event is not None
        assert event.json["seq"] == 2


def test_step_that_is_not_executing(run: Attempt) -> None:
    run.publish(run.record("x"), 1, "x").expect(409, "conflict")
    failed = run.proceed("y")
    run.fail_step(failed).expect(200)
    run.publish(failed, 1, "x").expect(409, "conflict")
    run.publish("0" * 64, 1, "x").expect(404, "not_found")


def test_ended_execution(run: Attempt) -> None:
    step_id = run.proceed("x")
    run.complete().expect(204)
    answer = run.publish(step_id, 1, "x")
    assert answer.status == 409


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"data": "x"}, "seq"),
        ({"seq": 1}, "data"),
        ({"seq": "1", "data": "x"}, "seq"),
        ({"seq": 1.5, "data": "x"}, "seq"),
        ({"seq": 2**63, "data": "x"}, "seq"),
        ({"seq": -(2**63) - 1, "data": "x"}, "seq"),
        ({"seq": None, "data": "x"}, "seq"),
        ({"seq": 1, "data": 5}, "data"),
        ({"seq": 1, "data": None}, "data"),
        ({"seq": 1, "data": "x", "done": True}, "done"),
    ],
)
def test_bad_field_is_named(run: Attempt, body: dict[str, object], field: str) -> None:
    step_id = run.proceed("x")
    target = run.path(f"/steps/{step_id}/stream")
    run.client.post(target, body, bad=True).invalid(field)


@pytest.mark.parametrize("seq", [-(2**63), -1, 0, 2**53 + 1, 2**63 - 1])
def test_seq_is_64_bits(client: BearerClient, run: Attempt, seq: int) -> None:
    step_id = run.proceed("x")
    with client.stream(run.path("/stream")) as stream:
        run.publish(step_id, seq, "").expect(204)
        event = stream.next()
        assert event is not None
        assert event.json == {"step_id": step_id, "seq": seq, "data": ""}


def test_slow_reader_does_not_slow_the_producer(
    client: BearerClient, run: Attempt, new_agent: Callable[..., FakeAgent]
) -> None:
    """A reader that stops reading loses deltas; the agent goes on, others see all."""
    step_id = run.proceed("x")
    with client.stream(run.path("/stream")) as good:
        arrives(run, step_id, good)
        with StuckReader(client, run):
            for seq in range(600):
                run.publish(step_id, seq, "d" * 7000).expect(204)
                event = good.next()
                assert event is not None
                assert event.json["seq"] == seq
    run.complete().expect(204)


class StuckReader:
    """Subscribes and then never reads."""

    def __init__(self, client: BearerClient, run: Attempt) -> None:
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.connect((client.host, client.port))
        head = (
            f"GET {run.path('/stream')} HTTP/1.1\r\nHost: {client.host}:{client.port}\r\n"
            f"Authorization: Bearer {client.token}\r\nAccept: text/event-stream\r\n\r\n"
        )
        self.socket.sendall(head.encode())

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self.socket.close()


def test_reader_that_leaves_is_forgotten(client: BearerClient, run: Attempt) -> None:
    step_id = run.proceed("x")
    for _ in range(20):
        with client.stream(run.path("/stream")):
            pass
    for seq in range(10):
        run.publish(step_id, seq, "x").expect(204)


def test_unknown_and_unauthorized(client: BearerClient, run: Attempt) -> None:
    client.get(f"/v0/executions/{UNKNOWN}/stream").expect(404, "not_found")
    run.client.get(run.path("/stream")).expect(401, "unauthorized")


@pytest.mark.slow
def test_keep_alive_comment(client: BearerClient, run: Attempt) -> None:
    with client.stream(run.path("/stream")) as stream:
        eventually(lambda: stream.comments > 0, 20, what="a comment within 15 s")


def test_publishing_from_many_threads(client: BearerClient, run: Attempt) -> None:
    step_id = run.proceed("x")
    seen: set[int] = set()
    with client.stream(run.path("/stream")) as stream:
        arrives(run, step_id, stream)

        def publish(base: int) -> None:
            for n in range(5):
                run.publish(step_id, base + n, "x").expect(204)

        threads = [threading.Thread(target=publish, args=(base * 100,)) for base in range(6)]
        for thread in threads:
            thread.start()
        while len(seen) < 30:
            event = stream.next()
            assert event is not None
            seen.add(event.json["seq"])
        for thread in threads:
            thread.join()
    assert seen == {base * 100 + n for base in range(6) for n in range(5)}
