"""The dashboard as an ASGI application. The router has checked `Host` and cross-site headers, and read the body.

Callers are authenticated here, by their session: the cookie is worth nothing anywhere else, so that no web page can use
the API in the name of who has logged in.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from crestgate.errors import CrestgateError
from crestgate.http.problem import problem_of
from crestgate.service.admin.context import AdminContext
from crestgate.service.admin.errors import UnhandledErrors, problem_response
from crestgate.service.admin.head import HeadAsGet
from crestgate.service.auth.guard import Guard
from crestgate.service.auth.sessions import Sessions
from crestgate.service.checks.service import CheckService
from crestgate.service.dashboard.events import EventStreams
from crestgate.service.dashboard.live import LiveFeed
from crestgate.service.dashboard.pages import audit, explain, login, overview, rules, subjects, system, what_if
from crestgate.service.dashboard.rendering import render
from crestgate.service.dashboard.site import Site
from crestgate.service.dependencies import Dependencies
from crestgate.service.errors import ApiError
from crestgate.service.observability.health import Health

__all__ = ["DASHBOARD_PATHS", "create_dashboard"]

PAGES = (login, overview, rules, subjects, explain, what_if, audit, system)
ROUTES = [route for module in PAGES for route in module.ROUTES]
DASHBOARD_PATHS: tuple[str, ...] = tuple(
    {f"{prefix}/" if more else prefix: None for prefix, more, _ in (route.path.partition("/{") for route in ROUTES)}
)
"""The paths of all pages; those with parameters up to the first of them, and with a slash."""


def create_dashboard(
    dependencies: Dependencies,
    guard: Guard,
    sessions: Sessions,
    checks: CheckService,
    health: Health,
    now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
) -> Starlette:
    """The application of one worker."""
    feed = LiveFeed(dependencies.worker_snapshots, dependencies.limiter, health, now_us)
    streams = EventStreams(feed, dependencies.settings.server.workers)
    app = Starlette(
        routes=ROUTES,
        exception_handlers={ApiError: _error, CrestgateError: _error, HTTPException: _error},
    )
    app.router.redirect_slashes = False
    app.state.site = Site(AdminContext(dependencies, now_us), guard, sessions, checks, feed, streams)
    app.state.paths = frozenset((*DASHBOARD_PATHS, "/docs"))
    app.add_middleware(UnhandledErrors)
    app.add_middleware(HeadAsGet)
    return app


async def _error(request: Request, error: Exception) -> Response:
    """A page for a person, a problem document for a program."""
    status, detail, members, headers = _described(request, error)
    if "text/html" not in request.headers.get("accept", ""):
        return problem_response(status, detail, members, headers)
    response = render(request, "error.html", status, code=status, detail=detail)
    response.headers.update(headers)
    return response


def _described(request: Request, error: Exception) -> tuple[int, str, dict[str, object], dict[str, str]]:
    if isinstance(error, ApiError):
        headers = {name.decode(): value.decode() for name, value in error.headers}
        return error.status, error.detail, error.members, headers
    if isinstance(error, HTTPException):
        if error.status_code == 404:
            return 404, f"no such path: {request.url.path[:100]}", {}, {}
        return error.status_code, error.detail, {}, dict(error.headers or {})
    status, detail, members = problem_of(error)
    return status, detail, members, {}
