"""Decisions that take long, or cannot be made: large arguments, bundles out of order.

What is worked out aside holds up its own step and nobody else's.
"""

import random
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from harness import Attempt, Cluster, FakeAgent, Kernel, bundle, eventually, hash_of, rule

NewKernel = Callable[..., Kernel]
NewAgent = Callable[..., FakeAgent]

MEBIBYTE = 1024 * 1024
WORKERS = 4  # in src/engine/aside.c
BUSY_S = 100.0  # what is worked out aside comes last on a busy machine
# Each keeps many states alive at every byte of what it is given below.
PATTERNS = ["(a|b)*a(a|b){12}c", "(.*a){8}c", "((a+)+b?)+c", "[ab]{50,100}c"]


def begin(kernel: Kernel, agent: FakeAgent) -> Attempt:
    run = agent.take_attempt(kernel.client().create(agent.id)["id"])
    eventually(lambda: "dispatch.acked" in kernel.client().event_types(run.id))
    return run


def decide(run: Attempt, target: str = "tool", args: Any = None) -> dict[str, Any]:
    decision: dict[str, Any] = run.submit(target, args).expect(200).json
    return decision


def workers(kernel: Kernel) -> int:
    """How many have been started, and have stepped back behind the other threads."""
    assert kernel.process is not None
    tasks = Path(f"/proc/{kernel.process.pid}/task")
    aside = [t for t in tasks.iterdir() if (t / "comm").read_text().strip() == "rebuno-aside"]
    stats = [(task / "stat").read_text().rpartition(")")[2].split() for task in aside]
    return sum(int(stat[16]) > 0 for stat in stats)


def endless() -> str:
    """Minutes of work for a linear matcher, on a MiB of `ab_text`."""
    patterns = [f"[ab]{{0,{500 + n}}}[^a]{{3}}c" for n in range(20)]
    rules = [
        rule(f"slow-{n}", "deny", {"arguments": {"text": {"regex": pattern}}})
        for n, pattern in enumerate(patterns)
    ]
    return bundle(*rules, default="allow")


def ab_text(size: int) -> str:
    return "".join(random.Random(7).choices("ab", k=size))


def hostile() -> str:
    rules = [
        rule(f"hostile-{n}", "deny", {"arguments": {"text": {"regex": pattern}}}, reason="hostile")
        for n, pattern in enumerate(PATTERNS * 3)
    ]
    return bundle(*rules, default="allow")


class TestLargeArguments:
    def test_others_go_on(self, new_kernel: NewKernel, new_agent: NewAgent) -> None:
        """Runs of the same agent, so under the same patterns."""
        kernel = new_kernel()
        agent = new_agent(kernel)
        kernel.client().set_policy(agent.id, hostile())
        runs = [begin(kernel, agent) for _ in range(4)]
        for run in runs:
            run.client.timeout = BUSY_S
        goes = begin(kernel, agent)
        text = ab_text(MEBIBYTE)
        progress = 0
        with ThreadPoolExecutor(len(runs)) as pool:
            waiting = [pool.submit(decide, run, "tool", {"text": text}) for run in runs]
            while not all(future.done() for future in waiting):
                goes.record("tool", {"text": f"ab{progress}"}, progress)
                progress += 1
        assert [future.result()["decision"] for future in waiting] == ["proceed"] * len(runs)
        assert progress >= 10, f"{progress} steps beside them"

    def test_what_they_match(self, new_kernel: NewKernel, new_agent: NewAgent) -> None:
        """The same answer as for small ones."""
        kernel = new_kernel()
        agent = new_agent(kernel)
        kernel.client().set_policy(agent.id, hostile())
        run = begin(kernel, agent)
        run.client.timeout = BUSY_S
        for size in (10, MEBIBYTE):
            decision = decide(run, "tool", {"text": "ab" * size + "a" * 200 + "c"})
            assert (decision["decision"], decision["reason"]) == ("denied", "hostile")
            assert decision["rule_id"] == "hostile-0"
            assert decide(run, "tool", {"text": "ab" * size})["decision"] == "proceed"

    def test_an_orderly_stop_answers_them(self, new_kernel: NewKernel, new_agent: NewAgent) -> None:
        kernel = new_kernel()
        agent = new_agent(kernel)
        kernel.client().set_policy(agent.id, hostile())
        run = begin(kernel, agent)
        text = "ab" * MEBIBYTE
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(decide, run, "tool", {"text": text})
            eventually(lambda: workers(kernel), what="a worker beside the others")
            kernel.stop()
            with_answer = waiting.exception() is None
        kernel.start()
        steps = kernel.client().steps(run.id)
        assert [step["status"] for step in steps] == ["executing"] * with_answer

    def test_a_stop_does_not_wait_for_them_for_ever(
        self, new_kernel: NewKernel, new_agent: NewAgent
    ) -> None:
        """What was not answered was not decided."""
        kernel = new_kernel()
        agent = new_agent(kernel)
        kernel.client().set_policy(agent.id, endless())
        run = begin(kernel, agent)
        text = ab_text(4 * MEBIBYTE)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(run.submit, "tool", {"text": text})
            eventually(lambda: workers(kernel), what="a worker beside the others")
            kernel.stop()
            assert waiting.exception() is not None
        kernel.start()
        assert kernel.client().steps(run.id) == []
        run.record("tool", {"text": "short"})


class TestShares:
    def test_one_agent_leaves_workers_to_others(
        self, new_kernel: NewKernel, new_agent: NewAgent
    ) -> None:
        """More endless decisions of one than there are workers; what others need of their bundles is
        worked out beside them."""
        kernel = new_kernel()
        greedy, others = new_agent(kernel), [new_agent(kernel) for _ in range(3)]
        kernel.client().set_policy(greedy.id, endless())
        for other in others:
            kernel.client().set_policy(other.id, hostile())
        runs = [begin(kernel, greedy) for _ in range(2 * WORKERS)]
        beside = [begin(kernel, other) for other in others]
        kernel.restart()  # the others' bundles are not compiled
        text, short = ab_text(MEBIBYTE), {"text": ab_text(MEBIBYTE // 16) + "a" * 200 + "c"}
        with ThreadPoolExecutor(len(runs)) as pool:
            waiting = [pool.submit(run.submit, "tool", {"text": text}) for run in runs]
            eventually(lambda: workers(kernel) == WORKERS, what="all workers")
            decisions = [decide(run, "tool", short) for run in beside * 2]
            assert not any(future.done() for future in waiting)
            kernel.kill()
        assert [d["reason"] for d in decisions] == ["hostile"] * len(decisions)


class Rows:
    """The database behind the kernel's back, while the kernel is down."""

    def __init__(self, kernel: Kernel, postgres: Cluster | None) -> None:
        assert kernel.database_url is not None
        self.url = urlsplit(kernel.database_url)
        self.postgres = postgres

    def write_bundle(self, agent_id: str, bundle: bytes, digest: bytes | None = None) -> None:
        """Without a digest the old one stays."""
        if self.postgres is None:
            with sqlite3.connect(Path(self.url.path)) as db:
                db.execute(
                    "UPDATE agents SET policy_bundle = ? WHERE id = ?",
                    (bundle, agent_id),
                )
                if digest is not None:
                    db.execute(
                        "UPDATE agents SET policy_hash = ? WHERE id = ?",
                        (digest, agent_id),
                    )
            db.close()
            return
        values = f"policy_bundle = '\\x{bundle.hex()}'"
        if digest is not None:
            values += f", policy_hash = '\\x{digest.hex()}'"
        sql = f"UPDATE agents SET {values} WHERE id = '{agent_id}'"
        self.postgres.psql(sql, self.url.path.removeprefix("/"))


@pytest.fixture
def rows(request: pytest.FixtureRequest, database: Any) -> Callable[[Kernel], Rows]:
    cluster = request.getfixturevalue("postgres") if database.kind == "postgres" else None
    return lambda kernel: Rows(kernel, cluster)


class TestStoredBundles:
    ALLOW = bundle(rule("all", "allow"))

    def test_one_that_no_longer_compiles_denies(
        self, new_kernel: NewKernel, new_agent: NewAgent, rows: Callable[[Kernel], Rows]
    ) -> None:
        """As a later version may find it: the bytes are as they were stored."""
        kernel = new_kernel()
        agent, other = new_agent(kernel), new_agent(kernel)
        kernel.client().set_policy(agent.id, self.ALLOW)
        run, beside = begin(kernel, agent), begin(kernel, other)
        run.record("tool", 1, "before")
        kernel.stop()
        garbage = b"rules: [{id: x, then: {decision: perhaps}}]"
        rows(kernel).write_bundle(agent.id, garbage, bytes.fromhex(hash_of(garbage.decode())))
        kernel.start()
        for n in range(2, 5):
            decision = decide(run, "tool", n)
            assert (decision["decision"], decision["rule_id"]) == (
                "denied",
                "bundle-error",
            )
            denied = kernel.client().events(run.id)[-1]
            assert denied["payload"]["policy_hash"] == hash_of(garbage.decode())  # which one it is
        beside.record("tool", 1)
        later = run.released()
        assert later.replay("tool", 1)["result"] == "before"  # the record stands
        kernel.client().set_policy(agent.id, self.ALLOW)
        later.record("tool", 5)

    def test_bytes_that_are_not_those_that_were_set(
        self, new_kernel: NewKernel, new_agent: NewAgent, rows: Callable[[Kernel], Rows]
    ) -> None:
        """A bundle that does not match its hash is not used, were it a good one."""
        kernel = new_kernel()
        agent = new_agent(kernel)
        kernel.client().set_policy(agent.id, bundle(default="deny"))
        run = begin(kernel, agent)
        kernel.stop()
        rows(kernel).write_bundle(agent.id, self.ALLOW.encode())
        kernel.start()
        decision = decide(run)
        assert (decision["decision"], decision["rule_id"]) == ("denied", "bundle-error")

    @pytest.mark.parametrize("kill", [True, False], ids=["SIGKILL", "SIGTERM"])
    def test_compiled_again_after_a_restart(
        self, new_kernel: NewKernel, new_agent: NewAgent, kill: bool
    ) -> None:
        """By whoever asks first, many at once."""
        kernel = new_kernel()
        agents = [new_agent(kernel) for _ in range(3)]
        for agent, word in zip(agents, "abc", strict=True):
            text = bundle(rule(f"rule-{word}", "deny", reason=f"by_{word}"))
            kernel.client().set_policy(agent.id, text)
        runs = [begin(kernel, agent) for agent in agents * 8]
        kernel.restart(kill=kill)
        with ThreadPoolExecutor(len(runs)) as pool:
            decisions = list(pool.map(decide, runs))
        words = "abc" * 8
        assert [d["rule_id"] for d in decisions] == [f"rule-{word}" for word in words]
        assert [d["reason"] for d in decisions] == [f"by_{word}" for word in words]
