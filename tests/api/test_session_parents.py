"""What an execution continues: the newest completed one of its agent in the session, or the one
that its creation names; and what that one left."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from conftest import NewAgent, NewRun, SetPolicy
from harness import Attempt, BearerClient, FakeAgent, rule
from harness.sessions import START, end, of_session, status

UNKNOWN = "01920000-0000-7000-8000-000000000000"


class TestParents:
    def test_the_newest_completed_one_of_the_same_agent(
        self, client: BearerClient, new_agent: NewAgent, session: str
    ) -> None:
        one, two = new_agent(), new_agent()
        last: dict[str, str] = {}
        plan = [
            (one, "fail"), (one, "complete"), (two, "complete"), (one, "cancel"), (one, "fail"),
            (one, "complete"), (two, "fail"), (two, "complete"), (one, "complete"),
        ]  # fmt: skip
        for agent, how in plan:
            created = client.create(agent.id, session=session)
            run = agent.take_attempt(created["id"])
            assert created.get("parent_execution_id") == last.get(agent.id)
            started = client.events(run.id)[1]
            assert started["type"] == "execution.started"
            assert started["payload"].get("parent_execution_id") == last.get(agent.id)
            end(client, run, how)
            assert client.execution(run.id).get("parent_execution_id") == last.get(agent.id)
            if how == "complete":
                last[agent.id] = run.id

    def test_decided_when_it_starts(
        self, client: BearerClient, new_agent: NewAgent, session: str
    ) -> None:
        one, two = new_agent(), new_agent()
        order = [one, two, one, two, two, one]
        ids = [client.create(agent.id, session=session)["id"] for agent in order]
        last: dict[str, str] = {}
        for agent, identity in zip(order, ids, strict=True):
            run = agent.take_attempt(identity)
            found = run.execution().expect(200).json
            assert found.get("parent_execution_id") == last.get(agent.id)
            run.complete().expect(204)
            last[agent.id] = identity
        by_id = {e["id"]: e.get("parent_execution_id") for e in of_session(client, session)}
        expected = {ids[0]: None, ids[1]: None, ids[2]: ids[0], ids[3]: ids[1], ids[4]: ids[3]}
        assert by_id == {**expected, ids[5]: ids[2]}

    def test_none_without_a_session(self, client: BearerClient, new_run: NewRun) -> None:
        for _ in range(2):
            run = new_run()
            assert "parent_execution_id" not in client.execution(run.id)
            run.complete("x", state=1).expect(204)

    def test_none_of_another_session(
        self, client: BearerClient, new_run: NewRun, session: str
    ) -> None:
        new_run(session=session).complete().expect(204)
        other = new_run(session=f"{session}-2")
        assert "parent_execution_id" not in client.execution(other.id)


class TestPrevious:
    @pytest.fixture
    def after(self, client: BearerClient, new_run: NewRun, session: str) -> Callable[..., Attempt]:
        """Completes a turn in this way and begins the next."""

        def turn(*output: Any, **fields: Any) -> Attempt:
            new_run(session=session).complete(*output, **fields).expect(204)
            return new_run(session=session)

        return turn

    @pytest.mark.parametrize("state", [{"turn": 1}, [], {}, 0, False, "", "text", None, 1.5])
    def test_the_state(
        self, client: BearerClient, after: Callable[..., Attempt], state: Any
    ) -> None:
        run = after("the output", state=state)
        assert client.previous(run.id) == state
        assert run.previous().expect(200).json == {"state": state}

    @pytest.mark.parametrize("output", [{"answer": 42}, [], 0, False, "", None])
    def test_else_the_output(
        self, client: BearerClient, after: Callable[..., Attempt], output: Any
    ) -> None:
        run = after(output)
        assert client.previous(run.id) == output
        assert run.agent.client().get(run.path("/previous")).expect(200).json == {"state": output}

    def test_nothing_at_all(self, client: BearerClient, new_run: NewRun, session: str) -> None:
        run = new_run(session=session)
        run.client.post(run.path("/complete"), {}).expect(204)
        assert client.previous(new_run(session=session).id) is None

    @pytest.mark.parametrize("where", ["state", "output"])
    @pytest.mark.parametrize("size", [0, 5000, 3_000_000])
    def test_byte_for_byte(self, after: Callable[..., Attempt], where: str, size: int) -> None:
        text = b'{ "n" : 1.00, "s":"\\u00e9\xc3\xa9", "pad":"' + b"x" * size + b'" }'
        run = after(text) if where == "output" else after("other", state=text)
        assert run.previous().expect(200).body == b'{"state":' + text + b"}"

    def test_does_not_change(self, client: BearerClient, after: Callable[..., Attempt]) -> None:
        run = after("o", state={"n": 1})
        later = run.released()
        later.complete("o2", state={"n": 2}).expect(204)
        assert client.previous(run.id) == {"n": 1}
        assert run.previous().expect(200).json == {"state": {"n": 1}}

    def test_of_one_that_failed_is_skipped(
        self, client: BearerClient, after: Callable[..., Attempt], new_run: NewRun, session: str
    ) -> None:
        after("o", state={"n": 1}).fail().expect(204)
        assert client.previous(new_run(session=session).id) == {"n": 1}

    def test_null_before_it_starts(
        self, client: BearerClient, after: Callable[..., Attempt], session: str
    ) -> None:
        run = after("o", state={"n": 1})
        waiting = client.create(run.agent.id, session=session)["id"]
        assert client.previous(waiting) is None
        run.complete("o", state={"n": 2}).expect(204)
        assert client.previous(waiting) == {"n": 2}

    def test_who_may_read_it(
        self, client: BearerClient, after: Callable[..., Attempt], new_agent: NewAgent
    ) -> None:
        run = after("o", state=1)
        new_agent().client().get(run.path("/previous")).expect(403, "forbidden")
        client.get(f"/v0/executions/{UNKNOWN}/previous").expect(404, "not_found")
        client.get("/v0/executions/x/previous", bad=True).expect(400, "validation_error")


class TestBranch:
    @pytest.fixture
    def turns(self, client: BearerClient, new_run: NewRun, session: str) -> list[Attempt]:
        """Three turns of a session, completed."""
        made = []
        for n in range(3):
            made.append(new_run(session=session))
            made[-1].complete(f"output {n}", state={"turn": n}).expect(204)
        return made

    def branch(self, client: BearerClient, parent: Attempt, **fields: Any) -> Any:
        body = {"agent_id": parent.agent.id, "parent_execution_id": parent.id, **fields}
        return client.post("/v0/executions", body)

    def test_without_a_session(self, client: BearerClient, turns: list[Attempt]) -> None:
        created = self.branch(client, turns[1]).expect(201).json
        assert created["parent_execution_id"] == turns[1].id
        assert created["status"] == "running"
        assert "session" not in created
        run = turns[1].agent.take_attempt(created["id"])
        assert run.previous().expect(200).json == {"state": {"turn": 1}}
        log = client.events(run.id)
        assert [e["type"] for e in log[:3]] == START
        assert "parent_execution_id" not in log[0]["payload"]
        assert log[1]["payload"] == {
            "execution_id": run.id,
            "status": "running",
            "parent_execution_id": turns[1].id,
        }

    def test_in_a_session_of_its_own(
        self, client: BearerClient, turns: list[Attempt], new_run: NewRun, session: str
    ) -> None:
        """Back to the first turn, and on from there; the session it came from goes on beside it."""
        fork = f"{session}-fork"
        created = self.branch(client, turns[0], session=fork).expect(201).json
        assert (created["session"], created["status"]) == (fork, "running")
        run = turns[0].agent.take_attempt(created["id"])
        waiting = client.create(run.agent.id, session=fork)
        assert waiting["status"] == "pending"
        beside = new_run(session=session)
        assert client.previous(beside.id) == {"turn": 2}
        assert client.previous(run.id) == {"turn": 0}
        run.complete("o", state={"turn": "1b"}).expect(204)
        later = run.agent.take_attempt(waiting["id"])
        assert client.execution(later.id)["parent_execution_id"] == run.id
        assert client.previous(later.id) == {"turn": "1b"}

    def test_a_failed_branch_is_no_parent(
        self, client: BearerClient, turns: list[Attempt], session: str
    ) -> None:
        fork = f"{session}-fork"
        created = self.branch(client, turns[0], session=fork).expect(201).json
        turns[0].agent.take_attempt(created["id"]).fail().expect(204)
        later = client.create(turns[0].agent.id, session=fork)
        assert "parent_execution_id" not in later
        assert client.previous(later["id"]) is None

    def test_many_of_one(self, client: BearerClient, turns: list[Attempt]) -> None:
        with ThreadPoolExecutor(6) as pool:
            made = list(pool.map(lambda _: self.branch(client, turns[2]), range(6)))
        assert {a.expect(201).json["parent_execution_id"] for a in made} == {turns[2].id}

    def test_of_one_without_a_session(self, client: BearerClient, run: Attempt) -> None:
        run.complete("o").expect(204)
        created = self.branch(client, run).expect(201).json
        assert client.previous(created["id"]) == "o"

    def test_of_a_branch(self, client: BearerClient, run: Attempt) -> None:
        run.complete("o", state=1).expect(204)
        second = run.agent.take_attempt(self.branch(client, run).expect(201).json["id"])
        second.complete("o", state=2).expect(204)
        third = self.branch(client, second).expect(201).json
        assert client.previous(third["id"]) == 2

    def test_an_unknown_parent(self, client: BearerClient, agent: FakeAgent, session: str) -> None:
        for fields in ({}, {"session": session}):
            body = {"agent_id": agent.id, "parent_execution_id": UNKNOWN, **fields}
            client.post("/v0/executions", body).expect(404, "not_found")
        assert of_session(client, "", f"&agent_id={agent.id}") == []
        assert client.create(agent.id, session=session)["status"] == "running"

    def test_of_another_agent(
        self, client: BearerClient, turns: list[Attempt], new_agent: NewAgent
    ) -> None:
        other = new_agent()
        self.branch(client, turns[0], agent_id=other.id).expect(409, "conflict")
        assert of_session(client, "", f"&agent_id={other.id}") == []

    @pytest.mark.parametrize("now", ["running", "pending", "blocked", "failed", "cancelled"])
    def test_of_one_that_has_not_completed(
        self, client: BearerClient, new_run: NewRun, policy: SetPolicy, session: str, now: str
    ) -> None:
        policy(rule("gate", "require_approval"))
        run = parent = new_run(session=session)
        if now == "pending":
            parent_id = client.create(run.agent.id, session=session)["id"]
        else:
            parent_id = parent.id
        if now == "blocked":
            run.hold()
        elif now in ("failed", "cancelled"):
            end(client, run, {"failed": "fail", "cancelled": "cancel"}[now])
        assert status(client, parent_id) == now
        before = of_session(client, "", f"&agent_id={run.agent.id}")
        body = {"agent_id": run.agent.id, "parent_execution_id": parent_id}
        answer = client.post("/v0/executions", body).expect(409, "conflict")
        assert now in answer.json["message"]
        assert of_session(client, "", f"&agent_id={run.agent.id}") == before

    @pytest.mark.parametrize("which", ["its own", "busy", "ended", "pending", "failed"])
    def test_a_session_that_is_in_use(
        self,
        client: BearerClient,
        turns: list[Attempt],
        new_agent: NewAgent,
        session: str,
        which: str,
    ) -> None:
        """Used by anybody at any time, whatever came of it."""
        name, other = f"{session}-2", new_agent()
        if which == "its own":
            name = session
        else:
            first = client.create(other.id, session=name)["id"]
            run = other.take_attempt(first)
            if which == "ended":
                run.complete().expect(204)
            elif which == "failed":
                run.fail().expect(204)
            elif which == "pending":
                client.create(other.id, session=name)
                client.cancel(run.id)
        before = of_session(client, name)
        self.branch(client, turns[0], session=name).expect(409, "conflict")
        assert [e["id"] for e in of_session(client, name)] == [e["id"] for e in before]

    def test_one_of_many_gets_the_new_session(
        self, client: BearerClient, turns: list[Attempt], session: str
    ) -> None:
        name = f"{session}-2"
        with ThreadPoolExecutor(8) as pool:
            made = list(pool.map(lambda _: self.branch(client, turns[0], session=name), range(8)))
        assert sorted(a.status for a in made) == [201] + [409] * 7
        assert len(of_session(client, name)) == 1

    def test_a_repeat_is_not_checked_again(
        self, client: BearerClient, turns: list[Attempt], session: str
    ) -> None:
        fields = {"session": f"{session}-2", "idempotency_key": f"{session}-k"}
        first = self.branch(client, turns[0], **fields).expect(201).json
        again = self.branch(client, turns[0], **fields).expect(200).json
        assert again["id"] == first["id"]
