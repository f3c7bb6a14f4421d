"""Fork points: which events of an execution are covered, and by what.

Each table is a run in a line of words, from `start`, the event that registered `disk`:

    register              disk; `register*`: with coverage_reuse
    capture               outside of a step
    write write+ write!   a step that affects disk; with a capture; that fails, with a capture
    read read+            a step that declares nothing; with a capture of disk all the same
    ask                   a model call

and what covers it, as intervals counted from `start`: a step is four events long (proposed,
allowed, executing, its outcome), a registration and a capture are one each.
"""

from typing import Any

import pytest

from conftest import NewRun
from harness import Attempt, BearerClient
from harness.forks import covered_at, points_of_log

UNKNOWN = "01920000-0000-7000-8000-000000000000"

Interval = tuple[int, int | None]


class Player:
    """Plays the words of a table."""

    def __init__(self, run: Attempt) -> None:
        self.run = run
        self.reuse = False
        self.number = 0

    def generation(self) -> int:
        found = self.run.register("disk", coverage_reuse=self.reuse).expect(200).json
        return int(found["generation"])

    def capture(self) -> dict[str, Any]:
        self.number += 1
        ref = f"snapshot-{self.number}"
        return {"key": "disk", "generation": self.generation(), "checkpoint_ref": ref}

    def play(self, word: str) -> None:
        if word.startswith("register"):
            self.reuse = word.endswith("*")
            self.run.register("disk", coverage_reuse=self.reuse).expect(200)
        elif word == "capture":
            self.run.capture(self.capture()).expect(204)
        else:
            self.step(word)

    def step(self, word: str) -> None:
        name = word.rstrip("+!")
        fields: dict[str, Any] = {"resources": ["disk"]} if name == "write" else {}
        kind = "llm_call" if name == "ask" else "tool_call"
        self.number += 1
        step_id = self.run.proceed(name, self.number, kind=kind, **fields)
        report = {"captures": [self.capture()]} if word != name else {}
        call = self.run.fail_step if word.endswith("!") else self.run.complete_step
        call(step_id, {}, **report).expect(200)


TABLE: list[tuple[str, list[Interval]]] = [
    ("register", []),
    ("register capture", [(0, None)]),
    # 0 registered, 1 checkpointed, 2 proposed, 3 allowed, 4 executing, 5 succeeded
    ("register capture write", [(0, 4)]),
    ("register capture read", [(0, 4)]),
    ("register capture ask", [(0, 4)]),
    ("register* capture write", [(0, 4)]),
    ("register* capture read", [(0, None)]),
    ("register* capture ask", [(0, None)]),
    # 0 registered, 1 2 3 4 the step, 5 checkpointed
    ("register write+", [(4, None)]),
    ("register write!", [(4, None)]),
    ("register read+", [(4, None)]),
    ("register* read+", [(4, None)]),
    # 6 proposed, 7 allowed, 8 executing, 9 succeeded, 10 checkpointed
    ("register write+ write+", [(4, 8), (9, None)]),
    ("register write+ read", [(4, 8)]),
    ("register* write+ read write", [(4, 12)]),
    ("register* write+ read read ask write+", [(4, 20), (21, None)]),
    ("register write+ read capture", [(4, 8), (9, None)]),
    ("register write capture read capture", [(4, 8), (9, None)]),
    ("register capture capture", [(0, None), (1, None)]),
    ("register capture capture write", [(0, 5), (1, 5)]),
    ("register* capture read+ write", [(0, 9), (5, 9)]),
    ("register write write! write", [(8, 12)]),
]


@pytest.mark.parametrize(("words", "intervals"), TABLE)
def test_what_a_run_covers(
    client: BearerClient, run: Attempt, words: str, intervals: list[Interval]
) -> None:
    player = Player(run)
    start = int(client.events(run.id)[-1]["event_seq"]) + 1
    for word in words.split():
        player.play(word)
    points = client.fork_points(run.id)
    assert points["resources"] == {"disk": start}
    found = [
        (c["covered_seq"] - start, c["invalidated_seq"] - start if "invalidated_seq" in c else None)
        for c in points["checkpoints"]
    ]
    assert found == intervals
    log = client.events(run.id)
    assert points == points_of_log(log)
    for seq in range(1, points["latest_seq"] + 1):
        wanted = seq < start or any(
            low + start <= seq and (high is None or seq < high + start) for low, high in intervals
        )
        assert covered_at(points, seq) is wanted, seq
    state = run.register("disk", coverage_reuse=player.reuse).expect(200).json
    assert state["covered"] is any(high is None for _, high in intervals)


class TestPoints:
    def test_of_a_run_without_resources(self, client: BearerClient, run: Attempt) -> None:
        run.record("x")
        latest = client.events(run.id)[-1]["event_seq"]
        assert client.fork_points(run.id) == {
            "latest_seq": latest,
            "resources": {},
            "checkpoints": [],
        }

    def test_of_an_execution_that_waits(
        self, client: BearerClient, new_run: NewRun, session: str
    ) -> None:
        run = new_run(session=session)
        waiting = client.create(run.agent.id, session=session)
        found = client.fork_points(waiting["id"])
        assert found == {"latest_seq": 1, "resources": {}, "checkpoints": []}

    def test_needs_every_resource(self, client: BearerClient, run: Attempt) -> None:
        for key in ("a", "b"):
            run.register(key, coverage_reuse=True).expect(200)
        first = client.fork_points(run.id)["resources"]
        run.capture({"key": "a", "generation": 0, "checkpoint_ref": "a"}).expect(204)
        points = client.fork_points(run.id)
        assert [covered_at(points, s) for s in (first["a"] - 1, first["a"], first["b"])] == [
            True,
            False,  # the capture covers from the event before its own on
            False,
        ]
        run.capture({"key": "b", "generation": 0, "checkpoint_ref": "b"}).expect(204)
        points = client.fork_points(run.id)
        assert points == points_of_log(client.events(run.id))
        assert covered_at(points, points["latest_seq"])

    def test_many_checkpoints(self, client: BearerClient, run: Attempt) -> None:
        """More than are read in one go, in the order in which they were made."""
        player = Player(run)
        player.play("register*")
        for _ in range(70):
            player.play("capture")
        for _ in range(70):
            player.play("write+")
        points = client.fork_points(run.id)
        assert points == points_of_log(client.events(run.id))
        refs = [c["checkpoint_ref"] for c in points["checkpoints"]]
        assert len(refs) == 140
        assert len(set(refs)) == 140
        assert [c["covered_seq"] for c in points["checkpoints"]] == sorted(
            c["covered_seq"] for c in points["checkpoints"]
        )

    def test_after_the_end(self, client: BearerClient, run: Attempt) -> None:
        player = Player(run)
        for word in ("register", "write+"):
            player.play(word)
        before = client.fork_points(run.id)
        run.complete().expect(204)
        after = client.fork_points(run.id)
        assert after == {**before, "latest_seq": before["latest_seq"] + 1}

    def test_who_may_read_them(self, client: BearerClient, run: Attempt) -> None:
        target = run.path("/fork-points")
        client.get(f"/v0/executions/{UNKNOWN}/fork-points").expect(404, "not_found")
        client.get("/v0/executions/x/fork-points", bad=True).invalid("execution_id")
        run.client.get(target, bad=True).expect(401)
        client.post(target, {}, bad=True).expect(405)
