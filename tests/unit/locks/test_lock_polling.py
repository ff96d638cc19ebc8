"""Polling, on a virtual clock."""

from __future__ import annotations

import pytest

from crestgate.runtime import backoff
from crestgate.runtime.backoff import MAX_DELAY, poll


class Time:
    """A clock that advances during sleeps."""

    def __init__(self) -> None:
        self.now = 100.0
        self.naps: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.naps.append(seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    clock = Time()
    monkeypatch.setattr(backoff, "time", clock)
    return clock


def test_poll_returns_the_first_result(clock: Time) -> None:
    answers = iter([None, None, 7])
    assert poll(lambda: next(answers), 5.0) == 7
    assert len(clock.naps) == 2


def test_poll_returns_falsy_results(clock: Time) -> None:
    assert poll(lambda: 0, 5.0) == 0
    assert clock.naps == []


def test_zero_wait_tries_once(clock: Time) -> None:
    calls: list[None] = []
    assert poll(lambda: calls.append(None), 0.0) is None
    assert (len(calls), clock.naps) == (1, [])


def test_poll_tries_once_more_at_the_deadline(clock: Time) -> None:
    calls: list[float] = []
    assert poll(lambda: calls.append(clock.now), 2.0) is None
    assert clock.now == calls[-1] == pytest.approx(102.0)
    assert all(0 < nap <= 1.5 * MAX_DELAY for nap in clock.naps)
    assert len(set(clock.naps[:-1])) == len(clock.naps) - 1, "the intervals are random"
