"""Subagents: executions that a step of another one starts, and waits for."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from conftest import NewAgent, NewRun, SetPolicy
from harness import Answer, Attempt, BearerClient, FakeAgent, eventually, rule
from harness.sessions import status
from harness.subagents import Family, settled, spawn

UNKNOWN = "01920000-0000-7000-8000-000000000000"
NO_STEP = "0" * 64


def of_agent(client: BearerClient, agent_id: str) -> list[str]:
    listed = client.get(f"/v0/executions?agent_id={agent_id}").expect(200).json
    return [e["id"] for e in listed["executions"]]


@pytest.fixture
def helper(new_agent: NewAgent) -> FakeAgent:
    """The agent of the subagents."""
    return new_agent()


@pytest.fixture
def family(client: BearerClient, run: Attempt, helper: FakeAgent) -> Family:
    return Family(client, run, helper)


class TestCreating:
    def test_what_it_shows(self, client: BearerClient, family: Family) -> None:
        spawned_by = {"execution_id": family.run.id, "step_id": family.step_id}
        child = family.child
        assert child["spawned_by"] == spawned_by
        assert child["idempotency_key"] == family.step_id
        assert (child["status"], child["input"]) == ("running", "x")
        first = client.events(child["id"])[0]
        assert first["type"] == "execution.created"
        assert first["payload"]["spawned_by"] == spawned_by
        assert client.execution(child["id"])["spawned_by"] == spawned_by
        assert "spawned_by" not in client.execution(family.run.id)

    def test_with_a_key_of_its_own(
        self, client: BearerClient, run: Attempt, helper: FakeAgent
    ) -> None:
        step_id = run.proceed()
        key = f"{run.id}-mine"
        made = spawn(client, run, step_id, helper.id, idempotency_key=key).expect(201).json
        assert made["idempotency_key"] == key
        again = spawn(client, run, step_id, helper.id).expect(200).json
        assert again["id"] == made["id"]

    @pytest.mark.parametrize("kind", ["tool_call", "local", "llm_call"])
    def test_of_any_kind_of_step_and_of_the_same_agent(
        self, client: BearerClient, run: Attempt, kind: str
    ) -> None:
        step_id = run.proceed(kind=kind)
        made = spawn(client, run, step_id, run.agent.id).expect(201).json
        run.agent.take_attempt(made["id"]).complete(kind).expect(204)
        assert settled(client, run, step_id)["result"] == kind

    def test_the_list_of_them(self, client: BearerClient, run: Attempt, helper: FakeAgent) -> None:
        made = []
        for n in range(3):
            made.append(spawn(client, run, run.proceed("x", n), helper.id).expect(201).json["id"])
        target = f"/v0/executions?spawned_by={run.id}"
        assert [e["id"] for e in client.get(target).json["executions"]] == made[::-1]
        assert [e["id"] for e in client.get(f"{target}&limit=2").json["executions"]] == made[:0:-1]
        cursor = client.get(f"{target}&limit=2").json["next_cursor"]
        rest = client.get(f"{target}&limit=2&cursor={cursor}").json
        assert ([e["id"] for e in rest["executions"]], "next_cursor" in rest) == (made[:1], False)
        client.cancel(made[1])
        ended = client.get(f"{target}&status=cancelled").json["executions"]
        assert [e["id"] for e in ended] == [made[1]]
        assert client.get(f"{target}&agent_id={run.agent.id}").json["executions"] == []
        nobody = f"/v0/executions?spawned_by={made[0]}"
        assert client.get(nobody).json["executions"] == []
        client.get("/v0/executions?spawned_by=x", bad=True).invalid("spawned_by")

    @pytest.mark.parametrize(
        "spawned_by",
        [
            "x", 1, [], {}, {"execution_id": UNKNOWN}, {"step_id": NO_STEP},
            {"execution_id": "x", "step_id": NO_STEP}, {"execution_id": UNKNOWN, "step_id": "x"},
            {"execution_id": 1, "step_id": NO_STEP}, {"execution_id": UNKNOWN, "step_id": 1},
            {"execution_id": UNKNOWN, "step_id": NO_STEP, "x": 1},
            {"execution_id": None, "step_id": NO_STEP},
        ],
    )  # fmt: skip
    def test_what_is_no_step(
        self, client: BearerClient, helper: FakeAgent, spawned_by: Any
    ) -> None:
        body = {"agent_id": helper.id, "spawned_by": spawned_by}
        client.post("/v0/executions", body, bad=True).invalid("spawned_by")

    def test_null_is_none(self, client: BearerClient, helper: FakeAgent) -> None:
        assert "spawned_by" not in client.create(helper.id, spawned_by=None)


class TestChecks:
    """In this order: what exists, whose step it is, the ends, the session, the key."""

    @pytest.fixture
    def refused(self, client: BearerClient, helper: FakeAgent) -> Callable[..., Answer]:
        """Nothing is created, and nothing written."""

        def check(run: Attempt, step_id: str, status: int, code: str, **fields: Any) -> Answer:
            before = client.events(run.id)
            made = of_agent(client, helper.id)
            answer = spawn(client, run, step_id, helper.id, **fields).expect(status, code)
            assert of_agent(client, helper.id) == made
            assert client.events(run.id) == before
            return answer

        return check

    def test_an_unknown_execution(self, client: BearerClient, helper: FakeAgent) -> None:
        for execution_id in (UNKNOWN, "00000000-0000-0000-0000-000000000000"):
            spawned_by = {"execution_id": execution_id, "step_id": NO_STEP}
            body = {"agent_id": helper.id, "spawned_by": spawned_by}
            client.post("/v0/executions", body).expect(404, "not_found")

    def test_an_unknown_agent(self, client: BearerClient, run: Attempt) -> None:
        spawn(client, run, run.proceed(), "nobody-at-all").expect(404, "not_found")

    def test_a_step_that_is_not_of_that_execution(
        self, run: Attempt, new_run: NewRun, refused: Callable[..., Answer]
    ) -> None:
        other = new_run()
        elsewhere = other.proceed()
        refused(run, elsewhere, 400, "validation_error")
        refused(run, NO_STEP, 400, "validation_error")
        run.complete().expect(204)
        refused(run, elsewhere, 400, "validation_error")

    @pytest.mark.parametrize("how", ["complete", "fail", "cancel"])
    def test_an_execution_that_has_ended(
        self, client: BearerClient, run: Attempt, refused: Callable[..., Answer], how: str
    ) -> None:
        step_id = run.proceed()
        if how == "cancel":
            client.cancel(run.id)
        else:
            getattr(run, how)().expect(204)
        refused(run, step_id, 409, "conflict")

    @pytest.mark.parametrize("now", ["succeeded", "failed", "denied", "awaiting_approval"])
    def test_a_step_that_is_not_executing(
        self, run: Attempt, policy: SetPolicy, refused: Callable[..., Answer],
        client: BearerClient, now: str,
    ) -> None:  # fmt: skip
        policy(
            rule("no", "deny", {"target": "forbidden"}),
            rule("gate", "require_approval", {"target": "gated"}),
            default="allow",
        )
        if now == "succeeded":
            run.record()
        elif now == "failed":
            run.fail_step(run.proceed()).expect(200)
        elif now == "denied":
            run.denied("forbidden")
        else:
            run.hold("gated")
        (step,) = client.steps(run.id)
        assert step["status"] == now
        answer = refused(run, step["step_id"], 409, "conflict")
        assert now in answer.message

    def test_the_session_of_the_execution(
        self, new_run: NewRun, refused: Callable[..., Answer], session: str
    ) -> None:
        run = new_run(session=session)
        refused(run, run.proceed(), 400, "validation_error", session=session)

    def test_the_session_of_one_above(
        self,
        client: BearerClient,
        new_run: NewRun,
        helper: FakeAgent,
        refused: Callable[..., Answer],
        session: str,
    ) -> None:
        """Also past one without a session."""
        names = [f"{session}-top", None, f"{session}-third", f"{session}-fourth"]
        run = new_run(session=names[0])
        for name in names[1:]:
            fields = {"session": name} if name else {}
            made = spawn(client, run, run.proceed(), helper.id, **fields).expect(201).json
            run = helper.take_attempt(made["id"])
        step_id = run.proceed()
        for name in filter(None, names):
            refused(run, step_id, 400, "validation_error", session=name)
        free = f"{session}-free"
        assert (
            spawn(client, run, step_id, helper.id, session=free).expect(201).json["session"] == free
        )

    def test_brothers_may_share_a_session(
        self, client: BearerClient, run: Attempt, helper: FakeAgent, session: str
    ) -> None:
        steps = [run.proceed("x", n) for n in range(2)]
        made = [spawn(client, run, s, helper.id, session=session).expect(201).json for s in steps]
        assert [e["status"] for e in made] == ["running", "pending"]
        assert run.suspend().expect(200).json == {"suspended": True}
        for child in made:
            helper.take_attempt(child["id"]).complete(child["id"]).expect(204)
        for step_id, child in zip(steps, made, strict=True):
            assert settled(client, run, step_id)["result"] == child["id"]
        run.redelivered()

    def test_a_key_that_is_in_use(
        self,
        client: BearerClient,
        run: Attempt,
        helper: FakeAgent,
        refused: Callable[..., Answer],
    ) -> None:
        steps = [run.proceed("x", n) for n in range(3)]
        client.create(helper.id, idempotency_key=steps[0])
        refused(run, steps[0], 409, "conflict")
        key = f"{run.id}-k"
        made = spawn(client, run, steps[1], helper.id, idempotency_key=key).expect(201).json
        refused(run, steps[2], 409, "conflict", idempotency_key=key)
        assert client.create(helper.id, idempotency_key=key)["id"] == made["id"]
        assert spawn(client, run, steps[2], helper.id).expect(201).json["id"] != made["id"]

    def test_with_a_parent_to_continue(
        self, client: BearerClient, run: Attempt, helper: FakeAgent, refused: Callable[..., Answer]
    ) -> None:
        done = helper.take_attempt(client.create(helper.id)["id"])
        done.complete("o").expect(204)
        step_id = run.proceed()
        refused(run, step_id, 404, "not_found", parent_execution_id=UNKNOWN)
        refused(run, step_id, 409, "conflict", parent_execution_id=run.id)
        fields = {"parent_execution_id": done.id}
        made = spawn(client, run, step_id, helper.id, **fields).expect(201).json
        assert client.previous(made["id"]) == "o"


class TestRepeating:
    @pytest.mark.parametrize("state", ["running", "completed", "failed", "cancelled"])
    def test_returns_the_one_that_the_step_has(
        self, client: BearerClient, family: Family, helper: FakeAgent, new_agent: NewAgent,
        session: str, state: str,
    ) -> None:  # fmt: skip
        """Whatever the state of either, and whatever else the repeat says."""
        work = family.work()
        if state == "completed":
            work.complete().expect(204)
        elif state == "failed":
            work.fail().expect(204)
        elif state == "cancelled":
            client.cancel(work.id)
        for end in (False, True):
            if end:
                family.run.complete().expect(204)
            for fields in ({}, {"input": 1, "session": session, "idempotency_key": "other"}):
                again = spawn(client, family.run, family.step_id, helper.id, **fields).expect(200)
                assert again.json["id"] == family.child["id"]
            other = spawn(client, family.run, family.step_id, new_agent().id).expect(200).json
            assert other["id"] == family.child["id"]

    def test_many_at_once(self, client: BearerClient, run: Attempt, helper: FakeAgent) -> None:
        step_id = run.proceed()
        with ThreadPoolExecutor(8) as pool:
            made = list(pool.map(lambda _: spawn(client, run, step_id, helper.id), range(8)))
        assert sorted(a.status for a in made) == [200] * 7 + [201]
        assert len({a.json["id"] for a in made}) == 1

    def test_by_a_retried_body(
        self, client: BearerClient, family: Family, helper: FakeAgent
    ) -> None:
        later = family.run.released()
        again = later.proceed("delegate", {"task": 1})
        assert again == family.step_id
        found = spawn(client, later, again, helper.id).expect(200).json
        assert found["id"] == family.child["id"]
        family.work().complete("late").expect(204)
        assert settled(client, later, again)["result"] == "late"


class TestSettling:
    @pytest.mark.parametrize("output", [{"answer": 42}, None, 0, False, "", []])
    def test_with_its_output(self, client: BearerClient, family: Family, output: Any) -> None:
        work = family.work()
        seq = client.events(family.run.id)[-1]["event_seq"]
        work.complete(output, state={"ignored": 1}).expect(204)
        step = settled(client, family.run, family.step_id)
        assert (step["status"], step["result"]) == ("succeeded", output)
        (event,) = client.events(family.run.id, seq)
        assert event["type"] == "step.succeeded"
        assert event["payload"]["step_id"] == family.step_id

    def test_byte_for_byte(self, family: Family) -> None:
        text = b'{ "n" : 1.00, "s":"\\u00e9\\ud800" }'
        family.work().complete(text).expect(204)
        target = family.run.path(f"/steps/{family.step_id}")
        eventually(lambda: b'"result":' + text in family.run.client.get(target).body)

    def test_of_the_largest_size(self, client: BearerClient, family: Family) -> None:
        output = "x" * 9_000_000
        family.work().complete(output).expect(204)
        assert settled(client, family.run, family.step_id)["result"] == output

    def test_without_an_output(self, client: BearerClient, family: Family) -> None:
        work = family.work()
        work.client.post(work.path("/complete"), {}).expect(204)
        assert settled(client, family.run, family.step_id)["result"] is None

    @pytest.mark.parametrize("how", ["fail", "cancel"])
    def test_with_its_failure(self, client: BearerClient, family: Family, how: str) -> None:
        work = family.work()
        if how == "fail":
            work.fail('tool_error: "é" broke').expect(204)
        else:
            client.cancel(work.id)
        step = settled(client, family.run, family.step_id)
        reason = 'tool_error: "é" broke' if how == "fail" else "client_cancelled"
        error = step["error"]
        assert (step["status"], set(error)) == (
            "failed",
            {"reason", "message", "execution_id", "failure_reason"},
        )
        assert error["reason"] == ("subagent_failed" if how == "fail" else "subagent_cancelled")
        assert error["execution_id"] == work.id
        assert error["failure_reason"] == reason
        assert reason in error["message"]
        assert family.helper.id in error["message"] or work.id in error["message"]
        last = client.events(family.run.id)[-1]
        assert (last["type"], last["payload"]["error"]) == ("step.failed", error)

    def test_the_agent_that_waited_reports_it_again(
        self, client: BearerClient, family: Family
    ) -> None:
        family.work().complete("out").expect(204)
        settled(client, family.run, family.step_id)
        read = family.run.client.get(family.run.path(f"/steps/{family.step_id}")).expect(200).json
        assert read["result"] == "out"
        before = client.events(family.run.id)
        answer = family.run.complete_step(family.step_id, read["result"]).expect(200).json
        assert answer == {"decision": "replay", "step_id": family.step_id, "result": "out"}
        assert client.events(family.run.id) == before

    def test_after_the_step_has_settled(self, client: BearerClient, family: Family) -> None:
        """A body that gave up waiting: its word stands, and the subagent goes on."""
        family.run.fail_step(family.step_id, {"message": "too slow"}).expect(200)
        before = client.events(family.run.id)
        work = family.work()
        assert status(client, work.id) == "running"
        assert family.run.suspend().expect(200).json == {"suspended": False}
        work.complete("late").expect(204)
        assert status(client, work.id) == "completed"
        assert client.step(family.run.id, family.step_id)["error"] == {"message": "too slow"}
        assert client.events(family.run.id) == before

    def test_counts_for_its_resources(self, client: BearerClient, run: Attempt, helper: FakeAgent
    ) -> None:  # fmt: skip
        run.register("disk", every_steps=2).expect(200)
        family = Family(client, run, helper, resources=["disk"])
        family.work().complete().expect(204)
        settled(client, run, family.step_id)
        assert run.register("disk").expect(200).json["count"] == 1

    def test_replays(self, client: BearerClient, family: Family) -> None:
        family.work().complete("out").expect(204)
        settled(client, family.run, family.step_id)
        later = family.run.released()
        assert later.replay("delegate", {"task": 1})["result"] == "out"


class TestWaiting:
    def test_says_what_it_waits_for(self, client: BearerClient, family: Family) -> None:
        entry = {"kind": "subagent", "id": family.child["id"]}
        found = client.execution(family.run.id)
        assert [w["kind"] for w in found["waiting_on"]] == ["agent", "subagent"]
        assert found["waiting_on"][1] == entry
        family.run.suspend().expect(200)
        found = client.execution(family.run.id)
        assert (found["status"], found["waiting_on"]) == ("blocked", [entry])
        listed = client.get(f"/v0/executions?agent_id={family.run.agent.id}").json["executions"]
        assert found in listed
        family.work().complete().expect(204)
        later = family.run.redelivered()
        kinds = [w["kind"] for w in client.execution(later.id)["waiting_on"]]
        assert "subagent" not in kinds

    def test_suspends_until_it_ends(self, client: BearerClient, family: Family) -> None:
        run = family.run
        seq = client.events(run.id)[-1]["event_seq"]
        assert run.suspend().expect(200).json == {"suspended": True}
        (event,) = client.events(run.id, seq)
        payload = {"execution_id": run.id, "status": "blocked", "reason": "awaiting_steps"}
        assert (event["type"], event["payload"]) == ("execution.blocked", payload)
        assert run.suspend().expect(200).json == {"suspended": True}
        assert len(client.events(run.id, seq)) == 1
        assert run.submit("more").expect(200).json == {"decision": "execution_blocked"}
        run.complete().expect(409, "conflict")
        family.work().complete("out").expect(204)
        later = run.redelivered()
        assert later.delivery.dispatch_id != run.delivery.dispatch_id
        types = client.event_types(run.id, seq + 1)
        assert types[:3] == ["step.succeeded", "execution.resumed", "dispatch.queued"]
        assert later.replay("delegate", {"task": 1})["result"] == "out"
        later.complete("all").expect(204)
        assert client.execution(run.id)["output"] == "all"

    @pytest.mark.parametrize("how", ["fail", "cancel"])
    def test_resumes_whatever_the_end(self, client: BearerClient, family: Family, how: str) -> None:
        family.run.suspend().expect(200)
        work = family.work()
        if how == "fail":
            work.fail().expect(204)
        else:
            client.cancel(work.id)
        later = family.run.redelivered()
        assert "error" in later.replay("delegate", {"task": 1})

    def test_nothing_to_wait_for(self, client: BearerClient, run: Attempt) -> None:
        run.proceed()
        before = client.events(run.id)
        assert run.suspend().expect(200).json == {"suspended": False}
        assert client.events(run.id) == before

    def test_false_when_all_have_settled(self, client: BearerClient, family: Family) -> None:
        family.work().complete().expect(204)
        settled(client, family.run, family.step_id)
        assert family.run.suspend().expect(200).json == {"suspended": False}
        assert status(client, family.run.id) == "running"
        family.run.record("more")

    def test_several(self, client: BearerClient, run: Attempt, helper: FakeAgent) -> None:
        steps = [run.proceed("x", n) for n in range(3)]
        made = [spawn(client, run, s, helper.id).expect(201).json["id"] for s in steps]
        waiting = [w["id"] for w in client.execution(run.id)["waiting_on"][1:]]
        assert waiting == made
        assert run.suspend().expect(200).json == {"suspended": True}
        for n in (1, 0):
            helper.take_attempt(made[n]).complete(n).expect(204)
            settled(client, run, steps[n])
            assert status(client, run.id) == "blocked"
        assert client.execution(run.id)["waiting_on"] == [{"kind": "subagent", "id": made[2]}]
        helper.take_attempt(made[2]).complete(2).expect(204)
        later = run.redelivered()
        assert [later.replay("x", n)["result"] for n in range(3)] == [0, 1, 2]
        assert client.event_types(run.id).count("execution.resumed") == 1

    def test_beside_other_steps(self, client: BearerClient, family: Family) -> None:
        """Calls that still run report, and more may be asked of a person."""
        run = family.run
        other = run.proceed("other")
        run.suspend().expect(200)
        run.complete_step(other, "done").expect(200)
        assert status(client, run.id) == "blocked"
        family.work().complete().expect(204)
        assert run.redelivered().replay("other")["result"] == "done"

    def test_and_for_a_person(
        self, client: BearerClient, family: Family, policy: SetPolicy
    ) -> None:
        """A suspended run goes on when neither is waited for."""
        policy(rule("gate", "require_approval", {"target": "gated"}), default="allow")
        run = family.run
        run.suspend().expect(200)
        approval_id = run.hold("gated")
        kinds = {w["kind"] for w in client.execution(run.id)["waiting_on"]}
        assert kinds == {"approval", "subagent"}
        family.work().complete().expect(204)
        settled(client, run, family.step_id)
        assert status(client, run.id) == "blocked"
        client.grant(approval_id).expect(204)
        assert run.redelivered().proceed("gated")

    def test_for_the_person_last(
        self, client: BearerClient, family: Family, policy: SetPolicy
    ) -> None:
        policy(rule("gate", "require_approval", {"target": "gated"}), default="allow")
        run = family.run
        run.suspend().expect(200)
        client.grant(run.hold("gated")).expect(204)
        assert status(client, run.id) == "blocked"
        family.work().complete().expect(204)
        assert run.redelivered().proceed("gated")

    @pytest.mark.parametrize("suspends", [False, True])
    def test_held_before_it_could_suspend(
        self, client: BearerClient, family: Family, policy: SetPolicy, suspends: bool
    ) -> None:
        """The delivery has ended by the time it asks: true, and nothing is recorded. It counts all
        the same: who did not ask goes on with the grant, who did waits for both."""
        policy(rule("gate", "require_approval", {"target": "gated"}), default="allow")
        run = family.run
        approval_id = run.hold("gated")
        before = client.events(run.id)
        if suspends:
            assert run.suspend().expect(200).json == {"suspended": True}
        assert client.events(run.id) == before
        client.grant(approval_id).expect(204)
        types = client.event_types(run.id, len(before))
        assert types[:2] == ["approval.granted", "step.allowed"]
        assert types[2:4] == ([] if suspends else ["execution.resumed", "dispatch.queued"])
        assert status(client, family.child["id"]) == "running"
        if suspends:
            family.work().complete().expect(204)
            run.redelivered()

    def test_a_restarted_agent_waits_again(self, client: BearerClient, family: Family) -> None:
        later = family.run.released()
        assert later.proceed("delegate", {"task": 1}) == family.step_id
        assert later.suspend().expect(200).json == {"suspended": True}
        family.work().complete("out").expect(204)
        assert later.redelivered().replay("delegate", {"task": 1})["result"] == "out"

    def test_who_may_suspend(self, family: Family, new_agent: NewAgent) -> None:
        later = family.run.released()
        family.run.suspend().expect(409, "lease_superseded")
        other = new_agent().client()
        other.dispatch = later.client.dispatch
        other.post(later.path("/suspend")).expect(403, "forbidden")
        later.complete().expect(204)
        later.suspend().expect(409, "execution_terminal")
