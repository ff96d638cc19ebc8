"""What clients ask for: which counters, under which limits. Both the clients and the checks read it here.

Counters that do not refill within a run (`line`, `batch`, `chain`, `reserve`) get a new key every few seconds, so that
each is empty at first, is used up, and is still used when a fault comes. Counters that refill (`flow`) keep their key.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from chaos.checkers import SECOND, Bound, bound_of

__all__ = ["ALGORITHMS", "BATCH", "FLOW_LIMITS", "RESERVED", "USED", "Step", "Traffic", "capacity_of", "flow_bound"]

ALGORITHMS = ("token_bucket", "leaky_bucket", "gcra", "fixed_window", "sliding_window_log", "sliding_window_counter")
BATCH = 4
RESERVED, USED = 5, 2
"""A reservation takes RESERVED, and settles USED of it."""
FLOW_COUNT, FLOW_BURST = 40, 20
FLOW_LIMITS = {
    algorithm: f"{FLOW_COUNT}/second" + (f" burst {FLOW_BURST}" if number < 3 else "") + f" using {algorithm}"
    for number, algorithm in enumerate(ALGORITHMS)
}


@dataclass(frozen=True, slots=True)
class Step:
    """One call: its kind, and for each counter the key, the limits and what it adds."""

    kind: str
    items: list[tuple[str, list[str], int]]

    @property
    def changes(self) -> list[tuple[str, int]]:
        return [(key, change) for key, _, change in self.items]


@dataclass(frozen=True, slots=True)
class Traffic:
    """The calls of a run."""

    capacity: int
    """Of counters that do not refill."""
    epoch_seconds: float
    began: int
    scope: str = ""
    """In front of every key: clients that do not share counters (`memory://`) have different ones."""

    def limits(self, key: str) -> list[str]:
        """The limits of a counter that does not refill."""
        kind, _, rest = key.removeprefix(self.scope).partition(":")
        if kind == "line":
            return [f"{self.capacity}/year using {rest.partition(':')[0]}"]
        if kind == "chain":
            return [f"{self.capacity}/year using fixed_window", f"{2 * self.capacity}/year using sliding_window_log"]
        return [f"{capacity_of(key, self.capacity)}/year using fixed_window"]

    def step(self, rng: random.Random, now: int) -> Step:
        """A random call at this time."""
        epoch = int((now - self.began) / SECOND / self.epoch_seconds)
        chance = rng.random()
        if chance < 0.5:
            keys = [f"{self.scope}line:{rng.choice(ALGORITHMS)}:{epoch}"]
            return Step("check", [(key, self.limits(key), rng.choice((1, 1, 2))) for key in keys])
        if chance < 0.7:
            algorithm = rng.choice(ALGORITHMS)
            return Step("check", [(f"{self.scope}flow:{algorithm}", [FLOW_LIMITS[algorithm]], 1)])
        if chance < 0.8:
            keys = [f"{self.scope}batch:{number}:{epoch}" for number in range(BATCH)]
            return Step("batch", [(key, self.limits(key), 1) for key in keys])
        if chance < 0.9:
            key = f"{self.scope}chain:{epoch}"
            return Step("check", [(key, self.limits(key), 1)])
        key = f"{self.scope}reserve:{epoch}"
        return Step("reserve", [(key, self.limits(key), RESERVED)])


def capacity_of(key: str, capacity: int) -> int:
    """The capacity of a counter that does not refill."""
    return 3 * capacity if "reserve:" in key else capacity


def flow_bound(key: str) -> Bound:
    algorithm = key.rpartition(":")[2]
    burst = FLOW_BURST if algorithm in ALGORITHMS[:3] else FLOW_COUNT
    return bound_of(algorithm, FLOW_COUNT, 1.0, burst)
