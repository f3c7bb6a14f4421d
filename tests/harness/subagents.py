"""Steps with subagents."""

from typing import Any

from harness.agent import Attempt, FakeAgent
from harness.client import Answer, BearerClient
from harness.waiting import eventually

Json = dict[str, Any]


def spawn(client: BearerClient, run: Attempt, step_id: str, agent_id: str, **fields: Any) -> Answer:
    spawned_by = {"execution_id": run.id, "step_id": step_id}
    return client.post("/v0/executions", {"agent_id": agent_id, "spawned_by": spawned_by, **fields})


def settled(client: BearerClient, run: Attempt, step_id: str) -> Json:
    """The step, once it has an outcome."""

    def find() -> Json:
        step = client.step(run.id, step_id)
        assert step["status"] in ("succeeded", "failed")
        return step

    return eventually(find)


class Family:
    """A run with a step that has a subagent."""

    def __init__(self, client: BearerClient, run: Attempt, helper: FakeAgent, **step: Any) -> None:
        self.client, self.run, self.helper = client, run, helper
        self.step_id = run.proceed("delegate", {"task": 1}, **step)
        self.child = spawn(client, run, self.step_id, helper.id, input="x").expect(201).json

    def work(self) -> Attempt:
        return self.helper.take_attempt(self.child["id"])
