"""From rounds to ratios, and the targets: medians of the ratios within a round, with their spread as noise."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from benchmarks.aims import Aim, at_least, at_most
from benchmarks.figures import Spread, spread
from benchmarks.network.entry import Entry
from benchmarks.network.load import Turn

__all__ = ["DATABASE_TARGET", "PEERS_TARGET", "REQUIRED_PER_SECOND", "Measured", "Outcome", "Results", "aims"]

PEERS_TARGET, CROWD_TARGET, LEASES_TARGET = 8.0, 12.0, 40.0
"""How many times the checks per second of the best peer on Redis: a hundred callers, a thousand, and with leases."""
SEQUENCE_TARGET = 1.25
"""How many times the latency of a bare script call, at most, for one caller with asyncio."""
DATABASE_TARGET = 8.0
"""How many times the checks per second of one transaction per check, with a hundred callers."""
REQUIRED_PER_SECOND = 10_000
"""Checks per second that a database was required to carry."""


@dataclass(frozen=True)
class Measured:
    """One entry and its turns."""

    entry: Entry
    turns: list[Turn]

    def median(self, field: str) -> float:
        values: list[float] = [getattr(turn, field) for turn in self.turns]
        return median(values)


@dataclass(frozen=True)
class Outcome:
    """The result of one contest, in the order of its entries."""

    name: str
    measured: list[Measured]
    rounds: int
    seconds: float

    def __getitem__(self, label: str) -> Measured:
        return next(one for one in self.measured if one.entry.label == label)

    def has(self, label: str) -> bool:
        return any(one.entry.label == label for one in self.measured)

    def of(self, *libraries: str) -> list[Measured]:
        return [one for one in self.measured if one.entry.library in libraries]

    @property
    def peers(self) -> list[Measured]:
        return self.of("limits", "limits on coredis", "throttled-py", "pyrate-limiter")

    @property
    def transactions(self) -> list[Measured]:
        """The entries with a transaction for every check."""
        return self.of("classic", "crestgate one by one")

    def ratio(self, one: Measured, other: Measured, field: str = "per_second") -> Spread:
        """One divided by the other, round by round."""
        pairs = zip(one.turns, other.turns, strict=True)
        return spread([getattr(mine, field) / getattr(its, field) for mine, its in pairs])

    def over_best(self, one: Measured, others: Iterable[Measured]) -> tuple[Measured, Spread] | None:
        """The strongest of the others, and how many times its checks per second."""
        ratios = [(other, self.ratio(one, other)) for other in others]
        return min(ratios, key=lambda pair: pair[1].median, default=None)


@dataclass(frozen=True)
class Results:
    """A complete run."""

    quick: bool
    date: str
    machine: dict[str, str]
    versions: dict[str, str]
    outcomes: dict[str, Outcome]
    left_out: list[str]
    seconds: float


def aims(results: Results) -> list[Aim]:
    """Every target that was measured."""
    found: list[Aim] = []
    outcomes = results.outcomes
    for name, label, what, target in (
        ("redis", "Crestgate token_bucket", "Redis, 100 tasks", PEERS_TARGET),
        ("1,000 callers", "Crestgate", "Redis, 1,000 tasks", CROWD_TARGET),
        ("redis", "Crestgate with leases", "Redis, 100 tasks, with leases", LEASES_TARGET),
    ):
        if name in outcomes and outcomes[name].has(label):
            best = outcomes[name].over_best(outcomes[name][label], outcomes[name].peers)
            if best is not None:
                found.append(at_least(f"{what}: checks/s ÷ best peer", best[1], target, best[0].entry.label))
    if "sequence" in outcomes:
        outcome = outcomes["sequence"]
        times = outcome.ratio(outcome["Crestgate, async"], outcome["redis-py, async"], "p50")
        found.append(at_most("Redis, one task: median latency ÷ bare EVALSHA", times, SEQUENCE_TARGET))
    if "mariadb" in outcomes:
        outcome = outcomes["mariadb"]
        best = outcome.over_best(outcome["Crestgate, 100 tasks"], outcome.transactions)
        if best is not None:
            what = "MariaDB, 100 tasks: checks/s ÷ one transaction per check"
            found.append(at_least(what, best[1], DATABASE_TARGET, best[0].entry.label))
    return found
