"""Budgets: what a run's model calls have used, compared before the next call is allowed."""

import json
from datetime import datetime, timedelta
from typing import Any

import pytest

from conftest import NewAgent, NewRun, SetPolicy
from harness import Attempt, BearerClient, rule

EXCEEDED = "execution_token_budget_exceeded"
INPUT, OUTPUT = 60, 40


def spending(maximum: int, **budget: Any) -> dict[str, Any]:
    config = {"max_tokens": maximum, **budget}
    return rule("spend", "allow", {"step_kind": "llm_call"}, budget=config)


def sse(*chunks: Any, end: str = "") -> str:
    return "".join(f"event: chunk\ndata: {json.dumps(c)}\n\n" for c in chunks) + end


OPENAI = {"prompt_tokens": INPUT, "completion_tokens": OUTPUT, "total_tokens": INPUT + OUTPUT}
ANTHROPIC = {"input_tokens": INPUT, "output_tokens": OUTPUT}
GEMINI = {"promptTokenCount": INPUT, "candidatesTokenCount": OUTPUT, "totalTokenCount": 100}
OLLAMA = {"prompt_eval_count": INPUT, "eval_count": OUTPUT, "eval_duration": 4}
BEDROCK = {"inputTokens": INPUT, "outputTokens": OUTPUT}
TEXT = {"choices": [{"delta": {"content": 'say "prompt_tokens": 9'}}]}

# What a model answered, as published agents record it: status, headers, body.
BODIES = {
    "openai": json.dumps({"id": "c", "choices": [{"message": {"content": "x"}}], "usage": OPENAI}),
    "openai responses": json.dumps({"output": [], "usage": {**ANTHROPIC, "total_tokens": 100}}),
    "openai streamed": sse(TEXT, TEXT, {"choices": [], "usage": OPENAI}, end="data: [DONE]\n\n"),
    "anthropic": json.dumps({"type": "message", "content": [], "usage": ANTHROPIC}),
    "anthropic streamed": sse(
        {
            "type": "message_start",
            "message": {"usage": {"input_tokens": INPUT, "output_tokens": 1}},
        },
        {"type": "content_block_delta", "delta": {"text": "x"}},
        {"type": "message_delta", "usage": {"output_tokens": OUTPUT}},
        {"type": "message_stop"},
    ),
    "gemini": json.dumps({"candidates": [], "usageMetadata": GEMINI}),
    "gemini streamed": sse(
        {"usageMetadata": {"promptTokenCount": INPUT, "candidatesTokenCount": 3}},
        {"usageMetadata": GEMINI},
    ),
    "ollama": json.dumps({"model": "m", "done": True, **OLLAMA}),
    "ollama streamed": "".join(  # no events: a line of JSON for each word
        json.dumps(c) + "\n" for c in ({"response": "x", "done": False}, {"done": True, **OLLAMA})
    ),
    "ollama as events": sse({"response": "x", "done": False}, {"done": True, **OLLAMA}),
    "bedrock": json.dumps({"output": {}, "usage": BEDROCK}),
}


def call(run: Attempt, number: int, body: Any) -> str:
    """A model call that is allowed and recorded with this body; returns its id."""
    result = {"status_code": 200, "headers": {}, "body": body}
    return run.record("model", {"n": number}, result, kind="llm_call")


class TestUsage:
    @pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
    def test_is_read_from_what_providers_answer(
        self, client: BearerClient, run: Attempt, policy: SetPolicy, body: str
    ) -> None:
        policy(spending(INPUT + OUTPUT + 1))
        step_id = call(run, 0, body)
        usage = {"input_tokens": INPUT, "output_tokens": OUTPUT}
        assert client.step(run.id, step_id)["usage"] == usage
        assert client.events(run.id)[-1]["payload"]["usage"] == usage
        call(run, 1, body)  # 100 of 101 were used
        denied = run.denied("model", {"n": 2}, kind="llm_call")
        assert (denied["rule_id"], denied["reason"]) == ("spend", EXCEEDED)

    @pytest.mark.parametrize("body", ["", "{}", "not JSON", '{"usage": {"prompt_tokens": "7"}}'])
    def test_an_answer_without_any(
        self, client: BearerClient, run: Attempt, policy: SetPolicy, body: str
    ) -> None:
        policy(spending(1))
        for number in range(3):
            assert "usage" not in client.step(run.id, call(run, number, body))

    def test_counts_on_model_calls_alone(
        self, client: BearerClient, run: Attempt, policy: SetPolicy
    ) -> None:
        policy(spending(1), rule("rest", "allow"))
        result = {"body": BODIES["openai"]}
        assert "usage" not in client.step(run.id, run.record("tool", 1, result))
        run.record("tool", 2, result, kind="local")
        call(run, 0, "{}")

    def test_a_failed_call_costs_nothing(self, run: Attempt, policy: SetPolicy) -> None:
        policy(spending(1))
        step_id = run.proceed("model", 0, kind="llm_call")
        run.fail_step(step_id, {"message": "no", "body": BODIES["openai"]}).expect(200)
        run.proceed("model", 1, kind="llm_call")


class TestReached:
    def test_in_the_middle_of_a_run(
        self, client: BearerClient, run: Attempt, policy: SetPolicy
    ) -> None:
        policy(spending(250), rule("rest", "allow"))
        for number in range(3):  # 0, 100 and 200 were used before each
            call(run, number, BODIES["anthropic"])
        answer = run.denied("model", {"n": 3}, kind="llm_call")
        assert answer["reason"] == EXCEEDED
        assert client.events(run.id)[-1]["payload"]["rule_id"] == "spend"
        run.record("tool", 1)  # other steps go on
        run.complete().expect(204)

    def test_by_more_than_can_be_counted(self, run: Attempt, policy: SetPolicy) -> None:
        """The largest numbers do not wrap around into an unused budget."""
        most = 2**63 - 1
        policy(spending(most))
        call(run, 0, json.dumps({"input_tokens": most, "output_tokens": most}))
        assert run.denied("model", {"n": 1}, kind="llm_call")["reason"] == EXCEEDED

    @pytest.mark.parametrize(("maximum", "allowed"), [(99, False), (100, False), (101, True)])
    def test_exactly(self, run: Attempt, policy: SetPolicy, maximum: int, allowed: bool) -> None:
        policy(spending(maximum))
        call(run, 0, BODIES["openai"])
        answer = run.submit("model", 1, kind="llm_call").expect(200).json
        assert (answer["decision"] == "proceed") == allowed

    def test_of_each_execution(self, new_run: NewRun, policy: SetPolicy) -> None:
        policy(spending(50))
        for run in (new_run(), new_run()):
            call(run, 0, BODIES["gemini"])
            run.denied("model", 1, kind="llm_call")

    def test_of_a_session_is_the_executions_own(self, new_run: NewRun, policy: SetPolicy) -> None:
        """Without a session."""
        policy(spending(50, scope="session"))
        for run in (new_run(), new_run()):
            call(run, 0, BODIES["gemini"])
            run.denied("model", 1, kind="llm_call")

    def test_of_a_session(self, new_run: NewRun, policy: SetPolicy, session: str) -> None:
        """All its executions count, those that failed as well; another session does not."""
        policy(spending(250, scope="session"))
        first = new_run(session=session)
        call(first, 0, BODIES["openai"])
        first.fail().expect(204)
        second = new_run(session=session)
        call(second, 0, BODIES["anthropic"])
        call(second, 1, BODIES["ollama"])  # 200 of 250 were used
        assert second.denied("model", {"n": 2}, kind="llm_call")["reason"] == EXCEEDED
        second.complete().expect(204)
        assert new_run(session=session).denied("model", 0, kind="llm_call")["rule_id"] == "spend"
        call(new_run(session=f"{session}-2"), 0, BODIES["openai"])
        call(new_run(), 0, BODIES["openai"])

    def test_of_a_session_with_several_agents(
        self,
        client: BearerClient,
        new_run: NewRun,
        policy: SetPolicy,
        new_agent: NewAgent,
        session: str,
    ) -> None:
        policy(spending(100, scope="session"))
        other = new_agent()
        created = client.create(other.id, session=session)
        theirs = other.take_attempt(created["id"])
        call(theirs, 0, BODIES["gemini"])  # no policy is in its way
        theirs.complete().expect(204)
        mine = new_run(session=session)
        assert mine.denied("model", 0, kind="llm_call")["reason"] == EXCEEDED

    def test_an_execution_in_a_session_counts_for_itself(
        self, new_run: NewRun, policy: SetPolicy, session: str
    ) -> None:
        policy(spending(50))
        for _ in range(2):
            run = new_run(session=session)
            call(run, 0, BODIES["openai"])
            run.denied("model", 1, kind="llm_call")
            run.complete().expect(204)

    def test_a_person_may_go_over_that_of_a_session(
        self, client: BearerClient, new_run: NewRun, policy: SetPolicy, session: str
    ) -> None:
        policy(spending(50, scope="session", on_exceed="require_approval"))
        first = new_run(session=session)
        call(first, 0, BODIES["openai"])
        first.complete().expect(204)
        run = new_run(session=session)
        client.grant(run.hold("model", 0, kind="llm_call")).expect(204)
        run.redelivered().proceed("model", 0, kind="llm_call")

    def test_a_person_may_go_over_it(
        self, client: BearerClient, run: Attempt, policy: SetPolicy
    ) -> None:
        policy(spending(50, on_exceed="require_approval"))
        call(run, 0, BODIES["ollama"])
        approval_id = run.hold("model", {"n": 1}, kind="llm_call")
        assert client.approval(approval_id)["message"] == EXCEEDED
        client.grant(approval_id).expect(204)
        later = run.redelivered()
        later.replay("model", {"n": 0}, kind="llm_call")
        later.proceed("model", {"n": 1}, kind="llm_call")

    def test_a_person_is_asked_as_the_rule_says(
        self, client: BearerClient, run: Attempt, policy: SetPolicy
    ) -> None:
        config = {"approvers": ["alice"], "timeout": "1h", "message": "this run is dear"}
        limit = {"max_tokens": 50, "on_exceed": "require_approval"}
        policy(rule("spend", "allow", budget=limit, approval_config=config))
        call(run, 0, BODIES["ollama"])
        found = client.approval(run.hold("model", {"n": 1}, kind="llm_call"))
        assert (found["approvers"], found["message"]) == (["alice"], "this run is dear")
        asked, ends = (datetime.fromisoformat(found[at]) for at in ("created_at", "timeout_at"))
        assert ends - asked == timedelta(hours=1)
        client.grant(found["id"], decided_by="bob").expect(403, "forbidden")

    def test_replays_cost_nothing(self, run: Attempt, policy: SetPolicy) -> None:
        policy(spending(150))
        call(run, 0, BODIES["openai"])
        later = run
        for _ in range(3):
            later = later.released()
            later.replay("model", {"n": 0}, kind="llm_call")
        call(later, 1, BODIES["openai"])
        later.denied("model", {"n": 2}, kind="llm_call")

    def test_calls_before_the_policy_count(self, run: Attempt, policy: SetPolicy) -> None:
        call(run, 0, BODIES["openai"])
        policy(spending(100))
        run.denied("model", 1, kind="llm_call")

    def test_any_rule_may_have_one(self, run: Attempt, policy: SetPolicy) -> None:
        """A budget stands on a rule; what it compares are the run's tokens."""
        tools = rule("tools", "allow", {"target": "search"}, budget={"max_tokens": 100})
        policy(tools, rule("rest", "allow"))
        run.record("search", 0)
        call(run, 0, BODIES["openai"])
        assert run.denied("search", 1)["rule_id"] == "tools"
