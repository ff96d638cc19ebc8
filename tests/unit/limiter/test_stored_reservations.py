"""Reservations with an id: several costs, an end, and settling by any process, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from crestgate import AsyncLimiter, ConfigError, Limiter, RateLimitExceeded, StoreError
from crestgate.errors import ReservationClosedError, TooManyReservationsError, UnknownReservationError
from crestgate.limiter import stored_reservations
from crestgate.reservations.memory import MemoryBook
from crestgate.stores.memory import MemoryStore
from crestgate.stores.port import Outcome, Request
from crestgate.testing import FakeClock

PLANS = {"requests": "10/hour using fixed_window", "tokens": "1000/hour using fixed_window"}
COSTS = {"requests": 1, "tokens": 800}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(1_700_000_000)


@pytest.fixture
def limiter(clock: FakeClock) -> Limiter:
    return Limiter("memory://", plans=PLANS, clock=clock)


def left(limiter: Limiter, plan: str = "tokens") -> int:
    return limiter.peek("acme", plan).remaining


def test_costs_are_taken_in_one_step(limiter: Limiter) -> None:
    reservation = limiter.reserve("acme", COSTS, ttl=120)
    assert (left(limiter, "requests"), left(limiter)) == (9, 200)
    assert reservation.id is not None
    assert len(reservation.id) == 22
    assert reservation.expires_at == 1_700_000_120


def test_denial_of_one_limit_changes_nothing(limiter: Limiter) -> None:
    with pytest.raises(RateLimitExceeded) as denied:
        limiter.reserve("acme", {"requests": 1, "tokens": 1001})
    assert denied.value.decision.name == "tokens"
    assert (left(limiter, "requests"), left(limiter)) == (10, 1000)


def test_settle_gives_back_and_charges_at_once(limiter: Limiter) -> None:
    reservation = limiter.reserve("acme", COSTS)
    assert reservation.settle({"requests": 3, "tokens": 620}) == (True, False)
    assert (left(limiter, "requests"), left(limiter)) == (7, 380)


def test_settle_by_id_leaves_limits_that_are_not_named(limiter: Limiter) -> None:
    reservation = limiter.reserve("acme", COSTS)
    assert reservation.id is not None
    limiter.reservation(reservation.id).settle({"tokens": 900})
    assert (left(limiter, "requests"), left(limiter)) == (9, 100)


def test_settled_twice_counts_once(limiter: Limiter) -> None:
    reservation = limiter.reserve("acme", COSTS)
    assert reservation.id is not None
    reservation.settle({"tokens": 100})
    with pytest.raises(ReservationClosedError, match="settled already"):
        reservation.settle({"tokens": 0})
    with pytest.raises(ReservationClosedError, match="the first settlement counts"):
        limiter.reservation(reservation.id).release()
    assert left(limiter) == 900


def test_pairs_of_limits_and_costs(limiter: Limiter) -> None:
    reservation = limiter.reserve("acme", [("requests", 1), (["tokens", "50/day using fixed_window"], 40)])
    reservation.release()
    assert (left(limiter, "requests"), left(limiter)) == (10, 1000)


def test_one_number_is_refused_for_several_costs(limiter: Limiter) -> None:
    reservation = limiter.reserve("acme", COSTS)
    with pytest.raises(ValueError, match="requests, tokens"):
        reservation.settle(620)
    assert limiter.reserve("acme", {"tokens": 10}).settle(5).settled
    assert reservation.settle({"tokens": 620}).settled


@pytest.mark.parametrize("actual", [-1, 2**31, 1.5, True, None, {"tokens": -1}, {"other": 1}])
def test_bad_actual_changes_nothing(limiter: Limiter, actual: object) -> None:
    reservation = limiter.reserve("acme", {"tokens": 800})
    with pytest.raises(ValueError, match="actual"):
        reservation.settle(actual)  # type: ignore[arg-type]
    assert left(limiter) == 200
    assert reservation.settle(1).settled


def test_kept_at_the_end_and_settled_late(limiter: Limiter, clock: FakeClock) -> None:
    reservation = limiter.reserve("acme", COSTS, ttl=10)
    clock.advance(11)
    limiter.sweep_reservations()
    assert left(limiter) == 200
    assert reservation.settle({"tokens": 100}) == (True, True)
    assert left(limiter) == 900


def test_forgotten_an_hour_after_the_end(limiter: Limiter, clock: FakeClock) -> None:
    reservation = limiter.reserve("acme", COSTS, ttl=10)
    clock.advance(3611)
    assert limiter.sweep_reservations() == 1
    with pytest.raises(UnknownReservationError):
        reservation.settle({"tokens": 100})


def test_released_at_the_end(limiter: Limiter, clock: FakeClock) -> None:
    limiter.reserve("acme", COSTS, ttl=10, on_expiry="release")
    clock.advance(9)
    assert limiter.sweep_reservations() == 0
    clock.advance(1)
    assert limiter.sweep_reservations() == 1
    assert (left(limiter, "requests"), left(limiter)) == (10, 1000)
    assert limiter.sweep_reservations() == 0


def test_settled_after_its_release_charges_what_was_used_once(limiter: Limiter, clock: FakeClock) -> None:
    reservation = limiter.reserve("acme", COSTS, ttl=10, on_expiry="release")
    clock.advance(11)
    limiter.sweep_reservations()
    assert reservation.settle({"tokens": 620}) == (True, True)
    assert (left(limiter, "requests"), left(limiter)) == (9, 380)
    with pytest.raises(ReservationClosedError):
        reservation.release()
    limiter.sweep_reservations()
    assert left(limiter) == 380


def test_settled_before_the_sweep_is_not_released(limiter: Limiter, clock: FakeClock) -> None:
    reservation = limiter.reserve("acme", COSTS, ttl=10, on_expiry="release")
    clock.advance(11)
    assert reservation.settle({"tokens": 620}) == (True, True)
    limiter.sweep_reservations()
    assert left(limiter) == 380


@pytest.mark.parametrize("killed_after", [1, 2, 3])
def test_settlement_that_was_interrupted_is_finished_once(
    limiter: Limiter, clock: FakeClock, killed_after: int
) -> None:
    """Steps: find, claim, change the counters, close."""
    reservation = limiter.reserve("acme", COSTS, ttl=60)
    assert reservation.id is not None
    steps = limiter.reservations.open().settle(reservation.id, {"tokens": 620}, None)
    step = next(steps)
    for _ in range(killed_after):
        result = step.call() if isinstance(step, stored_reservations.BookCall) else limiter.apply(step)
        step = steps.send(result)
    steps.close()
    clock.advance(3)
    limiter.sweep_reservations()
    assert left(limiter) == (200 if killed_after == 1 else 380)
    if killed_after == 1:
        assert reservation.settle({"tokens": 620}).settled
    else:
        with pytest.raises(ReservationClosedError):
            reservation.settle({"tokens": 0})
    assert left(limiter) == 380


def test_extend_moves_the_end(limiter: Limiter, clock: FakeClock) -> None:
    reservation = limiter.reserve("acme", COSTS, ttl=10, on_expiry="release")
    clock.advance(9)
    assert reservation.extend(60) == 1_700_000_069
    clock.advance(30)
    limiter.sweep_reservations()
    assert left(limiter) == 200
    clock.advance(30)
    limiter.sweep_reservations()
    assert left(limiter) == 1000


def test_extend_after_the_end_is_an_error(limiter: Limiter, clock: FakeClock) -> None:
    reservation = limiter.reserve("acme", COSTS, ttl=10)
    clock.advance(11)
    with pytest.raises(ReservationClosedError, match="has ended"):
        reservation.extend(10)


@pytest.mark.parametrize("reservation_id", ["", "x", "A" * 22, "A" * 5000, "ä" * 22])
def test_unknown_id(limiter: Limiter, reservation_id: str) -> None:
    with pytest.raises(UnknownReservationError):
        limiter.reservation(reservation_id).settle(1)


@pytest.mark.parametrize("ttl", [0, 0.5, 86_401, -1, True, float("nan"), "10"])
def test_bad_ttl(limiter: Limiter, ttl: object) -> None:
    with pytest.raises(ValueError, match="ttl"):
        limiter.reserve("acme", COSTS, ttl=ttl)  # type: ignore[arg-type]
    assert left(limiter) == 1000


@pytest.mark.parametrize("policy", ["drop", "", 0, []])
def test_bad_end_policy(limiter: Limiter, policy: Any) -> None:
    with pytest.raises(ValueError, match="on_expiry"):
        limiter.reserve("acme", COSTS, on_expiry=policy)


def test_block_ends_as_without_an_id(limiter: Limiter, clock: FakeClock) -> None:
    with limiter.reserve("acme", COSTS, ttl=10, on_expiry="release"):
        pass
    clock.advance(11)
    limiter.sweep_reservations()
    assert left(limiter) == 200, "a block that is left keeps its charge"
    with pytest.raises(ZeroDivisionError), limiter.reserve("acme", {"tokens": 100}):
        raise ZeroDivisionError
    assert left(limiter) == 200
    with pytest.raises(KeyboardInterrupt), limiter.reserve("acme", {"tokens": 100}):
        raise KeyboardInterrupt
    assert left(limiter) == 100, "who hangs up keeps the charge"


def test_open_reservations_are_bounded(limiter: Limiter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_reservations, "MAX_OPEN_OF_LIBRARY", 2)
    first = limiter.reserve("acme", {"tokens": 1})
    limiter.reserve("acme", {"tokens": 1})
    with pytest.raises(TooManyReservationsError):
        limiter.reserve("acme", {"tokens": 1})
    assert left(limiter) == 998
    first.release()
    limiter.reserve("acme", {"tokens": 1})


def test_limits_of_a_reservation_are_bounded(limiter: Limiter) -> None:
    many = [(f"{count}/hour", 1) for count in range(10, 111)]
    with pytest.raises(ValueError, match="a reservation has at most"):
        limiter.reserve("acme", many)
    assert limiter.reserve("acme", many[:100]).settle(1).settled


def test_no_more_limits_are_read_than_a_reservation_may_have(clock: FakeClock) -> None:
    """Each is compared with all before it, so a list of a million would take for ever."""
    read = []

    def plan(name: str) -> str:
        read.append(name)
        return f"{name}/hour"

    limiter = Limiter("memory://", plans=plan, clock=clock)
    with pytest.raises(ValueError, match="a reservation has at most"):
        limiter.reserve("acme", {str(count): 1 for count in range(1, 10_001)})
    assert len(read) == 101


def test_bytes_of_a_reservation_are_bounded(limiter: Limiter) -> None:
    key = "é" * 200
    with pytest.raises(ValueError, match="bytes of keys and names"):
        limiter.reserve(key, [(f"{count}/hour", 1) for count in range(10, 80)])
    assert limiter.peek(key, "10/hour").remaining == 10, "nothing was charged"


def test_memory_of_changes_is_bounded(limiter: Limiter) -> None:
    reservation = limiter.reserve("acme", COSTS, ttl=86_400)
    for _ in range(3000):
        reservation.extend(86_400)
    book = limiter.reservations.open().book
    assert isinstance(book, MemoryBook)
    assert len(book._due) < 1100


def test_row_that_cannot_be_read_does_not_hold_up_the_others(limiter: Limiter, clock: FakeClock) -> None:
    bad, good = (limiter.reserve("acme", {"tokens": 400}, ttl=10, on_expiry="release") for _ in range(2))
    book = limiter.reservations.open().book
    assert isinstance(book, MemoryBook)
    row = book.find(str(bad.id))
    assert row is not None
    assert book.replace(row._replace(version=row.version + 1, body=row.body.replace("1000/hour", "1000/eon")))
    clock.advance(11)
    with pytest.raises(ConfigError):
        limiter.reservations.sweep()
    assert left(limiter) == 600, "the other was given back"
    with pytest.raises(ReservationClosedError):
        good.extend(10)


def test_the_same_limit_twice_is_an_error(limiter: Limiter) -> None:
    with pytest.raises(ConfigError, match="reserved twice"):
        limiter.reserve("acme", [("tokens", 1), (["requests", "tokens"], 2)])


def test_settlements_count_once_in_a_race_with_the_end(limiter: Limiter, clock: FakeClock) -> None:
    """Every interleaving of one settlement and one sweep, step by step."""
    for order in range(2**8):
        limiter.reset("acme", ["requests", "tokens"])
        reservation = limiter.reserve("acme", COSTS, ttl=10, on_expiry="release")
        assert reservation.id is not None
        clock.advance(11)
        stored = limiter.reservations.open()
        runs = [stored.settle(reservation.id, {"tokens": 620}, None), stored.sweep(10)]
        pending = [next(run) for run in runs]
        done = [False, False]
        for turn in range(40):
            which = (order >> (turn % 8)) & 1
            which = which if not done[which] else 1 - which
            if all(done):
                break
            step = pending[which]
            result = step.call() if isinstance(step, stored_reservations.BookCall) else limiter.apply(step)
            try:
                pending[which] = runs[which].send(result)
            except StopIteration:
                done[which] = True
        assert all(done)
        assert left(limiter) == 380, order
        clock.advance(400)
        limiter.sweep_reservations()


def test_async_limiter_awaits_or_enters(clock: FakeClock) -> None:
    async def run() -> None:
        limiter = AsyncLimiter("memory://", plans=PLANS, clock=clock)
        reservation = await limiter.reserve("acme", COSTS, ttl=60)
        assert reservation.id is not None
        assert await limiter.reservation(reservation.id).extend(120) == 1_700_000_120
        assert await limiter.reservation(reservation.id).settle({"tokens": 1}) == (True, False)
        with pytest.raises(ReservationClosedError):
            await reservation.release()
        async with limiter.reserve("acme", {"tokens": 900}) as r:
            await r.settle(10)
        assert (await limiter.peek("acme", "tokens")).remaining == 989
        await limiter.aclose()

    asyncio.run(run())


def test_shared_store_is_settled_by_another_limiter(tmp_path: Path, clock: FakeClock) -> None:
    url = f"shared://{tmp_path}/counters"
    with Limiter(url, plans=PLANS, clock=clock) as first, Limiter(url, plans=PLANS, clock=clock) as second:
        reservation = first.reserve("acme", COSTS, ttl=60)
        assert reservation.id is not None
        assert second.reservation(reservation.id).settle({"tokens": 620}).settled
        with pytest.raises(ReservationClosedError):
            reservation.settle({"tokens": 0})
        assert left(first) == 380
        first.reserve("acme", {"tokens": 300}, ttl=60, on_expiry="release")
        clock.advance(61)
        second.sweep_reservations()
        assert left(second) == 380


class FailingStore:
    """A store object that cannot be reached."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock

    def apply(self, batch: object) -> list[list[object]]:
        raise StoreError("unreachable")

    def close(self) -> None: ...


def test_fail_open_reserves_nothing(clock: FakeClock) -> None:
    limiter = Limiter(FailingStore(clock), plans=PLANS)  # type: ignore[arg-type]
    reservation = limiter.reserve("acme", COSTS)
    assert reservation.decision.reason == "fail_open"
    assert reservation.settle({"tokens": 620}) == (False, False)


class BreakingStore:
    """A memory store that fails from some moment on."""

    def __init__(self, clock: FakeClock) -> None:
        self.store = MemoryStore(clock=clock)
        self.clock = clock
        self.broken = False

    def apply(self, batch: Sequence[Request]) -> list[list[Outcome]]:
        if self.broken:
            raise StoreError("unreachable")
        return self.store.apply(batch)

    def close(self) -> None:
        self.store.close()


def test_settlement_without_an_id_says_when_the_store_failed(clock: FakeClock) -> None:
    store = BreakingStore(clock)
    limiter = Limiter(store, plans=PLANS)
    reservation = limiter.reserve("acme", "tokens", 800)
    store.broken = True
    assert reservation.settle(620) == (False, False)
    store.broken = False
    assert left(limiter) == 200


def test_settlement_by_id_that_failed_is_finished_by_a_sweep(clock: FakeClock) -> None:
    store = BreakingStore(clock)
    limiter = Limiter(store, plans=PLANS)
    reservation = limiter.reserve("acme", COSTS)
    store.broken = True
    with pytest.raises(StoreError, match="tried again"):
        reservation.settle({"tokens": 620})
    store.broken = False
    clock.advance(3)
    limiter.sweep_reservations()
    assert left(limiter) == 380
    with pytest.raises(ReservationClosedError):
        reservation.settle({"tokens": 0})
    assert left(limiter) == 380


def test_settlement_of_an_ended_reservation_waits_for_the_store(clock: FakeClock) -> None:
    store = BreakingStore(clock)
    limiter = Limiter(store, plans=PLANS)
    reservation = limiter.reserve("acme", COSTS, ttl=10, on_expiry="release")
    clock.advance(11)
    store.broken = True
    limiter.sweep_reservations()
    with pytest.raises(StoreError, match="not given back yet"):
        reservation.settle({"tokens": 620})
    store.broken = False
    assert reservation.settle({"tokens": 620}) == (True, True)
    assert left(limiter) == 380
