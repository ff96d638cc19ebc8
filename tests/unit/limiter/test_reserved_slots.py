"""In-flight limits in reservations: slots are taken, renewed and released with the id, each step sent once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from crestgate import AsyncLimiter, ConfigError, Limiter, RateLimitExceeded, StoreError
from crestgate.errors import ReservationClosedError, field_of
from crestgate.limiter.stored_reservations import BookCall, Steps
from crestgate.stores.memory import MemoryStore
from crestgate.stores.port import Op, Outcome, Request
from crestgate.testing import FakeClock

PLANS = {
    "streams": "2 concurrent ttl 30s",
    "exports": "1 concurrent ttl 20s",
    "tokens": "1000/hour using fixed_window",
    "gold": ["5 concurrent ttl 30s", "100/hour using fixed_window"],
}
COSTS = {"streams": 1, "tokens": 800}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(1_700_000_000)


@pytest.fixture
def limiter(clock: FakeClock) -> Limiter:
    return Limiter("memory://", plans=PLANS, clock=clock)


def left(limiter: Limiter, plan: str = "streams") -> int:
    return limiter.peek("acme", plan).remaining


def perform(limiter: Limiter, step: Any) -> Any:
    return step.call() if isinstance(step, BookCall) else limiter.apply(step)


def run_some(limiter: Limiter, steps: Steps, count: int) -> None:
    """As a process that is killed after so many steps."""
    step = next(steps)
    for _ in range(count):
        step = steps.send(perform(limiter, step))
    steps.close()


def test_slots_and_rates_are_taken_together_or_not_at_all(limiter: Limiter) -> None:
    limiter.reserve("acme", {"streams": 2, "tokens": 100})
    assert (left(limiter), left(limiter, "tokens")) == (0, 900)
    with pytest.raises(RateLimitExceeded) as denied:
        limiter.reserve("acme", COSTS)
    assert denied.value.decision.name == "streams"
    assert left(limiter, "tokens") == 900
    with pytest.raises(RateLimitExceeded):
        limiter.reserve("other", {"streams": 1, "tokens": 1001})
    assert limiter.peek("other", "streams").remaining == 2


@pytest.mark.parametrize("actual", [0, 620, 900, {"tokens": 620}, {}])
def test_every_settlement_releases_the_slots(limiter: Limiter, actual: Any) -> None:
    limiter.reserve("acme", COSTS).settle(actual)
    assert left(limiter) == 2
    used = 800 if actual == {} else actual["tokens"] if isinstance(actual, dict) else actual
    assert left(limiter, "tokens") == 1000 - used


def test_release_and_the_end_of_a_block_release_the_slots(limiter: Limiter) -> None:
    limiter.reserve("acme", COSTS).release()
    assert (left(limiter), left(limiter, "tokens")) == (2, 1000)
    with limiter.reserve("acme", COSTS):
        assert left(limiter) == 1
    assert (left(limiter), left(limiter, "tokens")) == (2, 200)


def test_actual_of_a_slot_is_refused(limiter: Limiter) -> None:
    reservation = limiter.reserve("acme", COSTS)
    with pytest.raises(ValueError, match="leave it out") as refused:
        reservation.settle({"streams": 1, "tokens": 5})
    assert field_of(refused.value)[0] == "actual.streams"
    assert left(limiter) == 1
    assert limiter.reserve("acme", {"gold": 3}).settle({"gold": 7}).settled, "the rate limit of the plan has this name"
    assert limiter.peek("acme", "gold").parts[0].remaining == 5
    assert limiter.peek("acme", "gold").parts[1].remaining == 93


def test_ttl_is_bounded_by_the_slots(limiter: Limiter) -> None:
    assert limiter.reserve("acme", COSTS).expires_at == 1_700_000_030
    assert limiter.reserve("other", {"streams": 1, "exports": 1}).expires_at == 1_700_000_020
    with pytest.raises(ValueError, match=r"at most 20 here, not 21: .* extend") as refused:
        limiter.reserve("third", {"streams": 1, "exports": 1}, ttl=21)
    assert field_of(refused.value)[0] == "ttl"
    assert limiter.peek("third", "streams").remaining == 2
    reservation = limiter.reserve("fourth", {"exports": 1}, ttl=20)
    with pytest.raises(ValueError, match="at most 20 here"):
        reservation.extend(21)
    assert limiter.reserve("fifth", {"tokens": 1}).expires_at == 1_700_000_300


def test_one_cost_for_all_and_own_limits(limiter: Limiter) -> None:
    reservation = limiter.reserve("acme", ["3 concurrent ttl 500ms", "streams"], 2, ttl=1)
    assert reservation.expires_at == 1_700_000_000.5
    assert left(limiter) == 0
    reservation.release()
    assert left(limiter) == 2
    with pytest.raises(ConfigError, match="ttl="):
        limiter.reserve("acme", "streams")


def test_extend_renews_the_slots(limiter: Limiter, clock: FakeClock) -> None:
    reservation = limiter.reserve("acme", COSTS, ttl=25)
    for _ in range(5):
        clock.advance(20)
        reservation.extend(25)
        assert left(limiter) == 1
    assert reservation.expires_at == 1_700_000_125
    reservation.settle({"tokens": 10})
    assert (left(limiter), left(limiter, "tokens")) == (2, 990)


@pytest.mark.parametrize("on_expiry", ["keep", "release"])
def test_slots_are_free_after_the_end(limiter: Limiter, clock: FakeClock, on_expiry: Any) -> None:
    reservation = limiter.reserve("acme", COSTS, on_expiry=on_expiry)
    clock.advance(30)
    limiter.sweep_reservations()
    assert left(limiter) == 2
    with limiter.hold("acme", "streams"):
        assert reservation.settle({"tokens": 1}).settled
        assert left(limiter) == 1, "the slot of somebody else stays"


def test_end_with_release_frees_slots_once(limiter: Limiter, clock: FakeClock) -> None:
    reservation = limiter.reserve("acme", COSTS, ttl=10, on_expiry="release")
    other = limiter.reserve("acme", {"streams": 1})  # of the same tick
    clock.advance(10)
    limiter.sweep_reservations()
    assert left(limiter) == 1
    reservation.settle({"tokens": 5})
    assert left(limiter) == 1
    other.release()
    assert left(limiter) == 2


def test_extend_with_a_slot_that_is_gone(limiter: Limiter, clock: FakeClock) -> None:
    reservation = limiter.reserve("acme", {"streams": 1, "tokens": 800, "exports": 1})
    limiter.reset("acme", "exports")
    clock.advance(5)
    with pytest.raises(ReservationClosedError, match="a slot of this reservation has ended"):
        reservation.extend(20)
    clock.advance(3)
    with pytest.raises(ReservationClosedError, match="a slot of this reservation has ended"):
        reservation.extend(20)
    assert reservation.settle({"tokens": 100}).late is False
    assert (left(limiter), left(limiter, "tokens")) == (2, 900), "the others are released"


@pytest.mark.parametrize("killed_after", [1, 2, 3])
def test_extension_that_was_interrupted(limiter: Limiter, clock: FakeClock, killed_after: int) -> None:
    """Steps: find, mark, renew, write the ticks. A slot is lost for its time to live at most, and never too many."""
    reservation = limiter.reserve("acme", COSTS)
    assert reservation.id is not None
    clock.advance(10)
    run_some(limiter, limiter.reservations.open().extend(reservation.id, 20_000_000, None), killed_after)
    if killed_after == 1:
        reservation.extend(20)
        reservation.settle({"tokens": 620})
        assert left(limiter) == 2
        return
    with pytest.raises(StoreError, match="another call extends"):
        reservation.extend(20)
    clock.advance(3)
    with pytest.raises(ReservationClosedError):
        reservation.extend(20)
    other = limiter.reserve("acme", {"streams": 1})
    assert left(limiter) == 0
    reservation.settle({"tokens": 620})
    assert (left(limiter), left(limiter, "tokens")) == (0, 380), "nobody knows the tick"
    clock.advance(27)
    assert left(limiter) == 1
    other.release()
    assert left(limiter) == 2


@pytest.mark.parametrize("killed_after", [1, 2, 3, 4])
def test_settlement_that_was_interrupted_releases_once(limiter: Limiter, clock: FakeClock, killed_after: int) -> None:
    """Steps: find, claim, release the slots, change the counters, close."""
    reservation = limiter.reserve("acme", COSTS)
    other = limiter.reserve("acme", {"streams": 1})  # of the same tick
    assert reservation.id is not None
    steps = limiter.reservations.open().settle(reservation.id, {"tokens": 620}, None)
    run_some(limiter, steps, killed_after)
    clock.advance(3)
    limiter.sweep_reservations()
    assert left(limiter) == (1 if killed_after > 2 else 0)
    assert left(limiter, "tokens") == (200 if killed_after == 1 else 380)
    other.extend(30)
    clock.advance(27)
    assert left(limiter) == 1


def interleave(limiter: Limiter, runs: list[Steps], order: int) -> list[Any]:
    """Run generators step by step in an order given by bits; their results, or errors."""
    results: list[Any] = [None] * len(runs)
    pending = [next(run) for run in runs]
    done = [False] * len(runs)
    for turn in range(60):
        which = (order >> (turn % 8)) & 1
        which = 1 - which if done[which] else which
        if all(done):
            return results
        try:
            pending[which] = runs[which].send(perform(limiter, pending[which]))
        except StopIteration as stop:
            done[which], results[which] = True, stop.value
        except (ReservationClosedError, StoreError) as error:
            done[which], results[which] = True, error
    raise AssertionError("not finished")


@pytest.mark.parametrize("kind", ["settle", "sweep", "extend"])
def test_extend_in_a_race(limiter: Limiter, clock: FakeClock, kind: str) -> None:
    """Every interleaving of an extension with a settlement, the end, or another extension. Another reservation of the
    same tick keeps its slot, whatever happens."""
    stored = limiter.reservations.open()
    for order in range(2**8):
        limiter.reset("acme", ["streams", "tokens"])
        reservation = limiter.reserve("acme", COSTS, ttl=10, on_expiry="release")
        other = limiter.reserve("acme", {"streams": 1})
        assert reservation.id is not None
        clock.advance(10)  # its end: it can be extended to the microsecond, and is swept
        if kind == "settle":
            against = stored.settle(reservation.id, {"tokens": 620}, None)
        else:
            against = stored.sweep(10) if kind == "sweep" else stored.extend(reservation.id, 20_000_000, None)
        extended, second = interleave(limiter, [stored.extend(reservation.id, 20_000_000, None), against], order)
        failed = isinstance(extended, Exception)
        assert not isinstance(second, ReservationClosedError), order
        if kind == "settle" or (kind == "sweep" and failed):
            assert left(limiter) == 1, order
        else:
            assert left(limiter) == 0, order
            assert not (failed and isinstance(second, Exception)), order
            reservation.release()
            assert left(limiter) == 1, order
        other.extend(30)
        other.release()
        assert left(limiter) == 2, order
        clock.advance(400)
        limiter.sweep_reservations()


class UnansweredStore:
    """A memory store that decides renewals, and whose answer is lost."""

    def __init__(self, clock: FakeClock, lost: Op) -> None:
        self.store = MemoryStore(clock=clock)
        self.clock = clock
        self.lost = lost
        self.sent: list[Op] = []

    def apply(self, batch: list[Request]) -> list[list[Outcome]]:
        replies = self.store.apply(batch)
        self.sent += [request.op for request in batch if request.members[0].algorithm.holds]
        if any(request.op is self.lost and request.members[0].algorithm.holds for request in batch):
            raise StoreError("no answer")
        return replies

    def close(self) -> None: ...


def test_renewal_without_an_answer_is_never_repeated(clock: FakeClock) -> None:
    store = UnansweredStore(clock, Op.RENEW)
    limiter = Limiter(store, plans=PLANS)  # type: ignore[arg-type]
    reservation = limiter.reserve("acme", COSTS)
    clock.advance(5)
    with pytest.raises(StoreError, match="unknown whether the slots were renewed"):
        reservation.extend(20)
    with pytest.raises(ReservationClosedError):
        reservation.extend(20)
    reservation.settle({"tokens": 620})
    assert [op for op in store.sent if op is not Op.PEEK] == [Op.TAKE, Op.RENEW]
    assert (left(limiter), left(limiter, "tokens")) == (1, 380)
    clock.advance(30)
    assert left(limiter) == 2


def test_release_without_an_answer_is_never_repeated(clock: FakeClock) -> None:
    store = UnansweredStore(clock, Op.GIVE_BACK)
    limiter = Limiter(store, plans=PLANS)  # type: ignore[arg-type]
    limiter.reserve("acme", COSTS).settle({"tokens": 620})
    clock.advance(3)
    limiter.sweep_reservations()
    assert [op for op in store.sent if op is not Op.PEEK] == [Op.TAKE, Op.GIVE_BACK]
    assert left(limiter, "tokens") == 380


def test_async_limiter_holds_slots(clock: FakeClock) -> None:
    async def run() -> None:
        limiter = AsyncLimiter("memory://", plans=PLANS, clock=clock)
        async with limiter.reserve("acme", COSTS, ttl=20) as r:
            clock.advance(15)
            await r.extend(30)
            clock.advance(20)
            assert (await limiter.peek("acme", "streams")).remaining == 1
            await r.settle(5)
        assert (await limiter.peek("acme", "streams")).remaining == 2
        await limiter.aclose()

    asyncio.run(run())
