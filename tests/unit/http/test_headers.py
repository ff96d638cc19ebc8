"""Headers of a decision: their values, well-formed structured fields, and no keys in them."""

from __future__ import annotations

import math

import pytest
from http_sfv.list import List
from hypothesis import example, given
from hypothesis import strategies as st

from crestgate import Limit, Limiter, RequestContext
from crestgate.core.algorithms import build
from crestgate.core.decision import Decision, combine
from crestgate.errors import ConfigError
from crestgate.http import headers as module
from crestgate.http.header_options import HeaderStyle
from crestgate.http.headers import HEADERS, header_name, rate_limit_headers
from crestgate.http.problem import exceeded
from crestgate.rules.compat.rule_ids import derived_id
from crestgate.testing import FakeClock

ALL = HeaderStyle()
NOW_US = 1_700_000_000_250_000


def decided(
    notation: str,
    label: str = "per-user",
    allowed: bool = True,
    remaining: int = 42,
    wait_us: int | None = 0,
    reset_us: int = 17_000_000,
) -> Decision:
    limit = Limit.parse(notation)
    return Decision(build(limit, str(limit), label), allowed, remaining, wait_us, reset_us, None)


def headers_of(decision: Decision, style: HeaderStyle = ALL, now_us: int = NOW_US) -> dict[str, str]:
    headers = rate_limit_headers(decision, style, now_us)
    found = {name.decode("ascii"): value.decode("ascii") for name, value in headers}
    assert len(found) == len(headers), "a header is duplicated"
    return found


def items(value: str) -> list[tuple[object, dict[str, object]]]:
    """A structured list, read by an independent parser."""
    parsed = List()
    parsed.parse(value.encode("ascii"))
    return [(item.value, dict(item.params)) for item in parsed]


def test_headers_of_an_allowed_request() -> None:
    assert headers_of(decided("100/minute")) == {
        "ratelimit-policy": '"per-user";q=100;w=60',
        "ratelimit": '"per-user";r=42;t=17',
        "x-ratelimit-limit": "100",
        "x-ratelimit-remaining": "42",
        "x-ratelimit-reset": "17",
    }


def test_headers_of_a_denied_request() -> None:
    decision = decided("100/minute", allowed=False, remaining=0, wait_us=600_000, reset_us=60_000_000)
    assert headers_of(decision) == {
        "ratelimit-policy": '"per-user";q=100;w=60',
        "ratelimit": '"per-user";r=0;t=1',
        "x-ratelimit-limit": "100",
        "x-ratelimit-remaining": "0",
        "x-ratelimit-reset": "60",
        "retry-after": "1",
    }


def test_impossible_cost_has_no_retry_after() -> None:
    limiter = Limiter("memory://", clock=FakeClock(1000.0))
    for notation, cost in (("5/minute", 6), ("0/minute", 1)):
        headers = headers_of(limiter.check("user:42", notation, cost=cost))
        assert "retry-after" not in headers
        ((_, parameters),) = items(headers["ratelimit"])
        assert set(parameters) == {"r"}
    assert headers["ratelimit-policy"] == '"0/minute";q=0;w=60'


def test_chain_lists_every_limit_and_the_deciding_one_sets_the_other_headers() -> None:
    clock = FakeClock(1000.0)
    limiter = Limiter("memory://", plans={"gold": "2/10 seconds using fixed_window", "daily": "50/day"}, clock=clock)
    first = headers_of(limiter.check("user:42", ["gold", "daily"]))
    assert items(first["ratelimit-policy"]) == [("gold", {"q": 2, "w": 10}), ("daily", {"q": 50, "w": 86400})]
    assert items(first["ratelimit"]) == [("gold", {"r": 1, "t": 10}), ("daily", {"r": 49, "t": 1728})]
    assert (first["x-ratelimit-limit"], first["x-ratelimit-remaining"], first["x-ratelimit-reset"]) == ("2", "1", "10")
    limiter.check("user:42", ["gold", "daily"])
    clock.advance(6.5)
    denied = headers_of(limiter.check("user:42", ["gold", "daily"]))
    # The denying limit has the time until it admits, the other the time until it is full again.
    assert items(denied["ratelimit"]) == [("gold", {"r": 0, "t": 4}), ("daily", {"r": 48, "t": 3450})]
    assert (denied["retry-after"], denied["x-ratelimit-reset"]) == ("4", "4")


def test_retry_after_is_the_longest_wait() -> None:
    parts = (
        decided("5/s", "short", False, 0, 1_000_000),
        decided("5/hour", "long", False, 0, 90_000_001),
        decided("9/day", "other", True, 3),
    )
    headers = headers_of(combine(parts, False))
    assert headers["retry-after"] == "91"
    assert items(headers["ratelimit"]) == [
        ("short", {"r": 0, "t": 1}),
        ("long", {"r": 0, "t": 91}),
        ("other", {"r": 3, "t": 17}),
    ]


@pytest.mark.parametrize(
    ("notation", "policy"),
    [
        ("10/second burst 20", {"q": 10, "w": 1}),
        ("10 per 30 seconds burst 5 using gcra", {"q": 10, "w": 30}),
        ("7/100ms", {"q": 7, "w": 1}),
        ("7/1500ms", {"q": 7, "w": 2}),
        ("7/1000ms", {"q": 7, "w": 1}),
        ("5/month using fixed_window", {"q": 5, "w": 2_592_000}),
        ("5/calendar month in Europe/Berlin", {"q": 5}),  # no month is as long as the next
    ],
)
def test_policy_is_the_count_and_the_period_rounded_up(notation: str, policy: dict[str, int]) -> None:
    assert items(headers_of(decided(notation))["ratelimit-policy"]) == [("per-user", policy)]


def test_legacy_limit_header_is_the_burst() -> None:
    assert headers_of(decided("10/second burst 20", remaining=19))["x-ratelimit-limit"] == "20"


@pytest.mark.parametrize(
    ("microseconds", "seconds"), [(0, 0), (1, 1), (999_999, 1), (1_000_000, 1), (1_000_001, 2), (3_600_000_000, 3600)]
)
def test_seconds_are_rounded_up(microseconds: int, seconds: int) -> None:
    headers = headers_of(decided("5/hour", reset_us=microseconds))
    assert headers["x-ratelimit-reset"] == str(seconds)
    assert items(headers["ratelimit"])[0][1]["t"] == seconds
    if microseconds:
        denied = headers_of(decided("5/hour", allowed=False, wait_us=microseconds))
        assert denied["retry-after"] == str(seconds)
        assert items(denied["ratelimit"])[0][1]["t"] == seconds


def test_epoch_reset_is_rounded_up() -> None:
    style = HeaderStyle(reset="epoch")
    assert headers_of(decided("5/hour"), style)["x-ratelimit-reset"] == "1700000018"
    assert headers_of(decided("5/hour", reset_us=16_750_000), style)["x-ratelimit-reset"] == "1700000017"
    denied = headers_of(decided("5/hour", allowed=False, wait_us=5_000_000), style)
    assert (denied["retry-after"], items(denied["ratelimit"])[0][1]["t"]) == ("5", 5)


def test_unknown_reset_style_is_refused() -> None:
    with pytest.raises(ConfigError, match="reset must be one of seconds, epoch, not 'never'"):
        HeaderStyle(reset="never")  # type: ignore[arg-type]  # which is what is tested


@pytest.mark.parametrize(
    ("style", "names"),
    [
        (HeaderStyle(ratelimit=False), {"x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"}),
        (HeaderStyle(x_ratelimit=False), {"ratelimit-policy", "ratelimit"}),
        (HeaderStyle(ratelimit=False, x_ratelimit=False), set()),
    ],
)
def test_each_header_family_can_be_disabled(style: HeaderStyle, names: set[str]) -> None:
    assert set(headers_of(decided("5/hour"), style)) == names
    denied = decided("5/hour", allowed=False, wait_us=1).with_pressure("throttled")
    state = {"x-ratelimit-state"} if style.x_ratelimit else set()
    assert set(headers_of(denied, style)) == {*names, *state, "retry-after"}
    silent = HeaderStyle(style.ratelimit, style.x_ratelimit, retry_after=False)
    assert set(headers_of(denied, silent)) == names | state


def test_pressure_header_is_set_unless_normal() -> None:
    limiter = Limiter("memory://", clock=FakeClock(1000.0))
    states = [headers_of(limiter.check("user:42", "10/hour")).get("x-ratelimit-state") for _ in range(11)]
    assert states == [None] * 8 + ["warning", "throttled", "throttled"]


def test_no_headers_without_a_limit() -> None:
    with Limiter.from_config(environ={"CRESTGATE_STORE": "memory://"}) as limiter:
        decision = limiter.check_request(RequestContext(ip="192.0.2.1"))
    assert decision.reason == "no_rule"
    assert rate_limit_headers(decision, ALL, 0) == []


def test_shadow_rules_are_not_in_headers() -> None:
    rules = (
        "[{rule_id: real, dimension: ip, limit: 5, window_seconds: 60},"
        " {rule_id: trial, dimension: ip, limit: 0, window_seconds: 60, mode: shadow}]"
    )
    with Limiter.from_config(environ={"CRESTGATE_RULES": rules}) as limiter:
        decision = limiter.check_request(RequestContext(ip="192.0.2.1"))
    assert decision.reason == "shadow"
    headers = headers_of(decision)
    assert [name for name, _ in items(headers["ratelimit"])] == ["real"]
    assert headers["x-ratelimit-limit"] == "5"


def hidden(decision: Decision) -> Decision:
    decision.algorithm.in_headers = False
    return decision


def test_hidden_limit_is_in_no_header() -> None:
    shown, ceiling = decided("5/hour", "shown", remaining=4), hidden(decided("3/hour", "ceiling", remaining=2))
    headers = headers_of(combine((ceiling, shown), True))
    assert headers == headers_of(shown)
    assert headers_of(ceiling) == {}


def test_denial_by_a_hidden_limit_has_retry_after_and_the_tightest_visible_limit() -> None:
    loose, tight = decided("9/hour", "loose", remaining=8), decided("5/hour", "tight", remaining=3)
    ceiling = hidden(decided("3/hour", "ceiling", False, 0, 7_500_000))
    headers = headers_of(combine((loose, ceiling, tight), False))
    assert headers["retry-after"] == "8"
    assert (headers["x-ratelimit-limit"], headers["x-ratelimit-remaining"]) == ("5", "3")
    assert headers["ratelimit"] == '"loose";r=8;t=17, "tight";r=3;t=17'
    assert "ceiling" not in str(headers)
    assert headers_of(ceiling) == {"retry-after": "8"}
    assert headers_of(hidden(decided("0/hour", "ceiling", False, 0, None))) == {}


def test_denial_by_hidden_and_visible_limits() -> None:
    visible = decided("5/hour", "visible", False, 0, 2_000_000)
    ceiling = hidden(decided("3/hour", "ceiling", False, 0, 9_000_000))
    headers = headers_of(combine((ceiling, visible), False))
    assert (headers["retry-after"], headers["x-ratelimit-limit"]) == ("9", "5"), "waiting 2 s would not help"
    assert headers["ratelimit"] == '"visible";r=0;t=2'


def test_hidden_limit_is_not_in_the_problem_document() -> None:
    ceiling = hidden(decided("3/hour", "ceiling", False, 0, 7_500_000))
    visible = decided("5/hour", "visible", False, 0, 2_000_000)
    both = exceeded(combine((ceiling, visible), False), now_us=0)
    assert (both["detail"], both["violated-policies"]) == (
        "rate limit exceeded (visible): retry after 8 s",
        ["visible"],
    )
    alone = exceeded(ceiling, now_us=0)
    assert (alone["status"], alone["violated-policies"]) == (429, [])
    assert alone["detail"] == "rate limit exceeded: retry after 8 s"


def test_rule_without_headers() -> None:
    rules = (
        "[{rule_id: real, dimension: ip, limit: 5, window_seconds: 60},"
        " {rule_id: ceiling, dimension: global, limit: 1, window_seconds: 60, headers: false}]"
    )
    with Limiter.from_config(environ={"CRESTGATE_RULES": rules}) as limiter:
        first, second = (limiter.check_request(RequestContext(ip="192.0.2.1")) for _ in range(2))
    assert (first.name, second.name, second.allowed) == ("ceiling", "ceiling", False)
    assert headers_of(first)["x-ratelimit-limit"] == "5"
    headers = headers_of(second)
    assert (headers["x-ratelimit-limit"], headers["x-ratelimit-remaining"]) == ("5", "4")
    assert int(headers["retry-after"]) > 0
    assert "ceiling" not in str(headers)


def test_headers_have_no_policy_or_client_key() -> None:
    interval = "timeIntervalLimit: {timeUnit: MIN, maxRequests: 3}"
    environ = {
        "CRESTGATE_POLICY_KEY": "user",
        "CRESTGATE_POLICIES": "[{key: 'user:hunter2', capacity: 5}]",
        "CRESTGATE_CLIENTS": f"[{{clientId: 'hunter2:x', limits: [{{limitType: API, limitName: /web, {interval}}}, "
        f"{{limitType: METHOD, limitName: GET, {interval}}}]}}]",
    }
    with Limiter.from_config(environ=environ) as limiter:
        decision = limiter.check_request(RequestContext(user="hunter2", client="hunter2:x", path="/web", method="GET"))
    assert "hunter2" in repr(decision)
    headers = headers_of(decision)
    assert "hunter2" not in repr(headers)
    names = {name for name, _ in items(headers["ratelimit"])}
    assert names == {"policy", "client:API:/web", "client:METHOD:GET"}


@pytest.mark.parametrize(
    ("label", "name"),
    [
        (derived_id("override", "hunter2", "slot|60"), "override:slot%7C60"),
        (derived_id("policy", "a:b%c"), "policy"),
        ("orders-per-user", "orders-per-user"),
        ("strategy:ip", "strategy:ip"),
        ("policyholders", "policyholders"),
        ("100 per minute", "100 per minute"),
    ],
)
def test_policy_names(label: str, name: str) -> None:
    assert header_name(label) == name


def test_id_of_a_long_key_does_not_show_its_prefix() -> None:
    label = derived_id("client", "hunter2" * 100, "API", "/x")
    assert "hunter2" in label
    assert header_name(label).startswith("client:sha256:")
    assert "hunter2" not in header_name(label)


@given(st.text())
@example('a "quoted" name with \\ in it')
@example("größer 100/minute ✓\r\nX-Injected: yes")
@example("\ud800\x00\x7f")
@example("")
def test_any_name_is_well_formed(name: str) -> None:
    headers = headers_of(decided("5/hour", name))
    ((policy, _),) = items(headers["ratelimit-policy"])
    ((item, parameters),) = items(headers["ratelimit"])
    assert policy == item == header_name(name)
    assert parameters == {"r": 42, "t": 17}
    assert "\r" not in headers["ratelimit"]
    assert "\n" not in headers["ratelimit"]


@given(
    st.integers(0, 2**53 - 1),
    st.integers(1, 10**15),
    st.booleans(),
    st.integers(0, 2**53 - 1),
    st.none() | st.integers(1, 10**16),
    st.integers(0, 10**16),
)
def test_any_number_is_well_formed(
    count: int, period_us: int, allowed: bool, remaining: int, wait_us: int | None, reset_us: int
) -> None:
    try:
        limit = Limit(count, period_us / 1_000_000)
    except ConfigError:
        return
    decision = Decision(build(limit, "n"), allowed, remaining, 0 if allowed else wait_us, reset_us, None)
    headers = headers_of(decision)
    ((_, policy),) = items(headers["ratelimit-policy"])
    ((_, item),) = items(headers["ratelimit"])
    most = 999_999_999_999_999  # the maximum of a structured field
    assert policy == {"q": min(count, most), "w": math.ceil(limit.period_us / 1_000_000)}
    assert item["r"] == min(remaining, most)
    if not allowed and wait_us is None:
        assert "t" not in item
        assert "retry-after" not in headers
    else:
        assert item["t"] == -(-(reset_us if allowed else wait_us or 0) // 1_000_000)


def test_header_cache_is_bounded() -> None:
    limit = Limit(5, 1)
    for number in range(module.MAX_CACHED + 10):
        decision = Decision(build(limit, f"n{number}"), True, 1, 0, 0, None)
        assert headers_of(decision)["ratelimit"] == f'"n{number}";r=1;t=0'
    assert len(module._limit_texts) <= module.MAX_CACHED


def test_every_header_is_in_the_table() -> None:
    """Integrations and OpenAPI take the names from it."""
    denied = decided("100/minute", allowed=False, remaining=0, wait_us=1).with_pressure("throttled")
    assert {name.lower() for name in HEADERS} == {*headers_of(denied)}
