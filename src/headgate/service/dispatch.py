"""Where every request comes in: who may, how large it may be, and which plane answers.

The data plane's paths are looked up in a table and answered here, around the framework; everything else goes to the
control plane, with its body read and found harmless. Whatever happens inside, the client gets an answer that says
what was wrong in words, under a request id that the log has too, and never a traceback.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from time import perf_counter
from typing import Any, final

from headgate.http.client_address import TrustedProxies
from headgate.service.asgi import (
    GONE,
    App,
    BadRequest,
    Call,
    ClientGone,
    Fields,
    Headers,
    Receive,
    Reply,
    Scope,
    Send,
    check_length,
    messages_of,
    read_rest,
    refused,
)
from headgate.service.auth.guard import Guard, Refusal
from headgate.service.auth.keys import Scope as KeyScope
from headgate.service.auth.sites import SiteGuard
from headgate.service.data.authorize import Authorize
from headgate.service.data.bodies import wrong
from headgate.service.data.plane import DataPlane
from headgate.service.deprecations import Deprecations
from headgate.service.depth import MOST_DEPTH, too_deep
from headgate.service.parts import Parts, Visit
from headgate.service.refusing import told_of
from headgate.service.request_ids import RequestIds
from headgate.service.request_log import RequestLog
from headgate.service.rpc.envoy import Envoy
from headgate.service.rpc.over_http import EnvoyOverHttp

__all__ = ["Dispatch", "Page"]

InTime = Callable[[Call, bytes], Awaitable[Reply]]
AtOnce = Callable[[Call, bytes], Reply | None]
Page = Callable[[Call], Awaitable[Reply]]
"""Answers a GET: health, metrics."""
READS = ("GET", "HEAD")
POST = ("POST",)
OPEN_PAGES = ("/", "/docs", "/openapi.json")
"""What the control plane shows to everybody: what there is, and nothing of what is in it."""
CONTROL = (
    *("/api/v1/rules", "/api/v1/plans", "/api/v1/users", "/api/v1/audit", "/api/v1/stats"),
    *("/admin/status", "/admin/metrics", "/admin/reset", "/admin/policies"),
    *("/ratelimiter/configure-client", "/ratelimiter/client-limits", "/ratelimiter/configured-limits"),
    *("/ratelimiter/delete-limits", "/ratelimiter/delete-client"),
)
"""What the control plane answers to those who may, and what is below. Everything else is nowhere, for everybody: who
has mistyped a path is told that, and not to bring a key."""
BELOW_CONTROL = tuple([path + "/" for path in CONTROL])
LONGEST_TOLD = 100
"""Characters."""


@final
class Route:
    """What answers at a path of the data plane, and what it takes to be let in.

    `at_once` answers without waiting for anything, or says None, and then `in_time` does. `methods` are those it is
    called with, None for all. A `forwarded` call is a proxy's about somebody else's request, whose keys are in the
    headers too: its own key has a header of its own.
    """

    def __init__(
        self,
        in_time: InTime,
        methods: tuple[str, ...] | None,
        need: KeyScope | None = None,
        at_once: AtOnce | None = None,
        forwarded: bool = False,
    ) -> None:
        self.in_time = in_time
        self.methods = methods
        self.need = need
        self.at_once = at_once
        self.forwarded = forwarded
        self.has_body = methods == POST
        self.write = need == "write"


class Dispatch:
    """The ASGI application of one worker."""

    def __init__(
        self,
        parts: Parts,
        guard: Guard,
        plane: DataPlane,
        control: App,
        pages: Mapping[str, tuple[Page, KeyScope | None]],
        to_check: KeyScope | None,
        log: RequestLog,
        envoy: Envoy,
    ) -> None:
        """`pages` are health and metrics by path, each with the scope it needs; `to_check` is the scope that checks
        need, None where they are open."""
        self.guard = guard
        self.control = control
        self.to_check = to_check
        self.log = log
        self.tally = parts.tally
        self.proxies = TrustedProxies(parts.settings.server.trusted_proxies)
        self.sites = SiteGuard(parts.settings.server)
        self.deprecations = Deprecations(parts.settings.deprecated)
        self.authorize = Authorize(plane, self.proxies, parts.settings.headers)
        proxies = EnvoyOverHttp(envoy)
        self.routes = {
            "/api/v1/check": Route(plane.check, POST, to_check, plane.check_at_once),
            "/api/v1/check/batch": Route(plane.batch, POST, to_check, plane.batch_at_once),
            "/api/v1/quota": Route(plane.quota, POST, to_check),
            "/api/v1/reset": Route(proxies.reset, POST, "write"),
            "/ratelimiter/verify-api-limit": Route(plane.verify, POST, to_check),
            "/json": Route(proxies.ask, POST, to_check),
            "/api/v1/authorize": Route(self.ask, None, to_check, forwarded=True),
        }
        for path, (page, need) in pages.items():
            self.routes[path] = Route(_shown(page), READS, need)
        self.quick = {
            path.encode(): (path, r) for path, r in self.routes.items() if r.at_once is not None and plane.quick
        }
        """The paths, as they stand in a request, of what can be answered at once, if all goes well."""
        self.ids = RequestIds()

    def at_once(
        self, url: bytes, headers: Headers, client: tuple[str, int] | None, body: bytes
    ) -> tuple[int, bytes, bytes] | None:
        """The answer to a POST to one of `quick`: its status, what stands in its head, and its body. None where it has
        to be waited for."""
        started = perf_counter()
        path, route = self.quick[url]
        fields: Fields = dict(headers)
        if b"host" not in fields:
            return None  # whether that is wrong depends on the version of HTTP
        call = Call({"method": "POST", "path": path, "headers": headers, "client": client}, fields, self.ids.of(fields))
        assert route.at_once is not None
        try:
            self.enter_route(call, route)
            reply = route.at_once(call, body)
            if reply is None:
                return None
        except Exception as error:  # noqa: BLE001 - as below
            reply = self.refusal(call, error)
        self.tally.request("data", reply.status)
        if self.log.checks:
            self.log.check(call, reply.status, perf_counter() - started)
        head = b""
        for name, value in (reply.kind, *reply.headers, *self.said(call, path)):
            head += b"%b: %b\r\n" % (name, value)
        return reply.status, head, reply.body

    def said(self, call: Call, path: str) -> Headers:
        """What every answer says."""
        return [(b"x-request-id", call.request_id.encode()), *self.deprecations.headers(path)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1000})  # there are none here
            return
        started = perf_counter()
        path: str = scope["path"]
        fields: Fields = dict(scope["headers"])
        call = Call(scope, fields, self.ids.of(fields))
        said = self.said(call, path)
        route = self.routes.get(path)
        if route is None:
            status = await self.rule(call, receive, send, said)
            self.tally.request("control", status)
            if self.log.calls:
                self.log.call(call, status, perf_counter() - started)
            return
        # All of it in one coroutine: each further one costs a check as much as its JSON.
        try:
            self.enter_route(call, route)
            body = b""
            if route.has_body:
                message = await receive()
                body = message.get("body", b"")
                if message.get("more_body", False) or message["type"] != "http.request":
                    body = await read_rest(message, receive)
            reply = route.at_once(call, body) if route.at_once is not None else None
            if reply is None:
                reply = await route.in_time(call, body)
        except Exception as error:  # noqa: BLE001 - whatever it is, the client gets an answer
            reply = self.refusal(call, error)
        if reply is not GONE:
            for part in messages_of(reply, said, scope["method"]):
                await send(part)
        self.tally.request("data", reply.status)
        if self.log.checks:
            self.log.check(call, reply.status, perf_counter() - started)

    def refusal(self, call: Call, error: Exception) -> Reply:
        """What is answered when something came up; a mistake of ours is told as one, and nothing of its inside."""
        if isinstance(error, ClientGone):
            return GONE
        told = told_of(call, error, self.log)
        return refused(told.status, told.detail, told.headers, **told.more)

    def enter_route(self, call: Call, route: Route) -> None:
        """Let a call of the data plane in, before any of its body is read."""
        self.sites.check(call, route.forwarded)
        methods = route.methods
        if methods is not None and call.scope["method"] not in methods:
            raise BadRequest(
                405, f"this is called with {' or '.join(methods)}", [(b"allow", ", ".join(methods).encode())]
            )
        fields = call.fields
        if route.need is not None or route.forwarded or b"authorization" in fields or b"x-api-key" in fields:
            self.enter(call, route.need, route.write, route.forwarded)
        if route.has_body:
            check_length(fields)

    async def ask(self, call: Call, _: bytes) -> Reply:
        return await self.authorize(call, self.peer(call))

    def enter(self, call: Call, need: KeyScope | None, write: bool = False, forwarded: bool = False) -> None:
        """Find out who calls; BadRequest for who may not."""
        headers: Headers = call.scope["headers"]
        address = self.proxies.address(self.peer(call), headers)
        admitted = self.guard.admit(need, headers, address, write, forwarded=forwarded)
        call.visit = Visit(admitted if not isinstance(admitted, Refusal) else None, address, call.request_id)
        if isinstance(admitted, Refusal):
            raise BadRequest(admitted.status, admitted.detail, admitted.headers)

    def peer(self, call: Call) -> str | None:
        client = call.scope.get("client")
        return client[0] if client else None

    async def rule(self, call: Call, receive: Receive, send: Send, said: Headers) -> int:
        """Hand a call to the control plane; the status it was answered with."""
        outgoing = _Outgoing(send, said)
        try:
            await self.to_control(call, receive, outgoing)
        except Exception as error:  # noqa: BLE001 - as above; the control plane has answered its own errors
            reply = self.refusal(call, error)
            if not outgoing.status and reply is not GONE:
                for part in messages_of(reply, said, call.scope["method"]):
                    await send(part)
            return outgoing.status or reply.status
        return outgoing.status

    async def to_control(self, call: Call, receive: Receive, send: Send) -> None:
        scope = call.scope
        path: str = scope["path"]
        self.sites.check(call)
        reads = scope["method"] in READS
        if reads and path in OPEN_PAGES:
            self.enter(call, None)
        elif path in OPEN_PAGES or path in CONTROL or path.startswith(BELOW_CONTROL):
            self.enter(call, "read" if reads else "write", write=not reads)
        else:
            raise BadRequest(404, f"there is nothing at {shortened(path)}: /docs tells what there is")
        check_length(call.fields)
        body = await read_rest({"type": "http.request", "more_body": True}, receive)
        if too_deep(body):
            raise wrong("", f"the body is nested deeper than {MOST_DEPTH} levels: nothing here needs that")
        given = False

        async def replay() -> MutableMapping[str, Any]:
            nonlocal given
            if given:
                return await receive()
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        scope["headgate"] = call.visit
        await self.control(scope, replay, send)


class _Outgoing:
    """Adds what is said on every answer, and remembers the status."""

    def __init__(self, send: Send, said: Headers) -> None:
        self.send = send
        self.said = said
        self.status = 0

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message = {**message, "headers": [*message.get("headers", ()), *self.said]}
        await self.send(message)


def _shown(page: Page) -> InTime:
    async def show(call: Call, _: bytes) -> Reply:
        return await page(call)

    return show


def shortened(path: str) -> str:
    """A path as it is told back: clients make them up."""
    shown = path if len(path) <= LONGEST_TOLD else path[:LONGEST_TOLD] + "…"
    return repr(shown)
