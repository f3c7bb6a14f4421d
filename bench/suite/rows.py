"""What the figures are held against: one row for each promise, as a table and as JSON."""

import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from suite.measure import Measurements, median_of
from suite.world import BenchError

KIB = 1024
MIB = 1024 * 1024


@dataclass(frozen=True)
class Outcome:
    """What was measured. `measured` is the number that `least` and `aim` bound."""

    value: str
    measured: float
    cpu: str = ""


@dataclass(frozen=True)
class Promise:
    what: str
    find: Callable[[Measurements], Outcome]
    unit: str  # of measured, least and aim
    least: float
    aim: float | None
    more_is_better: bool = False

    def verdict(self, measured: float) -> str:
        def reaches(bound: float) -> bool:
            return measured >= bound if self.more_is_better else measured <= bound

        if self.aim is not None and reaches(self.aim):
            return "aim"
        return "ok" if reaches(self.least) else "MISS"


def _cpu(figures: dict[str, Any]) -> str:
    """A step is a submit and a complete."""
    return f"{2 * figures['server_cpu_us_per_record']:.0f} us"


def _crowd(m: Measurements) -> Outcome:
    ours = median_of(m.figures["kernel"], "crowd", "records_per_s")
    bare = median_of(m.figures["hello"], "crowd", "records_per_s")
    cpu = 2 * median_of(m.figures["kernel"], "crowd", "server_cpu_us_per_record")
    return Outcome(f"{ours:,.0f}/s of H {bare:,.0f}/s", ours / bare, f"{cpu:.0f} us")


def _per_sync(m: Measurements) -> Outcome:
    value = median_of(m.figures["kernel"], "crowd", "records_per_sync")
    sync = median_of(m.figures["kernel"], "crowd", "data_sync_mean_us")
    return Outcome(f"{value:.1f} (a sync {sync:.0f} us)", value)


def _alone(m: Measurements) -> Outcome:
    ours = median_of(m.figures["kernel"], "alone", "submit_us", "p50")
    p99 = median_of(m.figures["kernel"], "alone", "submit_us", "p99")
    bare = median_of(m.figures["hello"], "alone", "record_us", "p50")
    disk = median_of(m.figures["disk"], "overwrite_4k_us", "p50")
    cpu = 2 * median_of(m.figures["kernel"], "alone", "server_cpu_us_per_record")
    text = f"{ours:.0f} us (p99 {p99:.0f}); F {disk:.0f} + H {bare:.0f}"
    return Outcome(text, ours / (bare + disk), f"{cpu:.0f} us")


def _idle(m: Measurements) -> Outcome:
    figures = m.figures["idle"]
    each = figures["private_bytes_each"] / KIB
    return Outcome(f"{each:.2f} KiB ({figures['count']:,} of them)", each)


def _sse(m: Measurements) -> Outcome:
    each = m.figures["sse"]["one_each"]["private_bytes_each"] / KIB
    one = m.figures["sse"]["all_of_one"]["private_bytes_each"] / KIB
    count = m.figures["sse"]["one_each"]["count"]
    return Outcome(f"{each:.2f} KiB, all of one run {one:.2f} ({count:,})", max(each, one))


def _paced(m: Measurements) -> Outcome:
    figures = m.figures["paced"]
    p50, p99 = figures["record_us"]["p50"], figures["record_us"]["p99"]
    grew = figures["database_grew_bytes"] / MIB
    text = f"p50 {p50:.0f} us, p99 {p99:.0f} us at {figures['records_per_s']:,.0f}/s"
    # Half of the load is not slower than all of it: a p50 that is was somebody else's doing, and
    # must not make the tail look good.
    usual = min(p50, median_of(m.figures["kernel"], "crowd", "record_us", "p50"))
    return Outcome(f"{text}; {grew:.0f} MiB checkpointed", p99 / usual, _cpu(figures))


def _step_cpu(m: Measurements) -> Outcome:
    cpu = 2 * median_of(m.figures["kernel"], "crowd", "server_cpu_us_per_record")
    own = 2 * median_of(m.figures["kernel"], "crowd", "loadgen_cpu_us_per_record")
    cores = median_of(m.figures["kernel"], "crowd", "server_cores")
    return Outcome(
        f"{cpu:.0f} us (generator {own:.0f} us; {cores:.2f} cores)", cpu, f"{cpu:.0f} us"
    )


def _long(m: Measurements) -> Outcome:
    f = m.figures["long"]
    text = f"CPU {f['cpu_ratio']:.2f}, median {f['median_ratio']:.2f}, wall {f['wall_ratio']:.2f}"
    # The disk's own swings are no cost of a longer log: CPU and the median do not show them.
    return Outcome(text, max(f["cpu_ratio"], f["median_ratio"]), _cpu(f))


def _replay(m: Measurements) -> Outcome:
    f = m.figures["replay"]
    ours, recorded = f["replayed"]["records_per_s"], f["recorded"]["records_per_s"]
    text = f"{ours:,.0f}/s to {recorded:,.0f}/s"
    return Outcome(text, f["ratio"], f"{f['replayed']['server_cpu_us_per_record']:.0f} us a replay")


def _dispatch(percentile: str) -> Callable[[Measurements], Outcome]:
    def find(m: Measurements) -> Outcome:
        ms = m.figures["dispatch"]["create_to_webhook_us"][percentile] / 1000
        return Outcome(f"{ms:.2f} ms", ms)

    return find


def _rest(name: str) -> Callable[[Measurements], Outcome]:
    def find(m: Measurements) -> Outcome:
        fresh = m.figures["rest"]["fresh"][name] / MIB
        busy = m.figures["rest"]["after_load"][name] / MIB
        return Outcome(f"{fresh:.1f} MiB (after load {busy:.1f})", fresh)

    return find


def _start(m: Measurements) -> Outcome:
    ms = m.figures["start"]["again"]["start_us"]["p50"] / 1000
    first = m.figures["start"]["first"]["start_us"]["p50"] / 1000
    return Outcome(f"{ms:.1f} ms (a new database: {first:.1f})", ms)


def _postgres(m: Measurements) -> Outcome:
    ours = median_of(m.figures["postgres"]["kernel"], "records_per_s")
    theirs = median_of(m.figures["postgres"]["pgbench"], "records_per_s")
    cpu = 2 * median_of(m.figures["postgres"]["kernel"], "server_cpu_us_per_record")
    return Outcome(f"{ours:,.0f}/s to {theirs:,.0f}/s", ours / theirs, f"{cpu:.0f} us")


def _wal(m: Measurements) -> Outcome:
    f = m.figures["wal"]
    mib = f["largest_bytes"] / MIB
    text = f"{mib:.1f} MiB at {f['records_per_s']:,.0f}/s, database {f['database_bytes'] / MIB:.0f}"
    return Outcome(text, mib, _cpu(f))


def _policy(m: Measurements) -> Outcome:
    """A step is a submit and a complete."""
    cpu = "server_cpu_us_per_record"
    pairs = [(2 * p["plain"][cpu], 2 * p["ruled"][cpu]) for p in m.figures["policy"]]
    added = sorted(ruled - plain for plain, ruled in pairs)
    if not added:
        raise BenchError("nothing was measured")
    plain, ruled = (statistics.median(side) for side in zip(*pairs, strict=True))
    text = f"{plain:.1f} to {ruled:.1f} us; pairs {added[0]:+.1f} to {added[-1]:+.1f}"
    return Outcome(text, statistics.median(added), f"{ruled:.0f} us")


def _beside(m: Measurements) -> Outcome:
    """Held against the bound is what comes of the arguments and of the pattern together."""
    p99 = {
        name: median_of(m.figures["beside"][name], "record_us", "p99") / 1000
        for name in ("quiet", "arguments", "pattern")
    }
    took = median_of(m.figures["beside"]["pattern"], "heavy", "submit_us", "p50") / 1000
    text = (
        f"p99 {p99['quiet']:.1f} ms; beside them {p99['arguments']:.1f},"
        f" with the pattern {p99['pattern']:.1f} ({took:.0f} ms each)"
    )
    return Outcome(text, max(0.0, p99["pattern"] - p99["quiet"]))


def _parked(m: Measurements) -> Outcome:
    figures = m.figures["parked"]
    each = figures["private_bytes_each"] / KIB
    more = figures["private_bytes_each_more"] / KIB
    text = f"{each:.2f} KiB ({figures['count']:,} of them), as many again later {more:.2f}"
    return Outcome(text, max(each, more))


def _parked_threads(m: Measurements) -> Outcome:
    before, after = (m.figures["parked"][f"threads_{when}"] for when in ("before", "after"))
    return Outcome(f"{before} to {after}", after - before)


def _snapshot(m: Measurements) -> Outcome:
    figures = m.figures["sandbox"]
    none, some, many = (figures[f"snapshot, {count} changed"] for count in (0, 10, 1000))
    return Outcome(f"{some:.0f} ms (none {none:.0f}, 1000 {many:.0f})", some)


def _restore(name: str) -> Callable[[Measurements], Outcome]:
    def find(m: Measurements) -> Outcome:
        restored, copied = m.figures["sandbox"][name], m.figures["sandbox"]["cp -a"]
        return Outcome(f"{restored:.0f} ms to {copied:.0f} ms", restored / copied)

    return find


def _fork(database: str) -> Callable[[Measurements], Outcome]:
    def find(m: Measurements) -> Outcome:
        figures = m.figures["forks"][database]
        took = statistics.median(figures["fork_ms"])
        worst = max(figures["fork_ms"])
        return Outcome(f"{took:.0f} ms, at most {worst:.0f} ({figures['steps']:,} steps)", took)

    return find


def _delay(database: str) -> Callable[[Measurements], Outcome]:
    def find(m: Measurements) -> Outcome:
        figures = m.figures["forks"][database]
        beside, quiet = figures["beside_ms"], figures["quiet_ms"]
        slowest, usual = statistics.median(beside), statistics.median(quiet)
        text = f"{slowest:.1f} ms, without {usual:.1f}; at most {max(beside):.1f}, {max(quiet):.1f}"
        return Outcome(text, slowest - usual)

    return find


def _model_call(kind: str) -> Callable[[Measurements], Outcome]:
    """Held against the bound is what it takes longer than a bare client's call."""

    def find(m: Measurements) -> Outcome:
        figures = m.figures["models"][kind]
        ours, bare = figures["ours"], figures["bare"]
        text = (
            f"{ours['ms']:.2f} ms, bare {bare['ms']:.2f};"
            f" {figures['kernel_requests']} kernel requests"
        )
        agent = 1000 * (ours["cpu_ms"] - bare["cpu_ms"])
        kernel = 1000 * figures["kernel_cpu_ms"]
        return Outcome(text, ours["ms"] - bare["ms"], f"{agent:.0f} + kernel {kernel:.0f} us")

    return find


def _model_memory(m: Measurements) -> Outcome:
    figures = m.figures["models"]["large"]
    length, peak = figures["bytes"] / 1e6, figures["peak_bytes"] / 1e6
    return Outcome(f"{peak:.1f} MB for {length:.1f} MB", peak / length)


def _model_live(m: Measurements) -> Outcome:
    f = m.figures["models"]["live"]
    text = f"p50 {f['p50_ms']:.0f} ms, p99 {f['p99_ms']:.0f}, max {f['max_ms']:.0f}"
    return Outcome(f"{text} ({f['chunks']} chunks)", f["p99_ms"])


def _stored(database: str) -> Callable[[Measurements], Outcome]:
    """Of all that the database grew by, logs and indexes too."""

    def find(m: Measurements) -> Outcome:
        runs = m.figures["conversations"][database]["chunks"]
        part = median_of(runs, "stored_bytes") / median_of(runs, "logical_bytes")
        return Outcome(f"{median_of(runs, 'logical_bytes') / MIB:.0f} MiB of payloads", 100 * part)

    return find


def _spoken(database: str, rate: str, cpu: str) -> Callable[[Measurements], Outcome]:
    """Against a kernel that stores every payload whole, pair by pair."""

    def find(m: Measurements) -> Outcome:
        runs = m.figures["conversations"][database]
        pairs = zip(runs["chunks"], runs["whole"], strict=True)
        ratio = statistics.median(ours[rate] / whole[rate] for ours, whole in pairs)
        ours, whole = (median_of(runs[kernel], rate) for kernel in ("chunks", "whole"))
        spent, bare = (median_of(runs[kernel], cpu) for kernel in ("chunks", "whole"))
        return Outcome(
            f"{ours:,.0f}/s, whole {whole:,.0f}/s", ratio, f"{spent:.0f} us, whole {bare:.0f}"
        )

    return find


PROMISES = [
    Promise("step records/s, SQLite FULL, 64 connections", _crowd, "H", 0.15, 0.30, True),
    Promise("records per sync, 64 connections", _per_sync, "", 12, 24, True),
    Promise("submit p50, one connection, idle", _alone, "(F+H)", 1.8, 1.3),
    Promise("memory of an idle connection", _idle, "KiB", 4, 1),
    Promise("memory of an SSE reader", _sse, "KiB", 6, 2),
    Promise("p99 at half of peak, checkpoints running", _paced, "p50", 8, 4),
    Promise("kernel CPU a step, 64 connections", _step_cpu, "us", 60, 30),
    Promise("step cost, last thousand to first", _long, "x", 1.2, 1.05),
    Promise("replayed submissions/s to recorded", _replay, "x", 1.5, 3, True),
    Promise("create to webhook's first byte, p50", _dispatch("p50"), "ms", 2, 1),
    Promise("create to webhook's first byte, p99", _dispatch("p99"), "ms", 20, 10),
    Promise("memory at rest, private", _rest("private_dirty"), "MiB", 6, 3),
    Promise("memory at rest, resident", _rest("resident"), "MiB", 18, 14),
    Promise("start to first answer", _start, "ms", 60, 30),
    Promise("100 rules, 10 regexes: added CPU a step", _policy, "us", 5, 2),
    Promise("others beside 1 MiB and slow patterns: added p99", _beside, "ms", 5, None),
    Promise("fork of a long run, SQLite", _fork("sqlite"), "ms", 1000, 400),
    Promise("fork of a long run, Postgres", _fork("postgres"), "ms", 1000, 400),
    Promise("others beside a fork: added to slowest, SQLite", _delay("sqlite"), "ms", 20, 5),
    Promise("others beside a fork: added to slowest, Postgres", _delay("postgres"), "ms", 20, 5),
    Promise("memory of a parked execution", _parked, "KiB", 2, None),
    Promise("threads that parked executions add", _parked_threads, "", 0, None),
    Promise("Postgres, 64 connections, to pgbench", _postgres, "x", 1.0, 2.5, True),
    Promise("50 turns of 2 KB, stored, SQLite", _stored("sqlite"), "%", 10, 5),
    Promise("50 turns of 2 KB, stored, Postgres", _stored("postgres"), "%", 10, 5),
    Promise(
        "their records/s, SQLite, to stored whole",
        _spoken("sqlite", "records_per_s", "server_cpu_us_per_record"), "x", 0.7, 1, True,
    ),
    Promise(
        "their records/s, Postgres, to stored whole",
        _spoken("postgres", "records_per_s", "server_cpu_us_per_record"), "x", 0.7, 1, True,
    ),
    Promise(
        "reading one back, SQLite, to stored whole",
        _spoken("sqlite", "reads_per_s", "read_cpu_us"), "x", 0.7, 0.9, True,
    ),
    Promise("WAL file under a steady writer", _wal, "MiB", 64, None),
    Promise("snapshot of 10,000 files, 10 changed", _snapshot, "ms", 150, 75),
    Promise("restore of the same, to cp -a", _restore("restore"), "x", 0.5, 0.25),
    Promise("restore without a spare, to cp -a", _restore("second restore at once"), "x", 3, 1.5),
    Promise("model call, recorded: added", _model_call("recorded"), "ms", 2, 1),
    Promise("model call, replayed: added", _model_call("replayed"), "ms", 1, 0.5),
    Promise("model's first chunk once allowed: added", _model_call("first chunk"), "ms", 1, 0.5),
    Promise("memory of a streamed answer, to its length", _model_memory, "x", 3, 2),
    Promise("model's words at a watcher, p99", _model_live, "ms", 100, 60),
]


def _number(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    text = f"{value:.2f}" if value < 10 else f"{value:.1f}"
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text} {unit}".strip()


def _missing(m: Measurements, error: Exception) -> str:
    name = str(error.args[0]) if error.args else ""
    return m.failures.get(name) or m.failures.get(f"round_{name}") or "not run"


def rows_of(m: Measurements) -> list[dict[str, Any]]:
    rows = []
    for promise in PROMISES:
        bounds = {"least": promise.least, "aim": promise.aim, "unit": promise.unit}
        try:
            outcome = promise.find(m)
            found = {**asdict(outcome), "verdict": promise.verdict(outcome.measured)}
        except (KeyError, BenchError) as error:  # the other rows are shown all the same
            found = {"value": _missing(m, error), "measured": None, "cpu": "", "verdict": "?"}
        rows.append({"what": promise.what, **found, **bounds})
    return rows


def table_of(rows: list[dict[str, Any]]) -> str:
    cells = [("what", "value", "CPU a step", "ratio", "at least", "aim", "")]
    for row in rows:
        unit = row["unit"]
        cells.append((
            row["what"], row["value"][:70], row["cpu"], _number(row["measured"], unit),
            _number(row["least"], unit), _number(row["aim"], unit), row["verdict"],
        ))  # fmt: skip
    widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
    lines = [" | ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) for line in cells]
    lines.insert(1, "-|-".join("-" * w for w in widths))
    return "\n".join(line.rstrip() for line in lines)
