import asyncio
import json
from typing import Any

import httpx2
import pytest
from conftest import Bench
from scripted_kernel import Call, error
from starlette.responses import JSONResponse, StreamingResponse

import rebuno
from rebuno import Client
from rebuno._transport import LASTING
from rebuno.types import ExecutionStatus, SpawnedBy


def test_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REBUNO_URL", "REBUNO_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match="REBUNO_URL"):
        Client()
    client = Client("http://kernel/")
    assert (client.base_url, client.api_key) == ("http://kernel", "")
    monkeypatch.setenv("REBUNO_URL", "http://env/")
    monkeypatch.setenv("REBUNO_API_KEY", "env")
    client = Client()
    assert (client.base_url, client.api_key) == ("http://env", "env")
    client = Client("http://arg", "arg")
    assert (client.base_url, client.api_key) == ("http://arg", "arg")


async def test_authorization(bench: Bench) -> None:
    bench.kernel.add()
    async with bench.client(api_key="key") as client, bench.client(api_key="") as bare:
        await client.get("e1")
        await bare.get("e1")
    first, second = bench.kernel.calls
    assert first.headers["authorization"] == "Bearer key"
    assert "authorization" not in second.headers


async def test_create(bench: Bench) -> None:
    made = JSONResponse({"id": "e1", "agent_id": "a", "status": "pending"}, status_code=201)
    bench.kernel.answer("executions", made, times=9)
    async with bench.client() as client:
        assert (await client.create("a")).status is ExecutionStatus.PENDING
        await client.create(
            "a",
            {"x": 1},
            session="s",
            parent_execution_id="p",
            idempotency_key="k",
            spawned_by=SpawnedBy(execution_id="e", step_id="s"),
            on_behalf_of="u",
        )
        with pytest.raises(TypeError, match="input cannot be JSON"):
            await client.create("a", float("nan"))
    assert [call.body for call in bench.kernel.calls] == [
        {"agent_id": "a"},
        {
            "agent_id": "a",
            "input": {"x": 1},
            "session": "s",
            "parent_execution_id": "p",
            "idempotency_key": "k",
            "spawned_by": {"execution_id": "e", "step_id": "s"},
            "on_behalf_of": "u",
        },
    ]


# call, method, path, query, body, answer, what is read of it
CALLS: list[tuple[Any, str, str, str, Any, Any, Any]] = [
    (
        lambda client: client.list(agent_id="a", status="running", cursor="c"),
        "GET",
        "/v0/executions",
        "agent_id=a&status=running&cursor=c&limit=50",
        None,
        {"executions": [{"id": "e1"}], "next_cursor": "n"},
        lambda page: (page.executions[0].id, page.next_cursor) == ("e1", "n"),
    ),
    (
        lambda client: client.events("e1", after_seq=2, limit=5),
        "GET",
        "/v0/executions/e1/events",
        "limit=5&after_seq=2",
        None,
        [{"event_seq": 3, "type": "t"}],
        lambda events: events[0].event_seq == 3,
    ),
    (
        lambda client: client.list_steps("e1", status="terminal"),
        "GET",
        "/v0/executions/e1/steps",
        "status=terminal",
        None,
        None,
        lambda steps: steps == [],
    ),
    (
        lambda client: client.get_step("e1", "s1"),
        "GET",
        "/v0/executions/e1/steps/s1",
        "",
        None,
        {"step_id": "s1", "result": [1]},
        lambda step: step.result == [1],
    ),
    (
        lambda client: client.cancel("e1"),
        "POST",
        "/v0/executions/e1/cancel",
        "",
        None,
        None,
        lambda nothing: nothing is None,
    ),
    (
        lambda client: client.fork("e1", at_seq=3, policy_bundle="b"),
        "POST",
        "/v0/executions/e1/fork",
        "",
        {"at_seq": 3, "policy_bundle": "b"},
        {"id": "e2", "forked_from": "e1", "fork_seq": 3, "restoration": {"ws": {"covered": True}}},
        lambda fork: (fork.forked_from, fork.restoration) == ("e1", {"ws": {"covered": True}}),
    ),
    (
        lambda client: client.fork_points("e1"),
        "GET",
        "/v0/executions/e1/fork-points",
        "",
        None,
        {
            "latest_seq": 9,
            "resources": {"ws": 4},
            "checkpoints": [{"key": "ws", "generation": 1, "covered_seq": 5}],
        },
        lambda points: points.checkpoints[0].covered_seq == 5 and points.resources == {"ws": 4},
    ),
    (
        lambda client: client.list_approvals(),
        "GET",
        "/v0/approvals",
        "status=pending",
        None,
        [{"id": "p1"}],
        lambda approvals: approvals[0].id == "p1",
    ),
    (
        lambda client: client.get_approval("p1"),
        "GET",
        "/v0/approvals/p1",
        "",
        None,
        {"id": "p1", "approvers": ["x"], "args": {"to": 1}, "target": "t", "created_at": "c"},
        lambda approval: (approval.approvers, approval.args) == (["x"], {"to": 1}),
    ),
    (
        lambda client: client.grant_approval("p1"),
        "POST",
        "/v0/approvals/p1/grant",
        "",
        {"rationale": ""},
        None,
        lambda nothing: nothing is None,
    ),
    (
        lambda client: client.deny_approval("p1", decided_by="me", rationale="why"),
        "POST",
        "/v0/approvals/p1/deny",
        "",
        {"rationale": "why", "decided_by": "me"},
        None,
        lambda nothing: nothing is None,
    ),
]


@pytest.mark.parametrize(
    ("call", "method", "path", "query", "body", "answer", "read"),
    CALLS,
    ids=[f"{entry[1]} {entry[2]}" for entry in CALLS],
)
async def test_calls(
    bench: Bench,
    call: Any,
    method: str,
    path: str,
    query: str,
    body: Any,
    answer: Any,
    read: Any,
) -> None:
    bench.kernel.answer(path.rsplit("/", 1)[1], JSONResponse(answer))
    async with bench.client() as client:
        assert read(await call(client))
    (seen,) = bench.kernel.calls
    assert (seen.method, seen.path, seen.query, seen.body) == (method, path, query, body)


async def test_errors(bench: Bench) -> None:
    async with bench.client() as client:
        with pytest.raises(rebuno.NotFoundError):
            await client.get("unknown")
        bench.kernel.answer("cancel", error("conflict", 409, "it has ended"))
        with pytest.raises(rebuno.ConflictError, match="it has ended"):
            await client.cancel("e1")
        bench.kernel.answer("get", JSONResponse("<html>"))
        with pytest.raises(rebuno.RebunoError, match="not what the protocol says"):
            await client.get("e1")


class Log:
    """An event log that grows; answers `events` as the kernel does, waiting included."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.events: list[dict[str, Any]] = []
        self.grown = asyncio.Event()
        bench.kernel.answer("events", self.answer, times=1000)

    def add(self, *types: str) -> None:
        for kind in types:
            self.events.append({"event_seq": len(self.events) + 1, "type": kind})
        self.grown.set()

    async def answer(self, call: Call) -> Any:
        after = int(httpx2.QueryParams(call.query).get("after_seq", 0))
        ended = any(event["type"].startswith("execution.c") for event in self.events)
        while len(self.events) <= after and not ended:
            self.grown.clear()
            await self.grown.wait()
        return JSONResponse(self.events[after:])


async def test_watch(bench: Bench) -> None:
    log = Log(bench)
    log.add("created", "started")
    seen = []
    async with bench.client() as client:
        async for event in client.watch("e1"):
            seen.append(event.type)
            if len(seen) == 2:
                # A cancel's own events follow the one that ended the execution.
                log.add("execution.cancelled", "step.cancelled")
    assert seen == ["created", "started", "execution.cancelled", "step.cancelled"]
    assert "wait=17" in bench.kernel.calls[0].query


async def test_watch_takes_up_a_lost_connection(bench: Bench) -> None:
    bench.kernel.answer("events", JSONResponse([{"event_seq": 1, "type": "created"}]))
    bench.kernel.answer("events", httpx2.ReadError("reset"), times=2)
    log = Log(bench)
    log.add("created", "execution.completed")
    async with bench.client() as client:
        assert [event.event_seq async for event in client.watch("e1")] == [1, 2]


async def test_watch_does_not_hammer_a_kernel_that_does_not_wait(bench: Bench) -> None:
    bench.kernel.answer("events", JSONResponse([]), times=3)
    log = Log(bench)
    log.add("execution.completed")
    async with bench.client() as client:
        assert [event.event_seq async for event in client.watch("e1")] == [1]
    assert bench.time.pauses == [0.5, 0.5, 0.5]


async def test_wait(bench: Bench) -> None:
    bench.kernel.add(status="running")
    log = Log(bench)
    async with bench.client() as client:
        waiting = asyncio.create_task(client.wait("e1"))
        await bench.kernel.until_called("events")
        bench.kernel.add(status="completed", output=7)
        log.add("execution.completed")
        assert (await waiting).output == 7
        calls = len(bench.kernel.calls)
        assert (await client.wait("e1")).status == "completed"
        assert len(bench.kernel.calls) == calls + 1


async def test_wait_that_takes_too_long(bench: Bench) -> None:
    bench.kernel.add(status="running")
    Log(bench)
    async with bench.client() as client:
        with pytest.raises(TimeoutError, match=r"e1 has not ended within 0.01 s"):
            await client.wait("e1", timeout=0.01)


def deltas(*numbers: int) -> StreamingResponse:
    lines = [": keep-alive\n\n"]
    lines += [
        f"data: {json.dumps({'step_id': 's1', 'seq': number, 'data': f'piece {number}'})}\n\n"
        for number in numbers
    ]
    return StreamingResponse(iter(lines), media_type="text/event-stream")


async def test_stream(bench: Bench) -> None:
    bench.kernel.add(status="running")

    def broken(call: Call) -> Any:
        return deltas(1)

    def last(call: Call) -> Any:
        bench.kernel.add(status="completed")
        return deltas(2, 3)

    bench.kernel.answer("stream", httpx2.ConnectError("down"))
    bench.kernel.answer("stream", broken)
    bench.kernel.answer("stream", last)
    async with bench.client() as client:
        pieces = [(delta.seq, delta.data) async for delta in client.stream("e1")]
    assert pieces == [(1, "piece 1"), (2, "piece 2"), (3, "piece 3")]
    assert bench.kernel.named("stream")[0].headers["accept"] == "text/event-stream"


async def test_stream_of_nothing_there(bench: Bench) -> None:
    bench.kernel.answer("stream", error("not_found", 404))
    async with bench.client() as client:
        with pytest.raises(rebuno.NotFoundError):
            async for _ in client.stream("unknown"):
                pass


async def test_stream_gives_up_at_last(bench: Bench) -> None:
    bench.kernel.answer("stream", httpx2.ConnectError("down"), times=1000)
    async with bench.client() as client:
        with pytest.raises(rebuno.NetworkError):
            async for _ in client.stream("e1"):
                pass
    assert len(bench.kernel.named("stream")) == LASTING.attempts
