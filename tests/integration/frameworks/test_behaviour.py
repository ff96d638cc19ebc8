"""One behaviour in all frameworks: what is limited, for whom, and what the headers say of it."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from crestgate import Limiter
from crestgate.integrations import HeaderStyle, Request
from crestgate.testing import FakeClock
from integration.frameworks.suite import APPS, ROUTE_VARIANTS, ROUTED, Running, items_of

Serve = Callable[..., Running]

THREE = "3/minute using fixed_window"
NINE = "9/hour using fixed_window"
FAMILIES = ("ratelimit-policy", "ratelimit", "x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset")


@pytest.mark.parametrize("name", [*APPS, *ROUTE_VARIANTS])
def test_every_framework_has_an_application(name: str) -> None:
    module = import_module(f"integration.frameworks.apps.{name}_app")
    assert module.HAS_ROUTES == (name in ROUTED)


# -- limits -----------------------------------------------------------------------------------------------------------


def test_limit_is_exact_and_denied_request_is_not_handled(serve: Serve) -> None:
    app = serve(middleware={"limits": THREE})
    assert app.statuses(5) == [200, 200, 200, 429, 429]
    assert app.setup.handled == ["/plain"] * 3
    assert app.statuses(1, "/limited") == [429], "the middleware's limits are for all paths"
    app.clock.advance(60)
    assert app.statuses(4, "/item/1") == [200, 200, 200, 429]


def test_nothing_is_limited_without_middleware(serve: Serve) -> None:
    app = serve()
    response = app.request("/plain")
    assert (response.status, response.body) == (200, b"plain")
    assert not set(FAMILIES) & set(response.names)


def test_chain_is_all_or_nothing(serve: Serve) -> None:
    app = serve(middleware={"limits": [THREE, NINE]})
    assert app.statuses(5) == [200, 200, 200, 429, 429]
    assert (app.left(THREE), app.left(NINE)) == (0, 6)
    denied = app.request("/plain")
    assert items_of(denied.headers["ratelimit-policy"]) == {THREE: {"q": 3, "w": 60}, NINE: {"q": 9, "w": 3600}}
    assert {name: item["r"] for name, item in items_of(denied.headers["ratelimit"]).items()} == {THREE: 0, NINE: 6}
    assert denied.problem()["violated-policies"] == [THREE]


def test_plans_and_callable_limits(serve: Serve) -> None:
    def limits(request: Request) -> str | None:
        tier = request.headers.get("x-tier")
        return None if tier == "staff" else "gold" if tier == "gold" else "1/minute"

    app = serve(plans={"gold": "2/minute"}, middleware={"limits": limits})
    assert app.statuses(3) == [200, 429, 429]
    assert app.statuses(3, headers={"X-Tier": "gold"}) == [200, 200, 429]
    assert app.statuses(3, headers={"X-Tier": "staff"}) == [200, 200, 200]
    assert "ratelimit" not in app.request("/plain", headers={"X-Tier": "staff"}).names


def test_rules_of_configuration(serve: Serve, tmp_path: Path) -> None:
    file = tmp_path / "crestgate.yaml"
    file.write_text(
        "rules:\n"
        "  - {name: per user, dimension: user, limit: 2, window_seconds: 60, algorithm: fixed_window}\n"
        "  - {name: gold, dimension: user, tier: gold, limit: 3, window_seconds: 60, algorithm: fixed_window}\n"
        "  - {name: items, dimension: ip, endpoint_pattern: /item/*, limit: 1, window_seconds: 60}\n"
    )
    options = {
        "user": lambda request: request.headers.get("x-user"),
        "tier": lambda request: request.headers.get("x-tier"),
    }
    with Limiter.from_config(file, environ={}, clock=FakeClock(1_700_000_000)) as limiter:
        app = serve(limiter, middleware=options)
        assert app.statuses(3, headers={"X-User": "alice"}) == [200, 200, 429]
        assert app.statuses(4, headers={"X-User": "bob", "X-Tier": "gold"}) == [200, 200, 200, 429]
        assert app.statuses(2, "/item/1") == [200, 429]
        assert app.statuses(1, "//item/./2") != [200], "no spelling evades a rule"
        free = app.request("/plain")
        assert (free.status, "ratelimit" in free.names) == (200, False)


def test_callable_cost(serve: Serve) -> None:
    app = serve(middleware={"limits": THREE, "cost": lambda request: int(request.headers.get("x-cost", "1"))})
    assert app.request("/plain", headers={"X-Cost": "2"}).remaining == 1
    assert app.statuses(1, headers={"X-Cost": "2"}) == [429]
    assert app.statuses(2) == [200, 429]
    never = app.request("/plain", headers={"X-Cost": "4"})
    assert (never.status, never.problem()["reason"]) == (429, "cost_exceeds_limit")
    assert "retry-after" not in never.names


def test_dry_run_denies_nothing(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    app = serve(middleware={"limits": THREE, "dry_run": True})
    assert app.statuses(5) == [200] * 5
    assert app.left(THREE) == 0
    assert "would have denied" in caplog.text


def test_methods_option_selects_methods(serve: Serve) -> None:
    app = serve(middleware={"limits": "1/minute", "methods": ["POST"]})
    assert app.statuses(3) == [200] * 3
    assert app.statuses(2, "/login", method="POST") == [200, 429]


# -- whom they are for ------------------------------------------------------------------------------------------------


def test_clients_behind_trusted_proxy_are_distinct(serve: Serve) -> None:
    app = serve(middleware={"limits": THREE, "trusted_proxies": ["127.0.0.0/8"]})
    one, other = {"X-Forwarded-For": "203.0.113.9"}, {"Forwarded": "for=203.0.113.10"}
    assert app.statuses(4, headers=one) == [200, 200, 200, 429]
    assert app.statuses(4, headers=other) == [200, 200, 200, 429]
    assert app.statuses(1, headers={"X-Forwarded-For": "1.1.1.1, 203.0.113.9"}) == [429], "a spoofed address"
    assert app.left(THREE, "ip:1.1.1.1") == 3


def test_forwarded_headers_are_ignored_by_default(serve: Serve) -> None:
    app = serve(middleware={"limits": THREE})
    spoofed = [app.request("/plain", headers={"X-Forwarded-For": f"203.0.113.{n}"}).status for n in range(5)]
    assert spoofed == [200, 200, 200, 429, 429]
    assert app.statuses(1, headers={"Forwarded": "for=203.0.113.9", "X-Real-IP": "203.0.113.9"}) == [429]


@pytest.mark.parametrize(
    "key", ["header:X-Tenant", lambda request: request.headers.get("x-tenant")], ids=["by name", "by callable"]
)
def test_header_key(serve: Serve, key: Any) -> None:
    app = serve(middleware={"limits": THREE, "key": key})
    assert app.statuses(4, headers={"X-Tenant": "blue"}) == [200, 200, 200, 429]
    assert app.statuses(4, headers={"X-Tenant": "red"}) == [200, 200, 200, 429]
    assert app.statuses(4) == [200, 200, 200, 429], "who leaves it out is counted by the address"
    assert app.left(THREE) == 0


def test_combined_key(serve: Serve) -> None:
    options = {"limits": THREE, "key": "user|route", "user": lambda request: request.headers.get("x-user")}
    app = serve(middleware=options)
    assert app.statuses(4, "/plain", headers={"X-User": "alice"}) == [200, 200, 200, 429]
    assert app.statuses(4, "/limited", headers={"X-User": "alice"}) == [200, 200, 200, 429]
    assert app.statuses(4, "/plain", headers={"X-User": "bob"}) == [200, 200, 200, 429]
    assert app.left(THREE, "user:alice|route:/plain") == 0


@pytest.mark.parametrize(
    "exempt",
    [["/plain"], "127.0.0.0/8", lambda request: request.headers.get("x-internal") == "yes"],
    ids=["path", "network", "callable"],
)
def test_exempt_request_is_not_counted(serve: Serve, exempt: Any) -> None:
    app = serve(middleware={"limits": THREE, "exempt": exempt})
    assert app.statuses(5, headers={"X-Internal": "yes"}) == [200] * 5
    assert app.left(THREE) == 3
    assert "ratelimit" not in app.request("/plain", headers={"X-Internal": "yes"}).names
    if exempt == ["/plain"]:
        assert app.statuses(4, "/limited") == [200, 200, 200, 429]


def test_path_spelling_does_not_make_a_path_exempt(serve: Serve) -> None:
    app = serve(middleware={"limits": "99/hour using fixed_window", "exempt": ["/plain", "/mounted/*"]})
    spellings = ("/plain%3F", "/plain%3Fx", "/plain%23", "/plain;x", "/plain/../limited", "/plain%2F..%2Flimited")
    more = ("/limited/%2e%2e/plain", "/mounted/../limited", "/mounted/%252e%252e/limited", "/plain%00", "/%70lain%3b")
    for number, path in enumerate((*spellings, *more), 1):
        app.request(path)
        assert app.left("99/hour using fixed_window") == 99 - number, path
    assert app.statuses(2, "/plain?x=1") == [200, 200]
    assert app.left("99/hour using fixed_window") == 99 - number


# -- headers ----------------------------------------------------------------------------------------------------------


def test_headers_of_allowed_request(serve: Serve) -> None:
    app = serve(middleware={"limits": "10/minute using fixed_window"})
    app.clock.advance(-app.clock.now() % 60)  # to where a window begins
    response = app.request("/plain")
    assert (response.status, response.body) == (200, b"plain")
    name = "10/minute using fixed_window"
    assert items_of(response.headers["ratelimit-policy"]) == {name: {"q": 10, "w": 60}}
    assert items_of(response.headers["ratelimit"]) == {name: {"r": 9, "t": 60}}
    assert [response.headers[family] for family in FAMILIES[2:]] == ["10", "9", "60"]
    assert "retry-after" not in response.names
    assert "x-ratelimit-state" not in response.names
    for family in FAMILIES:
        assert response.names.count(family) == 1
    assert not any("127.0.0.1" in value for value in response.headers.values()), "no header carries a key"


def test_headers_of_denied_request(serve: Serve) -> None:
    app = serve(middleware={"limits": "2/minute using fixed_window"})
    app.clock.advance(-app.clock.now() % 60 + 0.5)
    app.statuses(2)
    response = app.request("/plain")
    assert response.status == 429
    name = "2/minute using fixed_window"
    assert items_of(response.headers["ratelimit"]) == {name: {"r": 0, "t": 60}}
    assert [response.headers[family] for family in FAMILIES[2:]] == ["2", "0", "60"]
    assert response.headers["retry-after"] == "60", "59.5, rounded up"
    assert response.headers["x-ratelimit-state"] == "throttled"
    assert response.headers["content-type"] == "application/problem+json"
    assert int(response.headers["content-length"]) == len(response.body)
    for family in (*FAMILIES, "retry-after", "content-type", "content-length"):
        assert response.names.count(family) == 1
    problem = response.problem()
    assert problem["type"] == "https://iana.org/assignments/http-problem-types#quota-exceeded"
    assert (problem["title"], problem["status"], problem["reason"]) == ("Quota Exceeded", 429, "limited")
    assert problem["violated-policies"] == [name]
    assert problem["retry_after"] == 59.5
    assert problem["detail"] == problem["message"] == f"rate limit exceeded ({name}): retry after 60 s"
    assert b"127.0.0.1" not in response.body


def test_pressure_state_header(serve: Serve) -> None:
    app = serve(middleware={"limits": "10/minute using fixed_window"})
    states = [app.request("/plain").headers.get("x-ratelimit-state") for _ in range(11)]
    assert states == [None] * 8 + ["warning", "throttled", "throttled"]
    app.clock.advance(60)
    assert app.request("/plain").headers.get("x-ratelimit-state") is None


@pytest.mark.parametrize(
    ("style", "expected"),
    [
        (False, set()),
        (HeaderStyle(x_ratelimit=False), {"ratelimit-policy", "ratelimit", "retry-after"}),
        (HeaderStyle(ratelimit=False, retry_after=False), {*FAMILIES[2:], "x-ratelimit-state"}),
    ],
    ids=["none", "of the draft", "X-RateLimit"],
)
def test_each_header_family_can_be_disabled(serve: Serve, style: Any, expected: set[str]) -> None:
    app = serve(middleware={"limits": "1/minute", "headers": style})
    app.request("/plain")
    denied = app.request("/plain")
    assert denied.status == 429
    assert {name for name in denied.names if "ratelimit" in name or name == "retry-after"} == expected


def test_reset_header_as_epoch(serve: Serve) -> None:
    app = serve(middleware={"limits": THREE, "headers": HeaderStyle(reset="epoch")})
    now = app.clock.now()
    assert int(app.request("/plain").headers["x-ratelimit-reset"]) == now - now % 60 + 60
