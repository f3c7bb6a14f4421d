"""What waits for a person: listed, read, granted, denied, expired."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

import pytest

from conftest import SetPolicy
from harness import Answer, Attempt, BearerClient, FakeAgent, eventually, rule
from harness.raw import member
from harness.waiting import let_pass

UNKNOWN = "01920000-0000-7000-8000-000000000000"
NAME_MAX = 256
RATIONALE_MAX = 64 * 1024
HELD = rule("held", "require_approval", reason="needs a look")
DECIDE = ["grant", "deny"]

Held = Callable[..., tuple[Attempt, str]]


def when(text: str) -> datetime:
    return datetime.fromisoformat(text)


def soon(timeout: str = "1s", **config: Any) -> dict[str, Any]:
    return rule("held", "require_approval", approval_config={"timeout": timeout, **config})


def decide(client: BearerClient, verb: str, approval_id: str, **fields: Any) -> Answer:
    return client.post(f"/v0/approvals/{approval_id}/{verb}", fields)


@pytest.fixture
def held(policy: SetPolicy, new_run: Callable[..., Attempt]) -> Held:
    """A run of which one step waits, under the given rule."""

    def new(gate: dict[str, Any] = HELD, target: str = "send", args: Any = None) -> Any:
        policy(gate)
        run = new_run()
        return run, run.hold(target, args)

    return new


class TestReading:
    def test_shows_what_is_decided(
        self, client: BearerClient, agent: FakeAgent, run: Attempt, policy: SetPolicy
    ) -> None:
        config = {"approvers": ["alice", "bob"], "timeout": "5m", "message": "check the path"}
        policy(rule("write", "require_approval", approval_config=config, reason="writes"))
        args = b'{ "path": "/tmp/\\u00e9", "n": 1.0 , "b":{"a":null}}'
        approval_id = run.hold("fs_write", args)
        step = client.steps(run.id)[0]
        answer = client.get(f"/v0/approvals/{approval_id}").expect(200)
        found = answer.json
        assert member(answer.body, "args") == args
        assert found == {
            "id": approval_id,
            "step_id": step["step_id"],
            "execution_id": run.id,
            "status": "pending",
            "approvers": ["alice", "bob"],
            "message": "check the path",
            "timeout_at": found["timeout_at"],
            "created_at": found["created_at"],
            "agent_id": agent.id,
            "kind": "tool_call",
            "target": "fs_write",
            "args": {"path": "/tmp/é", "n": 1.0, "b": {"a": None}},
        }
        assert step["status"] == "awaiting_approval"
        waits = when(found["timeout_at"]) - when(found["created_at"])
        assert waits == timedelta(minutes=5)

    def test_message_is_the_rules_else_its_reason_else_none(
        self, client: BearerClient, held: Held
    ) -> None:
        both = rule("r", "require_approval", reason="why", approval_config={"message": "look"})
        assert client.approval(held(both)[1])["message"] == "look"
        assert (
            client.approval(held(rule("r", "require_approval", reason="why"))[1])["message"]
            == "why"
        )
        assert "message" not in client.approval(held(rule("r", "require_approval"))[1])

    def test_fifteen_minutes_unless_the_rule_says(self, client: BearerClient, held: Held) -> None:
        found = client.approval(held()[1])
        waits = when(found["timeout_at"]) - when(found["created_at"])
        assert waits == timedelta(minutes=15)

    def test_args_that_were_not_given(
        self, client: BearerClient, run: Attempt, policy: SetPolicy
    ) -> None:
        policy(HELD)
        found = client.approval(run.hold("x"))
        assert found["args"] is None

    def test_model_call_without_a_target(
        self, client: BearerClient, run: Attempt, policy: SetPolicy
    ) -> None:
        policy(HELD)
        found = client.approval(run.hold("", {}, kind="llm_call"))
        assert (found["kind"], found["target"]) == ("llm_call", "")

    def test_unknown(self, client: BearerClient) -> None:
        client.get(f"/v0/approvals/{UNKNOWN}").expect(404, "not_found")

    @pytest.mark.parametrize("bad", ["x", UNKNOWN[:-1], UNKNOWN + "0", UNKNOWN.replace("-", "")])
    def test_bad_id(self, client: BearerClient, bad: str) -> None:
        client.get(f"/v0/approvals/{bad}", bad=True).invalid("approval_id")
        client.post(f"/v0/approvals/{bad}/grant", {}, bad=True).invalid("approval_id")

    def test_an_execution_says_what_it_waits_for(self, client: BearerClient, held: Held) -> None:
        run, approval_id = held()
        found = client.execution(run.id)
        until = client.approval(approval_id)["timeout_at"]
        assert found["status"] == "blocked"
        assert found["waiting_on"] == [{"kind": "approval", "id": approval_id, "until": until}]
        listed = client.get("/v0/executions?status=blocked&limit=200").expect(200).json
        assert found in listed["executions"]


class TestListing:
    @pytest.fixture
    def many(self, client: BearerClient, held: Held) -> dict[str, str]:
        """One approval in each state, by state."""
        made = {}
        made["expired"] = held(soon("100ms"))[1]
        eventually(lambda: client.approval(made["expired"])["status"] == "expired")
        made["granted"] = held()[1]
        client.grant(made["granted"]).expect(204)
        made["denied"] = held()[1]
        client.deny(made["denied"]).expect(204)
        made["pending"] = held()[1]
        return made

    def test_by_status(self, client: BearerClient, many: dict[str, str]) -> None:
        for status, approval_id in many.items():
            found = client.approvals(f"?status={status}")
            assert {a["status"] for a in found} == {status}
            mine = {a["id"] for a in found} & set(many.values())
            assert mine == {approval_id}

    def test_pending_unless_asked_otherwise(
        self, client: BearerClient, many: dict[str, str]
    ) -> None:
        found = client.approvals()
        assert {a["status"] for a in found} == {"pending"}
        assert many["pending"] in [a["id"] for a in found]

    def test_empty_status_means_all(self, client: BearerClient, many: dict[str, str]) -> None:
        found = client.approvals("?status=")
        assert set(many.values()) <= {a["id"] for a in found}
        timeouts = [when(a["timeout_at"]) for a in found]
        assert timeouts == sorted(timeouts)

    @pytest.mark.parametrize("status", ["open", "PENDING", "pending,granted", "%20"])
    def test_bad_status(self, client: BearerClient, status: str) -> None:
        client.get(f"/v0/approvals?status={status}", bad=True).invalid("status")

    def test_entries_are_as_read_alone(self, client: BearerClient, many: dict[str, str]) -> None:
        listed = {a["id"]: a for a in client.approvals("?status=")}
        for approval_id in many.values():
            assert listed[approval_id] == client.approval(approval_id)

    def test_soonest_timeout_first(self, client: BearerClient, held: Held) -> None:
        order = [held(soon(t))[1] for t in ("50m", "20m", "40m", "30m")]
        mine = [a["id"] for a in client.approvals() if a["id"] in order]
        assert mine == [order[1], order[3], order[2], order[0]]
        timeouts = [when(a["timeout_at"]) for a in client.approvals()]
        assert timeouts == sorted(timeouts)

    def test_limit(self, client: BearerClient, held: Held) -> None:
        first = held(soon("2m"))[1]
        for _ in range(3):
            held(soon("3m"))
        assert [a["id"] for a in client.approvals("?limit=1")][:1] == [client.approvals()[0]["id"]]
        assert len(client.approvals("?limit=2")) == 2
        assert len(client.approvals("?status=&limit=3")) == 3
        assert first in [a["id"] for a in client.approvals("?limit=99999999999999999999")]

    @pytest.mark.parametrize("limit", ["0", "-1", "x", "", "1.0"])
    def test_bad_limit(self, client: BearerClient, limit: str) -> None:
        client.get(f"/v0/approvals?limit={limit}", bad=True).invalid("limit")

    def test_prefix(self, client: BearerClient, many: dict[str, str]) -> None:
        for length in (13, 20, 36):
            for status, approval_id in many.items():
                found = client.approvals(f"?status=&prefix={approval_id[:length]}")
                assert approval_id in [a["id"] for a in found]
                assert all(a["id"].startswith(approval_id[:length]) for a in found)
                if length == 36:
                    alone = client.approvals(f"?prefix={approval_id}")
                    assert [a["id"] for a in alone] == [approval_id] * (status == "pending")
        assert client.approvals("?status=&prefix=ffffffff") == []

    @pytest.mark.parametrize("prefix", ["g", "-", UNKNOWN + "0", "0192%00"])
    def test_bad_prefix(self, client: BearerClient, prefix: str) -> None:
        client.get(f"/v0/approvals?prefix={prefix}", bad=True).invalid("prefix")

    @pytest.mark.parametrize("name", ["status", "prefix", "limit"])
    def test_repeated(self, client: BearerClient, name: str) -> None:
        client.get(f"/v0/approvals?{name}=1&{name}=1", bad=True).invalid(name)

    def test_large_arguments_in_a_long_list(
        self, client: BearerClient, agent: FakeAgent, policy: SetPolicy, new_run: Any
    ) -> None:
        """More than is sent in one piece, and more than one page of rows."""
        policy(soon("10m"))
        text = "x" * 40_000
        made: list[str] = []
        for n in range(15):
            run = new_run()
            with ThreadPoolExecutor(5) as pool:
                made += pool.map(lambda i, r=run, n=n: r.hold("big", [n, i, text]), range(5))
        found = {a["id"]: a["args"] for a in client.approvals() if a["agent_id"] == agent.id}
        assert set(found) == set(made)
        assert sorted(a[:2] for a in found.values()) == [
            [n, i] for n in range(15) for i in range(5)
        ]
        assert all(a[2] == text for a in found.values())


class TestDeciding:
    @pytest.mark.parametrize("verb", DECIDE)
    def test_in_ones_own_name(self, client: BearerClient, held: Held, verb: str) -> None:
        run, approval_id = held()
        decide(client, verb, approval_id).expect(204)
        found = client.approval(approval_id)
        status = {"grant": "granted", "deny": "denied"}[verb]
        assert found["status"] == status
        assert found["decided_by"] == "bootstrap"
        assert not {"asserted_by", "rationale"} & set(found)
        assert when(found["created_at"]) <= when(found["decided_at"]) <= when(found["timeout_at"])
        event = next(e for e in client.events(run.id) if e["type"] == f"approval.{status}")
        assert event["payload"] == {
            "approval_id": approval_id,
            "step_id": found["step_id"],
            "execution_id": run.id,
            "status": status,
            "decided_by": "bootstrap",
        }

    @pytest.mark.parametrize("verb", DECIDE)
    def test_in_a_stated_name(self, client: BearerClient, held: Held, verb: str) -> None:
        run, approval_id = held()
        decide(client, verb, approval_id, decided_by="alice", rationale="seen\nit").expect(204)
        found = client.approval(approval_id)
        said = {"decided_by": "alice", "asserted_by": "bootstrap", "rationale": "seen\nit"}
        assert {name: found[name] for name in said} == said
        payload = client.events(run.id)[8]["payload"]
        assert {name: payload[name] for name in said} == said

    @pytest.mark.parametrize("verb", DECIDE)
    def test_stating_ones_own_name_is_stating_it(
        self, client: BearerClient, held: Held, verb: str
    ) -> None:
        _, approval_id = held()
        decide(client, verb, approval_id, decided_by="bootstrap").expect(204)
        assert client.approval(approval_id)["asserted_by"] == "bootstrap"

    @pytest.mark.parametrize("verb", DECIDE)
    def test_without_a_body(self, client: BearerClient, held: Held, verb: str) -> None:
        _, approval_id = held()
        client.post(f"/v0/approvals/{approval_id}/{verb}").expect(204)

    @pytest.mark.parametrize("verb", DECIDE)
    @pytest.mark.parametrize("rationale", ["", None])
    def test_an_empty_rationale_is_none(
        self, client: BearerClient, held: Held, verb: str, rationale: str | None
    ) -> None:
        run, approval_id = held()
        decide(client, verb, approval_id, decided_by=None, rationale=rationale).expect(204)
        assert "rationale" not in client.approval(approval_id)
        if verb == "deny":
            denied = run.redelivered().denied("send", None)
            assert denied["reason"] == "approval_denied"

    def test_anonymous_in_dev_mode(self, new_kernel: Any, new_agent: Any) -> None:
        kernel = new_kernel(mode="dev", args=["--memory"])
        client = kernel.client(token=None)
        agent = new_agent(kernel, register=False)
        client.post("/v0/agents", agent.registration()).expect(201)
        client.set_policy(agent.id, "rules: [{id: r, then: {decision: require_approval}}]")
        run = agent.take_attempt(client.create(agent.id)["id"])
        approval_id = run.hold("x")
        client.grant(approval_id).expect(204)
        assert client.approval(approval_id)["decided_by"] == "anonymous"
        run.redelivered().proceed("x")

    @pytest.mark.parametrize("verb", DECIDE)
    def test_an_empty_name(self, client: BearerClient, held: Held, verb: str) -> None:
        _, approval_id = held()
        target = f"/v0/approvals/{approval_id}/{verb}"
        client.post(target, {"decided_by": ""}, bad=True).invalid("decided_by")
        assert client.approval(approval_id)["status"] == "pending"

    @pytest.mark.parametrize("verb", DECIDE)
    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("decided_by", 1),
            ("decided_by", ["alice"]),
            ("decided_by", "a\nb"),
            ("decided_by", "a\u0000"),
            ("decided_by", "x" * (NAME_MAX + 1)),
            ("decided_by", "é" * 128 + "x"),
            ("rationale", 1),
            ("rationale", {"text": "no"}),
            ("rationale", "x" * (RATIONALE_MAX + 1)),
            ("rationale", "é" * (RATIONALE_MAX // 2) + "x"),
            ("asserted_by", "alice"),
            ("reason", "no"),
        ],
    )
    def test_bad_fields(
        self, client: BearerClient, held: Held, verb: str, field: str, value: Any
    ) -> None:
        _, approval_id = held()
        target = f"/v0/approvals/{approval_id}/{verb}"
        client.post(target, {field: value}, bad=True).invalid(field)
        assert client.approval(approval_id)["status"] == "pending"

    @pytest.mark.parametrize("verb", DECIDE)
    def test_bad_bodies(self, client: BearerClient, held: Held, verb: str) -> None:
        _, approval_id = held()
        target = f"/v0/approvals/{approval_id}/{verb}"
        for body in (b"[]", b"null", b"{", b'{"rationale": NaN}', b'{"rationale":"\xff"}'):
            client.post(target, body, bad=True).expect(400, "validation_error")
        twice = b'{"decided_by":"a","decided_by":"b"}'
        client.post(target, twice, bad=True).invalid("decided_by")

    def test_the_longest_texts(self, client: BearerClient, held: Held) -> None:
        run, approval_id = held()
        name, rationale = '"' * NAME_MAX, "é\\" * (RATIONALE_MAX // 3)
        client.deny(approval_id, decided_by=name, rationale=rationale).expect(204)
        found = client.approval(approval_id)
        assert (found["decided_by"], found["rationale"]) == (name, rationale)
        assert run.redelivered().denied("send", None)["reason"] == rationale
        lost = client.grant(approval_id).expect(409, "conflict").json
        assert lost["details"] == {"status": "denied", "decided_by": name}

    @pytest.mark.parametrize("verb", DECIDE)
    def test_unknown(self, client: BearerClient, verb: str) -> None:
        decide(client, verb, UNKNOWN).expect(404, "not_found")

    def test_shape_comes_before_existence(self, client: BearerClient) -> None:
        target = f"/v0/approvals/{UNKNOWN}/grant"
        client.post(target, {"decided_by": ""}, bad=True).invalid("decided_by")

    @pytest.mark.parametrize("first", DECIDE)
    @pytest.mark.parametrize("second", DECIDE)
    def test_decided_is_decided(
        self, client: BearerClient, held: Held, first: str, second: str
    ) -> None:
        run, approval_id = held()
        decide(client, first, approval_id, decided_by="alice").expect(204)
        before = client.approval(approval_id), client.steps(run.id)
        lost = decide(client, second, approval_id, decided_by="bob").expect(409, "conflict").json
        status = {"grant": "granted", "deny": "denied"}[first]
        assert lost["details"] == {"status": status, "decided_by": "alice"}
        assert "alice" in lost["message"] and status in lost["message"]
        assert (client.approval(approval_id), client.steps(run.id)) == before

    def test_after_the_end_of_the_execution(self, client: BearerClient, held: Held) -> None:
        run, approval_id = held()
        client.cancel(run.id)
        lost = client.grant(approval_id).expect(409, "conflict").json
        assert lost["details"] == {"status": "expired"}


class TestApprovers:
    GATE = rule("held", "require_approval", approval_config={"approvers": ["alice", "bob"]})

    @pytest.mark.parametrize("verb", DECIDE)
    @pytest.mark.parametrize("name", ["carol", "Alice", "alice ", "bootstrap"])
    def test_nobody_else(self, client: BearerClient, held: Held, verb: str, name: str) -> None:
        run, approval_id = held(self.GATE)
        decide(client, verb, approval_id, decided_by=name).expect(403, "forbidden")
        assert client.approval(approval_id)["status"] == "pending"
        assert client.execution(run.id)["status"] == "blocked"

    @pytest.mark.parametrize("verb", DECIDE)
    def test_the_callers_own_name_counts(self, client: BearerClient, held: Held, verb: str) -> None:
        _, approval_id = held(self.GATE)
        decide(client, verb, approval_id).expect(403, "forbidden")
        own = rule("r", "require_approval", approval_config={"approvers": ["bootstrap"]})
        decide(client, verb, held(own)[1]).expect(204)

    @pytest.mark.parametrize("name", ["alice", "bob"])
    def test_each_of_them(self, client: BearerClient, held: Held, name: str) -> None:
        _, approval_id = held(self.GATE)
        client.grant(approval_id, decided_by=name).expect(204)
        assert client.approval(approval_id)["decided_by"] == name

    def test_names_that_need_escapes(self, client: BearerClient, held: Held) -> None:
        name = 'Zoë "the\\boss" 😀'
        gate = rule("r", "require_approval", approval_config={"approvers": [name]})
        _, approval_id = held(gate)
        assert client.approval(approval_id)["approvers"] == [name]
        client.grant(approval_id, decided_by="Zoë").expect(403, "forbidden")
        client.grant(approval_id, decided_by=name).expect(204)

    def test_decided_comes_before_who_may(self, client: BearerClient, held: Held) -> None:
        _, approval_id = held(self.GATE)
        client.grant(approval_id, decided_by="bob").expect(204)
        client.grant(approval_id, decided_by="carol").expect(409, "conflict")


class TestExpiry:
    def test_denies_the_step_and_goes_on(self, client: BearerClient, held: Held) -> None:
        run, approval_id = held(soon("1s"))
        timeout_at = when(client.approval(approval_id)["timeout_at"])
        found = eventually(
            lambda: (a := client.approval(approval_id))["status"] == "expired" and a, 5.0
        )
        assert "decided_by" not in found
        log = client.events(run.id)
        event = next(e for e in log if e["type"] == "approval.expired")
        late = when(event["occurred_at"]) - timeout_at
        assert timedelta(0) <= late < timedelta(seconds=1), late
        denied = run.redelivered().denied("send", None)
        assert denied["reason"] == "approval_timeout"
        assert denied["rule_id"] == "held"

    def test_each_at_its_own_time(self, client: BearerClient, held: Held) -> None:
        """A later one made first does not hide an earlier one."""
        late = held(soon("3s"))[1]
        early = held(soon("500ms"))[1]
        eventually(lambda: client.approval(early)["status"] == "expired", 3.0)
        assert client.approval(late)["status"] == "pending"
        eventually(lambda: client.approval(late)["status"] == "expired", 6.0)

    @pytest.mark.parametrize("verb", DECIDE)
    def test_nothing_comes_after_it(self, client: BearerClient, held: Held, verb: str) -> None:
        _, approval_id = held(soon("200ms"))
        eventually(lambda: client.approval(approval_id)["status"] == "expired")
        lost = decide(client, verb, approval_id, decided_by="bob").expect(409, "conflict").json
        assert lost["details"] == {"status": "expired"}


class TestRaces:
    def race(self, client: BearerClient, approval_id: str, lead_s: float) -> list[Answer]:
        """Twenty grants and twenty denies at once, `lead_s` before the time is up."""
        until = when(client.approval(approval_id)["timeout_at"]).timestamp() - lead_s
        ready = threading.Barrier(40)

        def one(number: int) -> Answer:
            ready.wait()
            let_pass(max(0.0, until - time.time()))
            verb = DECIDE[number % 2]
            return decide(client, verb, approval_id, decided_by=f"person-{number}")

        with ThreadPoolExecutor(40) as pool:
            return list(pool.map(one, range(40)))

    @pytest.mark.parametrize("lead_s", [0.6, 0.02, 0.0, -0.1])
    def test_exactly_one_wins(self, client: BearerClient, held: Held, lead_s: float) -> None:
        run, approval_id = held(soon("1500ms"))
        answers = self.race(client, approval_id, lead_s)
        found = eventually(lambda: (a := client.approval(approval_id))["status"] != "pending" and a)
        winners = [n for n, answer in enumerate(answers) if answer.status == 204]
        if lead_s > 0.5:
            assert len(winners) == 1
        if found["status"] == "expired":
            assert winners == []
            won: dict[str, str] = {"status": "expired"}
        else:
            number = int(found["decided_by"].removeprefix("person-"))
            assert winners == [number]
            assert found["status"] == ("granted", "denied")[number % 2]
            won = {"status": found["status"], "decided_by": found["decided_by"]}
        for answer in answers:
            if answer.status != 204:
                assert answer.expect(409, "conflict").json["details"] == won
        types = client.event_types(run.id)
        ends = [
            t for t in types if t in ("approval.granted", "approval.denied", "approval.expired")
        ]
        assert ends == [f"approval.{found['status']}"]
        assert types.count("execution.resumed") == 1
        attempt = run.redelivered()
        if found["status"] == "granted":
            attempt.proceed("send", None)
        else:
            attempt.denied("send", None)

    def test_grant_against_cancel(self, client: BearerClient, held: Held) -> None:
        for _ in range(5):
            run, approval_id = held()
            with ThreadPoolExecutor(2) as pool:
                grant = pool.submit(client.grant, approval_id)
                cancel = pool.submit(client.post, f"/v0/executions/{run.id}/cancel")
                granted, cancelled = grant.result(), cancel.result()
            cancelled.expect(204)
            assert client.execution(run.id)["status"] == "cancelled"
            step = client.steps(run.id)[0]
            if granted.status == 204:
                assert step["status"] == "cancelled"
            else:
                granted.expect(409, "conflict")
                assert step["status"] == "denied"
