"""What an attempt may do, and that it may do nothing once another owns the run."""

from collections.abc import Callable
from typing import Any

import pytest

from harness import AgentClient, Answer, Attempt, BearerClient, FakeAgent, eventually

UNKNOWN = "01920000-0000-7000-8000-000000000000"
Call = Callable[[Attempt, str], Answer]

CALLS: dict[str, Call] = {
    "submit": lambda run, step: run.submit("more"),
    "submit-known": lambda run, step: run.submit("open"),
    "complete-step": lambda run, step: run.complete_step(step, "late"),
    "fail-step": lambda run, step: run.fail_step(step),
    "heartbeat": lambda run, step: run.heartbeat(),
    "release": lambda run, step: run.release(),
    "suspend": lambda run, step: run.suspend(),
    "complete": lambda run, step: run.complete("late"),
    "fail": lambda run, step: run.fail("late"),
}
every_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())


def under(run: Attempt, dispatch: tuple[str, int | str] | None) -> Attempt:
    """The same agent, under other dispatch headers."""
    other = Attempt(run.agent, run.delivery)
    other.client = AgentClient(run.agent.kernel_url, run.agent.signer, dispatch=dispatch)
    return other


def raw_calls(run: Attempt, step: str) -> dict[str, tuple[str, Any]]:
    return {
        "steps": (run.path("/steps"), {"kind": "tool_call", "target": "more"}),
        "steps/complete": (run.path(f"/steps/{step}/complete"), {"result": 1}),
        "steps/fail": (run.path(f"/steps/{step}/fail"), {"error": {}}),
        "heartbeat": (run.path("/heartbeat"), None),
        "release": (run.path("/release"), None),
        "suspend": (run.path("/suspend"), None),
        "complete": (run.path("/complete"), {"output": 1}),
        "fail": (run.path("/fail"), {"error": "x"}),
    }


class TestSuperseded:
    @every_call
    def test_changes_nothing(self, client: BearerClient, run: Attempt, call: Call) -> None:
        step_id = run.proceed("open")
        later = run.released()
        assert later.proceed("open") == step_id
        before = client.events(run.id), client.execution(run.id)["status"], client.steps(run.id)
        call(run, step_id).expect(409, "lease_superseded")
        after = client.events(run.id), client.execution(run.id)["status"], client.steps(run.id)
        assert after == before
        later.complete_step(step_id, "mine").expect(200)
        later.complete("mine").expect(204)
        assert client.execution(run.id)["output"] == "mine"

    @every_call
    def test_right_after_release(self, client: BearerClient, run: Attempt, call: Call) -> None:
        step_id = run.proceed("open")
        run.release().expect(204)
        call(run, step_id).expect(409, "lease_superseded")

    def test_even_of_a_settled_step(self, run: Attempt) -> None:
        step_id = run.record("x", 1, "r")
        run.released()
        run.complete_step(step_id, "again").expect(409, "lease_superseded")

    def test_attempts_that_never_were(self, run: Attempt) -> None:
        for attempt in (2, 7, 2**31):
            stranger = under(run, (run.delivery.dispatch_id, attempt))
            stranger.heartbeat().expect(409, "lease_superseded")


class TestDispatchHeaders:
    def test_missing(self, client: BearerClient, run: Attempt) -> None:
        step_id = run.proceed("x")
        before = client.events(run.id)
        for target, body in raw_calls(run, step_id).values():
            run.agent.client().post(target, body, bad=True).expect(400, "validation_error")
        assert client.events(run.id) == before

    def test_one_is_not_enough(self, run: Attempt) -> None:
        for name in ("Rebuno-Dispatch-Id", "Rebuno-Dispatch-Attempt"):
            dispatch = (run.delivery.dispatch_id, run.delivery.attempt)
            kept = "" if name == "Rebuno-Dispatch-Id" else str(dispatch[0])
            attempt = str(dispatch[1]) if name == "Rebuno-Dispatch-Id" else ""
            target = run.path("/heartbeat")
            headers: dict[str, str | None] = dict(
                run.agent.signer.headers("POST", target, dispatch=(kept, attempt))
            )
            headers[name] = None
            plain = run.agent.client()
            plain.post(target, headers=headers, bad=True).expect(400, "validation_error")

    @pytest.mark.parametrize(
        "attempt", ["0", "-1", "x", "1.0", "+1", "99999999999999999999", "1 1"]
    )
    def test_bad_attempt(self, run: Attempt, attempt: str) -> None:
        stranger = under(run, (run.delivery.dispatch_id, attempt))
        target = run.path("/heartbeat")
        stranger.client.post(target, bad=True).expect(400, "validation_error")

    @pytest.mark.parametrize("dispatch", ["x", UNKNOWN[:-1], "1"])
    def test_bad_dispatch_id(self, run: Attempt, dispatch: str) -> None:
        stranger = under(run, (dispatch, 1))
        target = run.path("/heartbeat")
        stranger.client.post(target, bad=True).expect(400, "validation_error")

    @every_call
    def test_unknown_dispatch(self, client: BearerClient, run: Attempt, call: Call) -> None:
        step_id = run.proceed("open")
        before = client.events(run.id)
        call(under(run, (UNKNOWN, 1)), step_id).expect(400, "validation_error")
        assert client.events(run.id) == before

    def test_dispatch_of_another_execution(self, new_run: Callable[..., Attempt]) -> None:
        first, second = new_run(), new_run()
        mixed = under(first, (second.delivery.dispatch_id, second.delivery.attempt))
        mixed.heartbeat().expect(400, "validation_error")
        mixed.submit("x").expect(400, "validation_error")

    def test_signed_on_any_route(self, run: Attempt) -> None:
        """A GET under a delivery signs its headers too, and works."""
        run.execution().expect(200)
        target = run.path()
        headers = run.agent.signer.headers("GET", target)
        forged = {**headers, "Rebuno-Dispatch-Id": run.delivery.dispatch_id}
        run.agent.client().get(target, headers=forged).expect(401, "unauthorized")


class TestHeartbeat:
    def test_renews(self, client: BearerClient, run: Attempt) -> None:
        """The end that is shown may lag by a twentieth of the term, not by more."""
        run.heartbeat().expect(204)
        [first] = client.execution(run.id)["waiting_on"]

        def renewed() -> bool:
            run.heartbeat().expect(204)
            [now] = client.execution(run.id)["waiting_on"]
            return now["until"] > first["until"]

        eventually(renewed)

    def test_writes_no_event(self, client: BearerClient, run: Attempt) -> None:
        run.heartbeat().expect(204)
        before = client.events(run.id)
        for _ in range(5):
            run.heartbeat().expect(204)
        assert client.events(run.id) == before

    @pytest.mark.parametrize("end", ["complete", "fail", "cancel"])
    def test_ended_execution(self, client: BearerClient, run: Attempt, end: str) -> None:
        if end == "cancel":
            client.cancel(run.id)
        else:
            getattr(run, end)().expect(204)
        run.heartbeat().expect(409, "lease_superseded")

    def test_unknown_execution(self, run: Attempt) -> None:
        run.client.post(f"/v0/executions/{UNKNOWN}/heartbeat").expect(404, "not_found")


class TestRelease:
    def test_next_attempt_of_the_same_dispatch(self, run: Attempt) -> None:
        later = run.released(timeout=20)
        assert later.delivery.dispatch_id == run.delivery.dispatch_id
        assert later.delivery.attempt == 2
        later.heartbeat().expect(204)

    def test_at_once_even_with_an_open_step(self, run: Attempt) -> None:
        run.proceed("x")
        run.released(timeout=20)

    def test_is_not_charged(self, run: Attempt) -> None:
        """Far more releases than the maximum of attempts."""
        attempt = run
        for _ in range(12):
            attempt = attempt.released()
        attempt.complete().expect(204)

    def test_twice(self, run: Attempt) -> None:
        run.release().expect(204)
        run.release().expect(409, "lease_superseded")

    def test_ended_execution(self, run: Attempt) -> None:
        run.complete().expect(204)
        assert run.release().status == 409


class TestSuspend:
    def test_nothing_to_wait_for(self, client: BearerClient, run: Attempt) -> None:
        run.proceed("x")
        before = client.events(run.id)
        assert run.suspend().expect(200).json == {"suspended": False}
        assert client.events(run.id) == before
        run.record("y")

    def test_ended_execution(self, run: Attempt) -> None:
        run.complete().expect(204)
        assert run.suspend().status == 409


class TestEnding:
    @pytest.mark.parametrize("body", [{}, {"output": None}, {"output": None, "state": None}])
    def test_without_an_output(
        self, client: BearerClient, run: Attempt, body: dict[str, Any]
    ) -> None:
        run.client.post(run.path("/complete"), body).expect(204)
        execution = client.execution(run.id)
        assert execution["status"] == "completed"
        assert execution.get("output") is None

    @pytest.mark.parametrize("first", ["complete", "fail"])
    @pytest.mark.parametrize("second", ["complete", "fail"])
    def test_only_once(self, client: BearerClient, run: Attempt, first: str, second: str) -> None:
        getattr(run, first)("first").expect(204)
        before = client.execution(run.id), client.events(run.id)
        getattr(run, second)("second").expect(409, "execution_terminal")
        assert (client.execution(run.id), client.events(run.id)) == before

    def test_with_open_steps(self, client: BearerClient, run: Attempt) -> None:
        step_id = run.proceed("x")
        run.complete().expect(204)
        assert client.step(run.id, step_id)["status"] == "executing"

    def test_no_more_deliveries(self, client: BearerClient, run: Attempt) -> None:
        run.complete().expect(204)
        assert "waiting_on" not in client.execution(run.id)
        assert run.agent.count(run.id) == 1

    @pytest.mark.parametrize(
        ("rest", "body", "field"),
        [
            ("/complete", {"result": 1}, "result"),
            ("/complete", {"output": 1, "State": 1}, "State"),
            ("/fail", {}, "error"),
            ("/fail", {"error": None}, "error"),
            ("/fail", {"error": {"message": "x"}}, "error"),
            ("/fail", {"error": 5}, "error"),
            ("/fail", {"error": "x", "reason": "y"}, "reason"),
        ],
    )
    def test_bad_field_is_named(
        self, client: BearerClient, run: Attempt, rest: str, body: dict[str, Any], field: str
    ) -> None:
        run.client.post(run.path(rest), body, bad=True).invalid(field)
        assert client.execution(run.id)["status"] == "running"

    def test_reason_is_kept_as_text(self, client: BearerClient, run: Attempt) -> None:
        reason = 'agent_error: ValueError: "nöt\n\tgood" \u2028 😀'
        run.fail(reason).expect(204)
        assert client.execution(run.id)["failure_reason"] == reason
        [event] = [e for e in client.events(run.id) if e["type"] == "execution.failed"]
        assert event["payload"]["reason"] == reason

    def test_another_agent(
        self, client: BearerClient, run: Attempt, new_agent: Callable[..., FakeAgent]
    ) -> None:
        thief = Attempt(new_agent(), run.delivery)
        for call in ("complete", "fail", "heartbeat", "release", "suspend"):
            getattr(thief, call)().expect(403, "forbidden")
        assert client.execution(run.id)["status"] == "running"


class TestLostAnswers:
    def test_submission(self, client: BearerClient, run: Attempt) -> None:
        """The agent never saw the answer; with its key it asks again and is not counted twice."""
        lost = run.submit("charge", 1, key="k", idempotency="at_most_once").expect(200).json
        again = run.submit("charge", 1, key="k", idempotency="at_most_once").expect(200).json
        assert again == lost
        run.complete_step(again["step_id"], "paid").expect(200)
        assert [s["occurrence"] for s in client.steps(run.id)] == [0]

    def test_outcome(self, client: BearerClient, run: Attempt) -> None:
        step_id = run.proceed("x")
        run.complete_step(step_id, "r").expect(200)
        again = run.complete_step(step_id, "r").expect(200).json
        assert again == {"decision": "replay", "step_id": step_id, "result": "r"}
        assert client.event_types(run.id).count("step.succeeded") == 1
