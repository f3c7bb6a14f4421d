"""Runs that tests fork, and resources in them."""

from typing import Any

from harness.agent import Attempt, FakeAgent
from harness.client import BearerClient
from harness.policies import bundle, rule

Json = dict[str, Any]

STORY = [
    rule("no", "deny", {"target": "forbidden"}, reason="never"),
    rule("gate", "require_approval", {"target": "gated"}),
    rule("few", "allow", {"target": "few"}, rate_limit={"max_calls": 1, "window": "1h"}),
]
USED = {"usage": {"prompt_tokens": 7, "completion_tokens": 3}}


def captured(key: str, generation: int, ref: str) -> Json:
    return {"key": key, "generation": generation, "checkpoint_ref": ref}


def short_story(run: Attempt) -> Attempt:
    """Three steps, of which one fails."""
    run.record("a", 0, "A")
    run.fail_step(run.proceed("b", 0), {"message": "B"}).expect(200)
    run.record("c", 0, "C")
    return run


class Disk:
    """A resource of a run, captured under references of its own."""

    def __init__(self, run: Attempt, key: str, **fields: Any) -> None:
        self.run, self.key, self.fields = run, key, fields
        self.taken = 0
        self.open()

    def open(self) -> Json:
        state: Json = self.run.register(self.key, **self.fields).expect(200).json
        return state

    def capture(self) -> Json:
        self.taken += 1
        ref = f"{self.key}-{self.taken}"
        return captured(self.key, self.open()["generation"], ref)

    def step(self, number: int, how: str = "complete", *, captured: bool = False) -> str:
        step_id = self.run.proceed("write", [self.key, number], resources=[self.key])
        report = {"captures": [self.capture()]} if captured else {}
        call = self.run.complete_step if how == "complete" else self.run.fail_step
        call(step_id, {"n": number}, **report).expect(200)
        return step_id


class Story:
    """A run in which nearly everything happens that may happen in one."""

    def __init__(
        self, client: BearerClient, agent: FakeAgent, run: Attempt, helper: FakeAgent
    ) -> None:
        self.client, self.agent, self.run, self.helper = client, agent, run, helper
        client.set_policy(agent.id, bundle(*STORY, default="allow"))
        self.plain()
        self.resources()
        self.people()
        self.orphans()
        self.subagents()
        self.unsettled()
        self.run.complete({"all": "done"}, state={"turn": 1}).expect(204)

    def plain(self) -> None:
        run = self.run
        for n in range(2):
            run.record("search", {"q": "equal"}, {"hit": n})
        run.fail_step(run.proceed("search", {"q": 1.0}), {"message": "é\u2028", "x": [1]})
        run.record("model", {"m": 1}, {"body": USED}, kind="llm_call")
        run.record("random", b'{ "seed" : 1.50 }', b'{ "n" : 4.0 }', kind="local")
        run.denied("forbidden", {"x": 1})

    def resources(self) -> None:
        run = self.run
        disk = Disk(run, "disk", configuration={"size": 1}, every_steps=1)
        run.bind("disk", {"id": "sandbox"}).expect(204)
        run.capture(disk.capture()).expect(204)
        disk.step(1, captured=True)
        cache = Disk(run, "cache", coverage_reuse=True)
        disk.step(2, "fail")
        run.record("read")
        run.capture(disk.capture(), cache.capture()).expect(204)
        cache.step(1, captured=True)
        run.capture(captured("disk", 0, "stale")).expect(204)
        run.denied("forbidden", {"x": 2}, resources=["disk"])
        Disk(run, "cache", coverage_reuse=True, every_steps=2, on_completion=False)
        first, second = (run.proceed("write", n, resources=["disk"]) for n in (8, 9))
        run.complete_step(second, captures=[disk.capture()]).expect(200)  # the other one writes
        run.complete_step(first, captures=[disk.capture()]).expect(200)
        run.capture(disk.capture()).expect(204)
        run.record("ask", kind="llm_call", resources=["disk", "cache"])

    def people(self) -> None:
        client = self.client
        held = [self.run.hold("gated", n, resources=["disk"]) for n in range(3)]
        client.grant(held[0]).expect(204)
        client.deny(held[1], rationale="no").expect(204)
        client.grant(held[2], rationale="yes").expect(204)
        self.run = run = self.run.redelivered()
        run.record("gated", 0, "sent", resources=["disk"])
        run.denied("gated", 1)
        run.record("few", 0)
        limited = run.submit("few", 1).expect(200).json
        assert limited["decision"] == "rate_limited"
        client.set_policy(self.agent.id, bundle(*STORY[:2], default="allow"))
        run.record("few", 1)

    def orphans(self) -> None:
        self.run.proceed("charge", 1, idempotency="at_most_once", resources=["disk"])
        self.run.proceed("retried", 1, resources=["cache"])
        self.run = run = self.run.released()
        run.replay("charge", 1, idempotency="at_most_once")
        run.denied("charge", 1, idempotency="at_most_once")
        step_id = run.proceed("retried", 1, resources=["cache"])
        run.complete_step(step_id, "again").expect(200)

    def subagents(self) -> None:
        run = self.run
        step_id = run.proceed("delegate")
        spawned_by = {"execution_id": run.id, "step_id": step_id}
        child = self.client.create(self.helper.id, spawned_by=spawned_by)
        assert run.suspend().expect(200).json == {"suspended": True}
        self.helper.take_attempt(child["id"]).complete({"from": "below"}).expect(204)
        self.run = run.redelivered()

    def unsettled(self) -> None:
        """Steps that never end, and one that ends after the other has begun."""
        run = self.run
        run.proceed("open", 0, resources=["cache"])
        step_id = run.proceed("open", 1)
        run.client.post(
            run.path("/resources/checkpoints"), {"captures": [Disk(run, "late").capture()]}
        ).expect(204)
        run.complete_step(step_id, [1, 2.50]).expect(200)
