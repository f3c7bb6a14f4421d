"""Model calls that the kernel does not let through: HTTP answers that no SDK repeats or hides."""

import asyncio
from typing import Any

import httpx2
import pytest
from conftest import Bench
from providers import URL, Provider, said, streamed
from scripted_kernel import error

from rebuno import (
    Blocked,
    LeaseSuperseded,
    PolicyError,
    RateLimited,
    RebunoError,
    Terminated,
    execution,
    raise_for_refusal,
    step,
)

ASK = {"model": "m1"}

# the kernel's decision; the status and the words of the answer; what it is made into again
REFUSALS: list[tuple[dict[str, Any], int, str, type[RebunoError], str]] = [
    ({"decision": "blocked", "approval_id": "p1"}, 403, "blocked", Blocked, "step blocked"),
    ({"decision": "blocked"}, 403, "blocked", Blocked, "step blocked"),
    ({"decision": "execution_blocked"}, 403, "blocked", Blocked, "step blocked"),
    (
        {"decision": "denied", "reason": "no_models", "rule_id": "r"},
        403,
        "denied reason=no_models",
        PolicyError,
        "no_models",
    ),
    (
        {"decision": "denied", "reason": "not on a\nFriday, 'é'"},
        403,
        "denied reason=not on a Friday, 'é'",
        PolicyError,
        "not on a Friday, 'é",
    ),
    ({"decision": "denied", "reason": ""}, 403, "denied", PolicyError, "policy_denied"),
    (
        {"decision": "rate_limited", "reason": "hourly"},
        429,
        "rate_limited reason=hourly",
        RateLimited,
        "hourly",
    ),
    (
        {"decision": "rate_limited"},
        429,
        "rate_limited reason=rate_limit_exceeded",
        RateLimited,
        "rate_limit_exceeded",
    ),
    (
        {"decision": "execution_terminal"},
        403,
        "execution_terminal",
        Terminated,
        "the execution has already ended",
    ),
]


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize(("decision", "status", "words", "kind", "text"), REFUSALS)
async def test_a_refusal(
    bench: Bench,
    decision: dict[str, Any],
    status: int,
    words: str,
    kind: type[RebunoError],
    text: str,
    is_streamed: bool,
) -> None:
    bench.kernel.decide("m1", **decision)
    provider = Provider()
    seen: list[httpx2.Response] = []

    async def process(given: Any) -> Any:
        answer = await provider.client().post(URL, json=ASK | {"stream": is_streamed})
        seen.append(answer)
        with pytest.raises(kind) as caught:
            raise_for_refusal(RuntimeError(f"Error code: {status} - {answer.json()}"))
        assert caught.value.args[0] == text
        answer.raise_for_status()

    call = await bench.run(process)
    (answer,) = seen
    assert answer.status_code == status
    assert answer.json() == {
        "error": {"type": "rebuno_refusal", "message": f"rebuno_refusal: {words}"}
    }
    assert answer.headers["x-should-retry"] == "false"
    assert answer.headers["content-type"] == "application/json"
    assert provider.requests == []
    is_stop = issubclass(kind, Blocked | Terminated)
    assert (call is None) == is_stop  # the kernel has it as it is; a swallowed stop counts, too
    assert [path for path in bench.kernel.names() if path in ("complete", "fail")] == (
        [] if is_stop else ["fail"]
    )


async def test_a_lost_lease(bench: Bench) -> None:
    bench.kernel.answer("steps", error("lease_superseded", 409))
    seen: list[Any] = []

    async def process(given: Any) -> Any:
        answer = await Provider().client().post(URL, json=ASK)
        seen.extend([answer.status_code, answer.headers["x-should-retry"]])
        seen.append(answer.json()["error"]["message"])
        raise RuntimeError(answer.text)

    assert await bench.run(process) is None
    assert seen == [409, "false", "rebuno_refusal: lease_superseded"]


async def test_a_lease_that_is_lost_during_the_call(bench: Bench) -> None:
    bench.kernel.answer("complete", error("lease_superseded", 409))
    statuses: list[int] = []

    async def process(given: Any) -> Any:
        answer = await Provider(said({})).client().post(URL, json=ASK)
        statuses.append(answer.status_code)
        raise RuntimeError(answer.text)

    assert await bench.run(process) is None
    assert statuses == [409]
    assert bench.kernel.named("fail") == []


async def test_an_execution_that_ended_during_the_call(bench: Bench) -> None:
    bench.kernel.answer("complete", error("execution_terminal", 409))
    statuses: list[Any] = []

    async def process(given: Any) -> Any:
        answer = await Provider(said({})).client().post(URL, json=ASK)
        statuses.extend([answer.status_code, type(execution().suspension)])

    assert await bench.run(process) is None
    assert statuses == [403, Terminated]


async def test_the_kernels_own_errors_are_raised(bench: Bench) -> None:
    bench.kernel.answer("steps", error("validation_error", 400, "bad"))
    bench.kernel.decide("m1", decision="perhaps")

    async def process(given: Any) -> Any:
        kinds = []
        for _ in range(2):
            with pytest.raises(RebunoError) as caught:
                await Provider().client().post(URL, json=ASK)
            kinds.append(type(caught.value).__name__)
        return kinds

    assert await bench.output(process) == ["ValidationError", "RebunoError"]


async def test_a_gateway_that_refuses(bench: Bench) -> None:
    """The inner transport may steer the execution, too: the step stays executing."""

    async def process(given: Any) -> Any:
        answer = await Provider(LeaseSuperseded()).client().post(URL, json=ASK)
        return answer.status_code

    assert await bench.output(process) == 409
    assert [call for call in bench.kernel.calls if "/steps/" in call.path] == []


async def test_after_a_stop_that_was_swallowed(bench: Bench) -> None:
    """The kernel refuses the model calls of a framework that goes on."""
    bench.kernel.decide("send", decision="blocked", approval_id="p1")
    bench.kernel.decide("m1", decision="execution_blocked")

    async def process(given: Any) -> Any:
        try:
            await step("send", lambda: 1)
        except Exception:
            answer = await Provider().client().post(URL, json=ASK)
            assert "rebuno_refusal: blocked" in answer.text
            return "swallowed"

    assert await bench.run(process) is None


async def test_a_refused_call_in_a_loop_of_its_own_lets_others_end(bench: Bench) -> None:
    """Such a loop ends with the first exception, and cancels what is left on it: not before."""
    bench.kernel.decide("m1", decision="blocked", approval_id="p1")
    ended: list[str] = []

    async def main() -> Any:
        began = asyncio.Event()

        async def slow() -> str:
            began.set()
            await asyncio.sleep(0.05)
            ended.append("slow")
            return "done"

        async def ask() -> Any:
            await began.wait()
            async with Provider().client() as http:
                (await http.post(URL, json=ASK)).raise_for_status()

        await asyncio.gather(step("slow", slow), ask())

    assert await bench.run(lambda given: asyncio.run(main())) is None
    assert ended == ["slow"]
    assert [call.path.rsplit("/", 2)[1:] for call in bench.kernel.named("complete")] == [
        ["s1", "complete"]
    ]


async def test_a_stream_that_a_framework_wraps(bench: Bench) -> None:
    """A stop that comes at the end of a stream is raised as itself."""
    bench.kernel.answer("complete", error("execution_terminal", 409))

    async def process(given: Any) -> Any:
        try:
            async with (
                Provider(streamed(b"data: 1\n\n")).client() as http,
                http.stream("POST", URL, json=ASK) as answer,
            ):
                await answer.aread()
        except Terminated as exc:
            raise RuntimeError("by a framework") from exc

    assert await bench.run(process) is None
