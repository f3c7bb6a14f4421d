"""What is repeated, what is not, and for how long."""

from typing import Any

import httpx2
import pytest
from conftest import Bench
from scripted_kernel import error

from rebuno import APIError, NetworkError, execution, previous, step
from rebuno._transport import BRIEF, LASTING, Patience

DOWN = [httpx2.ConnectError("down"), httpx2.ReadTimeout("slow"), error("unavailable", 503)]
IDS = ["refused", "timeout", "503"]


def test_pauses_double_up_to_the_longest() -> None:
    patience = Patience(attempts=9, total_s=60, first_s=0.1, longest_s=1.0)
    assert [patience.pause_s(n, 1.0) for n in (1, 2, 3, 4, 5, 6)] == [0.1, 0.2, 0.4, 0.8, 1, 1]
    assert patience.pause_s(1, 0.0) == pytest.approx(0.05)  # never less than half


@pytest.mark.parametrize("failure", DOWN, ids=IDS)
@pytest.mark.parametrize("call", ["get", "steps", "complete", "previous"])
async def test_safe_calls_of_an_agent_are_repeated(bench: Bench, failure: Any, call: str) -> None:
    async def process(input: Any) -> Any:
        return [await step("s", lambda: 1), await previous()]

    bench.kernel.answer(call, failure, times=3)
    assert await bench.output(process) == [1, None]
    assert bench.time.pauses == pytest.approx([0.1, 0.2, 0.4])
    assert len(bench.kernel.named(call)) == 4 + (call == "complete")


async def test_failures_are_repeated_too(bench: Bench) -> None:
    async def process(input: Any) -> None:
        raise ValueError("x")

    bench.kernel.answer("fail", httpx2.ReadError("reset"), times=2)
    assert await bench.failure(process) == "agent_error: ValueError: x"


async def test_a_repeated_submission_is_the_same_and_signed_anew(bench: Bench) -> None:
    bench.kernel.answer("steps", httpx2.ReadTimeout("lost"), times=6)
    await bench.output(lambda given: step("s", lambda: 1))
    calls = bench.kernel.named("steps")
    assert len({call.headers["idempotency-key"] for call in calls}) == 1
    assert len({call.raw for call in calls}) == 1
    assert len({call.headers["rebuno-timestamp"] for call in calls}) > 1
    assert len({call.headers["rebuno-signature"] for call in calls}) > 1


async def test_the_body_runs_once(bench: Bench) -> None:
    ran: list[int] = []
    bench.kernel.answer("steps", httpx2.ReadTimeout("lost"), times=2)
    bench.kernel.answer("complete", httpx2.ReadTimeout("lost"), times=2)
    await bench.output(lambda given: step("s", lambda: ran.append(1)))
    assert ran == [1]


async def test_patience_ends(bench: Bench) -> None:
    async def process(input: Any) -> None:
        with pytest.raises(NetworkError, match="no answer from the kernel at http://kernel: down"):
            await step("s", lambda: 1)

    bench.kernel.answer("steps", httpx2.ConnectError("down"), times=100)
    await bench.output(process)
    assert len(bench.kernel.named("steps")) == LASTING.attempts
    assert sum(bench.time.pauses) < LASTING.total_s + LASTING.longest_s


async def test_patience_ends_by_time(bench: Bench) -> None:
    def slow(call: Any) -> Any:
        bench.time.now_s += 119
        return error("unavailable", 503)

    async def process(input: Any) -> None:
        with pytest.raises(APIError):
            await step("s", lambda: 1)

    bench.kernel.answer("steps", slow, times=100)
    await bench.output(process)
    assert len(bench.kernel.named("steps")) == 2


@pytest.mark.parametrize("code", [("internal_error", 500), ("conflict", 409), ("forbidden", 403)])
async def test_other_answers_are_not_repeated(bench: Bench, code: tuple[str, int]) -> None:
    async def process(input: Any) -> None:
        with pytest.raises(APIError):
            await step("s", lambda: 1)

    bench.kernel.answer("steps", error(*code))
    await bench.output(process)
    assert len(bench.kernel.named("steps")) == 1


async def test_deltas_are_not_repeated(bench: Bench) -> None:
    async def process(input: Any) -> None:
        with pytest.raises(NetworkError):
            await execution().publish_llm_delta("s", 0, "x")

    bench.kernel.answer("stream", httpx2.ReadError("reset"))
    await bench.output(process)
    assert len(bench.kernel.named("stream")) == 1


async def test_a_client_repeats_reads_a_few_times(bench: Bench) -> None:
    bench.kernel.add()
    bench.kernel.answer("get", httpx2.ConnectError("down"), times=2)
    async with bench.client() as client:
        assert (await client.get("e1")).id == "e1"
        bench.kernel.answer("get", httpx2.ConnectError("down"), times=9)
        with pytest.raises(NetworkError):
            await client.get("e1")
    assert len(bench.kernel.named("get")) == 3 + BRIEF.attempts


async def test_a_client_repeats_a_creation_only_with_a_key(bench: Bench) -> None:
    async with bench.client() as client:
        bench.kernel.answer("executions", httpx2.ReadTimeout("lost"), times=9)
        with pytest.raises(NetworkError):
            await client.create("a")
        assert len(bench.kernel.calls) == 1
        with pytest.raises(NetworkError):
            await client.create("a", idempotency_key="k")
        assert len(bench.kernel.calls) == 1 + BRIEF.attempts
        bench.kernel.answer("cancel", httpx2.ReadTimeout("lost"))
        with pytest.raises(NetworkError):
            await client.cancel("e1")
        assert len(bench.kernel.named("cancel")) == 1
