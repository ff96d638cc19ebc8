# mypyc: compile
"""Custom algorithms: a user's pure step, run by the stores that run the built-in Python steps.

The user defines the three integers of a state; the store does everything else (atomicity, expiry, chains), as for the
built-in algorithms.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, final

from crestgate.core.algorithms.algorithm import EMPTY, MAX_SAFE_INTEGER, Algorithm, Step
from crestgate.core.mypyc_types import i64
from crestgate.core.state import State

if TYPE_CHECKING:
    from crestgate.core.limit import Limit

__all__ = ["CustomAlgorithm", "Numbers", "PureStep", "Verdict"]

Numbers = tuple[int, int, int]


class Verdict(NamedTuple):
    """The result of a custom step; times are whole microseconds from now."""

    allowed: bool
    remaining: int
    retry_us: int
    reset_us: int


PureStep = Callable[["Limit", "Numbers | None", int, int], "tuple[Numbers | None, Verdict]"]
"""step(limit, state or None, now in microseconds, cost) -> (new state or None to write nothing, verdict)."""


def _valid(numbers: object, minimum: int) -> bool:
    """Whether these are three integers that every store can hold."""
    return (
        isinstance(numbers, tuple)
        and len(numbers) == 3
        and all(isinstance(number, int) and minimum <= number <= MAX_SAFE_INTEGER for number in numbers)
    )


@final
class CustomAlgorithm(Algorithm):
    """Runs a custom step. Charges only what the step admits, and gives nothing back: both would need to know what the
    three integers mean."""

    def __init__(self, limit: Limit, name: str, pure: PureStep) -> None:
        super().__init__(limit, name, limit.capacity, 1, limit.count)
        self.min_a = self.min_b = -MAX_SAFE_INTEGER
        self.max_a = self.max_b = MAX_SAFE_INTEGER
        self.pure: Callable[..., object] = pure  # its result is validated

    def verdict(self, state: State, now: i64, cost: i64) -> tuple[Numbers, Verdict]:
        numbers = (int(state.time), int(state.a), int(state.b))
        answer = self.pure(self.limit, None if state is EMPTY else numbers, int(now), int(cost))
        if isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], Verdict):
            new, verdict = answer
            written = numbers if new is None else new
            if _valid(written, -MAX_SAFE_INTEGER) and _valid(
                (verdict.remaining, verdict.retry_us, verdict.reset_us), 0
            ):
                return written, verdict
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

    def needs_rebase(self, state: State, now: i64) -> bool:
        return False  # only the step knows whether any of its integers is a time

    def used(self, state: State, now: i64) -> i64:
        return self.capacity - self.verdict(state, now, 0)[1].remaining

    def available_at(self, state: State, now: i64, room: i64) -> i64:
        if room == 0:
            return now + self.verdict(state, now, 0)[1].reset_us
        # There is room for that many requests when one of that cost would pass.
        cost = self.capacity - room
        return now + self.verdict(state, now, cost)[1].retry_us if cost > 0 else now
