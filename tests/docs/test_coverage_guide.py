"""docs/coverage.md: its run is run, and each row of its tables is compared with the log, with the
fork points, and with a fork at that event."""

import itertools
import re
from typing import Any

import pytest

from harness.documents import Row, code, read
from harness.forks import covered_at, covers
from harness.guide import Followed, Walk

Json = dict[str, Any]
GUIDE = read("docs/coverage.md")
ROWS = GUIDE.rows("Event by event", "")
CHECKPOINTS = GUIDE.rows("Its checkpoints", "checkpoint")
RESOURCES = ("draft", "notes")


@pytest.fixture
def walk(followed: Followed) -> Walk:
    return followed(GUIDE, "agent.py")


def test_it_can_be_followed(walk: Walk) -> None:
    walk.follow()
    source = min(walk.executions(), key=lambda one: str(one["id"]))["id"]
    log = walk.client.events(source)
    points = walk.client.fork_points(source)
    the_log_is_the_table(log)
    the_checkpoints_are_the_table(points, log)
    for row in ROWS:
        the_row_is_right(row, points)
        a_fork_there_restores(walk, source, row, points)


def the_log_is_the_table(log: list[Json]) -> None:
    assert len(ROWS) == len(log)
    for row, event in zip(ROWS, log, strict=True):
        number, name = row.cells[:2]
        assert (int(number), code(name)) == (event["event_seq"], event["type"]), row.line
        step = name.rpartition("`")[2].strip()
        assert step == event["payload"].get("target", ""), row.line


def the_checkpoints_are_the_table(points: Json, log: list[Json]) -> None:
    shown = {}
    for row in CHECKPOINTS:
        first, last = re.fullmatch(r"(\d+) (?:to (\d+)|on)", row.cells[1]).groups()  # type: ignore[union-attr]
        shown[row.cells[0]] = (int(first), int(last) + 1 if last else None)
        if last:
            end = int(last) + 1
            assert log[end - 1]["type"] == "step.executing"
            assert row.cells[3].startswith(f"{end}, "), row.line
            assert code(row.cells[3]) in ("", log[end - 1]["payload"]["target"]), row.line
    assert shown == {
        c["checkpoint_ref"]: (c["covered_seq"], c.get("invalidated_seq"))
        for c in points["checkpoints"]
    }


def restored(cell: str) -> tuple[str | None, bool]:
    """(reference, covered) as a cell has it."""
    if cell == "anew":
        return None, False
    return cell.strip("()"), not cell.startswith("(")


def the_row_is_right(row: Row, points: Json) -> None:
    """By the protocol's text: what covers the event, else the newest before it."""
    seq = int(row.cells[0])
    assert row.cells[4] == ("●" if covered_at(points, seq) else ""), row.line
    for key, cell in zip(RESOURCES, row.cells[2:4], strict=True):
        if points["resources"][key] > seq:
            assert cell == "", row.line
            continue
        known = [c for c in points["checkpoints"] if c["key"] == key and c["covered_seq"] <= seq]
        covering = [c["checkpoint_ref"] for c in known if covers(c, seq)]
        expected = (covering or [c["checkpoint_ref"] for c in known] or [None])[-1]
        assert restored(cell) == (expected, bool(covering)), row.line


def a_fork_there_restores(walk: Walk, source: str, row: Row, points: Json) -> None:
    fork = walk.client.fork(source, int(row.cells[0]))
    walk.rest()
    assert walk.client.execution(fork["id"])["status"] == "completed", row.line
    seq_of = {c["checkpoint_ref"]: c["covered_seq"] for c in points["checkpoints"]}
    expected: dict[str, Json] = {}
    for key, cell in zip(RESOURCES, row.cells[2:4], strict=True):
        reference, is_covered = restored(cell)
        if cell and reference is None:
            expected[key] = {"covered": False}
        elif cell:
            expected[key] = {
                "checkpoint_ref": reference,
                "checkpoint_seq": seq_of[reference],
                "covered": is_covered,
            }
    assert fork.get("restoration", {}) == expected, row.line


def test_every_change_has_a_reason() -> None:
    for before, row in itertools.pairwise(ROWS):
        if before.cells[2:4] != row.cells[2:4]:
            assert row.cells[5], f"line {row.line}: nothing says why"


def test_what_replays_may_be_missing(walk: Walk) -> None:
    """The end of `Two forks of it`: a replayed write whose line is not there."""
    created = walk.client.create("writer")
    walk.rest()
    source = walk.client.execution(created["id"])
    assert source["output"]["draft"] == "act one\nact two\n"
    fork = walk.client.fork(source["id"], 18)
    walk.rest()
    assert walk.client.execution(fork["id"])["output"]["draft"] == "act two\n"
