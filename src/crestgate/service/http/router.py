# mypyc: compile
"""The ASGI application of a worker: authentication, size limits, and the endpoint of each path.

Endpoints of checks are called here, around the framework; everything else goes to the admin API, with its body read and
checked. Whatever happens inside, the client gets an error in words, with a request id that is in the log too, and never
a traceback.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from time import perf_counter
from typing import Any, Final, final

from crestgate.errors import InvalidRequestError
from crestgate.http.client_address import TrustedProxies
from crestgate.service.auth.cross_site import CrossSiteGuard
from crestgate.service.auth.guard import READ_CALLS, Guard, Refusal
from crestgate.service.auth.keys import Scope as KeyScope
from crestgate.service.checks.envoy import EnvoyService
from crestgate.service.checks.json_body import MAX_DEPTH, is_too_deep
from crestgate.service.checks.operations import Operations
from crestgate.service.checks.reservations import ReservationService
from crestgate.service.checks.service import CheckService
from crestgate.service.context import CallContext, Fields, Headers, Scope
from crestgate.service.dependencies import Dependencies
from crestgate.service.errors import ApiError, error_response
from crestgate.service.http.asgi import (
    GONE,
    App,
    ClientGoneError,
    HttpResponse,
    Receive,
    Send,
    check_length,
    problem_response,
    read_rest,
    response_messages,
)
from crestgate.service.http.authorize import Authorize
from crestgate.service.http.deprecations import Deprecations
from crestgate.service.http.endpoints import CheckEndpoints
from crestgate.service.http.reservations import ReservationEndpoints
from crestgate.service.observability.request_ids import RequestIds
from crestgate.service.observability.request_log import RequestLog

__all__ = ["PENDING", "DeferredResponse", "Handler", "Router"]

Handler = Callable[[CallContext, bytes], "HttpResponse | Awaitable[HttpResponse]"]
READS: Final = ("GET", "HEAD")
POST: Final = ("POST",)
RESERVATIONS: Final = "/api/v1/reservations"
"""And `/ID/settle`, `/ID/release` and `/ID/extend` below it."""
FAST_PATHS: Final = ("/api/v1/check", "/api/v1/check/batch")
OPEN_PAGES: Final = (
    "/docs",
    "/docs/reference",
    "/docs/start.js",
    "/docs/swagger-ui-bundle.js",
    "/docs/swagger-ui.css",
    "/openapi.json",
)
"""Pages of the admin API that need no key: they describe the API, and have no data."""
PENDING: Final = "crestgate.pending"
"""The key of a DeferredResponse in an ASGI scope."""
MAX_PATH: Final = 100
"""Characters of a path in an error."""


@final
class Route:
    """The handler of a path, and who may call it.

    `methods` are those it is called with, None for all. A `forwarded` call is a proxy's about another request, whose
    keys are in the headers too: its own key has a header of its own. `headers` are those of every response.
    """

    def __init__(
        self,
        handler: Handler,
        methods: tuple[str, ...] | None,
        scope: KeyScope | None,
        headers: Headers,
        forwarded: bool = False,
    ) -> None:
        self.handler = handler
        self.methods = methods
        self.scope = scope
        self.headers = headers
        self.head = b"".join([b"%b: %b\r\n" % header for header in headers])
        self.forwarded = forwarded
        self.has_body = methods == POST
        self.write = scope == "write"


@final
class DeferredResponse:
    """A call on the fast path whose store is busy: its response is awaited as any other's."""

    def __init__(self, call: CallContext, response: Awaitable[HttpResponse]) -> None:
        self.call = call
        self.response = response


class Router:
    """The ASGI application of one worker."""

    def __init__(
        self,
        dependencies: Dependencies,
        guard: Guard,
        checks: CheckService,
        envoy: EnvoyService,
        admin: App,
        pages: Mapping[str, tuple[Handler, KeyScope | None]],
        check_scope: KeyScope | None,
        log: RequestLog,
        admin_paths: tuple[str, ...] = (),
        dashboard: App | None = None,
        dashboard_paths: tuple[str, ...] = (),
    ) -> None:
        """`pages` are health and metrics by path, each with the scope it needs; `check_scope` is the scope that checks
        need, None where they are open. `admin_paths` are those of the admin API, and what is below them; all else is
        404 for everybody: a mistyped path must not ask for a key. `dashboard` authenticates by itself, and has
        `dashboard_paths`; those that end with a slash, and what is below them."""
        settings = dependencies.settings
        self.guard = guard
        self.admin = admin
        self.admin_paths = frozenset(admin_paths)
        self.below_admin = tuple([path + "/" for path in admin_paths])
        self.dashboard = dashboard
        self.dashboard_paths = frozenset(dashboard_paths)
        self.below_dashboard = tuple([path for path in dashboard_paths if path != "/" and path.endswith("/")])
        self.log = log
        self.metrics = dependencies.metrics
        self.proxies = TrustedProxies(settings.server.trusted_proxies)
        self.site_guard = CrossSiteGuard(settings.server)
        self.deprecations = Deprecations(settings.deprecated)
        self.request_ids = RequestIds()
        self.operations = Operations(checks, guard)
        endpoints = CheckEndpoints(checks, self.operations, envoy)
        authorize = Authorize(checks, self.proxies, settings.headers)
        self.routes: dict[str, Route] = {}
        self._add("/api/v1/check", endpoints.check, POST, check_scope)
        self._add("/api/v1/check/batch", endpoints.batch, POST, check_scope)
        self._add("/api/v1/quota", endpoints.quota, POST, check_scope)
        self._add("/api/v1/explain", endpoints.explain, POST, "read")
        self._add("/api/v1/reset", endpoints.reset, POST, "write")
        self._add("/ratelimiter/verify-api-limit", endpoints.verify, POST, check_scope)
        reservations = ReservationEndpoints(ReservationService(checks), RESERVATIONS)
        self._add(RESERVATIONS, reservations.reserve, POST, check_scope)
        self.reservation_routes: dict[str, Route] = {
            name: Route(handler, POST, check_scope, self.deprecations.headers(RESERVATIONS))
            for name, handler in reservations.actions.items()
        }
        """By the last part of the path."""
        self._add("/json", endpoints.rate_limit, POST, check_scope)
        self._add("/api/v1/authorize", authorize, None, check_scope, forwarded=True)
        for path, (page, scope) in pages.items():
            self._add(path, page, READS, scope)
        self.fast_paths = {path.encode(): path for path in FAST_PATHS if checks.is_fast}
        """Paths, as in a request, whose responses are usually there at once."""

    def _add(
        self,
        path: str,
        handler: Handler,
        methods: tuple[str, ...] | None,
        scope: KeyScope | None,
        forwarded: bool = False,
    ) -> None:
        self.routes[path] = Route(handler, methods, scope, self.deprecations.headers(path), forwarded)

    def respond(
        self, url: bytes, headers: Headers, client: tuple[str, int] | None, body: bytes
    ) -> tuple[int, bytes, bytes] | DeferredResponse | None:
        """The response to a POST to one of `fast_paths`: its status, the lines of its headers, and its body. None for
        a request that ASGI has to handle."""
        fields: Fields = dict(headers)
        if b"host" not in fields:
            return None  # whether that is an error depends on the version of HTTP
        path = self.fast_paths[url]
        route = self.routes[path]
        scope = {"method": "POST", "path": path, "headers": headers, "client": client}
        call = CallContext(scope, fields, self.request_ids.of(fields))
        call.started = perf_counter()
        try:
            self.site_guard.check(call)
            if route.scope is not None or b"authorization" in fields or b"x-api-key" in fields:
                self._authenticate(call, route.scope, False, False)
            result = route.handler(call, body)
            if not isinstance(result, HttpResponse):
                return DeferredResponse(call, result)
            response = result
        except Exception as error:  # noqa: BLE001 - the client gets a response in any case
            response = self._error(call, error)
        self.metrics.count_request("data", response.status)
        if self.log.checks:
            self.log.check(call, response.status, perf_counter() - call.started)
        head = b"%b: %b\r\n" % response.content_type
        for header in response.headers:
            head += b"%b: %b\r\n" % header
        head += b"x-request-id: %b\r\n%b" % (call.request_id.encode(), route.head)
        return response.status, head, response.body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1000})  # there are none here
            return
        started = perf_counter()
        pending: DeferredResponse | None = scope.pop(PENDING, None)
        if pending is not None:
            call = pending.call
            started = call.started
        else:
            fields: Fields = dict(scope["headers"])
            call = CallContext(scope, fields, self.request_ids.of(fields))
        path: str = scope["path"]
        route = self.routes.get(path) or self._reservation_route(path)
        if route is None:
            await self._admin(call, receive, send, started)
            return
        # All of it in one coroutine: each further one costs a check as much as its JSON.
        try:
            if pending is not None:
                response = await pending.response
            else:
                self._enter(call, route)
                body = b""
                if route.has_body:
                    message = await receive()
                    body = message.get("body", b"")
                    if message.get("more_body", False) or message["type"] != "http.request":
                        body = await read_rest(message, receive)
                call.started = perf_counter()
                result = route.handler(call, body)
                response = result if isinstance(result, HttpResponse) else await result
        except Exception as error:  # noqa: BLE001 - the client gets a response in any case
            response = self._error(call, error)
        if response is not GONE:
            for part in response_messages(response, [_request_id(call), *route.headers], scope["method"]):
                await send(part)
        self.metrics.count_request("data", response.status)
        if self.log.checks:
            self.log.check(call, response.status, perf_counter() - started)

    def _reservation_route(self, path: str) -> Route | None:
        """The route of one reservation, whose id is part of the path."""
        if not path.startswith(f"{RESERVATIONS}/"):
            return None
        return self.reservation_routes.get(path.rpartition("/")[2])

    def _error(self, call: CallContext, error: Exception) -> HttpResponse:
        """The response to a request that failed."""
        if isinstance(error, ClientGoneError):
            return GONE
        failure = error_response(call, error, self.log)
        return problem_response(failure.status, failure.detail, failure.headers, **failure.members)

    def _enter(self, call: CallContext, route: Route) -> None:
        """Check a call before any of its body is read."""
        self.site_guard.check(call, route.forwarded)
        methods = route.methods
        if methods is not None and call.scope["method"] not in methods:
            raise ApiError(
                405, f"method not allowed: use {' or '.join(methods)}", [(b"allow", ", ".join(methods).encode())]
            )
        fields = call.fields
        if route.scope is not None or route.forwarded or b"authorization" in fields or b"x-api-key" in fields:
            self._authenticate(call, route.scope, route.write, route.forwarded)
        if route.has_body:
            check_length(fields)

    def _authenticate(self, call: CallContext, need: KeyScope | None, write: bool, forwarded: bool) -> None:
        """Set the caller and its address; ApiError for a caller who may not call this."""
        headers: Headers = call.scope["headers"]
        address = self.proxies.address(call.peer, headers)
        admitted = self.guard.admit(need, headers, address, write, forwarded=forwarded)
        call.address = address
        if isinstance(admitted, Refusal):
            raise ApiError(admitted.status, admitted.detail, admitted.headers)
        call.caller = admitted

    async def _admin(self, call: CallContext, receive: Receive, send: Send, started: float) -> None:
        """Let the admin API respond."""
        headers = [_request_id(call), *self.deprecations.headers(call.scope["path"])]
        sender = _Sender(send, headers)
        status = 0
        try:
            await self._call_admin(call, receive, sender)
        except Exception as error:  # noqa: BLE001 - as above; the admin API has responded to its own errors
            response = self._error(call, error)
            status = response.status
            if not sender.status and response is not GONE:
                for part in response_messages(response, headers, call.scope["method"]):
                    await send(part)
        self.metrics.count_request("control", sender.status or status)
        if self.log.calls:
            self.log.call(call, sender.status or status, perf_counter() - started)

    async def _call_admin(self, call: CallContext, receive: Receive, send: Send) -> None:
        scope = call.scope
        path: str = scope["path"]
        self.site_guard.check(call)
        reads = scope["method"] in READS or path in READ_CALLS
        app = self.admin
        if self.dashboard is not None and (path in self.dashboard_paths or path.startswith(self.below_dashboard)):
            app = self.dashboard
            call.address = self.proxies.address(call.peer, scope["headers"])
        elif reads and path in OPEN_PAGES:
            self._authenticate(call, None, False, False)
        elif path in OPEN_PAGES or path in self.admin_paths or path.startswith(self.below_admin):
            self._authenticate(call, "read" if reads else "write", not reads, False)
        else:
            raise ApiError(404, f"no such path: {_shortened(path)}; see /docs for all paths")
        check_length(call.fields)
        body = await read_rest({"type": "http.request", "more_body": True}, receive)
        if is_too_deep(body):
            raise InvalidRequestError("", f"the body is nested deeper than {MAX_DEPTH} levels: nothing here needs that")
        delivered = False

        async def replay() -> MutableMapping[str, Any]:
            nonlocal delivered
            if delivered:
                return await receive()
            delivered = True
            return {"type": "http.request", "body": body, "more_body": False}

        scope["crestgate"] = call
        await app(scope, replay, send)


class _Sender:
    """Adds headers to a response, and remembers its status."""

    def __init__(self, send: Send, headers: Headers) -> None:
        self.send = send
        self.headers = headers
        self.status = 0

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message = {**message, "headers": [*message.get("headers", ()), *self.headers]}
        await self.send(message)


def _request_id(call: CallContext) -> tuple[bytes, bytes]:
    return b"x-request-id", call.request_id.encode()


def _shortened(path: str) -> str:
    """A path for an error: clients make them up."""
    return repr(path if len(path) <= MAX_PATH else path[:MAX_PATH] + "…")
