"""Every decision, and every way for a body to end."""

from typing import Any

import pytest
from conftest import Bench
from scripted_kernel import error
from starlette.responses import JSONResponse

import rebuno
from rebuno import (
    Blocked,
    PolicyError,
    RateLimited,
    RebunoError,
    Result,
    Terminated,
    ToolError,
    execution,
    previous,
    step,
    tool,
)


@tool
async def send(to: str = "x") -> str:
    return f"sent to {to}"


async def sends(input: Any) -> Any:
    return await send()


async def test_the_context(bench: Bench) -> None:
    async def process(input: Any) -> Any:
        context = execution()
        assert (context.id, context.agent_id, context.input) == ("e9", "a", {"n": 1})
        assert (context.status, context.session) == ("running", "s")
        assert (context.dispatch_id, context.dispatch_attempt) == ("d7", 3)
        assert (context.suspension, context.step_id) == (None, "")
        assert await previous() == await context.previous() == {"turn": 1}
        return Result({"o": 1}, {"turn": 2})

    bench.kernel.add("e9", input={"n": 1}, session="s")
    bench.kernel.previous = {"turn": 1}
    agent = bench.agent(process)
    await bench.deliver(agent, "e9", "d7", 3)
    await agent.join()
    assert bench.kernel.names() == ["get", "previous", "previous", "complete"]
    assert bench.kernel.calls[-1].body == {"output": {"o": 1}, "state": {"turn": 2}}


async def test_headers_of_a_dispatch(bench: Bench) -> None:
    await bench.output(sends)
    first, submission, outcome, end = bench.kernel.calls
    assert "rebuno-dispatch-id" not in first.headers
    for call in (submission, outcome, end):
        assert call.headers["rebuno-dispatch-id"] == "d1"
        assert call.headers["rebuno-dispatch-attempt"] == "1"
    assert submission.headers["idempotency-key"]
    assert "idempotency-key" not in outcome.headers


async def test_each_submission_has_its_own_key(bench: Bench) -> None:
    async def process(input: Any) -> None:
        await send()
        await send()

    await bench.output(process)
    keys = {call.headers["idempotency-key"] for call in bench.kernel.named("steps")}
    assert len(keys) == 2


@pytest.mark.parametrize(
    ("recorded", "text"),
    [
        ({"message": "m", "reason": "r"}, "m"),
        ({"reason": "indeterminate"}, "indeterminate"),
        ({"other": 1}, '{"other":1}'),
        ("text", '"text"'),
    ],
)
async def test_replay_of_an_error(bench: Bench, recorded: Any, text: str) -> None:
    async def process(input: Any) -> None:
        with pytest.raises(ToolError) as caught:
            await send()
        assert (caught.value.args[0], caught.value.tool_id) == (text, "send")
        assert caught.value.step_id == "s1"
        raise caught.value

    bench.kernel.decide("send", decision="replay", error=recorded)
    assert await bench.failure(process) == f"tool_error: send: {text}"
    assert bench.kernel.names() == ["get", "steps", "fail"]


async def test_replay_with_an_error_of_null_is_a_success(bench: Bench) -> None:
    bench.kernel.decide("send", decision="replay", error=None, result=[1])
    assert await bench.output(sends) == [1]


async def test_denied(bench: Bench) -> None:
    async def process(input: Any) -> None:
        with pytest.raises(PolicyError) as caught:
            await execution().invoke_tool("pay", {})
        assert (caught.value.args[0], caught.value.rule_id) == ("too much", "r1")
        raise caught.value

    bench.kernel.decide("pay", decision="denied", reason="too much", rule_id="r1")
    assert await bench.failure(process) == "policy_denied: too much"


@pytest.mark.parametrize(("reason", "text"), [("hourly", "hourly"), ("", "rate_limit_exceeded")])
async def test_rate_limited(bench: Bench, reason: str, text: str) -> None:
    async def process(input: Any) -> None:
        with pytest.raises(RateLimited) as caught:
            await send()
        assert caught.value.reason == text
        raise RuntimeError("wrapped by a framework") from caught.value

    bench.kernel.decide("send", decision="rate_limited", reason=reason)
    assert await bench.failure(process) == text


STOPS = [
    ({"decision": "blocked", "approval_id": "p1"}, Blocked),
    ({"decision": "blocked"}, Blocked),
    ({"decision": "execution_blocked"}, Blocked),
    ({"decision": "execution_terminal"}, Terminated),
]


@pytest.mark.parametrize(("decision", "kind"), STOPS, ids=str)
@pytest.mark.parametrize("then", ["raises", "swallows", "raises another"])
async def test_a_stop_leaves_the_execution(
    bench: Bench, decision: Any, kind: type[RebunoError], then: str
) -> None:
    async def process(input: Any) -> None:
        try:
            await send()
        except kind as exc:
            assert execution().suspension is exc  # noqa: PT017
            if then == "raises":
                raise
        if then == "raises another":
            raise ValueError("after it")

    bench.kernel.decide("send", **decision)
    assert await bench.run(process) is None
    assert bench.kernel.names() == ["get", "steps"]


async def test_the_first_stop_is_remembered(bench: Bench) -> None:
    seen = []

    async def process(input: Any) -> None:
        for _ in range(2):
            with pytest.raises(RebunoError):
                await send()
        seen.append(execution().suspension)

    bench.kernel.decide("send", decision="blocked", approval_id="p1")
    bench.kernel.decide("send", decision="execution_terminal")
    await bench.run(process)
    assert isinstance(seen[0], Blocked)
    assert "p1" in str(seen[0])


async def test_an_unknown_decision(bench: Bench) -> None:
    bench.kernel.decide("send", decision="perhaps")
    reason = await bench.failure(sends)
    assert reason.startswith("agent_error: RebunoError: unexpected step decision: perhaps")


async def test_an_envelope_of_a_submission_raises_as_its_class(bench: Bench) -> None:
    async def process(input: Any) -> None:
        with pytest.raises(rebuno.ValidationError, match="no such resource"):
            await send()
        with pytest.raises(Terminated):
            await send()
        assert isinstance(execution().suspension, Terminated)

    bench.kernel.answer("steps", error("validation_error", 400, "no such resource"))
    bench.kernel.answer("steps", error("execution_terminal", 409))
    assert await bench.run(process) is None


async def test_a_superseded_call_leaves_the_execution(bench: Bench) -> None:
    bench.kernel.answer("steps", error("lease_superseded", 409))
    assert await bench.run(sends) is None


async def test_an_envelope_of_an_outcome_raises_as_its_class(bench: Bench) -> None:
    async def process(input: Any) -> None:
        with pytest.raises(rebuno.NotFoundError):
            await send()

    bench.kernel.answer("complete", error("not_found", 404))
    await bench.output(process)


async def test_what_the_outcome_is_answered_does_not_matter(bench: Bench) -> None:
    bench.kernel.answer("complete", JSONResponse({"decision": "replay", "error": {"reason": "x"}}))
    assert await bench.output(sends) == "sent to x"


async def test_a_failure_that_cannot_be_reported_is_still_the_tools(bench: Bench) -> None:
    @tool
    async def bad() -> None:
        raise ValueError("boom")

    async def process(input: Any) -> None:
        with pytest.raises(ToolError, match="boom"):
            await bad()

    bench.kernel.answer("fail", error("internal_error", 500))
    await bench.output(process)


async def test_a_failure_of_a_superseded_attempt(bench: Bench) -> None:
    @tool
    async def bad() -> None:
        raise ValueError("boom")

    async def process(input: Any) -> None:
        with pytest.raises(rebuno.LeaseSuperseded):
            await bad()
        raise rebuno.LeaseSuperseded

    bench.kernel.answer("fail", error("lease_superseded", 409))
    assert await bench.run(process) is None


async def test_a_tool_error_of_the_body_passes_as_it_is(bench: Bench) -> None:
    mine = ToolError("no stock", "shop", retryable=True)

    async def process(input: Any) -> None:
        async def body() -> None:
            raise mine

        with pytest.raises(ToolError) as caught:
            await execution().invoke_tool("buy", {}, run=body)
        assert caught.value is mine

    await bench.output(process)
    assert bench.kernel.named("fail")[0].body == {"error": {"message": "shop: no stock"}}


REFUSALS = [
    Blocked("b"),
    Terminated("t"),
    rebuno.LeaseSuperseded(),
    PolicyError("p", "r"),
    RateLimited("l"),
]


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: type(refusal).__name__)
@pytest.mark.parametrize("wrapped", [False, True])
async def test_a_refusal_in_a_body_leaves_the_step_executing(
    bench: Bench, refusal: RebunoError, wrapped: bool
) -> None:
    async def process(input: Any) -> None:
        async def body() -> None:
            if wrapped:
                raise RuntimeError("of a model SDK") from refusal
            raise refusal

        with pytest.raises(type(refusal)) as caught:
            await step("s", body)
        assert caught.value.args == refusal.args
        if isinstance(refusal, Blocked | Terminated):
            assert execution().suspension is refusal

    await bench.run(process)
    assert [name for name in bench.kernel.names() if name == "fail"] == []
    assert all("/steps/" not in call.path for call in bench.kernel.calls)


async def test_a_result_that_is_not_json_fails_the_step(bench: Bench) -> None:
    async def process(input: Any) -> None:
        for value in ({1}, float("inf")):
            with pytest.raises(TypeError, match="the result of 's' cannot be JSON"):
                await step("s", lambda value=value: value)

    await bench.output(process)
    for call in bench.kernel.named("fail"):
        assert call.body["error"]["message"].startswith("the result of 's' cannot be JSON")


async def test_a_result_that_is_too_large_fails_the_step(bench: Bench) -> None:
    too_large = error("payload_too_large", 413, "a body may have 10485760 bytes")

    async def process(input: Any) -> None:
        with pytest.raises(rebuno.APIError) as caught:
            await step("s", lambda: "x" * 98)
        assert caught.value.code == "payload_too_large"
        step_id, _ = await execution().begin_llm("m", {})
        with pytest.raises(rebuno.APIError):
            await execution().record_llm(step_id, "y" * 18)

    bench.kernel.answer("complete", too_large, times=2)
    await bench.output(process)
    first, second = (call.body["error"]["message"] for call in bench.kernel.named("fail"))
    assert "100 bytes" in first
    assert "10485760" in first
    assert "20 bytes" in second


async def test_an_output_that_is_too_large_fails_the_execution(bench: Bench) -> None:
    too_large = error("payload_too_large", 413, "a body may have 10485760 bytes")
    bench.kernel.answer("complete", too_large)
    reason = await bench.failure(lambda given: "x" * 100)
    assert reason.startswith("agent_error: APIError: the output of ")
    assert "10485760" in reason


@pytest.mark.parametrize("result", [{1}, Result(1, {2}), Result(float("nan"))])
async def test_an_output_that_is_not_json_fails_the_execution(bench: Bench, result: Any) -> None:
    reason = await bench.failure(lambda given: result)
    assert reason.startswith("agent_error: TypeError: the handler's ")


async def test_state_is_sent_only_when_there_is_one(bench: Bench) -> None:
    call = await bench.run(lambda given: Result("o"))
    assert call is not None
    assert call.body == {"output": "o"}


async def test_handler_errors(bench: Bench) -> None:
    def raises(exc: BaseException) -> Any:
        async def process(input: Any) -> None:
            raise exc

        return process

    assert await bench.failure(raises(KeyError("k"))) == "agent_error: KeyError: 'k'"
    assert await bench.failure(raises(PolicyError("no_go"))) == "no_go"
    assert await bench.failure(raises(ToolError("m", "t"))) == "tool_error: t: m"
    group = ExceptionGroup("g", [PolicyError("in a task group")])
    assert await bench.failure(raises(group)) == "policy_denied: in a task group"
    for stop in (Blocked(), Terminated(), rebuno.LeaseSuperseded()):
        assert await bench.run(raises(stop)) is None


async def test_model_calls_by_hand(bench: Bench) -> None:
    async def process(input: Any) -> Any:
        context = execution()
        step_id, decision = await context.begin_llm("gpt", {"model": "gpt"})
        assert (step_id, decision.decision) == ("s1", "proceed")
        await context.publish_llm_delta(step_id, 0, "hé")
        await context.record_llm(step_id, {"text": "hé"})
        step_id, decision = await context.begin_llm("gpt", {"model": "gpt"})
        assert (step_id, decision.decision) == ("s2", "replay")
        return decision.result

    bench.kernel.decide("gpt", decision="proceed")
    bench.kernel.decide("gpt", decision="replay", result={"text": "hé"})
    assert await bench.output(process) == {"text": "hé"}
    assert bench.kernel.names() == ["get", "steps", "stream", "complete", "steps", "complete"]
    assert bench.kernel.calls[1].body == {
        "kind": "llm_call",
        "target": "gpt",
        "args": {"model": "gpt"},
        "idempotency": "safe_to_retry",
        "resources": [],
    }
    assert bench.kernel.calls[2].body == {"seq": 0, "data": "hé"}
    assert bench.kernel.calls[3].body == {"result": {"text": "hé"}}


async def test_model_calls_are_refused_like_others(bench: Bench) -> None:
    async def process(input: Any) -> Any:
        with pytest.raises(PolicyError, match="no_models"):
            await execution().begin_llm("gpt", {})

    bench.kernel.decide("gpt", decision="denied", reason="no_models")
    await bench.output(process)


async def test_a_step_of_any_kind(bench: Bench) -> None:
    async def process(input: Any) -> Any:
        context = execution()
        assert await context.invoke_tool("mark", [1], kind="local") is None
        return await context.invoke_tool(
            "t", 1, idempotency="at_most_once", run=lambda: 7, resources=["r"]
        )

    assert await bench.output(process) == 7
    first, second = (call.body for call in bench.kernel.named("steps"))
    assert (first["kind"], first["args"]) == ("local", [1])
    assert (second["args"], second["idempotency"], second["resources"]) == (
        1,
        "at_most_once",
        ["r"],
    )


async def test_a_due_capture_of_a_resource_that_is_not_open(bench: Bench) -> None:
    resources = [{"key": "ws", "generation": 4, "due": True}, {"key": "db", "generation": 1}]
    bench.kernel.decide("send", decision="proceed", resources=resources)
    await bench.output(sends)
    body = bench.kernel.named("complete")[0].body
    assert body == {
        "result": "sent to x",
        "capture_failures": [
            {
                "key": "ws",
                "generation": 4,
                "error": "resource() was not called in this dispatch",
            }
        ],
    }


async def test_ended_executions_run_nothing(bench: Bench) -> None:
    def process(input: Any) -> None:
        raise AssertionError

    for status in ("completed", "failed", "cancelled"):
        bench.kernel.add("e1", status=status)
        agent = bench.agent(process)
        await bench.deliver(agent)
        await agent.join()
    assert bench.kernel.names() == ["get"] * 3


async def test_an_execution_that_cannot_be_read_is_left(bench: Bench) -> None:
    agent = bench.agent(sends)
    await bench.deliver(agent, "unknown")
    await agent.join()
    assert bench.kernel.names() == ["get"]


async def test_a_final_report_that_fails_is_only_logged(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    for answer in (error("conflict", 409), error("execution_terminal", 409)):
        bench.kernel.answer("complete", answer)
        await bench.run(lambda given: 1)
    assert "given up, to be delivered again" in caplog.text
