"""The page about services in other languages: a table for each number of keys, and how it was measured."""

from __future__ import annotations

from benchmarks.figures import Spread
from benchmarks.formatting import described, in_times, table, targets_table
from benchmarks.peer_services.results import LIGHT, Measured, Results, aims, named

__all__ = ["targets", "write"]

TITLE = "# Benchmarks beside other services"

OPENING = """\
`ShouldRateLimit` of `crestgate serve` with one worker beside rate limit services in other languages, all on one and the
same core, asked by the same client over gRPC: without a pause, and at a light {light:,} calls a second with times fixed
beforehand. A figure such as 2.3 (2.1–2.5) is a median of the ratios within a round, with the 10th and the 90th
percentile over the rounds."""

READING = f"""\
“Processor, µs” is the processor time of the service's processes for one call without a pause, and “per core” is how
many times as many calls Crestgate answers for the same processor time: on Redis beside services on Redis, in memory
beside those in memory. Calls per second are by the clock; the client and Redis need the other core, so the faster a
service is, the more they hold it up. At {LIGHT:,}/s there is little to send together, so latencies and processor time
are those of single calls."""

METHOD = """\
- {date}. {machine}.
- Versions: {versions}. The service called itself “{build}”.
- Others are installed by package name (`go install`), into a folder that is not part of the repository.
- Each service is a child process on loopback, bound to one core; the client and Redis share what is left of the
  {cores}. Go sees one core, and uses one. All are started before the first turn, and idle while it is not theirs.
- 4 connections with up to 16 calls under way on each; users in rotation, each with a limit that nobody reaches. Before
  all turns a call must be answered with an admission, and in them every call with a message.
- envoyproxy/ratelimit: one limit per user, statistics off, everything else as it is by default; “pipelines” is with
  `REDIS_PIPELINE_WINDOW=150us`, which sends commands to Redis together. It counts with INCRBY and EXPIRE. Each target
  is measured beside the better of the two. gubernator: one node, a token bucket. Crestgate: the same limits in the
  format of envoyproxy/ratelimit, one worker, metrics on, headers in every response; only its deadline in Redis is 5 s.
- A turn takes {turn} s, and its first fifth does not count. Rounds that count: {rounds}.
- It took {seconds:.0f} seconds."""


def write(results: Results) -> str:
    parts = [TITLE]
    if results.quick:
        parts.append("**A quick trial: few and short rounds.**")
    if "(compiled)" not in results.build:
        parts.append("**There was no C compiler, so this is Crestgate in plain Python.**")
    parts.append(OPENING.format(light=LIGHT))
    parts += ["## Targets beside other services, met or missed", targets(results)]
    parts += ["Not measured here:", "\n".join(f"- {_sentence(one)}" for one in results.left_out)]
    parts += ["## Calls per core, and latency", READING]
    for keys in results.keys:
        parts += [f"With {named(keys)}:", _table(results, keys)]
    parts += ["## How other services were measured", _method(results)]
    return "\n\n".join(parts) + "\n"


def targets(results: Results) -> str:
    found = aims(results)
    return targets_table(found) if found else "None: no other service could be installed."


def _table(results: Results, keys: int) -> str:
    rows = []
    for one in (one for one in results.measured if one.keys == keys):
        over = "" if one.entry.served == "crestgate" else in_times(_ours(results, one).per_core(one))
        rows.append([one.entry.label, f"{one.per_second:,.0f}", f"{one.processor:.1f}", over, *_light(results, one)])
    columns = ["calls/s", "processor, µs", "Crestgate per core ÷ it"]
    return table(["", *columns, "p50 / p99 ms", "Crestgate's ÷ its", f"µs at {LIGHT:,}/s"], rows)


def _light(results: Results, one: Measured) -> list[str]:
    p50, p99 = (one.latency(part) / 1000 for part in (0.5, 0.99))
    beside = ""
    if one.entry.served != "crestgate":
        ratios: list[Spread] = [_ours(results, one).latency_ratio(one, part) for part in (0.5, 0.99)]
        beside = " / ".join(f"{ratio.median:.2f}" for ratio in ratios)
    return [f"{p50:.2f} / {p99:.2f}", beside, f"{one.light_processor:.0f}"]


def _ours(results: Results, other: Measured) -> Measured:
    return results.ours(other.entry.store, other.keys)


def _sentence(text: str) -> str:
    whole = " ".join(text.split())
    return whole if whole.endswith(".") else f"{whole}."


def _method(results: Results) -> str:
    return METHOD.format(
        date=results.date,
        machine=described(results.machine),
        versions=described(results.versions),
        build=results.build,
        cores=results.machine["cores"],
        turn=results.turn_seconds,
        rounds=results.rounds,
        seconds=results.seconds,
    )
