"""The section of the page about the service: tables with every figure of the run, and what they mean."""

from __future__ import annotations

from benchmarks.figures import spread
from benchmarks.formatting import in_times, milliseconds, table, targets_table
from benchmarks.service.entry import BATCH, USERS
from benchmarks.service.results import Measured, Outcome, Results, aims
from benchmarks.service.wrk import CONNECTIONS

__all__ = ["targets", "write"]

TITLE = "# Benchmarks of the service"

OPENING = f"""\
`crestgate serve` over HTTP, asked by wrk without a pause on {CONNECTIONS} connections. Beside it is the least that a
server can do: an application of a few lines that reads the body and sends it back, on uvicorn with uvloop and
httptools and without an access log. What a check falls short of it is what deciding, counting and saying so costs. A
figure such as 0.74 (0.70–0.77) is again a median of the ratios within a round, with the 10th and the 90th percentile
over the rounds."""

SIDE_BY_SIDE = f"""\
{USERS:,} users, or as many keys, in rotation; counters are in shared memory, as they are by default. “By rule” names a
user, an endpoint and a method, and one rule applies; “by key and policy” names a key alone, which is under the
default policy; a batch has {BATCH} checks of the first kind. The echo gets the body of the first. Processor time is
that of the server's processes for a request, as the system counts it."""

COSTS = """\
The same check by rule, with one thing changed, against the plain one in the same rounds, with one worker. 0.90 means
nine tenths of its requests per second. The plain check is open, has metrics, and no line in the log: so it is by
default."""

METRICS = """\
Metrics cannot be turned off, so they were timed by themselves: everything that is counted and timed for one check took
{rule} µs by rule and {key} µs by key. That is processor time, and an upper bound (see below); the first is {share:.1%}
of the {processor:.1f} µs that the plain check takes the server as a whole. Once a second a worker writes its numbers
down, which took {publishing:.2f} ms."""

METHOD = """\
- {date}. {machine}.
- Versions: {versions}. The service called itself “{build}”.
- All servers of a table are child processes on loopback, started before the first turn, and idle while it is not
  theirs; who is idle still writes its numbers down every second. wrk has one thread, and shares the {cores} cores with
  the server: with two workers there are three that want to run.
- A turn is one run of wrk of {turn} s, with new connections. In each round everybody has one, and who begins changes;
  a whole round is run before the first that counts. Rounds that count: {rounds}.
- With several workers, which of them gets a connection is up to the system, with the echo as with the service. One may
  get many more than the other, and the whole is then slower: the noise is larger for it.
- The bodies are made before the clock runs. Rules and the default policy allow 1,000,000 in a minute or more, so that
  nothing is denied. Everything must be answered with 200, and afterwards the service's own metrics must have counted
  every check that wrk saw answered, all of them allowed.
- `server.limits.checks`, a node's own ceiling of 100,000 checks a second, was raised to 1,000,000,000 in all services,
  because batches would reach it. For single checks this changes nothing: a worker takes portions of 1,000 from either.
- The key of a check is one made with `crestgate keys create --scope check`. The log goes into a file. Shared
  memory has room for some tens of thousands of idempotency keys, so the oldest go before their five minutes are over.
  Redis keeps nothing on disk, and is asked in batches of what comes at the same time.
- What metrics do for a check was called from plain Python, which makes each call dearer than it is inside the compiled
  service.
- It took {seconds:.0f} seconds."""

NOT_SAID = """\
What this does not say: wrk and the server share one machine, and loopback has no distance. Latencies are those of a
server that is asked as fast as it answers: their median is little more than the connections divided by the rate, and
who asks less often waits less."""


def write(results: Results) -> str:
    parts = [TITLE]
    if results.quick:
        parts.append("**A quick trial: few and short rounds.**")
    if "(compiled)" not in results.build:
        parts.append("**There was no C compiler, so this is the service in plain Python.**")
    parts += [OPENING, "![Requests per second, and what they cost](benchmarks-service.svg)"]
    parts += ["## Targets of the service, met or missed", targets(results)]
    parts += ["## A check beside an echo", SIDE_BY_SIDE]
    for outcome in results.outcomes:
        parts += ["One worker:" if outcome.workers == 1 else f"{outcome.workers} workers:", _side_by_side(outcome)]
    for outcome in results.outcomes:
        if outcome.costs:
            parts += ["## What a check pays for", COSTS, _costs(outcome), _metrics(results, outcome)]
    parts += ["## How the service was measured", _method(results), NOT_SAID]
    return "\n\n".join(parts) + "\n"


def targets(results: Results) -> str:
    return targets_table(aims(results))


def _side_by_side(outcome: Outcome) -> str:
    rows = []
    for one in outcome.side_by_side:
        over = "" if one is outcome.echo else in_times(outcome.ratio(one, outcome.echo))
        single = "" if one.entry.decisions == 1 else in_times(outcome.decisions_ratio(one, outcome.plain))
        decisions = "–" if one is outcome.echo else f"{one.decisions:,.0f}"
        processor = f"{one.median('processor'):,.1f}"
        rows.append(
            [one.entry.label, f"{one.median('per_second'):,.0f}", over, decisions, single, _milli(one), processor]
        )
    header = ["", "requests/s", "÷ echo", "decisions/s", "÷ single checks", "p50 / p99 ms", "processor, µs"]
    return table(header, rows)


def _costs(outcome: Outcome) -> str:
    rows = []
    for one in outcome.costs:
        times = outcome.ratio(one, outcome.plain)
        more = one.median("processor") - outcome.plain.median("processor")
        rows.append(
            [
                one.entry.label,
                f"{one.median('per_second'):,.0f}",
                in_times(times),
                f"{more:+.1f}",
                _milli(one),
                one.entry.why,
            ]
        )
    plain = outcome.plain
    first = ["plain", f"{plain.median('per_second'):,.0f}", "", "", _milli(plain), "by rule, counters in shared memory"]
    header = ["check", "requests/s", "÷ plain", "processor, µs more", "p50 / p99 ms", "what is changed"]
    return table(header, [first, *rows])


def _metrics(results: Results, outcome: Outcome) -> str:
    found = {what: spread(values) for what, values in results.counting.items()}
    processor = outcome.plain.median("processor")
    return METRICS.format(
        rule=in_times(found["rule"]),
        key=in_times(found["key"]),
        share=found["rule"].median / processor,
        processor=processor,
        publishing=found["publishing"].median / 1000,
    )


def _method(results: Results) -> str:
    return METHOD.format(
        date=results.date,
        machine=", ".join(f"{name}: {value}" for name, value in results.machine.items()),
        versions=", ".join(f"{name} {version}" for name, version in results.versions.items()),
        build=results.build,
        cores=results.machine["cores"],
        turn=results.outcomes[0].seconds,
        rounds=" and ".join(f"{one.rounds} (workers: {one.workers})" for one in results.outcomes),
        seconds=results.seconds,
    )


def _milli(one: Measured) -> str:
    return milliseconds(one.median("p50"), one.median("p99"))
