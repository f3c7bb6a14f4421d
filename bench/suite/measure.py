"""The measurements. Each returns figures; rows.py says what they mean."""

import re
import statistics
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suite import bundles, conversations, forks
from suite.world import (
    BUILD,
    REPOSITORY,
    BenchError,
    Figures,
    FileWatch,
    Server,
    World,
    free_port,
    loadgen,
    loadgen_beside,
    postgres_cluster,
    run_json,
)

CONNECTIONS = 64
PYTHON = REPOSITORY / ".venv" / "bin" / "python"
FIRST_PARKED = 1000  # of mode_parked
ROUNDS = ("hello", "disk", "kernel")  # interleaved: a machine has slow minutes
SINGLES = (
    "paced", "wal", "replay", "long", "dispatch", "rest", "idle", "sse", "start", "policy",
    "beside", "parked", "forks", "conversations", "postgres", "sandbox", "models",
)  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """Seconds and counts of one run of everything."""

    rounds: int = 3
    record_s: float = 5.0
    warmup_s: float = 1.0
    latency_s: float = 3.0
    hello_s: float = 2.0
    fsync_s: float = 2.0
    paced_s: float = 12.0
    wal_s: float = 10.0
    replay_steps: int = 500
    long_steps: int = 20_000
    dispatches: int = 300
    idle: int = 5000
    readers: int = 3000
    starts: int = 20
    postgres_s: float = 5.0
    policy_pairs: int = 8
    policy_s: float = 2.0
    beside_rounds: int = 3
    beside_s: float = 5.0
    parked: int = 10_000
    parked_lease_s: int = 25
    forks_s: float = 20.0
    conversations: int = 64
    conversation_rounds: int = 4
    sandbox_rounds: int = 5
    model_calls: int = 400


QUICK = Plan(
    rounds=1, record_s=2.0, warmup_s=0.5, latency_s=1.0, hello_s=1.0, fsync_s=1.0, paced_s=4.0,
    wal_s=4.0, replay_steps=100, long_steps=4000, dispatches=50, idle=2000, readers=2000, starts=5,
    postgres_s=2.0, policy_pairs=2, policy_s=1.0, beside_rounds=1, beside_s=2.0, parked=2000,
    parked_lease_s=10, forks_s=4.0, conversations=16, conversation_rounds=1,
    sandbox_rounds=1, model_calls=100,
)  # fmt: skip


def median_of(results: list[Figures], *path: str) -> float:
    values = []
    for figures in results:
        value: Any = figures
        for name in path:
            value = value[name]
        values.append(float(value))
    if not values:
        raise BenchError("nothing was measured")
    return statistics.median(values)


class Measurements:
    """Runs the plan. What fails is noted in `failures` and leaves its figures out."""

    def __init__(self, world: World, plan: Plan, say: Callable[[str], None]) -> None:
        self.world, self.plan, self.say = world, plan, say
        self.figures: dict[str, Any] = {}
        self.failures: dict[str, str] = {}

    def attempt(self, name: str, measure: Callable[[], Any]) -> None:
        """A round's figures gather in a list, all others stand alone."""
        self.say(name)
        try:
            result = measure()
        except (BenchError, OSError, subprocess.SubprocessError, RuntimeError) as error:
            self.failures[name] = str(error)
            self.say(f"  failed: {error}")
            return
        if name.startswith("round_"):
            self.figures.setdefault(name.removeprefix("round_"), []).append(result)
        else:
            self.figures[name] = result

    def run(self, only: Sequence[str] = ()) -> None:
        for _ in range(self.plan.rounds):
            for name in ROUNDS:
                if not only or "rounds" in only or name in only:
                    self.attempt(f"round_{name}", getattr(self, name))
        for name in SINGLES:
            if not only or name in only:
                self.attempt(name, getattr(self, name))

    # Rounds

    def hello(self) -> Figures:
        plan = self.plan
        with self.world.hello() as server:
            crowd = loadgen(
                server, "record", hello=True, seconds=plan.hello_s, warmup=0.2,
                connections=CONNECTIONS,
            )  # fmt: skip
            alone = loadgen(
                server, "record", hello=True, seconds=plan.hello_s / 2, warmup=0.2, connections=1
            )
        return {"crowd": crowd, "alone": alone}

    def disk(self) -> Figures:
        return run_json([BUILD / "fsync", self.world.folder, str(self.plan.fsync_s)])

    def kernel(self) -> Figures:
        plan = self.plan
        with self.world.kernel(syncs=True) as server:
            crowd = self._record(server, plan.record_s)
            alone = loadgen(
                server, "record", seconds=plan.latency_s, warmup=plan.warmup_s / 2, connections=1
            )
        return {"crowd": crowd, "alone": alone}

    def _record(self, server: Server, seconds: float, **more: Any) -> Figures:
        return loadgen(
            server, "record", seconds=seconds, warmup=self.plan.warmup_s, connections=CONNECTIONS,
            **more,
        )  # fmt: skip

    # Once each

    def paced(self) -> Figures:
        """At half of the peak that was just measured. The database file grows by checkpoints only,
        so that its growth shows that they ran."""
        peak = median_of(self.figures.get("kernel", []), "crowd", "records_per_s")
        with self.world.kernel() as server:
            assert server.database is not None
            before = server.database.stat().st_size
            result = self._record(server, self.plan.paced_s, rate=peak / 2)
            result["database_grew_bytes"] = server.database.stat().st_size - before
        return result

    def wal(self) -> Figures:
        with self.world.kernel() as server:
            assert server.database is not None
            with FileWatch(Path(f"{server.database}-wal")) as watch:
                result = self._record(server, self.plan.wal_s)
            result["largest_bytes"] = watch.largest
            result["database_bytes"] = server.database.stat().st_size
        return result

    def replay(self) -> Figures:
        with self.world.kernel() as server:
            return loadgen(server, "replay", steps=self.plan.replay_steps, connections=CONNECTIONS)

    def long(self) -> Figures:
        with self.world.kernel() as server:
            return loadgen(server, "long", steps=self.plan.long_steps, connections=1)

    def dispatch(self) -> Figures:
        with self.world.kernel() as server:
            return loadgen(server, "dispatch", count=self.plan.dispatches, connections=1)

    def rest(self) -> Figures:
        """A kernel that has answered one request, and one that has been busy."""
        with self.world.kernel() as server:
            fresh = loadgen(server, "memory", connections=1)
            self._record(server, self.plan.latency_s)
            busy = loadgen(server, "memory", connections=1)
        return {"fresh": fresh, "after_load": busy}

    def idle(self) -> Figures:
        with self.world.kernel() as server:
            return loadgen(server, "idle", count=self.plan.idle, connections=1)

    def sse(self) -> Figures:
        """Readers of one execution each, and all of them of one."""
        count = self.plan.readers
        with self.world.kernel() as server:
            each = loadgen(server, "sse", count=count, executions=count + 200, connections=16)
        with self.world.kernel() as server:
            one = loadgen(server, "sse", count=count, executions=1, connections=1)
        return {"one_each": each, "all_of_one": one}

    def start(self) -> Figures:
        """On a database that exists: its first start, which makes it, is not counted."""
        url = f"sqlite:///{self.world.new_name('start').with_suffix('.db')}"
        figures: Figures = {}
        for rounds in (1, self.plan.starts):
            port = free_port()
            command = self.world.kernel_command(url, port)
            figures["first" if rounds == 1 else "again"] = run_json(
                [BUILD / "start", str(port), str(rounds), *command]
            )
        return figures

    # Policies

    def _bundle(self, name: str, text: str) -> Path:
        path = self.world.new_name(name).with_suffix(".yaml")
        path.write_text(text)
        return path

    def policy(self) -> list[Figures]:
        """Pairs of runs on one kernel, of an agent without a bundle and of one with a hundred
        rules. The order changes from pair to pair, so that what drifts cancels out."""
        options: dict[str, dict[str, Any]] = {
            "plain": {"agent": "plain"},
            "ruled": {"agent": "ruled", "bundle": self._bundle("rules", bundles.hundred_rules())},
        }
        pairs = []
        with self.world.kernel() as server:
            for number in range(self.plan.policy_pairs):
                order = ("plain", "ruled") if number % 2 == 0 else ("ruled", "plain")
                pairs.append({
                    name: self._record(server, self.plan.policy_s, **options[name])
                    for name in order
                })  # fmt: skip
        return pairs

    def beside(self) -> Figures:
        """Others, who are decided by the same pathological bundle, at a modest rate: by themselves,
        beside 1 MiB of arguments without a bundle, and beside the same under the bundle."""
        bundle = self._bundle("slow", bundles.pathological())
        heavy: dict[str, dict[str, Any] | None] = {
            "quiet": None,
            "arguments": {"agent": "heavy-plain"},
            "pattern": {"agent": "heavy-ruled", "bundle": bundle},
        }
        figures: Figures = {name: [] for name in heavy}
        with self.world.kernel() as server:
            for _ in range(self.plan.beside_rounds):
                for name, options in heavy.items():
                    figures[name].append(self._others(server, bundle, options))
        return figures

    def _others(self, server: Server, bundle: Path, heavy: dict[str, Any] | None) -> Figures:
        plan = self.plan

        def others() -> Figures:
            return loadgen(
                server, "record", agent="others", bundle=bundle, connections=8, rate=250,
                seconds=plan.beside_s, warmup=plan.warmup_s,
            )  # fmt: skip

        if heavy is None:
            return others()
        seconds = plan.beside_s + 2 * plan.warmup_s
        with loadgen_beside(
            server, "heavy", connections=2, rate=4, seconds=seconds, **heavy
        ) as beside:
            result = others()
        result["heavy"] = beside.figures
        return result

    def parked(self) -> Figures:
        """Executions that wait for a person; and as many more, when the term of the leases that
        ended with the first has passed."""
        plan = self.plan
        with self.world.kernel() as server:
            return loadgen(
                server, "parked", agent="held", bundle=self._bundle("held", bundles.held()),
                count=plan.parked, executions=FIRST_PARKED + plan.parked, lease=plan.parked_lease_s,
                seconds=plan.parked_lease_s + 8, connections=16,
            )  # fmt: skip

    # Forks, on both databases

    def forks(self) -> Figures:
        plan = self.plan
        others = {"connections": 8, "rate": 250, "warmup": plan.warmup_s}
        cluster, _ = postgres_cluster(self.world.folder)
        figures: Figures = {}
        try:
            for name, url in (("sqlite", None), ("postgres", cluster.new_url())):
                with self.world.kernel(url) as server:
                    figures[name] = forks.measure(
                        server, steps=plan.long_steps, seconds=plan.forks_s, others=others
                    )
        finally:
            cluster.close()
        return figures

    def conversations(self) -> Figures:
        cluster, _ = postgres_cluster(self.world.folder)
        try:
            return conversations.measure(
                self.world, cluster, conversations=self.plan.conversations,
                rounds=self.plan.conversation_rounds,
            )  # fmt: skip
        finally:
            cluster.close()

    # The SDK, under the interpreter that has it

    def sandbox(self) -> Figures:
        return run_json([
            PYTHON, REPOSITORY / "bench" / "sandbox.py", "--json",
            "--folder", self.world.folder, "--rounds", str(self.plan.sandbox_rounds),
        ])  # fmt: skip

    def models(self) -> Figures:
        with self.world.kernel() as server:
            return run_json([
                PYTHON, REPOSITORY / "bench" / "models.py", "--json", "--calls",
                str(self.plan.model_calls), *server.options(),
            ])  # fmt: skip

    # Postgres

    def postgres(self) -> Figures:
        cluster, bin_folder = postgres_cluster(self.world.folder)
        kernel, pgbench = [], []
        try:
            for _ in range(self.plan.rounds):
                pgbench.append(self._pgbench(cluster, bin_folder))
                with self.world.kernel(cluster.new_url()) as server:
                    kernel.append(self._record(server, self.plan.postgres_s))
        finally:
            cluster.close()
        return {"kernel": kernel, "pgbench": pgbench}

    def _pgbench(self, cluster: Any, bin_folder: Path) -> Figures:
        database = cluster.create_database()
        cluster.psql(
            "CREATE TABLE steps (execution_id bigint, step_no bigint, kind text, target text,"
            " args text, status text, result text, PRIMARY KEY (execution_id, step_no));"
            "CREATE TABLE events (execution_id bigint, event_seq bigint, type text, payload text,"
            " PRIMARY KEY (execution_id, event_seq))",
            database,
        )
        command = [
            str(bin_folder / "pgbench"), "-n", "-M", "prepared", "-c", str(CONNECTIONS), "-j", "1",
            "-T", str(max(1, round(self.plan.postgres_s))),
            "-f", str(Path(__file__).with_name("pgbench.sql")), "-D", "seq=0",
            "-D", f"args={'a' * 200}", "-D", f"result={'r' * 500}", "-D", f"payload={'p' * 100}",
            "-h", "127.0.0.1", "-p", str(cluster.port), "-U", "postgres", database,
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        found = re.search(r"tps = ([0-9.]+) \(without", done.stdout)
        if done.returncode != 0 or not found:
            raise BenchError(f"pgbench: {done.stderr.strip()[-300:]}")
        return {"records_per_s": 2 * float(found.group(1))}
