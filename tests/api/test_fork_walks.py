"""Runs made up by chance, forked at events drawn by chance, and their forks likewise: each compared
with the model. REBUNO_TEST_SEEDS says how many there are beyond the fixed ones."""

import os
import random
from typing import Any

import pytest

from conftest import NewRun
from harness import Attempt, BearerClient, FakeAgent
from harness.forks import Source, check_fork, points_of_log, read_source
from harness.resources import failure, of_key

SEEDS = range(3 + int(os.environ.get("REBUNO_TEST_SEEDS", "0")))
KEYS = ("a", "b", "c")
STEPS = 14
FORKS = 5
GENERATIONS = 3

Json = dict[str, Any]


class Walker:
    """Does something that an agent may do, again and again."""

    def __init__(self, chance: random.Random, run: Attempt) -> None:
        self.chance = chance
        self.run = run
        self.open: dict[str, list[str]] = {}  # executing steps, and what they affect
        self.number = 0
        self.reuse = {key: n % 2 == 1 for n, key in enumerate(KEYS)}
        self.registered: list[str] = []

    def walk(self, length: int) -> None:
        moves = [self.begin] * 5 + [self.settle] * 4 + [self.capture] * 2
        moves += [self.register] * 2 + [self.start_over]
        for _ in range(length):
            self.chance.choice(moves)()
        self.run.heartbeat().expect(204)  # its delivery is acknowledged: no event comes late

    def state(self, key: str, every_steps: int = 0) -> Json:
        fields = {"coverage_reuse": self.reuse[key], "every_steps": every_steps}
        found: Json = self.run.register(key, "test.driver", **fields).expect(200).json
        if key not in self.registered:
            self.registered.append(key)
        return found

    def register(self) -> None:
        self.state(self.chance.choice(KEYS), self.chance.choice((0, 0, 1, 2)))

    def some(self) -> list[str]:
        return [key for key in self.registered if self.chance.random() < 0.5]

    def captures(self) -> Json:
        """Good ones mostly."""
        report = []
        for key in self.some():
            self.number += 1
            generation = self.state(key)["generation"] - (self.chance.random() < 0.1)
            report.append(of_key(key, generation, f"{key}-{self.number}"))
        return {"captures": report, "capture_failures": [failure("a", 0)][: len(report) - 1]}

    def begin(self) -> None:
        self.number += 1
        kind = self.chance.choice(("tool_call", "tool_call", "local", "llm_call"))
        keys = self.some()
        step_id = self.run.proceed("x", self.number, kind=kind, resources=keys)
        self.open[step_id] = keys
        if self.chance.random() < 0.7:
            self.settle()

    def settle(self) -> None:
        if not self.open:
            return
        step_id = self.chance.choice(list(self.open))
        del self.open[step_id]
        report = self.captures() if self.chance.random() < 0.6 else {}
        if self.chance.random() < 0.3:
            self.run.fail_step(step_id, {"n": self.number}, **report).expect(200)
        else:
            self.run.complete_step(step_id, self.number, **report).expect(200)

    def capture(self) -> None:
        report = self.captures()
        failures = report.pop("capture_failures")
        self.run.capture(*report["captures"], failures=failures).expect(204)

    def start_over(self) -> None:
        """What was executing is left behind, and never comes back."""
        self.run = self.run.released()
        self.open = {}


def check_states(agent: FakeAgent, made: Json, states: dict[str, Json]) -> Attempt:
    run = agent.take_attempt(made["id"])
    for key, state in states.items():
        fields = {"coverage_reuse": state["coverage_reuse"]}
        assert run.register(key, "test.driver", **fields).expect(200).json == state
    return run


@pytest.mark.parametrize("seed", SEEDS)
def test_any_run(client: BearerClient, agent: FakeAgent, new_run: NewRun, seed: int) -> None:
    chance = random.Random(seed)
    walker = Walker(chance, new_run())
    walker.walk(STEPS)
    source: Source = read_source(client, walker.run.id)
    assert source.points == points_of_log(source.log)
    for generation in range(GENERATIONS):
        length = len(source.log)
        run = None
        for at_seq in [*chance.sample(range(1, length + 1), min(FORKS, length)), length]:
            made = client.fork(source.execution["id"], at_seq)
            want = check_fork(client, source, at_seq, made)
            if run is not None:
                client.cancel(run.id)
            run = check_states(agent, made, want.states)
        assert run is not None
        walker = Walker(chance, run)
        walker.number = 1000 * (generation + 1)
        walker.registered = list(want.states)
        walker.walk(STEPS)
        source = read_source(client, run.id)
