"""From turns to ratios: how many times what it costs with one, round by round, and the targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.aims import Aim, at_most
from benchmarks.figures import Spread, spread
from benchmarks.growth.rule_sets import SIZES
from benchmarks.growth.workers import WorkersTurn
from benchmarks.network.results import Outcome

__all__ = ["KEYS_AIM", "KEYS_AT", "RULES_AIMS", "Results", "aims", "beside_dict", "growth"]

KEYS_AIM = 1.2
"""Times what a bare dict's access grows to, at most: plus 20 %."""
KEYS_AT = "1000000"
RULES_AIMS = {10_000: 2.0, 100_000: 3.0}
"""Times the time with the fewest rules, at most."""

Times = dict[str, dict[str, list[float]]]


@dataclass(frozen=True)
class Results:
    """A complete run."""

    quick: bool
    date: str
    machine: dict[str, str]
    build: str
    keys: dict[str, Times]
    """By store: microseconds of processor time for a check, of Crestgate and of the dict, by the number of keys."""
    chain: dict[str, Times]
    """By store: the same, by the length of the chain."""
    rules: dict[str, Any]
    """See rule_sets.py."""
    callers: Outcome
    """Of a Redis."""
    processes: dict[str, dict[str, list[dict[str, float]]]]
    """By store and number of processes: checks per second of all, and the processor time of one."""
    workers: dict[str, dict[str, list[WorkersTurn]]]
    """By protocol and number of workers."""
    seconds: float


def growth(times: Sequence[float], first: Sequence[float]) -> Spread:
    """How many times what it was, round by round."""
    return spread([mine / its for mine, its in zip(times, first, strict=True)])


def beside_dict(times: Times, size: str) -> Spread:
    """The growth of a check divided by that of the dict, round by round."""
    ours, bare = times["crestgate"], times["dict"]
    first = next(iter(ours))
    rounds = zip(ours[size], ours[first], bare[size], bare[first], strict=True)
    return spread([(mine / ours_one) / (its / its_one) for mine, ours_one, its, its_one in rounds])


def aims(results: Results) -> list[Aim]:
    found = []
    memory = results.keys.get("memory", {})
    if KEYS_AT in memory.get("crestgate", {}):
        what = f"memory: growth from 1 to {int(KEYS_AT):,} keys ÷ a bare dict's"
        found.append(at_most(what, beside_dict(memory, KEYS_AT), KEYS_AIM))
    for size, target in RULES_AIMS.items():
        one = results.rules["resolving"].get(str(size))
        if one is not None:
            times = Spread(one["ratio"], one["low"], one["high"])
            found.append(at_most(f"finding the rules of a request: {size:,} rules ÷ {SIZES[0]}", times, target))
    return found
