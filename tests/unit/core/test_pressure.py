"""Pressure transitions of SPEC §6, one event each."""

from __future__ import annotations

import logging

import pytest

from crestgate import Limiter, PressureEvent
from crestgate.core import pressure
from crestgate.testing import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(1_700_000_000)


@pytest.fixture
def events() -> list[tuple[str, str, str]]:
    return []


@pytest.fixture
def limiter(clock: FakeClock, events: list[tuple[str, str, str]]) -> Limiter:
    def emit(event: PressureEvent) -> None:
        events.append((event.key, event.before, event.after))

    return Limiter("memory://", clock=clock, on_pressure=emit)


def test_transitions_up_and_down(limiter: Limiter, clock: FakeClock, events: list[tuple[str, str, str]]) -> None:
    states = [limiter.check("k", "10/10 seconds").state for _ in range(11)]
    assert states == ["normal"] * 8 + ["warning", "throttled", "throttled"]
    clock.advance(1)  # one place is free, and the request takes it: nothing is left again
    assert limiter.check("k", "10/10 seconds").state == "throttled"
    clock.advance(2)
    assert limiter.check("k", "10/10 seconds").state == "warning", "90 % used"
    clock.advance(2)
    assert limiter.check("k", "10/10 seconds").state == "warning", "80 % used is not below 70 %"
    clock.advance(2)
    assert limiter.check("k", "10/10 seconds").state == "warning", "exactly 70 % used"
    clock.advance(2)
    assert limiter.check("k", "10/10 seconds").state == "normal", "60 % used"
    assert events == [
        ("k", "normal", "warning"),
        ("k", "warning", "throttled"),
        ("k", "throttled", "warning"),
        ("k", "warning", "normal"),
    ]


def test_throttled_to_normal(limiter: Limiter, clock: FakeClock, events: list[tuple[str, str, str]]) -> None:
    limiter.check("k", "10/10 seconds", cost=10)
    clock.advance(5)
    assert limiter.check("k", "10/10 seconds").state == "normal"
    assert events == [("k", "normal", "throttled"), ("k", "throttled", "normal")]


@pytest.mark.parametrize(
    ("before", "allowed", "remaining", "after"),
    [
        ("normal", True, 20, "normal"),  # exactly 80 % is not above it
        ("normal", True, 19, "warning"),
        ("warning", True, 30, "warning"),  # exactly 70 % is not below it
        ("warning", True, 31, "normal"),
        ("normal", True, 25, "normal"),  # between the two, the state stays
        ("warning", True, 25, "warning"),
        ("throttled", True, 25, "warning"),
        ("throttled", True, 1, "warning"),
        ("warning", True, 0, "throttled"),
        ("normal", False, 50, "throttled"),
    ],
)
def test_thresholds(before: str, allowed: bool, remaining: int, after: str) -> None:
    assert pressure.pressure_state(before, allowed, 100, remaining) == after


def test_peek_has_the_state_without_an_event(limiter: Limiter, events: list[tuple[str, str, str]]) -> None:
    limiter.check("k", "10/hour", cost=8)
    assert limiter.peek("k", "10/hour", cost=5).state == "throttled"
    assert limiter.peek("k", "10/hour").state == "normal"
    assert events == []


def test_each_limit_of_a_chain_has_its_own_state(limiter: Limiter) -> None:
    decision = limiter.check("k", ["10/hour", "100/hour"], cost=9)
    assert [part.state for part in decision.parts] == ["warning", "normal"]
    assert decision.state == "warning"


def test_reset_clears_the_state(limiter: Limiter, events: list[tuple[str, str, str]]) -> None:
    limiter.check("k", "10/hour", cost=10)
    limiter.reset("k", "10/hour")
    limiter.check("k", "10/hour", cost=10)
    assert events == [("k", "normal", "throttled")] * 2


def test_failing_callback_is_logged(clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    def fail(event: PressureEvent) -> None:
        raise RuntimeError("no")

    limiter = Limiter("memory://", clock=clock, on_pressure=fail)
    with caplog.at_level(logging.ERROR, "crestgate"):
        assert limiter.check("k", "1/hour").allowed
    assert "on_pressure callback failed" in caplog.text


def test_stored_states_are_bounded() -> None:
    limiter = Limiter("memory://?max_keys=10")
    for number in range(100_050):
        limiter.check(f"k{number}", "1/hour")
    assert len(limiter.backend.pressure.states) == 100_000
