"""Sessions: their executions run one at a time, in their order."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from conftest import NewAgent, NewKernel, NewRun, SetPolicy
from harness import Attempt, BearerClient, FakeAgent, Kernel, eventually, rule
from harness.sessions import ENDED, START, end, of_session, status

UNKNOWN = "01920000-0000-7000-8000-000000000000"


def kinds(client: BearerClient, execution_id: str) -> list[str]:
    return [wait["kind"] for wait in client.execution(execution_id)["waiting_on"]]


class TestTurns:
    def test_the_first_runs_the_next_waits(
        self, client: BearerClient, agent: FakeAgent, session: str
    ) -> None:
        first = client.create(agent.id, session=session)
        assert (first["status"], first["session"]) == ("running", session)
        assert "parent_execution_id" not in first
        body = {"agent_id": agent.id, "session": session}
        second = client.post("/v0/executions", body).expect(201).json
        assert (second["status"], second["session"]) == ("pending", session)
        assert second["waiting_on"] == [{"kind": "session", "id": session}]
        assert client.execution(second["id"]) == second
        agent.take(first["id"])
        (event,) = client.events(second["id"])
        assert event["type"] == "execution.created"
        assert event["payload"] == {
            "execution_id": second["id"],
            "status": "pending",
            "session": session,
            "created_by": "bootstrap",
        }
        assert agent.count(second["id"]) == 0

    @pytest.mark.parametrize("how", ["complete", "fail", "cancel"])
    def test_the_next_starts_at_the_end(
        self, client: BearerClient, new_run: NewRun, session: str, how: str
    ) -> None:
        """The answer to what ended the first comes when the second has started."""
        first = new_run(session=session)
        second = client.create(first.agent.id, session=session)
        third = client.create(first.agent.id, session=session)
        end(client, first, how)
        assert status(client, second["id"]) == "running"
        assert status(client, third["id"]) == "pending"
        log = client.events(second["id"])
        assert [event["type"] for event in log[:3]] == START
        payload = {"execution_id": second["id"], "status": "running", "session": session}
        if how == "complete":
            payload["parent_execution_id"] = first.id
        assert log[1]["payload"] == payload
        assert log[2]["payload"]["execution_id"] == second["id"]
        assert client.event_types(third["id"]) == ["execution.created"]
        run = first.agent.take_attempt(second["id"])
        assert run.execution().expect(200).json["status"] == "running"
        run.complete().expect(204)
        first.agent.take_attempt(third["id"]).complete().expect(204)
        assert {e["status"] for e in of_session(client, session)} <= ENDED

    def test_in_order_of_creation_whatever_the_agent(
        self, client: BearerClient, new_agent: NewAgent, session: str
    ) -> None:
        agents = [new_agent() for _ in range(3)]
        order = [agents[n] for n in (0, 1, 1, 2, 0, 2, 1)]
        ids = [client.create(agent.id, session=session)["id"] for agent in order]
        for n, (agent, identity) in enumerate(zip(order, ids, strict=True)):
            run = agent.take_attempt(identity)
            found = {e["id"]: e["status"] for e in of_session(client, session)}
            assert [found[i] for i in ids[n:]] == ["running"] + ["pending"] * (len(ids) - n - 1)
            end(client, run, ("complete", "fail", "cancel")[n % 3])
        assert sum(len(agent.deliveries) for agent in agents) == len(ids)

    def test_others_are_not_held(
        self, client: BearerClient, agent: FakeAgent, session: str
    ) -> None:
        client.create(agent.id, session=session)
        other_names = (f"{session}-2", session.upper(), f" {session}", f"{session} ")
        for fields in [{}, *({"session": name} for name in other_names)]:
            assert client.create(agent.id, **fields)["status"] == "running", fields

    @pytest.mark.parametrize("width", [1, 2, 3, 4])
    def test_a_name_of_256_bytes(
        self, client: BearerClient, agent: FakeAgent, session: str, width: int
    ) -> None:
        letter = {1: "a", 2: "é", 3: "€", 4: "😀"}[width]
        unique = f"{session}{width}".ljust(64, "-")
        name = unique + letter * (192 // width)
        assert len(name.encode()) == 256
        assert client.create(agent.id, session=name)["session"] == name
        assert client.create(agent.id, session=name)["status"] == "pending"
        assert len(of_session(client, name)) == 2

    @pytest.mark.parametrize("name", ["'; --", 'a"b\\c', "100%", "\u202eabc", "a/b?c#d&e=f+g h"])
    def test_a_name_of_any_characters(
        self, client: BearerClient, agent: FakeAgent, session: str, name: str
    ) -> None:
        unique = f"{session} {name}"
        first = client.create(agent.id, session=unique)
        second = client.create(agent.id, session=unique)
        assert [e["id"] for e in of_session(client, unique)] == [second["id"], first["id"]]
        assert second["waiting_on"] == [{"kind": "session", "id": unique}]
        log = client.events(second["id"])
        assert log[0]["payload"]["session"] == unique

    def test_every_event_of_the_execution_names_it(
        self, client: BearerClient, new_run: NewRun, policy: SetPolicy, session: str
    ) -> None:
        policy(rule("gate", "require_approval"))
        run = new_run(session=session)
        client.grant(run.hold()).expect(204)
        run.redelivered().complete().expect(204)
        own = [e for e in client.events(run.id) if e["type"].startswith("execution.")]
        assert [e["type"].split(".")[1] for e in own] == [
            "created", "started", "blocked", "resumed", "completed",
        ]  # fmt: skip
        assert {e["payload"]["session"] for e in own} == {session}

    def test_one_that_is_blocked_holds_it(
        self, client: BearerClient, new_run: NewRun, policy: SetPolicy, session: str
    ) -> None:
        policy(rule("gate", "require_approval"))
        run = new_run(session=session)
        second = client.create(run.agent.id, session=session)["id"]
        approval_id = run.hold()
        assert status(client, run.id) == "blocked"
        third = client.create(run.agent.id, session=session)["id"]
        assert [status(client, i) for i in (second, third)] == ["pending", "pending"]
        client.deny(approval_id).expect(204)
        later = run.redelivered()
        assert [status(client, i) for i in (run.id, second)] == ["running", "pending"]
        later.complete().expect(204)
        assert [status(client, i) for i in (second, third)] == ["running", "pending"]

    def test_one_that_is_cancelled_while_blocked_frees_it(
        self, client: BearerClient, new_run: NewRun, policy: SetPolicy, session: str
    ) -> None:
        policy(rule("gate", "require_approval"))
        run = new_run(session=session)
        second = client.create(run.agent.id, session=session)["id"]
        run.hold()
        client.cancel(run.id)
        assert status(client, second) == "running"

    def test_one_that_is_parked_holds_it(
        self, client: BearerClient, new_run: NewRun, policy: SetPolicy, session: str
    ) -> None:
        limit = {"max_calls": 1, "window": "1h", "max_wait": "2h"}
        policy(rule("slow", "allow", rate_limit=limit))
        run = new_run(session=session)
        second = client.create(run.agent.id, session=session)["id"]
        run.proceed("x", 1)
        run.park("x", 2)
        assert (status(client, second), kinds(client, second)) == ("pending", ["session"])
        assert kinds(client, run.id) == ["rate_limit"]

    def test_one_whose_deliveries_are_used_up_frees_it(
        self, new_kernel: NewKernel, new_agent: NewAgent, session: str
    ) -> None:
        kernel = new_kernel(env={"REBUNO_DISPATCH_MAX_ATTEMPTS": "1"})
        client, gone, here = kernel.client(), new_agent(kernel), new_agent(kernel)
        gone.stop()
        first = client.create(gone.id, session=session)["id"]
        second = client.create(here.id, session=session)["id"]
        here.take(second)
        assert client.execution(first)["failure_reason"] == "dispatch_exhausted"

    def test_a_repeated_create_is_the_pending_one(
        self, client: BearerClient, agent: FakeAgent, session: str
    ) -> None:
        client.create(agent.id, session=session)
        body = {"agent_id": agent.id, "session": session, "idempotency_key": "k"}
        first = client.post("/v0/executions", body).expect(201).json
        again = {**body, "session": f"{session}-2", "parent_execution_id": UNKNOWN}
        assert client.post("/v0/executions", again).expect(200).json == first
        assert len(of_session(client, session)) == 2

    def test_its_agent_stays(self, client: BearerClient, new_agent: NewAgent, session: str) -> None:
        """One that waits is live: the agent that will run it cannot be removed."""
        holder, waiter = new_agent(), new_agent()
        client.create(holder.id, session=session)
        waiting = client.create(waiter.id, session=session)
        client.delete(f"/v0/agents/{waiter.id}").expect(409, "conflict")
        client.cancel(waiting["id"])
        client.delete(f"/v0/agents/{waiter.id}").expect(204)

    def test_what_its_agent_may_do_before(
        self, client: BearerClient, agent: FakeAgent, new_agent: NewAgent, session: str
    ) -> None:
        """Read it, and nothing else: there is no delivery."""
        run = agent.take_attempt(client.create(agent.id, session=session)["id"])
        waiting = client.create(agent.id, session=session)
        path = f"/v0/executions/{waiting['id']}"
        assert agent.client().get(path).expect(200).json == waiting
        assert agent.client().get(f"{path}/previous").expect(200).json == {"state": None}
        assert agent.client().get(f"{path}/steps").expect(200).json == []
        for rest, body in (("/heartbeat", None), ("/complete", {}), ("/release", None)):
            run.client.post(path + rest, body).expect(400, "validation_error")
        assert client.execution(waiting["id"]) == waiting


class TestWaiting:
    def test_one_that_waits_is_cancelled(
        self, client: BearerClient, new_run: NewRun, session: str
    ) -> None:
        run = new_run(session=session)
        second, third = (client.create(run.agent.id, session=session)["id"] for _ in range(2))
        client.cancel(second)
        ended = client.execution(second)
        assert (ended["status"], ended["failure_reason"]) == ("cancelled", "client_cancelled")
        assert not {"waiting_on", "parent_execution_id", "output"} & set(ended)
        log = client.events(second)
        assert [e["type"] for e in log] == ["execution.created", "execution.cancelled"]
        assert log[1]["payload"] == {
            "execution_id": second,
            "status": "cancelled",
            "session": session,
            "reason": "client_cancelled",
        }
        client.post(f"/v0/executions/{second}/cancel").expect(409, "conflict")
        assert [status(client, i) for i in (run.id, third)] == ["running", "pending"]
        run.complete("first").expect(204)
        later = run.agent.take_attempt(third)
        assert client.execution(third)["parent_execution_id"] == run.id
        later.complete().expect(204)
        assert run.agent.count(second) == 0

    def test_all_that_wait_are_cancelled(
        self, client: BearerClient, new_run: NewRun, session: str
    ) -> None:
        run = new_run(session=session)
        waiting = [client.create(run.agent.id, session=session)["id"] for _ in range(6)]
        with ThreadPoolExecutor(7) as pool:
            list(pool.map(client.cancel, [run.id, *waiting]))
        assert {e["status"] for e in of_session(client, session)} == {"cancelled"}
        assert client.create(run.agent.id, session=session)["status"] == "running"

    def test_cancelled_as_it_starts(
        self, client: BearerClient, new_run: NewRun, session: str
    ) -> None:
        """At the moment when the one before ends: it ran or it did not, and the next one does."""
        for _ in range(5):
            run = new_run(session=session)
            second, third = (client.create(run.agent.id, session=session)["id"] for _ in range(2))
            with ThreadPoolExecutor(2) as pool:
                completing = pool.submit(run.complete)
                pool.submit(client.cancel, second).result()
                completing.result().expect(204)
            assert status(client, second) == "cancelled"
            types = client.event_types(second)
            assert types[0] == "execution.created"
            assert ("execution.started" in types) == ("dispatch.queued" in types)
            assert status(client, third) == "running"
            client.cancel(third)

    def test_a_deadline_passes_while_it_waits(
        self, new_kernel: NewKernel, new_agent: NewAgent, session: str
    ) -> None:
        kernel = new_kernel()
        client, agent = kernel.client(), new_agent(kernel)
        run = agent.take_attempt(client.create(agent.id, session=session)["id"])
        kernel.stop()
        kernel.env |= {"REBUNO_DEADLINE_TIMEOUT": "1s", "REBUNO_DEADLINE_CHECK_INTERVAL": "100ms"}
        kernel.start()
        waiting = client.create(agent.id, session=session)
        assert (waiting["status"], waiting["waiting_on"][0]["kind"]) == ("pending", "session")
        eventually(lambda: status(client, waiting["id"]) == "cancelled")
        ended = client.execution(waiting["id"])
        assert ended["failure_reason"] == "deadline_exceeded"
        log = client.events(waiting["id"])
        assert [e["type"] for e in log] == ["execution.created", "execution.cancelled"]
        assert {e["payload"]["deadline_at"] for e in log} == {waiting["deadline_at"]}
        assert log[1]["occurred_at"] >= waiting["deadline_at"]
        assert status(client, run.id) == "running"
        run.complete().expect(204)

    def test_the_stream_tells_when_it_starts(
        self, client: BearerClient, new_run: NewRun, session: str
    ) -> None:
        run = new_run(session=session)
        waiting = client.create(run.agent.id, session=session)["id"]
        with client.stream(f"/v0/executions/{waiting}/events") as stream:
            first = stream.next()
            assert first is not None
            assert first.json["type"] == "execution.created"
            run.complete().expect(204)
            later = run.agent.take_attempt(waiting)
            later.complete().expect(204)
            types = [event.json["type"] for event in stream.rest()]
        assert types[:2] == START[1:]
        assert types[-1] == "execution.completed"


class TestListing:
    def test_by_session(
        self, client: BearerClient, new_run: NewRun, new_agent: NewAgent, session: str
    ) -> None:
        run = new_run(session=session)
        other = new_agent()
        ids = [run.id, *(client.create(a, session=session)["id"] for a in (run.agent.id, other.id))]
        client.create(run.agent.id)
        client.create(run.agent.id, session=f"{session}-2")
        assert [e["id"] for e in of_session(client, session)] == ids[::-1]
        assert [e["id"] for e in of_session(client, session, f"&agent_id={other.id}")] == [ids[2]]
        assert [e["id"] for e in of_session(client, session, "&status=pending")] == ids[:0:-1]
        assert [e["id"] for e in of_session(client, session, f"&prefix={ids[1]}")] == [ids[1]]
        assert of_session(client, session[:-1]) == []
        assert of_session(client, "s" * 300) == []
        for entry in of_session(client, session):
            assert client.execution(entry["id"])["session"] == session
            assert entry["status"] == "pending" or entry["id"] == run.id
        pending = client.get(f"/v0/executions?status=pending&agent_id={other.id}").expect(200).json
        assert [e["waiting_on"] for e in pending["executions"]] == [
            [{"kind": "session", "id": session}]
        ]

    def test_pages(self, client: BearerClient, agent: FakeAgent, session: str) -> None:
        ids = [client.create(agent.id, session=session)["id"] for _ in range(7)]
        found, cursor = [], ""
        for _ in range(4):
            target = f"/v0/executions?session={session}&limit=2{cursor}"
            page = client.get(target).expect(200).json
            found += [e["id"] for e in page["executions"]]
            cursor = f"&cursor={page.get('next_cursor')}"
        assert "next_cursor" not in page
        assert found == ids[::-1]

    def test_an_empty_name_is_no_filter(self, client: BearerClient, agent: FakeAgent) -> None:
        created = client.create(agent.id)
        found = of_session(client, "", f"&agent_id={agent.id}")
        assert [e["id"] for e in found] == [created["id"]]

    def test_a_malformed_name(self, client: BearerClient) -> None:
        for bad in ("%00", "%ff", "a%0ab"):
            client.get(f"/v0/executions?session={bad}", bad=True).invalid("session")


class TestRestart:
    @pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
    def test_the_order_survives(
        self, new_kernel: NewKernel, new_agent: NewAgent, session: str, kill: bool
    ) -> None:
        kernel: Kernel = new_kernel()
        client, agent = kernel.client(), new_agent(kernel)
        ids = [client.create(agent.id, session=session)["id"] for _ in range(4)]

        def acked(identity: str) -> Attempt:
            run = agent.take_attempt(identity)
            eventually(lambda: "dispatch.acked" in client.event_types(identity))
            return run

        run = acked(ids[0])
        client.cancel(ids[1])
        kernel.restart(kill=kill)
        assert [status(client, i) for i in ids] == ["running", "cancelled", "pending", "pending"]
        run.complete("o", state={"n": 0}).expect(204)
        later = acked(ids[2])
        kernel.restart(kill=kill)
        assert client.previous(ids[2]) == {"n": 0}
        assert client.execution(ids[2])["parent_execution_id"] == ids[0]
        later.complete("o").expect(204)
        agent.take_attempt(ids[3]).complete().expect(204)
