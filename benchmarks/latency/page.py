"""The page about latency at fixed rates: one table for each store, and how it was measured."""

from __future__ import annotations

from benchmarks.formatting import described, table, targets_table
from benchmarks.latency.entry import SHARES
from benchmarks.latency.results import Measured, Results, aims

__all__ = ["targets", "write"]

TITLE = "# Benchmarks of latency"

OPENING = """\
How long a caller waits for `crestgate serve` with one worker when it is not asked as fast as it answers, but at a
tenth, at half and at four fifths of that rate. Requests are sent at times that are drawn before the first of them
(at random, as independent callers come), and a latency counts from that time: a stall delays all that should have been
sent meanwhile, and their waiting counts (coordinated omission)."""

READING = """\
“Capacity” is the rate without a pause, and the processor time is the service's for one request then. p50, p99 and p99.9
are over the requests of all turns; in brackets the lowest and the highest p99 of a turn. “Client late” is the 99th
percentile of how much later than planned the client came to a request (not counting that it waited for a connection):
where it is not far below the latencies, the client was too slow."""

METHOD = """\
- {date}. {machine}.
- Versions: {versions}. The service called itself “{build}”.
- The service has one core to itself; the client, Redis and MariaDB share what is left of the {cores}. The client is
  one process of Python that writes prepared bytes (benchmarks/latency/load.py). At high rates over gRPC it is nearly as
  busy as the service.
- HTTP: 32 connections with one request at a time on each (128 with MariaDB); a request that finds none free waits for
  one, and that counts. gRPC: 4 connections with up to 16 calls under way on each. 1,000 users over HTTP and 3,000 over
  gRPC in rotation, under limits that nobody reaches; every answer must be a success.
- MariaDB flushes its log to the disk at every commit (`innodb_flush_log_at_trx_commit=1`).
- A turn takes {turn} s, and its first fifth does not count. Rounds: {rounds}, in which the rates take turns.
- It took {seconds:.0f} seconds."""

NOT_SAID = """\
What this does not say: loopback has no distance, and the client needs a part of each latency for itself. One worker is
one core; with several, a stall of one delays its own connections only."""


def write(results: Results) -> str:
    parts = [TITLE]
    if results.quick:
        parts.append("**A quick trial: few and short rounds.**")
    if "(compiled)" not in results.build:
        parts.append("**There was no C compiler, so this is the service in plain Python.**")
    parts.append(OPENING)
    if aims(results):
        parts += ["## Targets of latency, met or missed", targets(results)]
    parts += ["## Latency by store and protocol", READING]
    parts.append(table(["", "rate", "calls/s", "p50 ms", "p99 ms", "p99.9 ms", "client late, ms"], _rows(results)))
    parts += ["## How latency was measured", _method(results), NOT_SAID]
    return "\n\n".join(parts) + "\n"


def targets(results: Results) -> str:
    return targets_table(aims(results))


def _rows(results: Results) -> list[list[str]]:
    rows = []
    for one in results.measured:
        rows.append([one.entry.label, f"capacity, {one.processor:.1f} µs", f"{one.capacity:,.0f}", "", "", "", ""])
        for share, part in zip(one.at, SHARES, strict=True):
            rows.append(["", share, f"{one.capacity * part:,.0f}", *_latencies(one, share)])
    return rows


def _latencies(one: Measured, share: str) -> list[str]:
    p50, p99, p999 = (one.latency(share, part) / 1000 for part in (0.5, 0.99, 0.999))
    noise = one.spread(share, 0.99)
    late = max(turn.late_p99 for turn in one.at[share]) / 1000
    shown = f"{p99:.2f} ({noise.low / 1000:.2f}–{noise.high / 1000:.2f})"
    return [f"{p50:.2f}", shown, f"{p999:.2f}", f"{late:.2f}"]


def _method(results: Results) -> str:
    text = METHOD.format(
        date=results.date,
        machine=described(results.machine),
        versions=described(results.versions),
        build=results.build,
        cores=results.machine["cores"],
        turn=results.turn_seconds,
        rounds=results.rounds,
        seconds=results.seconds,
    )
    return "\n".join([text, *(f"- Left out, because it failed: {problem}." for problem in results.left_out)])
