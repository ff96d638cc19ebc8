"""Histories of checks as the callers saw them, and invariants that hold for every exact store.

A check was decided at some instant between its start and its end. All processes of a machine read the same monotonic
clock, so the histories of several can be laid side by side, and nothing here relies on what a store says of time.

A counter that gives nothing back while a test runs leaves a stronger trace: the `remaining` of each admitted check is
its place in one line of decisions, without a gap or a place taken twice (`in_line`).
"""

from __future__ import annotations

import json
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

__all__ = [
    "Check",
    "admitted",
    "by_key",
    "cost",
    "denied",
    "explained",
    "in_line",
    "in_windows",
    "read",
    "within",
    "write",
]

SLACK = 0.002
"""Seconds by which two clocks of one machine may drift apart while a test runs."""


class Check(NamedTuple):
    """One check, as its caller saw it."""

    key: str
    cost: int
    start: float
    end: float
    allowed: bool
    remaining: int
    reason: str


def write(file: str, checks: Iterable[Check]) -> None:
    Path(file).write_text(json.dumps(list(checks)))


def read(file: Path) -> list[Check]:
    return [Check(*line) for line in json.loads(file.read_text())]


def by_key(checks: Iterable[Check]) -> dict[str, list[Check]]:
    keys: dict[str, list[Check]] = defaultdict(list)
    for check in checks:
        keys[check.key].append(check)
    return dict(keys)


def admitted(checks: Iterable[Check]) -> list[Check]:
    """Those that a store admitted: what a failure policy let pass is counted apart."""
    return [check for check in checks if check.reason == "ok"]


def denied(checks: Iterable[Check]) -> list[Check]:
    return [check for check in checks if check.reason == "limited"]


def cost(checks: Iterable[Check]) -> int:
    return sum(check.cost for check in checks)


def in_line(checks: Sequence[Check], capacity: int) -> int:
    """How much of a counter that gives nothing back was used; an AssertionError unless it was one line of decisions.

    The line is made of the admitted, by what they left. Each must leave what the one before it left, less its own
    cost; and none may stand before another that had ended when it began. A denied check must have seen what some
    instant of the line had left, within the time it took, and that must have been less than its cost.
    """
    line = sorted(admitted(checks), key=lambda check: -check.remaining)
    left = capacity
    latest_start = float("-inf")
    began = {capacity: latest_start}
    for check in line:
        assert check.remaining == left - check.cost, f"{left} were left, then {check}"
        left = check.remaining
        latest_start = max(latest_start, check.start)
        began[left] = latest_start
    soonest_end = float("inf")
    over: dict[int, float] = {}
    for check in reversed(line):
        over[check.remaining] = soonest_end
        assert soonest_end > check.start, f"one behind it had ended before it began: {check}"
        soonest_end = min(soonest_end, check.end)
    over[capacity] = soonest_end
    for check in denied(checks):
        assert check.remaining < check.cost, f"denied although it fits: {check}"
        assert check.remaining in began, f"no instant had so much left: {check}"
        assert began[check.remaining] < check.end, f"denied by what came later: {check}"
        assert over[check.remaining] > check.start, f"denied by what had passed: {check}"
    return capacity - left


def within(checks: Iterable[Check], most: Callable[[float], float]) -> None:
    """In every span of the history no more was admitted than the algorithm's bound `most(seconds)`."""
    ends = sorted(admitted(checks), key=lambda check: check.end)
    for start in {check.start for check in ends}:
        inside = 0
        for check in ends[bisect(ends, start, key=lambda check: check.end) :]:
            if check.start >= start:
                inside += check.cost
                span = check.end - start
                assert inside <= most(span + SLACK), f"{inside} were admitted within {span:.6f} s"


def explained(checks: Sequence[Check], capacity: int, counts: Callable[[float], float]) -> None:
    """Every denial can have met so many admitted checks that its cost did not fit.

    `counts(seconds)` is what the limit has given back after that time, or infinity if it forgets by then. Of all that
    can have been decided before the denial, as much as possible must have been; and as late as possible.
    """
    ends = sorted(admitted(checks), key=lambda check: -check.end)
    for check in denied(checks):
        used = most_used = 0.0
        for other in ends:
            if other.start >= check.end:
                continue
            given_back = counts(max(check.start - other.end - SLACK, 0.0))
            used += other.cost
            most_used = max(most_used, used - given_back)
            if most_used + check.cost > capacity or given_back == float("inf"):
                break
        assert most_used + check.cost > capacity, f"denied although {most_used} of {capacity} were used: {check}"


def in_windows(checks: Sequence[Check], count: int, period: float, wall: float) -> None:
    """No window, aligned to the epoch, admitted more than `count`, and none denied what fitted into it.

    `wall` is what must be added to the monotonic clock to have the time of day. Of a check at the border of two
    windows it is not known in which it was decided.
    """

    def windows(check: Check) -> range:
        first, last = check.start - SLACK + wall, check.end + SLACK + wall
        return range(int(first // period), int(last // period) + 1)

    surely: Counter[int] = Counter()
    perhaps: dict[int, list[Check]] = defaultdict(list)
    for check in admitted(checks):
        numbers = windows(check)
        if len(numbers) == 1:
            surely[numbers[0]] += check.cost
        for number in numbers:
            perhaps[number].append(check)
    assert all(used <= count for used in surely.values()), f"of {count} a window were admitted: {dict(surely)}"
    for check in denied(checks):
        used = max(cost(o for o in perhaps[number] if o.start < check.end) for number in windows(check))
        assert used + check.cost > count, f"denied although {used} of {count} were used: {check}"
