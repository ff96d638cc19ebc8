"""The main results page: the comparison, the method, the results and their limits.

Every figure comes from the run; the text is valid for any result.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchmarks.candidates import ALGORITHMS
from benchmarks.figures import AIM, MEMORY_TARGETS, SHARED_TARGET, Build, Contest, Results, Spread

__all__ = ["table", "targets", "write"]

BUILD_LABELS = {"compiled": "compiled", "pure": "plain Python"}

TARGETS = """\
Times faster than the fastest peer: in memory than the fastest that has the algorithm, and with `shared://` than the
fastest of all the peers' calls to a Redis on the same machine, whatever its algorithm."""

SHARED = """\
`shared://` gives all processes of one machine the same counters, which with the peers takes a Redis. Here a check in
shared memory is compared with every call of limits and throttled-py to a Redis on the same machine, all in the same
rounds: with the fastest of them whatever its algorithm, and with those of the same algorithm."""

METHOD = """\
- {date}. {machine}.
- Versions: {versions}. Crestgate was installed twice from the same source, the second time with `CRESTGATE_PURE=1`;
  what was measured called itself {builds}.
- Each contender runs in a process of its own, with one thread of checks. They take turns of some milliseconds at
  most, each with a few checks that are not timed before those that are; who begins changes from round to round. In
  memory all make the same number of checks on each key. Against Redis, Crestgate makes several times as many as a peer,
  so that its turn is not over at once; its logs have the more entries for it.
  Rounds: {memory_rounds} in memory, {shared_rounds} with Redis.
- In memory, where nobody waits for anything, the time is the thread's processor time, so that other work of the
  machine does not count; with shared memory and Redis it is the time on the wall.
- For every round the peer's time is divided by Crestgate's, and the median of these ratios is reported. The fastest
  peer is the one with the lowest. Microseconds are medians too, and are this machine's, not yours.
- Before and after, every contender has to give the right answer, admitted or denied.
- Crestgate is called as `bound.check(key)` and returns a full decision (remaining, retry after, reset after); limits as
  `hit(item, key)` and pyrate-limiter as `try_acquire(key, blocking=False)`, which return a bool; throttled-py as
  `limit(key)`, which returns a result with its state.
- In the peers' favour: pyrate-limiter's background leaker is not started, throttled-py's store is made large enough
  never to evict, and the clean-up of limits, in a thread 10 ms after a hit, mostly falls between its turns.
- pyrate-limiter's token bucket is its GCRA under another name, and its fixed window keeps a log; throttled-py's sliding
  window is a window counter.
- Redis is a server of its own on loopback, without persistence; the peers talk to it with redis-py and hiredis."""

NOT_SAID = """\
- Nothing about many threads or processes at once: one checks at a time here, and nobody contends for a lock. (What
  Crestgate does with many callers of a Redis or a database is the second half of this page.)
- Nothing about a whole request, most of which is spent elsewhere than in a limiter.
- Nothing about logs with very many entries: a key sees about two hundred checks.
- No absolute time here is a promise, and the ratios too move with the processor and the version of Python."""


OTHER_PAGES = """\
Other pages measure it [across a network](benchmarks-network.md), with [large rule sets](benchmarks-rules.md), as a
[service](benchmarks-service.md), over [gRPC](benchmarks-rpc.md) and for [Redis clients](benchmarks-resp.md), what an
[import](benchmarks-imports.md) costs, and what [leases](benchmarks-leases.md) save."""


def write(results: Results) -> str:
    parts = [
        "# Benchmarks",
        _opening(results),
        OTHER_PAGES,
        "![Times faster than the fastest peer, per algorithm](benchmarks.svg)",
        "## Targets, reached or missed",
        TARGETS,
        targets(results),
        *_memory(results),
        *_denied(results),
        *_bytes(results),
        *_shared(results),
        "## How it was measured",
        _method(results),
        "## What this does not say",
        NOT_SAID,
    ]
    return "\n\n".join(parts) + "\n"


def targets(results: Results) -> str:
    """Every target with its measurement, as a table that is also readable in a terminal."""
    columns: dict[str, dict[str, str]] = {}
    for build in results.builds:
        target = MEMORY_TARGETS[build.name]
        aim = AIM if build.name == "compiled" else None
        name = f"memory, {BUILD_LABELS[build.name]}: {target:g}×" + (f" (aim {aim:g}×)" if aim else "")
        columns[name] = {one.algorithm: _verdict(one, target, aim) for one in build.admitted}
    for build in results.builds:
        name = f"shared, {BUILD_LABELS[build.name]}: {SHARED_TARGET:g}×"
        columns[name] = {one.algorithm: _verdict(one, SHARED_TARGET) for one in build.shared}
    rows = [[algorithm, *(found.get(algorithm, "–") for found in columns.values())] for algorithm in ALGORITHMS]
    return table(["algorithm", *columns], rows)


def _opening(results: Results) -> str:
    lines = []
    if results.quick:
        lines.append("**A quick trial: few and short rounds. `make bench` makes the real figures.**\n")
    lines += [
        "Crestgate beside other rate limiters for Python, all measured in one run on one machine with `make bench`.",
        "A figure such as 9.1 (8.2–9.9) is a median of ratios with the 10th and the 90th percentile: how many times",
        "longer the peer took than Crestgate for the same check, in the same round.",
    ]
    if not any(build.name == "compiled" for build in results.builds):
        lines.append("\n**There was no C compiler, so the compiled build is missing here.**")
    return "\n".join(lines)


def _memory(results: Results) -> Iterable[str]:
    yield "## A check in memory"
    yield (
        "One admitted check of a limit of 1,000,000 a minute, on 1,000 keys in rotation. "
        "A peer is listed where it has the algorithm."
    )
    for build in results.builds:
        yield f"Crestgate {BUILD_LABELS[build.name]}:"
        yield _contests(build.admitted)


def _denied(results: Results) -> Iterable[str]:
    yield "## A denied check in memory"
    yield "The same with a limit of 1 an hour that is used up, for the algorithms of limits. There is no target."
    for build in results.builds:
        yield f"Crestgate {BUILD_LABELS[build.name]}:"
        yield _contests(build.denied)


def _contests(contests: Sequence[Contest]) -> str:
    rows = []
    for one in contests:
        for peer in sorted(one.peers, key=lambda peer: peer.times.median):
            ours = f"{one.microseconds:.2f}" if peer is one.fastest else ""
            name = one.algorithm if peer is one.fastest else ""
            rows.append([name, ours, peer.library, f"{peer.microseconds:.2f}", _times(peer.times)])
    return table(["algorithm", "Crestgate, µs", "peer", "peer, µs", "times faster (noise)"], rows)


def _bytes(results: Results) -> Iterable[str]:
    yield "## Bytes per key"
    yield (
        f"What a fresh key costs after one check, over {results.keys_for_bytes:,} keys, as tracemalloc counts it; "
        "the text of the key is part of it for those who keep it."
    )
    names = [build.name for build in results.builds]
    rows = []
    for algorithm, peers in results.peers_bytes_per_key.items():
        ours = [build.bytes_per_key[algorithm] for build in results.builds]
        leanest = min(peers.values(), default=0.0)
        peer_sizes = ", ".join(f"{name} {size:,.0f}" for name, size in sorted(peers.items(), key=lambda item: item[1]))
        shares = [f"{size / leanest:.2f}" if leanest else "–" for size in ours]
        rows.append([algorithm, *(f"{size:,.0f}" for size in ours), peer_sizes, " / ".join(shares)])
    of_leanest = "Crestgate ÷ leanest peer" + (" (" + " / ".join(BUILD_LABELS[name] for name in names) + ")")
    yield table(["algorithm", *(f"Crestgate {BUILD_LABELS[name]}" for name in names), "peers", of_leanest], rows)


def _shared(results: Results) -> Iterable[str]:
    yield "## Shared memory, and Redis on loopback"
    yield SHARED
    for build in results.builds:
        yield f"Crestgate {BUILD_LABELS[build.name]}:"
        yield _shared_table(build)
    if results.builds and results.builds[0].shared:
        yield f"The peers' calls, in the rounds with Crestgate {BUILD_LABELS[results.builds[0].name]}:"
        peers = sorted(results.builds[0].shared[0].peers, key=lambda peer: peer.microseconds)
        rows = [[peer.library, peer.algorithm, f"{peer.microseconds:.0f}"] for peer in peers]
        yield table(["peer with Redis", "algorithm", "µs"], rows)


def _shared_table(build: Build) -> str:
    rows = []
    for one in build.shared:
        alike = "; ".join(f"{peer.library} {_times(peer.times)}" for peer in one.alike) or "–"
        fastest = f"{_times(one.fastest.times)}"
        rows.append([one.algorithm, f"{one.microseconds:.2f}", fastest, alike])
    header = ["algorithm", "Crestgate, µs", "times faster than the fastest call", "than the same algorithm"]
    return table(header, rows)


def _method(results: Results) -> str:
    text = METHOD.format(
        date=results.date,
        machine=", ".join(f"{name}: {value}" for name, value in results.machine.items()),
        versions=", ".join(f"{name} {version}" for name, version in results.versions.items()),
        builds=" and ".join(f"“{build.version}”" for build in results.builds),
        memory_rounds=_span(one.rounds for build in results.builds for one in build.admitted),
        shared_rounds=_span(one.rounds for build in results.builds for one in build.shared),
    )
    return "\n".join([text, *(f"- Left out, because it failed: {problem}." for problem in results.left_out)])


def _verdict(one: Contest, target: float, aim: float | None = None) -> str:
    times = one.fastest.times
    word = "reached" if times.median >= target else "**missed**"
    if aim is not None and times.median >= aim:
        word = "reached, the aim too"
    return f"{_times(times)} {word}"


def _times(times: Spread) -> str:
    return f"{times.median:.1f} ({times.low:.1f}–{times.high:.1f})"


def _span(values: Iterable[int]) -> str:
    ordered = sorted(set(values)) or [0]
    return " to ".join(str(value) for value in dict.fromkeys((ordered[0], ordered[-1])))


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table that is also readable in a terminal."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    lines = [header, ["-" * width for width in widths], *rows]
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    )
