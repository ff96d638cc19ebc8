"""The answer to a denial, in an application that has said nothing of it.

Starlette keeps the handlers of exceptions with the request. Ours is put there when the limits of a route are first
asked, unless the application has one of its own; it serves all routes, so what one of them says of its headers is with
the request.
"""

from __future__ import annotations

from typing import Any

from starlette.requests import HTTPConnection

from headgate.embedded.async_limiter import AsyncLimiter
from headgate.errors import RateLimitExceeded
from headgate.http.client_address import TrustedProxies
from headgate.http.style import HeaderStyle
from headgate.integrations.asgi import RateLimitMiddleware
from headgate.integrations.asgi.denial import STARTS, Refused, denying, with_headers
from headgate.integrations.asgi.request import App, AsgiRequest, Message, Receive, Scope, Send
from headgate.integrations.gate import Gate
from headgate.integrations.request import Identity
from headgate.integrations.visit import NAME, Visit

__all__ = ["answer_denials"]

_NOBODY = Identity(TrustedProxies())
_GATE = "headgate.gate"
"""Where the scope has the limits of its route that were asked last: they say how headers are written."""


def answer_denials(scope: Scope, gate: Gate[AsyncLimiter]) -> None:
    """Have RateLimitExceeded answered in the application that this request is for."""
    scope[_GATE] = gate
    known = scope.get("starlette.exception_handlers")
    if not known or RateLimitExceeded in known[0]:
        return
    if any(kind in known[0] for kind in RateLimitExceeded.__mro__ if kind not in (Exception, object)):
        return

    async def handler(connection: HTTPConnection, error: Exception) -> App:
        assert isinstance(error, RateLimitExceeded)
        return await _answer(connection.scope, error)

    known[0][RateLimitExceeded] = handler


async def _answer(scope: Any, error: RateLimitExceeded) -> App:
    visit: Visit = scope.setdefault(NAME, Visit())
    visit.tell(error.decision)
    if isinstance(error, Refused):
        app = await denying(error.on_denied, error.request, error.decision)
    elif isinstance(visit.around, RateLimitMiddleware):
        gate = visit.around.gate
        app = await denying(gate.on_denied, AsgiRequest(scope, gate.identity), error.decision)
    else:
        app = await denying(None, AsgiRequest(scope, _NOBODY), error.decision)
    if visit.writer is not None:
        return app
    asked: Gate[AsyncLimiter] | None = scope.get(_GATE)
    said = visit.headers(HeaderStyle(), 0) if asked is None else visit.headers(asked.style, asked.limiter.clock.ticks())

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def sender(message: Message) -> None:
            await send(with_headers(message, said) if message["type"] in STARTS else message)

        await app(scope, receive, sender)

    return answer
