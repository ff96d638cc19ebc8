"""The answer to a denial, in an application that has said nothing of it.

Starlette keeps the handlers of exceptions with the request. Ours is put there when the limits of a route are first
asked, unless the application has one of its own; it serves all routes, so what one of them says of its headers is with
the request.
"""

from __future__ import annotations

from typing import Any

from starlette.requests import HTTPConnection

from crestgate.errors import RateLimitExceeded
from crestgate.http.client_address import TrustedProxies
from crestgate.http.header_options import HeaderStyle
from crestgate.integrations.asgi import RateLimitMiddleware
from crestgate.integrations.asgi.denial import STARTS, Refused, denying, with_headers
from crestgate.integrations.asgi.request import App, AsgiRequest, Message, Receive, Scope, Send
from crestgate.integrations.layer import LimitLayer
from crestgate.integrations.request import Identity
from crestgate.integrations.request_state import NAME, RequestState
from crestgate.limiter.async_limiter import AsyncLimiter

__all__ = ["answer_denials"]

_NOBODY = Identity(TrustedProxies())
_LAYER = "crestgate.layer"
"""Where the scope has the limits of its route that were asked last: they say how headers are written."""


def answer_denials(scope: Scope, layer: LimitLayer[AsyncLimiter]) -> None:
    """Have RateLimitExceeded answered in the application that this request is for."""
    scope[_LAYER] = layer
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
    request_state: RequestState = scope.setdefault(NAME, RequestState())
    request_state.add_decision(error.decision)
    if isinstance(error, Refused):
        app = await denying(error.on_denied, error.request, error.decision)
    elif isinstance(request_state.around, RateLimitMiddleware):
        layer = request_state.around.layer
        app = await denying(layer.on_denied, AsgiRequest(scope, layer.identity), error.decision)
    else:
        app = await denying(None, AsgiRequest(scope, _NOBODY), error.decision)
    if request_state.writer is not None:
        return app
    route_layer: LimitLayer[AsyncLimiter] | None = scope.get(_LAYER)
    limit_headers = (
        request_state.headers(HeaderStyle(), 0)
        if route_layer is None
        else request_state.headers(route_layer.style, route_layer.limiter.clock.ticks())
    )

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def sender(message: Message) -> None:
            await send(with_headers(message, limit_headers) if message["type"] in STARTS else message)

        await app(scope, receive, sender)

    return answer
