"""What is told beside the statuses: headers for the client, metadata for the proxy, numbers for metrics and the log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf import duration_pb2, json_format

from headgate.config.settings import Settings
from headgate.http.style import HeaderStyle
from headgate.service.rpc import messages
from headgate.service.rpc.envoy import MOST_STRANGE, MOST_TELLING
from headgate.service.rpc.statuses import NO_LIMIT, NOT_LIMITED, OK, headers_field, varint
from unit.service.rpc.proxy import START, Proxy, descriptor

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
  - key: grössen
    rate_limit: {unit: minute, requests_per_unit: 4000000000, name: "größte"}
"""


def headers(answer: Any) -> dict[str, str]:
    said = [(header.key, header.value) for header in answer.response_headers_to_add]
    assert len(dict(said)) == len(said)
    return dict(said)


# -- headers ----------------------------------------------------------------------------------------------------------


def test_the_client_is_told_of_the_limits_in_headers(proxies: Callable[..., Proxy]) -> None:
    proxy = proxies(style=HeaderStyle())
    assert headers(proxy.ask(descriptor("user=a"))) == {
        "ratelimit-policy": '"edge.user";q=10;w=60',
        "ratelimit": '"edge.user";r=9;t=60',
        "x-ratelimit-limit": "10",
        "x-ratelimit-remaining": "9",
        "x-ratelimit-reset": "60",
    }
    both = proxy.ask(descriptor("user=a"), descriptor("route=/a"), descriptor("tried=a"), descriptor("nobody=a"))
    assert headers(both) == {
        "ratelimit-policy": '"edge.user";q=10;w=60, "edge.route";q=1;w=1',
        "ratelimit": '"edge.user";r=8;t=60, "edge.route";r=19;t=1',
        "x-ratelimit-limit": "10",
        "x-ratelimit-remaining": "8",
        "x-ratelimit-reset": "60",
    }
    assert proxy.passes(descriptor("route=/a"), hits=19)
    denied = headers(proxy.ask(descriptor("user=a"), descriptor("route=/a"), hits=3))
    assert denied["ratelimit"] == '"edge.user";r=8;t=60, "edge.route";r=0;t=3'
    assert (denied["retry-after"], denied["x-ratelimit-limit"], denied["x-ratelimit-state"]) == ("3", "20", "throttled")


def test_x_ratelimit_headers_are_off_unless_asked_for(proxies: Callable[..., Proxy]) -> None:
    """Envoy's filter may add its own, and a client would have each of them twice."""
    assert Settings().envoy.x_ratelimit is False
    silent = proxies(style=HeaderStyle(), x_ratelimit=False)
    assert {*headers(silent.ask(descriptor("user=a"), hits=9))} == {"ratelimit-policy", "ratelimit"}
    assert {*headers(silent.ask(descriptor("user=a"), hits=2))} == {"ratelimit-policy", "ratelimit", "retry-after"}
    asked = proxies(style=HeaderStyle(x_ratelimit=False), x_ratelimit=True)
    assert "x-ratelimit-limit" in headers(asked.ask(descriptor("user=a")))


def test_headers_are_said_as_configured(proxies: Callable[..., Proxy]) -> None:
    assert headers(proxies().ask(descriptor("user=a"))) == {}
    only = HeaderStyle(ratelimit=False, x_ratelimit=False)
    assert headers(proxies(style=only).ask(descriptor("user=a"), hits=4)) == {}
    epoch = proxies(style=HeaderStyle(ratelimit=False, reset="epoch"))
    assert headers(epoch.ask(descriptor("user=a")))["x-ratelimit-reset"] == str(START + 60)
    denied = proxies(style=only)
    assert denied.passes(descriptor("user=a"), hits=10)
    assert headers(denied.ask(descriptor("user=a"))) == {"retry-after": "60"}


@pytest.mark.parametrize("asked", [("nobody=a",), ("tried=a",), ("tried=a", "nobody=b")])
def test_where_no_limit_decides_there_is_nothing_to_say(proxies: Callable[..., Proxy], asked: tuple[str, ...]) -> None:
    assert headers(proxies(style=HeaderStyle()).ask(*[descriptor(one) for one in asked])) == {}


def test_a_request_denied_by_its_quotas_may_come_back_when_the_first_of_them_admits(
    proxies: Callable[..., Proxy],
) -> None:
    proxy = proxies(style=HeaderStyle())
    asked = (descriptor("reserve=a"), descriptor("user=a"), descriptor("pool=a"))
    assert proxy.passes(*asked)
    denied = headers(proxy.ask(*asked))
    assert denied["retry-after"] == "60"
    assert denied["ratelimit"] == '"edge.user";r=9;t=60, "edge.pool";r=0;t=60'


# -- metadata ---------------------------------------------------------------------------------------------------------


def metadata(answer: Any) -> Any:
    return json_format.MessageToDict(answer.dynamic_metadata) if answer.HasField("dynamic_metadata") else None


def test_limits_that_are_passed_tell_the_proxy_their_metadata(proxies: Callable[..., Proxy]) -> None:
    proxy = proxies()
    assert metadata(proxy.ask(descriptor("user=a"))) is None
    told = metadata(proxy.ask(descriptor("plan=gold"), descriptor("region=x"), descriptor("user=a", limit=(5, 2))))
    assert told == {
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
    again = metadata(proxy.ask(descriptor("plan=gold", hits=0), descriptor("region=y", hits=2), hits=3))
    assert again["hitsAddend"] == 3
    assert [one.get("hitsAddend") for one in again["descriptors"]] == [0.0, 2.0]
    assert again["metadata"]["tier"] == {"name": "gold", "weight": 3.0, "zone": "eu"}, "nothing was merged for good"


def test_a_limit_that_denies_tells_no_metadata(proxies: Callable[..., Proxy]) -> None:
    proxy = proxies()
    assert proxy.passes(descriptor("plan=gold"), hits=2)
    assert metadata(proxy.ask(descriptor("plan=gold"))) is None
    told = metadata(proxy.ask(descriptor("plan=gold"), descriptor("region=x")))
    assert told["metadata"] == {"tier": {"zone": "eu", "name": "other"}, "first": False}


# -- numbers ----------------------------------------------------------------------------------------------------------


def test_a_request_is_counted_for_the_limit_that_decided(proxies: Callable[..., Proxy]) -> None:
    proxy = proxies()
    proxy.ask(descriptor("user=a"), descriptor("region=x"))
    proxy.ask(descriptor("user=a", hits=9), descriptor("region=x"))
    proxy.ask(descriptor("user=a"), descriptor("region=x"))
    for path in ("/a", "/b", "/a"):
        proxy.ask(descriptor(f"path={path}"), descriptor("tried=a"))
    proxy.ask(descriptor("nobody=a"))
    assert proxy.counted() == {
        ("edge.region", "descriptor"): (1, 0, 0),
        ("edge.user", "descriptor"): (1, 1, 0),
        ("edge.path_/a", "descriptor"): (1, 1, 0),
        ("edge.path_/b", "descriptor"): (1, 0, 0),
        ("edge.tried", "descriptor"): (0, 0, 2),
        ("no_rule", "none"): (1, 0, 0),
    }
    (usage,) = proxy.tally.take_usage(proxy.clock.ticks())
    assert usage.subjects["edge|user=a"] == (1, 1)
    assert sum(proxy.tally.snapshot(proxy.clock.ticks(), {}).durations.counts) == 7  # type: ignore[union-attr]


def test_the_log_is_told_whom_it_was_about_and_what_came_of_it(proxies: Callable[..., Proxy]) -> None:
    proxy = proxies()
    asked = proxy.message(descriptor("user=a"), descriptor("pool=x"))
    for allowed, subject in ((True, "edge|pool=x"), (False, "edge|pool=x")):
        call = proxy.call()
        proxy.envoy.at_once(call, asked)
        assert (call.allowed, call.subject) == (allowed, subject)


def test_pressure_is_told_as_of_every_check(proxies: Callable[..., Proxy]) -> None:
    proxy = proxies(style=HeaderStyle())
    assert headers(proxy.ask(descriptor("user=a"), hits=9))["x-ratelimit-state"] == "warning"
    assert headers(proxy.ask(descriptor("user=a", hits=0)))["x-ratelimit-state"] == "warning"
    assert headers(proxy.ask(descriptor("user=a")))["x-ratelimit-state"] == "throttled"
    assert proxy.limiter._engine.pressed


# -- the bytes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [0, 1, 127, 128, 300, 16383, 16384, 2**31, 2**32 - 1, 2**53])
def test_numbers_are_encoded_as_protobuf_does(number: int) -> None:
    decoded = duration_pb2.Duration.FromString(b"\x08" + varint(number))
    assert decoded.seconds == number


def test_what_is_encoded_by_hand_is_what_protobuf_encodes(proxies: Callable[..., Proxy]) -> None:
    answer = messages.RateLimitResponse.FromString(
        OK + NO_LIMIT + NOT_LIMITED + headers_field([(b"x-long", b"v" * 300), (b"x-empty", b"")])
    )
    again = messages.RateLimitResponse(overall_code=1)
    again.statuses.add(code=1)
    again.statuses.add(code=1, limit_remaining=2**32 - 1)
    again.response_headers_to_add.add(key="x-long", value="v" * 300)
    again.response_headers_to_add.add(key="x-empty")
    assert answer == again
    data = proxies(style=HeaderStyle()).answer(descriptor("grössen=ß"), descriptor("user=a"), hits=2)
    parsed = messages.RateLimitResponse.FromString(data)
    assert parsed.statuses[0].current_limit.name == "größte"
    assert parsed.statuses[0].limit_remaining == 3_999_999_998
    assert parsed.SerializeToString() == data


def test_a_flood_of_values_leaves_room_for_the_labels_of_others(proxies: Callable[..., Proxy]) -> None:
    proxy = proxies()
    for number in range(2 * MOST_TELLING):
        assert proxy.passes(descriptor(f"path=/{number}"))
    assert proxy.passes(descriptor("user=a"))
    counted = {rule for rule, _ in proxy.tally._rules}
    assert {"edge.path_/0", f"edge.path_/{MOST_TELLING - 1}", "edge.path", "edge.user"} <= counted
    assert len(counted) == MOST_TELLING + 2


def test_a_flood_of_keys_that_bring_a_limit_along_makes_one_label(proxies: Callable[..., Proxy]) -> None:
    proxy = proxies(style=HeaderStyle(x_ratelimit=False))
    for number in range(50):
        answer = proxy.ask(descriptor(f"made-up-{number}=x", limit=(5, 2)))
        assert headers(answer)["ratelimit"] == '"edge.override";r=4;t=60'
    assert {rule for rule, _ in proxy.tally._rules} == {"edge.override"}


def test_domains_that_nobody_has_are_in_the_log_once(
    proxies: Callable[..., Proxy], caplog: pytest.LogCaptureFixture
) -> None:
    proxy = proxies()
    for number in range(2 * MOST_STRANGE):
        for user in ("a", "b"):
            assert proxy.passes(descriptor(f"user={user}"), domain=f"shop{number}")
    told = [record.getMessage() for record in caplog.records]
    assert told == [
        f"no file of envoy.config has the domain 'shop{number}', which is asked for" for number in range(MOST_STRANGE)
    ]
