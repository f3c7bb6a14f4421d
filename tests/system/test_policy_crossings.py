"""Where several parts of policy meet, with kernels that are killed in between.

Written from docs/policy.md and docs/forks.md ("Its policy", "What runs again").
"""

from collections.abc import Callable
from typing import Any

import pytest

from harness import Attempt, FakeAgent, Kernel, bundle, rule
from harness.judge import judging

NewKernel = Callable[..., Kernel]
NewAgent = Callable[..., FakeAgent]


def begun(kernel: Kernel, agent: FakeAgent) -> Attempt:
    return agent.take_attempt(kernel.client().create(agent.id)["id"])


def forked(kernel: Kernel, run: Attempt, **fields: Any) -> Attempt:
    """A fork at the last event of a run."""
    client = kernel.client()
    made = client.fork(run.id, client.events(run.id)[-1]["event_seq"], **fields)
    return run.agent.take_attempt(made["id"])


@pytest.mark.parametrize("kill", [True, False], ids=["SIGKILL", "SIGTERM"])
def test_forks_with_a_bundle_of_their_own(
    new_kernel: NewKernel, new_agent: NewAgent, kill: bool
) -> None:
    """It holds, parks and denies through restarts, also in a fork of the fork, whatever the agent's
    own bundle has become."""
    kernel = new_kernel()
    agent = new_agent(kernel)
    kernel.client().set_policy(agent.id, bundle(rule("agents", "allow")))
    run = begun(kernel, agent)
    run.record("first")
    limit = {"max_calls": 1, "window": "8s", "max_wait": "1m"}
    own = bundle(
        rule("limited", "allow", {"target": "x"}, rate_limit=limit),
        rule("gate", "require_approval", {"target": "gated"}),
        rule("rest", "deny"),
    )
    held = forked(kernel, run, policy_bundle=own)
    held.replay("first")
    parked = forked(kernel, held)
    parked.replay("first")
    kernel.restart(kill=kill)
    kernel.client().set_policy(agent.id, bundle(rule("agents-again", "allow")))
    approvals = [held.hold("gated", n) for n in range(2)]
    parked.record("x", 0)
    parked.park("x", 1)
    kernel.restart(kill=kill)
    for approval in approvals:
        kernel.client().grant(approval).expect(204)
    later = held.redelivered()
    for n in range(2):
        later.proceed("gated", n)
    assert later.denied("y")["rule_id"] == "rest"
    back = parked.redelivered(30.0)
    back.replay("x", 0)
    back.proceed("x", 1)
    assert back.denied("y")["rule_id"] == "rest"


def test_parked_then_judged_then_held_as_the_effect_of_a_fork(
    new_kernel: NewKernel, new_agent: NewAgent
) -> None:
    """The judge is asked when the token is there, and once. What it allows, a person decides."""
    with judging() as judge:
        kernel = new_kernel(env={"REBUNO_JUDGE_URL": judge.url})
        agent = new_agent(kernel)
        limit = {"max_calls": 1, "window": "10s", "max_wait": "1m", "per_what": "agent"}
        judged = rule("judged", "judge", {"target": "pay"}, rate_limit=limit)
        kernel.client().set_policy(agent.id, bundle(judged))
        run = begun(kernel, agent)
        run.record("pay", 0)
        fork = forked(kernel, run)
        fork.replay("pay", 0)
        fork.park("pay", 1, idempotency="at_most_once")
        assert judge.count() == 1
        kernel.restart(kill=True)
        later = fork.redelivered(30.0)
        later.replay("pay", 0)
        approval = later.hold("pay", 1, idempotency="at_most_once")
        assert judge.count() == 2
        log = kernel.client().events(fork.id)
        (awaiting,) = [e for e in log if e["type"] == "step.awaiting_approval"]
        assert awaiting["payload"]["rule_id"] == "__fork_effect"
        kernel.client().grant(approval).expect(204)
        last = later.redelivered()
        last.heartbeat().expect(204)  # acknowledged, so that it stays the one through the kill
        kernel.restart(kill=True)
        last.replay("pay", 0)
        last.proceed("pay", 1, idempotency="at_most_once")
        assert judge.count() == 2
