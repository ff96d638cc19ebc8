"""The failure policy of both limiters."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from typing import Literal

import pytest

from crestgate import AsyncLimiter, Limiter, StoreError
from crestgate.stores.port import Outcome, Request
from flaky_store import Flaky


@pytest.fixture
def store() -> Flaky:
    return Flaky()


def test_custom_store_object_works(store: Flaky) -> None:
    limiter = Limiter(store)
    assert [limiter.check("k", "2/minute").allowed for _ in range(3)] == [True, True, False]


def test_open_policy_admits(store: Flaky) -> None:
    limiter = Limiter(store)
    store.broken = True
    decision = limiter.check("k", "2/minute")
    assert (decision.allowed, decision.reason, decision.retry_after) == (True, "fail_open", 0.0)
    assert limiter.check("k", ["2/minute", "5/hour"]).reason == "fail_open"
    assert limiter.check("k", "0/minute").reason == "blocked", "a blocking limit needs no store"
    assert [d.reason for d in limiter.check_many([("a", "2/minute"), ("b", "2/minute")])] == ["fail_open"] * 2
    assert limiter.store_failures == 5


def test_closed_policy_denies(store: Flaky) -> None:
    limiter = Limiter(store, on_store_error="closed")
    store.broken = True
    decision = limiter.check("k", "2/minute")
    assert (decision.allowed, decision.reason, decision.retry_after) == (False, "fail_closed", 1.0)


def test_local_policy_limits_in_memory(store: Flaky) -> None:
    limiter = Limiter(store, on_store_error="local")
    limiter.check("k", "2/minute", cost=2)
    store.broken = True
    answers = [limiter.check("k", "2/minute") for _ in range(3)]
    assert [(d.allowed, d.reason) for d in answers] == [(True, "fallback"), (True, "fallback"), (False, "fallback")]
    store.broken = False
    assert limiter.check("k", "2/minute").reason == "limited"


def test_policies_are_the_same_for_async(store: Flaky) -> None:
    async def main() -> None:
        limiter = AsyncLimiter(store)
        assert (await limiter.check("k", "2/minute")).reason == "ok"
        store.broken = True
        assert (await limiter.check("k", "2/minute")).reason == "fail_open"
        with pytest.raises(StoreError, match="does not answer"):
            await limiter.reset("k", "2/minute")

    asyncio.run(main())


class Slow(Flaky):
    """A store that blocks, in any thread that calls it."""

    def __init__(self) -> None:
        super().__init__()
        self.called = threading.Event()
        self.go = threading.Event()
        self.calls = 0

    def apply(self, batch: Sequence[Request]) -> list[list[Outcome]]:
        self.called.set()
        self.go.wait(10)
        self.calls += 1
        return super().apply(batch)


def test_cancelled_caller_consumes_nothing() -> None:
    async def main() -> None:
        store = Slow()
        limiter = AsyncLimiter(store)
        task = asyncio.create_task(limiter.check("k", "5/hour"))
        while not store.called.is_set():
            await asyncio.sleep(0.001)  # the loop turns while the store is busy
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        store.go.set()
        while store.calls < 2:  # the check, then its give-back
            await asyncio.sleep(0.001)
        assert (await limiter.peek("k", "5/hour")).remaining == 5

    asyncio.run(asyncio.wait_for(main(), 10))


def test_failed_reset_is_an_error(store: Flaky) -> None:
    store.broken = True
    with pytest.raises(StoreError, match="does not answer"):
        Limiter(store).reset("k", "2/minute")


def test_reservation_of_a_failed_store_settles_nothing(store: Flaky) -> None:
    limiter = Limiter(store)
    store.broken = True
    with limiter.reserve("k", "10/minute", cost=5) as reservation:
        store.broken = False
        reservation.settle(1)
    assert limiter.peek("k", "10/minute").remaining == 10


@pytest.mark.parametrize("policy", ["open", "local"])
def test_uncharged_cost_is_not_given_back(store: Flaky, policy: Literal["open", "local"]) -> None:
    limiter = Limiter(store, on_store_error=policy)
    limiter.check("k", "1000/hour", cost=1000)
    store.broken = True
    with limiter.reserve("k", "1000/hour", cost=800) as reservation:
        store.broken = False
        reservation.settle(0)
    assert limiter.peek("k", "1000/hour").remaining == 0


def test_impossible_cost_is_denied_without_a_store(store: Flaky) -> None:
    store.broken = True
    assert Limiter(store).check("k", "5/hour", cost=6).reason == "cost_exceeds_limit"


def test_failed_settlement_is_logged_and_not_raised(store: Flaky, caplog: pytest.LogCaptureFixture) -> None:
    limiter = Limiter(store)
    with caplog.at_level(logging.WARNING, "crestgate"), limiter.reserve("k", "10/minute", cost=5) as reservation:
        store.broken = True
        reservation.settle(1)
    assert "does not answer" in caplog.text
    assert limiter.store_failures == 1


def test_failure_log_is_rate_limited(store: Flaky, caplog: pytest.LogCaptureFixture) -> None:
    limiter = Limiter(store)
    store.broken = True
    with caplog.at_level(logging.WARNING, "crestgate"):
        for _ in range(100):
            limiter.check("k", "2/minute")
    assert 1 <= len(caplog.records) <= 3
    assert limiter.store_failures == 100


def test_failed_checks_do_not_change_pressure(store: Flaky) -> None:
    limiter = Limiter(store, on_store_error="closed")
    store.broken = True
    assert limiter.check("k", "2/minute").state == "normal"
