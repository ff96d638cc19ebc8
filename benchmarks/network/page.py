"""The section of the page about stores across a network: tables with every figure of the run, and what they mean."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.candidates import ALGORITHMS
from benchmarks.figures import Spread
from benchmarks.formatting import in_times, milliseconds, table, targets_table
from benchmarks.network.contests import LIGHT
from benchmarks.network.results import (
    PEERS_TARGET,
    REQUIRED_PER_SECOND,
    Measured,
    Outcome,
    Results,
    aims,
)

__all__ = ["targets", "write"]

TITLE = "# Benchmarks across a network"

OPENING = """\
Stores that are asked over a socket: Redis, MariaDB, PostgreSQL, and SQLite for its file. The time goes into round
trips and into waiting for a disk, so what counts is how many checks share one of them. A figure such as
6.1 (5.2–7.0) is again a median of the ratios within a round, with the 10th and the 90th percentile over the rounds."""

REDIS = """\
A hundred tasks of one process check without a pause, on 1,000 keys in rotation. Each peer appears with every algorithm
that it has on an asynchronous Redis store. “Crestgate one by one” is the same store without batches: each check is a
call of its own, on as many connections as there are tasks. “Crestgate with leases” takes slices of the limit in
advance, and decides most checks in its own process (`lease=True`); the limit holds for all processes together."""

SEQUENCE = """\
One caller that waits for each answer, so nothing can be shared: what a check costs beyond the call that it cannot do
without. Beside it is redis-py with an EVALSHA of three lines of Lua (INCR, and EXPIRE the first time), nothing else."""

DATABASES = f"""\
Every admitted check is committed; MariaDB and PostgreSQL flush their logs to the disk at each commit
(`innodb_flush_log_at_trx_commit=1`, `synchronous_commit=on`). “One transaction per check” is written by hand with the
same driver: SELECT … FOR UPDATE, UPDATE and COMMIT, a connection for each thread, all rows there beforehand. “Crestgate
one by one” is its store with one check a transaction; Crestgate is compared with whichever of them is fastest. A
database was required to carry {REQUIRED_PER_SECOND:,} checks per second."""

ONE_KEY = """\
All want the same key. With a lock for each check that is the worst case; in a batch it is the best, since the key is
read and written once."""

BATCHING = f"""\
What waiting for company costs when there is little: {LIGHT} checks a second come at random, whether or not the last
one is answered. Then the same two under a hundred tasks without a pause."""

METHOD = """\
- {date}. {machine}.
- Versions: {versions}.
- Servers are child processes on loopback with data in a temporary folder, one kind at a time; they share the {cores}
  cores with the contender whose turn it is. Redis keeps nothing on disk. A flush to the disk of that folder took
  {flush} when the run began.
- Each contender runs in a process of its own and waits there for its turn. A turn lasts a part of a second (2 seconds
  at light load), and its first fifth does not count; in each round everybody has one, and who begins changes. A whole
  round is run before the first that counts.
- The limit is 1,000,000 a day for each key (100,000,000 for one key), so that nothing is denied and no counter expires
  meanwhile; every answer must be an admission, and every one of Crestgate's the store's own.
- Crestgate's algorithm is the token bucket where no other is named, in the compiled build where “plain Python” is not
  said; its deadline is 5 seconds, and everything else as it is by default.
- In the peers' favour: redis-py gets a connection for each of a hundred tasks (with 1,000 they wait in line for these);
  limits is measured with redis-py and with coredis; pyrate-limiter is called as `try_acquire`, since its
  `try_acquire_async` lets in one task at a time.
- It took {seconds:.0f} seconds."""

NOT_SAID = """\
What this does not say: loopback has no distance, and over a real network a round trip takes longer for everybody, so
sharing it saves more. Server and clients share one machine, so a faster client takes time from its server."""


def write(results: Results) -> str:
    parts = [TITLE]
    if results.quick:
        parts.append("**A quick trial: few and short rounds.**")
    parts += [OPENING, "![Checks per second, and latencies](benchmarks-network.svg)"]
    parts += ["## Targets across a network, met or missed", targets(results)]
    for name, section in SECTIONS.items():
        if name in results.outcomes:
            parts += section(results)
    parts += ["## How that was measured", _method(results), NOT_SAID]
    return "\n\n".join(parts) + "\n"


def targets(results: Results) -> str:
    """Every target with its measurement, as a table that is also readable in a terminal."""
    return targets_table(aims(results))


def _redis(results: Results) -> Iterable[str]:
    outcome = results.outcomes["redis"]
    yield "## Redis, a hundred tasks"
    yield REDIS
    rows = []
    for algorithm in ALGORITHMS:
        one = outcome[f"Crestgate {algorithm}"]
        best = outcome.over_best(one, outcome.peers)
        alike = outcome.over_best(one, [peer for peer in outcome.peers if peer.entry.algorithm == algorithm])
        word = "–" if best is None else "met" if best[1].median >= PEERS_TARGET else "**missed**"
        rows.append([algorithm, f"{one.median('per_second'):,.0f}", _over(best), _over(alike), word])
    yield table(["Crestgate", "checks/s", "÷ best peer", "÷ best with the same", f"{PEERS_TARGET:g}×"], rows)
    yield _all(outcome, "Crestgate token_bucket")


def _thousand(results: Results) -> Iterable[str]:
    yield "With 1,000 tasks:"
    yield _all(results.outcomes["1,000 callers"], "Crestgate")


def _sequence(results: Results) -> Iterable[str]:
    outcome = results.outcomes["sequence"]
    yield "## Redis, one caller"
    yield SEQUENCE
    rows = []
    for more, how in (("", "thread"), (", async", "task")):
        ours, bare = outcome[f"Crestgate{more}"], outcome[f"redis-py{more}"]
        p50, p99 = (in_times(outcome.ratio(ours, bare, field)) for field in ("p50", "p99"))
        rows.append([how, _micro(ours), _micro(bare), p50, p99])
    yield table(["one", "Crestgate, p50 / p99 µs", "redis-py, p50 / p99 µs", "p50 ÷ p50", "p99 ÷ p99"], rows)


def _one_key(results: Results) -> Iterable[str]:
    outcome = results.outcomes["one key"]
    yield "## One key that everybody wants"
    yield ONE_KEY
    yield "Redis:"
    yield _all(outcome, "Crestgate")
    if "mariadb" in results.outcomes:
        database = results.outcomes["mariadb"]
        ours = [one for one in database.of("crestgate") if one.entry.callers == 100]
        rows = [[one.entry.label, f"{one.median('per_second'):,.0f}", _milli(one)] for one in ours]
        yield "MariaDB:"
        yield table(["contender", "checks/s", "p50 / p99 ms"], rows)


def _databases(results: Results) -> Iterable[str]:
    yield "## Databases"
    yield DATABASES
    for name, title in (("mariadb", "MariaDB"), ("postgresql", "PostgreSQL"), ("sqlite", "SQLite")):
        if name in results.outcomes:
            outcome = results.outcomes[name]
            yield f"{title}:"
            rows = []
            for one in outcome.measured:
                best = outcome.over_best(one, outcome.transactions) if one.entry.library == "crestgate" else None
                rate = one.median("per_second")
                share = f"{rate / REQUIRED_PER_SECOND:.1f}×"
                over = "–" if best is None else in_times(best[1])
                rows.append([one.entry.label, f"{rate:,.0f}", share, _milli(one), over])
            header = [
                "contender",
                "checks/s",
                f"of {REQUIRED_PER_SECOND:,}",
                "p50 / p99 ms",
                "÷ one transaction per check",
            ]
            yield table(header, rows)


def _batching(results: Results) -> Iterable[str]:
    yield "## Batches, and one by one"
    yield BATCHING
    rows = []
    light = results.outcomes["light load"]
    places = [(f"{LIGHT} arrivals a second", light, light["Crestgate"], light["Crestgate one by one"])]
    full = results.outcomes.get("redis")
    if full is not None and full.has("Crestgate one by one"):
        places.append(("100 tasks", full, full["Crestgate token_bucket"], full["Crestgate one by one"]))
    for load, outcome, ours, single in places:
        ratios = [in_times(outcome.ratio(ours, single, field)) for field in ("p50", "p99", "per_second")]
        rows.append([load, _micro(ours), _micro(single), *ratios])
    header = [
        "load",
        "batches, p50 / p99 µs",
        "one by one, p50 / p99 µs",
        "p50 ÷ p50",
        "p99 ÷ p99",
        "checks/s ÷ checks/s",
    ]
    yield table(header, rows)


SECTIONS = {
    "redis": _redis,
    "1,000 callers": _thousand,
    "one key": _one_key,
    "sequence": _sequence,
    "mariadb": _databases,
    "light load": _batching,
}


def _all(outcome: Outcome, reference: str) -> str:
    """All contenders, the fastest first."""
    ours = outcome[reference]
    rows = []
    for one in sorted(outcome.measured, key=lambda one: -one.median("per_second")):
        over = "" if one is ours else in_times(outcome.ratio(ours, one))
        rows.append([one.entry.label, f"{one.median('per_second'):,.0f}", _milli(one), over])
    return table(["contender", "checks/s", "p50 / p99 ms", f"{reference} ÷ it"], rows)


def _method(results: Results) -> str:
    machine = {name: value for name, value in results.machine.items() if name != "flush"}
    text = METHOD.format(
        date=results.date,
        machine=", ".join(f"{name}: {value}" for name, value in machine.items()),
        versions=", ".join(f"{name} {version}" for name, version in results.versions.items()),
        cores=results.machine["cores"],
        flush=results.machine["flush"],
        seconds=results.seconds,
    )
    rounds = ", ".join(f"{outcome.rounds} ({name})" for name, outcome in results.outcomes.items())
    lines = [text, f"- Rounds that count: {rounds}."]
    return "\n".join([*lines, *(f"- Left out, because it failed: {problem}." for problem in results.left_out)])


def _over(best: tuple[Measured, Spread] | None) -> str:
    return "–" if best is None else f"{in_times(best[1])}, {best[0].entry.label}"


def _micro(one: Measured) -> str:
    return f"{one.median('p50'):,.0f} / {one.median('p99'):,.0f}"


def _milli(one: Measured) -> str:
    return milliseconds(one.median("p50"), one.median("p99"))
