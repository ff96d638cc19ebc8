"""The response to a denied request, as an ASGI application that sends it.

A websocket is denied before it is accepted: with the same response if the server can send one, else it is closed, and
the client receives a 403.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from crestgate.core.decision import Decision
from crestgate.errors import RateLimitExceeded
from crestgate.http.client_address import TrustedProxies
from crestgate.http.headers import HEADERS
from crestgate.integrations.asgi.request import App, AsgiRequest, Message, Receive, Scope, Send
from crestgate.integrations.denial import Denial, default_denial
from crestgate.integrations.layer import LimitLayer
from crestgate.integrations.request import Identity, Request
from crestgate.integrations.request_state import request_state_in

__all__ = [
    "CLOSE",
    "FIRST_MESSAGES",
    "STARTS",
    "RouteLimitExceeded",
    "denial_app",
    "denial_app_for",
    "ends_response",
    "with_headers",
]

CLOSE = "websocket.close"
STARTS = {"http.response.start": 200, "websocket.http.response.start": 403, "websocket.accept": 101}
"""The messages that have headers, and their default status."""
FIRST_MESSAGES = {**STARTS, CLOSE: 403}
"""The messages that can be the first of a response, and their default status."""

_BODIES = frozenset({"http.response.body", "http.response.zerocopysend", "websocket.http.response.body"})
_ENDS = frozenset({"http.response.pathsend", CLOSE})

POLICY_VIOLATION = 1008
"""The close code for a denied websocket (RFC 6455)."""
RawHeaders = list[tuple[bytes, bytes]]
_NO_IDENTITY = Identity(TrustedProxies())
_LIMIT_HEADERS = frozenset(name.lower().encode() for name in HEADERS)


class RouteLimitExceeded(RateLimitExceeded):
    """A denial by the limits of a route, with what is needed to respond to it."""

    def __init__(self, decision: Decision, request: Request, on_denied: Callable[..., Any] | None) -> None:
        super().__init__(decision)
        self.request = request
        self.on_denied = on_denied


class _DenialApp:
    """Sends a Denial. The layer that writes the headers adds those about limits."""

    __slots__ = ("_denial",)

    def __init__(self, denial: Denial) -> None:
        self._denial = denial

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = "websocket.http.response" if scope["type"] == "websocket" else "http.response"
        body = b"" if scope.get("method") == "HEAD" else self._denial.body
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in self._denial.all_headers()]
        await send({"type": f"{kind}.start", "status": self._denial.status, "headers": headers})
        await send({"type": f"{kind}.body", "body": body})


async def denial_app_for(error: RateLimitExceeded, scope: Any, layer: LimitLayer[Any] | None) -> App:
    """The application that responds to a denial raised inside: by a route's limits, or by the application itself. For
    the latter `layer` is that of the innermost middleware."""
    request_state_in(scope).add_decision(error.decision)
    if isinstance(error, RouteLimitExceeded):
        return await denial_app(error.on_denied, error.request, error.decision)
    if layer is None:
        return await denial_app(None, AsgiRequest(scope, _NO_IDENTITY), error.decision)
    return await denial_app(layer.on_denied, AsgiRequest(scope, layer.identity), error.decision)


async def denial_app(on_denied: Callable[..., Any] | None, request: Request, decision: Decision) -> App:
    """The application that responds to a denied request."""
    response = None if on_denied is None else on_denied(request, decision)
    if inspect.isawaitable(response):
        response = await response
    if response is None:
        response = default_denial(decision)
    if isinstance(response, Denial):
        response = _DenialApp(response)
    scope = request.native
    if scope["type"] == "websocket" and "websocket.http.response" not in (scope.get("extensions") or ()):
        return _close
    if not callable(response):
        raise TypeError(
            "on_denied must return None, a crestgate.integrations.Denial or an ASGI application such as a Starlette "
            f"response, not {response!r}"
        )
    app: App = response
    return app


def with_headers(message: Message, limit_headers: RawHeaders) -> Message:
    """The first message of a response with these headers, which replace headers of the same names."""
    headers = message.get("headers", ())
    for name, _ in headers:
        if name in _LIMIT_HEADERS:
            names = [name for name, _ in limit_headers]
            headers = [header for header in headers if header[0] not in names]
            break
    return {**message, "headers": [*headers, *limit_headers]}


def ends_response(message: Message) -> bool:
    """Whether a message is the last of a response."""
    kind = message["type"]
    return kind in _ENDS or (kind in _BODIES and not message.get("more_body", False))


async def _close(_scope: Scope, _receive: Receive, send: Send) -> None:
    await send({"type": CLOSE, "code": POLICY_VIOLATION, "reason": "rate limit exceeded"})
