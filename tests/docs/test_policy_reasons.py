"""The table of reasons in docs/policy.md: a kernel says each in the situation that it names."""

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from harness import Attempt, FakeAgent, Kernel
from harness.documents import code, read

BUNDLE = {
    "rules": [
        {"id": "bare", "when": {"target": "bare"}, "then": {"decision": "deny"}},
        {"id": "asked", "when": {"target": "asked"}, "then": {"decision": "require_approval"}},
        {
            "id": "hurried",
            "when": {"target": "hurried"},
            "then": {"decision": "require_approval", "approval_config": {"timeout": "20ms"}},
        },
        {"id": "judged", "when": {"target": "judged"}, "then": {"decision": "judge"}},
        {
            "id": "models",
            "when": {"step_kind": "llm_call"},
            "then": {"decision": "allow", "budget": {"max_tokens": 10}},
        },
        {
            "id": "once",
            "when": {"target": "once"},
            "then": {"decision": "allow", "rate_limit": {"max_calls": 1, "window": "24h"}},
        },
        {
            "id": "guarded",
            "when": {"target": "guarded"},
            "then": {
                "decision": "allow",
                "rate_limit": {"max_calls": 9, "window": "1s", "on_limiter_error": "deny"},
            },
        },
        {"id": "sent", "when": {"target": "sent"}, "then": {"decision": "allow"}},
    ]
}


class World:
    """One run of an agent under the bundle, on a kernel whose database can be spoilt."""

    def __init__(self, kernel: Kernel, agent: FakeAgent, database: Path) -> None:
        self.kernel, self.agent, self.database = kernel, agent, database
        self.client = kernel.client()
        self.client.set_policy(agent.id, yaml.safe_dump(BUNDLE))
        self.run = agent.take_attempt(self.client.create(agent.id)["id"])

    def again(self) -> Attempt:
        self.run = self.agent.take_attempt(self.run.id)
        return self.run

    def spoil(self, statement: str) -> None:
        """The kernel is stopped for it: it is the only one who may write while it runs."""
        self.kernel.stop()
        with sqlite3.connect(self.database) as db:
            changed = db.execute(statement).rowcount
        db.close()
        assert changed == 1, statement
        self.kernel.start()


@pytest.fixture
def world(
    launch: Callable[..., Kernel], new_agent: Callable[..., FakeAgent], tmp_path: Path
) -> World:
    database = tmp_path / "rebuno.db"
    kernel = launch(database_url=f"sqlite:///{database}")
    return World(kernel, new_agent(kernel), database)


Answer = dict[str, str]


def submit(run: Attempt, target: str, **options: str) -> Answer:
    answer: Answer = run.submit(target, {}, **options).expect(200).json
    return answer


def deny_without_a_word(w: World) -> Answer:
    w.client.deny(submit(w.run, "asked")["approval_id"]).expect(204)
    return submit(w.again(), "asked")


def let_it_run_out(w: World) -> Answer:
    submit(w.run, "hurried")
    return submit(w.again(), "hurried")


def spend_the_budget(w: World) -> Answer:
    body = json.dumps({"usage": {"prompt_tokens": 6, "completion_tokens": 4}})
    w.run.record("model", {}, {"status": 200, "body": body}, kind="llm_call")
    return submit(w.run, "model", kind="llm_call")


def go_over_the_limit(w: World) -> Answer:
    w.run.record("once", {}, "done")
    return submit(w.run, "once")


def break_the_bucket(w: World) -> Answer:
    w.run.record("guarded", {}, "done")
    w.spoil("UPDATE buckets SET full_at = NULL")
    return submit(w.run, "guarded")


def break_the_bundle(w: World) -> Answer:
    w.spoil("UPDATE agents SET policy_bundle = 'rules: {'")
    return submit(w.run, "sent")


def repeat_what_is_unknown(w: World) -> Answer:
    submit(w.run, "sent", idempotency="at_most_once")
    run = w.run.released()
    assert submit(run, "sent", idempotency="at_most_once")["decision"] == "replay"
    return submit(run, "sent", idempotency="at_most_once")


SITUATIONS: dict[str, tuple[str, Callable[[World], Answer]]] = {
    "policy_denied": ("bare", lambda w: submit(w.run, "bare")),
    "no explicit allow rule matched": ("default", lambda w: submit(w.run, "other")),
    "approval_denied": ("asked", deny_without_a_word),
    "approval_timeout": ("hurried", let_it_run_out),
    "execution_token_budget_exceeded": ("models", spend_the_budget),
    "judge_unavailable": ("judged", lambda w: submit(w.run, "judged")),
    "the policy bundle cannot be read or does not compile": ("bundle-error", break_the_bundle),
    "prior attempt outcome unknown; retry refused": (
        "__indeterminate_retry",
        repeat_what_is_unknown,
    ),
    "rate_limit_exceeded": ("once", go_over_the_limit),
    "rate_limiter_unavailable": ("guarded", break_the_bucket),
}
OTHERWISE = {
    "execution_cancelled",  # told to nobody: below
    "the agent cannot be read",  # its row cannot go while it has a run
    "the policy changed while this step was decided",  # a race, which the kernel's own tests stage
}

GUIDE = read("docs/policy.md")
ROWS = {code(row.cells[0]): row for row in GUIDE.rows("What an agent is told", "reason")}
SHAPES = {code(row.cells[0]): row for row in GUIDE.rows("What an agent is told", "`decision`")}


def test_every_reason_has_its_situation() -> None:
    assert set(ROWS) == set(SITUATIONS) | OTHERWISE


@pytest.mark.parametrize("reason", SITUATIONS)
def test_the_kernel_says_so(reason: str, world: World) -> None:
    rule_id, situation = SITUATIONS[reason]
    answer = situation(world)
    decision = ROWS[reason].cells[1]
    assert (answer["decision"], answer["reason"]) == (decision, reason)
    assert answer["rule_id"] == rule_id
    shown = set(code(SHAPES[decision].cells[1]).split())
    assert set(answer) - {"decision"} == shown
    if rule_id in ("default", "bundle-error", "__indeterminate_retry"):
        assert f"`{rule_id}`" in ROWS[reason].cells[2]


def test_a_cancelled_question(world: World) -> None:
    asked = submit(world.run, "asked")
    assert set(asked) - {"decision"} == set(code(SHAPES["blocked"].cells[1]).split())
    world.client.post(f"/v0/executions/{world.run.id}/cancel").expect(204)
    step = world.client.step(world.run.id, asked["step_id"])
    assert (step["status"], step["error"]) == ("denied", {"reason": "execution_cancelled"})
    assert submit(world.run, "asked") == {"decision": "execution_terminal"}
