"""Creating, reading, listing and cancelling executions."""

import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from harness import Attempt, BearerClient, FakeAgent, Kernel, eventually

UNKNOWN = "01920000-0000-7000-8000-000000000000"


def listed(client: BearerClient, query: str) -> list[dict[str, Any]]:
    """All pages of a listing."""
    found: list[dict[str, Any]] = []
    cursor = ""
    while True:
        page = client.get(f"/v0/executions?{query}{cursor}").expect(200).json
        found += page["executions"]
        if "next_cursor" not in page:
            return found
        cursor = f"&cursor={page['next_cursor']}"


class TestCreate:
    def test_answer_is_the_running_execution(self, client: BearerClient, agent: FakeAgent) -> None:
        answer = client.post("/v0/executions", {"agent_id": agent.id, "input": {"n": 1}})
        execution = answer.expect(201).json
        assert execution["status"] == "running"
        assert execution["agent_id"] == agent.id
        assert execution["input"] == {"n": 1}
        assert execution["created_by"] == "bootstrap"
        assert execution["created_at"] <= execution["updated_at"]
        for absent in ("output", "failure_reason", "idempotency_key", "on_behalf_of", "session"):
            assert absent not in execution

    def test_id_tells_its_time(self, client: BearerClient, agent: FakeAgent) -> None:
        before = time.time()
        execution = client.create(agent.id)
        millis = uuid.UUID(execution["id"]).int >> 80
        assert before - 2 <= millis / 1000 <= time.time() + 2

    @pytest.mark.parametrize("body", [{}, {"input": None}])
    def test_input_defaults_to_null(
        self, client: BearerClient, agent: FakeAgent, body: dict[str, Any]
    ) -> None:
        assert client.create(agent.id, **body)["input"] is None

    @pytest.mark.parametrize("value", [0, False, "", "text", [], {}, [1, [2]], 1.5])
    def test_input_is_any_json(self, client: BearerClient, agent: FakeAgent, value: Any) -> None:
        execution = client.create(agent.id, input=value)
        assert execution["input"] == value
        assert client.execution(execution["id"])["input"] == value

    def test_unknown_agent(self, client: BearerClient) -> None:
        client.post("/v0/executions", {"agent_id": "nobody-here"}).expect(404, "not_found")

    def test_null_optionals_count_as_missing(self, client: BearerClient, agent: FakeAgent) -> None:
        fields = ("session", "parent_execution_id", "idempotency_key", "spawned_by", "on_behalf_of")
        execution = client.create(agent.id, **dict.fromkeys(fields))
        assert not set(fields) & set(execution)

    def test_on_behalf_of_is_recorded(self, client: BearerClient, agent: FakeAgent) -> None:
        execution = client.create(agent.id, on_behalf_of="Zoë <zoe@example.com>")
        assert execution["on_behalf_of"] == "Zoë <zoe@example.com>"
        assert client.execution(execution["id"])["on_behalf_of"] == "Zoë <zoe@example.com>"

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("agent_id", None),
            ("agent_id", 7),
            ("agent_id", ["a"]),
            ("idempotency_key", 7),
            ("idempotency_key", True),
            ("idempotency_key", ""),
            ("idempotency_key", "a\nb"),
            ("idempotency_key", "a\u0000b"),
            ("on_behalf_of", {"name": "zoe"}),
            ("on_behalf_of", ""),
            ("on_behalf_of", "a\tb"),
            ("on_behalf_of", "a\u007fb"),
            ("session", ""),
            ("session", 7),
            ("session", ["s"]),
            ("session", "a\rb"),
            ("session", "a\u0085b"),
            ("session", "s" * 257),
            ("session", "é" * 128 + "s"),
            ("parent_execution_id", ""),
            ("parent_execution_id", 7),
            ("parent_execution_id", "x"),
            ("parent_execution_id", UNKNOWN[:-1]),
            ("parent_execution_id", [UNKNOWN]),
            ("inputs", 1),
            ("agent", "x"),
        ],
    )
    def test_bad_field_is_named(
        self, client: BearerClient, agent: FakeAgent, field: str, value: Any
    ) -> None:
        body = {"agent_id": agent.id, field: value}
        client.post("/v0/executions", body, bad=True).invalid(field)

    def test_agent_id_is_required(self, client: BearerClient) -> None:
        client.post("/v0/executions", {"input": 1}, bad=True).invalid("agent_id")


class TestIdempotencyKey:
    def test_repeat_returns_the_first(self, client: BearerClient, agent: FakeAgent) -> None:
        body = {"agent_id": agent.id, "input": 1, "idempotency_key": "order-7"}
        first = client.post("/v0/executions", body).expect(201).json
        assert first["idempotency_key"] == "order-7"
        again = {**body, "input": 2, "on_behalf_of": "someone else"}
        second = client.post("/v0/executions", again).expect(200).json
        assert second["id"] == first["id"]
        assert second["input"] == 1
        assert "on_behalf_of" not in second
        assert len(listed(client, f"agent_id={agent.id}")) == 1

    def test_repeat_of_an_ended_one(
        self, client: BearerClient, new_run: Callable[..., Attempt]
    ) -> None:
        run = new_run(idempotency_key="k")
        run.complete("done").expect(204)
        body = {"agent_id": run.agent.id, "idempotency_key": "k"}
        again = client.post("/v0/executions", body).expect(200).json
        assert again["id"] == run.id
        assert again["status"] == "completed"
        assert again["output"] == "done"

    def test_key_belongs_to_its_agent(
        self, client: BearerClient, new_agent: Callable[..., FakeAgent]
    ) -> None:
        ids = {client.create(new_agent().id, idempotency_key="same")["id"] for _ in range(2)}
        assert len(ids) == 2

    def test_parallel_repeats_create_one(self, client: BearerClient, agent: FakeAgent) -> None:
        body = {"agent_id": agent.id, "idempotency_key": "race"}
        with ThreadPoolExecutor(12) as pool:
            calls = [pool.submit(client.post, "/v0/executions", body) for _ in range(12)]
        answers = [call.result() for call in calls]
        assert sorted(answer.status for answer in answers) == [200] * 11 + [201]
        assert len({answer.json["id"] for answer in answers}) == 1
        agent.take(answers[0].json["id"])
        assert len(listed(client, f"agent_id={agent.id}")) == 1


class TestGet:
    def test_same_object_as_created(self, client: BearerClient, agent: FakeAgent) -> None:
        created = client.create(agent.id, input=[1], idempotency_key="x", on_behalf_of="zoe")
        read = client.execution(created["id"])
        volatile = ("updated_at", "waiting_on")
        assert {k: v for k, v in read.items() if k not in volatile} == {
            k: v for k, v in created.items() if k not in volatile
        }

    def test_agent_reads_its_own(self, client: BearerClient, run: Attempt) -> None:
        assert run.execution().expect(200).json["id"] == run.id
        assert run.agent.client().get(run.path()).expect(200).json["id"] == run.id

    def test_unknown(self, client: BearerClient) -> None:
        client.get(f"/v0/executions/{UNKNOWN}").expect(404, "not_found")

    @pytest.mark.parametrize("bad", ["x", "1234", UNKNOWN[:-1], UNKNOWN + "0", "%2e%2e"])
    def test_bad_id(self, client: BearerClient, bad: str) -> None:
        client.get(f"/v0/executions/{bad}", bad=True).expect(400, "validation_error")

    def test_completed(self, client: BearerClient, run: Attempt) -> None:
        run.complete({"answer": 42}, state={"n": 1}).expect(204)
        execution = client.execution(run.id)
        assert execution["status"] == "completed"
        assert execution["output"] == {"answer": 42}
        assert "state" not in execution

    def test_failed(self, client: BearerClient, run: Attempt) -> None:
        run.fail("agent_error: ValueError: no").expect(204)
        execution = client.execution(run.id)
        assert execution["status"] == "failed"
        assert execution["failure_reason"] == "agent_error: ValueError: no"
        assert "output" not in execution

    def test_waiting_on_the_agent(self, client: BearerClient, run: Attempt) -> None:
        run.heartbeat().expect(204)
        [entry] = client.execution(run.id)["waiting_on"]
        assert entry["kind"] == "agent"
        assert entry["until"] > client.execution(run.id)["created_at"]

    def test_waiting_on_a_delivery(
        self, client: BearerClient, new_agent: Callable[..., FakeAgent]
    ) -> None:
        agent = new_agent()
        agent.stop()
        execution = client.create(agent.id)

        def failed_once() -> bool:
            return "dispatch.failed" in client.event_types(execution["id"])

        eventually(failed_once)
        kinds = {entry["kind"] for entry in client.execution(execution["id"])["waiting_on"]}
        assert kinds == {"dispatch"}
        client.cancel(execution["id"])

    def test_previous_is_null_without_a_parent(self, client: BearerClient, run: Attempt) -> None:
        assert client.get(run.path("/previous")).expect(200).json == {"state": None}
        assert run.client.get(run.path("/previous")).expect(200).json == {"state": None}
        client.get(f"/v0/executions/{UNKNOWN}/previous").expect(404, "not_found")


class TestList:
    def test_newest_first(self, client: BearerClient, agent: FakeAgent) -> None:
        ids = [client.create(agent.id)["id"] for _ in range(5)]
        assert [e["id"] for e in listed(client, f"agent_id={agent.id}")] == ids[::-1]
        assert ids == sorted(ids)

    @pytest.mark.parametrize("limit", [1, 2, 3, 6, 7, 8])
    def test_pages(self, client: BearerClient, agent: FakeAgent, limit: int) -> None:
        ids = [client.create(agent.id)["id"] for _ in range(7)]
        found = listed(client, f"agent_id={agent.id}&limit={limit}")
        assert [e["id"] for e in found] == ids[::-1]

    def test_pages_stand_still_while_others_are_created(
        self, client: BearerClient, agent: FakeAgent
    ) -> None:
        ids = [client.create(agent.id)["id"] for _ in range(4)]
        query = f"/v0/executions?agent_id={agent.id}&limit=2"
        first = client.get(query).expect(200).json
        client.create(agent.id)
        second = client.get(f"{query}&cursor={first['next_cursor']}").expect(200).json
        seen = [e["id"] for e in first["executions"] + second["executions"]]
        assert seen == ids[::-1]
        assert "next_cursor" not in second

    def test_entries_are_executions(self, client: BearerClient, run: Attempt) -> None:
        run.complete({"x": 1}).expect(204)
        assert listed(client, f"agent_id={run.agent.id}") == [client.execution(run.id)]

    def test_by_status(self, client: BearerClient, new_run: Callable[..., Attempt]) -> None:
        runs = {name: new_run() for name in ("running", "completed", "failed", "cancelled")}
        runs["completed"].complete().expect(204)
        runs["failed"].fail().expect(204)
        client.cancel(runs["cancelled"].id)
        agent_id = runs["running"].agent.id
        for status, run in runs.items():
            found = listed(client, f"agent_id={agent_id}&status={status}")
            assert [e["id"] for e in found] == [run.id], status
        for status in ("pending", "blocked"):
            assert listed(client, f"agent_id={agent_id}&status={status}") == []

    def test_by_prefix(self, client: BearerClient, agent: FakeAgent) -> None:
        execution = client.create(agent.id)
        for length in (18, 23, 30, 36):
            prefix = execution["id"][:length]
            found = listed(client, f"prefix={prefix}&agent_id={agent.id}")
            assert [e["id"] for e in found] == [execution["id"]], prefix
        assert listed(client, f"prefix=00000000&agent_id={agent.id}") == []

    def test_prefix_cuts_at_its_end(self, client: BearerClient, agent: FakeAgent) -> None:
        ids = [client.create(agent.id)["id"] for _ in range(10)]
        for length in (1, 8, 9, 13, 14, 20):
            wanted = {i for i in ids if i.startswith(ids[0][:length])}
            found = listed(client, f"prefix={ids[0][:length]}&agent_id={agent.id}&limit=3")
            assert {e["id"] for e in found} == wanted

    def test_filters_that_nothing_meets(self, client: BearerClient, agent: FakeAgent) -> None:
        client.create(agent.id)
        for query in (f"session=s&agent_id={agent.id}", f"spawned_by={UNKNOWN}", "agent_id=nobody"):
            assert listed(client, query) == []

    @pytest.mark.parametrize("query", ["status=done", "status=Running", "limit=0", "limit=-1"])
    def test_bad_status_and_limit(self, client: BearerClient, query: str) -> None:
        field = query.split("=")[0]
        client.get(f"/v0/executions?{query}", bad=True).invalid(field)

    @pytest.mark.parametrize("limit", ["x", "1.5", "", "-99999999999999999999", "0x10", "%2B5"])
    def test_limit_is_a_number(self, client: BearerClient, limit: str) -> None:
        client.get(f"/v0/executions?limit={limit}", bad=True).invalid("limit")

    @pytest.mark.parametrize("limit", ["9223372036854775808", "9" * 23, "9" * 4000])
    def test_a_limit_of_any_length(
        self, client: BearerClient, agent: FakeAgent, limit: str
    ) -> None:
        execution = client.create(agent.id)
        answer = client.get(f"/v0/executions?agent_id={agent.id}&limit={limit}", bad=True)
        assert [e["id"] for e in answer.expect(200).json["executions"]] == [execution["id"]]

    @pytest.mark.parametrize("cursor", ["x", "%00", "AAAA", UNKNOWN + "x", "%F0%9F%98%80"])
    def test_bad_cursor(self, client: BearerClient, cursor: str) -> None:
        client.get(f"/v0/executions?cursor={cursor}", bad=True).invalid("cursor")

    def test_bad_spawned_by(self, client: BearerClient) -> None:
        client.get("/v0/executions?spawned_by=nope", bad=True).invalid("spawned_by")

    def test_agent_id_is_decoded(
        self, client: BearerClient, new_agent: Callable[..., FakeAgent]
    ) -> None:
        agent = new_agent(agent_id=f"a+b&c=é-{uuid.uuid4().hex}")
        execution = client.create(agent.id)
        quoted = agent.id.encode().hex(" ").replace(" ", "%")
        assert [e["id"] for e in listed(client, f"agent_id=%{quoted}")] == [execution["id"]]


class TestCancel:
    def test_running(self, client: BearerClient, run: Attempt) -> None:
        client.cancel(run.id)
        execution = client.execution(run.id)
        assert execution["status"] == "cancelled"
        assert execution["failure_reason"] == "client_cancelled"
        assert "output" not in execution

    def test_before_the_agent_could_be_reached(
        self, client: BearerClient, new_agent: Callable[..., FakeAgent]
    ) -> None:
        agent = new_agent()
        agent.stop()
        execution = client.create(agent.id)
        client.cancel(execution["id"])
        assert client.execution(execution["id"])["status"] == "cancelled"

    @pytest.mark.parametrize("end", ["complete", "fail", "cancel"])
    def test_ended(self, client: BearerClient, run: Attempt, end: str) -> None:
        if end == "cancel":
            client.cancel(run.id)
        else:
            getattr(run, end)().expect(204)
        before = client.execution(run.id)
        client.post(run.path("/cancel")).expect(409, "conflict")
        assert client.execution(run.id) == before

    def test_unknown(self, client: BearerClient) -> None:
        client.post(f"/v0/executions/{UNKNOWN}/cancel").expect(404, "not_found")

    def test_executing_steps_are_cancelled(self, client: BearerClient, run: Attempt) -> None:
        done = run.record("done", 1, "ok")
        open_ids = [run.proceed("open", n) for n in range(3)]
        client.cancel(run.id)
        assert client.step(run.id, done)["status"] == "succeeded"
        for step_id in open_ids:
            step = client.step(run.id, step_id)
            assert step["status"] == "cancelled"
            assert step["error"]["reason"] == "execution_cancelled"
            assert "result" not in step

    def test_only_one_of_many_wins(self, client: BearerClient, run: Attempt) -> None:
        with ThreadPoolExecutor(8) as pool:
            calls = [pool.submit(client.post, run.path("/cancel")) for _ in range(8)]
        assert sorted(c.result().status for c in calls) == [204] + [409] * 7

    def test_against_every_other_write(
        self, client: BearerClient, new_run: Callable[..., Attempt]
    ) -> None:
        """Whatever the order: no write is half done, and nothing follows the end but its own."""
        for _ in range(5):
            run = new_run()
            step_id = run.proceed("open")
            calls: list[Callable[[], Any]] = [
                lambda run=run: client.post(run.path("/cancel")),
                lambda run=run: run.submit("another"),
                lambda run=run, step_id=step_id: run.complete_step(step_id, 1),
                lambda run=run: run.heartbeat(),
                lambda run=run: run.complete("won"),
            ]
            with ThreadPoolExecutor(len(calls)) as pool:
                answers = [f.result() for f in [pool.submit(call) for call in calls]]
            statuses = {answers[0].status, answers[4].status}
            assert statuses == {204, 409}, answers
            check_ending(client, run, cancelled=answers[0].status == 204)


def check_ending(client: BearerClient, run: Attempt, *, cancelled: bool) -> None:
    log = client.event_types(run.id)
    ending = "execution.cancelled" if cancelled else "execution.completed"
    after = log[log.index(ending) + 1 :]
    allowed = {"step.cancelled", "dispatch.discarded"} if cancelled else {"dispatch.discarded"}
    assert set(after) <= allowed, log
    status = "cancelled" if cancelled else "completed"
    assert client.execution(run.id)["status"] == status
    open_states = {"proposed", "allowed", "executing"}
    if cancelled:
        assert not open_states & {step["status"] for step in client.steps(run.id)}


class TestDeadline:
    def test_execution_past_its_deadline_is_cancelled(
        self, new_kernel: Callable[..., Kernel], new_agent: Callable[..., FakeAgent]
    ) -> None:
        kernel = new_kernel(
            env={"REBUNO_DEADLINE_TIMEOUT": "1s", "REBUNO_DEADLINE_CHECK_INTERVAL": "100ms"}
        )
        client, agent = kernel.client(), new_agent(kernel)
        execution = client.create(agent.id)
        assert execution["deadline_at"] > execution["created_at"]
        run = agent.take_attempt(execution["id"])
        step_id = run.proceed("slow")

        def cancelled() -> bool:
            return bool(client.execution(run.id)["status"] == "cancelled")

        eventually(cancelled)
        ended = client.execution(run.id)
        assert ended["failure_reason"] == "deadline_exceeded"
        assert ended["deadline_at"] == execution["deadline_at"]
        assert client.step(run.id, step_id)["status"] == "cancelled"
        events = client.events(run.id)
        for event in events:
            if event["type"].startswith("execution."):
                assert event["payload"]["deadline_at"] == execution["deadline_at"]
        assert run.heartbeat().expect(409).code == "lease_superseded"

    def test_none_by_default(self, client: BearerClient, run: Attempt) -> None:
        assert "deadline_at" not in client.execution(run.id)
