"""The page of what happens within a machine: the comparison, the method, the results and their limits.

Every figure comes from the run; the text is valid for any result.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchmarks.aims import Aim, at_least
from benchmarks.candidates import ALGORITHMS
from benchmarks.figures import FORMS, Build, Contest, Results, Spread
from benchmarks.formatting import table, targets_table

__all__ = ["aims", "table", "targets", "write"]

MEMORY_AIM, DENIED_AIM, SHARED_AIM = 15.0, 6.0, 25.0
"""How many times faster than the fastest peer: in memory, in memory when denied, in shared memory than in Redis."""

BUILD_LABELS = {"compiled": "compiled", "pure": "plain Python"}

TARGETS = """\
Times faster than the fastest peer: in memory than the fastest that has the algorithm, and with `shared://` than the
fastest of all the peers' calls to a Redis on the same machine, whatever its algorithm. In memory the limit is given as
an object or as a text (`limiter.check(key, limit)`), and the slower of the two counts; it is named in brackets."""

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
  An empty call of Python took {empty:.2f} µs here. Rounds: {memory_rounds} in memory, {shared_rounds} with Redis.
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
- Nothing about many threads or processes at once: one checks at a time here, and nobody contends for a lock. (Other
  pages say what many callers of a [Redis or a database](benchmarks-network.md) get, and [how cost
  grows](benchmarks-growth.md).)
- Nothing about a whole request, most of which is spent elsewhere than in a limiter.
- Nothing about logs with very many entries: a key sees about two hundred checks.
- No absolute time here is a promise, and the ratios too move with the processor and the version of Python."""


def write(results: Results) -> str:
    parts = [
        "# Benchmarks within a machine",
        _opening(results),
        "![Times faster than the fastest peer, per algorithm](benchmarks-machine.svg)",
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
    return targets_table(aims(results))


def aims(results: Results) -> list[Aim]:
    """Of the build that users have: the compiled one, where it could be built."""
    build = results.builds[0]
    found = []
    places = (("admitted", build.admitted, MEMORY_AIM), ("denied", build.denied, DENIED_AIM))
    for kind, contests, target in places:
        for algorithm in ALGORITHMS:
            one = build.slowest_form(contests, algorithm)
            if one is not None:
                what = f"memory, {algorithm}, {kind}: ÷ fastest peer"
                found.append(at_least(what, one.fastest.times, target, f"{one.form}, {one.fastest.library}"))
    for one in build.shared:
        fastest = one.fastest
        note = f"{fastest.library}, {fastest.algorithm}"
        found.append(at_least(f"shared memory, {one.algorithm}: ÷ fastest Redis call", fastest.times, SHARED_AIM, note))
    return found


def _opening(results: Results) -> str:
    lines = []
    if results.quick:
        lines.append("**A quick trial: few and short rounds. `make bench` makes the real figures.**\n")
    lines += [
        "Crestgate beside other rate limiters for Python, in one process and on one machine.",
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
        yield f"Crestgate {BUILD_LABELS[build.name]}, with limits prepared once (`bound.check(key)`):"
        yield _contests(build.admitted)
    yield from _forms(results, "admitted")


def _denied(results: Results) -> Iterable[str]:
    yield "## A denied check in memory"
    yield "The same with a limit of 1 an hour that is used up."
    for build in results.builds:
        if build.denied:
            yield f"Crestgate {BUILD_LABELS[build.name]}:"
            yield _contests(build.denied)
    yield from _forms(results, "denied")


def _forms(results: Results, kind: str) -> Iterable[str]:
    """By form of the call, the compiled build's time and how many times faster than the fastest peer it is."""
    build = results.builds[0]
    contests: Sequence[Contest] = build.admitted if kind == "admitted" else build.denied
    rows = []
    for algorithm in ALGORITHMS:
        found = {one.form: one for one in contests if one.algorithm == algorithm}
        if found:
            cells = [f"{one.microseconds:.2f} µs, {_times(one.fastest.times)}" for one in map(found.get, FORMS) if one]
            rows.append([algorithm, *cells])
    if rows and build.has_forms:
        yield f"By how the limit is given, {kind}; times faster than the fastest peer:"
        yield table(["algorithm", "prepared once", "an object", "a text"], rows)


def _contests(contests: Sequence[Contest]) -> str:
    rows = []
    for one in (one for one in contests if one.form == "bound"):
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
        empty=results.builds[0].empty_call,
        memory_rounds=_span(one.rounds for build in results.builds for one in build.admitted),
        shared_rounds=_span(one.rounds for build in results.builds for one in build.shared),
    )
    return "\n".join([text, *(f"- Left out, because it failed: {problem}." for problem in results.left_out)])


def _times(times: Spread) -> str:
    return f"{times.median:.1f} ({times.low:.1f}–{times.high:.1f})"


def _span(values: Iterable[int]) -> str:
    ordered = sorted(set(values)) or [0]
    return " to ".join(str(value) for value in dict.fromkeys((ordered[0], ordered[-1])))
