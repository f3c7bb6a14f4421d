"""Resources touched by steps: generations, counts, what is due."""

from typing import Any

import pytest

from conftest import SetPolicy
from harness import Attempt, BearerClient, rule
from harness.resources import affect, last_seq, new_events, of_key, state, submit

RESOURCES_MAX = 100

Json = dict[str, Any]


class TestTouching:
    def test_an_affecting_step_begins_a_generation(
        self, client: BearerClient, run: Attempt
    ) -> None:
        state(run)
        seq = last_seq(client, run)
        decision = submit(run, "write", ["disk"])
        step_id = decision["step_id"]
        assert decision["resources"] == [{"key": "disk", "generation": 1}]
        kind = {"step_id": step_id, "step_type": "tool_call", "target": "write"}
        assert new_events(client, run, seq)[-1] == (
            "step.executing",
            {**kind, "resources": ["disk"], "generations": {"disk": 1}},
        )
        assert client.step(run.id, step_id)["resources"] == ["disk"]
        assert (state(run)["generation"], state(run)["count"]) == (1, 0)
        run.complete_step(step_id).expect(200)
        assert (state(run)["generation"], state(run)["count"]) == (1, 1)

    @pytest.mark.parametrize("kind", ["tool_call", "local", "llm_call"])
    @pytest.mark.parametrize("reuse", [False, True])
    @pytest.mark.parametrize("declared", [False, True])
    def test_who_touches_what(
        self, client: BearerClient, run: Attempt, kind: str, reuse: bool, declared: bool
    ) -> None:
        state(run, coverage_reuse=reuse, every_steps=1)
        run.capture(of_key("disk", 0)).expect(204)
        fields: Json = {"resources": ["disk"]} if declared else {}
        decision = run.submit("x", kind=kind, **fields).expect(200).json
        affected = declared and kind != "llm_call"
        touched = affected or not reuse
        entry = {"key": "disk", "generation": 1, **({"due": True} if affected else {})}
        assert decision.get("resources") == ([entry] if touched else None)
        payload = client.events(run.id)[-1]["payload"]
        assert payload.get("generations") == ({"disk": 1} if touched else None)
        assert payload.get("resources") == ((["disk"] if affected else []) if touched else None)
        assert client.step(run.id, decision["step_id"]).get("resources") == (
            ["disk"] if declared else None
        )
        run.complete_step(decision["step_id"]).expect(200)
        now = state(run, coverage_reuse=reuse)
        assert (now["generation"], now["count"]) == (int(touched), int(affected))
        assert now["covered"] is not touched
        (checkpoint,) = client.fork_points(run.id)["checkpoints"]
        executing = client.events(run.id)[-2]
        assert executing["type"] == "step.executing"
        assert checkpoint.get("invalidated_seq") == (executing["event_seq"] if touched else None)

    def test_several_in_the_order_of_their_registration(
        self, client: BearerClient, run: Attempt
    ) -> None:
        for key, reuse in (("c", True), ("a", False), ("b", True), ("d", False)):
            state(run, key, coverage_reuse=reuse)
        decision = submit(run, "write", ["b", "d", "b"])
        expected = [{"key": k, "generation": 1} for k in ("a", "b", "d")]
        assert decision["resources"] == expected
        assert client.step(run.id, decision["step_id"])["resources"] == ["b", "d"]
        payload = client.events(run.id)[-1]["payload"]
        assert sorted(payload["resources"]) == ["b", "d"]
        assert payload["generations"] == {"a": 1, "b": 1, "d": 1}

    @pytest.mark.parametrize("every_steps", [0, 1, 2, 3, 5])
    def test_due_after_every_nth(self, run: Attempt, every_steps: int) -> None:
        state(run, every_steps=every_steps)
        for number in range(1, 11):
            (entry,) = affect(run, number)["resources"]
            due = every_steps > 0 and number % every_steps == 0
            assert entry == {"key": "disk", "generation": number, **({"due": True} if due else {})}

    def test_failures_count_and_denials_do_not(self, run: Attempt, policy: SetPolicy) -> None:
        policy(rule("no", "deny", {"target": "forbidden"}), default="allow")
        state(run, every_steps=2)
        run.fail_step(submit(run, "write", ["disk"], 0)["step_id"]).expect(200)
        run.denied("forbidden", resources=["disk"])
        assert (state(run)["generation"], state(run)["count"]) == (1, 1)
        assert affect(run, 1)["resources"] == [{"key": "disk", "generation": 2, "due": True}]

    def test_counts_once_a_step_and_again_with_each_run_of_it(
        self, client: BearerClient, run: Attempt
    ) -> None:
        state(run, every_steps=1)
        first = submit(run, "write", ["disk"])
        later = run.released()
        again = submit(later, "write", ["disk"])
        assert again["step_id"] == first["step_id"]
        assert again["resources"] == [{"key": "disk", "generation": 2, "due": True}]
        later.complete_step(again["step_id"]).expect(200)
        replayed = later.complete_step(again["step_id"], "other").expect(200).json
        assert replayed["decision"] == "replay"
        assert (state(later)["generation"], state(later)["count"]) == (2, 1)

    def test_the_last_declaration_counts(self, client: BearerClient, run: Attempt) -> None:
        for key in ("a", "b"):
            state(run, key, coverage_reuse=True)
        submit(run, "write", ["a"])
        later = run.released()
        again = submit(later, "write", ["b"])
        assert again["resources"] == [{"key": "b", "generation": 1}]
        assert client.step(run.id, again["step_id"])["resources"] == ["b"]
        later.complete_step(again["step_id"]).expect(200)
        assert [state(later, k, coverage_reuse=True)["count"] for k in ("a", "b")] == [0, 1]

    def test_an_indeterminate_step_counts(self, run: Attempt) -> None:
        state(run)
        submit(run, "write", ["disk"], idempotency="at_most_once")
        later = run.released()
        later.replay("write", resources=["disk"], idempotency="at_most_once")
        assert (state(later)["generation"], state(later)["count"]) == (1, 1)

    def test_a_repeated_submission_touches_once(self, client: BearerClient, run: Attempt) -> None:
        state(run, every_steps=1)
        first = submit(run, "write", ["disk"], key="k")
        seq = last_seq(client, run)
        assert submit(run, "write", ["disk"], key="k") == first
        assert last_seq(client, run) == seq

    def test_a_held_step_touches_when_it_runs(
        self, client: BearerClient, run: Attempt, policy: SetPolicy
    ) -> None:
        policy(rule("gate", "require_approval", {"target": "gated"}), default="allow")
        state(run)
        client.grant(run.hold("gated", resources=["disk"])).expect(204)
        later = run.redelivered()
        assert state(later)["generation"] == 0
        decision = submit(later, "gated", ["disk"])
        assert decision["resources"] == [{"key": "disk", "generation": 1}]

    def test_replays_touch_nothing(self, client: BearerClient, run: Attempt) -> None:
        state(run)
        step_id = affect(run, 0)["step_id"]
        later = run.released()
        seq = last_seq(client, run)
        decision = later.replay("write", 0, resources=["disk"])
        assert decision == {"decision": "replay", "step_id": step_id, "result": None}
        assert [t for t, _ in new_events(client, run, seq) if t != "dispatch.acked"] == []
        assert state(later)["generation"] == 1


class TestDeclaring:
    def test_a_key_that_is_not_registered(self, client: BearerClient, run: Attempt) -> None:
        state(run)
        before = client.events(run.id)
        for kind in ("tool_call", "local", "llm_call"):
            answer = run.submit("write", kind=kind, resources=["disk", "disc"])
            answer.expect(400, "validation_error")
            assert "disc" in answer.message
        assert client.events(run.id) == before
        assert client.steps(run.id) == []
        assert submit(run, "write", ["disk"])["resources"] == [{"key": "disk", "generation": 1}]
        assert client.steps(run.id)[0]["occurrence"] == 0

    def test_unless_it_is_replayed(self, run: Attempt, policy: SetPolicy) -> None:
        policy(rule("no", "deny", {"target": "forbidden"}), default="allow")
        run.record("write", 0, "done")
        run.fail_step(run.proceed("write", 1)).expect(200)
        later = run.released()
        assert later.replay("write", 0, resources=["disc"])["result"] == "done"
        assert "error" in later.replay("write", 1, resources=["disc"])

    @pytest.mark.parametrize(
        "resources", ["disk", {"disk": 1}, [1], [None], [""], ["a/b"], [".."], ["x" * 129]]
    )
    def test_what_is_no_list_of_keys(
        self, client: BearerClient, run: Attempt, resources: Any
    ) -> None:
        state(run)
        before = client.events(run.id)
        body = {"kind": "tool_call", "target": "x", "resources": resources}
        run.client.post(run.path("/steps"), body, bad=True).invalid("resources")
        assert client.events(run.id) == before

    @pytest.mark.parametrize("resources", [[], None])
    def test_none(self, client: BearerClient, run: Attempt, resources: Any) -> None:
        decision = run.submit("x", resources=resources).expect(200).json
        assert "resources" not in decision
        assert "resources" not in client.step(run.id, decision["step_id"])

    def test_too_many(self, run: Attempt) -> None:
        keys = [f"k{n}" for n in range(RESOURCES_MAX + 1)]
        run.submit("x", resources=keys).invalid("resources")
        state(run, "k")
        submit(run, "x", ["k"] * 1000)
        body = {"kind": "local", "target": "x", "resources": ["k"] * 1001}
        run.client.post(run.path("/steps"), body, bad=True).invalid("resources")
