"""The section of the page about frameworks: tables with every figure of the run, and what they mean."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.formatting import in_times, milliseconds, missed, table, targets_table
from benchmarks.frameworks.entry import PLENTY
from benchmarks.frameworks.measure import CONNECTIONS, DEADLINE_MS
from benchmarks.frameworks.results import PEERS_TARGET, Measured, Results, aims

__all__ = ["targets", "write"]

TITLE = "# Benchmarks of the web frameworks"

OPENING = f"""\
An application of FastAPI with one route, which answers `{{"hello": "world"}}`, asked by wrk without a pause on
{CONNECTIONS} connections: without limits, with Crestgate's, and with those of slowapi and fastapi-limiter. Everybody
has one limit of {PLENTY:,} requests a minute for each client, which is never reached. A figure such as 0.91 (0.88–0.93)
is again a median of the ratios within a round, with the 10th and the 90th percentile over the rounds."""

LOCAL = """\
“÷ no limits” is what is left of the requests per second of the application without a limit, and “longer” by how much
one request after another takes longer than there. Processor time is the application's for a request, as the system
counts it. Targets are for the middleware; the decorators are there for information."""

REDIS = """\
All count in one Redis on the same machine. “Calls” is how many times it was called for a request, by its own count:
Crestgate asks in one call about all requests that come at the same time. “Redis, µs” is its processor time for a
request."""

CEILING = """\
No limit makes an application faster than it is without one, and without one it answers only {ceilings}.
So a target of {target:g}× was out of anybody's reach there."""

METHOD = """\
- {date}. {machine}.
- Versions: {versions}. Crestgate called itself “{build}”.
- Each application is a child process on loopback: uvicorn with uvloop and httptools, one worker, no access log. All are
  started before the first turn, and idle while it is not theirs. wrk has one thread; it, the application and Redis
  share the {cores} cores.
- A turn is one run of wrk of {turn} s, with new connections. In each round everybody has one, and who begins changes;
  a whole round is run before the first that counts. Rounds that count: {rounds}.
- Before, everybody was started with a limit of one request a minute, and had to refuse the next. In the turns
  everything had to be answered with 200, and afterwards nobody may have complained in its log, as Crestgate does where
  a store does not answer.
- Everything is as it is by default, and as its documentation says. Crestgate: the client's address, a token bucket, and
  headers on every response; only its deadline in Redis is {deadline:g} s. slowapi: `get_remote_address`, a fixed window
  and no headers; a decorator without its middleware, or `SlowAPIMiddleware` with `default_limits`. fastapi-limiter: a
  `RedisBucket` of pyrate-limiter, which is a log, and one for all clients; with the asynchronous client of redis-py,
  and with the blocking one. All of redis-py's connections have hiredis.
- All requests come from one address, so they are one counter.
- Redis is a server of its own, without persistence; each application has a database in it.
- It took {seconds:.0f} seconds."""

NOT_SAID = """\
What this does not say: a real route does more than this one, so a limit is a smaller part of it. Loopback has no
distance: where Redis is on another machine, who waits for it with the event loop, as slowapi does, answers nobody
meanwhile. Latencies are those of an application that is asked as fast as it answers."""


def write(results: Results) -> str:
    parts = [TITLE]
    if results.quick:
        parts.append("**A quick trial: few and short rounds.**")
    if "(compiled)" not in results.build:
        parts.append("**There was no C compiler, so this is Crestgate in plain Python.**")
    parts += [OPENING, "![Requests per second, with and without limits](benchmarks-frameworks.svg)"]
    parts += [
        "## Targets of the frameworks, met or missed",
        targets(results),
        missed(aims(results)),
        _ceiling(results),
    ]
    on_machine = [one for one in results.measured if one.entry.store in ("memory", "shared")]
    parts += ["## Counters on this machine", LOCAL, _table(results, on_machine)]
    parts += ["## Counters in Redis", REDIS, _table(results, results.ours("redis") + results.peers("redis"))]
    parts += ["Crestgate's requests per second, divided by theirs:", _beside(results)]
    parts += ["## How the frameworks were measured", _method(results), NOT_SAID]
    return "\n\n".join(part for part in parts if part) + "\n"


def targets(results: Results) -> str:
    return targets_table(aims(results))


def _ceiling(results: Results) -> str:
    """Where the application itself is too slow for a target, say so."""
    ceilings = [(peer, results.bare.ratio(peer)) for peer in results.peers("redis")]
    low = [
        f"{in_times(times)} times as many requests as with {peer.entry.library} ({peer.entry.integration})"
        for peer, times in ceilings
        if times.median < PEERS_TARGET
    ]
    return CEILING.format(ceilings=", and ".join(low), target=PEERS_TARGET) if low else ""


def _table(results: Results, measurements: Sequence[Measured]) -> str:
    header = ["", "requests/s", "÷ no limits", "longer, µs", "p50 / p99 ms", "processor, µs"]
    on_redis = any(one.entry.store == "redis" for one in measurements)
    rows = []
    for one in (results.bare, *measurements):
        bare = one is results.bare
        row = [one.entry.label, f"{one.median('per_second'):,.0f}", "" if bare else in_times(one.ratio(results.bare))]
        row += ["" if bare else f"{one.longer(results.bare).median:.0f}", _milli(one), f"{one.median('processor'):.0f}"]
        if on_redis:
            row += ["", ""] if bare else [f"{one.median('calls'):.2f}", f"{one.median('redis_processor'):.0f}"]
        rows.append(row)
    return table(header + (["calls", "Redis, µs"] if on_redis else []), rows)


def _beside(results: Results) -> str:
    """Crestgate's ways across, the peers' down; the last column is the most that there can be."""
    ours = results.ours("redis")
    rows = []
    for peer in results.peers("redis"):
        ratios = [in_times(one.ratio(peer)) for one in (*ours, results.bare)]
        rows.append([f"÷ {peer.entry.library}, {peer.entry.integration}", *ratios])
    return table(["", *(one.entry.integration for one in ours), "no limits"], rows)


def _method(results: Results) -> str:
    return METHOD.format(
        date=results.date,
        machine=", ".join(f"{name}: {value}" for name, value in results.machine.items()),
        versions=", ".join(f"{name} {version}" for name, version in results.versions.items()),
        build=results.build,
        cores=results.machine["cores"],
        turn=results.turn_seconds,
        rounds=results.rounds,
        deadline=DEADLINE_MS / 1000,
        seconds=results.seconds,
    )


def _milli(one: Measured) -> str:
    return milliseconds(one.median("p50"), one.median("p99"))
