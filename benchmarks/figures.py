"""From rounds to figures: medians of ratios within a round, because a median of times would include drift.

A `Contest` is one Crestgate contender against its peers. Every ratio says how many times longer the peer took than
Crestgate in the same round; its 10th and 90th percentile over the rounds are the noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median, quantiles

from benchmarks.candidates import Setup

__all__ = [
    "AIMED",
    "FORMS",
    "Build",
    "Contest",
    "Peer",
    "Results",
    "Spread",
    "contest",
    "spread",
]

FORMS = ("bound", "object", "text")
"""How Crestgate is called: see candidates.Setup."""
AIMED = ("object", "text")
"""The forms that targets are for: the slower of them counts."""


@dataclass(frozen=True)
class Spread:
    """A median with the 10th and the 90th percentile around it."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Peer:
    """One peer in a contest: its time for a check, and how many times Crestgate's that is."""

    library: str
    algorithm: str
    microseconds: float
    times: Spread


@dataclass(frozen=True)
class Contest:
    """Crestgate with one algorithm against all contenders."""

    algorithm: str
    rounds: int
    microseconds: float
    peers: list[Peer]
    form: str = "bound"

    @property
    def fastest(self) -> Peer:
        return min(self.peers, key=lambda peer: peer.times.median)

    @property
    def alike(self) -> list[Peer]:
        """The peers with the same algorithm."""
        return [peer for peer in self.peers if peer.algorithm == self.algorithm]


@dataclass(frozen=True)
class Build:
    """The measurements of one build of Crestgate."""

    name: str
    version: str
    admitted: list[Contest] = field(default_factory=list)
    denied: list[Contest] = field(default_factory=list)
    shared: list[Contest] = field(default_factory=list)
    bytes_per_key: dict[str, float] = field(default_factory=dict)
    empty_call: float = 0.0
    """Microseconds."""

    def slowest_form(self, contests: Sequence[Contest], algorithm: str) -> Contest | None:
        """Of those that targets are for, the one that is the fewest times faster than the fastest peer."""
        found = [one for one in contests if one.algorithm == algorithm and (one.form in AIMED or not self.has_forms)]
        return min(found, key=lambda one: one.fastest.times.median, default=None)

    @property
    def has_forms(self) -> bool:
        return any(one.form in AIMED for one in self.admitted)


@dataclass(frozen=True)
class Results:
    """A complete run."""

    quick: bool
    date: str
    machine: dict[str, str]
    versions: dict[str, str]
    builds: list[Build]
    peers_bytes_per_key: dict[str, dict[str, float]]
    keys_for_bytes: int
    left_out: list[str]


def contest(ours: Setup, theirs: Sequence[Setup], times: Mapping[Setup, list[float] | str]) -> Contest | None:
    """The figures of one contest; None without a peer to compare with."""
    mine = times[ours]
    if isinstance(mine, str):
        raise RuntimeError(mine)  # a benchmark of Crestgate needs Crestgate
    peers = []
    for setup in theirs:
        other = times[setup]
        if not isinstance(other, str):
            ratios = [theirs / ours for theirs, ours in zip(other, mine, strict=True)]
            peers.append(Peer(setup.library, setup.algorithm, median(other) / 1000, spread(ratios)))
    return Contest(ours.algorithm, len(mine), median(mine) / 1000, peers, ours.form) if peers else None


def spread(values: Sequence[float]) -> Spread:
    """Of at least two values."""
    tenths = quantiles(values, n=10, method="inclusive")
    return Spread(median(values), tenths[0], tenths[-1])
