"""What the counters of decisions, approvals and rate limits count: docs/metrics.md."""

from collections.abc import Callable

from harness import Attempt, FakeAgent, Kernel, bundle, eventually, rule
from harness.client import BaseClient

NewKernel = Callable[..., Kernel]
NewAgent = Callable[..., FakeAgent]


def counters(kernel: Kernel) -> dict[str, float]:
    """Those of this page, by what follows `rebuno_`."""
    text = BaseClient(kernel.url).get("/metrics").expect(200).body.decode()
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("rebuno_")]
    wanted = ("policy_", "approval_", "rate_limit_")
    named = {name.removeprefix("rebuno_"): float(value) for name, value in lines}
    return {name: value for name, value in named.items() if name.startswith(wanted)}


def begin(kernel: Kernel, agent: FakeAgent) -> Attempt:
    return agent.take_attempt(kernel.client().create(agent.id)["id"])


def test_decisions_and_what_came_of_them(new_kernel: NewKernel, new_agent: NewAgent) -> None:
    kernel = new_kernel()
    client, agent = kernel.client(), new_agent(kernel)
    limit = {"max_calls": 2, "window": "1h"}
    text = bundle(
        rule("no", "deny", {"target": "no"}),
        rule("hold", "require_approval", {"target": "hold"}),
        rule("soon", "require_approval", {"target": "soon"}, approval_config={"timeout": "50ms"}),
        rule("few", "allow", {"target": "few"}, rate_limit=limit),
        rule("wait", "allow", {"target": "wait"}, rate_limit={**limit, "max_wait": "1h"}),
        default="allow",
    )
    client.set_policy(agent.id, text)
    assert set(counters(kernel).values()) == {0}

    run = begin(kernel, agent)
    run.record("yes", 1)
    run.denied("no")
    later = run.released()
    later.replay("yes", 1)  # the record stands: no decision
    for n in range(2):
        later.record("few", n)
    later.submit("few", 2).expect(200)  # turned away: no decision either
    for n in range(2):
        later.record("wait", n)
    later.park("wait", 2)

    client.grant(begin(kernel, agent).hold("hold")).expect(204)
    client.deny(begin(kernel, agent).hold("hold")).expect(204)
    begin(kernel, agent).hold("soon")
    ended = begin(kernel, agent)
    ended.hold("hold")
    client.cancel(ended.id)

    expected = {
        'policy_decisions_total{decision="allow"}': 5,
        'policy_decisions_total{decision="deny"}': 1,
        'policy_decisions_total{decision="require_approval"}': 4,
        "policy_latency_seconds_count": 12,
        'approval_outcomes_total{outcome="granted"}': 1,
        'approval_outcomes_total{outcome="denied"}': 1,
        'approval_outcomes_total{outcome="expired"}': 2,
        'rate_limit_decisions_total{outcome="allowed"}': 4,
        'rate_limit_decisions_total{outcome="limited"}': 1,
        'rate_limit_decisions_total{outcome="parked"}': 1,
    }

    def settled() -> bool:
        got = counters(kernel)
        taken = got.pop("policy_latency_seconds_sum")
        assert 0 < taken < 60
        assert got == expected
        return True

    eventually(settled)
