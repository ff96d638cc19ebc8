"""From turns to ratios: medians of the ratios within a round, with their spread as noise."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from benchmarks.figures import Spread, spread
from benchmarks.rpc.entry import BARE, OURS, Entry
from benchmarks.service.results import Turn

__all__ = ["Measured", "Outcome", "Results"]


@dataclass(frozen=True)
class Measured:
    """One entry and its turns."""

    entry: Entry
    turns: list[Turn]

    def median(self, field: str) -> float:
        values: list[float] = [getattr(turn, field) for turn in self.turns]
        return median(values)

    def ratio(self, other: Measured) -> Spread:
        """Its calls per second divided by the other's, round by round."""
        pairs = zip(self.turns, other.turns, strict=True)
        return spread([mine.per_second / its.per_second for mine, its in pairs])


@dataclass(frozen=True)
class Outcome:
    """The result of one contest."""

    connections: int
    calls: int
    measured: list[Measured]

    def of(self, entry: Entry) -> Measured:
        return next(one for one in self.measured if one.entry == entry)

    @property
    def bare(self) -> Measured:
        """The faster of grpcio's echoes on asyncio."""
        return max((self.of(entry) for entry in BARE), key=lambda one: one.median("per_second"))

    @property
    def ours(self) -> Measured:
        """The echo on our own listener."""
        return self.of(OURS)


@dataclass(frozen=True)
class Results:
    """A complete run."""

    quick: bool
    date: str
    machine: dict[str, str]
    versions: dict[str, str]
    build: str
    """What the Crestgate that was measured says of itself."""
    outcomes: list[Outcome]
    megabytes: dict[str, float]
    """What the processes of each server held after the last turn, by its name."""
    rounds: int
    turn_seconds: int
    seconds: float
