"""The model judges the library, so the model itself is checked by hand."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest
from naive import ALGORITHMS, BUCKETS, Answer, Limit, Naive

S = 1_000_000
NOW = 1_700_000_000 * S  # a multiple of ten seconds, not of a minute
MINUTE = 60 * S
EDGE = NOW - NOW % MINUTE  # the start of NOW's minute


def short(answer: Answer) -> tuple[bool, int, int | None, int]:
    """The four numbers most checks are about."""
    return answer.allowed, answer.remaining, answer.retry_us, answer.reset_us


@pytest.mark.parametrize("algorithm", BUCKETS)
def test_ten_per_second(algorithm: str) -> None:
    model = Naive(algorithm, 10, S, None)
    assert short(model.peek(NOW, 1)) == (True, 10, 0, 0)
    assert short(model.take(NOW, 10)) == (True, 0, 0, S)
    assert short(model.take(NOW, 1)) == (False, 0, 100_000, S)
    assert short(model.take(NOW + 99_999, 1)) == (False, 0, 1, S - 99_999)
    assert short(model.take(NOW + 100_000, 1)) == (True, 0, 0, S)
    assert short(model.take(NOW + 400_000, 5)) == (False, 3, 200_000, 700_000)


def test_civil_day_with_a_clock_change() -> None:
    """In Berlin the 29th of March 2026 has 23 hours: it ends at 22:00 UTC."""
    noon = 1_774_778_400 * S  # 12:00 in Berlin, 10:00 UTC
    model = Naive("calendar day in Europe/Berlin", 3, 86_400 * S, None)
    assert short(model.take(noon, 3)) == (True, 0, 0, 12 * 3_600 * S)
    assert short(model.take(noon + 12 * 3_600 * S - 1, 1)) == (False, 0, 1, 1)
    assert short(model.take(noon + 12 * 3_600 * S, 1)) == (True, 2, 0, 24 * 3_600 * S)
    assert short(model.take(noon - 12 * 3_600 * S, 3)) == (False, 2, 48 * 3_600 * S, 48 * 3_600 * S)


@pytest.mark.parametrize("algorithm", BUCKETS)
def test_seconds_that_do_not_divide(algorithm: str) -> None:
    model = Naive(algorithm, 3, S, 1)
    assert short(model.take(NOW, 1)) == (True, 0, 0, 333_334)
    assert not model.take(NOW + 333_333, 1).allowed
    assert model.take(NOW + 333_334, 1).allowed


def test_gcra_admits_by_its_own_inequality() -> None:
    model = Naive("gcra", 7, 7 * S, 3)
    arrival = 0
    for now in range(NOW, NOW + 9 * S, 370_000):
        fits = max(now, arrival) + S - now <= 3 * S
        assert model.take(now, 1).allowed is fits
        if fits:
            arrival = max(now, arrival) + S


def test_gcra_and_bucket_are_one_algorithm() -> None:
    rng = random.Random(3)
    bucket, gcra = Naive("token_bucket", 7, S, 11), Naive("gcra", 7, S, 11)
    now = NOW
    for _ in range(200):
        now += rng.choice((0, 1, 142_857, rng.randint(-S, S), -3 * S))
        cost = rng.randint(0, 4)
        ours, theirs = bucket.take(now, cost), gcra.take(now, cost)
        assert (short(ours), ours.reason) == (short(theirs), theirs.reason)
        if ours.receipt and theirs.receipt and rng.random() < 0.3:
            bucket.give_back(ours.receipt, now + 50_000, cost)
            gcra.give_back(theirs.receipt, now + 50_000, cost)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_remaining_can_be_taken_one_by_one(algorithm: str) -> None:
    rng = random.Random(5)
    for _ in range(20):
        model = Naive(algorithm, 7, 1_000, 9 if algorithm in BUCKETS else None)
        now = NOW
        for _ in range(6):
            now += rng.randint(0, 500)
            left = model.take(now, rng.randint(0, 4)).remaining
        assert [model.take(now, 1).allowed for _ in range(left + 1)] == ([True] * left + [False])


def test_leaky_bucket_delays() -> None:
    model = Naive("leaky_bucket", 10, S, None)
    assert model.take(NOW, 3).delay == 0
    assert model.take(NOW, 2).delay == Fraction(3, 10)
    assert model.peek(NOW + 50_000, 5).delay == Fraction(45, 100)
    assert model.peek(NOW + 50_000, 6).delay == 0
    assert Naive("token_bucket", 10, S, None).take(NOW, 3).delay == 0


def test_fixed_window_edges() -> None:
    model = Naive("fixed_window", 5, MINUTE, None)
    assert short(model.take(EDGE + MINUTE - 1, 5)) == (True, 0, 0, 1)
    assert short(model.take(EDGE + MINUTE - 1, 1)) == (False, 0, 1, 1)
    assert short(model.take(EDGE + MINUTE, 5)) == (True, 0, 0, MINUTE)


def test_log_entries_stop_counting_at_exactly_one_period() -> None:
    model = Naive("sliding_window_log", 5, MINUTE, None)
    model.take(NOW, 2)
    assert short(model.take(NOW + 10 * S, 3)) == (True, 0, 0, MINUTE)
    assert short(model.take(NOW + MINUTE - 1, 1)) == (False, 0, 1, 10 * S + 1)
    assert short(model.take(NOW + MINUTE, 3)) == (False, 2, 10 * S, 10 * S)
    assert short(model.take(NOW + MINUTE, 2)) == (True, 0, 0, MINUTE)


def test_window_counter_weighs_the_window_before() -> None:
    model = Naive("sliding_window_counter", 10, MINUTE, None)
    # 10 - k is below 1 only after nine tenths of the next window
    assert short(model.take(EDGE, 10)) == (True, 0, 0, 2 * MINUTE - 6 * S + 1)
    # at the edge all ten still count; one tick later floor(9.99..) is nine
    assert short(model.take(EDGE + MINUTE, 1))[:3] == (False, 0, 1)
    assert short(model.take(EDGE + MINUTE + 1, 1))[:2] == (True, 0)
    # a half gone: floor(5 + 1) used
    assert model.peek(EDGE + MINUTE + MINUTE // 2, 1).remaining == 4


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_raised_from_100_to_1000_with_60_used_leaves_940(algorithm: str) -> None:
    model = Naive(algorithm, 100, MINUTE, None)
    model.take(EDGE, 60)
    model.limit(algorithm, 1000, MINUTE, None)
    assert model.peek(EDGE, 1).remaining == 940
    assert model.take(EDGE, 0).remaining == 940
    assert model.take(EDGE, 1).remaining == 939


def test_changed_algorithm_starts_with_the_units_used() -> None:
    model = Naive("token_bucket", 10, S, None)
    model.take(NOW, 10)
    model.limit("sliding_window_log", 10, MINUTE, None)
    # 9.5 used count as ten; the old bucket still decides when one fits
    assert short(model.take(NOW + 50_000, 1)) == (False, 0, 50_000, 950_000)
    # one and a half gone: nine used, charged now and live for a whole minute
    assert short(model.take(NOW + 150_000, 1)) == (True, 0, 0, MINUTE)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_cost_of_zero_and_cost_above_limit(algorithm: str) -> None:
    model = Naive(algorithm, 4, S, None)
    too_much = model.take(NOW, 5)
    assert (too_much.reason, too_much.remaining) == ("cost_exceeds_limit", 4)
    assert short(model.take(NOW, 0)) == (True, 4, 0, 0)
    model.charge(NOW, 6)
    assert short(model.take(NOW, 0))[:3] == (True, 0, 0)
    model.limit(algorithm, 0, S, None)
    assert model.take(NOW, 0).reason == "blocked"
    assert short(model.peek(NOW, 1)) == (False, 0, None, 0)


def test_debt_recovers() -> None:
    model = Naive("token_bucket", 10, S, None)
    model.charge(NOW, 15)
    assert short(model.take(NOW, 1)) == (False, 0, 600_000, 1_500_000)
    assert short(model.take(NOW + 600_000, 1)) == (True, 0, 0, S)


def test_clock_step_back() -> None:
    model = Naive("token_bucket", 10, S, None)
    model.take(NOW, 10)
    # less than a period: no time passed, and the lag is part of the wait
    assert short(model.take(NOW - 500_000, 1)) == (False, 0, 600_000, 1_500_000)
    assert model.take(NOW - S, 1).retry_us == S + 100_000
    # more than a period: as if the last change had been now
    assert short(model.take(NOW - S - 1, 1)) == (False, 0, 100_000, S)


def test_rebase_moves_windows_to_now() -> None:
    model = Naive("sliding_window_counter", 10, MINUTE, None)
    model.take(EDGE, 6)
    model.take(EDGE + MINUTE, 2)
    early = EDGE - 10 * MINUTE
    assert model.peek(early, 1).remaining == 2
    assert model.peek(early + MINUTE // 2, 1).remaining == 5
    model.take(early, 1)
    assert model.peek(early + MINUTE // 2, 1).remaining == 4


def test_give_back_goes_where_it_was_charged() -> None:
    bucket = Naive("gcra", 10, S, None)
    receipt = bucket.take(NOW, 8).receipt
    assert receipt is not None
    # three refilled meanwhile, so five of the eight are left to give
    bucket.give_back(receipt, NOW + 300_000, 8)
    assert short(bucket.peek(NOW + 300_000, 1)) == (True, 10, 0, 0)

    window = Naive("fixed_window", 5, MINUTE, None)
    receipt = window.take(EDGE, 3).receipt
    assert receipt is not None
    window.take(EDGE + MINUTE, 4)
    window.give_back(receipt, EDGE + MINUTE, 3)
    assert window.peek(EDGE + MINUTE, 1).remaining == 1

    log = Naive("sliding_window_log", 5, MINUTE, None)
    receipt = log.take(NOW, 3).receipt
    assert receipt is not None
    log.take(NOW + 1, 2)
    log.give_back(receipt, NOW + 2, 2)
    assert log.peek(NOW + 2, 1).remaining == 2
    assert log.peek(NOW + MINUTE, 1).remaining == 3


def test_resolution() -> None:
    day = 24 * 3600 * S
    assert Limit("token_bucket", 10, S).resolution == 1
    assert Limit("token_bucket", 1_000_003, day).resolution == 100
    assert Limit("sliding_window_counter", 60_000, day).resolution == 10
    assert Limit("fixed_window", 1_000_003, day).resolution == 1
    with pytest.raises(ValueError, match="no tick"):
        Limit("gcra", 999_999_937, 365 * day)
