"""What the kernel said, found in what a framework or a model's SDK made of it."""

from typing import Any

import pytest
from conftest import Bench

import rebuno
from rebuno import (
    Blocked,
    LeaseSuperseded,
    PolicyError,
    RateLimited,
    RebunoError,
    Terminated,
    ToolError,
    execution,
    raise_for_refusal,
    step,
    tool,
)

OPENAI = "Error code: 403 - {'error': {'type': 'rebuno_refusal', 'message': 'rebuno_refusal: %s'}}"
BODY = '{"error":{"type":"rebuno_refusal","message":"rebuno_refusal: %s"}}'

# the marker's text, the error, its first argument
MARKERS: list[tuple[str, type[RebunoError], str | None]] = [
    ("denied reason=no_models", PolicyError, "no_models"),
    ("denied reason=not on a Friday", PolicyError, "not on a Friday"),
    ("denied", PolicyError, "policy_denied"),
    ("denied reason=", PolicyError, "policy_denied"),
    ("rate_limited reason=hourly", RateLimited, "hourly"),
    ("rate_limited", RateLimited, "rate_limit_exceeded"),
    ("blocked", Blocked, None),
    ("execution_terminal", Terminated, None),
    ("lease_superseded", LeaseSuperseded, None),
]


@pytest.mark.parametrize(("text", "kind", "first"), MARKERS)
@pytest.mark.parametrize("form", ["%s", "rebuno_refusal: %s", OPENAI, BODY, repr(BODY)])
def test_a_marker(form: str, text: str, kind: type[RebunoError], first: str | None) -> None:
    exc = RuntimeError(form % text)
    if form == "%s":  # the words alone are no marker
        raise_for_refusal(exc)
        return
    for raised in (exc, caused(ValueError("by a framework"), exc)):
        with pytest.raises(kind) as caught:
            raise_for_refusal(raised)
        assert type(caught.value) is kind
        assert caught.value.__cause__ is raised
        if first is not None:
            assert caught.value.args[0] == first


def test_a_reason_ends_with_its_line() -> None:
    with pytest.raises(PolicyError) as caught:
        raise_for_refusal(RuntimeError("x rebuno_refusal: denied reason=a 'b' {c\nmore"))
    assert caught.value.args[0] == "a 'b' {c"


def test_what_is_no_refusal() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    for exc in (ValueError("refused"), RuntimeError("rebuno_refusal: perhaps"), Mute()):
        raise_for_refusal(exc)
        raise_for_refusal(caused(ValueError(), exc))


def caused(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "refusal",
    [Blocked("b"), Terminated("t"), LeaseSuperseded(), PolicyError("p", "r"), RateLimited("l")],
)
def test_the_errors_themselves(refusal: RebunoError) -> None:
    with pytest.raises(type(refusal)) as caught:
        raise_for_refusal(refusal)
    assert caught.value is refusal
    assert refusal.__cause__ is None
    wrapped = caused(RuntimeError("by a framework"), refusal)
    for exc in (wrapped, ExceptionGroup("g", [ValueError(), wrapped])):
        with pytest.raises(type(refusal)) as caught:
            raise_for_refusal(exc)
        assert caught.value.args == refusal.args
        assert caught.value.__cause__ is exc
    assert getattr(caught.value, "rule_id", "r") == "r"


def test_a_tool_error_is_an_outcome_of_its_own() -> None:
    raise_for_refusal(caused(ToolError("m"), PolicyError("p")))
    raise_for_refusal(caused(ToolError("m"), ExceptionGroup("g", [Blocked()])))
    with pytest.raises(PolicyError, match="no_models"):
        raise_for_refusal(ToolError(OPENAI % "denied reason=no_models"))


def test_the_search_ends() -> None:
    exc: Exception = PolicyError("p")
    for _ in range(9):
        exc = caused(RuntimeError(), exc)
    with pytest.raises(PolicyError):
        raise_for_refusal(exc)
    raise_for_refusal(caused(RuntimeError(), exc))
    first, second = RuntimeError(), RuntimeError()
    first.__cause__, second.__cause__ = second, first
    raise_for_refusal(first)


# what a handler dies of, what the execution fails with (None: it is left as it is)
DEATHS: list[tuple[Exception, str | None]] = [
    (RuntimeError(OPENAI % "denied reason=no_models"), "no_models"),
    (RuntimeError(OPENAI % "denied reason=not on a Friday"), "policy_denied: not on a Friday"),
    (RuntimeError(OPENAI % "rate_limited"), "rate_limit_exceeded"),
    (caused(ValueError("x"), PolicyError("too_late", "r")), "too_late"),
    (caused(ValueError("x"), RateLimited("hourly")), "hourly"),
    (RuntimeError(OPENAI % "blocked"), None),
    (RuntimeError(OPENAI % "execution_terminal"), None),
    (RuntimeError(OPENAI % "lease_superseded"), None),
    (caused(ValueError("x"), Blocked()), None),
    (ExceptionGroup("g", [caused(ValueError("x"), Terminated("t"))]), None),
]


@pytest.mark.parametrize(("death", "reason"), DEATHS, ids=lambda value: str(value)[:60])
async def test_what_a_handler_dies_of(bench: Bench, death: Exception, reason: str | None) -> None:
    def process(given: Any) -> None:
        raise death

    if reason is None:
        assert await bench.run(process) is None
        assert bench.kernel.names() == ["get"]
    else:
        assert await bench.failure(process) == reason


async def test_a_model_that_was_refused_inside_a_tool(bench: Bench) -> None:
    """The tool's step stays executing, and what the handler gets is the refusal."""

    @tool
    async def summarize() -> str:
        try:
            raise ConnectionError("request failed") from RuntimeError(
                OPENAI % "denied reason=no_gpt"
            )
        except ConnectionError as exc:
            raise RuntimeError("by a framework") from exc

    async def process(given: Any) -> Any:
        return await summarize()

    # A tool tells the model of a refusal; a step raises it.
    assert await bench.output(process) == "summarize not allowed. reason: no_gpt"

    async def steps(given: Any) -> Any:
        await step("s", lambda: raise_for_refusal(PolicyError("no_gpt", "r1")))

    assert await bench.failure(steps) == "no_gpt"
    assert all("/steps/" not in call.path for call in bench.kernel.calls)


async def test_a_refusal_that_user_code_looks_for(bench: Bench) -> None:
    """What a broad `except` should do."""
    bench.kernel.decide("send", decision="blocked", approval_id="p1")
    seen: list[str] = []

    async def process(given: Any) -> str:
        try:
            await step("send", lambda: 1)
        except Exception as exc:
            assert execution().suspension is exc  # noqa: PT017
            raise_for_refusal(exc)
            seen.append("not reached")
        return "not reached"

    assert await bench.run(process) is None
    assert seen == []
    assert rebuno.raise_for_refusal is raise_for_refusal
