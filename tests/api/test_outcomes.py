"""Reporting what came of a step. Guarantee 2 of ARCHITECTURE.md."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from harness import Attempt, BearerClient, FakeAgent


class TestOutcomes:
    def test_complete(self, client: BearerClient, run: Attempt) -> None:
        step_id = run.record("x", {}, {"rows": 3})
        step = client.step(run.id, step_id)
        assert step["status"] == "succeeded"
        assert step["result"] == {"rows": 3}
        assert step["started_at"] <= step["completed_at"]
        assert "error" not in step

    def test_fail(self, client: BearerClient, run: Attempt) -> None:
        step_id = run.proceed("x")
        answer = run.fail_step(step_id, {"message": "gone"}).expect(200).json
        assert answer == {"decision": "recorded"}
        step = client.step(run.id, step_id)
        assert step["status"] == "failed"
        assert step["error"] == {"message": "gone"}
        assert "result" not in step

    def test_first_outcome_stands(self, client: BearerClient, run: Attempt) -> None:
        step_id = run.record("x", {}, "first")
        before = client.events(run.id)
        recorded = {"decision": "replay", "step_id": step_id, "result": "first"}
        assert run.complete_step(step_id, "second").expect(200).json == recorded
        assert run.fail_step(step_id).expect(200).json == recorded
        assert client.events(run.id) == before

    def test_first_failure_stands(self, run: Attempt) -> None:
        step_id = run.proceed("x")
        run.fail_step(step_id, {"message": "first"}).expect(200)
        recorded = {"decision": "replay", "step_id": step_id, "error": {"message": "first"}}
        assert run.complete_step(step_id, "second").expect(200).json == recorded
        assert run.fail_step(step_id, {"message": "third"}).expect(200).json == recorded

    @pytest.mark.parametrize("end", ["complete", "fail", "cancel"])
    def test_after_the_end(self, client: BearerClient, run: Attempt, end: str) -> None:
        step_id = run.proceed("x")
        if end == "cancel":
            client.cancel(run.id)
        else:
            getattr(run, end)().expect(204)
        before = client.step(run.id, step_id)
        assert run.complete_step(step_id, 1).expect(200).json == {"decision": "execution_terminal"}
        assert run.fail_step(step_id).expect(200).json == {"decision": "execution_terminal"}
        assert client.step(run.id, step_id) == before

    def test_unknown_step(self, run: Attempt) -> None:
        run.complete_step("0" * 64).expect(404, "not_found")
        run.fail_step("0" * 64).expect(404, "not_found")

    def test_parallel_outcomes_record_one(self, client: BearerClient, run: Attempt) -> None:
        step_id = run.proceed("x")
        with ThreadPoolExecutor(8) as pool:
            answers = list(
                pool.map(lambda n: run.complete_step(step_id, n).expect(200).json, range(8))
            )
        decisions = sorted(answer["decision"] for answer in answers)
        assert decisions == ["recorded"] + ["replay"] * 7
        result = client.step(run.id, step_id)["result"]
        assert {a["result"] for a in answers if a["decision"] == "replay"} == {result}
        assert client.event_types(run.id).count("step.succeeded") == 1

    @pytest.mark.parametrize("error", [None, "text", 5, ["a"], True])
    def test_error_is_an_object(self, run: Attempt, error: Any) -> None:
        step_id = run.proceed("x")
        body = {"error": error}
        target = run.path(f"/steps/{step_id}/fail")
        run.client.post(target, body, bad=True).invalid("error")

    @pytest.mark.parametrize("error", [{}, {"reason": "x"}, {"message": "y", "deep": {"z": [1]}}])
    def test_error_may_hold_anything(
        self, client: BearerClient, run: Attempt, error: dict[str, Any]
    ) -> None:
        step_id = run.proceed("x")
        run.fail_step(step_id, error).expect(200)
        assert client.step(run.id, step_id)["error"] == error

    @pytest.mark.parametrize(
        ("rest", "body", "field"),
        [
            ("complete", {}, "result"),
            ("complete", {"result": 1, "extra": 1}, "extra"),
            ("complete", {"result": 1, "captures": {}}, "captures"),
            ("complete", {"result": 1, "capture_failures": "x"}, "capture_failures"),
            ("fail", {}, "error"),
            ("fail", {"error": {}, "result": 1}, "result"),
            ("fail", {"error": {}, "captures": 1}, "captures"),
        ],
    )
    def test_bad_field_is_named(
        self, run: Attempt, rest: str, body: dict[str, Any], field: str
    ) -> None:
        step_id = run.proceed("x")
        target = run.path(f"/steps/{step_id}/{rest}")
        run.client.post(target, body, bad=True).invalid(field)
        run.complete_step(step_id, 1).expect(200)

    def test_empty_captures(self, run: Attempt) -> None:
        empty: tuple[list[str] | None, ...] = ([], None)
        for captures in empty:
            step_id = run.proceed("x", {"c": captures})
            body = {"result": 1, "captures": captures, "capture_failures": captures}
            answer = run.client.post(run.path(f"/steps/{step_id}/complete"), body).expect(200)
            assert answer.json == {"decision": "recorded"}

    def test_another_agents_step(
        self, client: BearerClient, run: Attempt, new_agent: Callable[..., FakeAgent]
    ) -> None:
        step_id = run.proceed("x")
        other = new_agent()
        thief = Attempt(other, run.delivery)
        thief.complete_step(step_id, "stolen").expect(403, "forbidden")
        thief.submit("x").expect(403, "forbidden")
        assert client.step(run.id, step_id)["status"] == "executing"
