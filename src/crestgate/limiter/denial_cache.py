# mypyc: compile
"""Denials that are known to last: a counter that has denied a request denies it here, until it may admit it.

So an attack costs its store one call for each counter and second. Nothing else changes: a counter that denied cost 1 with
`retry_after` T admits nothing before T, unless somebody gives back, resets it, or raises the limit. What this process
does of that ends the denial at once; what others do ends it after MAX_DENIAL_US, which is how long a denial is kept.

    same cost           every algorithm
    higher costs        fixed and calendar windows, which deny them equally long, and token bucket, leaky bucket and
                        gcra, which drain at a steady rate; other algorithms are asked
    in-flight limits    never: a slot is usually released long before its time to live ends

Times are the machine's. A denial ends counted from before the request was sent, so that nothing is denied too long, and
`retry_after` is counted from when the answer was there, so that nobody is told to come back too early.
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
"""How long a denial is known at most: what other processes give back or reset counts here after that."""
MIN_DENIAL_US: Final = 1_000
"""Shorter ones are over when the next request comes."""
MAX_DENIALS: Final = 10_000
"""Counters that are known at a time; the oldest make room."""


@final
class Denial:
    """The last answer of a store about a counter: a denial, or (`ends_at` 0) what a request was denied beside."""

    __slots__ = ("algorithm", "answered_at", "cost", "decision", "ends_at")

    def __init__(self, member: Member, decision: Decision, ends_at: int, answered_at: int) -> None:
        self.algorithm = member.algorithm
        self.cost = member.cost
        self.decision = decision
        self.ends_at = ends_at
        self.answered_at = answered_at

    def wait(self, cost: int, now: int) -> int:
        """Microseconds until a request of this cost may be admitted; 0 if that is not known."""
        if now >= self.ends_at or cost < self.cost:
            return 0
        wait = self.decision.wait_us
        if wait is None:
            return 0
        if cost > self.cost:
            algorithm = self.algorithm
            if isinstance(algorithm, Level):
                wait += -(-(cost - self.cost) * algorithm.unit // algorithm.rate) * algorithm.tick
            elif algorithm.limit.algorithm != "fixed_window":
                return 0
        return wait - (now - self.answered_at)


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
            known = self.denials.get((member.key, member.algorithm.name))
            if (
                known is None
                or not _is_same(known.algorithm, member.algorithm)
                or not member.binds
                or not 0 < member.cost <= member.algorithm.ceiling
            ):
                return None
            decision = known.decision
            wait = known.wait(member.cost, now)
            denies = wait > 0
            if not denies and (not decision.allowed or now - known.answered_at > MAX_DENIAL_US):
                return None
            denied = denied or denies
            reset = max(decision.reset_us - (now - known.answered_at), wait)
            outcomes.append(
                Outcome(Decision(member.algorithm, not denies, decision.remaining, wait, reset, decision.detail), 0)
            )
        return outcomes if denied else None

    def learn(self, members: Sequence[Member], outcomes: Sequence[Outcome], sent_at: int, now: int) -> None:
        """Note the store's answer to a request that it denied."""
        for index, member in enumerate(members):
            decision = outcomes[index].decision
            wait = decision.wait_us
            counter = (member.key, member.algorithm.name)
            if (
                not member.binds
                or member.algorithm.holds
                or self.ended.get(counter, -1) >= sent_at
                or decision.reason not in ("ok", "limited")  # the failure policy's
            ):
                continue
            if decision.allowed:
                if len(members) > 1:
                    self.denials[counter] = Denial(member, decision, 0, now)
            elif wait is not None and wait >= MIN_DENIAL_US:
                self.denials[counter] = Denial(member, decision, sent_at + min(wait, MAX_DENIAL_US), now)

    def end(self, key: str, name: str, now: int) -> None:
        """A counter was reset, or got something back."""
        self.denials.pop((key, name), None)
        self.ended[key, name] = now


def _is_same(known: Algorithm, algorithm: Algorithm) -> bool:
    return known is algorithm or known.limit == algorithm.limit
