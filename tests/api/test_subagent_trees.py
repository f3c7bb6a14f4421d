"""Subagents whose parents die or end."""

from typing import Any

import pytest

from conftest import NewAgent
from harness import Attempt, BearerClient, FakeAgent, eventually
from harness.sessions import ENDED, status
from harness.subagents import Family, settled, spawn

Json = dict[str, Any]


@pytest.fixture
def helper(new_agent: NewAgent) -> FakeAgent:
    """The agent of the subagents."""
    return new_agent()


class TestOrphans:
    """An at_most_once step whose attempt died while its subagent was at work."""

    @pytest.fixture
    def family(self, client: BearerClient, run: Attempt, helper: FakeAgent) -> Family:
        return Family(client, run, helper, idempotency="at_most_once")

    def submit(self, run: Attempt) -> Json:
        options = {"idempotency": "at_most_once"}
        decision: Json = run.submit("delegate", {"task": 1}, **options).expect(200).json
        return decision

    def test_waits_for_it(self, client: BearerClient, family: Family) -> None:
        later = family.run.released()
        seq = client.events(later.id)[-1]["event_seq"]
        decision = self.submit(later)
        assert decision["decision"] == "blocked"
        assert "approval_id" not in decision
        found = client.execution(later.id)
        assert found["status"] == "blocked"
        assert found["waiting_on"] == [{"kind": "subagent", "id": family.child["id"]}]
        blocked = [e for e in client.events(later.id, seq) if e["type"] == "execution.blocked"]
        assert [e["payload"]["reason"] for e in blocked] == ["awaiting_steps"]
        family.work().complete("out").expect(204)
        last = later.redelivered()
        decision = self.submit(last)
        assert (decision["decision"], decision["result"]) == ("replay", "out")
        last.complete().expect(204)

    def test_that_has_ended_meanwhile(self, client: BearerClient, family: Family) -> None:
        family.work().fail("broken").expect(204)
        settled(client, family.run, family.step_id)
        decision = self.submit(family.run.released())
        assert decision["error"]["reason"] == "subagent_failed"

    def test_without_one_it_is_indeterminate(self, run: Attempt) -> None:
        run.proceed("delegate", {"task": 1}, idempotency="at_most_once")
        decision = self.submit(run.released())
        assert decision["error"]["reason"] == "indeterminate"


class TestTrees:
    @pytest.fixture
    def tree(self, client: BearerClient, run: Attempt, helper: FakeAgent) -> list[list[str]]:
        """Levels of ids: a run, its two subagents, and two of each of them."""
        levels = [[run]]
        for _ in range(2):
            below = []
            for above in levels[-1]:
                for n in range(2):
                    step_id = above.proceed("x", n)
                    made = spawn(client, above, step_id, helper.id).expect(201).json
                    below.append(helper.take_attempt(made["id"]))
            levels.append(below)
        self.attempts = levels
        return [[attempt.id for attempt in level] for level in levels]

    def ended(self, client: BearerClient, ids: list[str], *, reason: str) -> None:
        def all_ended() -> bool:
            found = [client.execution(identity) for identity in ids]
            return all(e["status"] == "cancelled" and e["failure_reason"] == reason for e in found)

        eventually(all_ended)

    @pytest.mark.parametrize("how", ["complete", "fail", "cancel"])
    @pytest.mark.parametrize("suspended", [False, True])
    def test_end_with_their_root(
        self, client: BearerClient, tree: list[list[str]], how: str, suspended: bool
    ) -> None:
        (root,) = self.attempts[0]
        for attempt in self.attempts[1] if suspended else []:
            assert attempt.suspend().expect(200).json == {"suspended": True}
        if how == "cancel":
            client.cancel(root.id)
        else:
            getattr(root, how)().expect(204)
        self.ended(client, tree[1] + tree[2], reason="parent_agent_terminal")
        for identity in tree[1] + tree[2]:
            payloads = [
                e["payload"] for e in client.events(identity) if e["type"] == "execution.cancelled"
            ]
            assert payloads == [
                {
                    "execution_id": identity,
                    "status": "cancelled",
                    "reason": "parent_agent_terminal",
                }
            ]
        wanted = {"complete": "executing", "fail": "executing", "cancel": "cancelled"}[how]
        assert {s["status"] for s in client.steps(root.id)} == {wanted}
        for identity in tree[1]:
            assert {s["status"] for s in client.steps(identity)} == {"cancelled"}

    def test_end_below_one_that_ends(self, client: BearerClient, tree: list[list[str]]) -> None:
        """Not beside it, nor above."""
        gone, kept = tree[1]
        client.cancel(gone)
        self.ended(client, tree[2][:2], reason="parent_agent_terminal")
        assert {status(client, i) for i in [tree[0][0], kept, *tree[2][2:]]} == {"running"}
        steps = client.steps(tree[0][0])
        eventually(lambda: client.steps(tree[0][0])[0]["status"] == "failed")
        error = client.steps(tree[0][0])[0]["error"]
        assert (error["reason"], error["execution_id"]) == ("subagent_cancelled", gone)
        assert steps[1]["status"] == "executing"

    def test_those_that_have_ended_stay(self, client: BearerClient, tree: list[list[str]]) -> None:
        self.attempts[2][0].complete("done").expect(204)
        client.cancel(tree[0][0])
        self.ended(client, tree[1] + tree[2][1:], reason="parent_agent_terminal")
        assert status(client, tree[2][0]) == "completed"

    def test_come_back_from_below(self, client: BearerClient, tree: list[list[str]]) -> None:
        """All suspended, and each result brings the one above back."""
        for level in self.attempts[:2]:
            for attempt in level:
                assert attempt.suspend().expect(200).json == {"suspended": True}
        assert {status(client, i) for i in tree[0] + tree[1]} == {"blocked"}
        for attempt in self.attempts[2]:
            attempt.complete(1).expect(204)
        for attempt in self.attempts[1]:
            again = attempt.redelivered()
            again.complete(sum(again.replay("x", n)["result"] for n in range(2))).expect(204)
        root = self.attempts[0][0].redelivered()
        assert [root.replay("x", n)["result"] for n in range(2)] == [2, 2]
        root.complete().expect(204)
        assert {status(client, i) for level in tree for i in level} <= ENDED

    def test_one_that_waits_for_its_session(
        self, client: BearerClient, run: Attempt, helper: FakeAgent, session: str
    ) -> None:
        client.create(helper.id, session=session)
        made = spawn(client, run, run.proceed(), helper.id, session=session).expect(201).json
        assert made["status"] == "pending"
        client.cancel(run.id)
        self.ended(client, [made["id"]], reason="parent_agent_terminal")
