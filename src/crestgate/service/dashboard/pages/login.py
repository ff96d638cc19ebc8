"""Log-in and log-out, the colour scheme, static files and live events."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from crestgate.service.auth.guard import Refusal
from crestgate.service.auth.sessions import COOKIE, SESSION_SECONDS
from crestgate.service.dashboard.forms import local_path, read_form
from crestgate.service.dashboard.rendering import SECURITY_HEADERS, STATIC, THEMES, asset, render
from crestgate.service.dashboard.site import Site, call_of, form, page
from crestgate.service.errors import ApiError

__all__ = ["ROUTES"]

YEAR = 365 * 24 * 3600
HEADERS = {**SECURITY_HEADERS, "Cache-Control": f"public, max-age={YEAR}, immutable"}


async def show_login(request: Request) -> Response:
    """`GET /login`."""
    next_path = local_path(request.query_params.get("next", "/"))
    site: Site = request.app.state.site
    if site.session(request) is not None:
        return RedirectResponse(next_path, 303)
    return render(request, "login.html", next_path=next_path, problem="")


async def log_in(request: Request) -> Response:
    """`POST /login`: failed attempts are limited by address, as those of API calls are."""
    site: Site = request.app.state.site
    fields = await read_form(request, None)
    next_path = local_path(fields.get("next", "/"))
    call = call_of(request)
    admitted = site.guard.admit_token(fields.get("key", "").strip(), call.address)
    if isinstance(admitted, Refusal):
        text = "Enter an API key." if not fields.get("key", "").strip() else f"{admitted.detail}."
        response = render(request, "login.html", admitted.status, next_path=next_path, problem=text)
        for name, value in admitted.headers:
            if name != b"www-authenticate":  # the browser would ask for a password
                response.headers[name.decode()] = value.decode()
        return response
    call.caller = admitted
    response = RedirectResponse(next_path, 303)
    response.set_cookie(
        COOKIE,
        site.sessions.issue(admitted),
        max_age=SESSION_SECONDS,
        secure=_is_secure(site, request),
        httponly=True,
        samesite="strict",
    )
    return response


async def log_out(site: Site, request: Request, fields: dict[str, str]) -> Response:
    """`POST /logout`."""
    await asyncio.to_thread(site.sessions.end, request.scope["crestgate.session"], call_of(request).address or "")
    response = RedirectResponse("/login", 303)
    response.delete_cookie(COOKIE, httponly=True, samesite="strict", secure=_is_secure(site, request))
    return response


async def choose_theme(request: Request) -> Response:
    """`POST /theme`: light, dark, or as the system has it."""
    fields = await read_form(request, None)
    theme = fields.get("theme", "auto")
    response = RedirectResponse(local_path(fields.get("next", "/")), 303)
    response.set_cookie("theme", theme if theme in THEMES else "auto", max_age=YEAR, httponly=True, samesite="strict")
    return response


async def static_file(request: Request) -> Response:
    """Style sheet and script: they are public."""
    found = asset(request.path_params["name"])
    if found is None:
        raise ApiError(404, "no such file")
    return Response(found[0], headers=HEADERS, media_type=found[1])


async def events(site: Site, request: Request) -> Response:
    """`GET /dashboard/events`."""
    if call_of(request).scope["method"] == "HEAD":
        return Response(media_type="text/event-stream")  # not a stream that nobody can read
    session = request.scope["crestgate.session"]
    return site.streams.open(session, lambda: site.session(request) is not None)


def _is_secure(site: Site, request: Request) -> bool:
    """Whether the browser uses TLS: ours, or that of a proxy, by the origin that it states."""
    tls = site.context.dependencies.settings.server.tls is not None
    return tls or request.headers.get("origin", "").startswith("https://")


ROUTES = [
    Route("/login", show_login, methods=["GET"]),
    Route("/login", log_in, methods=["POST"]),
    form("/logout", log_out, need="read"),
    Route("/theme", choose_theme, methods=["POST"]),
    Route(f"{STATIC}{{name}}", static_file, methods=["GET"]),
    page("/dashboard/events", events),
]
