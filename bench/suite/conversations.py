"""Conversations, each call of which carries all that was said: what they take and what they cost,
beside a kernel that stores every payload whole (bench/variants/whole.c)."""

from collections.abc import Callable
from typing import Any

from suite.world import BUILD, Figures, Server, World, loadgen

TURNS = 50  # of 2 KB each
CONNECTIONS = 16
KERNELS = {"chunks": None, "whole": BUILD / "rebuno-whole"}  # None: the program itself

Size = Callable[[], int]


def _talk(server: Server, count: int) -> Figures:
    return loadgen(
        server, "talk", steps=TURNS, connections=min(CONNECTIONS, count), executions=count
    )


def _on_sqlite(world: World, count: int, binary: Any) -> Figures:
    """The file is complete once the kernel has ended."""
    with world.kernel(binary=binary) as server:
        assert server.database is not None
        database = server.database
        before = database.stat().st_size
        figures = _talk(server, count)
    figures["stored_bytes"] = database.stat().st_size - before
    return figures


def _on_postgres(world: World, cluster: Any, count: int, binary: Any) -> Figures:
    name = cluster.create_database()
    size = f"SELECT pg_database_size('{name}')"
    with world.kernel(cluster.url(name), binary=binary) as server:
        before = int(cluster.psql(size))
        figures = _talk(server, count)
        figures["stored_bytes"] = int(cluster.psql(size)) - before
    return figures


def measure(world: World, cluster: Any, *, conversations: int, rounds: int) -> Figures:
    """Rounds of both kernels on both databases. The order changes from round to round, so that what
    drifts cancels out."""
    runs: dict[str, Callable[[Any], Figures]] = {
        "sqlite": lambda binary: _on_sqlite(world, conversations, binary),
        "postgres": lambda binary: _on_postgres(world, cluster, conversations, binary),
    }
    found: Figures = {database: {kernel: [] for kernel in KERNELS} for database in runs}
    for number in range(rounds):
        for database, run in runs.items():
            for kernel in list(KERNELS)[:: 1 if number % 2 == 0 else -1]:
                found[database][kernel].append(run(KERNELS[kernel]))
    return found
