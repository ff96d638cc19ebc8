"""Reservations with an id, the same in every store: two limiters, as two processes would have."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pytest

from crestgate import Limiter, RateLimitExceeded, StoreError
from crestgate.errors import ReservationClosedError, UnknownReservationError

PLANS = {
    "requests": "10/hour using gcra",
    "tokens": "1000/day using fixed_window",
    "streams": "3 concurrent",
    "short": "1 concurrent ttl 2s",
}
COSTS = {"requests": 1, "tokens": 800}
STORES = ("shared", "sqlite", "redis_server", "redis_cluster", "mariadb", "postgres")


def url_of(kind: str, request: pytest.FixtureRequest, folder: Path) -> str:
    prefix = uuid4().hex[:8]
    if kind == "shared":
        return f"shared://{folder}/counters?prefix={prefix}"
    if kind == "sqlite":
        return f"sqlite:///{folder}/counters.db?prefix={prefix}&timeout_ms=5000"
    url: str = request.getfixturevalue(kind).url
    return f"{url}{'&' if '?' in url else '?'}prefix={prefix}&timeout_ms=5000"


@pytest.fixture(params=STORES)
def limiters(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Limiter, Limiter]]:
    url = url_of(request.param, request, tmp_path)
    with Limiter(url, plans=PLANS) as first, Limiter(url, plans=PLANS) as second:
        yield first, second


def left(limiter: Limiter, plan: str = "tokens") -> int:
    return limiter.peek("acme", plan).remaining


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_settled_by_another_process_once(limiters: tuple[Limiter, Limiter]) -> None:
    first, second = limiters
    reservation = first.reserve("acme", COSTS, ttl=60)
    assert reservation.id is not None
    assert (left(second, "requests"), left(second)) == (9, 200)
    assert second.reservation(reservation.id).settle({"requests": 3, "tokens": 620}) == (True, False)
    assert (left(first, "requests"), left(first)) == (7, 380)
    with pytest.raises(ReservationClosedError):
        reservation.release()
    with pytest.raises(UnknownReservationError):
        first.reservation("A" * 22).release()
    assert left(first) == 380


def test_given_back_at_the_end_by_any_process(limiters: tuple[Limiter, Limiter]) -> None:
    first, second = limiters
    reservation = first.reserve("acme", COSTS, ttl=1, on_expiry="release")
    first.reservations.close()  # as a process that was killed: it sweeps no more
    assert reservation.id is not None
    other = second.reservation(reservation.id)
    wait_for(lambda: left(second) == 1000)
    assert left(second, "requests") == 10
    assert other.settle({"tokens": 5, "requests": 0}) == (True, True)
    assert left(second) == 995


def test_extended_by_another_process(limiters: tuple[Limiter, Limiter]) -> None:
    first, second = limiters
    reservation = first.reserve("acme", COSTS, ttl=2, on_expiry="release")
    assert reservation.id is not None
    second.reservation(reservation.id).extend(600)
    time.sleep(3.2)
    assert left(first) == 200
    assert reservation.release().late is False
    assert left(first) == 1000


def test_racing_settlements_count_once(limiters: tuple[Limiter, Limiter]) -> None:
    for round_number in range(1, 4):
        reservation = limiters[0].reserve("acme", {"tokens": 100}, ttl=60)
        assert reservation.id is not None

        def settle(number: int, reservation_id: str = reservation.id) -> bool:
            try:
                return limiters[number % 2].reservation(reservation_id).settle(10).settled
            except ReservationClosedError:
                return False

        with ThreadPoolExecutor(8) as threads:
            assert sum(threads.map(settle, range(8))) == 1
        assert left(limiters[0]) == 1000 - 10 * round_number


def test_slots_are_taken_renewed_and_released_by_any_process(limiters: tuple[Limiter, Limiter]) -> None:
    first, second = limiters
    reservation = first.reserve("acme", {"streams": 2, "tokens": 800})
    assert reservation.id is not None
    assert (left(second, "streams"), left(second)) == (1, 200)
    with pytest.raises(RateLimitExceeded):
        second.reserve("acme", {"streams": 2, "tokens": 1})
    second.reservation(reservation.id).extend(30)
    reservation.extend(60)
    assert (left(second, "streams"), left(second)) == (1, 200)
    assert second.reservation(reservation.id).settle({"tokens": 620}) == (True, False)
    assert (left(first, "streams"), left(first)) == (3, 380)


def test_slots_of_a_killed_process_end_by_themselves(limiters: tuple[Limiter, Limiter]) -> None:
    first, second = limiters
    reservation = first.reserve("acme", {"short": 1})
    first.reservations.close()
    with pytest.raises(RateLimitExceeded):
        second.reserve("acme", {"short": 1})
    with second.hold("acme", "short", timeout=30):
        assert left(second, "short") == 0
        assert reservation.id is not None
        with pytest.raises(ReservationClosedError):
            second.reservation(reservation.id).extend(1)
        second.reservation(reservation.id).settle({})
        assert left(second, "short") == 0, "the slot of somebody else stays"


def test_extensions_race_with_a_settlement(limiters: tuple[Limiter, Limiter]) -> None:
    """Whatever the order, all slots are free at the end, and one that is held by somebody else stays."""
    with limiters[0].hold("acme", "streams"):
        for _ in range(5):
            reservation = limiters[0].reserve("acme", {"streams": 1})
            assert reservation.id is not None

            def change(number: int, reservation_id: str = reservation.id) -> None:
                found = limiters[number % 2].reservation(reservation_id)
                with suppress(ReservationClosedError, StoreError):
                    found.release() if number == 3 else found.extend(60)

            with ThreadPoolExecutor(8) as threads:
                list(threads.map(change, range(8)))
            assert left(limiters[1], "streams") == 2
    assert left(limiters[1], "streams") == 3
