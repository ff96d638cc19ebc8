"""The numbers of one worker at one moment, as they are written to its file, and the sum of several.

Counters only ever grow: a worker that is replaced goes on from what the one before it wrote last. What is a state and
not a count (rules, breakers, what remains) is told only by workers that wrote lately.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["FRESH_US", "Measured", "Snapshot", "merged"]

FRESH_US = 15_000_000
"""How old a worker's numbers may be for its states to count. Its counters always do."""
MOST_REMAINING = 1_000


@dataclass(slots=True)
class Measured:
    """A histogram: how many fell into each bucket (the last is for all that is more), and their sum."""

    counts: list[int]
    total: float = 0.0


@dataclass(slots=True)
class Snapshot:
    """What a worker has counted, and how it stands."""

    at_us: int = 0
    sequence: int = 0
    """Of two snapshots of one worker, the later has the greater one."""
    decisions: list[tuple[str, str, int, int, int]] = field(default_factory=list)
    """Rule, dimension; allowed, denied, and what a shadow rule would have denied."""
    requests: list[tuple[str, int, int]] = field(default_factory=list)
    """Plane, status; how many."""
    events: dict[str, int] = field(default_factory=dict)
    """Plain counters by name."""
    pressure: dict[str, int] = field(default_factory=dict)
    """Transitions by the state they led to."""
    caches: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Hits and misses by cache."""
    durations: Measured | None = None
    batches: Measured | None = None
    skews: Measured | None = None
    rules: int = 0
    breakers: dict[str, int] = field(default_factory=dict)
    """By server: 0 closed, 1 half-open, 2 open."""
    remaining: list[tuple[str, str, int, int]] = field(default_factory=list)
    """Rule, key, what remains; when, in microseconds since the epoch."""


def merged(snapshots: Sequence[Snapshot], now_us: int) -> Snapshot:
    """The sum of all workers."""
    whole = Snapshot(at_us=now_us)
    decisions: dict[tuple[str, str], tuple[int, int, int]] = {}
    requests: dict[tuple[str, int], int] = {}
    remaining: dict[tuple[str, str], tuple[int, int]] = {}
    for one in snapshots:
        for rule, dimension, allowed, denied, shadowed in one.decisions:
            before = decisions.get((rule, dimension), (0, 0, 0))
            decisions[rule, dimension] = (before[0] + allowed, before[1] + denied, before[2] + shadowed)
        for plane, status, count in one.requests:
            requests[plane, status] = requests.get((plane, status), 0) + count
        _add(whole.events, one.events)
        _add(whole.pressure, one.pressure)
        for cache, (hits, misses) in one.caches.items():
            known = whole.caches.get(cache, (0, 0))
            whole.caches[cache] = (known[0] + hits, known[1] + misses)
        whole.durations = _sum(whole.durations, one.durations)
        whole.batches = _sum(whole.batches, one.batches)
        whole.skews = _sum(whole.skews, one.skews)
        if one.at_us < now_us - FRESH_US:
            continue
        whole.rules = max(whole.rules, one.rules)
        for server, state in one.breakers.items():
            whole.breakers[server] = max(whole.breakers.get(server, 0), state)
        for rule, subject, left, at_us in one.remaining:
            if at_us >= remaining.get((rule, subject), (0, 0))[1]:
                remaining[rule, subject] = (left, at_us)
    whole.decisions = [(*labels, *numbers) for labels, numbers in sorted(decisions.items())]
    whole.requests = [(*labels, count) for labels, count in sorted(requests.items())]
    whole.remaining = sorted((*labels, *numbers) for labels, numbers in remaining.items())[:MOST_REMAINING]
    return whole


def _add(whole: dict[str, int], counts: dict[str, int]) -> None:
    for name, count in counts.items():
        whole[name] = whole.get(name, 0) + count


def _sum(whole: Measured | None, one: Measured | None) -> Measured | None:
    """Buckets are those of this version: what another one wrote in others cannot be added up."""
    if one is None or (whole is not None and len(whole.counts) != len(one.counts)):
        return whole
    if whole is None:
        return Measured(list(one.counts), one.total)
    return Measured([a + b for a, b in zip(whole.counts, one.counts, strict=True)], whole.total + one.total)
