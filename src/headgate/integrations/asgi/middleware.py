"""The middleware itself: what it does with a scope, and with the messages of a response."""

from __future__ import annotations

import asyncio
from typing import Any, Unpack

from headgate.core.decision import Decision
from headgate.embedded.async_limiter import AsyncLimiter
from headgate.errors import RateLimitExceeded
from headgate.integrations.asgi.denial import CLOSE, ENDS, Refused, denying, with_headers
from headgate.integrations.asgi.request import App, AsgiRequest, Message, Scope
from headgate.integrations.gate import Gate, GateOptions, LayerLimits, no_limits
from headgate.integrations.idle import refuse_idle
from headgate.integrations.opening import GivenLimiter, connect, limiter_for_loops
from headgate.integrations.passing import enter_async, settle_async
from headgate.integrations.request import Response
from headgate.integrations.visit import NAME, Visit

__all__ = ["RateLimitMiddleware"]


class RateLimitMiddleware:
    """Limits the requests to an application, and tells in the headers of all responses how the limits stand.

    Without `limits` the rules of the limiter decide (`limiter="headgate.yaml"`). Without either, nothing is asked
    here: the middleware then only serves the limits of the routes inside, with its limiter and their headers.
    """

    def __init__(
        self,
        app: App,
        limiter: GivenLimiter = None,
        limits: LayerLimits = None,
        *,
        websockets: bool = False,
        **options: Unpack[GateOptions],
    ) -> None:
        self.app = app
        self.limiter: AsyncLimiter = limiter_for_loops(limiter)
        self._asks = limits is not None or self.limiter.has_rules
        self._websockets = websockets
        if not self._asks:
            refuse_idle([*options, "websockets"] if websockets else options)
        self.gate: Gate[AsyncLimiter] = Gate(self.limiter, limits if self._asks else no_limits, **options)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        kind = scope["type"]
        if kind not in ("http", "websocket"):
            if kind == "lifespan":
                await connect(self.limiter)
            await self.app(scope, receive, send)
            return
        visit: Visit | None = scope.get(NAME)
        if visit is None:
            visit = scope[NAME] = Visit()
        visit.around = self
        app = self.app
        if self._asks and (kind == "http" or self._websockets):
            client = scope.get("client")
            decision = self.gate.decide_simply(scope.get("method", "GET"), client[0] if client else None, visit)
            if decision is None:
                app = await self._asked(scope, visit)
            elif decision.delay or not decision.allowed:
                app = await self._decided(scope, decision)
        if visit.writer is not None:  # the layer that writes the headers settles everything first
            await app(scope, receive, send)
            return
        visit.writer = self
        started = False

        async def sender(message: Message) -> None:
            nonlocal started
            if not started and message["type"] in ENDS:
                started = True
                if visit.open:
                    status = message.get("status", ENDS[message["type"]])
                    await settled(visit, Response(status, message.get("headers", ())))
                message = self._told(message, visit)
            await send(message)

        try:
            await app(scope, receive, sender)
        except RateLimitExceeded as error:
            if started:
                raise
            answer = await self._answer(error, visit, scope)
            await answer(scope, receive, sender)
        except Exception:
            if not started:
                await settled(visit, Response(500))
            raise

    async def _asked(self, scope: Scope, visit: Visit) -> App:
        """Ask about a request: what is to answer it, the application or a denial."""
        gate = self.gate
        request = AsgiRequest(scope, gate.identity)
        passage = await enter_async(gate, request, visit)
        if passage is None:
            return self.app
        if passage.refused:
            return await denying(gate.on_denied, request, passage.decision)
        delay = gate.delay(passage.decision)
        if delay:
            await asyncio.sleep(delay)
        if passage.holding is not None:
            visit.open = [*visit.open, passage]
        return self.app

    async def _decided(self, scope: Scope, decision: Decision) -> App:
        """What is to answer a request that was decided simply: a denial, or the application in its turn."""
        if not decision.allowed:
            return await denying(self.gate.on_denied, AsgiRequest(scope, self.gate.identity), decision)
        await asyncio.sleep(self.gate.delay(decision))
        return self.app

    def _told(self, message: Message, visit: Visit) -> Message:
        """The start of a response, with the headers."""
        if not visit.decisions or message["type"] == CLOSE:
            return message
        style = self.gate.style
        return with_headers(message, visit.headers(style, self.limiter.clock.ticks() if style.reset == "epoch" else 0))

    async def _answer(self, error: RateLimitExceeded, visit: Visit, scope: Scope) -> App:
        """What answers a denial that was raised inside: a route's, or the application's own."""
        visit.tell(error.decision)
        if not isinstance(error, Refused):
            gate = (visit.around if isinstance(visit.around, RateLimitMiddleware) else self).gate
            error = Refused(error.decision, AsgiRequest(scope, gate.identity), gate.on_denied)
        return await denying(error.on_denied, error.request, error.decision)


async def settled(visit: Visit, response: Response) -> None:
    """The response is known: give back what it does not count for, at all gates that wait for it."""
    waiting, visit.open = visit.open, ()
    for passage in waiting:
        await settle_async(passage, response)
