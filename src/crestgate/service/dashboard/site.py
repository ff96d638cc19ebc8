"""What all pages share: the worker's dependencies, the session of a request, and the way from a handler to a route."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from crestgate.rules.editor import Editor
from crestgate.service.admin.context import AdminContext
from crestgate.service.auth.guard import Guard
from crestgate.service.auth.keys import Scope
from crestgate.service.auth.sessions import COOKIE, Session, Sessions
from crestgate.service.checks.service import CheckService
from crestgate.service.context import CallContext
from crestgate.service.dashboard.events import EventStreams
from crestgate.service.dashboard.forms import read_form
from crestgate.service.dashboard.live import LiveFeed
from crestgate.service.dashboard.rendering import render
from crestgate.service.errors import ApiError

__all__ = ["FormHandler", "PageHandler", "Site", "call_of", "done", "form", "page", "show"]


@dataclass(frozen=True, slots=True)
class Site:
    """The dependencies of the pages of one worker."""

    context: AdminContext
    guard: Guard
    sessions: Sessions
    checks: CheckService
    feed: LiveFeed
    streams: EventStreams

    def session(self, request: Request) -> Session | None:
        return self.sessions.find(request.cookies.get(COOKIE, ""))

    def editor(self, request: Request) -> Editor:
        """Writes in the name of who has logged in, as the admin API does. It waits, so call it in a thread."""
        return self.context.dependencies.editor(call_of(request).actor)

    def now_us(self) -> int:
        return self.context.now_us()


PageHandler = Callable[[Site, Request], Awaitable[Response]]
FormHandler = Callable[[Site, Request, dict[str, str]], Awaitable[Response]]


def call_of(request: Request) -> CallContext:
    call: CallContext = request.scope["crestgate"]
    return call


def page(path: str, handler: PageHandler) -> Route:
    """A page for whoever may read; others are sent to the log-in."""

    async def endpoint(request: Request) -> Response:
        request.scope["route"] = route  # the log has its template, without names
        site: Site = request.app.state.site
        session = site.session(request)
        if session is None:
            if request.headers.get("accept", "").startswith("text/event-stream"):
                raise ApiError(401, "log in first")
            query = f"?{request.url.query}" if request.url.query else ""
            target = quote(f"{request.url.path}{query}", safe="/?=&")
            return RedirectResponse(f"/login?next={quote(target, safe='/')}" if target != "/" else "/login", 303)
        _enter(site, request, session, "read")
        return await handler(site, request)

    route = Route(path, endpoint, methods=["GET"])
    return route


def form(path: str, handler: FormHandler, need: Scope = "write") -> Route:
    """The handler of a form, which needs the scope `write` where it changes something."""

    async def endpoint(request: Request) -> Response:
        request.scope["route"] = route
        site: Site = request.app.state.site
        session = site.session(request)
        if session is None:
            raise ApiError(401, "your session has ended: log in, and send the form again")
        fields = await read_form(request, session)
        _enter(site, request, session, need)
        return await handler(site, request, fields)

    route = Route(path, endpoint, methods=["POST"])
    return route


async def show(site: Site, request: Request, template: str, status: int = 200, **values: Any) -> Response:
    """A page, with the banner that tells while the failure policy decides. It is rendered in a thread: with hundreds of
    rows, or its template not compiled yet, it would hold up checks."""
    settings = site.context.dependencies.settings
    store = await site.feed.store_state()
    return await asyncio.to_thread(
        render,
        request,
        template,
        status,
        store=store,
        failure_policy=settings.on_store_error,
        now_us=site.now_us(),
        may_write=request.scope["crestgate.session"].caller.scope == "write",
        done=request.query_params.get("done", ""),
        **values,
    )


def done(path: str, what: str) -> Response:
    """After a change: the page that shows it. `what` is one of the words in templates/base.html."""
    return RedirectResponse(f"{path}{'&' if '?' in path else '?'}done={what}", 303)


def _enter(site: Site, request: Request, session: Session, need: Scope) -> None:
    call = call_of(request)
    refusal = site.guard.admit_session(session.caller, need, call.address)
    call.caller = session.caller
    request.scope["crestgate.session"] = session
    if refusal is not None:
        raise ApiError(refusal.status, refusal.detail, refusal.headers)
