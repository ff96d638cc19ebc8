"""Where every request comes in: who may, how large it may be, and which plane answers.

The data plane's paths are looked up in a table and answered here, around the framework; everything else goes to the
control plane, with its body read and found harmless. Whatever happens inside, the client gets an answer that says
what was wrong in words, under a request id that the log has too, and never a traceback.
"""

from __future__ import annotations

import itertools
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from time import perf_counter
from typing import Any

from headgate.errors import HeadgateError
from headgate.http.client_address import TrustedProxies
from headgate.http.problem import problem_of
from headgate.service.asgi import (
    GONE,
    App,
    BadRequest,
    Call,
    ClientGone,
    Headers,
    Receive,
    Reply,
    Scope,
    Send,
    answer,
    read_body,
    refused,
)
from headgate.service.auth.guard import Guard, Refusal
from headgate.service.auth.keys import Scope as KeyScope
from headgate.service.data.authorize import Authorize
from headgate.service.data.plane import DataPlane
from headgate.service.deprecations import Deprecations
from headgate.service.depth import MOST_DEPTH, too_deep
from headgate.service.parts import Parts, Visit
from headgate.service.request_log import RequestLog

__all__ = ["Dispatch", "Page"]

Handler = Callable[[Call, Receive], Awaitable[Reply]]
WithBody = Callable[[Call, bytes], Awaitable[Reply]]
Page = Callable[[Call], Awaitable[Reply]]
"""Answers a GET: health, metrics."""
READS = ("GET", "HEAD")
OPEN_PAGES = ("/", "/docs", "/openapi.json")
"""What the control plane shows to everybody: what there is, and nothing of what is in it."""
OPEN_BELOW = "/docs/"
WRONG_HERE = "something went wrong here: the log says what, under this request id"
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")


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
    ) -> None:
        """`pages` are health and metrics by path, each with the scope it needs; `to_check` is the scope that checks
        need, None where they are open."""
        self.guard = guard
        self.control = control
        self.to_check = to_check
        self.log = log
        self.tally = parts.tally
        self.proxies = TrustedProxies(parts.settings.server.trusted_proxies)
        self.deprecations = Deprecations(parts.settings.deprecated)
        self.authorize = Authorize(plane, self.proxies, parts.settings.headers)
        self.handlers: dict[str, Handler] = {
            "/api/v1/check": self.posted(plane.check, to_check),
            "/api/v1/check/batch": self.posted(plane.batch, to_check),
            "/api/v1/quota": self.posted(plane.quota, to_check),
            "/api/v1/reset": self.posted(plane.reset, "write"),
            "/ratelimiter/verify-api-limit": self.posted(plane.verify, to_check),
            "/api/v1/authorize": self.forwarded,
        }
        self.handlers |= {path: self.page(page, need) for path, (page, need) in pages.items()}
        self.id_start = secrets.token_hex(6)
        self.id_numbers = itertools.count(1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1000})  # there are none here
            return
        started = perf_counter()
        path: str = scope["path"]
        fields = dict(scope["headers"])
        call = Call(scope, fields, self.request_id(fields))
        said = [(b"x-request-id", call.request_id.encode()), *self.deprecations.headers(path)]
        handler = self.handlers.get(path)
        if handler is None:
            status = await self.rule(call, receive, send, said)
        else:
            reply = await self.reply(handler, call, receive)
            status = reply.status
            if reply is not GONE:
                await answer(send, reply, said, scope["method"] == "HEAD")
        self.tally.request("control" if handler is None else "data", status)
        if handler is None:
            if self.log.calls:
                self.log.call(call, status, perf_counter() - started)
        elif self.log.checks:
            self.log.check(call, status, perf_counter() - started)

    async def reply(self, handler: Handler, call: Call, receive: Receive) -> Reply:
        """What a handler answers, whatever comes up in it."""
        try:
            return await handler(call, receive)
        except ClientGone:
            return GONE
        except BadRequest as error:
            return refused(error.status, error.detail, error.headers, **error.more)
        except HeadgateError as error:
            status, detail, more = problem_of(error)
            self.log.failed(call, error)
            return refused(status, detail, **more)
        except Exception as error:  # noqa: BLE001 - a mistake of ours is told as one, and nothing of its inside
            self.log.unforeseen(call, error)
            return refused(500, WRONG_HERE)

    def posted(self, handler: WithBody, need: KeyScope | None) -> Handler:
        """A check or a reset: a POST with a body."""
        write = need == "write"

        async def handle(call: Call, receive: Receive) -> Reply:
            if call.scope["method"] != "POST":
                raise _not_allowed("POST")
            if need is not None or b"authorization" in call.fields or b"x-api-key" in call.fields:
                self.enter(call, need, write=write)
            return await handler(call, await read_body(receive, call.fields))

        return handle

    def page(self, page: Page, need: KeyScope | None) -> Handler:
        async def handle(call: Call, _: Receive) -> Reply:
            if call.scope["method"] not in READS:
                raise _not_allowed("GET, HEAD")
            if need is not None:
                self.enter(call, need)
            return await page(call)

        return handle

    async def forwarded(self, call: Call, receive: Receive) -> Reply:
        """A proxy asks about somebody else's request, whose keys are in the headers too: its own has a header of its
        own."""
        self.enter(call, self.to_check, forwarded=True)
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

    def request_id(self, fields: Mapping[bytes, bytes]) -> str:
        """The caller's own, if it is one that can be written down; else the next of this worker."""
        told = fields.get(b"x-request-id")
        if told is not None and _REQUEST_ID.fullmatch(told):
            return told.decode()
        return f"{self.id_start}-{next(self.id_numbers):x}"

    async def rule(self, call: Call, receive: Receive, send: Send, said: Headers) -> int:
        """Hand a call to the control plane; the status it was answered with."""
        outgoing = _Outgoing(send, said)
        try:
            await self.to_control(call, receive, outgoing)
            return outgoing.status
        except ClientGone:
            return GONE.status
        except BadRequest as error:
            reply = refused(error.status, error.detail, error.headers, **error.more)
        except Exception as error:  # noqa: BLE001 - as above; the control plane has answered its own errors
            self.log.unforeseen(call, error)
            if outgoing.status:
                return outgoing.status
            reply = refused(500, WRONG_HERE)
        await answer(send, reply, said, call.scope["method"] == "HEAD")
        return reply.status

    async def to_control(self, call: Call, receive: Receive, send: Send) -> None:
        scope = call.scope
        path: str = scope["path"]
        reads = scope["method"] in READS
        if reads and (path in OPEN_PAGES or path.startswith(OPEN_BELOW)):
            self.enter(call, None)
        else:
            self.enter(call, "read" if reads else "write", write=not reads)
        body = await read_body(receive, call.fields)
        if too_deep(body):
            raise BadRequest(400, f"the body is nested deeper than {MOST_DEPTH} levels: nothing here needs that")
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


def _not_allowed(methods: str) -> BadRequest:
    return BadRequest(405, f"this is called with {methods}", [(b"allow", methods.encode())])
