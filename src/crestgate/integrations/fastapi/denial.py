"""The default response to a denial by a route's limits.

Starlette stores the exception handlers with the request. When the limits of a route are first checked, a handler for
RateLimitExceeded is added there, unless the application has one. It serves all routes, so the layer that determines the
style of the headers is stored with the request.
"""

from __future__ import annotations

from typing import Any

from starlette.requests import HTTPConnection

from crestgate.errors import RateLimitExceeded
from crestgate.http.header_options import HeaderStyle
from crestgate.integrations.asgi.denial import STARTS, denial_app_for, with_headers
from crestgate.integrations.asgi.request import App, Message, Receive, Scope, Send
from crestgate.integrations.layer import LimitLayer
from crestgate.integrations.request_state import request_state_in
from crestgate.limiter.async_limiter import AsyncLimiter

__all__ = ["add_denial_handler"]

_LAYER = "crestgate.layer"
"""The scope's key for the route's layer that was checked last."""


def add_denial_handler(scope: Scope, layer: LimitLayer[AsyncLimiter]) -> None:
    """Add a handler of RateLimitExceeded to the application of this request, unless it has one."""
    scope[_LAYER] = layer
    known = scope.get("starlette.exception_handlers")
    if not known or RateLimitExceeded in known[0]:
        return
    if any(kind in known[0] for kind in RateLimitExceeded.__mro__ if kind not in (Exception, object)):
        return

    async def handler(connection: HTTPConnection, error: Exception) -> App:
        assert isinstance(error, RateLimitExceeded)
        return await _response(connection.scope, error)

    known[0][RateLimitExceeded] = handler


async def _response(scope: Any, error: RateLimitExceeded) -> App:
    request_state = request_state_in(scope)
    app = await denial_app_for(error, scope, request_state.middleware_layer)
    if request_state.writer is not None:
        return app
    route_layer: LimitLayer[AsyncLimiter] | None = scope.get(_LAYER)
    limit_headers = (
        request_state.headers(HeaderStyle(), 0)
        if route_layer is None
        else request_state.headers(route_layer.style, route_layer.limiter.clock.ticks())
    )

    async def response(scope: Scope, receive: Receive, send: Send) -> None:
        async def sender(message: Message) -> None:
            await send(with_headers(message, limit_headers) if message["type"] in STARTS else message)

        await app(scope, receive, sender)

    return response
