"""Who may ask: tokens, signatures, timestamps, and the order of the checks."""

import hashlib
import hmac
import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from harness import Attempt, BearerClient, FakeAgent, Kernel
from harness.client import BaseClient
from harness.kernel import TOKEN
from harness.raw import RawAnswer, RawConnection

UNKNOWN = "01920000-0000-7000-8000-000000000000"
CLIENT_ROUTES = [
    ("GET", "/v0/executions"),
    ("POST", "/v0/executions"),
    ("GET", f"/v0/executions/{UNKNOWN}"),
    ("GET", f"/v0/executions/{UNKNOWN}/previous"),
    ("GET", f"/v0/executions/{UNKNOWN}/events"),
    ("GET", f"/v0/executions/{UNKNOWN}/steps"),
    ("GET", f"/v0/executions/{UNKNOWN}/steps/{'0' * 64}"),
    ("GET", f"/v0/executions/{UNKNOWN}/stream"),
    ("POST", f"/v0/executions/{UNKNOWN}/cancel"),
    ("POST", "/v0/agents"),
    ("GET", "/v0/agents"),
    ("GET", "/v0/agents/x"),
    ("DELETE", "/v0/agents/x"),
    ("POST", "/v0/policies/x"),
    ("POST", "/v0/policies/x/test"),
    ("GET", "/v0/approvals"),
    ("GET", f"/v0/approvals/{UNKNOWN}"),
    ("POST", f"/v0/approvals/{UNKNOWN}/grant"),
    ("POST", f"/v0/approvals/{UNKNOWN}/deny"),
]
AGENT_ROUTES = [
    ("PUT", "/v0/agents/x/metadata"),
    ("POST", f"/v0/executions/{UNKNOWN}/steps"),
    ("POST", f"/v0/executions/{UNKNOWN}/steps/{'0' * 64}/complete"),
    ("POST", f"/v0/executions/{UNKNOWN}/steps/{'0' * 64}/fail"),
    ("POST", f"/v0/executions/{UNKNOWN}/steps/{'0' * 64}/stream"),
    ("POST", f"/v0/executions/{UNKNOWN}/heartbeat"),
    ("POST", f"/v0/executions/{UNKNOWN}/release"),
    ("POST", f"/v0/executions/{UNKNOWN}/suspend"),
    ("POST", f"/v0/executions/{UNKNOWN}/complete"),
    ("POST", f"/v0/executions/{UNKNOWN}/fail"),
]


@pytest.fixture
def nobody(kernel: Kernel) -> BaseClient:
    """A caller without credentials."""
    return BaseClient(kernel.url)


class TestBearer:
    @pytest.mark.parametrize(("method", "target"), CLIENT_ROUTES + AGENT_ROUTES)
    def test_every_route_asks(self, nobody: BaseClient, method: str, target: str) -> None:
        nobody.request(method, target, body=b"{}", bad=True).expect(401, "unauthorized")

    @pytest.mark.parametrize(
        "value",
        [
            "",
            "Bearer",
            "Bearer ",
            "Bearer wrong",
            f"Bearer {TOKEN}x",
            f"Bearer {TOKEN[:-1]}",
            f"Bearer {TOKEN.upper()}",
            f"Basic {TOKEN}",
            TOKEN,
            f"Bearer {TOKEN} {TOKEN}",
        ],
    )
    def test_wrong_tokens(self, nobody: BaseClient, value: str) -> None:
        headers = {"Authorization": value}
        nobody.get("/v0/executions", headers=headers).expect(401, "unauthorized")

    def test_scheme_is_not_case_sensitive(self, nobody: BaseClient) -> None:
        nobody.get("/v0/executions", headers={"Authorization": f"bearer {TOKEN}"}).expect(200)

    @pytest.mark.parametrize(("method", "target"), AGENT_ROUTES)
    def test_does_not_open_agent_routes(
        self, client: BearerClient, method: str, target: str
    ) -> None:
        client.request(method, target, body=b"{}", bad=True).expect(401, "unauthorized")


class TestSignature:
    def heartbeat(self, run: Attempt, headers: Mapping[str, str | None]) -> Any:
        signed = run.client.credentials("POST", run.path("/heartbeat"), b"")
        return BaseClient(run.agent.kernel_url).post(
            run.path("/heartbeat"), headers={**signed, **headers}, bad=True
        )

    def test_good(self, run: Attempt) -> None:
        self.heartbeat(run, {}).expect(204)

    @pytest.mark.parametrize("name", ["Rebuno-Agent-Id", "Rebuno-Timestamp", "Rebuno-Signature"])
    def test_missing_part(self, run: Attempt, name: str) -> None:
        self.heartbeat(run, {name: None}).expect(401, "unauthorized")
        self.heartbeat(run, {name: ""}).expect(401, "unauthorized")

    def test_unknown_agent(self, run: Attempt) -> None:
        self.heartbeat(run, {"Rebuno-Agent-Id": "nobody"}).expect(401, "unauthorized")

    def test_wrong_forms(self, run: Attempt) -> None:
        good = run.client.credentials("POST", run.path("/heartbeat"), b"")["Rebuno-Signature"]
        digest = good.removeprefix("v1=")
        for value in (
            digest,
            f"v2={digest}",
            f"V1={digest}",
            f"v1={digest.upper()}",
            f"v1={digest[:-1]}",
            f"v1={digest}0",
            f"v1={'0' * 64}",
            "v1=",
            f"sha256={digest}",
        ):
            self.heartbeat(run, {"Rebuno-Signature": value}).expect(401, "unauthorized")

    def test_wrong_secret(self, run: Attempt) -> None:
        run.agent.secret = "another"
        fresh = run.agent.attempt(run.delivery)
        fresh.heartbeat().expect(401, "unauthorized")

    def test_every_part_is_covered(self, run: Attempt) -> None:
        """Each of method, target, dispatch, attempt and body, changed after signing, is refused."""
        signer, dispatch = run.agent.signer, (run.delivery.dispatch_id, run.delivery.attempt)
        body, target = b'{"kind":"tool_call","target":"x"}', run.path("/steps")
        caller = BaseClient(run.agent.kernel_url)
        good = signer.headers("POST", target, body, dispatch=dispatch)
        for headers in (
            signer.headers("PUT", target, body, dispatch=dispatch),
            signer.headers("POST", target + "?x=1", body, dispatch=dispatch),
            signer.headers("POST", run.path("/complete"), body, dispatch=dispatch),
            signer.headers("POST", target, body + b" ", dispatch=dispatch),
            signer.headers("POST", target, b"", dispatch=dispatch),
            {**good, "Rebuno-Dispatch-Id": UNKNOWN},
            {**good, "Rebuno-Dispatch-Attempt": "2"},
            {**good, "Rebuno-Timestamp": str(int(good["Rebuno-Timestamp"]) + 1)},
            {**signer.headers("POST", target, body), "Rebuno-Dispatch-Attempt": "1"},
        ):
            caller.request("POST", target, body=body, headers=headers, bad=True).expect(
                401, "unauthorized"
            )
        caller.request("POST", target, body=body, headers=good).expect(200)

    def test_query_is_part_of_the_target(self, run: Attempt) -> None:
        caller = BaseClient(run.agent.kernel_url)
        target = run.path("/steps?status=terminal&limit=5")
        headers = run.agent.signer.headers("GET", target)
        caller.get(target, headers=headers).expect(200)
        caller.get(run.path("/steps"), headers=headers).expect(401, "unauthorized")
        bare = run.agent.signer.headers("GET", run.path("/steps"))
        caller.get(target, headers=bare).expect(401, "unauthorized")

    def test_target_is_signed_as_it_is_escaped(self, run: Attempt) -> None:
        """%2D decodes to a dash: the same resource, another text, another signature."""
        escaped = run.path().replace("-", "%2D")
        caller = BaseClient(run.agent.kernel_url)
        headers = run.agent.signer.headers("GET", escaped)
        assert caller.get(escaped, headers=headers).expect(200).json["id"] == run.id
        plain = run.agent.signer.headers("GET", run.path())
        caller.get(escaped, headers=plain).expect(401, "unauthorized")

    def test_replayed_headers_on_another_execution(self, new_run: Callable[..., Attempt]) -> None:
        first, second = new_run(), new_run()
        headers = first.client.credentials("POST", first.path("/complete"), b"{}")
        BaseClient(first.agent.kernel_url).request(
            "POST", second.path("/complete"), body=b"{}", headers=headers
        ).expect(401, "unauthorized")


class TestTimestamp:
    def call(self, run: Attempt, timestamp: int | str) -> Any:
        headers = run.agent.signer.headers("GET", run.path(), timestamp=timestamp)
        return BaseClient(run.agent.kernel_url).get(run.path(), headers=headers)

    @pytest.mark.parametrize("offset", [-295, -60, 0, 60, 295])
    def test_within(self, run: Attempt, offset: int) -> None:
        self.call(run, int(time.time()) + offset).expect(200)

    @pytest.mark.parametrize("offset", [-30000, -3600, -302, 306, 3600, 30000])
    def test_outside(self, run: Attempt, offset: int) -> None:
        self.call(run, int(time.time()) + offset).expect(401, "unauthorized")

    @pytest.mark.parametrize("how", ["{}.0", "+{}", " {}x", "0x{}", "{}e0", "-{}", "{}000", "now"])
    def test_not_decimal_seconds(self, run: Attempt, how: str) -> None:
        self.call(run, how.format(int(time.time()))).expect(401, "unauthorized")

    @pytest.mark.parametrize("value", ["9" * 19, "9" * 40, "-" + "9" * 30])
    def test_absurd(self, run: Attempt, value: str) -> None:
        self.call(run, value).expect(401, "unauthorized")


class TestOwnership:
    def test_another_agents_execution(
        self, run: Attempt, new_agent: Callable[..., FakeAgent]
    ) -> None:
        thief = new_agent().client()
        step_id = run.proceed("x")
        for rest in ("", "/previous", "/steps", f"/steps/{step_id}"):
            thief.get(run.path(rest)).expect(403, "forbidden")

    def test_bearer_of_either(self, client: BearerClient, run: Attempt) -> None:
        step_id = run.proceed("x")
        for rest in ("", "/previous", "/steps", f"/steps/{step_id}"):
            assert (
                client.get(run.path(rest)).expect(200).json == run.client.get(run.path(rest)).json
            )

    def test_wrong_token_beside_a_good_signature(self, run: Attempt) -> None:
        headers = run.agent.signer.headers("GET", run.path())
        both = {**headers, "Authorization": "Bearer wrong"}
        answer = BaseClient(run.agent.kernel_url).get(run.path(), headers=both)
        assert answer.status in (200, 401)


class TestOrder:
    """Route, method, size, credentials, shape, existence, ownership, ended, lease."""

    def test_route_before_credentials(self, nobody: BaseClient) -> None:
        nobody.get("/v0/nothing", bad=True).expect(404, "not_found")

    def test_method_before_credentials(self, nobody: BaseClient) -> None:
        nobody.request("DELETE", "/v0/executions", bad=True).expect(405, "method_not_allowed")

    def test_credentials_before_shape(self, nobody: BaseClient) -> None:
        nobody.get("/v0/executions/not-an-id", bad=True).expect(401, "unauthorized")
        nobody.post("/v0/executions", b"{", bad=True).expect(401, "unauthorized")

    def test_shape_before_existence(self, client: BearerClient, agent: FakeAgent) -> None:
        body = {"agent_id": "nobody", "surprise": 1}
        client.post("/v0/executions", body, bad=True).expect(400, "validation_error")
        target = f"/v0/executions/{UNKNOWN}/complete"
        agent.client().post(target, {"surprise": 1}, bad=True).expect(400, "validation_error")

    def test_existence_before_ownership(self, agent: FakeAgent) -> None:
        agent.client().get(f"/v0/executions/{UNKNOWN}").expect(404, "not_found")

    def test_ownership_before_the_end(
        self, run: Attempt, new_agent: Callable[..., FakeAgent]
    ) -> None:
        run.complete().expect(204)
        Attempt(new_agent(), run.delivery).complete().expect(403, "forbidden")

    def test_end_before_the_lease(self, run: Attempt) -> None:
        later = run.released()
        later.complete().expect(204)
        run.complete().expect(409, "execution_terminal")
        assert run.submit("x").expect(200).json == {"decision": "execution_terminal"}


class TestDevMode:
    @pytest.fixture
    def dev(self, new_kernel: Callable[..., Kernel]) -> Kernel:
        return new_kernel(mode="dev", args=["--memory"])

    def test_no_token_is_needed(self, dev: Kernel, new_agent: Callable[..., FakeAgent]) -> None:
        client = dev.client(token=None)
        agent = new_agent(dev, register=False)
        client.post("/v0/agents", agent.registration()).expect(201)
        execution = client.create(agent.id)
        assert execution["created_by"] == "anonymous"
        agent.take_attempt(execution["id"]).complete().expect(204)

    def test_a_token_that_is_sent_is_checked(self, dev: Kernel) -> None:
        dev.client(token="wrong").get("/v0/executions").expect(401, "unauthorized")

    def test_signatures_are_checked(self, dev: Kernel, new_agent: Callable[..., FakeAgent]) -> None:
        client = dev.client(token=None)
        agent = new_agent(dev, register=False)
        client.post("/v0/agents", agent.registration()).expect(201)
        run = agent.take_attempt(client.create(agent.id)["id"])
        client.post(run.path("/heartbeat"), bad=True).expect(401, "unauthorized")
        agent.secret = "wrong"
        agent.attempt(run.delivery).heartbeat().expect(401, "unauthorized")
        agent.secret = "s3cret"

    @pytest.mark.parametrize(
        "origin",
        ["http://evil.example", "https://127.0.0.1:1", "null", "http://localhost.evil.example"],
    )
    def test_foreign_origin(self, dev: Kernel, origin: str) -> None:
        client = dev.client(token=None)
        headers = {"Origin": origin}
        client.get("/v0/executions", headers=headers).expect(403, "forbidden")
        client.post("/v0/executions", {"agent_id": "x"}, headers=headers).expect(403, "forbidden")
        client.post("/v0/agents", {"id": "x"}, headers=headers, bad=True).expect(403, "forbidden")

    def test_own_origin(self, dev: Kernel) -> None:
        client = dev.client(token=None)
        client.get("/v0/executions", headers={"Origin": dev.url}).expect(200)
        local = f"localhost:{dev.port}"
        headers = {"Origin": f"http://{local}", "Host": local}
        client.get("/v0/executions", headers=headers).expect(200)

    def test_server_mode_has_no_such_rule(self, client: BearerClient) -> None:
        client.get("/v0/executions", headers={"Origin": "http://elsewhere.example"}).expect(200)


def test_own_signature_arithmetic(agent: FakeAgent) -> None:
    """The harness signs as the protocol's text says, spelled out once more."""
    message = b"rebuno-request-v1\nGET\n/v0/x\n17\n\n\n"
    wanted = hmac.new(agent.secret.encode(), message, hashlib.sha256).hexdigest()
    signed = agent.signer.headers("GET", "/v0/x", timestamp=17)
    assert signed["Rebuno-Signature"] == f"v1={wanted}"


class TestRepeatedHeaders:
    """Which of two counts is a guess, and a proxy may guess otherwise."""

    @staticmethod
    def ask(kernel: Kernel, method: str, target: str, headers: list[tuple[str, str]]) -> RawAnswer:
        lines = [f"{method} {target} HTTP/1.1", "Host: x"]
        lines += [f"{name}: {value}" for name, value in headers]
        with RawConnection(kernel.port) as connection:
            connection.send("\r\n".join([*lines, "", ""]).encode())
            return connection.answer()

    @pytest.mark.parametrize("second", [f"Bearer {TOKEN}", "Bearer wrong", ""])
    def test_authorization(self, kernel: Kernel, second: str) -> None:
        headers = [("Authorization", f"Bearer {TOKEN}"), ("authorization", second)]
        for ordered in (headers, headers[::-1]):
            answer = self.ask(kernel, "GET", "/v0/executions", ordered)
            assert answer.status == 400
            body = json.loads(answer.body)
            assert body["code"] == "validation_error"
            assert "Authorization" in body["message"]

    def test_each_of_an_agents(self, kernel: Kernel, run: Attempt) -> None:
        target = run.path("/heartbeat")
        signed = run.client.credentials("POST", target, b"")
        signed = {name: value for name, value in signed.items() if name.startswith("Rebuno-")}
        headers = [("Content-Length", "0"), *signed.items()]
        assert self.ask(kernel, "POST", target, headers).status == 204
        assert len(signed) == 5
        for name, value in signed.items():
            answer = self.ask(kernel, "POST", target, [*headers, (name.lower(), value)])
            assert answer.status == 400, name
            assert name in json.loads(answer.body)["message"]

    def test_no_matter_where_nobody_asks(self, kernel: Kernel) -> None:
        headers = [("Authorization", "a"), ("Authorization", "b")]
        assert self.ask(kernel, "GET", "/v0/health", headers).status == 200

    def test_request_ids(self, kernel: Kernel) -> None:
        """None of them is the request's."""
        headers = [("X-Request-Id", "one"), ("X-Request-Id", "two")]
        answer = self.ask(kernel, "GET", "/v0/health", headers)
        assert answer.headers["x-request-id"] not in ("one", "two", "")
