"""From turns to percentiles and targets. Percentiles are of all turns together; their spread is that of the turns."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

from benchmarks.aims import Aim, at_least_rate
from benchmarks.figures import Spread, spread
from benchmarks.latency.entry import Entry
from benchmarks.latency.histogram import percentile, summed

__all__ = ["DATABASE_AIM", "Measured", "Results", "Turn", "aims"]

DATABASE_AIM = 10_000
"""Checks per second over HTTP with full durability."""
DATABASE_MS = 3.0
"""Milliseconds that a check may take at half of the rate with a database."""


@dataclass(frozen=True)
class Turn:
    """The result of a turn: the rate of answers, the server's processor time for one, latencies, and how late calls
    were sent. All times are in microseconds."""

    per_second: float
    processor: float
    histogram: dict[int, int] = field(default_factory=dict)
    late_p99: float = 0.0


@dataclass(frozen=True)
class Measured:
    """One entry: turns without a pause, and turns at each share of that rate."""

    entry: Entry
    full: list[Turn]
    at: dict[str, list[Turn]]
    """By share, as a text: 0.5 is `50 %`."""

    @property
    def capacity(self) -> float:
        return median(turn.per_second for turn in self.full)

    @property
    def processor(self) -> float:
        return median(turn.processor for turn in self.full)

    def latency(self, share: str, part: float) -> float:
        return percentile(summed(turn.histogram for turn in self.at[share]), part)

    def spread(self, share: str, part: float) -> Spread:
        return spread([percentile(turn.histogram, part) for turn in self.at[share]])


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


def aims(results: Results) -> list[Aim]:
    """For HTTP with a database, the rate, and the latency at half of it."""
    found = []
    for one in results.measured:
        if one.entry.store == "mariadb":
            rates = spread([turn.per_second for turn in one.full])
            found.append(at_least_rate(f"{one.entry.label}, durable: checks/s of one worker", rates, DATABASE_AIM))
            for part, name in ((0.5, "p50"), (0.99, "p99")):
                taken = one.spread("50 %", part)
                shown = Spread(taken.median / 1000, taken.low / 1000, taken.high / 1000)
                what = f"{one.entry.label}, durable: {name} at half of that, ms"
                found.append(Aim(what, f"≤ {DATABASE_MS:g} ms", shown, shown.median <= DATABASE_MS))
    return found
