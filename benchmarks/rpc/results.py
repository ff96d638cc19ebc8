"""From turns to ratios, and the targets: medians of the ratios within a round, with their spread as noise."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from benchmarks.figures import Spread, spread
from benchmarks.network.results import Aim
from benchmarks.rpc.entry import BARE, ONE, OURS, Entry
from benchmarks.service.results import Turn

__all__ = ["BARE_TARGET", "ECHO_TARGET", "Measured", "Outcome", "Results", "aims"]

ECHO_TARGET = 0.7
"""The calls per second of ShouldRateLimit, as a share of the bare echo's on the same listener, at least."""
BARE_TARGET = 1.0
"""How many times the calls per second of grpcio's bare echo on asyncio; it is to be more."""


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


def aims(results: Results) -> list[Aim]:
    """Every target, for calls as proxies make them."""
    outcome = results.outcomes[0]
    found = []
    for entry in ONE:
        one = outcome.of(entry)
        share, times = one.ratio(outcome.ours), one.ratio(outcome.bare)
        what = f"{entry.label} ÷ our echo"
        found.append(Aim(what, f"≥ {ECHO_TARGET:g}×", share, share.median >= ECHO_TARGET))
        what = f"{entry.label} ÷ grpcio's echo"
        found.append(Aim(what, f"> {BARE_TARGET:g}×", times, times.median > BARE_TARGET))
    return found
