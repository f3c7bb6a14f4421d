"""The named points of src/base/fault.h, where a test lets the kernel die, and how it gets there.

A new point in the source is one line here: tests/system/test_faults.py then kills the kernel at it
while its traffic runs, and fails while a point stands in one of the two places only.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.kernel import REPOSITORY

# `make FAULT=1`
FAULT_BINARY = Path(os.environ.get("REBUNO_FAULT_BIN", REPOSITORY / "build" / "fault" / "rebuno"))
BOTH = ("sqlite", "postgres")


@dataclass(frozen=True)
class Point:
    name: str
    passings: tuple[int, ...] = (1, 5, 40)  # at each it dies, one life after another
    databases: tuple[str, ...] = BOTH
    traffic: str = "runs"  # what goes on meanwhile, by its name in test_faults.py
    fails: bool = False  # in the source FAULT_FAILS: it may fail instead
    at_start: bool = False  # passed by each start, on an empty database too


POINTS = [
    # The start: the migrations are made, then committed.
    Point("store.migrate.before_commit", (1,), at_start=True),
    Point("store.open.after", (1,), at_start=True),
    # What the kernel before it had in hand has been taken up.
    Point("engine.recovery.after", (1, 1)),
    # A group of commands, from its load to its answers.
    Point("store.load.before", (1, 4, 60), fails=True),
    Point("store.apply.before"),
    Point("store.commit.before", fails=True),
    Point("store.commit.after"),
    Point("engine.signals.before"),
    Point("engine.answers.before"),
    Point("engine.answers.between"),
    # SQLite's log: written, synced, copied into the database, started anew.
    Point("sqlite.log.write", databases=("sqlite",), traffic="large runs", fails=True),
    Point("sqlite.log.sync", databases=("sqlite",), fails=True),
    Point("sqlite.checkpoint.half", (1, 2), ("sqlite",), "large runs"),
    Point("sqlite.checkpoint.copied", (1, 2), ("sqlite",), "large runs"),
    Point("sqlite.checkpoint.restart", (1, 2), ("sqlite",), "large runs"),
    Point("sqlite.checkpoint.restarted", (1, 2), ("sqlite",), "large runs"),
    # COMMIT has left, its answer has not been read.
    Point("postgres.commit.sent", databases=("postgres",)),
    # A fork: its source pinned, a part of it written, all of it but its appearance.
    Point("fork.begun", (1, 3, 7), traffic="forks"),
    Point("fork.part", (1, 3, 7), traffic="forks"),
    Point("fork.finish.before", (1, 3, 7), traffic="forks"),
    # A delivery: claimed, then posted; answered, then recorded.
    Point("dispatch.post.before", (1, 2, 7)),
    Point("dispatch.answered", (1, 2, 7)),
]


def cases(points: list[Point]) -> pytest.MarkDecorator:
    """Each point on each database that has it."""
    pairs = [(database, point) for point in points for database in point.databases]
    ids = [f"{database}-{point.name}" for database, point in pairs]
    return pytest.mark.parametrize(("database", "point"), pairs, ids=ids, indirect=["database"])
