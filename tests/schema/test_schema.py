"""Requests that schemathesis makes up from docs/openapi.yaml, good ones and broken ones.

Ids that are made up exist nowhere, so most requests would end as 404 before the kernel has looked
at them. Ids of real runs are therefore put into most of them, chosen by the request alone: a
request that failed fails again. REBUNO_TEST_EXAMPLES says how many requests each route gets beyond
the systematic ones, and makes them random.
"""

import os
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from requests import PreparedRequest
from requests.auth import AuthBase
from schemathesis import Case, Response
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.core.parameters import ParameterLocation

from conftest import Database, cancel_all
from harness import API, Attempt, BearerClient, FakeAgent, Kernel, bundle, rule
from harness.kernel import TOKEN
from harness.openapi import DOCUMENT

EXAMPLES = os.environ.get("REBUNO_TEST_EXAMPLES")
NORMAL_EXAMPLES = 15
ANSWER_S = 8.0  # `wait` is cut to a second, and only streams of ended runs are read
LEASE_S = 3600  # the tests send no heartbeats
UNKNOWN_HEADER = "x-schemathesis-unknown-property"
DISPATCH_HEADERS = {"Rebuno-Dispatch-Id", "Rebuno-Dispatch-Attempt"}
ENDS_RUN = {"cancelExecution", "completeExecution", "failExecution", "releaseAttempt"}
ENDS_STEP = {"completeStep", "failStep"}
DECIDES = {"grantApproval", "denyApproval"}
RESOURCE = "disk"
POLICY = bundle(rule("gate", "require_approval", {"target": "gated"}), default="allow")

schema = schemathesis.openapi.from_path(DOCUMENT)
schema.config.generation.update(
    with_security_parameters=False, deterministic=EXAMPLES is None, database="none"
)
# HEAD goes with GET, OPTIONS with every route. QUERY is no method that the kernel knows: 501.
schema.config.phases.coverage.unexpected_methods = {
    method.lower() for method in ("GET", "POST", "PUT", "DELETE", "PATCH", "TRACE")
}
load_all_checks()
AnyCase = Case[Any]


class Credentials(AuthBase):
    """Signs the final request for an agent, or adds the token, as its route asks for."""

    def __init__(self, agent: FakeAgent | None) -> None:
        self.agent = agent

    def __call__(self, request: PreparedRequest) -> PreparedRequest:
        if self.agent is None:
            request.headers["Authorization"] = f"Bearer {TOKEN}"
            return request
        body = request.body or b""
        data = body.encode() if isinstance(body, str) else body
        assert isinstance(data, bytes)
        dispatch = None
        attempt = request.headers.get("Rebuno-Dispatch-Attempt", "")
        identity = request.headers.get("Rebuno-Dispatch-Id", "")
        if attempt or identity:
            dispatch = (_text(identity), _text(attempt))
        assert request.method is not None
        signed = self.agent.signer.headers(
            request.method, request.path_url, data, dispatch=dispatch
        )
        for name in ("Rebuno-Agent-Id", "Rebuno-Timestamp", "Rebuno-Signature"):
            request.headers[name] = signed[name]
        return request


def _text(header: str | bytes) -> str:
    return header.decode("latin-1") if isinstance(header, bytes) else header


class World:
    """One agent with a run that ended, a run that goes on and a run that waits for a person; after
    each of the latter comes another."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.client: BearerClient = kernel.client()
        self.agent = FakeAgent(kernel.url)
        registration = self.agent.registration(lease_timeout_seconds=LEASE_S)
        self.client.post("/v0/agents", registration).expect(201)
        self.client.set_policy(self.agent.id, POLICY)
        session = f"turns of {self.agent.id}"
        self.begin(session=session)
        self.attempt.complete_step(self.step, {"n": 1}).expect(200)
        self.attempt.complete("done", state={"n": 1}).expect(204)
        self.ended, self.ended_step = self.attempt, self.step
        self.begin(session=session)  # continues it
        self.wait_for_a_person()
        self.decided = self.approval
        self.client.deny(self.decided).expect(204)
        self.wait_for_a_person()

    def begin(self, **fields: Any) -> None:
        created = self.client.create(self.agent.id, input={"n": 1}, **fields)
        self.attempt: Attempt = self.agent.take_attempt(created["id"])
        self.attempt.register(RESOURCE).expect(200)
        self.step = self.attempt.proceed("look_up", {"name": "Ada"})

    def wait_for_a_person(self) -> None:
        created = self.client.create(self.agent.id)
        self.approval = self.agent.take_attempt(created["id"]).hold("gated", {"name": "Ada"})

    def after(self, case: AnyCase, answer: Response) -> None:
        operation = operation_of(case)
        if answer.status_code >= 300:
            return
        if operation in ENDS_RUN:
            self.begin()
        elif operation in ENDS_STEP:
            self.step = self.attempt.proceed("look_up", {"name": "Ada"})
        elif operation in DECIDES:
            self.wait_for_a_person()

    def close(self) -> None:
        cancel_all(self.client, self.agent.id)
        self.agent.stop()
        assert not self.agent.errors, self.agent.errors

    # Real ids

    def settle(self, case: AnyCase) -> None:
        """Puts real ids in where the request has made-up good ones, and keeps waits short."""
        choice = zlib.crc32(repr((case.path_parameters, case.query, case.body)).encode()) % 4
        meta = case.meta
        assert meta is not None
        if operation_of(case) == "listEvents" and "Last-Event-ID" in case.headers:
            case.headers["Accept"] = "text/event-stream"  # else that header has no meaning
        if not meta.is_negative_at(ParameterLocation.PATH):
            self._settle_path(case, choice)
        if not meta.is_negative_at(ParameterLocation.HEADER):
            self._settle_headers(case, choice)
        if not meta.is_negative_at(ParameterLocation.BODY) and isinstance(case.body, dict):
            self._settle_body(case.body, choice)
            self._settle_policy(case.body, choice)
            self._settle_resources(case.body)
        if operation_of(case) == "listEvents":
            _shorten_wait(case)

    def _settle_body(self, body: dict[str, Any], choice: int) -> None:
        if "agent_id" in body and choice:
            body["agent_id"] = self.agent.id
        if body.get("parent_execution_id") is not None and choice:
            body["parent_execution_id"] = self.ended.id
        if "webhook_url" in body:  # what a URL is says no pattern
            body["webhook_url"] = self.agent.webhook_url
        if body.get("spawned_by") is not None and choice:
            body["spawned_by"] = {"execution_id": self.attempt.id, "step_id": self.step}
        if "at_seq" in body:  # no schema knows the latest one
            body["at_seq"] = 1 + choice % 2
        for name in ("seq", "lease_timeout_seconds", "every_steps"):
            _make_integer(body, name)

    def _settle_resources(self, body: dict[str, Any]) -> None:
        if body.get("resources"):  # what is registered says no schema
            body["resources"] = [RESOURCE]
        for name in ("captures", "capture_failures"):
            for entry in body.get(name) or []:
                _make_integer(entry, "generation")

    def _settle_policy(self, body: dict[str, Any], choice: int) -> None:
        for name in ("bundle", "policy_bundle"):
            if isinstance(body.get(name), str):  # what compiles says no schema
                body[name] = POLICY
        if body.get("execution_id") is not None:
            body["execution_id"] = self.ended.id if choice else body["execution_id"]
            body.pop("executions", None)
        executions = body.get("executions")
        if isinstance(executions, dict) and isinstance(executions.get("limit"), float):
            executions["limit"] = int(executions["limit"])

    def _settle_path(self, case: AnyCase, choice: int) -> None:
        path = case.path_parameters
        ended = choice == 1 or is_stream(case)
        attempt = self.ended if ended else self.attempt
        if "execution_id" in path and choice:
            path["execution_id"] = attempt.id
        if "step_id" in path and choice:
            path["step_id"] = self.ended_step if ended else self.step
        if "key" in path and choice:
            path["key"] = RESOURCE
        if "agent_id" in path and choice:
            path["agent_id"] = self.agent.id
        if "approval_id" in path and choice:
            path["approval_id"] = self.decided if choice == 1 else self.approval

    def _settle_headers(self, case: AnyCase, choice: int) -> None:
        if operation_of(case) == "publishDelta" and len(DISPATCH_HEADERS & set(case.headers)) == 1:
            for name in DISPATCH_HEADERS:  # optional, but only together: no schema can say that
                case.headers.pop(name, None)
        delivery = (self.ended if choice == 1 else self.attempt).delivery
        if "Rebuno-Dispatch-Id" in case.headers and choice:
            case.headers["Rebuno-Dispatch-Id"] = delivery.dispatch_id
        if "Rebuno-Dispatch-Attempt" in case.headers and choice:
            case.headers["Rebuno-Dispatch-Attempt"] = str(delivery.attempt)


def _make_integer(values: dict[str, Any], name: str) -> None:
    """JSON Schema takes 1.0 as an integer too."""
    if isinstance(values.get(name), float):
        values[name] = int(values[name])


def is_stream(case: AnyCase) -> bool:
    return operation_of(case) == "followDeltas" or "Accept" in case.headers


def _shorten_wait(case: AnyCase) -> None:
    try:
        wait = int(str(case.query.get("wait", 0)))
    except ValueError:
        return
    if wait > 1:
        case.query["wait"] = 1


def operation_of(case: AnyCase) -> str:
    return str(case.operation.definition.raw["operationId"])


def security_of(case: AnyCase) -> list[dict[str, Any]]:
    return list(case.operation.definition.raw["security"])


def checks_for(case: AnyCase) -> list[Any]:
    """All of schemathesis but what is asked otherwise or does not apply.

    `ignored_auth`: check_credentials_come_first asks for more. `use_after_free` and
    `ensure_resource_availability` follow resources through a stateful run. A header that is not
    described is no reason to refuse a request.
    """
    left_out = {"ignored_auth", "use_after_free", "ensure_resource_availability"}
    if UNKNOWN_HEADER in case.headers:
        left_out.add("negative_data_rejection")
    return [check for check in CHECKS.get_all() if check.__name__ not in left_out]


@pytest.fixture(scope="module")
def world(database: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp(f"schema-{database}")
    kernel = Kernel(folder, database.new_url(folder)).start()
    world = World(kernel)
    yield world
    world.close()
    kernel.stop()


BOUNDS = settings(
    max_examples=int(EXAMPLES or NORMAL_EXAMPLES),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


def check_contract(answer: Response) -> None:
    """The harness's own look at an answer: closed objects, exact media types."""
    request = answer.request
    assert request.method is not None
    headers = {name.lower(): values[0] for name, values in answer.headers.items()}
    streams = headers.get("content-type", "").startswith("text/event-stream")
    body = b"" if streams else answer.content
    API.check_answer(
        request.method, request.path_url, status=answer.status_code, headers=headers, body=body
    )


def check_credentials_come_first(world: World, case: AnyCase, answer: Response) -> None:
    """Whatever else is wrong with a request of a route: without credentials it is 401."""
    request = answer.request
    assert request.method is not None
    if not security_of(case) or API.find(request.method, request.path_url) is None:
        return
    bare = case.call(base_url=world.kernel.url, timeout=ANSWER_S)
    assert bare.status_code == 401, (bare.request.method, bare.request.url, bare.text)


@schema.parametrize()
@BOUNDS
def test_answers_are_as_described(world: World, case: AnyCase) -> None:
    world.settle(case)
    signs = any("agentId" in way for way in security_of(case))
    credentials = Credentials(world.agent if signs else None)
    answer = case.call(base_url=world.kernel.url, auth=credentials, timeout=ANSWER_S)
    world.kernel.assert_alive()
    world.after(case, answer)
    case.validate_response(answer, checks=checks_for(case))
    check_contract(answer)
    check_credentials_come_first(world, case, answer)
