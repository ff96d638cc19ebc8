"""Algorithms from outside: a user's pure step, run wherever the built-in Python steps run.

The three whole numbers of a state are the user's to define; everything else about a counter (atomicity, expiry,
chains, other keys) is the store's, as for the built-in six.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, final

from headgate.core.algorithms.algorithm import EMPTY, LARGEST, Algorithm, Step
from headgate.core.state import State
from headgate.core.words import i64

if TYPE_CHECKING:
    from headgate.core.limit import Limit

__all__ = ["Numbers", "PureStep", "Registered", "Verdict"]

Numbers = tuple[int, int, int]


class Verdict(NamedTuple):
    """What a registered step says of a request; times are whole microseconds from now."""

    allowed: bool
    remaining: int
    retry_us: int
    reset_us: int


PureStep = Callable[["Limit", "Numbers | None", int, int], "tuple[Numbers | None, Verdict]"]
"""step(limit, state or None, now in microseconds, cost) -> (new state or None to write nothing, verdict)."""


def _whole(numbers: object, least: int) -> bool:
    """Whether these are three whole numbers that every store can keep."""
    return (
        isinstance(numbers, tuple)
        and len(numbers) == 3
        and all(isinstance(number, int) and least <= number <= LARGEST for number in numbers)
    )


@final
class Registered(Algorithm):
    """Runs a registered step. A debt is kept only as far as the step admits it, and nothing is given back:
    both would need to know what the three numbers mean."""

    def __init__(self, limit: Limit, name: str, pure: PureStep) -> None:
        super().__init__(limit, name, limit.capacity, 1, limit.count)
        self.min_a = self.min_b = -LARGEST
        self.max_a = self.max_b = LARGEST
        self.pure: Callable[..., object] = pure  # what it returns is looked at before it is believed

    def verdict(self, state: State, now: i64, cost: i64) -> tuple[Numbers, Verdict]:
        numbers = (int(state.time), int(state.a), int(state.b))
        answer = self.pure(self.limit, None if state is EMPTY else numbers, int(now), int(cost))
        if isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], Verdict):
            new, verdict = answer
            kept = numbers if new is None else new
            said = (verdict.remaining, verdict.retry_us, verdict.reset_us)
            if _whole(kept, -LARGEST) and _whole(said, 0):
                return kept, verdict
        raise TypeError(
            f"the step of algorithm {self.limit.algorithm!r} must return a state (three whole numbers, or None) and a "
            f"Verdict with whole numbers of at least 0, not {answer!r}"
        )

    def step(self, state: State, now: i64, cost: i64) -> Step:
        (time, a, b), verdict = self.verdict(state, now, cost)
        return verdict.allowed, time, a, b, verdict.remaining, verdict.retry_us, verdict.reset_us

    def charge(self, state: State, now: i64, cost: i64) -> tuple[i64, i64, i64]:
        fits = min(cost, self.verdict(state, now, 0)[1].remaining)
        return self.verdict(state, now, fits)[0]

    def give_back(self, state: State, now: i64, amount: i64, tick: i64, cost: i64) -> tuple[i64, i64, i64, i64]:
        return 0, state.time, state.a, state.b

    def rebases(self, state: State, now: i64) -> bool:
        return False  # only the step knows whether any of its numbers is a time

    def used(self, state: State, now: i64) -> i64:
        return self.capacity - self.verdict(state, now, 0)[1].remaining

    def frees(self, state: State, now: i64, room: i64) -> i64:
        if room == 0:
            return now + self.verdict(state, now, 0)[1].reset_us
        # Room for so many more requests is there when one of just that cost would pass.
        cost = self.capacity - room
        return now + self.verdict(state, now, cost)[1].retry_us if cost > 0 else now
