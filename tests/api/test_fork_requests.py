"""Asking for a fork: of what, at which event, into which session, under which policy."""

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

import pytest

from conftest import NewAgent, NewKernel, NewRun, SetPolicy
from harness import Attempt, BearerClient, FakeAgent, bundle, eventually, hash_of, rule
from harness.forks import ask_fork, check_fork, read_source
from harness.sessions import end, of_session, status
from harness.story import short_story

UNKNOWN = "01920000-0000-7000-8000-000000000000"

Json = dict[str, Any]


@pytest.fixture
def short(run: Attempt) -> Attempt:
    return short_story(run)


class TestPolicy:
    STRICT = bundle(rule("strict", "deny", {"target": "x"}, reason="strict"), default="allow")

    def rule_of(self, agent: FakeAgent, made: Json) -> Json:
        run = agent.take_attempt(made["id"])
        decision: Json = run.submit("x", "new").expect(200).json
        return decision

    def test_of_its_own(
        self, client: BearerClient, agent: FakeAgent, short: Attempt, policy: SetPolicy
    ) -> None:
        own = policy(default="allow")
        made = client.fork(short.id, 4, policy_bundle=self.STRICT)
        assert client.events(made["id"])[1]["payload"]["policy_override"] is True
        assert self.rule_of(agent, made)["rule_id"] == "strict"
        (denied,) = [e for e in client.events(made["id"]) if e["type"] == "step.denied"]
        assert denied["payload"]["policy_hash"] == hash_of(self.STRICT)
        assert client.get(f"/v0/agents/{agent.id}").expect(200).json["policy_bundle"] == own
        short.proceed("x", "new")

    def test_is_not_touched_by_the_agents(
        self, client: BearerClient, agent: FakeAgent, short: Attempt, policy: SetPolicy
    ) -> None:
        made = client.fork(short.id, 4, policy_bundle=self.STRICT)
        policy(default="allow")
        assert self.rule_of(agent, made)["rule_id"] == "strict"

    def test_then_forked_again(
        self, client: BearerClient, agent: FakeAgent, short: Attempt, policy: SetPolicy
    ) -> None:
        """The source's own, unless another is given."""
        policy(default="allow")
        first = client.fork(short.id, 4, policy_bundle=self.STRICT)
        second = client.fork(first["id"], 1)
        third = client.fork(second["id"], 1)
        for made in (first, second, third):
            assert self.rule_of(agent, made)["rule_id"] == "strict"
        other = bundle(rule("loose", "allow"), default="deny")
        fourth = client.fork(third["id"], 1, policy_bundle=other)
        assert self.rule_of(agent, fourth)["decision"] == "proceed"
        again = client.fork(fourth["id"], 1)
        assert self.rule_of(agent, again)["decision"] == "proceed"
        for made in (fourth, again):
            (allowed,) = [e for e in client.events(made["id"]) if e["type"] == "step.allowed"]
            assert allowed["payload"]["rule_id"] == "loose"

    def test_else_the_agents(
        self, client: BearerClient, agent: FakeAgent, short: Attempt, policy: SetPolicy
    ) -> None:
        """As it is at the time."""
        made = client.fork(short.id, 4)
        assert client.events(made["id"])[1]["payload"]["policy_override"] is False
        client.set_policy(agent.id, self.STRICT)
        assert self.rule_of(agent, made)["rule_id"] == "strict"

    @pytest.mark.parametrize(
        "text",
        ["", "x: [", "rules: 7", "rules:\n  - id: a\n    then: {decision: perhaps}\n"],
    )
    def test_that_does_not_compile(
        self, client: BearerClient, agent: FakeAgent, short: Attempt, text: str
    ) -> None:
        mine = f"/v0/executions?agent_id={agent.id}"
        before = client.get(mine).json
        answer = ask_fork(client, short.id, 4, policy_bundle=text).expect(400, "validation_error")
        set_answer = client.post(f"/v0/policies/{agent.id}", {"bundle": text})
        assert answer.message == set_answer.expect(400).message
        assert [e["id"] for e in client.get(mine).json["executions"]] == [
            e["id"] for e in before["executions"]
        ]

    @pytest.mark.parametrize("value", [7, {}, [], True])
    def test_that_is_no_text(self, client: BearerClient, short: Attempt, value: Any) -> None:
        target = f"/v0/executions/{short.id}/fork"
        body = {"at_seq": 1, "policy_bundle": value}
        client.post(target, body, bad=True).invalid("policy_bundle")

    def test_null_is_none(self, client: BearerClient, short: Attempt) -> None:
        made = client.fork(short.id, 1, policy_bundle=None, session=None)
        assert client.events(made["id"])[1]["payload"]["policy_override"] is False
        assert "session" not in made


class TestAsking:
    @pytest.mark.parametrize(
        "at_seq", [0, -1, "1", 1.0, 1.5, True, [], {}, None, 2**63, 10**30, -(2**70)]
    )
    def test_what_is_no_event(self, client: BearerClient, short: Attempt, at_seq: Any) -> None:
        target = f"/v0/executions/{short.id}/fork"
        before = read_source(client, short.id)
        client.post(target, {"at_seq": at_seq}, bad=True).invalid("at_seq")
        assert read_source(client, short.id).log == before.log

    def test_an_event_that_is_not_there_yet(self, client: BearerClient, short: Attempt) -> None:
        latest = len(client.events(short.id))
        for at_seq in (latest + 1, 2**63 - 1):
            answer = ask_fork(client, short.id, at_seq)
            answer.invalid("at_seq")
            assert str(latest) in answer.message
        assert ask_fork(client, short.id, latest).expect(201).json["fork_seq"] == latest

    @pytest.mark.parametrize(
        "body",
        [
            None, {}, [], {"at_seq": 1, "x": 1}, {"at_seq": 1, "session": ""},
            {"at_seq": 1, "session": "a\n"}, {"at_seq": 1, "session": "x" * 257},
            {"at_seq": 1, "session": 1}, {"at_seq": 1, "input": {}},
        ],
    )  # fmt: skip
    def test_what_is_no_request(self, client: BearerClient, short: Attempt, body: Any) -> None:
        target = f"/v0/executions/{short.id}/fork"
        client.post(target, body, bad=True).expect(400, "validation_error")

    def test_nothing(self, client: BearerClient) -> None:
        ask_fork(client, UNKNOWN, 1).expect(404, "not_found")
        client.post("/v0/executions/x/fork", {"at_seq": 1}, bad=True).invalid("execution_id")

    def test_who_may(self, short: Attempt) -> None:
        short.client.post(short.path("/fork"), {"at_seq": 1}, bad=True).expect(401)

    def test_into_a_session(
        self, client: BearerClient, agent: FakeAgent, short: Attempt, session: str
    ) -> None:
        made = client.fork(short.id, 4, session=session)
        assert (made["session"], made["status"]) == (session, "running")
        for event in client.events(made["id"])[:2]:
            assert event["payload"]["session"] == session
        waiting = client.create(agent.id, session=session)
        assert waiting["status"] == "pending"
        agent.take_attempt(made["id"]).complete(state="left").expect(204)
        later = agent.take_attempt(waiting["id"])
        assert later.execution().json["parent_execution_id"] == made["id"]
        assert client.previous(later.id) == "left"

    @pytest.mark.parametrize("how", ["own", "running", "complete", "fail", "cancel", "pending"])
    def test_into_one_that_is_in_use(
        self, client: BearerClient, agent: FakeAgent, new_run: NewRun, session: str, how: str
    ) -> None:
        source = new_run(session=session)
        name = session if how == "own" else f"{session}-2"
        if how != "own":
            other = new_run(session=name)
            if how == "pending":
                client.create(agent.id, session=name)
                client.cancel(other.id)
            elif how != "running":
                end(client, other, how)
        before = [e["id"] for e in of_session(client, name)]
        ask_fork(client, source.id, 1, session=name).expect(409, "conflict")
        assert [e["id"] for e in of_session(client, name)] == before

    def test_into_a_new_one_at_once(
        self, client: BearerClient, short: Attempt, session: str
    ) -> None:
        with ThreadPoolExecutor(8) as pool:
            made = list(pool.map(lambda n: ask_fork(client, short.id, n, session=session), [9] * 8))
        assert sorted(a.status for a in made) == [201] + [409] * 7
        assert len(of_session(client, session)) == 1

    def test_many_at_once(self, client: BearerClient, agent: FakeAgent, short: Attempt) -> None:
        source = read_source(client, short.id)
        length = len(source.log)
        with ThreadPoolExecutor(8) as pool:
            made = list(pool.map(lambda n: client.fork(short.id, n % length + 1), range(24)))
        assert len({m["id"] for m in made}) == 24
        for n, one in enumerate(made):
            check_fork(client, source, n % length + 1, client.execution(one["id"]))

    def test_its_deadline_is_its_own(self, new_kernel: NewKernel, new_agent: NewAgent) -> None:
        """From its own creation on."""
        kernel = new_kernel(env={"REBUNO_DEADLINE_TIMEOUT": "1h"})
        agent, client = new_agent(kernel), kernel.client()
        source = client.create(agent.id)
        made = client.fork(source["id"], 1)
        for execution in (source, made):
            created, ends = (
                datetime.fromisoformat(execution[name]) for name in ("created_at", "deadline_at")
            )
            assert ends - created == timedelta(hours=1)
        assert made["deadline_at"] > source["deadline_at"]
        for event in client.events(made["id"])[:2]:
            assert event["payload"]["deadline_at"] == made["deadline_at"]

    def test_for_an_agent_that_is_gone(self, client: BearerClient, new_agent: NewAgent) -> None:
        agent = new_agent()
        run = agent.take_attempt(client.create(agent.id)["id"])
        run.complete().expect(204)
        client.delete(f"/v0/agents/{agent.id}").expect(204)
        ask_fork(client, run.id, 1).expect(404, "not_found")
        client.post("/v0/agents", agent.registration()).expect(201)
        assert client.fork(run.id, 1)["status"] == "running"


class TestSources:
    """In any state."""

    @pytest.mark.parametrize("how", ["complete", "fail", "cancel"])
    def test_ended(self, client: BearerClient, agent: FakeAgent, short: Attempt, how: str) -> None:
        end(client, short, how)
        source = read_source(client, short.id)
        latest = len(source.log)
        for at_seq in (1, latest - 1, latest):
            check_fork(client, source, at_seq, client.fork(short.id, at_seq))
        made = client.fork(short.id, latest)
        run = agent.take_attempt(made["id"])
        assert run.replay("c", 0)["result"] == "C"
        run.complete().expect(204)
        assert read_source(client, short.id).raw == source.raw

    def test_pending(self, client: BearerClient, new_run: NewRun, session: str) -> None:
        run = new_run(session=session)
        waiting = client.create(run.agent.id, session=session, input={"n": 1})
        source = read_source(client, waiting["id"])
        made = client.fork(waiting["id"], 1)
        check_fork(client, source, 1, made)
        assert made["input"] == {"n": 1}
        assert status(client, waiting["id"]) == "pending"
        ask_fork(client, waiting["id"], 2).invalid("at_seq")

    def test_blocked(
        self, client: BearerClient, agent: FakeAgent, short: Attempt, policy: SetPolicy
    ) -> None:
        policy(rule("gate", "require_approval", {"target": "gated"}), default="allow")
        approval_id = short.hold("gated")
        source = read_source(client, short.id)
        made = client.fork(short.id, len(source.log))
        check_fork(client, source, len(source.log), made)
        again = agent.take_attempt(made["id"])
        assert again.hold("gated") != approval_id
        client.grant(approval_id).expect(204)
        assert status(client, made["id"]) == "blocked"
        short.redelivered().record("gated")

    def test_while_it_works(self, client: BearerClient, short: Attempt) -> None:
        """Its own calls go on, and it does not notice."""
        step_id = short.proceed("long")
        made = client.fork(short.id, len(client.events(short.id)))
        assert [s["target"] for s in client.steps(made["id"])] == ["a", "b", "c"]
        short.complete_step(step_id, 1).expect(200)
        short.complete().expect(204)
        assert [s["target"] for s in client.steps(made["id"])] == ["a", "b", "c"]

    def test_with_a_parent(
        self, client: BearerClient, agent: FakeAgent, new_run: NewRun, session: str
    ) -> None:
        """It reads what its source read."""
        new_run(session=session).complete(state={"turn": 1}).expect(204)
        run = new_run(session=session)
        source = read_source(client, run.id)
        made = client.fork(run.id, len(source.log), session=f"{session}-2")
        check_fork(client, source, len(source.log), made)
        assert client.previous(made["id"]) == {"turn": 1}
        assert client.previous(client.fork(made["id"], 1)["id"]) == {"turn": 1}

    def test_a_subagent(self, client: BearerClient, run: Attempt, new_agent: NewAgent) -> None:
        """Its fork is nobody's, and settles no step."""
        helper = new_agent()
        step_id = run.proceed("delegate")
        spawned_by = {"execution_id": run.id, "step_id": step_id}
        child = client.create(helper.id, spawned_by=spawned_by)
        made = client.fork(child["id"], 1)
        assert "spawned_by" not in made
        assert "idempotency_key" not in made
        helper.take_attempt(made["id"]).complete("fork").expect(204)
        listed = client.get(f"/v0/executions?spawned_by={run.id}").json["executions"]
        assert [e["id"] for e in listed] == [child["id"]]
        assert client.step(run.id, step_id)["status"] == "executing"
        run.complete().expect(204)
        eventually(lambda: status(client, child["id"]) == "cancelled")
        assert status(client, made["id"]) == "completed"

    def test_one_that_waits_for_subagents(
        self, client: BearerClient, agent: FakeAgent, run: Attempt, new_agent: NewAgent
    ) -> None:
        """The fork starts one of its own."""
        helper = new_agent()
        step_id = run.proceed("delegate")
        spawned_by = {"execution_id": run.id, "step_id": step_id}
        client.create(helper.id, spawned_by=spawned_by)
        run.suspend().expect(200)
        source = read_source(client, run.id)
        made = client.fork(run.id, len(source.log))
        check_fork(client, source, len(source.log), made)
        again = agent.take_attempt(made["id"])
        own = {"execution_id": again.id, "step_id": again.proceed("delegate")}
        child = client.create(helper.id, spawned_by=own)
        assert again.suspend().expect(200).json == {"suspended": True}
        helper.take_attempt(child["id"]).complete(1).expect(204)
        assert again.redelivered().replay("delegate")["result"] == 1
        assert status(client, run.id) == "blocked"
