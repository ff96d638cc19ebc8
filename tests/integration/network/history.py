"""Histories of checks as the callers saw them, and invariants that hold for every exact store.

A check was decided at some instant between its start and its end. All processes of a machine read the same monotonic
clock, so their histories can be merged, and nothing here relies on the time of a store.

A counter that does not refill while a test runs allows a stronger check: the `remaining` of each admitted check is its
position in one order of decisions, without gaps or duplicates (`assert_linearizable`).
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
    "assert_bounded",
    "assert_denials_explained",
    "assert_linearizable",
    "assert_windows",
    "by_key",
    "cost",
    "denied",
    "read",
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
    stalled: float = 0.0
    """Seconds of it in which the machine did not run the caller's process."""


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
    """Checks admitted by a store: those allowed by a failure policy are not included."""
    return [check for check in checks if check.reason == "ok"]


def denied(checks: Iterable[Check]) -> list[Check]:
    return [check for check in checks if check.reason == "limited"]


def cost(checks: Iterable[Check]) -> int:
    return sum(check.cost for check in checks)


def assert_linearizable(checks: Sequence[Check], capacity: int) -> int:
    """Usage of a counter that does not refill; AssertionError unless the history is linearizable.

    The order is that of the admitted checks by their remaining count. Each must leave the count of its predecessor less
    its own cost, and none may precede a check that had ended when it began. A denied check must have seen the count at
    some time of the order, within its duration, and that count must have been less than its cost.
    """
    line = sorted(admitted(checks), key=lambda check: -check.remaining)
    remaining = capacity
    latest_start = float("-inf")
    earliest = {capacity: latest_start}
    for check in line:
        assert check.remaining == remaining - check.cost, f"{remaining} were left, then {check}"
        remaining = check.remaining
        latest_start = max(latest_start, check.start)
        earliest[remaining] = latest_start
    soonest_end = float("inf")
    latest: dict[int, float] = {}
    for check in reversed(line):
        latest[check.remaining] = soonest_end
        assert soonest_end > check.start, f"one behind it had ended before it began: {check}"
        soonest_end = min(soonest_end, check.end)
    latest[capacity] = soonest_end
    for check in denied(checks):
        assert check.remaining < check.cost, f"denied although it fits: {check}"
        assert check.remaining in earliest, f"no instant had so much left: {check}"
        assert earliest[check.remaining] < check.end, f"denied by what came later: {check}"
        assert latest[check.remaining] > check.start, f"denied by what had passed: {check}"
    return capacity - remaining


def assert_bounded(checks: Iterable[Check], bound: Callable[[float], float]) -> None:
    """In every span of the history no more was admitted than the algorithm's `bound(seconds)`."""
    ends = sorted(admitted(checks), key=lambda check: check.end)
    for start in {check.start for check in ends}:
        inside = 0
        for check in ends[bisect(ends, start, key=lambda check: check.end) :]:
            if check.start >= start:
                inside += check.cost
                span = check.end - start
                assert inside <= bound(span + SLACK), f"{inside} were admitted within {span:.6f} s"


def assert_denials_explained(checks: Sequence[Check], capacity: int, refill: Callable[[float], float]) -> None:
    """Every denial is explained by admitted checks that left too little for its cost.

    `refill(seconds)` is what the limit has refilled after that time, or infinity if it has expired by then. The worst
    case is assumed: as many checks as possible were decided before the denial, and as late as possible.
    """
    ends = sorted(admitted(checks), key=lambda check: -check.end)
    for check in denied(checks):
        used = max_used = 0.0
        for other in ends:
            if other.start >= check.end:
                continue
            refilled = refill(max(check.start - other.end - SLACK, 0.0))
            used += other.cost
            max_used = max(max_used, used - refilled)
            if max_used + check.cost > capacity or refilled == float("inf"):
                break
        assert max_used + check.cost > capacity, f"denied although {max_used} of {capacity} were used: {check}"


def assert_windows(checks: Sequence[Check], count: int, period: float, wall: float) -> None:
    """No window, aligned to the epoch, admitted more than `count` or denied a check that fitted.

    `wall` is the offset of the wall clock from the monotonic clock. A check at the border of two windows may have been
    decided in either.
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
