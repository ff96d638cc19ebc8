"""One behaviour in all frameworks: routes with limits of their own, layers inside layers, and what counts later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from crestgate import Decision
from crestgate.integrations import Denial, Request
from integration.frameworks.suite import HERE, ROUTED, Running, items_of

Serve = Callable[..., Running]

THREE = "3/minute using fixed_window"
FIVE = "5/minute using fixed_window"
LEAKY = "1/second burst 3 using leaky_bucket"
routed = pytest.mark.parametrize("framework", ROUTED)
STYLE_CASES = pytest.mark.parametrize(
    ("framework", "middleware"), [(name, {} if name == "fastapi_dependency" else None) for name in ROUTED]
)
"""Where a route's limits see the response: a dependency of FastAPI's does not, but with a middleware around it does."""


def only_401(response: Any) -> bool:
    return bool(response.status == 401)


# -- routes -----------------------------------------------------------------------------------------------------------


@routed
def test_path_parameters_share_a_counter(serve: Serve) -> None:
    app = serve(limits=THREE)
    assert [app.request(f"/item/{n}").status for n in range(5)] == [200, 200, 200, 429, 429]
    assert app.setup.handled == ["/item/0", "/item/1", "/item/2"]
    assert app.statuses(4, "/limited") == [200, 200, 200, 429], "another route counts apart"
    assert app.statuses(5) == [200] * 5, "and one without limits has none"
    app.clock.advance(60)
    assert app.request("/item/9").body == b"9"


@routed
def test_scope_is_shared_by_routes(serve: Serve) -> None:
    app = serve(limits=THREE, route={"scope": "reading"})
    assert app.statuses(2, "/limited") == [200, 200]
    assert app.statuses(2, "/item/1") == [200, 429]
    assert app.left(THREE, f"ip:{HERE}|route:reading") == 0


@STYLE_CASES
def test_route_limit_headers(serve: Serve, middleware: dict[str, Any] | None) -> None:
    app = serve(limits=[THREE, "9/hour"], middleware=middleware)
    response = app.request("/own")
    assert (response.status, response.body, response.headers["x-own"]) == (202, b"own", "yes")
    assert items_of(response.headers["ratelimit-policy"]) == {THREE: {"q": 3, "w": 60}, "9/hour": {"q": 9, "w": 3600}}
    assert response.remaining == 2
    app.statuses(2, "/own")
    denied = app.request("/own")
    assert (denied.status, denied.problem()["violated-policies"]) == (429, [THREE])
    assert denied.headers["content-type"] == "application/problem+json"
    assert denied.names.count("ratelimit") == denied.names.count("retry-after") == 1
    assert "x-own" not in denied.names


@routed
def test_route_limit_is_per_caller(serve: Serve) -> None:
    app = serve(limits=THREE, route={"key": "header:X-Tenant"})
    assert app.statuses(4, "/limited", headers={"X-Tenant": "blue"}) == [200, 200, 200, 429]
    assert app.statuses(4, "/limited", headers={"X-Tenant": "red"}) == [200, 200, 200, 429]
    assert app.statuses(4, "/limited") == [200, 200, 200, 429]


@routed
def test_middleware_and_route_limits_are_separate(serve: Serve) -> None:
    app = serve(middleware={"limits": FIVE}, limits=THREE)
    response = app.request("/limited")
    items = items_of(response.headers["ratelimit"])
    assert {name: item["r"] for name, item in items.items()} == {FIVE: 4, THREE: 2}
    assert response.names.count("ratelimit") == 1
    assert app.statuses(3, "/limited") == [200, 200, 429]
    assert app.statuses(2) == [200, 429]
    assert app.left(FIVE) == 0


@routed
def test_equal_middleware_and_route_limits_both_apply(serve: Serve) -> None:
    app = serve(middleware={"limits": FIVE}, limits=FIVE)
    assert app.request("/limited").status == 200
    assert app.left(FIVE) == 4
    assert app.statuses(6, "/plain") == [200] * 4 + [429] * 2


@STYLE_CASES
def test_failed_login_counts_on_route(serve: Serve, middleware: dict[str, Any] | None) -> None:
    app = serve(limits=THREE, route={"when": only_401}, middleware=middleware)
    assert app.statuses(5, "/login", method="POST", body=b"right") == [200] * 5
    assert app.request("/login", "POST", body=b"right").remaining == 3
    assert app.request("/login", "POST", body=b"wrong").remaining == 2
    assert app.statuses(3, "/login", method="POST", body=b"wrong") == [401, 401, 429]
    assert app.statuses(1, "/login", method="POST", body=b"right") == [429]


@routed
def test_custom_route_denial(serve: Serve) -> None:
    app = serve(limits="1/minute", route={"on_denied": lambda request, decision: Denial(503, b"busy", "text/plain")})
    app.request("/limited")
    denied = app.request("/limited")
    assert (denied.status, denied.body, denied.headers["content-type"]) == (503, b"busy", "text/plain")
    assert denied.headers["retry-after"] == "60"


@routed
def test_route_options(serve: Serve) -> None:
    cost = {"cost": lambda request: int(request.headers.get("x-cost", "1")), "exempt": "/item/7"}
    app = serve(limits=THREE, route=cost)
    assert app.statuses(2, "/limited", headers={"X-Cost": "3"}) == [200, 429]
    assert app.statuses(5, "/item/7") == [200] * 5
    assert app.statuses(1, "/item/8", headers={"X-Cost": "4"}) == [429]
    dry = serve(limits="1/minute", route={"dry_run": True})
    assert dry.statuses(4, "/limited") == [200] * 4


@routed
def test_route_limits_by_plan_and_callable(serve: Serve) -> None:
    app = serve(plans={"gold": "2/minute"}, limits="gold")
    assert app.statuses(3, "/limited") == [200, 200, 429]

    def limits(request: Request) -> str | None:
        return None if request.headers.get("x-staff") else "1/minute"

    app = serve(limits=limits)
    assert app.statuses(2, "/limited") == [200, 429]
    assert app.statuses(2, "/limited", headers={"X-Staff": "yes"}) == [200, 200]


@routed
def test_route_uses_trusted_proxies(serve: Serve) -> None:
    trusted = {"trusted_proxies": ["127.0.0.0/8"]}
    app = serve(middleware={"limits": FIVE, **trusted}, limits=THREE, route=trusted)
    for address in ("203.0.113.9", "203.0.113.10"):
        assert app.statuses(4, "/limited", headers={"X-Forwarded-For": address}) == [200, 200, 200, 429]
    assert app.left(FIVE) == 5


@routed
def test_route_denial_can_be_uncounted_in_middleware(serve: Serve) -> None:
    app = serve(middleware={"limits": FIVE, "when": lambda response: response.status < 400}, limits="1/minute")
    assert app.statuses(4, "/limited") == [200, 429, 429, 429]
    assert app.left(FIVE) == 4


# -- sub-applications -------------------------------------------------------------------------------------------------


def test_mounted_application_is_limited_by_outer_middleware(serve: Serve) -> None:
    app = serve(middleware={"limits": THREE})
    assert app.request("/mounted/hello").body == b"hello"
    assert app.statuses(1) == [200]
    assert app.statuses(2, "/mounted/hello") == [200, 429]


def test_same_limits_around_mounted_application_count_once(serve: Serve) -> None:
    app = serve(middleware={"limits": THREE}, mounted={"limits": THREE})
    response = app.request("/mounted/hello")
    assert (response.status, response.remaining) == (200, 2)
    assert items_of(response.headers["ratelimit"])[THREE]["r"] == 2
    assert response.names.count("ratelimit") == response.names.count("x-ratelimit-limit") == 1
    assert app.statuses(3, "/mounted/hello") == [200, 200, 429]


def test_different_limits_around_mounted_application_all_apply(serve: Serve) -> None:
    app = serve(middleware={"limits": FIVE}, mounted={"limits": THREE})
    response = app.request("/mounted/hello")
    assert {name: item["r"] for name, item in items_of(response.headers["ratelimit"]).items()} == {FIVE: 4, THREE: 2}
    assert response.names.count("ratelimit") == response.names.count("ratelimit-policy") == 1
    assert app.statuses(3, "/mounted/hello") == [200, 200, 429]
    denied = app.request("/mounted/hello")
    assert denied.status == 429
    assert {name: item["r"] for name, item in items_of(denied.headers["ratelimit"]).items()} == {FIVE: 0, THREE: 0}
    assert app.setup.handled == ["/mounted/hello"] * 3


def test_only_mounted_application_is_limited(serve: Serve) -> None:
    app = serve(mounted={"limits": THREE})
    assert app.statuses(4, "/mounted/hello") == [200, 200, 200, 429]
    assert app.statuses(4) == [200] * 4
    app.clock.advance(60)
    assert app.request("/mounted/hello").remaining == 2


# -- later ------------------------------------------------------------------------------------------------------------


def test_failed_login_counts(serve: Serve) -> None:
    app = serve(middleware={"limits": THREE, "when": only_401})
    assert app.statuses(5, "/login", method="POST", body=b"right") == [200] * 5
    assert app.request("/login", "POST", body=b"right").remaining == 3, "the headers show that it did not count"
    wrong = app.request("/login", "POST", body=b"wrong")
    assert (wrong.status, wrong.body, wrong.remaining) == (401, b"no", 2)
    assert app.statuses(3, "/login", method="POST", body=b"wrong") == [401, 401, 429]
    assert app.left(THREE) == 0


def test_custom_denial(serve: Serve) -> None:
    denials: list[tuple[str, str, bool]] = []

    def on_denied(request: Request, decision: Decision) -> Denial | None:
        denials.append((request.path, decision.name, decision.allowed))
        if request.headers.get("x-usual"):
            return None
        return Denial(503, b"busy", "text/plain", (("X-Why", "crowded"),))

    app = serve(middleware={"limits": THREE, "on_denied": on_denied})
    assert app.statuses(3) == [200] * 3
    denied = app.request("/plain")
    assert (denied.status, denied.body, denied.headers["x-why"]) == (503, b"busy", "crowded")
    assert denied.headers["content-type"] == "text/plain"
    assert (denied.remaining, denied.names.count("retry-after")) == (0, 1)
    assert app.request("/plain", headers={"X-Usual": "yes"}).problem()["status"] == 429
    assert denials == [("/plain", THREE, False)] * 2
    head = app.request("/plain", "HEAD")
    assert (head.status, head.body) == (503, b"")


@pytest.mark.parametrize(("wait", "waited"), [(True, 2.0), (False, 0.0)])
def test_allowed_request_waits_for_delay(serve: Serve, wait: bool, waited: float) -> None:
    app = serve(middleware={"limits": LEAKY, "wait": wait})
    before = app.clock.now()
    assert app.statuses(3) == [200] * 3
    assert app.clock.now() - before == waited


@routed
@pytest.mark.parametrize(("wait", "waited"), [(True, 2.0), (False, 0.0)])
def test_allowed_route_request_waits_for_delay(serve: Serve, wait: bool, waited: float) -> None:
    app = serve(limits=LEAKY, route={"wait": wait})
    before = app.clock.now()
    assert app.statuses(3, "/limited") == [200] * 3
    assert app.clock.now() - before == waited
