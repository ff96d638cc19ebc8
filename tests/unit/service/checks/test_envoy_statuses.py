"""A status for each descriptor, in order, with exact numbers; the same for local and awaited responses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from crestgate.core.failure_policies import OnStoreError
from crestgate.errors import InvalidRequestError
from crestgate.http.header_options import HeaderStyle
from crestgate.protobuf import messages
from crestgate.service.errors import ApiError
from flaky_store import Flaky
from unit.service.checks.proxy import Proxy, descriptor, domains_of

YAML = """
domain: edge
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 3, name: per-user}
  - key: route
    rate_limit: {unit: hour, requests_per_unit: 10}
  - key: bucket
    rate_limit: {unit: second, requests_per_unit: 1, burst: 5, algorithm: token_bucket}
  - key: odd
    rate_limit: {unit: minute, unit_multiplier: 5, requests_per_unit: 3}
  - key: log
    rate_limit: {unit: minute, requests_per_unit: 3, algorithm: sliding_window_log}
  - key: tried
    shadow_mode: true
    rate_limit: {unit: minute, requests_per_unit: 1}
  - key: never
    rate_limit: {unit: minute, requests_per_unit: 0}
  - key: free
    rate_limit: {unlimited: true, name: free}
  - key: freer
    rate_limit: {unlimited: true, replaces: [{name: free}]}
  - key: vip
    rate_limit: {unlimited: true, replaces: [{name: per-user}]}
  - key: special
    rate_limit: {unit: day, requests_per_unit: 2, name: special, replaces: [{name: per-user}]}
"""
OK, OVER = 1, 2
SECOND, MINUTE, HOUR, DAY, MONTH, YEAR, WEEK = range(1, 8)


@pytest.fixture
def proxy(proxies: Callable[..., Proxy]) -> Proxy:
    return proxies()


def codes(response: Any) -> list[int]:
    return [response.overall_code, *(status.code for status in response.statuses)]


def test_statuses_are_in_the_order_of_descriptors(proxy: Proxy) -> None:
    response = proxy.check(
        descriptor("nobody=x"),
        descriptor("route=/a"),
        descriptor("free=x"),
        descriptor("user=a"),
        descriptor("user=a", "route=/a"),
        descriptor(),
    )
    assert codes(response) == [OK] * 7
    limits = [
        (s.current_limit.requests_per_unit, s.current_limit.unit, s.current_limit.name) for s in response.statuses
    ]
    assert limits == [(0, 0, ""), (10, HOUR, ""), (0, 0, ""), (3, MINUTE, "per-user"), (0, 0, ""), (0, 0, "")]
    assert [s.HasField("current_limit") for s in response.statuses] == [False, True, False, True, False, False]
    assert [s.limit_remaining for s in response.statuses] == [0, 9, 2**32 - 1, 2, 0, 0]


def test_unknown_domain_limits_nothing(proxy: Proxy) -> None:
    response = proxy.check(descriptor("user=a"), descriptor("user=b"), domain="elsewhere")
    assert codes(response) == [OK, OK, OK]
    assert not any(status.HasField("current_limit") for status in response.statuses)


@pytest.mark.parametrize("waits", [False, True])
def test_remaining_counts_down_to_the_limit(proxies: Callable[..., Proxy], waits: bool) -> None:
    proxy = proxies(waits=waits)
    proxy.clock.advance(12.5)
    responses = [proxy.check(descriptor("user=a")) for _ in range(5)]
    assert [codes(one) for one in responses] == [[OK, OK]] * 3 + [[OVER, OVER]] * 2
    assert [one.statuses[0].limit_remaining for one in responses] == [2, 1, 0, 0, 0]
    assert [one.statuses[0].duration_until_reset.seconds for one in responses] == [48] * 5, "47.5, rounded up"
    proxy.clock.advance(47.5)
    assert codes(proxy.check(descriptor("user=a"))) == [OK, OK]


def test_denied_status_has_retry_time_and_others_reset_time(proxy: Proxy) -> None:
    for _ in range(5):
        proxy.check(descriptor("bucket=a"))
    (denied,) = proxy.check(descriptor("bucket=a")).statuses
    assert (denied.code, denied.limit_remaining, denied.duration_until_reset.seconds) == (OVER, 0, 1)
    proxy.clock.advance(2)
    (passed,) = proxy.check(descriptor("bucket=a")).statuses
    assert (passed.code, passed.limit_remaining, passed.duration_until_reset.seconds) == (OK, 1, 4)


def test_other_periods_have_no_unit(proxy: Proxy) -> None:
    (status,) = proxy.check(descriptor("odd=a")).statuses
    assert (status.current_limit.requests_per_unit, status.current_limit.unit) == (3, 0)


@pytest.mark.parametrize("hits", [1, 4])
def test_impossible_request_waits_a_period(proxy: Proxy, hits: int) -> None:
    (status,) = proxy.check(descriptor("never=a" if hits == 1 else "user=a"), hits=hits).statuses
    assert (status.code, status.duration_until_reset.seconds) == (OVER, 60)


def test_denied_request_takes_nothing(proxy: Proxy) -> None:
    for _ in range(3):
        assert proxy.passes(descriptor("user=a"), descriptor("route=/a"))
    response = proxy.check(descriptor("route=/a"), descriptor("user=a"))
    assert codes(response) == [OVER, OK, OVER]
    assert [status.limit_remaining for status in response.statuses] == [7, 0]
    assert proxy.remaining("route=/a") == 7


def test_shadow_limit_never_denies_and_is_not_charged_for_denied_requests(proxy: Proxy) -> None:
    assert codes(proxy.check(descriptor("tried=a"), descriptor("user=a"))) == [OK, OK, OK]
    over = proxy.check(descriptor("tried=a"), descriptor("user=a"))
    assert codes(over) == [OK, OK, OK]
    assert over.statuses[0].limit_remaining == 0
    assert proxy.passes(descriptor("user=a"))
    assert codes(proxy.check(descriptor("tried=b"), descriptor("user=a"))) == [OVER, OK, OVER]
    assert proxy.remaining("tried=b") == 1
    assert proxy.counted() == {
        ("edge.user", "descriptor"): (3, 1, 0),
        ("edge.tried", "descriptor"): (0, 0, 1),
        ("no_rule", "none"): (1, 0, 0),
    }


@pytest.mark.parametrize("by", ["vip", "special"])
def test_replaced_limit_counts_nothing(proxy: Proxy, by: str) -> None:
    for _ in range(2):
        response = proxy.check(descriptor("user=a"), descriptor(f"{by}=x"), descriptor("route=/a"))
        assert codes(response) == [OK, OK, OK, OK]
        assert not response.statuses[0].HasField("current_limit")
    assert proxy.remaining("user=a") == 3
    assert proxy.remaining("route=/a") == 8
    assert proxy.passes(descriptor(f"{by}=x")) is (by == "vip")


def test_replaced_unlimited_descriptor_stays_unlimited(proxy: Proxy) -> None:
    response = proxy.check(descriptor("free=x"), descriptor("freer=x"))
    assert codes(response) == [OK, OK, OK]
    assert [status.limit_remaining for status in response.statuses] == [2**32 - 1] * 2


@pytest.mark.parametrize(("counters", "cached"), [(8, True), (9, False)])
def test_request_with_many_counters_is_not_cached(proxy: Proxy, counters: int, cached: bool) -> None:
    request = [descriptor(f"route=/{number}") for number in range(counters)]
    for _ in range(2):
        assert proxy.passes(*request)
    assert proxy.envoy.evaluator is not None
    assert bool(proxy.envoy.evaluator.cache) is cached
    assert proxy.remaining("route=/0") == 8


def test_override_shares_the_counter_of_its_period(proxy: Proxy) -> None:
    (status,) = proxy.check(descriptor("user=a", limit=(5, MINUTE))).statuses
    assert (status.current_limit.requests_per_unit, status.current_limit.unit, status.limit_remaining) == (5, MINUTE, 4)
    assert proxy.remaining("user=a") == 2
    assert proxy.check(descriptor("user=a", limit=(7, HOUR))).statuses[0].limit_remaining == 6, "another period"
    assert proxy.remaining("user=a") == 2
    assert proxy.check(descriptor("nobody=a", limit=(2, DAY))).statuses[0].limit_remaining == 1, "none configured"
    assert (
        not proxy.check(descriptor("user=a", limit=(1, DAY)), domain="elsewhere").statuses[0].HasField("current_limit")
    )
    replaced = proxy.check(descriptor("user=a", limit=(5, MINUTE)), descriptor("vip=x"))
    assert replaced.statuses[0].HasField("current_limit"), "an override has no name that can be replaced"


def test_duplicate_counter_is_charged_once_with_all_hits(proxy: Proxy) -> None:
    response = proxy.check(descriptor("user=a"), descriptor("route=/a", hits=4), descriptor("user=a", hits=2))
    assert codes(response) == [OK, OK, OK, OK]
    assert [status.limit_remaining for status in response.statuses] == [0, 6, 0]
    assert codes(proxy.check(descriptor("user=b"), descriptor("user=b"), hits=2)) == [OVER, OVER, OVER]
    assert proxy.remaining("user=b") == 3
    proxy.check(descriptor("user=c"), descriptor("user=c", hits=0))
    assert proxy.remaining("user=c") == 2


def test_lower_limit_of_one_counter_decides(proxy: Proxy) -> None:
    both = (descriptor("user=a", limit=(1, MINUTE)), descriptor("user=a"))
    assert codes(proxy.check(*both)) == [OVER, OVER, OVER]
    assert proxy.remaining("user=a") == 3
    both = (descriptor("user=a"), descriptor("user=a", limit=(100, MINUTE)))
    response = proxy.check(*both)
    assert codes(response) == [OK, OK, OK]
    assert [status.limit_remaining for status in response.statuses] == [1, 1]


def test_hits_default_to_the_request_then_to_one(proxy: Proxy) -> None:
    response = proxy.check(
        descriptor("route=/a"), descriptor("route=/b", hits=3), descriptor("route=/c", hits=0), hits=2
    )
    assert [status.limit_remaining for status in response.statuses] == [8, 7, 10]
    assert proxy.check(descriptor("route=/a")).statuses[0].limit_remaining == 7


MOST = 2**31 - 1


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (messages.RateLimitRequest(descriptors=[descriptor("user=a")]), "domain"),
        (messages.RateLimitRequest(domain="edge"), "descriptors"),
        (messages.RateLimitRequest(domain="edge", descriptors=[descriptor("x=y")] * 1001), "descriptors"),
        (
            messages.RateLimitRequest(
                domain="edge", descriptors=[descriptor("user=a"), descriptor(*["user=a"] * 9_999), descriptor("x=y")]
            ),
            "descriptors[2].entries",
        ),
        (messages.RateLimitRequest(domain="edge", descriptors=[descriptor()], hits_addend=MOST + 1), "hits_addend"),
        (
            messages.RateLimitRequest(domain="edge", descriptors=[descriptor(), descriptor(hits=MOST + 1)]),
            "descriptors[1].hits_addend",
        ),
        (
            messages.RateLimitRequest(domain="edge", descriptors=[descriptor("user=a", hits=MOST)] * 2),
            "descriptors[1].hits_addend",
        ),
        (
            messages.RateLimitRequest(domain="edge", descriptors=[descriptor("user=a", limit=(1, 0))]),
            "descriptors[0].limit.unit",
        ),
        (
            messages.RateLimitRequest(domain="edge", descriptors=[descriptor("user=a", limit=(1, 9))]),
            "descriptors[0].limit.unit",
        ),
        (
            messages.RateLimitRequest(domain="edge", descriptors=[descriptor("log=a", hits=1, back=True)]),
            "descriptors[0].is_negative_hits",
        ),
        (
            messages.RateLimitRequest(
                domain="edge", descriptors=[descriptor("user=a"), descriptor("user=a", hits=1, back=True)]
            ),
            "descriptors[1].is_negative_hits",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_invalid_request_names_the_field_and_takes_nothing(proxy: Proxy, message: Any, field: str) -> None:
    for _ in range(2):
        with pytest.raises(InvalidRequestError) as refused:
            proxy.send(message.SerializeToString())
        assert refused.value.field == field
    assert proxy.remaining("user=a") == 3


def test_malformed_message_is_a_decode_error(proxy: Proxy) -> None:
    with pytest.raises(messages.DecodeError):
        proxy.send(b"\xff\xff")


@pytest.mark.parametrize("waits", [False, True])
def test_without_configuration_every_call_is_refused(waits: bool) -> None:
    proxy = Proxy(None, waits=waits)
    with pytest.raises(ApiError) as refused:
        proxy.check(descriptor("user=a"))
    assert (refused.value.status, refused.value.detail) == (
        412,
        "no Envoy limits are configured: set envoy.config to a file or directory of them",
    )
    proxy.close()


@pytest.mark.parametrize("waits", [False, True])
def test_each_counter_counts_against_the_ceiling(proxies: Callable[..., Proxy], waits: bool) -> None:
    proxy = proxies(checks="4/minute", waits=waits)
    proxy.check(descriptor("nobody=a"), descriptor("free=a"))  # counts as at least one
    proxy.check(descriptor("user=a"), descriptor("nobody=a"), descriptor("route=/a"), descriptor("user=a", hits=0))
    with pytest.raises(ApiError) as refused:
        proxy.check(descriptor("route=/a"), descriptor("route=/b"))
    assert refused.value.status == 429
    assert proxy.passes(descriptor("route=/a")), "one check remained"
    with pytest.raises(ApiError):
        proxy.check(descriptor("nobody=a"))
    proxy.clock.advance(60)
    assert proxy.passes(descriptor("user=a"))


def test_awaited_request_counts_once_against_the_ceiling(proxies: Callable[..., Proxy]) -> None:
    proxy = proxies(checks="4/minute", waits=True)
    for request in ([descriptor("user=a"), descriptor("route=/a"), descriptor("odd=a")], [descriptor("user=a")]):
        proxy.check(*request)
    assert proxy.awaited == 2
    with pytest.raises(ApiError, match="too many checks"):
        proxy.check(descriptor("user=a"))


def test_reloaded_limits_apply_to_the_next_request(proxy: Proxy, tmp_path: Path) -> None:
    assert proxy.passes(descriptor("user=a"), hits=3)
    assert not proxy.passes(descriptor("user=a"))
    assert proxy.descriptors is not None
    proxy.descriptors.current = domains_of(
        tmp_path, YAML.replace("requests_per_unit: 3, name", "requests_per_unit: 4, name")
    )
    assert proxy.passes(descriptor("user=a"))
    assert not proxy.passes(descriptor("user=a"))


REQUESTS: list[tuple[Any, ...]] = [
    (descriptor("user=a"),),
    (descriptor("nobody=a"),),
    (descriptor("user=a"), descriptor("route=/a"), descriptor("tried=a")),
    (descriptor("user=a"), descriptor("route=/a", hits=2)),
    (descriptor("route=/a", hits=0),),
    (descriptor("user=a", hits=0), descriptor("route=/a")),
    (descriptor("never=a"), descriptor("route=/a")),
    (descriptor("log=a"),),
    (descriptor("user=a", hits=1, back=True),),
    (descriptor("bucket=a", limit=(3, SECOND)), descriptor("free=a")),
    (descriptor("user=b", hits=9),),
]


def test_awaited_responses_are_the_same_bytes(proxies: Callable[..., Proxy]) -> None:
    direct, awaited = proxies(style=HeaderStyle()), proxies(style=HeaderStyle(), waits=True)
    for turn in range(6):
        for request in REQUESTS:
            assert direct.check_raw(*request) == awaited.check_raw(*request), (turn, request)
        for proxy in (direct, awaited):
            proxy.clock.advance(0.7)
    assert direct.counted() == awaited.counted()
    expected = (6 * 4, 6 * (len(REQUESTS) - 1))
    assert (direct.awaited, awaited.awaited) == expected, "two give back, two report, one has no limit"


@pytest.mark.parametrize(
    ("policy", "code", "left"),
    [("open", OK, 3), ("closed", OVER, 0), ("local", OK, 2)],
)
def test_failure_policy_answers_for_a_failing_store(domains: Any, policy: OnStoreError, code: int, left: int) -> None:
    store = Flaky()
    proxy = Proxy(domains, store=store, on_store_error=policy)
    store.broken = True
    response = proxy.check(descriptor("user=a"), descriptor("nobody=x"))
    assert codes(response) == [code, code, OK]
    assert response.statuses[0].limit_remaining == left
    assert response.statuses[0].current_limit.requests_per_unit == 3
    look = proxy.check(descriptor("user=b", hits=0))
    assert codes(look) == [code, code]
    assert proxy.passes(descriptor("user=b", hits=0), descriptor("route=/a")) is (policy != "closed")
    assert proxy.passes(descriptor("tried=a")), "a shadow limit never denies"
    snapshot = proxy.metrics.snapshot(proxy.clock.ticks(), {})
    assert snapshot.counter("fail_open") == (3 if policy == "open" else 0)
    proxy.close()
