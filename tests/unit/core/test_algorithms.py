"""Each algorithm by hand-computed examples."""

from __future__ import annotations

from typing import Any

import pytest

from crestgate import ConfigError, Decision, Limit, Limiter, Verdict, register_algorithm
from crestgate.core.algorithms import ALGORITHMS, build
from crestgate.core.algorithms.algorithm import MAX_SAFE_INTEGER
from crestgate.testing import FakeClock

NOON = 1_699_963_200.0  # a whole number of days since the epoch, plus twelve hours


def numbers(decision: Decision) -> tuple[bool, int, float | None, float]:
    return decision.allowed, decision.remaining, decision.retry_after, decision.reset_after


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOON)


@pytest.fixture
def limiter(clock: FakeClock) -> Limiter:
    return Limiter("memory://", clock=clock)


@pytest.mark.parametrize("algorithm", ["token_bucket", "gcra"])
def test_bucket_bursts_then_refills_at_the_rate(limiter: Limiter, clock: FakeClock, algorithm: str) -> None:
    limit = f"2/second burst 4 using {algorithm}"
    assert [numbers(limiter.check("k", limit)) for _ in range(5)] == [
        (True, 3, 0.0, 0.5),
        (True, 2, 0.0, 1.0),
        (True, 1, 0.0, 1.5),
        (True, 0, 0.0, 2.0),
        (False, 0, 0.5, 2.0),
    ]
    clock.advance(0.75)
    assert numbers(limiter.check("k", limit)) == (True, 0, 0.0, 1.75)
    assert numbers(limiter.check("k", limit)) == (False, 0, 0.25, 1.75)


def test_burst_below_the_count_limits(limiter: Limiter, clock: FakeClock) -> None:
    limit = "1000/second burst 1"
    allowed = 0
    for _ in range(10_000):  # one second in steps of 100 microseconds
        allowed += limiter.check("k", limit).allowed
        clock.advance(0.0001)
    assert allowed == 1000


def test_fractional_refill_is_not_lost(limiter: Limiter, clock: FakeClock) -> None:
    limiter.check("k", "1/minute")
    for _ in range(59_999):
        clock.advance(0.001)
        if limiter.check("k", "1/minute", cost=1).allowed:
            pytest.fail("admitted early")
    clock.advance(0.001)
    assert limiter.check("k", "1/minute").allowed


def test_leaky_bucket_is_a_queue(limiter: Limiter, clock: FakeClock) -> None:
    limit = "4/second burst 3 using leaky_bucket"
    answers = [limiter.check("k", limit) for _ in range(4)]
    assert [d.allowed for d in answers] == [True, True, True, False]
    assert [d.delay for d in answers] == [0.0, 0.25, 0.5, 0.0]
    assert [d.queue_position for d in answers] == [1, 2, 3, 3]
    assert answers[-1].retry_after == 0.25
    clock.advance(0.1)
    assert limiter.peek("k", limit, cost=0).delay == pytest.approx(0.65)


def test_third_of_a_second_is_exact(limiter: Limiter) -> None:
    limit = "3/second using leaky_bucket"
    assert [limiter.check("k", limit).delay for _ in range(3)] == [0.0, 1 / 3, 2 / 3]


def test_fixed_window_is_aligned_to_the_epoch(limiter: Limiter, clock: FakeClock) -> None:
    limit = "2/minute using fixed_window"
    clock.advance(59.9)
    assert [limiter.check("k", limit).allowed for _ in range(3)] == [True, True, False]
    assert limiter.check("k", limit).retry_after == pytest.approx(0.1)
    clock.advance(0.1)  # the next minute: twice the count within a tenth of a second, as documented
    assert [limiter.check("k", limit).allowed for _ in range(3)] == [True, True, False]
    assert limiter.check("k", limit).retry_after == 60.0


def test_log_entry_expires_after_exactly_one_period(limiter: Limiter, clock: FakeClock) -> None:
    limit = "2/minute using sliding_window_log"
    limiter.check("k", limit)
    clock.advance(20)
    limiter.check("k", limit)
    assert numbers(limiter.check("k", limit)) == (False, 0, 40.0, 60.0)
    clock.advance(39.999999)
    assert not limiter.check("k", limit).allowed
    clock.advance(0.000001)
    assert numbers(limiter.check("k", limit)) == (True, 0, 0.0, 60.0)


def test_window_counter_weights_the_previous_window(limiter: Limiter, clock: FakeClock) -> None:
    limit = "10/minute using sliding_window_counter"
    limiter.check("k", limit, cost=10)
    clock.advance(60)
    assert limiter.peek("k", limit).remaining == 0
    clock.advance(15)  # three quarters of the ten are still in view: floor(7.5) = 7
    assert limiter.peek("k", limit).remaining == 3
    assert limiter.check("k", limit, cost=4).retry_after == pytest.approx(3.000001)
    clock.advance(3.000001)  # just under 7 in view
    assert limiter.check("k", limit, cost=4).allowed


def test_no_float_rounding(limiter: Limiter, clock: FakeClock) -> None:
    """Rates whose reciprocals have no end, at the very tick that retry_after names."""
    for count in (3, 7, 11, 13, 97, 999):
        limit = f"{count}/second burst 1"
        limiter.check("k", limit)
        wait = limiter.check("k", limit).retry_after
        assert wait is not None
        clock.advance(wait - 0.000001)
        assert not limiter.check("k", limit).allowed
        clock.advance(0.000001)
        assert limiter.check("k", limit).allowed


def test_large_limit_has_coarser_ticks_and_is_exact(limiter: Limiter, clock: FakeClock) -> None:
    limit = Limit(1_000_003, 86_400)
    assert build(limit, "x").tick > 1
    limiter.check("k", limit, cost=1_000_003)
    clock.advance(0.000003)
    wait = limiter.check("k", limit).retry_after
    assert wait is not None
    clock.advance(wait - 0.000001)
    assert not limiter.check("k", limit).allowed
    clock.advance(0.000001)
    assert limiter.check("k", limit).allowed


def test_debts_are_bounded_by_safe_integers(limiter: Limiter) -> None:
    for algorithm in ("token_bucket", "fixed_window", "sliding_window_counter", "sliding_window_log"):
        limit = Limit(1_000_003, 86_400, algorithm=algorithm, name=algorithm)
        for _ in range(20):
            with limiter.reserve("k", limit, cost=0) as reservation:
                reservation.settle(2**31 - 1)
        entry = limiter.store.table.find(algorithm, "k")  # type: ignore[attr-defined]  # the memory store's own
        assert 0 < entry.a <= MAX_SAFE_INTEGER
        assert limiter.peek("k", limit).remaining == 0
        assert limiter.peek("k", limit).retry_after is not None


@pytest.mark.parametrize(
    "answer",
    [
        None,
        (None, None),
        ((1, 2), Verdict(True, 1, 0, 0)),
        ((1, 2, 3.5), Verdict(True, 1, 0, 0)),
        ((1, 2, 2**70), Verdict(True, 1, 0, 0)),
        (None, Verdict(True, -1, 0, 0)),
    ],
)
def test_invalid_result_of_a_custom_step_is_an_error(limiter: Limiter, answer: Any) -> None:
    register_algorithm("nonsense", lambda limit, state, now, cost: answer)
    try:
        with pytest.raises(TypeError, match="the step of algorithm 'nonsense' must return"):
            limiter.check("k", "5/minute using nonsense")
    finally:
        del ALGORITHMS["nonsense"]


def test_custom_step_defines_its_integers(limiter: Limiter, clock: FakeClock) -> None:
    """Its first integer need not be a time, and its own expiry applies."""

    def counted(
        limit: Limit, state: tuple[int, int, int] | None, now: int, cost: int
    ) -> tuple[tuple[int, int, int] | None, Verdict]:
        _, used, since = state or (0, 0, now)
        left = limit.count - used
        reset = max(since + limit.period_us - now, 0) if used else 0
        if cost > left or cost > 1:
            return None, Verdict(False, left, 0, reset)
        return (10**15 * 5, used + cost, since), Verdict(True, left - cost, 0, reset or limit.period_us)

    register_algorithm("counted", counted)
    try:
        for limits in ("2/hour using counted", ["2/hour using counted", "9/hour"]):
            limiter.reset("k", limits)
            assert [limiter.check("k", limits).allowed for _ in range(4)] == [True, True, False, False]
            clock.advance(1000)
            for number in range(50):
                limiter.check(f"other{number}", "1/second")
            assert not limiter.check("k", limits).allowed
    finally:
        del ALGORITHMS["counted"]


def test_time_before_the_epoch(clock: FakeClock) -> None:
    for algorithm in ("token_bucket", "fixed_window", "sliding_window_counter", "sliding_window_log", "gcra"):
        past = FakeClock(-90)
        limiter = Limiter("memory://", clock=past)
        decision = limiter.check("k", f"1/minute using {algorithm}")
        assert decision.allowed
        assert 0 < decision.reset_after <= 120
        assert (limiter.check("k", f"1/minute using {algorithm}").retry_after or 0) <= 120


def test_custom_algorithm(limiter: Limiter, clock: FakeClock) -> None:
    def spaced(
        limit: Limit, state: tuple[int, int, int] | None, now: int, cost: int
    ) -> tuple[tuple[int, int, int] | None, Verdict]:
        """One request every period / count, no bursts."""
        gap = limit.period_us // limit.count
        wait = 0 if state is None else max(state[0] + gap - now, 0)
        if cost == 0 or wait:
            return None, Verdict(cost == 0, 0 if wait else 1, wait, wait)
        return (now, 1, 0), Verdict(True, 0, 0, gap)

    register_algorithm("spaced", spaced)
    try:
        limit = Limit.parse("2/second using spaced")
        assert limiter.check("k", limit).allowed
        assert numbers(limiter.check("k", limit)) == (False, 0, 0.5, 0.5)
        clock.advance(0.5)
        assert limiter.check("k", limit).allowed
        chain: list[str | Limit] = [limit, "9/hour"]
        limiter.reset("c", chain)
        assert [limiter.check("c", chain).allowed for _ in range(2)] == [True, False], "in a chain too"
        # A counter that moves to it, or away from it, carries over what was used.
        named = Limit(10, 60, name="n")
        limiter.check("k", named, cost=1)
        assert limiter.peek("k", Limit(5, 60, algorithm="spaced", name="n")).remaining == 4
        with pytest.raises(ConfigError, match="already registered"):
            register_algorithm("spaced", spaced)
        for name in ("My Algorithm", "\u00e9t\u00e9", "", 5):
            with pytest.raises(ConfigError, match="lower-case identifier"):
                register_algorithm(name, spaced)  # type: ignore[arg-type]  # wrong on purpose
        with pytest.raises(ConfigError, match="its step must be a function"):
            register_algorithm("nothing", None)  # type: ignore[arg-type]  # wrong on purpose
    finally:
        del ALGORITHMS["spaced"]
