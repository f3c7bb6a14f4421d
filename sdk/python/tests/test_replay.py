"""A handler against an exported run, without a kernel."""

import asyncio
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from recorded import ID, Run, answer, unrun
from scripted_kernel import DEADLINE

from rebuno import (
    RateLimited,
    Result,
    ToolError,
    execution,
    http_client,
    previous,
    step,
    subagent,
    tool,
)
from rebuno.testing import _identity, _replay
from rebuno.testing.replay import Divergence, Recording, replay

VECTORS = json.loads((Path(__file__).parent / "vectors" / "identity.json").read_text())
URL = "http://model.invalid/v1/chat/completions"


look, write, mail = unrun("look"), unrun("write"), unrun("mail")


async def diverges(run: Run, process: Callable[..., Any], kind: str, **options: Any) -> Divergence:
    with pytest.raises(Divergence) as caught:
        async with asyncio.timeout(DEADLINE):
            await replay(run.export(), process, **options)
    assert caught.value.kind == kind, caught.value
    return caught.value


def number(gone: Divergence) -> int:
    """Of the step that was due."""
    return gone.recorded.number if gone.recorded else 0


def args(gone: Divergence) -> Any:
    """With which the handler came instead."""
    return gone.asked.args if gone.asked else None


def three() -> Run:
    """Three steps, one after the other, and what they gave."""
    run = Run(output=[1, 2, 3])
    run.step("look", {"n": 1}, result=1)
    run.step("write", {"n": 2}, result=2)
    run.step("look", {"n": 3}, result=3)
    return run


class TestIdentity:
    @pytest.mark.parametrize("case", VECTORS["valid"], ids=lambda case: case["args_json"][:40])
    def test_vectors(self, case: dict[str, Any]) -> None:
        parsed = _identity.parse(case["args_json"]) if case["args_json"] else None
        assert _identity.canonical(parsed) == case["canonical"]
        hashed = _identity.args_hash(parsed)
        assert hashed == case["args_hash"]
        known = (case["execution_id"], case["kind"], case["target"])
        assert _identity.step_id(*known, hashed, case["occurrence"]) == case["step_id"]

    def test_as_deep_as_the_kernel_takes_it(self) -> None:
        text = '{"a":[' * 450 + "]}" * 450
        assert _identity.canonical(_identity.parse(text)) == text


class TestItReplays:
    async def test_in_full(self) -> None:
        async def process() -> list[Any]:
            return [await look(1), await write(2), await look(3)]

        result = await replay(three().export(), process)
        assert (result.status, result.output, result.failure_reason) == ("completed", [1, 2, 3], "")
        assert result.output == result.recording.output
        assert [one.number for one in result.steps] == [1, 2, 3]
        assert result.unasked == ()

    async def test_from_a_file(self, tmp_path: Path) -> None:
        path = tmp_path / "run.json"
        path.write_text(json.dumps(Run(output="hi", input={"name": "Ada"}).export()))

        async def process(name: str) -> str:
            return f"hi {name}"

        result = await replay(path, process)
        assert (result.output, result.recording.output) == ("hi Ada", "hi")
        assert result.recording.source == str(path)

    async def test_what_the_handler_can_ask_for(self) -> None:
        run = Run(session="s", input={"a": 1})
        run.previous = {"turn": 4}

        async def process(given: Any) -> Result:
            c = execution()
            assert (c.id, c.agent_id, c.session, c.status) == (ID, "coder", "s", "running")
            assert c.input == given == {"a": 1}
            state = await previous()
            return Result("out", {"turn": state["turn"] + 1})

        result = await replay(run.export(), process)
        assert (result.output, result.state) == ("out", {"turn": 5})

    async def test_equal_calls_by_their_occurrence(self) -> None:
        run = Run()
        for n in (10, 20, 30):
            run.step("poll", {"n": None}, result=n)
        poll = unrun("poll")

        async def process() -> list[Any]:
            return [await poll(), await poll(), await poll()]

        assert (await replay(run.export(), process)).output == [10, 20, 30]

    async def test_failures_and_refusals(self) -> None:
        run = Run()
        run.step("look", {"n": 1}, error={"message": "no luck"})
        run.step("write", {"n": 2}, denied="not today", rule="no-writes")
        run.step("clock", {}, kind="local", result=7)

        async def process() -> list[Any]:
            with pytest.raises(ToolError, match="no luck"):
                await look(1)
            return [await write(2), await step("clock", lambda: 0)]

        result = await replay(run.export(), process)
        assert result.output == ["write not allowed. reason: not today", 7]
        assert result.steps[1].rule_id == "no-writes"

    async def test_a_handler_that_fails_as_it_did(self) -> None:
        run = Run(status="failed", failure_reason="tool_error: look: no luck")
        run.step("look", {"n": 1}, error={"message": "no luck"})

        async def process() -> None:
            await look(1)

        result = await replay(run.export(), process)
        assert result.status == "failed"
        assert result.failure_reason == result.recording.failure_reason
        assert isinstance(result.error, ToolError)

    async def test_sync_handlers_and_threads(self) -> None:
        def process() -> Any:
            async def both() -> list[Any]:
                return [await look(1), await write(2), await look(3)]

            return asyncio.run(both())

        assert (await replay(three().export(), process)).output == [1, 2, 3]

    async def test_redacted_arguments_still_count_by_their_hash(self) -> None:
        run = three()
        run.steps[1]["args"] = {"n": "[redacted]"}

        async def process() -> None:
            for tool_, n in ((look, 1), (write, 2), (look, 3)):
                await tool_(n)

        assert (await replay(run.export(), process)).status == "completed"


class TestModels:
    def run(self, *texts: str) -> Run:
        run = Run()
        for number, text in enumerate(texts):
            asked = {"model": "m", "messages": [f"turn {number}"]}
            run.step("m", asked, kind="llm_call", result=answer(text))
        return run

    @staticmethod
    async def ask(*texts: str) -> list[str]:
        said = []
        async with http_client() as http:
            for text in texts:
                got = await http.post(URL, json={"model": "m", "messages": [text]})
                got.raise_for_status()
                said.append(got.json()["choices"][0]["message"]["content"])
        return said

    async def test_the_recorded_answers(self) -> None:
        async def process() -> list[str]:
            return await self.ask("turn 0", "turn 1")

        assert (await replay(self.run("a", "b").export(), process)).output == ["a", "b"]

    async def test_another_prompt(self) -> None:
        async def process() -> list[str]:
            return await self.ask("turn 0", "turn one")

        gone = await diverges(self.run("a", "b"), process, "arguments")
        assert gone.difference == ('- args.messages[0]  "turn 1"', '+ args.messages[0]  "turn one"')

    async def test_a_handler_that_swallows_the_refusal(self) -> None:
        async def process() -> str:
            try:
                await self.ask("another")
            except httpx2.HTTPStatusError:
                return "made up"
            return "said"

        await diverges(self.run("a"), process, "arguments")

    async def test_what_no_step_records_is_not_sent(self) -> None:
        async def process() -> None:
            async with http_client() as http:
                await http.get("http://model.invalid/v1/models")

        gone = await diverges(Run(), process, "request")
        assert "GET http://model.invalid/v1/models" in str(gone)


class TestDivergence:
    async def test_other_arguments(self) -> None:
        async def process() -> None:
            await look(1)
            await write(20)

        gone = await diverges(three(), process, "arguments")
        (note,) = gone.__notes__
        assert str(gone).splitlines() == [
            "step 2 came with other arguments",
            f"  run       {ID} of coder, the run: 1 of 3 steps had replayed",
            '  recorded  step 2: tool_call write {"n": 2}',
            '  came      tool_call write {"n": 20}',
            "    - args.n  2",
            "    + args.n  20",
        ]
        assert note.startswith("asked for in process, ")
        assert Path(__file__).name in note
        assert number(gone) == 2
        assert args(gone) == {"n": 20}
        assert gone.replayed == 1

    async def test_an_extra_step(self) -> None:
        async def process() -> None:
            await look(1)
            await mail(9)

        gone = await diverges(three(), process, "extra")
        assert 'recorded  step 2: tool_call write {"n": 2}' in str(gone)
        assert 'came      tool_call mail {"n": 9}' in str(gone)

    async def test_one_more_than_was_recorded(self) -> None:
        async def process() -> None:
            for tool_, n in ((look, 1), (write, 2), (look, 3), (look, 3)):
                await tool_(n)

        assert "recorded  no more steps" in str(await diverges(three(), process, "extra"))

    async def test_another_order(self) -> None:
        async def process() -> list[Any]:
            return [await look(1), await look(3), await write(2)]

        gone = await diverges(three(), process, "order")
        assert "step 3 came before step 2" in str(gone)
        result = await replay(three().export(), process, any_order=True)
        assert result.output == [1, 3, 2]

    async def test_a_missing_step(self) -> None:
        async def process() -> list[Any]:
            return [await look(1)]

        gone = await diverges(three(), process, "missing")
        assert [one.number for one in gone.missing] == [2, 3]
        assert "the handler ended, and 2 steps had not been asked for" in str(gone)
        result = await replay(three().export(), process, allow_missing=True)
        assert [one.number for one in result.unasked] == [2, 3]

    async def test_a_missing_step_in_the_middle(self) -> None:
        """Known at the step after it."""

        async def process() -> list[Any]:
            return [await look(1), await look(3)]

        gone = await diverges(three(), process, "order")
        assert number(gone) == 2

    async def test_a_handler_that_breaks(self) -> None:
        async def process() -> None:
            await look(1)
            raise KeyError("name")

        gone = await diverges(three(), process, "missing")
        assert "agent_error: KeyError: 'name'" in str(gone)
        assert isinstance(gone.__cause__, KeyError)
        line = process.__code__.co_firstlineno + 2
        first = str(gone).splitlines()[0]
        assert first == (
            f"the handler raised KeyError: 'name' (in process, {__file__}:{line}), "
            "and 2 steps had not been asked for"
        )

    async def test_a_handler_that_ends_as_a_recorded_step_did(self) -> None:
        """The error is the recording's, not one of the handler's own."""
        run = Run(status="failed", failure_reason="tool_error: look: no")
        run.step("look", {"n": 1}, error={"message": "no"})
        run.step("write", {"n": 2}, result=2)

        async def process() -> None:
            await look(1)

        gone = await diverges(run, process, "missing")
        assert str(gone).startswith("the handler ended, and 1 step had not been asked for\n")

    async def test_only_the_first_is_reported(self) -> None:
        async def process() -> None:
            for n in (7, 8, 9):
                try:
                    await look(n)
                except Exception:
                    continue

        gone = await diverges(three(), process, "arguments")
        assert args(gone) == {"n": 7}

    async def test_a_handler_that_does_not_stop(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(_replay, "_GRACE_S", 0.05)

        async def process() -> None:
            try:
                await look(7)
            finally:
                await asyncio.Event().wait()

        await diverges(three(), process, "arguments")

    async def test_long_values_are_shown_where_they_differ(self) -> None:
        run, long = Run(), "x" * 5000
        run.step("look", {"n": f"{long}old{long}"}, result=1)

        async def process() -> None:
            await look(f"{long}new{long}")

        gone = await diverges(run, process, "arguments")
        assert len(str(gone)) < 1500
        assert ["old" in line for line in gone.difference] == [True, False]
        assert ["new" in line for line in gone.difference] == [False, True]

    async def test_what_drives_a_terminal_is_escaped(self) -> None:
        run = Run()
        run.step("look", {"n": "a\u202eb"}, result=1)

        async def process() -> None:
            await tool("look\x1b[31m")(lambda n: n)("c\u202ed")

        with pytest.raises(Divergence) as caught:
            await replay(run.export(), process)
        assert "look\\x1b[31m" in str(caught.value)
        assert "a\\u202eb" in str(caught.value)

        async def other() -> None:
            await look("👩\u200d🚀\u202e")

        with pytest.raises(Divergence) as caught:
            await replay(run.export(), other)
        assert caught.value.difference == ('- args.n  "a\\u202eb"', '+ args.n  "👩\u200d🚀\\u202e"')

    async def test_it_survives_pickle(self) -> None:
        async def process() -> None:
            await look(7)

        gone = await diverges(three(), process, "arguments")
        again = pickle.loads(pickle.dumps(gone))
        assert (str(again), again.kind, again.recorded) == (str(gone), gone.kind, gone.recorded)


class TestSideBySide:
    def run(self) -> Run:
        run = Run()
        one, two = run.begin("look", {"n": 1}), run.begin("write", {"n": 2})
        run.end(two, result=2)
        run.end(one, result=1)
        run.step("look", {"n": 3}, result=3)
        return run

    @pytest.mark.parametrize("swapped", [False, True])
    async def test_in_any_order(self, swapped: bool) -> None:
        async def process() -> list[Any]:
            calls = [look(1), write(2)]
            both = await asyncio.gather(*(reversed(calls) if swapped else calls))
            return [*both, await look(3)]

        result = await replay(self.run().export(), process)
        assert result.output == ([2, 1, 3] if swapped else [1, 2, 3])

    async def test_but_not_behind_what_came_later(self) -> None:
        async def process() -> None:
            await asyncio.gather(write(2), look(3))

        await diverges(self.run(), process, "order")

    async def test_one_within_the_time_of_another_may_be_of_its_body(self) -> None:
        async def process() -> list[Any]:
            return [await look(1), await look(3)]

        result = await replay(self.run().export(), process)
        assert [one.target for one in result.unasked] == ["write"]

    async def test_the_order_of_another_delivery_is_not_known(self) -> None:
        """What replays in a delivery leaves no trace in its log."""
        run = Run()
        run.step("look", {"n": 1}, result=1)
        run.delivery()
        run.step("write", {"n": 2}, result=2)

        async def process() -> list[Any]:
            return [await write(2), await look(1)]

        assert (await replay(run.export(), process)).output == [2, 1]


class TestBodies:
    """A body does not run, so the steps that it made are not asked for."""

    def run(self) -> Run:
        run = Run()
        outer = run.begin("outer", {})
        run.step("inner", {"n": 1}, kind="local", result=1)
        run.step("m", {"model": "m"}, kind="llm_call", result=answer("x"))
        run.end(outer, result=5)
        run.step("look", {"n": 1}, result=1)
        return run

    async def test_steps_in_a_body_are_not_missed(self) -> None:
        async def process() -> list[Any]:
            return [await outer(), await look(1)]

        @tool("outer")
        def outer() -> Any:
            raise AssertionError("ran")

        result = await replay(self.run().export(), process)
        assert result.output == [5, 1]
        assert [one.target for one in result.unasked] == ["inner", "m"]

    async def test_the_step_after_it_is(self) -> None:
        @tool("outer")
        def outer() -> Any:
            raise AssertionError("ran")

        async def process() -> None:
            await outer()

        gone = await diverges(self.run(), process, "missing")
        assert [one.target for one in gone.missing] == ["look"]

    async def test_a_subagent(self) -> None:
        run = Run()
        run.step("ask", {"what": "tea"}, result="green")

        @tool("ask")
        async def ask(what: str) -> Any:
            return await subagent("researcher", what)

        async def process() -> Any:
            return await ask("tea")

        assert (await replay(run.export(), process)).output == "green"


class TestRateLimits:
    @staticmethod
    async def patient() -> Any:
        try:
            return await look(1)
        except RateLimited as exc:
            return [exc.reason, await look(1)]

    async def test_refused_once(self) -> None:
        run = Run()
        run.rate_limited("look", {"n": 1})
        run.step("look", {"n": 1}, result=1)
        result = await replay(run.export(), self.patient)
        assert result.output == ["rate_limit_exceeded", 1]

    async def test_what_an_earlier_delivery_was_refused_was_decided_anew(self) -> None:
        run = Run()
        run.rate_limited("look", {"n": 1}, until="2026-01-02T03:04:05Z")
        run.delivery()
        run.step("look", {"n": 1}, result=1)
        assert (await replay(run.export(), self.patient)).output == 1

    async def test_parked(self) -> None:
        run = Run(status="running")
        run.rate_limited("look", {"n": 1}, until="2026-01-02T03:04:05Z")
        result = await replay(run.export(), self.patient)
        assert (result.status, result.ends_at, result.steps) == ("open", None, ())


class TestTheRecordingEnds:
    @pytest.mark.parametrize("status", ["awaiting_approval", "executing", "allowed", "cancelled"])
    async def test_at_a_step_without_an_outcome(self, status: str) -> None:
        run = Run(status="blocked")
        run.step("look", {"n": 1}, result=1)
        run.step("write", {"n": 2}, status=status)

        async def process() -> None:
            await look(1)
            await write(2)
            await mail(3)

        result = await replay(run.export(), process)
        assert (result.status, len(result.steps)) == ("open", 1)
        assert result.ends_at is not None
        assert result.ends_at.target == "write"

    async def test_what_stood_beside_it_is_asked_for(self) -> None:
        run = Run(status="blocked")
        held, read = run.begin("write", {"n": 2}), run.begin("look", {"n": 1})
        asked = run.begin("m", {"model": "m"}, kind="llm_call")
        run.end(held, status="awaiting_approval")
        run.end(read, result=1)
        run.end(asked, result=answer("hi"))

        async def ask() -> None:
            async with http_client() as http:
                await http.post(URL, json={"model": "m"})

        async def process() -> None:
            await asyncio.gather(write(2), look(1), ask())

        result = await replay(run.export(), process)
        assert {one.target for one in result.steps} == {"look", "m"}

    @pytest.mark.parametrize(
        "fields",
        [
            {"status": "running"},
            {"status": "cancelled"},
            {"status": "failed", "failure_reason": "dispatch_exhausted"},
        ],
        ids=str,
    )
    async def test_behind_the_last_step(self, fields: dict[str, Any]) -> None:
        run = Run(**fields)
        run.step("look", {"n": 1}, result=1)

        async def process(n: Any) -> None:
            await look(n or 1)
            await write(2)

        result = await replay(run.export(), process)
        assert (result.status, result.ends_at, len(result.steps)) == ("open", None, 1)
        run.execution["input"] = 2
        await diverges(run, process, "arguments")

    async def test_a_handler_that_failed_by_itself_has_ended(self) -> None:
        run = Run(status="failed", failure_reason="agent_error: KeyError: 'x'")

        async def process() -> None:
            await look(1)

        await diverges(run, process, "extra")


class TestFiles:
    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("{", "is no JSON: .*; make one with 'rebuno exec export"),
            ("[]", "make one with 'rebuno exec export ID --output FILE'"),
            ('{"steps": []}', "make one with 'rebuno exec export ID --output FILE'"),
            ('{"rebuno_export": 2}', "version 2"),
        ],
    )
    def test_what_is_no_export(self, tmp_path: Path, text: str, says: str) -> None:
        path = tmp_path / "run.json"
        path.write_text(text)
        with pytest.raises(ValueError, match=says):
            Recording.of(path)

    def test_none_at_all(self, tmp_path: Path) -> None:
        says = "run.json cannot be read: No such file or directory; make one with 'rebuno exec exp"
        with pytest.raises(FileNotFoundError, match=says):
            Recording.of(tmp_path / "run.json")
        with pytest.raises(IsADirectoryError, match="cannot be read: Is a directory; make one"):
            Recording.of(tmp_path)

    def test_fields_that_it_does_not_know(self) -> None:
        content = three().export() | {"more": 1}
        content["steps"][0]["more"] = 1
        assert len(Recording.of(content).steps) == 3
