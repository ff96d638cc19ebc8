"""Zero hits, quotas and negative hits: decided, then settled; a denial changes no counter."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest

from crestgate.core.failure_policies import OnStoreError
from crestgate.errors import StoreError
from crestgate.stores.memory import MemoryStore
from crestgate.stores.port import Op, Outcome, Request
from crestgate.testing import FakeClock
from flaky_store import Flaky
from slow_store import SlowStore
from unit.service.checks.proxy import START, Proxy, descriptor

ALGORITHMS = ("fixed_window", "sliding_window_counter", "token_bucket", "leaky_bucket", "gcra")
YAML = """
domain: edge
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 3, name: per-user}
  - key: tokens
    rate_limit: {unit: minute, requests_per_unit: 100}
  - key: never
    rate_limit: {unit: minute, requests_per_unit: 0}
  - key: tried
    shadow_mode: true
    rate_limit: {unit: minute, requests_per_unit: 1}
  - key: pool
    quota_mode: true
    rate_limit: {unit: minute, requests_per_unit: 1}
  - key: reserve
    quota_mode: true
    rate_limit: {unit: hour, requests_per_unit: 2}
  - key: tried-pool
    quota_mode: true
    shadow_mode: true
    rate_limit: {unit: minute, requests_per_unit: 0}
""" + "".join(
    f"""
  - key: {algorithm}
    rate_limit: {{unit: minute, requests_per_unit: 10, algorithm: {algorithm}}}"""
    for algorithm in ALGORITHMS
)
OK, OVER = 1, 2


class Remote:
    """A store that the limiter treats as remote: every call is awaited."""

    def __init__(self) -> None:
        self.clock = FakeClock(START)
        self.inner = MemoryStore(clock=self.clock)
        self.operations: list[str] = []
        self.loses = False
        """Whether give-backs fail."""

    def apply(self, batch: Sequence[Request]) -> list[list[Outcome]]:
        self.operations += [request.op.value for request in batch]
        if self.loses and batch[0].op is Op.GIVE_BACK:
            raise StoreError("it is away")
        return self.inner.apply(batch)

    def close(self) -> None:
        self.inner.close()


@pytest.fixture(params=["local", "remote"])
def proxy(domains: Any, request: pytest.FixtureRequest) -> Iterator[Proxy]:
    made = Proxy(domains, store=Remote() if request.param == "remote" else None)
    yield made
    made.close()


def codes(answer: Any) -> list[int]:
    return [answer.overall_code, *(status.code for status in answer.statuses)]


def use(proxy: Proxy, *entries: str, hits: int = 1) -> None:
    assert proxy.passes(descriptor(*entries), hits=hits)
    if isinstance(proxy.store, Remote):
        proxy.store.operations.clear()


def did(proxy: Proxy, *operations: str) -> bool:
    """Whether the store received these operations, if it records them."""
    return not isinstance(proxy.store, Remote) or proxy.store.operations == [*operations]


# -- zero hits --------------------------------------------------------------------------------------------------------


def test_zero_hits_take_nothing_and_deny_when_nothing_remains(proxy: Proxy) -> None:
    for _ in range(2):
        assert codes(proxy.check(descriptor("user=a", hits=0))) == [OK, OK]
    use(proxy, "user=a", hits=3)
    answer = proxy.check(descriptor("user=a", hits=0), descriptor("tokens=a", hits=0))
    assert codes(answer) == [OVER, OVER, OK]
    assert [status.limit_remaining for status in answer.statuses] == [0, 100]
    assert answer.statuses[0].duration_until_reset.seconds == 60
    assert did(proxy, "peek")
    proxy.clock.advance(60)
    assert proxy.passes(descriptor("user=a", hits=0))


def test_zero_hits_on_bucket_report_when_the_next_request_fits(proxy: Proxy) -> None:
    use(proxy, "token_bucket=a", hits=10)
    answer = proxy.check(descriptor("token_bucket=a", hits=0))
    assert codes(answer) == [OVER, OVER]
    assert answer.statuses[0].duration_until_reset.seconds == 6


def test_zero_hits_beside_others_take_one_store_call(proxy: Proxy) -> None:
    answer = proxy.check(descriptor("tokens=a", hits=0), descriptor("user=a"))
    assert codes(answer) == [OK, OK, OK]
    assert [status.limit_remaining for status in answer.statuses] == [100, 2]
    assert did(proxy, "take")


def test_denying_zero_hits_give_back_what_others_took(proxy: Proxy) -> None:
    use(proxy, "tokens=a", hits=100)
    answer = proxy.check(descriptor("user=a", hits=2), descriptor("tokens=a", hits=0), descriptor("tried=a"))
    assert codes(answer) == [OVER, OK, OVER, OK]
    assert [status.limit_remaining for status in answer.statuses] == [3, 0, 1]
    assert answer.statuses[1].duration_until_reset.seconds == 60
    assert did(proxy, "take", "give back")
    assert (proxy.remaining("user=a"), proxy.remaining("tried=a")) == (3, 1)


def test_zero_hits_beside_denying_limit_give_nothing_back(proxy: Proxy) -> None:
    use(proxy, "user=a", hits=3)
    use(proxy, "tokens=a", hits=100)
    assert codes(proxy.check(descriptor("user=a"), descriptor("tokens=a", hits=0))) == [OVER, OVER, OVER]
    assert did(proxy, "take")
    assert codes(proxy.check(descriptor("user=b"), descriptor("never=a", hits=0))) == [OVER, OK, OVER]
    assert proxy.remaining("user=b") == 3


def test_zero_hits_on_shadow_limit_never_deny(proxy: Proxy) -> None:
    use(proxy, "tried=a")
    assert codes(proxy.check(descriptor("tried=a", hits=0))) == [OK, OK]
    assert codes(proxy.check(descriptor("tried=a", hits=0), descriptor("user=a"))) == [OK, OK, OK]
    assert proxy.remaining("user=a") == 2


def test_failed_give_back_is_lost_and_nothing_is_taken_twice(domains: Any) -> None:
    proxy = Proxy(domains, store=Remote())
    use(proxy, "tokens=a", hits=100)
    proxy.store.loses = True
    assert codes(proxy.check(descriptor("user=a"), descriptor("tokens=a", hits=0))) == [OVER, OK, OVER]
    assert did(proxy, "take", "give back")
    assert proxy.limiter.store_failures == 1
    assert proxy.remaining("user=a") == 2
    proxy.close()


# -- quotas -----------------------------------------------------------------------------------------------------------


def test_single_quota_is_an_ordinary_limit(proxy: Proxy) -> None:
    assert codes(proxy.check(descriptor("pool=a"), descriptor("user=a"))) == [OK, OK, OK]
    assert codes(proxy.check(descriptor("pool=a"), descriptor("user=a"))) == [OVER, OVER, OK]
    assert proxy.remaining("user=a") == 2
    assert did(proxy, "take", "take", "peek")


def test_several_quotas_deny_together_and_take_nothing(proxy: Proxy) -> None:
    request = (descriptor("pool=a"), descriptor("user=a"), descriptor("reserve=a"))
    assert codes(proxy.check(*request)) == [OK, OK, OK, OK]
    assert codes(proxy.check(*request)) == [OK, OVER, OK, OK]
    proxy.clock.advance(1)
    answer = proxy.check(*request)
    assert codes(answer) == [OVER, OVER, OK, OVER]
    assert [status.limit_remaining for status in answer.statuses] == [0, 1, 0]
    assert proxy.remaining("user=a") == 1
    proxy.clock.advance(59)
    assert codes(proxy.check(*request)) == [OK, OK, OK, OVER], "the pool has capacity again"


def test_denying_limit_leaves_quotas_unchanged(proxy: Proxy) -> None:
    use(proxy, "user=a", hits=3)
    request = (descriptor("pool=a"), descriptor("user=a"), descriptor("reserve=a"))
    assert codes(proxy.check(*request)) == [OVER, OK, OVER, OK]
    assert (proxy.remaining("pool=a"), proxy.remaining("reserve=a")) == (1, 2)


def test_shadow_quota_is_never_over(proxy: Proxy) -> None:
    use(proxy, "pool=a")
    use(proxy, "reserve=a", hits=2)
    assert codes(proxy.check(descriptor("pool=a"), descriptor("reserve=a"))) == [OVER, OVER, OVER]
    assert codes(proxy.check(descriptor("tried-pool=a"))) == [OK, OK]


def test_zero_hits_on_quotas(proxy: Proxy) -> None:
    use(proxy, "pool=a")
    queries = (descriptor("pool=a", hits=0), descriptor("reserve=a", hits=0))
    assert codes(proxy.check(*queries)) == [OK, OVER, OK]
    use(proxy, "reserve=a", hits=2)
    assert codes(proxy.check(*queries)) == [OVER, OVER, OVER]


@pytest.mark.parametrize(("policy", "passes"), [("open", True), ("closed", False)])
def test_failure_policy_applies_to_quotas(domains: Any, policy: OnStoreError, passes: bool) -> None:
    store = Flaky()
    proxy = Proxy(domains, store=store, on_store_error=policy)
    store.broken = True
    for request in ((descriptor("pool=a"), descriptor("reserve=a")), (descriptor("pool=a"),)):
        assert proxy.passes(*request) is passes
    proxy.close()


def test_local_fallback_counts_quotas_and_gets_give_backs(domains: Any) -> None:
    store = Flaky()
    proxy = Proxy(domains, store=store, on_store_error="local")
    store.broken = True
    quotas = (descriptor("pool=a"), descriptor("reserve=a"))
    assert [codes(proxy.check(*quotas)) for _ in range(3)] == [[OK, OK, OK], [OK, OVER, OK], [OVER, OVER, OVER]]
    assert codes(proxy.check(*quotas, descriptor("tokens=a", hits=7))) == [OVER, OVER, OVER, OK]
    assert proxy.remaining("tokens=a") == 100
    assert codes(proxy.check(descriptor("pool=b", hits=0), descriptor("reserve=b", hits=0))) == [OK, OK, OK]
    use(proxy, "user=a", hits=3)
    assert codes(proxy.check(descriptor("tokens=a", hits=7), descriptor("user=a", hits=0))) == [OVER, OK, OVER]
    assert proxy.remaining("tokens=a") == 100
    assert codes(proxy.check(*quotas[:1], descriptor("reserve=c"), descriptor("user=a"))) == [OVER, OVER, OK, OVER]
    assert proxy.remaining("reserve=c") == 2
    use(proxy, "tokens=a", hits=50)
    answer = proxy.check(descriptor("tokens=a", hits=20, back=True))
    assert (codes(answer), answer.statuses[0].limit_remaining) == ([OK, OK], 70)
    assert proxy.metrics.snapshot(proxy.clock.ticks(), {}).counter("fail_open") == 0
    proxy.close()


# -- negative hits ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_negative_hits_give_back_at_most_what_was_used(proxy: Proxy, algorithm: str) -> None:
    use(proxy, f"{algorithm}=a", hits=8)
    (status,) = proxy.check(descriptor(f"{algorithm}=a", hits=3, back=True)).statuses
    assert (status.code, status.limit_remaining) == (OK, 5)
    (status,) = proxy.check(descriptor(f"{algorithm}=a", hits=1000, back=True)).statuses
    assert (status.code, status.limit_remaining, status.duration_until_reset.seconds) == (OK, 10, 0)
    assert not proxy.passes(descriptor(f"{algorithm}=a"), hits=11)
    assert proxy.passes(descriptor(f"{algorithm}=a"), hits=10)


def test_negative_hits_on_unused_counter_change_nothing(proxy: Proxy) -> None:
    assert codes(proxy.check(descriptor("user=a", back=True), descriptor("never=a", back=True))) == [OK, OK, OK]
    assert proxy.remaining("user=a") == 3
    assert not proxy.passes(descriptor("never=a"))


def test_negative_hits_default_to_those_of_the_request(proxy: Proxy) -> None:
    use(proxy, "tokens=a", hits=50)
    answer = proxy.check(descriptor("tokens=a", back=True), descriptor("user=a", hits=1), hits=20)
    assert codes(answer) == [OK, OK, OK]
    assert [status.limit_remaining for status in answer.statuses] == [70, 2]


def test_denied_request_gives_nothing_back(proxy: Proxy) -> None:
    use(proxy, "user=a", hits=3)
    use(proxy, "tokens=a", hits=50)
    answer = proxy.check(descriptor("tokens=a", hits=20, back=True), descriptor("user=a"))
    assert codes(answer) == [OVER, OK, OVER]
    assert answer.statuses[0].limit_remaining == 50


def test_failing_store_gives_nothing_back_and_returns_ok(domains: Any) -> None:
    store = Flaky()
    proxy = Proxy(domains, store=store, on_store_error="closed")
    store.broken = True
    assert codes(proxy.check(descriptor("tokens=a", hits=20, back=True))) == [OK, OK]
    proxy.close()


# -- cancelled calls --------------------------------------------------------------------------------------------------


def test_cancelled_call_gives_back_what_it_took(domains: Any) -> None:
    store = SlowStore()
    proxy = Proxy(domains, store=store)
    message = proxy.message(descriptor("tokens=a", hits=7), descriptor("user=a", hits=2), descriptor("user=b", hits=0))

    async def scenario() -> None:
        call = asyncio.ensure_future(cast(Any, proxy.envoy.should_rate_limit(proxy.call(), message)))
        while not store.held:
            await asyncio.sleep(0)
        call.cancel()
        await store.answer_all()
        with pytest.raises(asyncio.CancelledError):
            await call

    proxy.runner.run(scenario())
    again = Proxy(domains, store=store.inner)
    assert (again.remaining("tokens=a"), again.remaining("user=a"), again.remaining("user=b")) == (100, 3, 3)
    proxy.close()


def test_cancelled_call_completes_its_give_back(domains: Any) -> None:
    proxy = Proxy(domains, waits=True)
    use(proxy, "user=a", hits=3)
    message = proxy.message(descriptor("user=a", hits=0), descriptor("tokens=a", hits=7))
    apply = proxy.limiter.apply

    async def scenario() -> None:
        waits, free = asyncio.Event(), asyncio.Event()

        async def busy(batch: Sequence[Request]) -> list[list[Outcome]]:
            """Like a local store that another process has locked: the call is retried later."""
            if batch[0].op is Op.GIVE_BACK:
                waits.set()
                await free.wait()
            return await apply(batch)

        proxy.limiter.apply = busy  # type: ignore[method-assign]
        call = asyncio.ensure_future(cast(Any, proxy.envoy.should_rate_limit(proxy.call(), message)))
        await waits.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        free.set()
        while len(asyncio.all_tasks()) > 1:
            await asyncio.sleep(0)

    proxy.runner.run(scenario())
    assert proxy.remaining("tokens=a") == 100
    proxy.close()


def test_cached_request_is_not_changed_by_its_outcomes(domains: Any) -> None:
    proxy = Proxy(domains)
    request = (descriptor("pool=a"), descriptor("user=a"), descriptor("reserve=a"), descriptor("tokens=a", hits=0))
    results = [codes(proxy.check(*request)) for _ in range(4)]
    assert results == [
        [OK, OK, OK, OK, OK],
        [OK, OVER, OK, OK, OK],
        [OVER, OVER, OK, OVER, OK],
        [OVER, OVER, OK, OVER, OK],
    ]
    proxy.clock.advance(60)
    assert codes(proxy.check(*request)) == [OK, OK, OK, OVER, OK]
    proxy.close()
