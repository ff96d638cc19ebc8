"""Hits that Envoy reports after the response are charged also beyond the limit; plain requests are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from crestgate.core.algorithms import ALGORITHMS, CONCURRENCY
from crestgate.envoy.matcher import Domains
from crestgate.service.errors import ApiError
from flaky_store import Flaky
from unit.service.checks.proxy import Proxy, descriptor

NAMES = tuple(name for name in ALGORITHMS if name != CONCURRENCY)
YAML = """
domain: edge
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 3}
  - key: tokens
    rate_limit: {unit: minute, requests_per_unit: 100}
  - key: never
    rate_limit: {unit: minute, requests_per_unit: 0}
  - key: refuses
    rate_limit: {unit: minute, requests_per_unit: 100, charge_beyond_limit: false}
  - key: charges
    rate_limit: {unit: minute, requests_per_unit: 100, charge_beyond_limit: true}
  - key: tried
    shadow_mode: true
    rate_limit: {unit: minute, requests_per_unit: 100}
""" + "".join(
    f"""
  - key: {algorithm}
    rate_limit: {{unit: minute, requests_per_unit: 60, algorithm: {algorithm}}}"""
    for algorithm in NAMES
)
OK, OVER = 1, 2
Proxies = Callable[..., Proxy]


@pytest.fixture(params=["local", "awaited"])
def proxy(proxies: Proxies, request: pytest.FixtureRequest) -> Proxy:
    return proxies(waits=request.param == "awaited")


def codes(answer: Any) -> list[int]:
    return [answer.overall_code, *(status.code for status in answer.statuses)]


def look(proxy: Proxy, *entries: str) -> list[int]:
    return codes(proxy.check(descriptor(*entries, hits=0)))


@pytest.mark.parametrize("name", NAMES)
def test_reported_hits_beyond_the_limit_are_a_debt(proxy: Proxy, name: str) -> None:
    assert codes(proxy.check(descriptor(f"{name}=a", hits=55))) == [OK, OK]
    assert look(proxy, f"{name}=a") == [OK, OK]
    assert codes(proxy.check(descriptor(f"{name}=a", hits=35))) == [OVER, OVER]
    assert look(proxy, f"{name}=a") == [OVER, OVER]
    proxy.clock.advance(29)
    assert look(proxy, f"{name}=a") == [OVER, OVER], "the debt is not worked off yet"
    proxy.clock.advance(91)
    assert look(proxy, f"{name}=a") == [OK, OK]


@pytest.mark.parametrize("name", ["token_bucket", "gcra", "leaky_bucket"])
def test_a_bucket_works_off_a_debt_at_its_rate(proxy: Proxy, name: str) -> None:
    proxy.check(descriptor(f"{name}=a", hits=90))
    proxy.clock.advance(30)
    assert look(proxy, f"{name}=a") == [OVER, OVER]
    proxy.clock.advance(1)
    assert look(proxy, f"{name}=a") == [OK, OK]
    assert proxy.remaining(f"{name}=a") == 1


@pytest.mark.parametrize("name", NAMES)
def test_a_debt_is_at_most_one_full_limit(proxy: Proxy, name: str) -> None:
    for hits in (59, 900, 2**31 - 1):
        proxy.check(descriptor(f"{name}=a", hits=hits))
    proxy.clock.advance(120)
    assert look(proxy, f"{name}=a") == [OK, OK]


def test_max_debt_lowers_the_largest_debt(proxies: Proxies) -> None:
    proxy = proxies(max_debt=50)
    proxy.check(descriptor("token_bucket=a", hits=900))
    proxy.clock.advance(30)
    assert look(proxy, "token_bucket=a") == [OVER, OVER], "30 beyond 60, and 30 worked off"
    proxy.clock.advance(1)
    assert look(proxy, "token_bucket=a") == [OK, OK]


def test_a_window_forgets_a_debt_at_its_end(proxy: Proxy) -> None:
    proxy.check(descriptor("tokens=a", hits=1000))
    assert look(proxy, "tokens=a") == [OVER, OVER]
    proxy.clock.advance(60)
    assert proxy.remaining("tokens=a") == 100


def test_denied_plain_requests_cost_nothing(proxy: Proxy) -> None:
    for hits in (1, 2, 900):
        assert proxy.passes(descriptor(f"tokens={hits}"), hits=95)
        assert proxy.passes(descriptor(f"tokens={hits}"), hits=hits) == (hits < 6)
        assert proxy.remaining(f"tokens={hits}") == 5 - (hits if hits < 6 else 0)


def test_reports_beside_a_plain_limit_that_denies_cost_nothing(proxy: Proxy) -> None:
    assert proxy.passes(descriptor("user=a"), hits=3)
    assert codes(proxy.check(descriptor("user=a"), descriptor("tokens=a", hits=900))) == [OVER, OVER, OVER]
    assert codes(proxy.check(descriptor("user=a"), descriptor("tokens=a", hits=9))) == [OVER, OVER, OK]
    assert proxy.remaining("tokens=a") == 100


def test_several_reports_are_charged_each_for_itself(proxy: Proxy) -> None:
    answer = proxy.check(descriptor("tokens=a", hits=150), descriptor("tokens=b", hits=40), descriptor("user=a"))
    assert codes(answer) == [OVER, OVER, OK, OK]
    assert [status.limit_remaining for status in answer.statuses] == [0, 60, 2]
    assert (proxy.remaining("tokens=b"), proxy.remaining("user=a")) == (60, 2)
    assert look(proxy, "tokens=a") == [OVER, OVER]


def test_reports_beside_a_look_that_denies_cost_nothing(proxy: Proxy) -> None:
    proxy.check(descriptor("tokens=a", hits=100))
    for hits in (30, 300):
        assert not proxy.passes(descriptor("tokens=a", hits=0), descriptor("tokens=b", hits=hits))
        assert proxy.remaining("tokens=b") == 100
    assert codes(proxy.check(descriptor("tokens=c", hits=0), descriptor("tokens=b", hits=300))) == [OVER, OK, OVER]
    assert look(proxy, "tokens=b") == [OVER, OVER], "a look that does not deny changes nothing"


def test_negative_hits_beside_a_report_are_given_back(proxy: Proxy) -> None:
    assert proxy.passes(descriptor("user=a"), hits=2)
    proxy.check(descriptor("user=a", hits=1, back=True), descriptor("tokens=a", hits=900))
    assert proxy.remaining("user=a") == 2


def test_a_limit_can_refuse_or_charge_all_hits(proxy: Proxy) -> None:
    assert not proxy.passes(descriptor("refuses=a", hits=101))
    assert proxy.remaining("refuses=a") == 100
    assert not proxy.passes(descriptor("charges=a"), hits=101)
    assert look(proxy, "charges=a") == [OVER, OVER]


def test_the_setting_is_for_limits_that_do_not_say(proxies: Proxies) -> None:
    never, always = proxies(charge_beyond_limit=False), proxies(charge_beyond_limit=True)
    assert not never.passes(descriptor("tokens=a", hits=101))
    assert never.remaining("tokens=a") == 100
    assert not never.passes(descriptor("charges=a"), hits=101)
    assert look(never, "charges=a") == [OVER, OVER]
    assert not always.passes(descriptor("tokens=a"), hits=101)
    assert look(always, "tokens=a") == [OVER, OVER]
    assert not always.passes(descriptor("refuses=a", hits=101))
    assert always.remaining("refuses=a") == 100


def test_limits_in_requests_charge_as_the_configured_one(proxy: Proxy) -> None:
    assert not proxy.passes(descriptor("tokens=a", hits=60, limit=(50, 2)))
    assert proxy.remaining("tokens=a") == 40, "the counter is that of the configured limit"
    assert not proxy.passes(descriptor("refuses=a", hits=60, limit=(50, 2)))
    assert proxy.remaining("refuses=a") == 100


def test_shadow_limits_and_limits_of_zero(proxy: Proxy) -> None:
    assert codes(proxy.check(descriptor("tried=a", hits=900))) == [OK, OK]
    assert proxy.check(descriptor("tried=a", hits=0)).statuses[0].limit_remaining == 0
    assert codes(proxy.check(descriptor("never=a", hits=5))) == [OVER, OVER]


def test_the_same_counter_twice_is_charged_once_with_all_hits(proxy: Proxy) -> None:
    answer = proxy.check(descriptor("token_bucket=a", hits=40), descriptor("token_bucket=a", hits=50))
    assert codes(answer) == [OVER, OVER, OVER]
    proxy.clock.advance(31)
    assert look(proxy, "token_bucket=a") == [OK, OK]


@pytest.mark.parametrize(("policy", "over"), [("open", False), ("closed", True), ("local", True)])
def test_reports_without_a_store(proxies: Proxies, policy: str, over: bool) -> None:
    store = Flaky()
    proxy = proxies(store=store, on_store_error=policy)
    store.broken = True
    proxy.check(descriptor("tokens=a", hits=90))
    proxy.check(descriptor("tokens=a", hits=90))
    assert proxy.passes(descriptor("tokens=a", hits=5)) is not over
    assert (look(proxy, "tokens=a") == [OVER, OVER]) is over


def test_before_the_first_configuration_of_a_control_plane_nothing_is_decided(proxies: Proxies) -> None:
    proxy = proxies()
    assert proxy.descriptors is not None
    proxy.descriptors.current, proxy.descriptors.waiting = Domains({}), True
    with pytest.raises(ApiError) as raised:
        proxy.check(descriptor("user=a"))
    assert raised.value.status == 503
