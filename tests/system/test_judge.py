"""Rules that ask a judging model: its top choice, and what counts when it has none.

Written from docs/policy.md, "Judge". How the model is called: dispatch/judge.h.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, ClassVar

import pytest

from harness import Attempt, FakeAgent, Kernel, bundle, eventually, rule
from harness.client import Answer
from harness.judge import Judge, Verdict, judging, scores, verdict

NewKernel = Callable[..., Kernel]
NewAgent = Callable[..., FakeAgent]

PATIENCE_S = 5.0  # what the judge has to answer
ANSWER_MAX = 64 * 1024
GOOD = {"scores": {"allow": 0.9, "deny": 0.05, "require_approval": 0.05}}


@pytest.fixture
def judge() -> Iterator[Judge]:
    with judging() as judge:
        yield judge


@pytest.fixture
def kernel(new_kernel: NewKernel, judge: Judge) -> Kernel:
    """Not the shared one: it has this judge."""
    return new_kernel(env={"REBUNO_JUDGE_URL": judge.url, "REBUNO_JUDGE_API_KEY": "k3y"})


def asking(**rules: dict[str, Any]) -> str:
    """Asks the judge for the targets named, each with its own options; all else is allowed."""
    made = [
        rule(f"judge-{target}", "judge", {"target": target}, judge=options)
        for target, options in rules.items()
    ]
    return bundle(*made, default="allow")


def judged_agent(kernel: Kernel, new_agent: NewAgent, **rules: dict[str, Any]) -> FakeAgent:
    agent = new_agent(kernel)
    kernel.client().set_policy(agent.id, asking(**(rules or {"ask": {}})))
    return agent


def begin(kernel: Kernel, agent: FakeAgent) -> Attempt:
    run = agent.take_attempt(kernel.client().create(agent.id)["id"])
    eventually(lambda: "dispatch.acked" in kernel.client().event_types(run.id))
    return run


def decide(run: Attempt, target: str, args: Any = None) -> dict[str, Any]:
    decision: dict[str, Any] = run.submit(target, args).expect(200).json
    return decision


@contextmanager
def thinking(judge: Judge, run: Attempt) -> Iterator[Future[Answer]]:
    """The answer to a step about which the judge says yes when the block is left."""
    judge.answers = {"ask": verdict(GOOD, hang=True)}
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(run.submit, "ask")
        try:
            eventually(lambda: judge.count() == 1)
            yield waiting
        finally:
            judge.let_go()


def outcome(kernel: Kernel, agent: FakeAgent, target: str) -> str:
    """What becomes of a step of a fresh run: proceed, denied or blocked."""
    run = begin(kernel, agent)
    decision = decide(run, target)
    word = str(decision["decision"])
    if word == "denied":
        assert decision["rule_id"] == f"judge-{target}"
        assert decision["reason"] == "policy_denied"
    if word == "blocked":
        assert "approval_id" in decision
    return word


class TestChoice:
    CASES: ClassVar[list[tuple[str, dict[str, Any], dict[str, float], str]]] = [
        (
            "top-allow",
            {},
            {"allow": 0.9, "deny": 0.05, "require_approval": 0.05},
            "proceed",
        ),
        (
            "top-deny",
            {},
            {"allow": 0.1, "deny": 0.8, "require_approval": 0.1},
            "denied",
        ),
        (
            "top-hold",
            {},
            {"allow": 0.1, "deny": 0.2, "require_approval": 0.7},
            "blocked",
        ),
        (
            "at-threshold",
            {},
            {"allow": 0.6, "deny": 0.2, "require_approval": 0.2},
            "proceed",
        ),
        (
            "under-it",
            {},
            {"allow": 0.59, "deny": 0.21, "require_approval": 0.2},
            "blocked",
        ),
        (
            "own-threshold",
            {"threshold": 0.95},
            {"allow": 0.94, "deny": 0.06},
            "blocked",
        ),
        ("met", {"threshold": 0.5}, {"allow": 0.5, "deny": 0.3}, "proceed"),
        ("deny-is-unsure", {}, {"allow": 0.1, "deny": 0.5}, "blocked"),
        ("fallback-deny", {"fallback": "deny"}, {"allow": 0.5, "deny": 0.4}, "denied"),
        (
            "fallback-allow",
            {"fallback": "allow"},
            {"allow": 0.3, "deny": 0.4},
            "proceed",
        ),
        ("one-score", {}, {"allow": 1.0}, "proceed"),
        ("strict-of-equals", {"threshold": 0.4}, {"allow": 0.4, "deny": 0.4}, "denied"),
    ]

    def test_top_choice_threshold_and_fallback(
        self, kernel: Kernel, judge: Judge, new_agent: NewAgent
    ) -> None:
        agent = judged_agent(kernel, new_agent, **{name: rule for name, rule, _, _ in self.CASES})
        judge.answers = {name: scores(**chances) for name, _, chances, _ in self.CASES}
        got = {name: outcome(kernel, agent, name) for name, _, _, _ in self.CASES}
        assert got == {name: expected for name, _, _, expected in self.CASES}

    def test_the_question(self, kernel: Kernel, judge: Judge, new_agent: NewAgent) -> None:
        agent = judged_agent(kernel, new_agent, ask={"instructions": 'only "read" is safe'})
        run = begin(kernel, agent)
        run.proceed("ask", {"b": [1.50, "é"], "a": None})
        (question,) = judge.questions
        assert question.json == {
            "agent_id": agent.id,
            "target": "ask",
            "arguments": {"a": None, "b": [1.5, "é"]},
            "instructions": 'only "read" is safe',
        }
        assert question.path == "POST /judge"
        assert question.headers["authorization"] == "Bearer k3y"
        assert question.headers["content-type"] == "application/json"

    def test_without_a_key(self, new_kernel: NewKernel, judge: Judge, new_agent: NewAgent) -> None:
        kernel = new_kernel(env={"REBUNO_JUDGE_URL": judge.url})
        run = begin(kernel, judged_agent(kernel, new_agent))
        run.proceed("ask")
        assert "authorization" not in judge.questions[0].headers

    def test_connections_are_kept(self, kernel: Kernel, judge: Judge, new_agent: NewAgent) -> None:
        run = begin(kernel, judged_agent(kernel, new_agent))
        for n in range(5):
            run.proceed("ask", n)
        assert len({question.peer for question in judge.questions}) == 1

    def test_asked_once(self, kernel: Kernel, judge: Judge, new_agent: NewAgent) -> None:
        """A replay is not decided again, nor is a step that a person has granted."""
        agent = judged_agent(kernel, new_agent, ask={}, hold={})
        judge.answers = {"hold": scores(require_approval=1.0)}
        client, run = kernel.client(), begin(kernel, agent)
        run.record("ask", 1, "done")
        later = run.released()
        assert later.replay("ask", 1)["result"] == "done"
        approval = later.hold("hold")
        client.grant(approval, decided_by="alice").expect(204)
        granted = later.redelivered()
        granted.replay("ask", 1)
        granted.proceed("hold")
        assert [question.target for question in judge.questions] == ["ask", "hold"]

    @pytest.mark.parametrize("sure", [0.9, 0.3], ids=["the-judge-wants-it", "the-fallback"])
    def test_a_person_is_asked_as_the_rule_says(
        self, kernel: Kernel, judge: Judge, new_agent: NewAgent, sure: float
    ) -> None:
        agent, client = new_agent(kernel), kernel.client()
        config = {"approvers": ["press"], "timeout": "2h", "message": "read it twice"}
        asks = rule("judged", "judge", reason="not by the judge alone", approval_config=config)
        client.set_policy(agent.id, bundle(asks))
        judge.answers = {"post": scores(require_approval=sure, allow=0.1)}
        run = begin(kernel, agent)
        approval = client.approval(run.hold("post"))
        assert (approval["approvers"], approval["message"]) == (["press"], "read it twice")
        asked, ends = (datetime.fromisoformat(approval[at]) for at in ("created_at", "timeout_at"))
        assert ends - asked == timedelta(hours=2)
        client.grant(approval["id"], decided_by="somebody").expect(403, "forbidden")
        client.grant(approval["id"], decided_by="press").expect(204)
        run.redelivered().proceed("post")

    def test_a_denial_tells_the_rules_reason(
        self, kernel: Kernel, judge: Judge, new_agent: NewAgent
    ) -> None:
        agent = new_agent(kernel)
        asks = rule("judged", "judge", reason="promises no money")
        kernel.client().set_policy(agent.id, bundle(asks))
        judge.answers = {"mail": scores(deny=1.0)}
        assert begin(kernel, agent).denied("mail")["reason"] == "promises no money"

    def test_takes_a_token_whatever_it_says(
        self, kernel: Kernel, judge: Judge, new_agent: NewAgent
    ) -> None:
        """Nor is the judge asked about what the limit refuses."""
        agent = new_agent(kernel)
        limit = {"max_calls": 2, "window": "1h"}
        kernel.client().set_policy(agent.id, bundle(rule("judged", "judge", rate_limit=limit)))
        judge.answers = {"no": scores(deny=1.0)}
        run = begin(kernel, agent)
        run.denied("no")
        run.proceed("ask")
        assert decide(run, "ask", 1)["decision"] == "rate_limited"
        assert judge.count() == 2

    def test_beside_a_call_that_was_held_meanwhile(
        self, kernel: Kernel, judge: Judge, new_agent: NewAgent
    ) -> None:
        """Its delivery has ended then: nothing starts, whatever the judge says."""
        agent, client = new_agent(kernel), kernel.client()
        gate = rule("gate", "require_approval", {"target": "gated"})
        client.set_policy(agent.id, bundle(gate, rule("judged", "judge")))
        run = begin(kernel, agent)
        with thinking(judge, run) as waiting:
            approval = run.hold("gated")
        assert waiting.result().expect(200).json == {"decision": "execution_blocked"}
        assert [step["target"] for step in client.steps(run.id)] == ["gated"]
        client.grant(approval).expect(204)
        later = run.redelivered()
        later.proceed("gated")
        later.proceed("ask")

    def test_of_an_attempt_that_was_superseded_meanwhile(
        self, kernel: Kernel, judge: Judge, new_agent: NewAgent
    ) -> None:
        run = begin(kernel, judged_agent(kernel, new_agent))
        with thinking(judge, run) as waiting:
            later = run.released()
        waiting.result().expect(409, "lease_superseded")
        assert kernel.client().steps(run.id) == []
        later.proceed("ask")

    def test_judged_by_the_bundle_of_now(
        self, kernel: Kernel, judge: Judge, new_agent: NewAgent
    ) -> None:
        """The decision is validated again when it is recorded."""
        agent = judged_agent(kernel, new_agent)
        run = begin(kernel, agent)
        with thinking(judge, run) as waiting:
            kernel.client().set_policy(agent.id, bundle(default="deny"))
        decision = waiting.result().expect(200).json
        assert (decision["decision"], decision["rule_id"]) == ("denied", "default")

    def test_of_a_run_that_ended_meanwhile(
        self, kernel: Kernel, judge: Judge, new_agent: NewAgent
    ) -> None:
        run = begin(kernel, judged_agent(kernel, new_agent))
        with thinking(judge, run) as waiting:
            kernel.client().cancel(run.id)
        assert waiting.result().expect(200).json["decision"] == "execution_terminal"
        assert kernel.client().steps(run.id) == []


class TestNoAnswer:
    """Each falls back. The fallback is deny, which no answer here stands for."""

    BAD: ClassVar[dict[str, Verdict]] = {
        "empty": verdict(b""),
        "not-json": verdict(b"allow"),
        "cut-json": verdict(b'{"scores":{"allow":1.0'),
        "twice": verdict(b'{"scores":{"allow":1,"allow":0.9}}'),
        "trailing": verdict(json.dumps(GOOD).encode() + b" x"),
        "bad-utf8": verdict(b'{"scores":{"allow":1.0},"x":"\xff"}'),
        "list": verdict([GOOD]),
        "no-scores": verdict({"score": {"allow": 1.0}}),
        "no-object": verdict({"scores": 1}),
        "no-choice": verdict({"scores": {}}),
        "no-number": verdict({"scores": {"allow": "1.0"}}),
        "above-one": verdict({"scores": {"allow": 2}}),
        "negative": verdict({"scores": {"allow": 0.9, "deny": -1}}),
        "status-500": verdict(GOOD, status=500),
        "status-404": verdict(GOOD, status=404),
        "status-401": verdict(GOOD, status=401),
        "redirect": verdict(GOOD, status=302, headers={"Location": "/elsewhere"}),
        "redirect-307": verdict(GOOD, status=307, headers={"Location": "/elsewhere"}),
        "no-answer": verdict(b"", cut=True),
        "cut-body": verdict(GOOD, length=1000),
        "too-long": verdict({**GOOD, "x": "y" * ANSWER_MAX}),
        "huge": Verdict((b"[" * 1_000_000,) * 50),
        "huge-head": verdict(GOOD, headers={f"X-{n}": "y" * 60_000 for n in range(30)}),
    }

    def test_falls_back(self, kernel: Kernel, judge: Judge, new_agent: NewAgent) -> None:
        agent = judged_agent(kernel, new_agent, **{n: {"fallback": "deny"} for n in self.BAD})
        judge.answers = dict(self.BAD)
        got = {name: outcome(kernel, agent, name) for name in self.BAD}
        assert got == dict.fromkeys(self.BAD, "denied")
        assert not [q for q in judge.questions if q.path != "POST /judge"], "redirects are followed"
        log = kernel.log_text()
        assert "judge.failed" in log
        assert "k3y" not in log

    def test_the_longest_that_is_read(
        self, kernel: Kernel, judge: Judge, new_agent: NewAgent
    ) -> None:
        agent = judged_agent(kernel, new_agent, ask={"fallback": "deny"})
        rest = ANSWER_MAX - len(json.dumps({**GOOD, "x": ""}))
        judge.answers = {"ask": verdict({**GOOD, "x": "y" * rest})}
        assert outcome(kernel, agent, "ask") == "proceed"

    def test_nobody_there(self, kernel: Kernel, judge: Judge, new_agent: NewAgent) -> None:
        agent = judged_agent(kernel, new_agent)
        judge.stop()
        run = begin(kernel, agent)
        decision = decide(run, "ask")
        assert decision["decision"] == "blocked"
        assert [a["id"] for a in kernel.client().approvals()] == [decision["approval_id"]]

    def test_no_url(self, new_kernel: NewKernel, new_agent: NewAgent) -> None:
        kernel = new_kernel()
        agent = judged_agent(kernel, new_agent, ask={"fallback": "allow"})
        decision = decide(begin(kernel, agent), "ask")
        assert decision["decision"] == "denied"
        assert (decision["reason"], decision["rule_id"]) == (
            "judge_unavailable",
            "judge-ask",
        )

    @pytest.mark.parametrize(
        "slow",
        [verdict(GOOD, hang=True), Verdict((b"x",) * 100, pause_s=0.3)],
        ids=["silent", "trickling"],
    )
    def test_hangs(self, kernel: Kernel, judge: Judge, new_agent: NewAgent, slow: Verdict) -> None:
        """Its own step falls back after 5 s; others go on meanwhile, also of the same agent."""
        agent = judged_agent(kernel, new_agent, ask={"fallback": "deny"}, quick={})
        judge.answers = {"ask": slow}
        waits, goes = begin(kernel, agent), begin(kernel, agent)
        done = threading.Event()
        progress = 0
        began = time.monotonic()
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(decide, waits, "ask")
            waiting.add_done_callback(lambda _: done.set())
            eventually(lambda: judge.count("ask") == 1)
            while not done.is_set():
                goes.record("other", progress, progress)
                goes.record("quick", progress, progress)  # the judge's other questions too
                progress += 1
            decision = waiting.result()
        took = time.monotonic() - began
        assert decision["decision"] == "denied"
        assert took >= PATIENCE_S * 0.98, f"gave up after {took:.2f} s"
        assert progress >= 20, f"{progress} steps beside it"


class TestMany:
    def test_more_questions_than_slots(
        self, kernel: Kernel, judge: Judge, new_agent: NewAgent
    ) -> None:
        """64 are asked at once; the others wait for a slot, and lose nothing."""
        slots, questions = 64, 80
        agent = judged_agent(kernel, new_agent)
        judge.answers = {"ask": verdict(GOOD, hang=True)}
        runs = [begin(kernel, agent) for _ in range(questions)]
        with ThreadPoolExecutor(questions) as pool:
            waiting = [pool.submit(decide, run, "ask") for run in runs]
            eventually(lambda: judge.count() >= slots)
            assert judge.count() == slots
            judge.let_go()
            got = [future.result()["decision"] for future in waiting]
        assert got == ["proceed"] * questions
        assert judge.count() == questions


class TestStopping:
    def test_an_open_question_may_still_be_answered(
        self, kernel: Kernel, judge: Judge, new_agent: NewAgent
    ) -> None:
        judge.answers = {"ask": verdict(GOOD, hang=True)}
        run = begin(kernel, judged_agent(kernel, new_agent))
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(decide, run, "ask")
            eventually(lambda: judge.count() == 1)
            kernel.terminate()
            eventually(lambda: "kernel.stopping" in kernel.log_text())
            judge.let_go()
            assert waiting.result()["decision"] == "proceed"
        assert kernel.wait_exit() == 0
        kernel.start()
        assert [s["status"] for s in kernel.client().steps(run.id)] == ["executing"]

    def test_one_that_is_never_answered(
        self, kernel: Kernel, judge: Judge, new_agent: NewAgent
    ) -> None:
        judge.answers = {"ask": verdict(GOOD, hang=True)}
        run = begin(kernel, judged_agent(kernel, new_agent))
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(decide, run, "ask")
            eventually(lambda: judge.count() == 1)
            kernel.stop()
            assert waiting.result()["decision"] == "blocked"
        kernel.start()
        assert kernel.client().execution(run.id)["status"] == "blocked"

    def test_killed_while_one_is_open(
        self, kernel: Kernel, judge: Judge, new_agent: NewAgent
    ) -> None:
        """Nothing was decided, so the step is decided when it is submitted again."""
        judge.answers = {"ask": verdict(GOOD, hang=True)}
        run = begin(kernel, judged_agent(kernel, new_agent))
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(run.submit, "ask")
            eventually(lambda: judge.count() == 1)
            kernel.kill()
            with pytest.raises(ConnectionError):
                waiting.result()
        judge.let_go()
        kernel.start()
        assert kernel.client().steps(run.id) == []
        run.proceed("ask")
