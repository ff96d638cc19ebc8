"""The page about growth: one table for everything that can be one or many."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from benchmarks.figures import spread
from benchmarks.formatting import described, in_times, milliseconds, table, targets_table
from benchmarks.growth.results import Results, Times, aims, beside_dict, growth
from benchmarks.growth.rule_sets import LOADED, SIZES, SOURCES
from benchmarks.growth.workers import CALLS, CONNECTIONS

__all__ = ["targets", "write"]

TITLE = "# Benchmarks of growth"

OPENING = """\
What a check costs when there are more keys, limits, rules, callers, processes or workers. A figure such as
1.9 (1.8–2.1) is how many times as much as in the first row, in the same round: a median with the 10th and the 90th
percentile over the rounds."""

KEYS = """\
Microseconds of processor time for an admitted check of a token bucket, on so many keys in an order drawn at random.
Beside it is a bare dict with the same keys in the same order, of which one entry is read and written: more keys do not
fit into the processor's caches, and that much is the machine's. “÷ the dict's” is the growth of the check divided by
the growth of the dict."""

CHAIN = "Microseconds of processor time for a check of one key under so many limits at once: all or nothing."

RULES = """\
Which rules apply to a request is found along its path, and by who asks. Three apply here, of a user, an address and
everybody; half of the others are for paths of their own, the rest for single users, addresses, keys and clients, on
shared paths and on every path. Microseconds of processor time to find them."""

CALLERS = """\
Tasks of one process that check in a Redis without a pause, on 1,000 keys: the more wait at the same time, the more
share one call."""

PROCESSES = """\
Processes that check without a pause, on 1,000 keys: in one shared memory, which all of them count in, and each in its
own memory. More processes than cores take turns."""

WORKERS = f"""\
`crestgate serve` with so many workers, counters in shared memory, over HTTP (wrk, 32 connections) and gRPC (h2load,
{CONNECTIONS} connections with {CALLS} calls on each). The client shares the cores with the workers, so with all cores
busy more workers cannot answer more."""


def write(results: Results) -> str:
    parts = [TITLE]
    if results.quick:
        parts.append("**A quick trial: few and short rounds, and fewer keys.**")
    if "(compiled)" not in results.build:
        parts.append("**There was no C compiler, so this is Crestgate in plain Python.**")
    parts += [OPENING, "![How the cost of a check grows](benchmarks-growth.svg)"]
    parts += ["## Targets of growth, met or missed", targets(results)]
    parts += ["## Keys", KEYS]
    for store, times in results.keys.items():
        parts += [f"In {_STORES[store]}:", _keys(times)]
    parts += ["## Limits in a chain", CHAIN, _chain(results)]
    parts += ["## Rules", RULES, _resolving(results), *_loading(results)]
    parts += ["## Callers", CALLERS, _callers(results)]
    parts += ["## Processes of one machine", PROCESSES, _processes(results)]
    parts += ["## Workers of the service", WORKERS, _workers(results)]
    parts += ["## How growth was measured", _method(results)]
    return "\n\n".join(parts) + "\n"


def targets(results: Results) -> str:
    return targets_table(aims(results))


_STORES = {"memory": "memory", "shared": "shared memory"}


def _keys(times: Times) -> str:
    ours, bare = times["crestgate"], times["dict"]
    first = next(iter(ours))
    rows = []
    for size, mine in ours.items():
        row = [f"{int(size):,}", f"{median(mine):.2f}", f"{median(bare[size]):.3f}"]
        if size == first:
            row += ["", "", ""]
        else:
            ratios = (growth(mine, ours[first]), growth(bare[size], bare[first]), beside_dict(times, size))
            row += [in_times(one) for one in ratios]
        rows.append(row)
    return table(["keys", "check, µs", "dict, µs", "check ÷ one key", "dict ÷ one key", "÷ the dict's"], rows)


def _chain(results: Results) -> str:
    rows = []
    for length in next(iter(results.chain.values()))["crestgate"]:
        row = [length]
        for times in results.chain.values():
            ours = times["crestgate"]
            first = ours[next(iter(ours))]
            row += [f"{median(ours[length]):.2f}", in_times(growth(ours[length], first)) if length != "1" else ""]
        rows.append(row)
    columns = [column for store in results.chain for column in (f"{_STORES[store]}, µs", "÷ one limit")]
    return table(["limits", *columns], rows)


def _resolving(results: Results) -> str:
    rows = []
    for size in SIZES:
        one = results.rules["resolving"][str(size)]
        ratio = "" if size == SIZES[0] else f"{one['ratio']:.2f} ({one['low']:.2f}–{one['high']:.2f})"
        rows.append([f"{size:,}", f"{one['us']:.1f}", ratio])
    return table(["rules", "µs", f"÷ {SIZES[0]} rules"], rows)


def _loading(results: Results) -> Iterable[str]:
    loading = results.rules["loading"]
    yield f"Loading {LOADED:,} rules until a catalog has them, every one checked, and what the process grew by at most:"
    rows = [
        [SOURCES[source_kind], f"{one['seconds']:.1f}", f"{one['megabytes']:.0f}"]
        for source_kind, one in loading.items()
    ]
    yield table(["from", "seconds", "MB"], rows)
    if "sqlite" in loading:
        yield f"A change of one rule among them then takes {loading['sqlite']['change_ms']:.0f} ms."


def _callers(results: Results) -> str:
    outcome = results.callers
    first = outcome.measured[0]
    rows = []
    for one in outcome.measured:
        over = "" if one is first else in_times(outcome.ratio(one, first))
        latency = milliseconds(one.median("p50"), one.median("p99"))
        rows.append([one.entry.label, f"{one.median('per_second'):,.0f}", over, latency])
    return table(["callers", "checks/s", "÷ one caller", "p50 / p99 ms"], rows)


def _processes(results: Results) -> str:
    rows = []
    for count in next(iter(results.processes.values())):
        row = [count]
        for turns in results.processes.values():
            rates, first = ([turn["per_second"] for turn in turns[which]] for which in (count, "1"))
            used = median(turn["processor"] for turn in turns[count])
            row += [f"{median(rates):,.0f}", "" if count == "1" else in_times(growth(rates, first)), f"{used:.2f}"]
        rows.append(row)
    columns = [
        column
        for store in results.processes
        for column in (f"{_STORES[store]}: checks/s", "÷ one process", "processor, µs")
    ]
    return table(["processes", *columns], rows)


def _workers(results: Results) -> str:
    rows = []
    for count in next(iter(results.workers.values())):
        row = [count]
        for turns in results.workers.values():
            rates, first = ([turn.per_second for turn in turns[which]] for which in (count, "1"))
            used = spread([turn.processor for turn in turns[count]])
            row += [f"{median(rates):,.0f}", "" if count == "1" else in_times(growth(rates, first))]
            row.append(f"{used.median:.1f}")
        row.append(f"{median(turn.megabytes for turns in results.workers.values() for turn in turns[count]):.0f}")
        rows.append(row)
    columns = [column for name in ("HTTP", "gRPC") for column in (f"{name}/s", "÷ one worker", "processor, µs")]
    return table(["workers", *columns, "memory, MB"], rows)


def _method(results: Results) -> str:
    keys = len(next(iter(next(iter(results.keys.values()))["crestgate"].values())))
    return "\n".join(
        [
            f"- {results.date}. {described(results.machine)}. Crestgate called itself “{results.build}”.",
            "- Keys, chains and rules are measured in one process each, in which all sizes are there at once and take",
            f"  turns; who begins changes each round. Rounds: {keys}. The time is the thread's processor time.",
            "- Processes, callers and workers are processes of their own, and their rates are by the clock. Memory is",
            "  what all processes of a service hold together; shared memory counts in each of them.",
            f"- It took {results.seconds:.0f} seconds.",
        ]
    )
