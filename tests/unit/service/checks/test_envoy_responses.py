"""Responses beside the statuses: headers for the client, metadata for the proxy, metrics and the log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf import duration_pb2, json_format

from crestgate.config.settings import Settings
from crestgate.envoy.evaluator import MAX_LOGGED_DOMAINS, MAX_VALUE_LABELS
from crestgate.envoy.response import NO_LIMIT, NOT_LIMITED, OK, headers_field, varint
from crestgate.http.header_options import HeaderStyle
from crestgate.protobuf import messages
from unit.service.checks.proxy import START, Proxy, descriptor

YAML = """
domain: edge
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 10, name: per-user}
  - key: route
    rate_limit: {unit: second, requests_per_unit: 1, burst: 20, algorithm: token_bucket}
  - key: pool
    quota_mode: true
    rate_limit: {unit: minute, requests_per_unit: 1}
  - key: reserve
    quota_mode: true
    rate_limit: {unit: hour, requests_per_unit: 1}
  - key: tried
    shadow_mode: true
    rate_limit: {unit: minute, requests_per_unit: 1}
  - key: path
    detailed_metric: true
    rate_limit: {unit: minute, requests_per_unit: 1}
  - key: plan
    value: gold
    rate_limit: {unit: minute, requests_per_unit: 2}
    metadata: {tier: {name: gold, weight: 3}, shared: [1, two], first: true}
  - key: region
    rate_limit: {unit: minute, requests_per_unit: 5}
    metadata: {tier: {zone: eu, name: other}, first: false}
  - key: model
    rate_limit: {unit: hour, requests_per_unit: 2, headers: false}
  - key: grössen
    rate_limit: {unit: minute, requests_per_unit: 4000000000, name: "größte"}
"""


def headers(answer: Any) -> dict[str, str]:
    pairs = [(header.key, header.value) for header in answer.response_headers_to_add]
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


def test_hidden_limit_is_in_no_header_and_no_status(proxies: Callable[..., Proxy]) -> None:
    """Envoy makes headers of statuses with a current_limit, so a hidden one has only its code."""
    proxy = proxies(style=HeaderStyle())
    one, two = descriptor("user=a"), descriptor("model=large")
    both = proxy.check(one, two)
    assert headers(both)["ratelimit"] == '"edge.user";r=9;t=60'
    assert [status.HasField("current_limit") for status in both.statuses] == [True, False]
    assert not both.statuses[1].limit_remaining
    assert not both.statuses[1].HasField("duration_until_reset")
    proxy.check(two)
    denied = proxy.check(one, two)
    over = messages.RateLimitResponse.Code.Value("OVER_LIMIT")
    assert (denied.overall_code, denied.statuses[1].code) == (over, over)
    assert denied.statuses[0].limit_remaining == 9, "all or nothing"
    shown = headers(denied)
    assert (shown["x-ratelimit-limit"], shown["x-ratelimit-remaining"]) == ("10", "9")
    assert int(shown["retry-after"]) > 60
    assert "model" not in str(shown)
    overridden = proxy.check(descriptor("model=large", limit=(2, 3)))
    assert not overridden.statuses[0].HasField("current_limit"), "an override is of the same limit"
    assert set(headers(overridden)) == {"retry-after"}


# -- headers ----------------------------------------------------------------------------------------------------------


def test_response_has_rate_limit_headers(proxies: Callable[..., Proxy]) -> None:
    proxy = proxies(style=HeaderStyle())
    assert headers(proxy.check(descriptor("user=a"))) == {
        "ratelimit-policy": '"edge.user";q=10;w=60',
        "ratelimit": '"edge.user";r=9;t=60',
        "x-ratelimit-limit": "10",
        "x-ratelimit-remaining": "9",
        "x-ratelimit-reset": "60",
    }
    both = proxy.check(descriptor("user=a"), descriptor("route=/a"), descriptor("tried=a"), descriptor("nobody=a"))
    assert headers(both) == {
        "ratelimit-policy": '"edge.user";q=10;w=60, "edge.route";q=1;w=1',
        "ratelimit": '"edge.user";r=8;t=60, "edge.route";r=19;t=1',
        "x-ratelimit-limit": "10",
        "x-ratelimit-remaining": "8",
        "x-ratelimit-reset": "60",
    }
    assert proxy.passes(descriptor("route=/a"), hits=19)
    denied = headers(proxy.check(descriptor("user=a"), descriptor("route=/a"), hits=3))
    assert denied["ratelimit"] == '"edge.user";r=8;t=60, "edge.route";r=0;t=3'
    assert (denied["retry-after"], denied["x-ratelimit-limit"], denied["x-ratelimit-state"]) == ("3", "20", "throttled")


def test_x_ratelimit_headers_are_off_by_default(proxies: Callable[..., Proxy]) -> None:
    """Envoy's filter may add its own, and a client would have each of them twice."""
    assert Settings().envoy.x_ratelimit is False
    silent = proxies(style=HeaderStyle(), x_ratelimit=False)
    assert {*headers(silent.check(descriptor("user=a"), hits=9))} == {"ratelimit-policy", "ratelimit"}
    assert {*headers(silent.check(descriptor("user=a"), hits=2))} == {"ratelimit-policy", "ratelimit", "retry-after"}
    proxy = proxies(style=HeaderStyle(x_ratelimit=False), x_ratelimit=True)
    assert "x-ratelimit-limit" in headers(proxy.check(descriptor("user=a")))


def test_headers_are_configurable(proxies: Callable[..., Proxy]) -> None:
    assert headers(proxies().check(descriptor("user=a"))) == {}
    only = HeaderStyle(ratelimit=False, x_ratelimit=False)
    assert headers(proxies(style=only).check(descriptor("user=a"), hits=4)) == {}
    epoch = proxies(style=HeaderStyle(ratelimit=False, reset="epoch"))
    assert headers(epoch.check(descriptor("user=a")))["x-ratelimit-reset"] == str(START + 60)
    denied = proxies(style=only)
    assert denied.passes(descriptor("user=a"), hits=10)
    assert headers(denied.check(descriptor("user=a"))) == {"retry-after": "60"}


@pytest.mark.parametrize("entries", [("nobody=a",), ("tried=a",), ("tried=a", "nobody=b")])
def test_without_limit_there_are_no_headers(proxies: Callable[..., Proxy], entries: tuple[str, ...]) -> None:
    assert headers(proxies(style=HeaderStyle()).check(*[descriptor(one) for one in entries])) == {}


def test_retry_time_of_quotas_is_the_shortest(
    proxies: Callable[..., Proxy],
) -> None:
    proxy = proxies(style=HeaderStyle())
    request = (descriptor("reserve=a"), descriptor("user=a"), descriptor("pool=a"))
    assert proxy.passes(*request)
    denied = headers(proxy.check(*request))
    assert denied["retry-after"] == "60"
    assert denied["ratelimit"] == '"edge.user";r=9;t=60, "edge.pool";r=0;t=60'


# -- metadata ---------------------------------------------------------------------------------------------------------


def metadata(answer: Any) -> Any:
    return json_format.MessageToDict(answer.dynamic_metadata) if answer.HasField("dynamic_metadata") else None


def test_passed_limits_add_dynamic_metadata(proxies: Callable[..., Proxy]) -> None:
    proxy = proxies()
    assert metadata(proxy.check(descriptor("user=a"))) is None
    added = metadata(proxy.check(descriptor("plan=gold"), descriptor("region=x"), descriptor("user=a", limit=(5, 2))))
    assert added == {
        "domain": "edge",
        "descriptors": [
            {"entries": ["plan=gold"]},
            {"entries": ["region=x"]},
            {"entries": ["user=a"], "limit": "requests_per_unit:5 unit:MINUTE"},
        ],
        "metadata": {
            "tier": {"name": "gold", "weight": 3.0, "zone": "eu"},
            "shared": [1.0, "two"],
            "first": True,
        },
    }
    again = metadata(proxy.check(descriptor("plan=gold", hits=0), descriptor("region=y", hits=2), hits=3))
    assert again["hitsAddend"] == 3
    assert [one.get("hitsAddend") for one in again["descriptors"]] == [0.0, 2.0]
    assert again["metadata"]["tier"] == {"name": "gold", "weight": 3.0, "zone": "eu"}, (
        "the configured metadata is not modified"
    )


def test_denying_limit_adds_no_metadata(proxies: Callable[..., Proxy]) -> None:
    proxy = proxies()
    assert proxy.passes(descriptor("plan=gold"), hits=2)
    assert metadata(proxy.check(descriptor("plan=gold"))) is None
    added = metadata(proxy.check(descriptor("plan=gold"), descriptor("region=x")))
    assert added["metadata"] == {"tier": {"zone": "eu", "name": "other"}, "first": False}


# -- metrics and the log ----------------------------------------------------------------------------------------------


def test_metrics_count_the_deciding_limit(proxies: Callable[..., Proxy]) -> None:
    proxy = proxies()
    proxy.check(descriptor("user=a"), descriptor("region=x"))
    proxy.check(descriptor("user=a", hits=9), descriptor("region=x"))
    proxy.check(descriptor("user=a"), descriptor("region=x"))
    for path in ("/a", "/b", "/a"):
        proxy.check(descriptor(f"path={path}"), descriptor("tried=a"))
    proxy.check(descriptor("nobody=a"))
    assert proxy.counted() == {
        ("edge.region", "descriptor"): (1, 0, 0),
        ("edge.user", "descriptor"): (1, 1, 0),
        ("edge.path_/a", "descriptor"): (1, 1, 0),
        ("edge.path_/b", "descriptor"): (1, 0, 0),
        ("edge.tried", "descriptor"): (0, 0, 2),
        ("no_rule", "none"): (1, 0, 0),
    }
    (usage,) = proxy.metrics.take_usage(proxy.clock.ticks())
    assert usage.subjects["edge|user=a"] == (1, 1)
    durations = proxy.metrics.snapshot(proxy.clock.ticks(), {}).histograms["check_duration_seconds"]
    assert sum(durations.counts) == 7


def test_request_log_has_subject_and_decision(proxies: Callable[..., Proxy]) -> None:
    proxy = proxies()
    message = proxy.message(descriptor("user=a"), descriptor("pool=x"))
    for allowed, subject in ((True, "edge|pool=x"), (False, "edge|pool=x")):
        call = proxy.call()
        assert isinstance(proxy.envoy.should_rate_limit(call, message), bytes)
        assert (call.allowed, call.subject) == (allowed, subject)


def test_pressure_state_is_a_header(proxies: Callable[..., Proxy]) -> None:
    proxy = proxies(style=HeaderStyle())
    assert headers(proxy.check(descriptor("user=a"), hits=9))["x-ratelimit-state"] == "warning"
    assert headers(proxy.check(descriptor("user=a", hits=0)))["x-ratelimit-state"] == "warning"
    assert headers(proxy.check(descriptor("user=a")))["x-ratelimit-state"] == "throttled"
    assert proxy.limiter.backend.pressure.states


# -- encoding ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [0, 1, 127, 128, 300, 16383, 16384, 2**31, 2**32 - 1, 2**53])
def test_varints_are_those_of_protobuf(number: int) -> None:
    decoded = duration_pb2.Duration.FromString(b"\x08" + varint(number))
    assert decoded.seconds == number


def test_hand_encoded_response_is_that_of_protobuf(proxies: Callable[..., Proxy]) -> None:
    answer = messages.RateLimitResponse.FromString(
        OK + NO_LIMIT + NOT_LIMITED + headers_field([(b"x-long", b"v" * 300), (b"x-empty", b"")])
    )
    again = messages.RateLimitResponse(overall_code=1)
    again.statuses.add(code=1)
    again.statuses.add(code=1, limit_remaining=2**32 - 1)
    again.response_headers_to_add.add(key="x-long", value="v" * 300)
    again.response_headers_to_add.add(key="x-empty")
    assert answer == again
    data = proxies(style=HeaderStyle()).check_raw(descriptor("grössen=ß"), descriptor("user=a"), hits=2)
    parsed = messages.RateLimitResponse.FromString(data)
    assert parsed.statuses[0].current_limit.name == "größte"
    assert parsed.statuses[0].limit_remaining == 3_999_999_998
    assert parsed.SerializeToString() == data


def test_value_labels_are_bounded(proxies: Callable[..., Proxy]) -> None:
    proxy = proxies()
    for number in range(2 * MAX_VALUE_LABELS):
        assert proxy.passes(descriptor(f"path=/{number}"))
    assert proxy.passes(descriptor("user=a"))
    counted = {rule for rule, _ in proxy.metrics._rules}
    assert {"edge.path_/0", f"edge.path_/{MAX_VALUE_LABELS - 1}", "edge.path", "edge.user"} <= counted
    assert len(counted) == MAX_VALUE_LABELS + 2


def test_overrides_share_one_label(proxies: Callable[..., Proxy]) -> None:
    proxy = proxies(style=HeaderStyle(x_ratelimit=False))
    for number in range(50):
        answer = proxy.check(descriptor(f"made-up-{number}=x", limit=(5, 2)))
        assert headers(answer)["ratelimit"] == '"edge.override";r=4;t=60'
    assert {rule for rule, _ in proxy.metrics._rules} == {"edge.override"}


def test_unknown_domains_are_logged_once(proxies: Callable[..., Proxy], caplog: pytest.LogCaptureFixture) -> None:
    proxy = proxies()
    for number in range(2 * MAX_LOGGED_DOMAINS):
        for user in ("a", "b"):
            assert proxy.passes(descriptor(f"user={user}"), domain=f"shop{number}")
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [
        f"unknown Envoy domain 'shop{number}': no file of envoy.config has it" for number in range(MAX_LOGGED_DOMAINS)
    ]
