"""A denial over ASGI: the usual one, or what `on_denied` made, as an application that sends it.

A websocket is denied before it is accepted: by the same response where the server can send one, else it is closed, and
the client sees a 403.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from crestgate.core.decision import Decision
from crestgate.errors import RateLimitExceeded
from crestgate.http.headers import HEADERS
from crestgate.integrations.asgi.request import App, Message, Receive, Scope, Send
from crestgate.integrations.denial import Denial, default_denial
from crestgate.integrations.request import Request

__all__ = ["CLOSE", "ENDS", "STARTS", "Refused", "denying", "with_headers"]

CLOSE = "websocket.close"
STARTS = {"http.response.start": 200, "websocket.http.response.start": 403, "websocket.accept": 101}
"""The messages that have headers, and the status that each tells unless it says another."""
ENDS = {**STARTS, CLOSE: 403}
"""The first messages of a response, whatever becomes of the connection."""

POLICY_VIOLATION = 1008
"""What a websocket is closed with (RFC 6455)."""
RawHeaders = list[tuple[bytes, bytes]]
_OURS = frozenset(name.lower().encode() for name in HEADERS)


class Refused(RateLimitExceeded):
    """A denial by the limits of a route, on its way to whoever answers it."""

    def __init__(self, decision: Decision, request: Request, on_denied: Callable[..., Any] | None) -> None:
        super().__init__(decision)
        self.request = request
        self.on_denied = on_denied


class Denying:
    """Sends a denial. The headers that tell of the limits are added by whoever writes them."""

    __slots__ = ("_denial",)

    def __init__(self, denial: Denial) -> None:
        self._denial = denial

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = "websocket.http.response" if scope["type"] == "websocket" else "http.response"
        body = b"" if scope.get("method") == "HEAD" else self._denial.body
        headers = self._denial.raw_headers([])
        await send({"type": f"{kind}.start", "status": self._denial.status, "headers": headers})
        await send({"type": f"{kind}.body", "body": body})


async def denying(on_denied: Callable[..., Any] | None, request: Request, decision: Decision) -> App:
    """What answers a denied request."""
    made = None if on_denied is None else on_denied(request, decision)
    if inspect.isawaitable(made):
        made = await made
    if made is None:
        made = default_denial(decision)
    if isinstance(made, Denial):
        made = Denying(made)
    scope = request.native
    if scope["type"] == "websocket" and "websocket.http.response" not in (scope.get("extensions") or ()):
        return _close
    if not callable(made):
        raise TypeError(
            "on_denied must return None, a crestgate.integrations.Denial or an ASGI application such as a Starlette "
            f"response, not {made!r}"
        )
    app: App = made
    return app


def with_headers(message: Message, limit_headers: RawHeaders) -> Message:
    """The start of a response, with these headers in the place of any of their names."""
    headers = message.get("headers", ())
    for name, _ in headers:
        if name in _OURS:
            names = [name for name, _ in limit_headers]
            headers = [header for header in headers if header[0] not in names]
            break
    return {**message, "headers": [*headers, *limit_headers]}


async def _close(_scope: Scope, _receive: Receive, send: Send) -> None:
    await send({"type": CLOSE, "code": POLICY_VIOLATION, "reason": "rate limit exceeded"})
