"""What Django's applications here have in common: settings, which there are once in a process, and how one is built."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import django
from django.conf import settings
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.test.utils import override_settings
from django.urls import include, path

from integration.frameworks.contract import Setup

__all__ = ["asgi_application", "configure", "limited", "patterns", "urlconf", "written", "wsgi_application"]

MIDDLEWARE = "crestgate.integrations.django.RateLimitMiddleware"


def configure() -> None:
    """Neither a database nor an application of Django's own; in this process for all tests."""
    if not settings.configured:
        settings.configure(
            ALLOWED_HOSTS=["*"],
            INSTALLED_APPS=[],
            LOGGING_CONFIG=None,
            MIDDLEWARE=[],
            ROOT_URLCONF=urlconf([]),
            SECRET_KEY="of no consequence",
        )
        django.setup()
        logging.getLogger("django").setLevel(logging.CRITICAL)  # a log that is captured keeps the requests it tells of


def urlconf(routes: Iterable[Any]) -> ModuleType:
    """A module with these routes, as Django wants one."""
    module = ModuleType("urls")
    vars(module)["urlpatterns"] = list(routes)
    return module


class _Wsgi(WSGIHandler):  # type: ignore[misc] # Django has no types
    urls: ModuleType

    def get_response(self, request: Any) -> Any:
        request.urlconf = self.urls
        return super().get_response(request)


class _Asgi(ASGIHandler):  # type: ignore[misc] # Django has no types
    urls: ModuleType

    async def get_response_async(self, request: Any) -> Any:
        request.urlconf = self.urls
        return await super().get_response_async(request)


def wsgi_application(routes: Iterable[Any], crestgate: dict[str, Any] | None, around: Iterable[str] = ()) -> Any:
    """An application of its own beside others: the middleware is as the settings say while it is built, inside of those
    that are `around` it."""
    return _built(_Wsgi, routes, crestgate, around)


def asgi_application(routes: Iterable[Any], crestgate: dict[str, Any] | None, around: Iterable[str] = ()) -> Any:
    """The same for ASGI."""
    return _built(_Asgi, routes, crestgate, around)


def _built(kind: Any, routes: Iterable[Any], crestgate: dict[str, Any] | None, around: Iterable[str]) -> Any:
    configure()
    own = [] if crestgate is None else [MIDDLEWARE]
    with override_settings(MIDDLEWARE=[*around, *own], CRESTGATE=crestgate or {}):
        handler = kind()
    handler.urls = urlconf(routes)
    return handler


def written(setup: Setup, options: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a middleware as settings have them."""
    return {"LIMITER": setup.limiter, **{name.upper(): value for name, value in options.items()}}


def limited(setup: Setup, view: Any) -> Any:
    """A view with the limits of a route, if it has some."""
    from crestgate.integrations.django import limit

    return view if setup.limits is None else limit(setup.limits, limiter=setup.limiter, **setup.route)(view)


def patterns(setup: Setup, views: dict[str, Any], answering: Callable[..., Any]) -> list[Any]:
    """The routes. `answering` makes a view answer OPTIONS, and refuse methods that it has not."""
    from crestgate.integrations.django import RateLimitMiddleware

    configure()
    routes = []
    for name in ("plain", "stream", "sse", "boom", "slow"):
        routes.append(path(name, answering(setup, views[name], "GET", "HEAD")))
    routes.append(path("upload", answering(setup, views["upload"], "POST")))
    routes.append(path("item/<int:id>", limited(setup, answering(setup, views["item"], "GET", "HEAD"))))
    routes.append(path("limited", limited(setup, answering(setup, views["limited"], "GET", "HEAD"))))
    routes.append(path("own", limited(setup, answering(setup, views["own"], "GET", "HEAD"))))
    routes.append(path("login", limited(setup, answering(setup, views["login"], "POST"))))
    hello = answering(setup, views["hello"], "GET", "HEAD")
    if setup.mounted is not None:
        with override_settings(CRESTGATE=written(setup, setup.mounted)):
            hello = RateLimitMiddleware(hello)
    routes.append(path("mounted/", include([path("hello", hello)])))
    return routes
