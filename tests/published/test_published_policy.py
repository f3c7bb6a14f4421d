"""The published SDK under a policy: what its agent makes of each decision, and its client's approvals."""

import asyncio
import time

import pytest
import rebuno
from rebuno import Client
from world import World, ended, until

POLICY = """
default_action: deny
rules:
  - id: look
    when: { target: look* }
    then: { decision: allow }
  - id: no-drop
    when: { target: drop }
    then: { decision: deny, reason: not on a Friday }
  - id: no-step
    when: { step_kind: local, target: token }
    then: { decision: deny, reason: no_go }
  - id: no-prose
    when: { step_kind: local, target: prose }
    then: { decision: deny, reason: not on a Friday }
  - id: ask
    when: { target: deploy }
    then:
      decision: require_approval
      approval_config: { approvers: [alice, bob], timeout: 1h, message: look at the target }
  - id: seldom
    when: { target: seldom }
    then: { decision: allow, rate_limit: { max_calls: 1, window: 1h } }
  - id: slowly
    when: { target: slowly }
    then: { decision: allow, rate_limit: { max_calls: 1, window: 300ms, max_wait: 1m } }
"""


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    w = World(tmp_path_factory.mktemp("world"), "governed_agent.py", POLICY)
    yield w
    w.close()


@pytest.fixture
def world(shared):
    """The shared one, without the effects of earlier tests; nothing may run any more at its end."""
    shared.effects.write_text("")
    shared.go.unlink(missing_ok=True)
    return shared


async def pending(client: Client, execution_id: str, count: int = 1) -> list[rebuno.types.Approval]:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        mine = [a for a in await client.list_approvals() if a.execution_id == execution_id]
        if len(mine) >= count:
            assert (await client.get(execution_id)).status == "blocked"
            return mine
        await asyncio.sleep(0.05)
    raise AssertionError("not held in time")


def run(world: World, scenario) -> None:
    async def main() -> None:
        async with Client(world.url) as client:
            await scenario(client)

    asyncio.run(main())


def test_denied_tools_tell_the_model(world):
    async def scenario(client):
        made = await client.create("pub", {"mode": "tools"})
        ran = await ended(client, made.id)
        assert ran.status == "completed", ran.failure_reason
        assert ran.output[0] == "looked"
        for said, tool, reason in (
            (ran.output[1], "drop", "not on a Friday"),
            (ran.output[2], "secret", "no explicit allow rule matched"),
        ):
            assert said.startswith(f"{tool} not allowed. reason: ") and reason in said
        steps = await client.list_steps(made.id)
        assert [s.status for s in steps] == ["succeeded", "denied", "denied"]
        assert steps[1].error["reason"] == "not on a Friday"
        assert (await client.list_steps(made.id, status="denied")) == steps[1:]

    run(world, scenario)
    assert world.lines() == ["look"]


@pytest.mark.parametrize(
    ("name", "reason"), [("token", "no_go"), ("prose", "policy_denied: not on a Friday")]
)
def test_a_denied_step_fails_the_run(world, name, reason):
    async def scenario(client):
        made = await client.create("pub", {"mode": "step", "name": name})
        ran = await ended(client, made.id)
        assert (ran.status, ran.failure_reason) == ("failed", reason)

    run(world, scenario)


def test_a_local_step_needs_no_rule(world):
    async def scenario(client):
        made = await client.create("pub", {"mode": "step", "name": "other"})
        assert (await ended(client, made.id)).output == 1

    run(world, scenario)


def test_a_held_call_that_is_granted(world):
    async def scenario(client):
        made = await client.create("pub", {"mode": "held"})
        (approval,) = await pending(client, made.id)
        assert (approval.status, approval.message) == ("pending", "look at the target")
        step = await client.get_step(made.id, approval.step_id)
        assert (step.status, step.target, step.args) == (
            "awaiting_approval",
            "deploy",
            {"to": "prod"},
        )
        assert await client.get_approval(approval.id) == approval
        with pytest.raises(rebuno.ForbiddenError):
            await client.grant_approval(approval.id, decided_by="mallory")
        await client.grant_approval(approval.id, decided_by="alice", rationale="looks good")
        ran = await ended(client, made.id)
        assert ran.status == "completed", ran.failure_reason
        assert ran.output[:2] == ["looked", "deployed to prod"]
        decided = await client.get_approval(approval.id)
        assert (decided.status, decided.decided_by, decided.rationale) == (
            "granted",
            "alice",
            "looks good",
        )
        assert decided.asserted_by == "anonymous"
        with pytest.raises(rebuno.ConflictError):
            await client.deny_approval(approval.id, decided_by="bob")
        assert approval.id in [a.id for a in await client.list_approvals(status="granted")]
        assert await client.list_approvals() == []

    run(world, scenario)
    assert world.lines() == ["look", "deploy prod"]


@pytest.mark.parametrize(
    ("rationale", "told"), [("frozen until Monday", "frozen until Monday"), ("", "approval_denied")]
)
def test_the_reason_of_a_denial_reaches_the_model(world, rationale, told):
    async def scenario(client):
        made = await client.create("pub", {"mode": "held"})
        (approval,) = await pending(client, made.id)
        await client.deny_approval(approval.id, decided_by="bob", rationale=rationale)
        ran = await ended(client, made.id)
        assert ran.status == "completed", ran.failure_reason
        assert ran.output[0] == "looked"
        assert ran.output[1].startswith("deploy not allowed. reason: ") and told in ran.output[1]

    run(world, scenario)
    assert world.lines() == ["look"]


def test_a_swallowed_stop_leaves_the_run_to_the_kernel(world):
    async def scenario(client):
        made = await client.create("pub", {"mode": "swallow"})
        (approval,) = await pending(client, made.id)
        until(lambda: "swallowed Blocked" in world.lines())
        assert (await client.get(made.id)).status == "blocked"
        await client.grant_approval(approval.id, decided_by="alice")
        assert (await ended(client, made.id)).output == "deployed to prod"

    run(world, scenario)
    assert world.lines() == ["swallowed Blocked", "deploy prod"]


@pytest.mark.parametrize("granted_first", [False, True])
def test_parallel_calls_are_asked_for_together(world, granted_first):
    """The call beside them is neither lost nor run twice, whether it ends before the grants or after."""

    async def scenario(client):
        made = await client.create("pub", {"mode": "parallel"})
        approvals = {}
        for approval in await pending(client, made.id, 3):
            step = await client.get_step(made.id, approval.step_id)
            approvals[step.args["to"]] = approval.id
        assert sorted(approvals) == ["a", "b", "c"]
        if not granted_first:
            world.go.touch()
            deadline = time.monotonic() + 20
            while [s.target for s in await client.list_steps(made.id, status="succeeded")] != [
                "look-slowly"
            ]:
                assert time.monotonic() < deadline, "its outcome was lost"
                await asyncio.sleep(0.05)
        await client.grant_approval(approvals["c"], decided_by="alice")
        await client.deny_approval(approvals["a"], decided_by="alice", rationale="not a")
        assert (await client.get(made.id)).status == "blocked"
        await client.grant_approval(approvals["b"], decided_by="alice")
        world.go.touch()
        ran = await ended(client, made.id)
        assert ran.status == "completed", ran.failure_reason
        assert "not a" in ran.output[0]
        assert ran.output[1:] == ["deployed to b", "looked slowly", "deployed to c"]

    run(world, scenario)
    assert sorted(world.lines()) == ["deploy b", "deploy c", "look-slowly"]


def test_a_rate_limit_that_refuses(world):
    async def scenario(client):
        made = await client.create("pub", {"mode": "limited"})
        ran = await ended(client, made.id)
        assert (ran.status, ran.failure_reason) == ("failed", "rate_limit_exceeded")

    run(world, scenario)
    assert world.lines() == ["seldom"]


def test_a_rate_limit_that_parks(world):
    async def scenario(client):
        made = await client.create("pub", {"mode": "parked"})
        ran = await ended(client, made.id)
        assert (ran.status, ran.output) == ("completed", ["done", "done"])
        assert "step.rate_limited" in [e.type for e in await client.events(made.id, limit=1000)]

    run(world, scenario)
    assert world.lines() == ["slowly", "slowly"]


def test_a_held_run_needs_no_agent(tmp_path):
    """Nobody waits: agent and kernel go away, the decision comes, others carry on."""
    world = World(tmp_path, "governed_agent.py", POLICY)

    async def scenario(client):
        made = await client.create("pub", {"mode": "held"})
        (approval,) = await pending(client, made.id)
        world.agent.terminate()
        world.agent.wait()
        world.kernel.kill()
        world.kernel.wait()
        world.start_kernel()
        await client.grant_approval(approval.id, decided_by="alice")
        world.start_agent()
        ran = await ended(client, made.id)
        assert ran.output[:2] == ["looked", "deployed to prod"]

    try:
        run(world, scenario)
        assert world.lines() == ["look", "deploy prod"]
    finally:
        world.close()
