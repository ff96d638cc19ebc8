"""The limits of single views in Django: of functions and classes, sync and async, among other decorators."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import iscoroutinefunction
from django.conf.urls.i18n import i18n_patterns
from django.core.exceptions import PermissionDenied
from django.core.signals import got_request_exception
from django.http import HttpResponse
from django.template.response import SimpleTemplateResponse
from django.test import RequestFactory
from django.test.utils import override_settings
from django.urls import include, path, re_path
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from crestgate.errors import ConfigError, RateLimitExceeded
from crestgate.integrations.django import exempt, limit
from integration.frameworks.apps.django_project import configure
from integration.frameworks.django_sites import KINDS, Site, call, limiter, remaining, view_of

configure()
both = pytest.mark.parametrize("kind", KINDS)
requests = RequestFactory()


def text(kind: str, body: str = "yes", **more: Any) -> Any:
    return view_of(kind, lambda request, *args, **parameters: HttpResponse(body, **more))


@both
def test_view_denial_has_headers(kind: str) -> None:
    with Site(kind, [path("a", limit("2/minute", limiter=limiter())(text(kind)))]) as site:
        responses = [site.get("/a") for _ in range(3)]
    assert [response.status_code for response in responses] == [200, 200, 429]
    assert [remaining(response) for response in responses] == [[1], [0], [0]]
    assert responses[2].headers["content-type"] == "application/problem+json"
    assert responses[2].headers["retry-after"] == "30"


@both
def test_paths_of_one_route_share_a_counter(kind: str) -> None:
    limited = limit("1/minute", limiter=limiter())
    inner = [path("item/<int:id>/", limited(text(kind))), re_path(r"^year/([0-9]{4})/$", limited(text(kind)))]
    with Site(kind, [path("a/", include(inner)), path("b/", include(inner))]) as site:
        assert site.statuses("/a/item/1/", "/a/item/2/", "/b/item/1/", "/b/item/2/") == [200, 429, 200, 429]
        assert site.statuses("/a/year/2001/", "/a/year/2002/", "/b/year/2001/") == [200, 429, 200]


@both
def test_scope_is_shared_by_views(kind: str) -> None:
    limited = limit("1/minute", limiter=limiter(), scope="searching")
    with Site(kind, [path("a", limited(text(kind))), path("b", limited(text(kind)))]) as site:
        assert site.statuses("/a", "/b") == [200, 429]


@both
def test_translated_urls_share_a_counter(kind: str) -> None:
    limited = limit("2/minute", limiter=limiter())
    with override_settings(LANGUAGE_CODE="en", LANGUAGES=[("en", "English"), ("de", "German")]):
        around = ["django.middleware.locale.LocaleMiddleware"]
        with Site(kind, i18n_patterns(path("login", limited(text(kind)))), around=around) as site:
            assert site.statuses("/en/login", "/de/login", "/en/login", "/de/login") == [200, 200, 429, 429]


def of_class(kind: str, **names: Any) -> Any:
    return type("Page", (View,), {"get": text_method(kind), "post": text_method(kind), **names})


def text_method(kind: str, name: str = "get") -> Any:
    method = view_of(kind, lambda page, request, *args, **parameters: HttpResponse(request.method))
    method.__name__ = name
    return method


Way = Callable[[Any, str], Any]
VIEW_FORMS: dict[str, Way] = {
    "dispatch": lambda limited, kind: method_decorator(limited, name="dispatch")(of_class(kind)).as_view(),
    "class": lambda limited, kind: limited(of_class(kind)).as_view(),
    "as_view": lambda limited, kind: limited(of_class(kind).as_view()),
    "method": lambda limited, kind: of_class(kind, get=method_decorator(limited)(text_method(kind))).as_view(),
    "plain method": lambda limited, kind: of_class(kind, get=limited(text_method(kind))).as_view(),
    "below": lambda limited, kind: csrf_exempt(limited(text(kind))),
    "above": lambda limited, kind: limited(csrf_exempt(text(kind))),
}


@both
@pytest.mark.parametrize("form", VIEW_FORMS)
def test_decorator_works_on_every_form_of_view(kind: str, form: str) -> None:
    view = VIEW_FORMS[form](limit("2/minute", limiter=limiter()), kind)
    assert iscoroutinefunction(view) == (kind == "asgi")
    with Site(kind, [path("item/<int:id>", view)]) as site:
        assert site.statuses("/item/1", "/item/2", "/item/3") == [200, 200, 429]


@both
@pytest.mark.parametrize("form", VIEW_FORMS)
def test_every_form_of_view_works_in_both_servers(kind: str, form: str) -> None:
    view = VIEW_FORMS[form](limit("2/minute", limiter=limiter()), "asgi" if kind == "wsgi" else "wsgi")
    with Site(kind, [path("item/<int:id>", view)]) as site:
        assert site.statuses("/item/1", "/item/2", "/item/3") == [200, 200, 429]


@both
def test_class_methods_have_separate_counters(kind: str) -> None:
    limited = method_decorator(limit("1/minute", limiter=limiter()))
    page = of_class(kind, get=limited(text_method(kind)), post=limited(text_method(kind, "post")))
    with Site(kind, [path("a", page.as_view())]) as site:
        responses = [site.request(method, "/a").status_code for method in ("GET", "POST", "GET", "POST")]
    assert responses == [200, 200, 429, 429]


@both
def test_limit_on_dispatch_counts_all_methods(kind: str) -> None:
    page = limit("2/minute", limiter=limiter())(of_class(kind))
    with Site(kind, [path("a", page.as_view())]) as site:
        responses = [site.request(method, "/a").status_code for method in ("GET", "PUT", "POST", "OPTIONS")]
    assert responses == [200, 405, 429, 429]


@both
def test_view_keeps_name_and_attributes(kind: str) -> None:
    def named(request: Any) -> Any:
        """What it does."""

    limited = limit("1/minute", limiter=limiter())
    view = limited(csrf_exempt(exempt(named)))
    assert (view.__name__, view.__doc__, view.__wrapped__.__wrapped__.__wrapped__) == ("named", "What it does.", named)
    assert view.csrf_exempt
    assert view.crestgate_exempt
    assert limited(csrf_exempt(of_class(kind).as_view())).view_class
    assert method_decorator([limited, csrf_exempt], name="dispatch")(of_class(kind)).as_view().csrf_exempt


def test_decorator_order_decides_what_is_counted() -> None:
    above = limit("1/minute", limiter=limiter())(require_POST(text("wsgi")))
    below = require_POST(limit("1/minute", limiter=limiter())(text("wsgi")))
    assert [above(requests.get("/")).status_code, above(requests.post("/")).status_code] == [405, 429]
    assert [below(requests.get("/")).status_code, below(requests.post("/")).status_code] == [405, 200]


@both
def test_several_limits_of_view_are_reported_together(kind: str) -> None:
    shared = limiter()
    view = limit("9/hour", limiter=shared)(limit("2/minute", limiter=shared)(text(kind)))
    with Site(kind, [path("a", view)]) as site:
        responses = [site.get("/a") for _ in range(3)]
    assert [response.status_code for response in responses] == [200, 200, 429]
    assert [remaining(response) for response in responses] == [[8, 1], [7, 0], [6, 0]]
    assert len(responses[0].headers.get_list("ratelimit")) == 1


@both
def test_same_limit_twice_counts_once(kind: str) -> None:
    limited = limit("9/hour", limiter=limiter())
    with Site(kind, [path("a", limited(limited(text(kind))))]) as site:
        assert remaining(site.get("/a")) == [8]


def test_nested_view_call_counts_both() -> None:
    limited = limit("1/minute", limiter=limiter())

    @limited
    def inner(request: Any) -> Any:
        return HttpResponse("inner")

    @limited
    def outer(request: Any) -> Any:
        return inner(request)

    with Site("wsgi", [path("outer", outer)]) as site:
        first = site.get("/outer")
        assert (first.text, remaining(first)) == ("inner", [0, 0])
        assert site.get("/outer").status_code == 429


@both
def test_when_selects_view_responses_that_count(kind: str) -> None:
    def log_in(request: Any) -> Any:
        if request.GET["as"] == "wrong":
            return HttpResponse(status=401)
        if request.GET["as"] == "locked":
            raise PermissionDenied
        if request.GET["as"] == "boom":
            raise RuntimeError("boom")
        return HttpResponse("in")

    limited = limit("2/minute", limiter=limiter(), when=lambda response: response.status_code in (401, 403))
    with Site(kind, [path("login", limited(view_of(kind, log_in)))]) as site:
        names = ("right", "wrong", "boom", "right", "locked", "right")
        responses = [site.get(f"/login?as={name}") for name in names]
    assert [response.status_code for response in responses] == [200, 401, 500, 200, 403, 429]
    assert remaining(responses[0]) == [2]
    assert remaining(responses[3]) == [1]


@both
def test_rate_limit_exceeded_in_limited_view(kind: str) -> None:
    shared = limiter()

    def guarded(request: Any) -> Any:
        raise RateLimitExceeded(shared.check("mail", "1/hour", cost=2))

    with Site(kind, [path("a", limit("9/minute", limiter=shared)(view_of(kind, guarded)))]) as site:
        denied = site.get("/a")
    assert denied.status_code == 429
    assert denied.headers["ratelimit-policy"] == '"9/minute";q=9;w=60, "1/hour";q=1;w=3600'


@both
def test_template_response_has_headers(kind: str) -> None:
    def rendered(request: Any) -> Any:
        return SimpleTemplateResponse(Later(), {"name": "you"})

    class Later:
        def render(self, context: Any, request: Any) -> str:
            return f"hello {context['name']}"

    with Site(kind, [path("a", limit("9/minute", limiter=limiter())(view_of(kind, rendered)))]) as site:
        response = site.get("/a")
    assert (response.text, remaining(response)) == ("hello you", [8])


@both
def test_view_returning_none_is_a_django_error(kind: str) -> None:
    view = limit("9/minute", limiter=limiter(), when=lambda response: response.status == 500)(
        view_of(kind, lambda _: None)
    )
    errors: list[BaseException] = []

    def tell(**signal: Any) -> None:
        errors.append(sys.exc_info()[1] or RuntimeError())

    got_request_exception.connect(tell)
    try:
        with Site(kind, [path("a", view)]) as site:
            assert site.get("/a").status_code == 500
    finally:
        got_request_exception.disconnect(tell)
    assert "didn't return an HttpResponse object. It returned None" in str(errors[0])


class Wrapped:
    """A request as Django REST framework hands it to the methods of its views."""

    def __init__(self, request: Any, user: Any) -> None:
        self._request = request
        self.user = user

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)


class User:
    is_authenticated = True

    def __init__(self, pk: int) -> None:
        self.pk = pk


@both
def test_nested_request_has_its_own_user(kind: str) -> None:
    view = limit("1/minute", limiter=limiter(), key="user")(text(kind))
    statuses = [call(view, Wrapped(requests.get("/"), User(pk))).status_code for pk in (1, 2, 1)]
    assert statuses == [200, 200, 429]


def test_nested_request_is_counted() -> None:
    view = limit("9/hour", limiter=limiter())(text("wsgi"))
    request = requests.get("/")
    assert view(request)["RateLimit"] == '"9/hour";r=8;t=400'
    assert view(Wrapped(request, None))["RateLimit"] == '"9/hour";r=8;t=400'
    assert view(requests.get("/"))["RateLimit"] == '"9/hour";r=7;t=800'


@both
def test_callable_limits_and_costs(kind: str) -> None:
    limited = limit(
        lambda request: {"gold": "9/minute", "none": None}.get(request.GET["plan"], "3/minute"),
        limiter=limiter(),
        cost=lambda request: len(request.GET["for"]),
    )
    with Site(kind, [path("a", limited(text(kind)))]) as site:
        assert remaining(site.get("/a?plan=gold&for=abc")) == [6]
        assert remaining(site.get("/a?plan=other&for=ab")) == [1]
        assert "ratelimit" not in site.get("/a?plan=none&for=a").headers


@both
def test_settings_are_defaults_of_views(kind: str) -> None:
    shared = limiter(plans={"browsing": "3/minute"})
    crestgate = {"LIMITER": shared, "LIMITS": "1/minute", "KEY": "header:X-Tenant", "COST": 2, "METHODS": ["PUT"]}
    with override_settings(CRESTGATE=crestgate), Site(kind, [path("a", limit("browsing")(text(kind)))]) as site:
        one = site.get("/a", headers={"X-Tenant": "one"})
        assert remaining(one) == [2]
        assert remaining(site.get("/a", headers={"X-Tenant": "two"})) == [2]
        assert remaining(site.get("/a", headers={"X-Tenant": "one"})) == [1]


def test_override_settings_takes_effect() -> None:
    view = limit("1/minute")(text("wsgi"))
    for _ in range(2):
        with override_settings(CRESTGATE={"LIMITER": limiter()}):
            assert [view(requests.get("/")).status_code for _ in range(2)] == [200, 429]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: limit("5/minut"), "5/minut"),
        (lambda: limit("5/minute", key="usr"), "'usr'"),
        (lambda: limit(), "needs limits"),
        (lambda: limit("5/minute", methods=[""]), "methods"),
    ],
)
def test_invalid_decorator_arguments_are_errors(wrong: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        wrong()


def test_views_can_be_imported_without_store() -> None:
    limit("5/minute", limiter="redis://127.0.0.1:1")
    with override_settings(CRESTGATE={"LIMITER": "redis://127.0.0.1:1"}):
        view = limit("5/minute")(text("wsgi"))
        assert view(requests.get("/")).status_code == 200


def test_limit_without_parentheses_is_an_error() -> None:
    view: Any = limit(text("wsgi"), limiter=limiter())
    with pytest.raises(TypeError, match=r'@limit\("5/minute"\)'):
        view(requests.get("/"))


def test_non_view_is_an_error() -> None:
    view = limit("5/minute", limiter=limiter())(text("wsgi"))
    with pytest.raises(TypeError, match="without a request"):
        view("nothing")
    with pytest.raises(TypeError, match="exempt is put on a view"):
        exempt("shop.views.item")  # type: ignore[type-var]


def test_request_keyword_argument_is_found() -> None:
    view: Any = limit("5/minute", limiter=limiter())(text("wsgi"))
    assert view(request=requests.get("/"))["RateLimit"] == '"5/minute";r=4;t=12'
