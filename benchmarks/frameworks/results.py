"""From turns to ratios, and the targets: medians of the ratios within a round, with their spread as noise."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from benchmarks.aims import Aim
from benchmarks.figures import Spread, spread
from benchmarks.frameworks.entry import BARE, OURS, Entry

__all__ = ["BARE_TARGET", "PEERS_TARGET", "Measured", "Results", "Turn", "aims"]

BARE_TARGET = 0.85
"""The requests per second with a limit that counts on this machine, as a share of those without, at least."""
PEERS_TARGET = 3.0
"""How many times the requests per second of a peer, when both count in Redis, at least."""


@dataclass(frozen=True)
class Turn:
    """The result of one turn. Latencies are in microseconds, and so is the processor time for a request."""

    per_second: float
    p50: float
    p99: float
    processor: float
    """The application's."""
    calls: float
    """Of Redis, for a request."""
    redis_processor: float


@dataclass(frozen=True)
class Measured:
    """One entry and its turns."""

    entry: Entry
    turns: list[Turn]

    def median(self, field: str) -> float:
        values: list[float] = [getattr(turn, field) for turn in self.turns]
        return median(values)

    def ratio(self, other: Measured) -> Spread:
        """Its requests per second divided by the other's, round by round."""
        pairs = zip(self.turns, other.turns, strict=True)
        return spread([mine.per_second / its.per_second for mine, its in pairs])

    def longer(self, other: Measured) -> Spread:
        """Microseconds by which one request after another takes longer than with the other, round by round."""
        pairs = zip(self.turns, other.turns, strict=True)
        return spread([1e6 / mine.per_second - 1e6 / its.per_second for mine, its in pairs])


@dataclass(frozen=True)
class Results:
    """A complete run."""

    quick: bool
    date: str
    machine: dict[str, str]
    versions: dict[str, str]
    build: str
    """What the Crestgate that was measured says of itself."""
    measured: list[Measured]
    rounds: int
    turn_seconds: int
    seconds: float

    @property
    def bare(self) -> Measured:
        return next(one for one in self.measured if one.entry == BARE)

    def ours(self, *stores: str) -> list[Measured]:
        return [one for one in self.measured if one.entry.library == OURS and one.entry.store in stores]

    def peers(self, *stores: str) -> list[Measured]:
        return [one for one in self.measured if one.entry.library != OURS and one.entry.store in stores]


def aims(results: Results) -> list[Aim]:
    """Every target: a limit on this machine beside none, and one in Redis beside every peer's."""
    found = []
    for one in results.ours("memory", "shared"):
        if one.entry.integration == "middleware":  # the others are there for information
            times = one.ratio(results.bare)
            what = f"{one.entry.label} ÷ no limits"
            found.append(Aim(what, f"≥ {BARE_TARGET:g}×", times, times.median >= BARE_TARGET))
    for one in results.ours("redis"):
        for peer in results.peers("redis"):
            times = one.ratio(peer)
            what = f"Redis: {one.entry.integration} ÷ {peer.entry.library}, {peer.entry.integration}"
            found.append(Aim(what, f"≥ {PEERS_TARGET:g}×", times, times.median >= PEERS_TARGET))
    return found
