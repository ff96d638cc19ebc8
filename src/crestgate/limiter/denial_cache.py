# mypyc: compile
"""Denials that are known to last: a full counter denies requests here, until it may have room for one.

So an attack costs its store one call for each counter and second, and nothing else changes. A counter that has nothing
remaining admits no request of any cost before the time T at which it admits one of cost 1, and has nothing remaining
until then, whatever others ask it: only a reset, a give-back or another limit ends that earlier.

    reset, give-back     by this process: the denial ends at once; by others: within MAX_DENIAL_US
    another limit        is another denial: the store is asked
    T is not known       of costs above 1, except for windows, which end for all costs alike, and for token bucket,
                         leaky bucket and gcra, which drain at a steady rate: the store is asked
    something remaining  requests of lower costs may be admitted meanwhile: the store is asked
    in-flight limits     never: a slot is usually released long before its time to live ends

Of a chain, the other limits have the numbers that they had when it was denied, at most MAX_DENIAL_US ago.

Times are the machine's. A denial ends counted from before its request was sent, so nothing is denied for too long, and
`retry_after` is counted from when its answer was there, so nobody is told to come back too early.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

from crestgate.core.algorithms.algorithm import Algorithm
from crestgate.core.algorithms.level import Level
from crestgate.core.bounded_cache import BoundedCache
from crestgate.core.decision import Decision
from crestgate.stores.port import Member, Outcome

__all__ = ["MAX_DENIALS", "MAX_DENIAL_US", "DenialCache"]

MAX_DENIAL_US: Final = 1_000_000
"""How long a denial is known at most."""
MIN_DENIAL_US: Final = 1_000
"""Shorter ones are over when the next request comes."""
MAX_DENIALS: Final = 10_000
"""Counters that are known at a time; the oldest make room."""


@final
class Denial:
    """The last answer of a store about a counter: that it is full until `ends_at`; or what a request was denied beside,
    until `ends_at` too."""

    __slots__ = ("algorithm", "answered_at", "cost", "decision", "ends_at")

    def __init__(self, algorithm: Algorithm, cost: int, decision: Decision, ends_at: int, answered_at: int) -> None:
        self.algorithm = algorithm
        self.cost = cost
        self.decision = decision
        self.ends_at = ends_at
        self.answered_at = answered_at

    def outcome(self, algorithm: Algorithm, cost: int, now: int) -> Outcome | None:
        """What the store would answer; None if that is not known."""
        decision = self.decision
        if not self.answered_at <= now < self.ends_at:
            return None
        passed = now - self.answered_at
        reset = max(decision.reset_us - passed, 0)
        if decision.allowed:
            return Outcome(Decision(algorithm, True, decision.remaining, 0, reset, decision.detail), 0)
        wait = wait_for(algorithm, decision.wait_us, self.cost, cost)
        if wait is None:
            return None
        wait -= passed
        return Outcome(Decision(algorithm, False, 0, wait, max(reset, wait), decision.detail), 0)


@final
class DenialCache:
    """The denials that one process knows. Not thread-safe."""

    def __init__(self) -> None:
        self.denials: dict[tuple[str, str], Denial] = BoundedCache(MAX_DENIALS)
        self.ended: dict[tuple[str, str], int] = BoundedCache(MAX_DENIALS)
        """When this process last gave back to a counter, or reset it: an answer to an earlier request says nothing."""

    def answer(self, members: Sequence[Member], now: int) -> list[Outcome] | None:
        """The outcomes of a request that is known to be denied; None if it is not."""
        outcomes: list[Outcome] = []
        denied = False
        for member in members:
            algorithm = member.algorithm
            known = self.denials.get((member.key, algorithm.name))
            if (
                known is None
                or not (known.algorithm is algorithm or known.algorithm.limit == algorithm.limit)
                or not member.binds
                or not 0 < member.cost <= algorithm.ceiling
            ):
                return None
            outcome = known.outcome(algorithm, member.cost, now)
            if outcome is None:
                return None
            denied = denied or not outcome.decision.allowed
            outcomes.append(outcome)
        return outcomes if denied else None

    def learn(self, members: Sequence[Member], outcomes: Sequence[Outcome], sent_at: int, now: int) -> None:
        """Note the store's answer to a request that it denied."""
        for index, member in enumerate(members):
            decision = outcomes[index].decision
            algorithm = member.algorithm
            counter = (member.key, algorithm.name)
            if (
                not member.binds
                or algorithm.holds
                or self.ended.get(counter, -1) >= sent_at
                or decision.reason not in ("ok", "limited")  # the failure policy's
            ):
                continue
            if decision.allowed:
                lasts = MAX_DENIAL_US if len(members) > 1 else 0
            else:
                lasts = 0
                if decision.remaining == 0 and 0 < member.cost <= algorithm.ceiling:
                    lasts = wait_for(algorithm, decision.wait_us, member.cost, 1) or 0
                    lasts = min(lasts - lasts // 1000, MAX_DENIAL_US)  # clocks differ a little in speed
            if lasts >= MIN_DENIAL_US:
                self.denials[counter] = Denial(algorithm, member.cost, decision, sent_at + lasts, now)

    def end(self, key: str, name: str, now: int) -> None:
        """A counter was reset, or got something back."""
        self.denials.pop((key, name), None)
        self.ended[key, name] = now


def wait_for(algorithm: Algorithm, wait: int | None, cost: int, other: int) -> int | None:
    """The wait of another cost on a full counter, from that of this one; None where it cannot be computed. It is exact
    for a window, and of one that drains at most a tick too long for a higher cost, or too short for a lower one."""
    if wait is None or cost == other:
        return wait
    if isinstance(algorithm, Level):
        if other > cost:
            return wait - (cost - other) * algorithm.unit // algorithm.rate * algorithm.tick
        return wait + (other - cost) * algorithm.unit // algorithm.rate * algorithm.tick
    return wait if algorithm.limit.algorithm == "fixed_window" else None
