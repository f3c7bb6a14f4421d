"""Submitting steps: decisions, occurrences, replay, repeated submissions."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from harness import Attempt, BearerClient

UNKNOWN = "01920000-0000-7000-8000-000000000000"
RETRY_RULE = "__indeterminate_retry"


class TestProceed:
    def test_new_step(self, client: BearerClient, run: Attempt) -> None:
        answer = run.submit("send_email", {"to": "ops@example.com"}).expect(200).json
        assert set(answer) == {"decision", "step_id"}
        assert answer["decision"] == "proceed"
        step = client.step(run.id, answer["step_id"])
        assert step["execution_id"] == run.id
        assert step["kind"] == "tool_call"
        assert step["target"] == "send_email"
        assert step["args"] == {"to": "ops@example.com"}
        assert step["occurrence"] == 0
        assert step["status"] == "executing"
        assert step["idempotency"] == "safe_to_retry"
        assert "started_at" in step
        for absent in ("result", "error", "completed_at", "usage"):
            assert absent not in step

    @pytest.mark.parametrize("kind", ["tool_call", "llm_call", "local"])
    @pytest.mark.parametrize("idempotency", [None, "safe_to_retry", "at_most_once"])
    def test_kinds_and_modes(
        self, client: BearerClient, run: Attempt, kind: str, idempotency: str | None
    ) -> None:
        step_id = run.proceed("x", {}, kind=kind, idempotency=idempotency)
        step = client.step(run.id, step_id)
        assert step["kind"] == kind
        assert step["idempotency"] == (idempotency or "safe_to_retry")

    def test_kind_and_target_are_part_of_the_identity(self, run: Attempt) -> None:
        ids = {
            run.proceed(target, {}, kind=kind)
            for target in ("a", "b")
            for kind in ("tool_call", "llm_call", "local")
        }
        assert len(ids) == 6

    def test_mode_is_not(self, run: Attempt) -> None:
        first = run.record("x", 1, "r", idempotency="safe_to_retry")
        later = run.released()
        replayed = later.replay("x", 1, idempotency="at_most_once")
        assert replayed["step_id"] == first

    def test_llm_call_may_have_an_empty_target(self, client: BearerClient, run: Attempt) -> None:
        step_id = run.proceed("", {}, kind="llm_call")
        assert client.step(run.id, step_id)["target"] == ""

    def test_empty_resources_and_null_optionals(self, run: Attempt) -> None:
        run.proceed("a", {}, resources=[], idempotency=None)
        run.proceed("b", {}, resources=None)

    def test_unknown_resource(self, run: Attempt) -> None:
        body = {"kind": "tool_call", "target": "x", "resources": ["workspace"]}
        run.client.post(run.path("/steps"), body, bad=True).expect(400, "validation_error")

    def test_missing_args_are_null(self, client: BearerClient, run: Attempt) -> None:
        first = run.proceed("x")
        second = run.proceed("x", None)
        steps = [client.step(run.id, step_id) for step_id in (first, second)]
        assert steps[0]["args_hash"] == steps[1]["args_hash"]
        assert [step["occurrence"] for step in steps] == [0, 1]
        assert [step.get("args") for step in steps] == [None, None]


class TestOccurrence:
    def test_equal_submissions_are_counted(self, client: BearerClient, run: Attempt) -> None:
        ids = [run.proceed("poll", {"n": 1}) for _ in range(4)]
        assert len(set(ids)) == 4
        assert [client.step(run.id, i)["occurrence"] for i in ids] == [0, 1, 2, 3]

    def test_counted_by_kind_target_and_args(self, client: BearerClient, run: Attempt) -> None:
        for args in (1, 2):
            for target in ("a", "b"):
                for kind in ("tool_call", "local"):
                    step_id = run.proceed(target, args, kind=kind)
                    assert client.step(run.id, step_id)["occurrence"] == 0

    def test_counted_by_canonical_args(self, client: BearerClient, run: Attempt) -> None:
        spellings = [b'{"a":1,"b":"A"}', b'{ "b" : "\\u0041", "a" : 1 }']
        ids = [run.proceed("x", spelling) for spelling in spellings]
        steps = [client.step(run.id, step_id) for step_id in ids]
        assert [step["occurrence"] for step in steps] == [0, 1]
        assert len({step["args_hash"] for step in steps}) == 1

    def test_other_spellings_of_a_number_are_other_args(
        self, client: BearerClient, run: Attempt
    ) -> None:
        for text in (b"1", b"1.0", b"1e0", b"10e-1", b"-0", b"0", b"-0.0"):
            step_id = run.proceed("x", text)
            assert client.step(run.id, step_id)["occurrence"] == 0, text

    def test_every_attempt_counts_from_zero(self, run: Attempt) -> None:
        ids = [run.record("poll", 1, n) for n in range(3)]
        later = run.released()
        replays = [later.replay("poll", 1) for _ in range(3)]
        assert [r["step_id"] for r in replays] == ids
        assert [r["result"] for r in replays] == [0, 1, 2]
        assert later.proceed("poll", 1) not in ids

    def test_replays_advance_the_count(self, run: Attempt) -> None:
        """An attempt that has replayed one goes on with the second, not with the first again."""
        run.record("poll", 1, "a")
        later = run.released()
        later.replay("poll", 1)
        fresh = later.proceed("poll", 1)
        later.complete_step(fresh, "b").expect(200)
        third = later.released()
        assert [third.replay("poll", 1)["result"] for _ in range(2)] == ["a", "b"]

    def test_refused_submissions_do_not_advance_it(
        self, client: BearerClient, run: Attempt
    ) -> None:
        run.proceed("x", 1)
        bad = {"kind": "tool_call", "target": "x", "args": 1, "surprise": True}
        run.client.post(run.path("/steps"), bad, bad=True).expect(400)
        assert client.step(run.id, run.proceed("x", 1))["occurrence"] == 1

    def test_parallel_distinct_calls(self, client: BearerClient, run: Attempt) -> None:
        with ThreadPoolExecutor(10) as pool:
            ids = list(pool.map(lambda n: run.proceed("fan", {"n": n}), range(30)))
        assert len(set(ids)) == 30
        steps = client.steps(run.id)
        assert {step["step_id"] for step in steps} == set(ids)
        assert {step["occurrence"] for step in steps} == {0}

    def test_parallel_identical_calls(self, client: BearerClient, run: Attempt) -> None:
        with ThreadPoolExecutor(10) as pool:
            ids = list(pool.map(lambda _: run.proceed("same", {"a": 1}), range(20)))
        assert len(set(ids)) == 20
        assert sorted(s["occurrence"] for s in client.steps(run.id)) == list(range(20))

    def test_parallel_calls_replay_in_another_order(self, run: Attempt) -> None:
        with ThreadPoolExecutor(8) as pool:
            for n, step_id in enumerate(pool.map(lambda n: run.proceed("fan", n), range(8))):
                run.complete_step(step_id, f"r{n}").expect(200)
        later = run.released()
        order = [5, 2, 7, 0, 1, 6, 3, 4]
        assert [later.replay("fan", n)["result"] for n in order] == [f"r{n}" for n in order]

    def test_parallel_identical_calls_replay_each_once(self, run: Attempt) -> None:
        for n in range(6):
            run.record("same", {}, n)
        later = run.released()
        with ThreadPoolExecutor(6) as pool:
            results = list(pool.map(lambda _: later.replay("same", {})["result"], range(6)))
        assert sorted(results) == list(range(6))


class TestReplay:
    @pytest.mark.parametrize(
        "result", [None, 0, False, "", "text", [], {}, {"a": [1, {"b": None}]}]
    )
    def test_result(self, run: Attempt, result: Any) -> None:
        step_id = run.record("x", 1, result)
        answer = run.released().replay("x", 1)
        assert answer == {"decision": "replay", "step_id": step_id, "result": result}

    def test_error(self, run: Attempt) -> None:
        step_id = run.proceed("x", 1)
        error = {"message": "no such file", "errno": 2}
        run.fail_step(step_id, error).expect(200)
        answer = run.released().replay("x", 1)
        assert answer == {"decision": "replay", "step_id": step_id, "error": error}

    def test_writes_no_events(self, client: BearerClient, run: Attempt) -> None:
        run.record("x", 1, "r")
        later = run.released()
        later.heartbeat().expect(204)
        before = len(client.events(run.id))
        later.replay("x", 1)
        assert len(client.events(run.id)) == before

    def test_orphan_runs_again_if_safe(self, client: BearerClient, run: Attempt) -> None:
        step_id = run.proceed("x", 1)
        later = run.released()
        assert later.proceed("x", 1) == step_id
        log = [e for e in client.events(run.id) if e["payload"].get("step_id") == step_id]
        types = [event["type"] for event in log]
        assert types == ["step.proposed", "step.allowed", "step.executing", "step.executing"]
        later.complete_step(step_id, "second").expect(200)
        assert client.step(run.id, step_id)["result"] == "second"

    def test_a_run_that_dies_often(self, client: BearerClient, run: Attempt) -> None:
        """Each attempt gets one step further; no effect happens twice."""
        performed: list[int] = []
        attempt = run
        for death in range(5):
            for n in range(5):
                answer = attempt.submit("effect", n).expect(200).json
                if answer["decision"] == "replay":
                    assert answer["result"] == n * n
                    continue
                performed.append(n)
                attempt.complete_step(answer["step_id"], n * n).expect(200)
                if n == death:
                    break
            if death < 4:
                attempt = attempt.released()
        attempt.complete("done").expect(204)
        assert performed == [0, 1, 2, 3, 4]
        assert client.event_types(run.id).count("step.executing") == 5


class TestAtMostOnce:
    def orphaned(self, run: Attempt, recorded: str, resubmitted: str) -> tuple[Attempt, str, Any]:
        step_id = run.proceed("charge", {"eur": 5}, idempotency=recorded)
        later = run.released()
        answer = later.submit("charge", {"eur": 5}, idempotency=resubmitted).expect(200).json
        return later, step_id, answer

    @pytest.mark.parametrize(
        ("recorded", "resubmitted"),
        [
            ("at_most_once", "at_most_once"),
            ("at_most_once", "safe_to_retry"),
            ("safe_to_retry", "at_most_once"),
        ],
    )
    def test_orphan_is_indeterminate(
        self, client: BearerClient, run: Attempt, recorded: str, resubmitted: str
    ) -> None:
        later, step_id, answer = self.orphaned(run, recorded, resubmitted)
        assert answer["decision"] == "replay"
        assert answer["step_id"] == step_id
        assert answer["error"]["reason"] == "indeterminate"
        assert isinstance(answer["error"]["message"], str)
        step = client.step(run.id, step_id)
        assert step["status"] == "failed"
        assert step["error"] == answer["error"]
        assert client.event_types(run.id)[-1] == "step.failed"
        late = later.complete_step(step_id, "late").expect(200).json
        assert late == answer

    def test_equal_retry_is_denied(self, client: BearerClient, run: Attempt) -> None:
        later, first, _ = self.orphaned(run, "at_most_once", "at_most_once")
        answer = later.submit("charge", {"eur": 5}, idempotency="at_most_once").expect(200).json
        assert answer["decision"] == "denied"
        assert answer["rule_id"] == RETRY_RULE
        assert answer["reason"] == "prior attempt outcome unknown; retry refused"
        denied = [s for s in client.steps(run.id) if s["step_id"] != first]
        assert [step["status"] for step in denied] == ["denied"]
        types = client.event_types(run.id)
        assert types[-2:] == ["step.proposed", "step.denied"]
        assert client.events(run.id)[-1]["payload"]["rule_id"] == RETRY_RULE

    def test_denied_stays_denied_on_the_next_attempt(self, run: Attempt) -> None:
        later, _, _ = self.orphaned(run, "at_most_once", "at_most_once")
        denied = later.submit("charge", {"eur": 5}, idempotency="at_most_once").expect(200).json
        third = later.released()
        third.replay("charge", {"eur": 5}, idempotency="at_most_once")
        again = third.submit("charge", {"eur": 5}, idempotency="at_most_once").expect(200).json
        keys = ("decision", "reason", "rule_id")
        assert {k: again[k] for k in keys} == {k: denied[k] for k in keys}

    def test_other_steps_go_on(self, run: Attempt) -> None:
        later, _, _ = self.orphaned(run, "at_most_once", "at_most_once")
        later.proceed("charge", {"eur": 6}, idempotency="at_most_once")
        later.proceed("refund", {"eur": 5}, idempotency="at_most_once")
        later.proceed("charge", {"eur": 5}, kind="local", idempotency="at_most_once")
        later.proceed("charge", {"eur": 5}, idempotency="safe_to_retry")

    def test_plain_failure_may_be_retried(self, run: Attempt) -> None:
        step_id = run.proceed("charge", 1, idempotency="at_most_once")
        run.fail_step(step_id, {"message": "declined"}).expect(200)
        assert run.proceed("charge", 1, idempotency="at_most_once") != step_id

    def test_settled_before_the_death_is_replayed(self, run: Attempt) -> None:
        step_id = run.record("charge", 1, "paid", idempotency="at_most_once")
        assert run.released().replay("charge", 1)["step_id"] == step_id


class TestTerminal:
    @pytest.mark.parametrize("end", ["complete", "fail", "cancel"])
    def test_submission(self, client: BearerClient, run: Attempt, end: str) -> None:
        if end == "cancel":
            client.cancel(run.id)
        else:
            getattr(run, end)().expect(204)
        before = client.events(run.id)
        assert run.submit("x").expect(200).json == {"decision": "execution_terminal"}
        assert client.events(run.id) == before
        assert client.steps(run.id) == []

    def test_even_of_a_known_step(self, client: BearerClient, run: Attempt) -> None:
        run.record("x", 1, "r")
        run.complete().expect(204)
        assert run.submit("x", 1).expect(200).json == {"decision": "execution_terminal"}


class TestIdempotencyKey:
    def test_repeat_gets_the_first_answer(self, client: BearerClient, run: Attempt) -> None:
        first = run.submit("x", {"a": 1}, key="k-1").expect(200).json
        before = client.events(run.id)
        for _ in range(3):
            assert run.submit("x", {"a": 1}, key="k-1").expect(200).json == first
        assert client.events(run.id) == before
        assert client.step(run.id, run.proceed("x", {"a": 1}, key="k-2"))["occurrence"] == 1

    def test_repeat_with_equal_args_in_other_spelling(self, run: Attempt) -> None:
        first = run.submit("x", b'{"a":1,"b":2}', key="k").expect(200).json
        assert run.submit("x", b'{"b":2, "a":1}', key="k").expect(200).json == first

    @pytest.mark.parametrize(
        ("target", "args", "kind"),
        [("y", 1, "tool_call"), ("x", 2, "tool_call"), ("x", 1, "local")],
    )
    def test_other_submission_under_the_key(
        self, client: BearerClient, run: Attempt, target: str, args: int, kind: str
    ) -> None:
        run.proceed("x", 1, key="k")
        before = client.events(run.id)
        run.submit(target, args, kind=kind, key="k").expect(409, "conflict")
        assert client.events(run.id) == before

    def test_without_a_key_each_call_is_one_more(self, run: Attempt) -> None:
        assert run.proceed("x", 1) != run.proceed("x", 1)

    def test_replay_is_repeated_too(self, run: Attempt) -> None:
        for n in range(2):
            run.record("x", 1, n)
        later = run.released()
        first = later.replay("x", 1, key="k")
        assert later.replay("x", 1, key="k") == first
        assert later.replay("x", 1, key="other")["result"] == 1

    def test_key_belongs_to_its_attempt(self, run: Attempt) -> None:
        run.record("x", 1, "r", key="k")
        later = run.released()
        assert later.replay("x", 1, key="k")["result"] == "r"
        third = later.released()
        third.proceed("y", 2, key="k")

    def test_parallel_repeats_record_one(self, client: BearerClient, run: Attempt) -> None:
        with ThreadPoolExecutor(8) as pool:
            ids = set(pool.map(lambda _: run.proceed("x", 1, key="same"), range(16)))
        assert len(ids) == 1
        assert len(client.steps(run.id)) == 1

    def test_error_answer_may_be_sent_again(self, run: Attempt) -> None:
        bad = {"kind": "tool_call", "target": "x", "oops": 1}
        headers = {"Idempotency-Key": "k"}
        run.client.post(run.path("/steps"), bad, headers=headers, bad=True).expect(400)
        run.proceed("x", 1, key="k")


class TestShape:
    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("kind", None),
            ("kind", "tool"),
            ("kind", 1),
            ("target", None),
            ("target", ""),
            ("target", 5),
            ("target", "a\nb"),
            ("target", "a\u0000b"),
            ("target", "a\u007f"),
            ("idempotency", "maybe"),
            ("idempotency", 1),
            ("resources", "workspace"),
            ("resources", [1]),
            ("arguments", {}),
            ("Kind", "tool_call"),
        ],
    )
    def test_bad_field_is_named(
        self, client: BearerClient, run: Attempt, field: str, value: Any
    ) -> None:
        body = {"kind": "tool_call", "target": "x", field: value}
        before = client.events(run.id)
        run.client.post(run.path("/steps"), body, bad=True).invalid(field)
        assert client.events(run.id) == before

    @pytest.mark.parametrize("field", ["kind", "target"])
    def test_required(self, run: Attempt, field: str) -> None:
        body = {"kind": "tool_call", "target": "x"}
        del body[field]
        run.client.post(run.path("/steps"), body, bad=True).invalid(field)

    def test_local_needs_a_target(self, run: Attempt) -> None:
        body = {"kind": "local", "target": ""}
        run.client.post(run.path("/steps"), body, bad=True).invalid("target")

    def test_shape_comes_before_existence(self, run: Attempt) -> None:
        target = f"/v0/executions/{UNKNOWN}/steps"
        run.client.post(target, {"kind": "x"}, bad=True).expect(400, "validation_error")
        good = {"kind": "tool_call", "target": "x"}
        run.client.post(target, good).expect(404, "not_found")


class TestReading:
    def test_list_is_in_order_of_creation(self, client: BearerClient, run: Attempt) -> None:
        ids = [run.proceed("x", n) for n in range(5)]
        assert [s["step_id"] for s in client.steps(run.id)] == ids
        assert [s["step_id"] for s in run.client.get(run.path("/steps")).expect(200).json] == ids

    def test_list_is_what_get_shows(self, client: BearerClient, run: Attempt) -> None:
        run.record("a", {"x": 1}, "r")
        run.fail_step(run.proceed("b")).expect(200)
        run.proceed("c")
        steps = client.steps(run.id)
        assert steps == [client.step(run.id, s["step_id"]) for s in steps]

    def test_by_status(self, client: BearerClient, run: Attempt) -> None:
        ok = run.record("a")
        bad = run.proceed("b")
        run.fail_step(bad).expect(200)
        open_id = run.proceed("c")

        def found(status: str) -> list[str]:
            return [s["step_id"] for s in client.steps(run.id, f"?status={status}")]

        assert found("succeeded") == [ok]
        assert found("failed") == [bad]
        assert found("executing") == [open_id]
        assert found("terminal") == [ok, bad]
        assert found("") == [ok, bad, open_id]
        for status in ("proposed", "allowed", "awaiting_approval", "denied", "cancelled"):
            assert found(status) == []
        client.get(run.path("/steps?status=done"), bad=True).invalid("status")

    @pytest.mark.parametrize("limit", [1, 2, 3, 10])
    def test_pages(self, client: BearerClient, run: Attempt, limit: int) -> None:
        ids = [run.proceed("x", n) for n in range(6)]
        found: list[str] = []
        while True:
            after = f"&after={found[-1]}" if found else ""
            page = client.steps(run.id, f"?limit={limit}{after}")
            assert len(page) <= limit
            if not page:
                break
            found += [step["step_id"] for step in page]
        assert found == ids

    def test_bad_paging(self, client: BearerClient, run: Attempt) -> None:
        client.get(run.path("/steps?limit=0"), bad=True).invalid("limit")
        client.get(run.path("/steps?limit=x"), bad=True).invalid("limit")
        client.get(run.path("/steps?after=zz"), bad=True).invalid("after")

    def test_step_of_another_execution(
        self, client: BearerClient, new_run: Callable[..., Attempt]
    ) -> None:
        first, second = new_run(), new_run()
        step_id = first.proceed("x")
        client.get(second.path(f"/steps/{step_id}")).expect(404, "not_found")
        second.complete_step(step_id).expect(404, "not_found")
        second.fail_step(step_id).expect(404, "not_found")
        second.publish(step_id, 0, "x").expect(404, "not_found")

    def test_unknown_and_bad_ids(self, client: BearerClient, run: Attempt) -> None:
        client.get(run.path(f"/steps/{'0' * 64}")).expect(404, "not_found")
        client.get(run.path("/steps/zz"), bad=True).expect(400, "validation_error")
        client.get(f"/v0/executions/{UNKNOWN}/steps").expect(404, "not_found")

    def test_usage_of_an_llm_call(self, client: BearerClient, run: Attempt) -> None:
        step_id = run.proceed("gpt", {"messages": []}, kind="llm_call")
        body = json.dumps({"usage": {"prompt_tokens": 12, "completion_tokens": 34}})
        result = {"status": 200, "headers": {"content-type": "application/json"}, "body": body}
        run.complete_step(step_id, result).expect(200)
        usage = {"input_tokens": 12, "output_tokens": 34}
        assert client.step(run.id, step_id)["usage"] == usage
        assert client.events(run.id)[-1]["payload"]["usage"] == usage

    def test_other_steps_have_no_usage(self, client: BearerClient, run: Attempt) -> None:
        tool = run.record("x", {}, {"body": '{"usage":{"prompt_tokens":1}}'})
        silent = run.record("m", {}, {"status": 200, "body": "{}"}, kind="llm_call")
        for step_id in (tool, silent):
            assert "usage" not in client.step(run.id, step_id)
