"""The answer to a denial by a route's limits, in an application that has said nothing of it.

Starlette keeps the handlers of exceptions with the request. Ours is put there when it is first needed, unless the
application has one of its own.
"""

from __future__ import annotations

import time
from typing import Any

from starlette.requests import HTTPConnection

from headgate.errors import RateLimitExceeded
from headgate.http.client_address import TrustedProxies
from headgate.http.headers import HeaderStyle
from headgate.integrations.asgi_denial import STARTS, Refused, denying, noted, with_headers
from headgate.integrations.asgi_request import App, AsgiRequest, Message, Receive, Scope, Send
from headgate.integrations.request import Identity
from headgate.integrations.visit import NAME, Visit

__all__ = ["answer_denials"]

_NOBODY = Identity(TrustedProxies())


def answer_denials(scope: Scope, style: HeaderStyle) -> None:
    """Have RateLimitExceeded answered in the application that this request is for."""
    known = scope.get("starlette.exception_handlers")
    if not known or any(kind in known[0] for kind in RateLimitExceeded.__mro__ if kind not in (Exception, object)):
        return

    async def handler(connection: HTTPConnection, error: Exception) -> App:
        assert isinstance(error, RateLimitExceeded)
        return await _answer(connection.scope, error, style)

    known[0][RateLimitExceeded] = handler


async def _answer(scope: Any, error: RateLimitExceeded, style: HeaderStyle) -> App:
    visit: Visit = scope.setdefault(NAME, Visit())
    noted(visit, error.decision)
    refused = error if isinstance(error, Refused) else Refused(error.decision, AsgiRequest(scope, _NOBODY), None)
    app = await denying(refused.on_denied, refused.request, error.decision)
    if visit.writer is not None:
        return app
    said = visit.headers(style, time.time_ns() // 1000)

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def sender(message: Message) -> None:
            await send(with_headers(message, said) if message["type"] in STARTS else message)

        await app(scope, receive, sender)

    return answer
