"""Holding slots of in-flight limits, for threads and for asyncio."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
import tracemalloc
from collections import defaultdict
from collections.abc import Callable, Sequence

import pytest

from crestgate import AsyncLimiter, ConfigError, Limit, Limiter, RateLimitExceeded
from crestgate.stores.port import Op, Outcome, Request
from crestgate.testing import FakeClock
from flaky_store import Flaky

TWO = "2 concurrent"


def test_hold_takes_a_slot_and_releases_it() -> None:
    with Limiter("memory://", clock=FakeClock(1_700_000_000)) as limiter:
        with limiter.hold("a", TWO) as first:
            assert (first.decision.remaining, first.lost) == (1, False)
            with limiter.hold("a", TWO), pytest.raises(RateLimitExceeded) as denied, limiter.hold("a", TWO):
                raise AssertionError("never entered")
            assert denied.value.decision.retry_after == 60
            assert limiter.peek("a", TWO).remaining == 1
        assert limiter.peek("a", TWO).remaining == 2


def test_exception_releases_slots_and_rate_charges_stay() -> None:
    with Limiter("memory://", clock=FakeClock(1_700_000_000)) as limiter:
        with pytest.raises(ZeroDivisionError), limiter.hold("a", [TWO, "5/minute"]):
            raise ZeroDivisionError
        assert (limiter.peek("a", TWO).remaining, limiter.peek("a", "5/minute").remaining) == (2, 4)


def test_chain_is_all_or_nothing() -> None:
    with Limiter("memory://", clock=FakeClock(1_700_000_000)) as limiter:
        with (
            limiter.hold("a", [TWO, "1/minute"]),
            pytest.raises(RateLimitExceeded),
            limiter.hold("a", [TWO, "1/minute"]),
        ):
            raise AssertionError("never entered")
        assert limiter.peek("a", TWO).remaining == 2


def test_cost_is_a_number_of_slots() -> None:
    with Limiter("memory://", clock=FakeClock(1_700_000_000)) as limiter:
        with limiter.hold("a", "5 concurrent", 4) as held:
            assert held.decision.remaining == 1
        assert limiter.peek("a", "5 concurrent").remaining == 5


def test_renewed_slot_outlives_its_ttl_and_an_expired_one_is_lost() -> None:
    clock = FakeClock(1_700_000_000)
    with Limiter("memory://", clock=clock) as limiter:
        with limiter.hold("a", TWO) as kept, limiter.hold("a", TWO) as forgotten:
            clock.advance(40)
            assert kept.renew() == 20
            clock.advance(40)
            assert kept.renew() == 20
            assert forgotten.renew() is None
            assert (kept.lost, forgotten.lost) == (False, True)
            assert limiter.peek("a", TWO).remaining == 1
        assert limiter.peek("a", TWO).remaining == 2


def test_background_thread_renews_and_ends_with_the_limiter() -> None:
    others = set(threading.enumerate())  # of limiters that other tests have not closed
    limiter = Limiter("memory://")
    limit = "1 concurrent ttl 300ms"
    with limiter.hold("a", limit) as held:
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            assert not limiter.peek("a", limit).allowed
            time.sleep(0.01)
        assert not held.lost
    assert limiter.peek("a", limit).allowed
    limiter.close()
    threads = set(threading.enumerate()) - others
    assert not [thread for thread in threads if thread.name == "crestgate-slots"]


def test_waiting_notices_a_release() -> None:
    with Limiter("memory://") as limiter:
        entered, times = threading.Event(), []

        def wait() -> None:
            entered.wait()
            with limiter.hold("a", "1 concurrent", timeout=30):
                times.append(time.monotonic())

        waiting = threading.Thread(target=wait)
        waiting.start()
        with limiter.hold("a", "1 concurrent"):
            entered.set()
            time.sleep(0.2)
            assert not times
        waiting.join(10)
        assert times


def test_timeout_on_virtual_time() -> None:
    clock = FakeClock(1_700_000_000)
    with Limiter("memory://", clock=clock) as limiter, limiter.hold("a", "1 concurrent"):
        with pytest.raises(TimeoutError), limiter.hold("a", "1 concurrent", timeout=5):
            raise AssertionError("never entered")
        assert 1_700_000_004.9 < clock.now() <= 1_700_000_005.1
        with pytest.raises(TimeoutError), limiter.hold("a", "0 concurrent", timeout=5):
            raise AssertionError("never entered")


def test_checks_refuse_in_flight_limits() -> None:
    with Limiter("memory://", clock=FakeClock(1_700_000_000)) as limiter:
        attempts: list[Callable[[], object]] = [
            lambda: limiter.check("a", TWO),
            lambda: limiter.check("a", Limit.parse(TWO)),
            lambda: limiter.check("a", ["5/minute", TWO]),
            lambda: limiter.check_many([("a", TWO)]),
            lambda: limiter.acquire("a", TWO),
            lambda: limiter.reserve("a", TWO),
            lambda: limiter.bind(TWO).check("a"),
            lambda: limiter.limit(TWO),
        ]
        for attempt in attempts:
            with pytest.raises(ConfigError, match=r"limiter\.hold"):
                attempt()
        with pytest.raises(ConfigError, match="in-flight limit"):
            limiter.hold("a", "5/minute")
        assert limiter.peek("a", TWO).remaining == 2
        limiter.reset("a", TWO)


def test_fail_open_holds_nothing_and_unknown_renewal_is_lost() -> None:
    store = Flaky()
    limiter = Limiter(store)
    with limiter.hold("a", TWO) as held:
        store.broken = True
        assert held.renew() is None
        assert held.lost
        with limiter.hold("a", TWO) as open_:
            assert open_.decision.reason == "fail_open"
            assert open_.renew() is None
        store.broken = False
    assert limiter.peek("a", TWO).remaining == 1, "nothing more is sent for it: it ends after its ttl"
    limiter.close()


def test_released_holds_are_forgotten_before_their_renewal_is_due() -> None:
    with Limiter("memory://") as limiter:
        tracemalloc.start()
        try:
            for _ in range(20_000):
                with limiter.hold("a", "5 concurrent ttl 1h"):
                    pass
            gc.collect()
            left, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert left < 2_000_000, "100 bytes for each of them"


def test_hold_that_was_dropped_is_not_renewed() -> None:
    store = Renewals()
    with Limiter(store) as limiter, limiter.hold("kept", "2 concurrent ttl 90ms"):
        limiter.hold("dropped", "2 concurrent ttl 90ms").__enter__()
        assert store.seen["kept"].wait(30)
        store.seen["kept"].clear()
        assert store.seen["kept"].wait(30)
        assert not store.seen["dropped"].is_set()


class Renewals(Flaky):
    """Tells which keys' slots were renewed."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = defaultdict[str, threading.Event](threading.Event)

    def apply(self, batch: Sequence[Request]) -> list[list[Outcome]]:
        if batch[0].op is Op.RENEW:
            self.seen[batch[0].members[0].key].set()
        return super().apply(batch)


class Faulty(Flaky):
    """Fails to renew the slots of one key, as no store should, and tells of those of another."""

    def __init__(self) -> None:
        super().__init__()
        self.renewed = threading.Event()

    def apply(self, batch: Sequence[Request]) -> list[list[Outcome]]:
        if batch[0].op is Op.RENEW:
            if batch[0].members[0].key == "faulty":
                raise RuntimeError("a fault")
            self.renewed.set()
        return super().apply(batch)


def test_fault_in_a_renewal_does_not_end_the_others(caplog: pytest.LogCaptureFixture) -> None:
    store = Faulty()
    with Limiter(store) as limiter:
        limit = "2 concurrent ttl 90ms"
        with limiter.hold("faulty", limit) as faulty, limiter.hold("other", limit) as other:
            assert store.renewed.wait(30)
            assert (faulty.lost, other.lost) == (True, False)
    assert "unhandled error in renewing slots" in caplog.text


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_child_releases_nothing() -> None:
    with Limiter("memory://", clock=FakeClock(1_700_000_000)) as limiter:
        held = limiter.hold("a", TWO)
        held.__enter__()
        child = os.fork()
        if child == 0:
            held.__exit__(None, None, None)
            os._exit(0 if limiter.peek("a", TWO).remaining == 1 else 1)
        assert os.waitpid(child, 0)[1] == 0
        held.__exit__(None, None, None)
        assert limiter.peek("a", TWO).remaining == 2


async def hold_on_a_loop() -> None:
    clock = FakeClock(1_700_000_000)
    async with AsyncLimiter("memory://", clock=clock) as limiter:
        async with limiter.hold("a", [TWO, "5/minute"]) as held:
            clock.advance(50)
            assert await held.renew() == 20
            clock.advance(50)
            assert await held.renew() == 20
            with pytest.raises(RateLimitExceeded):
                async with limiter.hold("a", "1 concurrent"), limiter.hold("a", "1 concurrent"):
                    raise AssertionError("never entered")
            assert (await limiter.peek("a", TWO)).remaining == 1
        assert (await limiter.peek("a", TWO)).remaining == 2
        with pytest.raises(ConfigError, match=r"limiter\.hold"):
            await limiter.check("a", TWO)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def renew_on_a_loop() -> None:
    async with AsyncLimiter("memory://") as limiter:
        limit = "1 concurrent ttl 300ms"
        async with limiter.hold("a", limit) as held:
            waiting = asyncio.create_task(wait_for(limiter, limit))
            await asyncio.sleep(0.8)
            assert not waiting.done()
            assert not held.lost
        assert await asyncio.wait_for(waiting, 10)


async def wait_for(limiter: AsyncLimiter, limit: str) -> bool:
    async with limiter.hold("a", limit, timeout=20) as held:
        return held.decision.allowed


def test_hold_on_an_event_loop() -> None:
    asyncio.run(hold_on_a_loop())


def test_renewal_and_waiting_on_an_event_loop() -> None:
    asyncio.run(renew_on_a_loop())
