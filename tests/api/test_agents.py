"""Registering agents, what they publish of themselves, and changing their secrets."""

import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from harness import Attempt, BearerClient, FakeAgent, Kernel, Signer
from harness.client import AgentClient


def fresh(**fields: Any) -> dict[str, Any]:
    return {
        "id": f"a-{uuid.uuid4().hex}",
        "webhook_url": "http://127.0.0.1:9/webhook",
        "secret": "s",
        **fields,
    }


class TestRegister:
    def test_answer_is_the_agent(self, client: BearerClient) -> None:
        body = fresh(lease_timeout_seconds=60)
        agent = client.post("/v0/agents", body).expect(201).json
        assert agent["id"] == body["id"]
        assert agent["webhook_url"] == body["webhook_url"]
        assert agent["lease_timeout_seconds"] == 60
        assert set(agent) == {"id", "webhook_url", "lease_timeout_seconds", "registered_at"}
        assert client.get(f"/v0/agents/{body['id']}").expect(200).json == agent
        assert agent in client.get("/v0/agents").expect(200).json

    def test_secret_never_leaves(self, client: BearerClient) -> None:
        body = fresh(secret="very-secret-value")
        answer = client.post("/v0/agents", body).expect(201)
        for found in (answer, client.get(f"/v0/agents/{body['id']}"), client.get("/v0/agents")):
            assert b"very-secret-value" not in found.body

    @pytest.mark.parametrize("lease", [None, "missing"])
    def test_without_a_lease(self, client: BearerClient, lease: str | None) -> None:
        body = fresh() if lease == "missing" else fresh(lease_timeout_seconds=None)
        assert "lease_timeout_seconds" not in client.post("/v0/agents", body).expect(201).json

    @pytest.mark.parametrize(("seconds", "told"), [(1, True), (9, True), (10, False)])
    def test_a_lease_that_is_ignored_is_told_of(
        self, kernel: Kernel, client: BearerClient, seconds: int, told: bool
    ) -> None:
        body = fresh(lease_timeout_seconds=seconds)
        assert client.post("/v0/agents", body).expect(201).json["lease_timeout_seconds"] == seconds
        lines = [line for line in kernel.log_text().splitlines() if body["id"] in line]
        assert any("agent.lease_ignored" in line for line in lines) == told

    def test_again_replaces(self, client: BearerClient) -> None:
        body = fresh(lease_timeout_seconds=60)
        first = client.post("/v0/agents", body).expect(201).json
        again = {**body, "webhook_url": "https://example.com/hook", "lease_timeout_seconds": None}
        second = client.post("/v0/agents", again).expect(201).json
        assert second["webhook_url"] == "https://example.com/hook"
        assert "lease_timeout_seconds" not in second
        agents = client.get("/v0/agents").expect(200).json
        assert [a["id"] for a in agents].count(body["id"]) == 1
        assert first["registered_at"] <= second["registered_at"]

    @pytest.mark.parametrize(
        "agent_id",
        ["a.b", "a_b-c~d", "x:y@z", "é", "日本", "a+b", "(x)", "...a", "A" * 200, "a\\b"],
    )
    def test_good_ids(self, client: BearerClient, agent_id: str) -> None:
        client.post("/v0/agents", fresh(id=agent_id)).expect(201)
        quoted = "".join(f"%{byte:02X}" for byte in agent_id.encode())
        assert client.get(f"/v0/agents/{quoted}").expect(200).json["id"] == agent_id
        client.delete(f"/v0/agents/{quoted}").expect(204)

    @pytest.mark.parametrize(
        "agent_id",
        ["", ".", "..", "....", "a/b", "a?b", "a#b", "a%b", "a b", "a\tb", "a\u0000b", "a\u007fb",
         "a\u00a0b", "a\u2003b", " a", "a\n"],
    )  # fmt: skip
    def test_bad_ids(self, client: BearerClient, agent_id: str) -> None:
        client.post("/v0/agents", fresh(id=agent_id), bad=True).invalid("id")

    @pytest.mark.parametrize(
        "url",
        ["", "ftp://example.com", "example.com/hook", "/hook", "file:///etc/passwd", "http://",
         "http:/x", "javascript:alert(1)", "http://a b/", "https://\u0000"],
    )  # fmt: skip
    def test_bad_urls(self, client: BearerClient, url: str) -> None:
        client.post("/v0/agents", fresh(webhook_url=url), bad=True).invalid("webhook_url")

    @pytest.mark.parametrize(
        "url", ["http://localhost:1", "https://example.com/a?b=c", "HTTP://h/"]
    )
    def test_good_urls(self, client: BearerClient, url: str) -> None:
        agent = client.post("/v0/agents", fresh(webhook_url=url)).expect(201).json
        assert agent["webhook_url"] == url

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("id", 5),
            ("id", None),
            ("webhook_url", None),
            ("webhook_url", ["http://x"]),
            ("secret", ""),
            ("secret", None),
            ("secret", 5),
            ("lease_timeout_seconds", "60"),
            ("lease_timeout_seconds", True),
            ("lease_timeout_seconds", -1),
            ("policy", "rules: []"),
            ("webhook", "http://x"),
        ],
    )
    def test_bad_field_is_named(self, client: BearerClient, field: str, value: Any) -> None:
        client.post("/v0/agents", fresh(**{field: value}), bad=True).invalid(field)

    @pytest.mark.parametrize("field", ["id", "webhook_url", "secret"])
    def test_required(self, client: BearerClient, field: str) -> None:
        body = fresh()
        del body[field]
        client.post("/v0/agents", body, bad=True).invalid(field)

    def test_unknown(self, client: BearerClient) -> None:
        client.get("/v0/agents/nobody").expect(404, "not_found")

    def test_agents_have_no_access(self, agent: FakeAgent) -> None:
        agent.client().get("/v0/agents").expect(401, "unauthorized")
        agent.client().get(f"/v0/agents/{agent.id}").expect(401, "unauthorized")


class TestLease:
    def test_of_the_agent(self, client: BearerClient, new_agent: Callable[..., FakeAgent]) -> None:
        agent = new_agent(lease_timeout_seconds=45)
        delivery = agent.take(client.create(agent.id)["id"])
        assert delivery.lease_s == 45

    def test_default(self, run: Attempt) -> None:
        assert run.delivery.lease_s == 120

    @pytest.mark.parametrize(("seconds", "effective"), [(1, 120), (9, 120), (10, 10), (11, 11)])
    def test_floor(
        self,
        client: BearerClient,
        new_agent: Callable[..., FakeAgent],
        seconds: int,
        effective: int,
    ) -> None:
        agent = new_agent(lease_timeout_seconds=seconds)
        delivery = agent.take(client.create(agent.id)["id"])
        assert delivery.lease_s == effective


class TestWebhook:
    def test_body_and_headers(self, client: BearerClient, agent: FakeAgent) -> None:
        """The signature was checked when it came in."""
        execution = client.create(agent.id, input={"secret": "not in the webhook"})
        delivery = agent.take(execution["id"])
        assert set(delivery.fields) >= {
            "execution_id",
            "dispatch_id",
            "dispatch_attempt",
            "lease_timeout_seconds",
        }
        assert delivery.execution_id == execution["id"]
        assert delivery.attempt == 1
        assert uuid.UUID(delivery.dispatch_id).version == 7
        assert "not in the webhook" not in str(delivery.fields)

    def test_path_and_query_are_kept(
        self, client: BearerClient, new_agent: Callable[..., FakeAgent]
    ) -> None:
        agent = new_agent(register=False)
        agent.path = "/a/b?c=d%20e"
        client.post("/v0/agents", agent.registration()).expect(201)
        agent.take(client.create(agent.id)["id"])

    @pytest.mark.parametrize("secret", ["k", "ünïcödé 🔑", "x" * 500, "a b\tc", "\u0001"])
    def test_any_secret(
        self, client: BearerClient, new_agent: Callable[..., FakeAgent], secret: str
    ) -> None:
        agent = new_agent(secret=secret)
        run = agent.take_attempt(client.create(agent.id)["id"])
        run.complete().expect(204)


class TestMetadata:
    def put(self, agent: FakeAgent, body: Any, agent_id: str | None = None, **options: Any) -> Any:
        target = f"/v0/agents/{agent_id or agent.id}/metadata"
        return agent.client().request("PUT", target, body=body, **options)

    def test_is_shown(self, client: BearerClient, agent: FakeAgent) -> None:
        body = {
            "description": "Writes code – carefully",
            "input_schema": {"type": "object", "properties": {"n": {"minimum": 1.0}}},
            "output_schema": {},
        }
        self.put(agent, body).expect(204)
        shown = client.get(f"/v0/agents/{agent.id}").expect(200).json
        assert {name: shown[name] for name in body} == body
        [entry] = [a for a in client.get("/v0/agents").json if a["id"] == agent.id]
        assert entry == shown

    @pytest.mark.parametrize("cleared", [{}, dict.fromkeys(("description", "input_schema"))])
    def test_missing_and_null_clear(
        self, client: BearerClient, agent: FakeAgent, cleared: dict[str, Any]
    ) -> None:
        full = {"description": "d", "input_schema": {"a": 1}, "output_schema": {"b": 2}}
        self.put(agent, full).expect(204)
        self.put(agent, cleared).expect(204)
        assert not set(full) & set(client.get(f"/v0/agents/{agent.id}").json)

    def test_outlives_a_new_registration(self, client: BearerClient, agent: FakeAgent) -> None:
        self.put(agent, {"description": "d"}).expect(204)
        client.post("/v0/agents", agent.registration(lease_timeout_seconds=30)).expect(201)
        assert client.get(f"/v0/agents/{agent.id}").json["description"] == "d"

    def test_goes_with_the_agent(self, client: BearerClient, agent: FakeAgent) -> None:
        self.put(agent, {"description": "d"}).expect(204)
        client.delete(f"/v0/agents/{agent.id}").expect(204)
        client.post("/v0/agents", agent.registration()).expect(201)
        assert "description" not in client.get(f"/v0/agents/{agent.id}").json

    def test_only_its_own(
        self, client: BearerClient, agent: FakeAgent, new_agent: Callable[..., FakeAgent]
    ) -> None:
        other = new_agent()
        self.put(agent, {"description": "hijacked"}, other.id).expect(403, "forbidden")
        assert "description" not in client.get(f"/v0/agents/{other.id}").json

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("description", 5),
            ("description", {}),
            ("input_schema", "x"),
            ("input_schema", []),
            ("output_schema", True),
            ("version", "1"),
        ],
    )
    def test_bad_field_is_named(self, agent: FakeAgent, field: str, value: Any) -> None:
        self.put(agent, {field: value}, bad=True).invalid(field)

    def test_needs_a_signature(self, client: BearerClient, agent: FakeAgent) -> None:
        target = f"/v0/agents/{agent.id}/metadata"
        client.request("PUT", target, body={}).expect(401, "unauthorized")

    def test_escaped_path_is_signed_as_sent(
        self, client: BearerClient, new_agent: Callable[..., FakeAgent]
    ) -> None:
        agent = new_agent(agent_id=f"é.{uuid.uuid4().hex}")
        quoted = "".join(f"%{byte:02x}" for byte in agent.id.encode())
        headers = {"Rebuno-Agent-Id": agent.id.encode().decode("latin-1")}
        target = f"/v0/agents/{quoted}/metadata"
        answer = agent.client().request("PUT", target, body={"description": "d"}, headers=headers)
        answer.expect(204)
        assert client.get(f"/v0/agents/{quoted}").json["description"] == "d"


class TestRotation:
    def test_previous_secret_still_works_for_calls(
        self, client: BearerClient, agent: FakeAgent
    ) -> None:
        run = agent.take_attempt(client.create(agent.id)["id"])
        rotated = {**agent.registration(), "secret": "brand-new"}
        client.post("/v0/agents", rotated).expect(201)
        run.record("x", 1, "under the previous secret")
        later_client = AgentClient(
            agent.kernel_url,
            Signer(agent.id, "brand-new"),
            dispatch=(run.delivery.dispatch_id, run.delivery.attempt),
        )
        later_client.post(run.path("/heartbeat")).expect(204)
        run.complete().expect(204)

    def test_deliveries_use_the_new_one_at_once(
        self, client: BearerClient, agent: FakeAgent
    ) -> None:
        run = agent.take_attempt(client.create(agent.id)["id"])
        agent.secret = "brand-new"
        client.post("/v0/agents", agent.registration()).expect(201)
        second = agent.take_attempt(client.create(agent.id)["id"])
        second.complete().expect(204)
        run.complete().expect(204)

    def test_the_one_before_the_previous_is_dead(
        self, client: BearerClient, agent: FakeAgent
    ) -> None:
        target = f"/v0/agents/{agent.id}/metadata"
        for secret in ("second", "third"):
            client.post("/v0/agents", {**agent.registration(), "secret": secret}).expect(201)
        for secret, status in (("s3cret", 401), ("second", 204), ("third", 204)):
            caller = AgentClient(agent.kernel_url, Signer(agent.id, secret))
            assert caller.request("PUT", target, body={}).status == status, secret

    def test_same_secret_again_is_no_rotation(self, client: BearerClient, agent: FakeAgent) -> None:
        client.post("/v0/agents", {**agent.registration(), "secret": "new"}).expect(201)
        client.post("/v0/agents", {**agent.registration(), "secret": "new"}).expect(201)
        agent.client().request("PUT", f"/v0/agents/{agent.id}/metadata", body={}).expect(204)


class TestDelete:
    def test_ended_executions_stay_readable(self, client: BearerClient, run: Attempt) -> None:
        run.record("x", 1, "r")
        run.complete("out").expect(204)
        before = client.execution(run.id), client.steps(run.id)
        client.delete(f"/v0/agents/{run.agent.id}").expect(204)
        client.get(f"/v0/agents/{run.agent.id}").expect(404, "not_found")
        assert (client.execution(run.id), client.steps(run.id)) == before
        client.post("/v0/executions", {"agent_id": run.agent.id}).expect(404, "not_found")
        run.execution().expect(401, "unauthorized")

    def test_refused_while_it_works(self, client: BearerClient, run: Attempt) -> None:
        client.delete(f"/v0/agents/{run.agent.id}").expect(409, "conflict")
        run.heartbeat().expect(204)
        client.cancel(run.id)
        client.delete(f"/v0/agents/{run.agent.id}").expect(204)

    def test_unknown(self, client: BearerClient) -> None:
        client.delete("/v0/agents/nobody").expect(404, "not_found")

    def test_id_may_be_used_again(self, client: BearerClient, agent: FakeAgent) -> None:
        begun = time.monotonic()
        client.delete(f"/v0/agents/{agent.id}").expect(204)
        client.post("/v0/agents", agent.registration()).expect(201)
        agent.take_attempt(client.create(agent.id)["id"]).complete().expect(204)
        assert time.monotonic() - begun < 10
