"""The history checker itself: invalid histories are detected, valid ones accepted."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from integration.network.history import (
    Check,
    assert_bounded,
    assert_denials_explained,
    assert_linearizable,
    assert_windows,
)


def ok(remaining: int, start: float, end: float, cost: int = 1) -> Check:
    return Check("key", cost, start, end, True, remaining, "ok")


def no(remaining: int, start: float, end: float, cost: int = 1) -> Check:
    return Check("key", cost, start, end, False, remaining, "limited")


GOOD_LINES = {
    "one after another": [ok(2, 0, 1), ok(1, 2, 3), ok(0, 4, 5), no(0, 6, 7)],
    "decided in another order than begun": [ok(1, 0, 9), ok(2, 1, 2), ok(0, 3, 8), no(0, 7, 9)],
    "costs": [ok(1, 0, 1, cost=2), no(1, 2, 3, cost=2), ok(0, 4, 5)],
    "a denial before the last": [ok(1, 0, 1, cost=2), no(1, 2, 3, cost=5), ok(0, 2, 5)],
    "nothing at all": [],
}
BAD_LINES = {
    "counted twice": [ok(2, 0, 1), ok(0, 2, 3)],
    "admitted twice": [ok(2, 0, 1), ok(2, 0, 1), ok(1, 2, 3)],
    "too many": [ok(2, 0, 1), ok(1, 2, 3), ok(0, 4, 5), ok(-1, 6, 7), ok(-2, 6, 7)],
    "a later one before an earlier": [ok(1, 0, 1), ok(2, 2, 3)],
    "denied although it fits": [ok(2, 0, 1), no(2, 2, 3)],
    "denied by what came later": [no(0, 0, 1), ok(2, 2, 3), ok(1, 2, 3), ok(0, 2, 3)],
    "denied by what had passed": [ok(1, 0, 1, cost=2), ok(0, 2, 3), no(1, 4, 5, cost=2)],
    "denied by what never was": [ok(2, 0, 1), ok(0, 2, 3, cost=2), no(1, 4, 5, cost=2)],
}


@pytest.mark.parametrize("name", GOOD_LINES)
def test_linearizable_history(name: str) -> None:
    used = assert_linearizable(GOOD_LINES[name], 3)
    assert used == sum(check.cost for check in GOOD_LINES[name] if check.allowed)


@pytest.mark.parametrize("name", BAD_LINES)
def test_not_linearizable_history(name: str) -> None:
    with pytest.raises(AssertionError):
        assert assert_linearizable(BAD_LINES[name], 3) <= 3


Judge = Callable[[Sequence[Check]], None]


def bucket(checks: Sequence[Check]) -> None:
    """A burst of two, and one more each second."""
    assert_bounded(checks, lambda seconds: 2 + seconds)
    assert_denials_explained(checks, 2, lambda seconds: seconds)


def log(checks: Sequence[Check]) -> None:
    """Two within each second."""
    assert_bounded(checks, lambda seconds: 2 * (seconds // 1 + 1))
    assert_denials_explained(checks, 2, lambda seconds: 0 if seconds < 1 else float("inf"))


def window(checks: Sequence[Check]) -> None:
    """Two in each second of the wall clock, which is half a second ahead."""
    assert_windows(checks, 2, 1.0, 0.5)


@pytest.mark.parametrize(
    ("judge", "checks"),
    [
        (bucket, [ok(1, 0, 0.1), ok(0, 0, 0.1), no(0, 0, 0.2), ok(0, 1.0, 1.1), no(0, 1.2, 1.3), ok(0, 2.1, 2.2)]),
        (bucket, [ok(0, 0, 0.1, cost=2), no(1, 1.5, 1.6, cost=2), ok(0, 2.0, 2.1, cost=2)]),
        (log, [ok(1, 0, 0.1), ok(0, 0.5, 0.6), no(0, 0.9, 0.95), ok(0, 1.1, 1.2), no(0, 1.3, 1.4)]),
        (window, [ok(1, 0.3, 0.4), ok(0, 0.45, 0.48), no(0, 0.4, 0.6), ok(1, 0.51, 0.52), ok(0, 0.52, 0.53)]),
    ],
)
def test_valid_histories_are_accepted(judge: Judge, checks: Sequence[Check]) -> None:
    judge(checks)


@pytest.mark.parametrize(
    ("judge", "checks"),
    [
        (bucket, [ok(1, 0, 0.1), ok(0, 0, 0.1), ok(0, 0.5, 0.6)]),
        (bucket, [ok(1, 0, 0.1), no(0, 0.2, 0.3)]),
        (bucket, [ok(1, 0, 0.1), ok(0, 0, 0.1), no(0, 1.2, 1.3)]),
        (log, [ok(1, 0, 0.1), ok(0, 0.5, 0.6), ok(0, 0.8, 0.9)]),
        (log, [ok(1, 0, 0.1), ok(0, 0.5, 0.6), no(0, 1.2, 1.3)]),
        (window, [ok(1, 0.1, 0.2), ok(0, 0.2, 0.3), ok(0, 0.3, 0.4)]),
        (window, [ok(1, 0.3, 0.4), ok(0, 0.45, 0.48), no(0, 0.51, 0.6)]),
    ],
)
def test_invalid_histories_are_detected(judge: Judge, checks: Sequence[Check]) -> None:
    with pytest.raises(AssertionError):
        judge(checks)
