"""From rounds to ratios, and the targets: medians of the ratios within a round, with their spread as noise."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from benchmarks.figures import Spread, spread
from benchmarks.network.entry import Entry
from benchmarks.network.load import Turn

__all__ = ["DATABASE_TARGET", "PEERS_TARGET", "REQUIRED_PER_SECOND", "Aim", "Outcome", "Results", "aims"]

PEERS_TARGET = 6.0
"""How many times the checks per second of the best peer on Redis, with a hundred callers."""
SEQUENCE_TARGET = 1.15
"""How many times the latency of a bare script call, at most."""
DATABASE_TARGET = 8.0
"""How many times the checks per second of one transaction per check."""
LIGHT_TARGET = 1.2
"""How many times the 99th percentile of one by one at light load, at most."""
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


@dataclass(frozen=True)
class Aim:
    """A target, what was measured, and whether that is enough."""

    what: str
    target: str
    measured: Spread
    met: bool
    note: str = ""

    @property
    def bound(self) -> float:
        """The target as a number."""
        return float(self.target.strip("≥≤>× "))


def aims(results: Results) -> list[Aim]:
    """Every target that was measured."""
    found: list[Aim] = []
    outcomes = results.outcomes
    for name, label, what in (
        ("redis", "Crestgate token_bucket", "Redis, 100 tasks, 1,000 keys"),
        ("one key", "Crestgate", "Redis, 100 tasks, one key"),
    ):
        if name in outcomes:
            best = outcomes[name].over_best(outcomes[name][label], outcomes[name].peers)
            if best is not None:
                found.append(_more(f"{what}: checks/s ÷ best peer", best[1], PEERS_TARGET, best[0].entry.label))
    if "sequence" in outcomes:
        outcome = outcomes["sequence"]
        for more, how in (("", "one thread"), (", async", "one task")):
            times = outcome.ratio(outcome[f"Crestgate{more}"], outcome[f"redis-py{more}"], "p50")
            found.append(_less(f"Redis, {how}: median latency ÷ bare EVALSHA", times, SEQUENCE_TARGET))
    if "mariadb" in outcomes:
        outcome = outcomes["mariadb"]
        for one in outcome.of("crestgate"):
            best = outcome.over_best(one, outcome.transactions)
            if best is not None and one.entry.keys > 1:
                what = one.entry.label.replace("Crestgate", "MariaDB")
                found.append(_more(f"{what}: checks/s ÷ one transaction per check", best[1], DATABASE_TARGET))
    for name, one_key, many_keys in (
        ("one key", "Crestgate", "Crestgate, 1,000 keys"),
        ("mariadb", "Crestgate, 100 tasks, one key", "Crestgate, 100 tasks"),
    ):
        if name in outcomes:
            outcome = outcomes[name]
            title = "Redis" if name == "one key" else "MariaDB"
            times = outcome.ratio(outcome[one_key], outcome[many_keys])
            found.append(_no_slower(f"{title}, 100 tasks: checks/s on one key ÷ on 1,000 keys", times))
    if "light load" in outcomes:
        outcome = outcomes["light load"]
        times = outcome.ratio(outcome["Crestgate"], outcome["Crestgate one by one"], "p99")
        found.append(_less("Redis, light load: p99 ÷ p99 one by one", times, LIGHT_TARGET))
    if "redis" in outcomes and outcomes["redis"].has("Crestgate one by one"):
        outcome = outcomes["redis"]
        ours, single = outcome["Crestgate token_bucket"], outcome["Crestgate one by one"]
        found.append(_less("Redis, 100 tasks: p99 ÷ p99 one by one", outcome.ratio(ours, single, "p99"), 1.0))
        found.append(_more("Redis, 100 tasks: checks/s ÷ one by one", outcome.ratio(ours, single), 1.0))
    return found


def _more(what: str, measured: Spread, target: float, note: str = "") -> Aim:
    return Aim(what, f"≥ {target:g}×", measured, measured.median >= target, note)


def _less(what: str, measured: Spread, target: float) -> Aim:
    return Aim(what, f"≤ {target:g}×", measured, measured.median <= target)


def _no_slower(what: str, measured: Spread) -> Aim:
    """Slower means slower in nine of ten rounds."""
    within = measured.median < 1.0 <= measured.high
    return Aim(what, "≥ 1×", measured, measured.high >= 1.0, "within the noise" if within else "")
