"""From turns to ratios, and the targets: medians of the ratios within a round, with their spread as noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.aims import Aim, at_least, at_most
from benchmarks.figures import Spread, spread
from benchmarks.latency.histogram import percentile
from benchmarks.latency.results import Turn
from benchmarks.peer_services.entry import Entry

__all__ = ["GUBERNATOR_AIM", "LATENCY_AIM", "LIGHT", "RATELIMIT_AIM", "Measured", "Results", "aims", "named"]

LIGHT = 2_000
"""Calls per second at light load."""
RATELIMIT_AIM = 3.0
"""Times the calls of envoyproxy/ratelimit for the same processor time, with Redis on both sides."""
LATENCY_AIM = 1.0
"""Times its latency at light load."""
GUBERNATOR_AIM = 1.0
"""Times the calls of gubernator for the same processor time."""


@dataclass(frozen=True)
class Measured:
    """One service with a number of keys: turns without a pause, and turns at light load."""

    entry: Entry
    keys: int
    full: list[Turn]
    light: list[Turn]

    @property
    def per_second(self) -> float:
        return median(turn.per_second for turn in self.full)

    @property
    def processor(self) -> float:
        return median(turn.processor for turn in self.full)

    @property
    def light_processor(self) -> float:
        return median(turn.processor for turn in self.light)

    def latency(self, part: float) -> float:
        return median(percentile(turn.histogram, part) for turn in self.light)

    def per_core(self, other: Measured) -> Spread:
        """How many times as many calls it answers for the same processor time, round by round."""
        pairs = zip(self.full, other.full, strict=True)
        return spread([its.processor / mine.processor for mine, its in pairs])

    def latency_ratio(self, other: Measured, part: float) -> Spread:
        pairs = zip(self.light, other.light, strict=True)
        return spread([percentile(mine.histogram, part) / percentile(its.histogram, part) for mine, its in pairs])


@dataclass(frozen=True)
class Results:
    """A complete run."""

    quick: bool
    date: str
    machine: dict[str, str]
    versions: dict[str, str]
    build: str
    measured: list[Measured]
    rounds: int
    turn_seconds: float
    seconds: float
    left_out: list[str]

    def ours(self, store: str, keys: int) -> Measured:
        return self.of("crestgate", store, keys)[0]

    def of(self, served: str, store: str, keys: int) -> list[Measured]:
        return [
            one for one in self.measured if one.entry.served == served and one.entry.store == store and one.keys == keys
        ]

    @property
    def keys(self) -> list[int]:
        return sorted({one.keys for one in self.measured})


def named(keys: int) -> str:
    return "one key" if keys == 1 else f"{keys:,} keys"


def aims(results: Results) -> list[Aim]:
    """Every target that could be measured: of what is not installed there is none."""
    found: list[Aim] = []
    for keys in results.keys:
        found += _beside_ratelimit(results, keys)
        ours = results.ours("memory", keys)
        for other in results.of("gubernator", "memory", keys):
            what = f"gRPC per core, {named(keys)}: Crestgate ÷ gubernator, both in memory"
            found.append(at_least(what, ours.per_core(other), GUBERNATOR_AIM))
    return found


def _beside_ratelimit(results: Results, keys: int) -> list[Aim]:
    others = results.of("ratelimit", "redis", keys)
    if not others:
        return []
    ours = results.ours("redis", keys)
    best, times = min(((other, ours.per_core(other)) for other in others), key=lambda pair: pair[1].median)
    what = f"gRPC per core, {named(keys)}: Crestgate ÷ envoyproxy/ratelimit, both on Redis"
    found = [at_least(what, times, RATELIMIT_AIM, best.entry.label)]
    for part, name in ((0.5, "p50"), (0.99, "p99")):
        best, times = _slowest_ratio(ours, others, part)
        what = f"gRPC at {LIGHT:,}/s, {named(keys)}: {name} ÷ envoyproxy/ratelimit's"
        found.append(at_most(what, times, LATENCY_AIM, best.entry.label))
    return found


def _slowest_ratio(ours: Measured, others: Sequence[Measured], part: float) -> tuple[Measured, Spread]:
    """Beside the fastest of them."""
    ratios = [(other, ours.latency_ratio(other, part)) for other in others]
    return max(ratios, key=lambda pair: pair[1].median)
