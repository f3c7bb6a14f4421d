"""POST /v0/policies/{agent_id}/test: work that takes minutes, and runs by the thousand."""

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from harness import BearerClient, FakeAgent, Kernel, bundle, eventually, rule

NewKernel = Callable[..., Kernel]
NewAgent = Callable[..., FakeAgent]
MEBIBYTE = 1024 * 1024
EXECUTIONS = 1000


def test_a_stop_does_not_wait_for_one(new_kernel: NewKernel, new_agent: NewAgent) -> None:
    kernel = new_kernel()
    agent = new_agent(kernel)
    rules = [
        rule(f"slow-{n}", "deny", {"arguments": {"text": {"regex": f"[ab]{{0,{500 + n}}}c"}}})
        for n in range(200)
    ]
    text = "".join(random.Random(7).choices("ab", k=4 * MEBIBYTE))
    cases = [{"target": "x", "args": {"text": text}}]
    fields = {"bundle": bundle(*rules), "cases": cases}
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(kernel.client().test_policy, agent.id, **fields)
        before = kernel.cpu_seconds()
        eventually(lambda: kernel.cpu_seconds() > before + 0.5, what="it works on the test")
        assert not waiting.done()
        kernel.stop()
        assert waiting.exception() is not None
    kernel.start()
    assert kernel.client().get(f"/v0/agents/{agent.id}").expect(200).json["id"] == agent.id


def test_a_thousand_executions(new_kernel: NewKernel, new_agent: NewAgent) -> None:
    """None of them is held: the memory that it takes does not depend on their number."""
    kernel = new_kernel()
    agent = new_agent(kernel)
    client = kernel.client()
    client.set_policy(agent.id, bundle(rule("all", "allow")))
    text = "x" * 20_000

    def finished(number: int) -> None:
        run = agent.take_attempt(client.create(agent.id, input=text)["id"])
        run.record("call", {"n": number, "text": text}, text)
        run.complete(text).expect(204)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(finished, range(EXECUTIONS)))
    before = kernel.peak_resident_bytes()
    tighter = bundle(rule("even", "allow", {"arguments": {"n": {"regex": "[02468]$"}}}))
    fields = {"bundle": tighter, "executions": {"limit": EXECUTIONS}}
    found = client.test_policy(agent.id, **fields).expect(200).json
    assert sorted(r["args"]["n"] for r in found["results"]) == list(range(EXECUTIONS))
    assert found["failed"] == EXECUTIONS // 2
    assert kernel.peak_resident_bytes() - before < 8 * MEBIBYTE


def test_several_at_once(new_kernel: NewKernel, new_agent: NewAgent) -> None:
    """They take turns on one thread; a bundle that is set meanwhile takes its turn too."""
    kernel = new_kernel()
    agent = new_agent(kernel)
    client: BearerClient = kernel.client()
    text = bundle(rule("r", "allow", {"arguments": {"v": {"regex": "(x+x+)+y"}}}))
    cases = [{"target": "t", "args": {"v": "x" * 10_000}} for _ in range(300)]
    stop = threading.Event()

    def keep_testing(number: int) -> int:
        made = 0
        while not stop.is_set():
            found = client.test_policy(agent.id, bundle=text, cases=cases).expect(200).json
            assert len(found["results"]) == len(cases)
            made += 1
        return made

    with ThreadPoolExecutor(4) as pool:
        testers = [pool.submit(keep_testing, n) for n in range(4)]
        try:
            for n in range(20):
                client.set_policy(agent.id, bundle(rule(f"r{n}", "allow")))
        finally:
            stop.set()
        assert all(tester.result() > 0 for tester in testers)
