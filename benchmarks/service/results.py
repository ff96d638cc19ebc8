"""From turns to ratios, and the targets: medians of the ratios within a round, with their spread as noise."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from benchmarks.aims import Aim, at_least_rate
from benchmarks.figures import Spread, spread
from benchmarks.service.entry import BATCH, Entry

__all__ = ["BATCH_TARGET", "Measured", "Outcome", "Results", "Turn", "aims"]

BATCH_TARGET = 100_000
"""Decisions in batches for a second of processor time, at least."""


@dataclass(frozen=True)
class Turn:
    """The result of one turn. Latencies are in microseconds, and so is the server's processor time for a request."""

    per_second: float
    """Requests."""
    p50: float
    p99: float
    processor: float


@dataclass(frozen=True)
class Measured:
    """One entry and its turns."""

    entry: Entry
    turns: list[Turn]

    def median(self, field: str) -> float:
        values: list[float] = [getattr(turn, field) for turn in self.turns]
        return median(values)

    @property
    def decisions(self) -> float:
        """Per second."""
        return self.median("per_second") * self.entry.decisions


@dataclass(frozen=True)
class Outcome:
    """The result of one contest: the echo first, then the plain check, then the others."""

    workers: int
    measured: list[Measured]
    rounds: int
    seconds: int
    """Of one turn."""

    @property
    def echo(self) -> Measured:
        return self.measured[0]

    @property
    def plain(self) -> Measured:
        return self.measured[1]

    @property
    def side_by_side(self) -> list[Measured]:
        return [one for one in self.measured if not one.entry.why]

    @property
    def costs(self) -> list[Measured]:
        """The entries that show the cost of a feature beside the plain check."""
        return [one for one in self.measured if one.entry.why]

    def ratio(self, one: Measured, other: Measured, field: str = "per_second") -> Spread:
        """One divided by the other, round by round."""
        pairs = zip(one.turns, other.turns, strict=True)
        return spread([getattr(mine, field) / getattr(its, field) for mine, its in pairs])

    def decisions_ratio(self, one: Measured, other: Measured) -> Spread:
        times = one.entry.decisions / other.entry.decisions
        found = self.ratio(one, other)
        return Spread(found.median * times, found.low * times, found.high * times)


@dataclass(frozen=True)
class Results:
    """A complete run."""

    quick: bool
    date: str
    machine: dict[str, str]
    versions: dict[str, str]
    build: str
    """What the service that was measured says of itself."""
    outcomes: list[Outcome]
    counting: dict[str, list[float]]
    """Microseconds that metrics take, by what was counted: see counting.py."""
    seconds: float


def aims(results: Results) -> list[Aim]:
    """For batches, by the processor time of all processes: what a core does, whatever the others do."""
    found = []
    for outcome in results.outcomes:
        workers = f"{outcome.workers} worker{'s' if outcome.workers > 1 else ''}"
        for one in outcome.side_by_side[1:]:
            if one.entry.decisions > 1:
                per_core = spread([one.entry.decisions * 1e6 / turn.processor for turn in one.turns])
                what = f"HTTP, batches of {BATCH}, {workers}: decisions/s and core"
                found.append(at_least_rate(what, per_core, BATCH_TARGET))
    return found
