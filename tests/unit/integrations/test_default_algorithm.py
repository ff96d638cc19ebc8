"""The default algorithm and the reset of a whole application: set in one place, for every limit that names none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpResponse
from django.test import RequestFactory
from django.test.utils import override_settings
from fastapi import Depends, FastAPI
from fastapi.testclient import TestClient

from crestgate import ConfigError, Limit, Limiter
from crestgate.http.header_options import HeaderStyle
from crestgate.integrations.asgi import RateLimitMiddleware as AsgiMiddleware
from crestgate.integrations.default_algorithm import DefaultAlgorithm, algorithm_named
from crestgate.integrations.django import RateLimitMiddleware as DjangoMiddleware
from crestgate.integrations.django import limit as django_limit
from crestgate.integrations.fastapi import limit
from crestgate.integrations.wsgi import RateLimitMiddleware as WsgiMiddleware
from crestgate.testing import FakeClock
from integration.frameworks.apps.django_project import configure
from unit.integrations.flask_sites import get, site

configure()
NOW = 1_700_000_000
WINDOW = "5/minute using fixed_window"


def limiter_now() -> Limiter:
    return Limiter(clock=FakeClock(NOW), plans={"gold": "7/minute"})


def policy(headers: Any) -> list[str]:
    """The names of the limits in a response: canonical notation, with the algorithm."""
    return [item.partition(";")[0].strip().strip('"') for item in headers["ratelimit-policy"].split(", ")]


# -- names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("fixed_window", "fixed_window"),
        ("gcra", "gcra"),
        ("sliding_window", "sliding_window_counter"),
        ("fixed-window", "fixed_window"),
        ("moving-window", "sliding_window_log"),
        ("sliding-window-counter", "sliding_window_counter"),
    ],
)
def test_names_are_ours_or_flask_limiters(given: str, meant: str) -> None:
    assert algorithm_named(given) == meant


@pytest.mark.parametrize("given", ["fixed-windw", "", 5, None])
def test_unknown_name_lists_those_that_there_are(given: object) -> None:
    with pytest.raises(ConfigError, match=r"default_algorithm: unknown algorithm .*fixed_window.*moving-window"):
        algorithm_named(given)


def test_only_limits_that_are_written_as_text_are_changed() -> None:
    default = DefaultAlgorithm("fixed-window", limiter_now().resolver)
    own = Limit(3, 60)
    assert default.apply(own) is own
    assert default.apply("gold") == "gold"
    assert default.apply("5/minute using gcra; 9/day") == (
        Limit(5, 60, algorithm="gcra"),
        Limit(9, 86400, algorithm="fixed_window"),
    )
    assert default.apply(iter(["5/minute", "gold", own])) == [Limit(5, 60, algorithm="fixed_window"), "gold", own]


def test_text_is_parsed_once() -> None:
    default = DefaultAlgorithm("gcra", limiter_now().resolver)
    assert default.apply("5/minute") is default.apply("5/minute")


# -- Flask -------------------------------------------------------------------------------------------------------------


def flask_names(app: Any, path: str) -> list[str]:
    return policy(get(app, path).headers)


@pytest.mark.parametrize("options", [{"strategy": "fixed-window"}, {"default_algorithm": "fixed_window"}])
def test_flask_strategy_applies_to_every_limit(options: dict[str, str]) -> None:
    app, gate = site(limiter=limiter_now(), default_limits=["5/minute"], **options)
    app.add_url_rule("/default", "default", lambda: "x")
    app.add_url_rule("/own", "own", gate.limit("6/minute; 9/day using gcra")(lambda: "x"))
    app.add_url_rule("/dynamic", "dynamic", gate.limit(lambda: ["8/minute", "gold"])(lambda: "x"))
    app.add_url_rule("/other", "other", gate.limit("6/minute", default_algorithm="gcra")(lambda: "x"))
    assert flask_names(app, "/default") == [WINDOW]
    assert flask_names(app, "/own") == ["6/minute using fixed_window", "9/day using gcra"]
    assert flask_names(app, "/dynamic") == ["8/minute using fixed_window", "gold"]
    assert flask_names(app, "/other") == ["6/minute using gcra"]


def test_flask_strategy_applies_to_application_limits() -> None:
    app, _ = site(limiter=limiter_now(), application_limits="5/minute", strategy="moving-window")
    assert flask_names(app, "/anything") == ["5/minute using sliding_window_log"]


def test_flask_settings_set_algorithm_and_reset() -> None:
    from flask import Flask

    from crestgate.integrations.flask import Crestgate

    app = Flask("site", root_path="/nowhere", static_folder=None)
    app.config.update(CRESTGATE_DEFAULT_ALGORITHM="fixed-window", CRESTGATE_RESET="epoch")
    Crestgate(app, limiter=limiter_now(), default_limits="5/minute")
    app.add_url_rule("/", "root", lambda: "x")
    headers = get(app, "/").headers
    assert policy(headers) == [WINDOW]
    assert int(headers["x-ratelimit-reset"]) == NOW - NOW % 60 + 60, "the end of the window"


def test_flask_takes_one_name_of_the_option() -> None:
    with pytest.raises(ConfigError, match="strategy and default_algorithm are the same"):
        site(strategy="fixed-window", default_algorithm="gcra")
    with pytest.raises(ConfigError, match="default_algorithm: unknown algorithm 'moving'"):
        site(strategy="moving")


# -- ASGI and FastAPI --------------------------------------------------------------------------------------------------


@pytest.fixture
def client() -> Callable[..., TestClient]:
    def build(**options: Any) -> TestClient:
        app = FastAPI()

        @app.get("/dependency", dependencies=[Depends(limit("6/minute"))])
        async def dependency() -> str:
            return "x"

        @app.get("/decorator")
        @limit(lambda: "8/minute")
        async def decorator() -> str:
            return "x"

        @app.get("/own")
        @limit("6/minute", default_algorithm="gcra")
        async def own() -> str:
            return "x"

        app.add_middleware(AsgiMiddleware, limiter=limiter_now(), **options)
        return TestClient(app)

    return build


def test_fastapi_middleware_sets_the_algorithm_of_all_routes(client: Callable[..., TestClient]) -> None:
    app = client(default_algorithm="fixed_window")
    assert policy(app.get("/dependency").headers) == ["6/minute using fixed_window"]
    assert policy(app.get("/decorator").headers) == ["8/minute using fixed_window"]
    assert policy(app.get("/own").headers) == ["6/minute using gcra"]


def test_asgi_middleware_applies_it_to_its_own_limits(client: Callable[..., TestClient]) -> None:
    app = client(limits="5/minute", default_algorithm="fixed-window", reset="epoch")
    headers = app.get("/nothing").headers
    assert policy(headers) == [WINDOW]
    assert int(headers["x-ratelimit-reset"]) == NOW - NOW % 60 + 60


def test_fastapi_middleware_sets_the_reset_of_all_routes(client: Callable[..., TestClient]) -> None:
    assert int(client(reset="epoch").get("/dependency").headers["x-ratelimit-reset"]) == NOW + 10
    assert int(client().get("/dependency").headers["x-ratelimit-reset"]) == 10
    style = HeaderStyle(ratelimit=False)
    headers = client(headers=style, reset="epoch").get("/dependency").headers
    assert "ratelimit" not in headers
    assert int(headers["x-ratelimit-reset"]) == NOW + 10


def test_invalid_values_are_reported_at_start(client: Callable[..., TestClient]) -> None:
    with pytest.raises(ConfigError, match="unknown algorithm 'fixed'"), client(default_algorithm="fixed"):
        pass
    with pytest.raises(ConfigError, match="reset must be one of seconds, epoch"), client(reset="unix"):
        pass


def test_burst_needs_an_algorithm_that_has_one(client: Callable[..., TestClient]) -> None:
    with pytest.raises(ConfigError, match="fixed_window has no burst"):
        AsgiMiddleware(object(), limiter_now(), "5/minute burst 9", default_algorithm="fixed_window")  # type: ignore[arg-type]


# -- WSGI --------------------------------------------------------------------------------------------------------------


def test_wsgi_middleware_without_limits_refuses_the_option() -> None:
    with pytest.raises(ConfigError, match="default_algorithm= is for limits, and the middleware has none"):
        WsgiMiddleware(lambda environ, start: [], limiter_now(), default_algorithm="gcra")
    layer = WsgiMiddleware(lambda environ, start: [], limiter_now(), "5/minute", default_algorithm="gcra").layer
    assert layer.default_algorithm == "gcra"


# -- Django ------------------------------------------------------------------------------------------------------------


def django_headers(crestgate: dict[str, Any], view: Any) -> Any:
    with override_settings(CRESTGATE=crestgate):
        return DjangoMiddleware(view)(RequestFactory().get("/"))


def plain(_: Any) -> HttpResponse:
    return HttpResponse("x")


def test_django_settings_set_the_algorithm_of_middleware_and_views() -> None:
    given = {"LIMITER": limiter_now(), "DEFAULT_ALGORITHM": "fixed-window", "RESET": "epoch"}
    headers = django_headers({**given, "LIMITS": "5/minute"}, plain)
    assert policy(headers) == [WINDOW]
    assert int(headers["x-ratelimit-reset"]) == NOW - NOW % 60 + 60
    headers = django_headers(given, django_limit("6/minute", scope="a")(plain))
    assert policy(headers) == ["6/minute using fixed_window"]
    headers = django_headers(given, django_limit(lambda request: "8/minute", scope="b")(plain))
    assert policy(headers) == ["8/minute using fixed_window"]


def test_django_settings_are_checked_at_start() -> None:
    with pytest.raises(ImproperlyConfigured, match="unknown algorithm 'moving'"):
        django_headers({"LIMITS": "5/minute", "DEFAULT_ALGORITHM": "moving"}, plain)
    with pytest.raises(ImproperlyConfigured, match="'STRATEGY': did you mean 'DEFAULT_ALGORITHM'"):
        django_headers({"LIMITS": "5/minute", "STRATEGY": "fixed-window"}, plain)
