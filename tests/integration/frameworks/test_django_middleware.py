"""Django's middleware, for sync and async projects: what it counts, whom it frees, and what it answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.http import Http404, HttpResponse, StreamingHttpResponse
from django.test import RequestFactory
from django.test.utils import override_settings
from django.urls import include, path, re_path
from django.views import View

from crestgate import AsyncLimiter, Limiter
from crestgate.errors import RateLimitExceeded
from crestgate.integrations import Denial, HeaderStyle
from crestgate.integrations.asgi import RateLimitMiddleware as AsgiMiddleware
from crestgate.integrations.django import RateLimitMiddleware, exempt, exempt_views, limit
from crestgate.integrations.wsgi import RateLimitMiddleware as WsgiMiddleware
from crestgate.testing import FakeClock
from integration.frameworks.apps.django_project import MIDDLEWARE, asgi_application, wsgi_application
from integration.frameworks.django_sites import KINDS, Site, limiter, remaining, view_of

both = pytest.mark.parametrize("kind", KINDS)


def text(kind: str, body: str = "yes", **more: Any) -> Any:
    return view_of(kind, lambda request, *args, **parameters: HttpResponse(body, **more))


@both
def test_unknown_urls_are_counted(kind: str) -> None:
    with Site(kind, [path("a", text(kind))], {"LIMITER": limiter(), "LIMITS": "2/minute"}) as site:
        assert site.statuses("/a", "/nowhere", "/a", "/nowhere") == [200, 404, 429, 429]


@both
def test_denial_is_problem_document_with_headers(kind: str) -> None:
    with Site(kind, [path("a", text(kind))], {"LIMITER": limiter(), "LIMITS": "1/minute"}) as site:
        site.get("/a")
        denied = site.get("/a")
    assert denied.status_code == 429
    assert denied.headers["content-type"] == "application/problem+json"
    assert denied.json()["violated-policies"] == ["1/minute"]
    assert denied.headers["retry-after"] == "60"
    assert denied.headers["ratelimit"] == '"1/minute";r=0;t=60'


@both
def test_denied_head_has_no_body(kind: str) -> None:
    with Site(kind, [path("a", text(kind))], {"LIMITER": limiter(), "LIMITS": "1/minute"}) as site:
        site.request("HEAD", "/a")
        denied = site.request("HEAD", "/a")
    assert (denied.status_code, denied.content) == (429, b"")
    assert int(denied.headers["content-length"]) > 0


@both
@pytest.mark.parametrize("made", [Limiter, AsyncLimiter])
def test_sync_and_async_limiters_work_in_both_servers(kind: str, made: Any) -> None:
    with Site(kind, [path("a", text(kind))], {"LIMITER": made("memory://"), "LIMITS": "2/hour"}) as site:
        assert site.statuses("/a", "/a", "/a") == [200, 200, 429]


def test_sync_and_async_projects_share_counters() -> None:
    crestgate = {"LIMITER": limiter(), "LIMITS": "3/minute"}
    with (
        Site("wsgi", [path("a", text("wsgi"))], crestgate) as one,
        Site("asgi", [path("a", text("asgi"))], crestgate) as two,
    ):
        assert one.statuses("/a", "/a") == [200, 200]
        assert two.statuses("/a", "/a") == [200, 429]


def test_sync_and_async_views_work_in_both_servers() -> None:
    crestgate = {"LIMITER": limiter(), "LIMITS": "3/minute"}
    with (
        Site("wsgi", [path("a", text("asgi"))], crestgate) as one,
        Site("asgi", [path("a", text("wsgi"))], crestgate) as two,
    ):
        assert one.statuses("/a", "/a") == [200, 200]
        assert two.statuses("/a", "/a") == [200, 429]


@both
def test_exempt_view_is_not_counted(kind: str) -> None:
    routes = [path("free", exempt(text(kind))), path("item/<int:id>", text(kind))]
    with Site(kind, routes, {"LIMITER": limiter(), "LIMITS": "1/minute"}) as site:
        free = site.get("/free")
        assert "ratelimit" not in free.headers
        assert site.statuses("/free", "/item/1", "/free", "/item/2", "/free") == [200, 200, 200, 429, 200]


def test_exempt_view_is_exempt_from_first_request(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "urls_of_a_fresh_process.py").write_text(
        "from django.urls import path\n"
        "from crestgate.integrations.django import exempt\n"
        "urlpatterns = [path('free', exempt(lambda request: None))]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(exempt_views, "_used", set())
    with override_settings(CRESTGATE={"LIMITER": limiter(), "LIMITS": "2/minute"}):
        layer = RateLimitMiddleware(lambda request: HttpResponse("yes"))
    request = RequestFactory().get("/free")
    request.urlconf = "urls_of_a_fresh_process"
    assert "RateLimit" not in layer(request)


@both
def test_same_view_exempt_in_one_route_only(kind: str) -> None:
    view = text(kind)
    routes = [path("free", exempt(view)), path("paid", view)]
    with Site(kind, routes, {"LIMITER": limiter(), "LIMITS": "1/minute"}) as site:
        assert site.statuses("/free", "/paid", "/paid") == [200, 200, 429]


@both
def test_exempt_class_stays_exempt_under_other_decorators(kind: str) -> None:
    @exempt
    class Free(View):  # type: ignore[misc] # Django has no types
        get = text(kind)

    assert Free.as_view().crestgate_exempt
    routes = [path("free", Free.as_view()), path("paid", text(kind))]
    with Site(kind, routes, {"LIMITER": limiter(), "LIMITS": "1/minute"}) as site:
        assert site.statuses("/free", "/paid", "/free", "/paid") == [200, 200, 200, 429]


@both
def test_exempt_view_keeps_its_own_limits(kind: str) -> None:
    shared = limiter()
    routes = [path("own", exempt(limit("2/minute", limiter=shared)(text(kind))))]
    with Site(kind, routes, {"LIMITER": shared, "LIMITS": "1/minute"}) as site:
        own = site.get("/own")
        assert own.headers["ratelimit-policy"] == '"2/minute";q=2;w=60'
        assert site.statuses("/own", "/own") == [200, 429]


@both
def test_route_key_is_shared_by_paths_of_one_template(kind: str) -> None:
    inner = [path("item/<int:id>/", text(kind)), re_path(r"^year/(?P<year>[0-9]{4})/$", text(kind))]
    routes = [path("shop/", include(inner))]
    with Site(kind, routes, {"LIMITER": limiter(), "LIMITS": "1/minute", "KEY": "route"}) as site:
        assert site.statuses("/shop/item/1/", "/shop/item/2/") == [200, 429]
        assert site.statuses("/shop/year/2001/", "/shop/year/2002/") == [200, 429]


@both
def test_middleware_and_view_write_headers_once(kind: str) -> None:
    shared = limiter()
    routes = [path("a", limit("3/minute", limiter=shared)(text(kind)))]
    with Site(kind, routes, {"LIMITER": shared, "LIMITS": "9/minute"}) as site:
        response = site.get("/a")
    assert response.headers["ratelimit-policy"] == '"9/minute";q=9;w=60, "3/minute";q=3;w=60'
    assert remaining(response) == [8, 2]
    assert len(response.headers.get_list("ratelimit")) == 1


@both
def test_outermost_layer_selects_headers(kind: str) -> None:
    shared = limiter()
    routes = [path("a", limit("3/minute", limiter=shared, headers=True)(text(kind)))]
    with Site(
        kind, routes, {"LIMITER": shared, "LIMITS": "9/minute", "HEADERS": HeaderStyle(x_ratelimit=False)}
    ) as site:
        response = site.get("/a")
    assert remaining(response) == [8, 2]
    assert "x-ratelimit-limit" not in response.headers


@both
def test_middleware_mounted_twice_counts_once(kind: str) -> None:
    crestgate = {"LIMITER": limiter(), "LIMITS": "5/minute"}
    with Site(kind, [path("a", text(kind))], crestgate, around=[MIDDLEWARE]) as site:
        assert remaining(site.get("/a")) == [4]


@both
def test_outer_asgi_middleware_and_django_middleware_count_once(kind: str) -> None:
    shared, routes = limiter(), [path("a", text(kind))]
    crestgate = {"LIMITER": shared, "LIMITS": ["5/minute", "9/hour"]}
    if kind == "wsgi":
        inner = wsgi_application(routes, crestgate)
        wsgi = httpx.WSGITransport(app=WsgiMiddleware(inner, shared, "5/minute"))
        with httpx.Client(transport=wsgi, base_url="http://site") as client:
            response = client.get("/a")
    else:
        asgi = httpx.ASGITransport(app=AsgiMiddleware(asgi_application(routes, crestgate), shared, "5/minute"))

        async def ask() -> httpx.Response:
            async with httpx.AsyncClient(transport=asgi, base_url="http://site") as client:
                return await client.get("/a")

        response = asyncio.run(ask())
    assert remaining(response) == [4, 8]
    assert len(response.headers.get_list("ratelimit")) == 1


@both
def test_rate_limit_exceeded_in_view_is_a_denial(kind: str) -> None:
    shared = limiter()

    def guarded(request: Any) -> Any:
        decision = shared.check("mail:42", "1/hour")
        if not decision.allowed:
            raise RateLimitExceeded(decision)
        return HttpResponse("sent")

    with Site(kind, [path("a", view_of(kind, guarded))], {"LIMITER": shared, "LIMITS": "9/minute"}) as site:
        assert site.get("/a").text == "sent"
        denied = site.get("/a")
    assert (denied.status_code, denied.headers["retry-after"]) == (429, "3600")
    assert denied.headers["ratelimit"] == '"9/minute";r=7;t=14, "1/hour";r=0;t=3600'
    assert denied.json()["violated-policies"] == ["1/hour"]


@both
def test_middleware_without_limits_handles_view_limits(kind: str) -> None:
    shared = limiter()

    def refuse(request: Any) -> Any:
        raise RateLimitExceeded(shared.check("a", "1/hour", cost=2))

    views = {
        "free": text(kind),
        "limited": limit("2/minute", limiter=shared)(text(kind)),
        "raises": view_of(kind, refuse),
    }
    with Site(kind, [path(name, view) for name, view in views.items()], {"LIMITER": shared}) as site:
        assert "ratelimit" not in site.get("/free").headers
        assert remaining(site.get("/limited")) == [1]
        assert site.statuses("/raises", "/free", "/nowhere") == [429, 200, 404]


Shape = Callable[[Any, Any], Any]


@both
@pytest.mark.parametrize(
    ("shape", "status", "body"),
    [
        (lambda request, decision: None, 429, None),
        (lambda request, decision: Denial(503, b"later", "text/plain", (("X-Why", "busy"),)), 503, "later"),
        (
            lambda request, decision: HttpResponse(f"{request.path} {request.META['REQUEST_METHOD']}", status=420),
            420,
            "/a GET",
        ),
    ],
)
def test_custom_denial(kind: str, shape: Shape, status: int, body: str | None) -> None:
    crestgate = {"LIMITER": limiter(), "LIMITS": "1/minute", "ON_DENIED": shape}
    with Site(kind, [path("a", text(kind))], crestgate) as site:
        site.get("/a")
        denied = site.get("/a")
    assert denied.status_code == status
    assert body is None or denied.text == body
    assert denied.headers["retry-after"] == "60"


@both
def test_key_cost_and_denial_coroutines(kind: str) -> None:
    async def key(request: Any) -> str:
        return str(request.headers["x-tenant"])

    class Cost:
        async def __call__(self) -> int:
            return 2

    async def shape(request: Any, decision: Any) -> Any:
        return HttpResponse("denied", status=429)

    def refuse(request: Any) -> Any:
        raise RateLimitExceeded(shared.check("x", "1/hour", cost=2))

    shared = limiter()
    crestgate = {"LIMITER": shared, "LIMITS": "4/minute", "KEY": key, "COST": Cost(), "ON_DENIED": shape}
    with Site(kind, [path("a", text(kind)), path("raises", view_of(kind, refuse))], crestgate) as site:
        one = [site.get("/a", headers={"X-Tenant": "one"}) for _ in range(3)]
        raised = site.get("/raises", headers={"X-Tenant": "two"})
    assert [response.status_code for response in one] == [200, 200, 429]
    assert (one[2].text, raised.text, raised.status_code) == ("denied", "denied", 429)


@both
def test_when_selects_responses_that_count(kind: str) -> None:
    def answer(request: Any) -> Any:
        if "raise" in request.GET:
            raise Http404
        return HttpResponse(status=int(request.GET["status"]))

    crestgate = {
        "LIMITER": limiter(),
        "LIMITS": "2/minute",
        "WHEN": lambda response: response.status in (401, 404, 500),
    }
    with Site(kind, [path("a", view_of(kind, answer))], crestgate) as site:
        responses = [
            site.get(f"/a?{query}") for query in ("status=200", "status=401", "status=200", "raise", "status=200")
        ]
    assert [response.status_code for response in responses] == [200, 401, 200, 404, 429]
    assert [remaining(response) for response in responses[:4]] == [[2], [1], [1], [0]]


@both
def test_view_exception_passes_through_with_headers(kind: str) -> None:
    def boom(request: Any) -> Any:
        raise RuntimeError("boom")

    crestgate = {"LIMITER": limiter(), "LIMITS": "2/minute", "WHEN": lambda response: response.status != 500}
    with Site(kind, [path("a", view_of(kind, boom))], crestgate) as site:
        response = site.get("/a")
    assert (response.status_code, remaining(response)) == (500, [2])


def test_streaming_response_is_unchanged() -> None:
    made: list[Any] = []

    def stream(request: Any) -> Any:
        made.append(StreamingHttpResponse([b"first", b"second"]))
        return made[-1]

    with override_settings(CRESTGATE={"LIMITER": limiter(), "LIMITS": "2/minute"}):
        layer = RateLimitMiddleware(stream)
    response = layer(RequestFactory().get("/a"))
    assert response is made[0]
    assert (response["RateLimit"], b"".join(response)) == ('"2/minute";r=1;t=30', b"firstsecond")


@both
def test_only_configured_proxies_are_trusted(kind: str) -> None:
    crestgate = {"LIMITER": limiter(), "LIMITS": "1/minute", "TRUSTED_PROXIES": ["127.0.0.1"]}
    with Site(kind, [path("a", text(kind))], crestgate) as site:
        responses = [
            site.get("/a", headers={"X-Forwarded-For": client}) for client in ("192.0.2.1", "192.0.2.2", "192.0.2.1")
        ]
    assert [response.status_code for response in responses] == [200, 200, 429]


@both
def test_headers_can_be_disabled(kind: str) -> None:
    crestgate = {"LIMITER": limiter(), "LIMITS": "1/minute", "HEADERS": HeaderStyle(ratelimit=False)}
    with Site(kind, [path("a", text(kind))], crestgate) as site:
        response = site.get("/a")
    assert "ratelimit" not in response.headers
    assert response.headers["x-ratelimit-remaining"] == "0"


@both
def test_dry_run_denial_is_handled(kind: str) -> None:
    crestgate = {"LIMITER": limiter(), "LIMITS": "1/minute", "DRY_RUN": True}
    with Site(kind, [path("a", text(kind))], crestgate) as site:
        assert site.statuses("/a", "/a") == [200, 200]


@both
@pytest.mark.parametrize("waits", [True, False])
def test_leaky_bucket_delays_requests_unless_disabled(kind: str, waits: bool) -> None:
    clock = FakeClock(1_700_000_000)
    shared = Limiter("memory://", clock=clock)
    crestgate = {"LIMITER": shared, "LIMITS": "2/minute using leaky_bucket", "WAIT": waits}
    with Site(kind, [path("a", text(kind))], crestgate) as site:
        assert site.statuses("/a", "/a") == [200, 200]
    assert clock.now() - 1_700_000_000 == (30 if waits else 0)
