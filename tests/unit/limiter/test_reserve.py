"""Reservations: settle what was used."""

from __future__ import annotations

import asyncio

import pytest

from crestgate import AsyncLimiter, Limiter, RateLimitExceeded
from crestgate.testing import FakeClock

LIMIT = "1000/minute using sliding_window_log"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(1_700_000_000)


@pytest.fixture
def limiter(clock: FakeClock) -> Limiter:
    return Limiter("memory://", clock=clock)


@pytest.mark.parametrize(("actual", "remaining"), [(0, 1000), (300, 700), (800, 200), (900, 100), (1200, 0)])
def test_settle_gives_back_or_charges_the_difference(limiter: Limiter, actual: int, remaining: int) -> None:
    with limiter.reserve("k", LIMIT, cost=800) as reservation:
        assert reservation.decision.remaining == 200
        reservation.settle(actual)
    assert limiter.peek("k", LIMIT).remaining == remaining


def test_debt_is_paid_off_over_time(limiter: Limiter, clock: FakeClock) -> None:
    limit = "60/minute"
    with limiter.reserve("k", limit, cost=60) as reservation:
        reservation.settle(90)
    assert limiter.peek("k", limit).retry_after == 31.0
    clock.advance(30)
    assert limiter.peek("k", limit).remaining == 0
    clock.advance(1)
    assert limiter.peek("k", limit).remaining == 1


def test_denied_reservation_raises(limiter: Limiter) -> None:
    with pytest.raises(RateLimitExceeded) as error:
        limiter.reserve("k", LIMIT, cost=1001)
    assert error.value.decision.reason == "cost_exceeds_limit"
    assert "can never pass" in str(error.value)


def test_unsettled_reservation_stays_charged(limiter: Limiter) -> None:
    with limiter.reserve("k", LIMIT, cost=800) as reservation:
        pass
    assert limiter.peek("k", LIMIT).remaining == 200
    with pytest.raises(RuntimeError, match="ended with its block, and stays charged"):
        reservation.settle(0)


def test_exception_releases_the_reservation(limiter: Limiter) -> None:
    with pytest.raises(ZeroDivisionError), limiter.reserve("k", LIMIT, cost=800):
        raise ZeroDivisionError
    assert limiter.peek("k", LIMIT).remaining == 1000


def test_exception_after_settling_changes_nothing(limiter: Limiter) -> None:
    def work() -> None:
        with limiter.reserve("k", LIMIT, cost=800) as reservation:
            reservation.settle(500)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert limiter.peek("k", LIMIT).remaining == 500


def test_settling_twice_is_an_error(limiter: Limiter) -> None:
    with limiter.reserve("k", LIMIT, cost=800) as reservation:
        reservation.settle(500)
        with pytest.raises(RuntimeError, match="settled already"):
            reservation.settle(400)
    assert limiter.peek("k", LIMIT).remaining == 500


@pytest.mark.parametrize("actual", [-1, 1.5, "3", 2**31])
def test_invalid_actual_is_a_value_error_and_settles_nothing(limiter: Limiter, actual: object) -> None:
    with limiter.reserve("k", LIMIT, cost=800) as reservation:
        with pytest.raises(ValueError, match="actual must be a whole number"):
            reservation.settle(actual)  # type: ignore[arg-type]  # wrong on purpose
        reservation.settle(100)
    assert limiter.peek("k", LIMIT).remaining == 900


def test_settle_applies_to_all_limits_of_a_chain(limiter: Limiter) -> None:
    chain = ["100/minute", "200/hour using fixed_window", "300/day using gcra"]
    with limiter.reserve("k", chain, cost=90) as reservation:
        reservation.settle(10)
    assert [part.remaining for part in limiter.peek("k", chain, cost=0).parts] == [90, 190, 290]


def test_give_back_goes_to_the_charged_window(limiter: Limiter, clock: FakeClock) -> None:
    limit = "10/minute using fixed_window"
    clock.advance(30)
    with limiter.reserve("k", limit, cost=10) as reservation:
        clock.advance(60)  # the next window, which owes nothing
        limiter.check("k", limit, cost=10)
        reservation.settle(0)
    assert not limiter.check("k", limit).allowed


def test_two_give_backs_do_not_overfill_a_bucket(limiter: Limiter, clock: FakeClock) -> None:
    limit = "10/second"
    first, second = (limiter.reserve("k", limit, cost=5) for _ in range(2))
    first.settle(0)
    clock.advance(0.5)
    limiter.check("k", limit, cost=5)
    second.settle(0)
    assert limiter.peek("k", limit).remaining == 5, "the second five had refilled already"


def test_changed_limit_gets_nothing_back(clock: FakeClock) -> None:
    plans = {"p": "10/minute"}
    limiter = Limiter("memory://", plans=plans, clock=clock)
    with limiter.reserve("k", "p", cost=8) as reservation:
        plans["p"] = "20/minute"
        limiter.check("k", "p")
        reservation.settle(0)
    assert limiter.peek("k", "p").remaining == 11


def test_async_reservations(clock: FakeClock) -> None:
    async def main() -> None:
        limiter = AsyncLimiter("memory://", clock=clock)
        async with limiter.reserve("k", LIMIT, cost=800) as reservation:
            assert reservation.decision.allowed
            await reservation.settle(300)
        assert (await limiter.peek("k", LIMIT)).remaining == 700
        with pytest.raises(ZeroDivisionError):
            async with limiter.reserve("k", LIMIT, cost=700):
                raise ZeroDivisionError
        assert (await limiter.peek("k", LIMIT)).remaining == 700
        with pytest.raises(RateLimitExceeded):
            async with limiter.reserve("k", LIMIT, cost=701):
                pytest.fail("not admitted")
        outside = limiter.reserve("k", LIMIT)
        with pytest.raises(RuntimeError, match="take the reservation first"):
            await outside.settle(0)

    asyncio.run(main())
