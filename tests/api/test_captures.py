"""Captures of resources: accepted, refused, reported with outcomes or without."""

from typing import Any

import pytest

from conftest import SetPolicy
from harness import Attempt, BearerClient, rule
from harness.resources import affect, failure, last_seq, new_events, of_key, state, submit

REF_MAX = 4096

Json = dict[str, Any]


class TestCaptures:
    def test_outside_a_step(self, client: BearerClient, run: Attempt) -> None:
        state(run, every_steps=1)
        seq = last_seq(client, run)
        run.capture(of_key("disk", 0, "snap-1")).expect(204)
        payload = {
            "key": "disk",
            "generation": 0,
            "checkpoint_ref": "snap-1",
            "covered_seq": seq,
        }
        assert new_events(client, run, seq) == [("resource.checkpointed", payload)]
        found = state(run)
        assert (found["checkpoint_ref"], found["covered"]) == ("snap-1", True)

    def test_with_an_outcome(self, client: BearerClient, run: Attempt) -> None:
        for how in ("complete", "fail"):
            state(run, every_steps=1)
            decision = submit(run, how, ["disk"])
            generation = decision["resources"][0]["generation"]
            seq = last_seq(client, run)
            report = {"captures": [of_key("disk", generation, f"after-{how}")]}
            if how == "complete":
                run.complete_step(decision["step_id"], 1, **report).expect(200)
            else:
                run.fail_step(decision["step_id"], **report).expect(200)
            events = new_events(client, run, seq)
            assert [t for t, _ in events] == [
                "step.succeeded" if how == "complete" else "step.failed",
                "resource.checkpointed",
            ]
            assert events[1][1] == {
                "key": "disk",
                "generation": generation,
                "checkpoint_ref": f"after-{how}",
                "covered_seq": seq + 1,
            }
            found = state(run)
            assert (found["checkpoint_ref"], found["covered"]) == (f"after-{how}", True)

    @pytest.mark.parametrize("ref", [None, "", 7, True, [], {}, 1.5])
    @pytest.mark.parametrize("where", ["outside", "complete", "fail"])
    def test_without_a_reference(
        self, client: BearerClient, run: Attempt, ref: Any, where: str
    ) -> None:
        """Is refused, and costs neither the outcome nor the rest."""
        for key in ("disk", "other"):
            state(run, key)
        self._report(run, where, [of_key("disk", 1, ref), of_key("other", 1, "good")])
        types = [(e["type"], e["payload"]) for e in client.events(run.id)[-2:]]
        assert types[0] == (
            "resource.checkpoint_failed",
            failure("disk", 1, "missing_checkpoint_ref"),
        )
        assert types[1][0] == "resource.checkpointed"
        if where != "outside":
            status = "succeeded" if where == "complete" else "failed"
            assert client.steps(run.id)[-1]["status"] == status

    @staticmethod
    def _report(run: Attempt, where: str, captures: list[Json]) -> None:
        decision = submit(run, "write", [])
        if where == "complete":
            run.complete_step(decision["step_id"], captures=captures).expect(200)
        elif where == "fail":
            run.fail_step(decision["step_id"], captures=captures).expect(200)
        else:
            run.complete_step(decision["step_id"]).expect(200)
            run.capture(*captures).expect(204)

    def test_a_missing_reference_field(self, client: BearerClient, run: Attempt) -> None:
        state(run)
        run.capture({"key": "disk", "generation": 0}).expect(204)
        payload = failure("disk", 0, "missing_checkpoint_ref")
        assert client.events(run.id)[-1]["payload"] == payload

    def test_the_first_reason_that_applies(self, client: BearerClient, run: Attempt) -> None:
        for key in ("disk", "busy"):
            state(run, key, coverage_reuse=True)
        affect(run, 0)
        submit(run, "write", ["busy"])
        seq = last_seq(client, run)
        run.capture(
            of_key("nobody", 7, ""),
            of_key("disk", 7, ""),
            of_key("disk", 0),  # stale too
            of_key("busy", 0),  # busy too
            of_key("nobody", 0, "ref"),
        ).expect(204)
        assert new_events(client, run, seq) == [
            ("resource.checkpoint_failed", failure(key, generation, error))
            for key, generation, error in (
                ("nobody", 7, "unknown_resource"),
                ("disk", 7, "missing_checkpoint_ref"),
                ("disk", 0, "duplicate_capture"),
                ("busy", 0, "stale_generation"),
                ("nobody", 0, "unknown_resource"),
            )
        ]
        for key in ("disk", "busy"):
            assert not state(run, key, coverage_reuse=True)["covered"]

    @pytest.mark.parametrize("generation", [-1, 0, 2, 2**62])
    def test_of_another_generation(
        self, client: BearerClient, run: Attempt, generation: int
    ) -> None:
        state(run)
        affect(run, 0, captures=[of_key("disk", generation)])
        last = client.events(run.id)[-1]
        assert last["type"] == "resource.checkpoint_failed"
        assert last["payload"] == failure("disk", generation, "stale_generation")
        assert client.fork_points(run.id)["checkpoints"] == []

    def test_while_another_step_writes(self, client: BearerClient, run: Attempt) -> None:
        state(run)
        one, two = submit(run, "write", ["disk"], 1), submit(run, "write", ["disk"], 2)
        run.complete_step(one["step_id"], captures=[of_key("disk", 2)]).expect(200)
        assert client.events(run.id)[-1]["payload"] == failure("disk", 2, "writers_active")
        run.capture(of_key("disk", 2)).expect(204)
        assert client.events(run.id)[-1]["payload"] == failure("disk", 2, "writers_active")
        run.complete_step(two["step_id"], captures=[of_key("disk", 2)]).expect(200)
        assert client.events(run.id)[-1]["type"] == "resource.checkpointed"

    def test_a_step_that_only_touches_is_no_writer(
        self, client: BearerClient, run: Attempt
    ) -> None:
        state(run)
        submit(run, "read", [])
        submit(run, "ask", ["disk"], kind="llm_call")
        run.capture(of_key("disk", 2)).expect(204)
        assert client.events(run.id)[-1]["type"] == "resource.checkpointed"

    def test_an_orphan_writes_no_more(self, client: BearerClient, run: Attempt) -> None:
        state(run)
        submit(run, "write", ["disk"])
        later = run.released()
        later.capture(of_key("disk", 1)).expect(204)
        assert client.events(run.id)[-1]["type"] == "resource.checkpointed"

    def test_until_it_is_run_again(self, client: BearerClient, run: Attempt) -> None:
        state(run)
        submit(run, "write", ["disk"])
        later = run.released()
        submit(later, "write", ["disk"])
        later.capture(of_key("disk", 2)).expect(204)
        assert client.events(run.id)[-1]["payload"] == failure("disk", 2, "writers_active")

    def test_twice_in_one_call(self, client: BearerClient, run: Attempt) -> None:
        state(run)
        seq = last_seq(client, run)
        run.capture(of_key("disk", 0, "a"), of_key("disk", 0, "b")).expect(204)
        events = new_events(client, run, seq)
        assert [t for t, _ in events] == ["resource.checkpointed", "resource.checkpoint_failed"]
        assert events[1][1] == failure("disk", 0, "duplicate_capture")
        assert state(run)["checkpoint_ref"] == "a"

    def test_again_in_another_call(self, client: BearerClient, run: Attempt) -> None:
        """Nothing has changed, so both cover, and the newer one is shown."""
        state(run)
        run.capture(of_key("disk", 0, "a")).expect(204)
        run.capture(of_key("disk", 0, "b")).expect(204)
        refs = [c["checkpoint_ref"] for c in client.fork_points(run.id)["checkpoints"]]
        assert refs == ["a", "b"]
        assert state(run)["checkpoint_ref"] == "b"

    @pytest.mark.parametrize("where", ["outside", "complete", "fail"])
    def test_failures(self, client: BearerClient, run: Attempt, where: str) -> None:
        """Captures first, then these, each in the order of the call; unknown keys too."""
        for key in ("a", "b"):
            state(run, key, coverage_reuse=True)
        seq = last_seq(client, run)
        failures = [failure("b", 3, "timed out"), failure("nobody", -1, "é\n"), failure("b", 0, "")]
        report = {"captures": [of_key("a", 0)], "capture_failures": failures}
        if where == "outside":
            run.capture(*report["captures"], failures=failures).expect(204)
        else:
            step_id = submit(run, "write", [])["step_id"]
            call = run.complete_step if where == "complete" else run.fail_step
            call(step_id, {}, **report).expect(200)
        resource = [e for e in new_events(client, run, seq) if e[0].startswith("resource.")]
        assert [t for t, _ in resource] == ["resource.checkpointed"] + [
            "resource.checkpoint_failed"
        ] * len(failures)
        assert [p for _, p in resource[1:]] == failures

    def test_failures_do_not_uncover(self, run: Attempt) -> None:
        state(run)
        run.capture(of_key("disk", 0)).expect(204)
        run.capture(failures=[failure("disk", 0)]).expect(204)
        assert state(run)["covered"]

    def test_with_an_outcome_that_is_a_replay(self, client: BearerClient, run: Attempt) -> None:
        state(run)
        step_id = affect(run, 0)["step_id"]
        seq = last_seq(client, run)
        run.complete_step(step_id, captures=[of_key("disk", 1)]).expect(200)
        assert new_events(client, run, seq) == []
        assert not state(run)["covered"]

    def test_under_a_delivery_that_has_ended(
        self, client: BearerClient, run: Attempt, policy: SetPolicy
    ) -> None:
        """A call that ran beside the one that blocked still reports what it captured."""
        policy(rule("gate", "require_approval", {"target": "gated"}), default="allow")
        state(run)
        step_id = submit(run, "write", ["disk"])["step_id"]
        run.hold("gated")
        run.complete_step(step_id, captures=[of_key("disk", 1)]).expect(200)
        assert client.events(run.id)[-1]["type"] == "resource.checkpointed"

    def test_nothing_at_all(self, client: BearerClient, run: Attempt) -> None:
        state(run)
        before = client.events(run.id)
        bodies: list[Json] = [{}, {"captures": []}, {"captures": None, "capture_failures": []}]
        for body in bodies:
            run.client.post(run.path("/resources/checkpoints"), body).expect(204)
        assert client.events(run.id) == before

    def test_a_reference_that_is_too_long(self, client: BearerClient, run: Attempt) -> None:
        state(run)
        run.capture(of_key("disk", 0, "é" * (REF_MAX // 2))).expect(204)
        assert client.events(run.id)[-1]["type"] == "resource.checkpointed"
        run.capture(of_key("disk", 0, "x" * (REF_MAX + 1))).expect(204)
        last = client.events(run.id)[-1]
        assert last["type"] == "resource.checkpoint_failed"
        assert str(REF_MAX) in last["payload"]["error"]

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("captures", {}), ("captures", "x"), ("captures", [1]), ("captures", [None]),
            ("captures", [{}]), ("captures", [{"key": "disk"}]),
            ("captures", [{"generation": 0, "checkpoint_ref": "r"}]),
            ("captures", [{**of_key("disk", 0), "x": 1}]),
            ("captures", [{**of_key("disk", 0), "key": 1}]),
            ("captures", [{**of_key("disk", 0), "generation": "0"}]),
            ("captures", [{**of_key("disk", 0), "generation": 0.5}]),
            ("captures", [{**of_key("disk", 0), "generation": 2**64}]),
            ("captures", [{**of_key("disk", 0), "generation": None}]),
            ("captures", [of_key("x" * 1025, 0)]), ("captures", [of_key("disk", 0)] * 1001),
            ("capture_failures", {}), ("capture_failures", [1]), ("capture_failures", [{}]),
            ("capture_failures", [{"key": "disk", "generation": 0}]),
            ("capture_failures", [{**failure("disk", 0), "error": {}}]),
            ("capture_failures", [{**failure("disk", 0), "checkpoint_ref": "r"}]),
        ],
    )  # fmt: skip
    def test_what_is_no_report(
        self, client: BearerClient, run: Attempt, field: str, value: Any
    ) -> None:
        state(run)
        step_id = submit(run, "write", ["disk"])["step_id"]
        before = client.events(run.id)
        for target, body in (
            ("/resources/checkpoints", {}),
            (f"/steps/{step_id}/complete", {"result": 1}),
            (f"/steps/{step_id}/fail", {"error": {}}),
        ):
            run.client.post(run.path(target), {**body, field: value}, bad=True).invalid(field)
        assert client.events(run.id) == before
        assert client.step(run.id, step_id)["status"] == "executing"

    def test_a_long_error_is_cut(self, client: BearerClient, run: Attempt) -> None:
        run.capture(failures=[failure("disk", 0, "é" * 10000)]).expect(204)
        assert client.events(run.id)[-1]["payload"]["error"] == "é" * 2048
