"""The middleware itself: what it does with a scope, and with the messages of a response."""

from __future__ import annotations

import asyncio
from typing import Any, Unpack

from crestgate.core.decision import Decision
from crestgate.errors import RateLimitExceeded
from crestgate.integrations.asgi.denial import CLOSE, ENDS, Refused, denying, with_headers
from crestgate.integrations.asgi.request import App, AsgiRequest, Message, Scope
from crestgate.integrations.drivers import check_async, settle_async
from crestgate.integrations.layer import LayerLimits, LayerOptions, LimitLayer, no_limits
from crestgate.integrations.option_errors import refuse_unused
from crestgate.integrations.request import Response
from crestgate.integrations.request_state import NAME, RequestState
from crestgate.integrations.shared_limiters import GivenLimiter, async_limiter_for, connect
from crestgate.limiter.async_limiter import AsyncLimiter

__all__ = ["RateLimitMiddleware"]


class RateLimitMiddleware:
    """Limits the requests to an application, and tells in the headers of all responses how the limits stand.

    Without `limits` the rules of the limiter decide (`limiter="crestgate.yaml"`). Without either, nothing is asked
    here: the middleware then only serves the limits of the routes inside, with its limiter and their headers.
    """

    def __init__(
        self,
        app: App,
        limiter: GivenLimiter = None,
        limits: LayerLimits = None,
        *,
        websockets: bool = False,
        **options: Unpack[LayerOptions],
    ) -> None:
        self.app = app
        self.limiter: AsyncLimiter = async_limiter_for(limiter)
        self._asks = limits is not None or self.limiter.has_rules
        self._websockets = websockets
        if not self._asks:
            refuse_unused([*options, "websockets"] if websockets else options)
        self.layer: LimitLayer[AsyncLimiter] = LimitLayer(self.limiter, limits if self._asks else no_limits, **options)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        kind = scope["type"]
        if kind not in ("http", "websocket"):
            if kind == "lifespan":
                await connect(self.limiter)
            await self.app(scope, receive, send)
            return
        request_state: RequestState | None = scope.get(NAME)
        if request_state is None:
            request_state = scope[NAME] = RequestState()
        request_state.around = self
        app = self.app
        if self._asks and (kind == "http" or self._websockets):
            client = scope.get("client")
            decision = self.layer.try_fast_check(
                scope.get("method", "GET"), client[0] if client else None, request_state
            )
            if decision is None:
                app = await self._asked(scope, request_state)
            elif decision.delay or not decision.allowed:
                app = await self._decided(scope, decision)
        if request_state.writer is not None:  # the layer that writes the headers settles everything first
            await app(scope, receive, send)
            return
        request_state.writer = self
        started = False

        async def sender(message: Message) -> None:
            nonlocal started
            if not started and message["type"] in ENDS:
                started = True
                if request_state.open:
                    status = message.get("status", ENDS[message["type"]])
                    await settled(request_state, Response(status, message.get("headers", ())))
                message = self._with_headers(message, request_state)
            await send(message)

        try:
            await app(scope, receive, sender)
        except RateLimitExceeded as error:
            if started:
                raise
            answer = await self._answer(error, request_state, scope)
            await answer(scope, receive, sender)
        except Exception:
            if not started:
                await settled(request_state, Response(500))
            raise

    async def _asked(self, scope: Scope, request_state: RequestState) -> App:
        """Ask about a request: what is to answer it, the application or a denial."""
        layer = self.layer
        request = AsgiRequest(scope, layer.identity)
        admission = await check_async(layer, request, request_state)
        if admission is None:
            return self.app
        if admission.refused:
            return await denying(layer.on_denied, request, admission.decision)
        delay = layer.delay(admission.decision)
        if delay:
            await asyncio.sleep(delay)
        if admission.holding is not None:
            request_state.open = [*request_state.open, admission]
        return self.app

    async def _decided(self, scope: Scope, decision: Decision) -> App:
        """What is to answer a request that was decided simply: a denial, or the application in its turn."""
        if not decision.allowed:
            return await denying(self.layer.on_denied, AsgiRequest(scope, self.layer.identity), decision)
        await asyncio.sleep(self.layer.delay(decision))
        return self.app

    def _with_headers(self, message: Message, request_state: RequestState) -> Message:
        """The start of a response, with the headers."""
        if not request_state.decisions or message["type"] == CLOSE:
            return message
        style = self.layer.style
        return with_headers(
            message, request_state.headers(style, self.limiter.clock.ticks() if style.reset == "epoch" else 0)
        )

    async def _answer(self, error: RateLimitExceeded, request_state: RequestState, scope: Scope) -> App:
        """What answers a denial that was raised inside: a route's, or the application's own."""
        request_state.add_decision(error.decision)
        if not isinstance(error, Refused):
            layer = (request_state.around if isinstance(request_state.around, RateLimitMiddleware) else self).layer
            error = Refused(error.decision, AsgiRequest(scope, layer.identity), layer.on_denied)
        return await denying(error.on_denied, error.request, error.decision)


async def settled(request_state: RequestState, response: Response) -> None:
    """The response is known: give back what it does not count for, at all layers that wait for it."""
    waiting, request_state.open = request_state.open, ()
    for admission in waiting:
        await settle_async(admission, response)
