"""The ASGI middleware."""

from __future__ import annotations

import asyncio
from typing import Any, Unpack

from crestgate.core.decision import Decision
from crestgate.errors import RateLimitExceeded
from crestgate.integrations.asgi.denial import (
    CLOSE,
    FIRST_MESSAGES,
    denial_app,
    denial_app_for,
    ends_response,
    with_headers,
)
from crestgate.integrations.asgi.request import App, AsgiRequest, Message, Scope
from crestgate.integrations.drivers import check_async, release_slots_async, settle_async
from crestgate.integrations.layer import LayerLimits, LayerOptions, LimitLayer, no_limits
from crestgate.integrations.option_errors import refuse_unused
from crestgate.integrations.request import Response
from crestgate.integrations.request_state import NAME, RequestState
from crestgate.integrations.shared_limiters import GivenLimiter, async_limiter_for, connect
from crestgate.limiter.async_limiter import AsyncLimiter

__all__ = ["RateLimitMiddleware"]


class RateLimitMiddleware:
    """Limits the requests to an application, and adds rate limit headers to all responses.

    Without `limits` the limiter's rules apply (`limiter="crestgate.yaml"`). Without either, the middleware checks
    nothing: it only provides its limiter to the limits of the routes inside, and writes their headers.
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
        self._has_limits = limits is not None or self.limiter.has_rules
        self._websockets = websockets
        if not self._has_limits:
            refuse_unused([*options, "websockets"] if websockets else options)
            limits = no_limits
        self.layer: LimitLayer[AsyncLimiter] = LimitLayer(self.limiter, limits, **options)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        kind = scope["type"]
        if kind not in ("http", "websocket"):
            await self._pass_on(scope, receive, send)
            return
        request_state: RequestState | None = scope.get(NAME)
        if request_state is None:
            request_state = scope[NAME] = RequestState()
        request_state.middleware_layer = self.layer
        app = self.app
        if self._has_limits and (kind == "http" or self._websockets):
            client = scope.get("client")
            decision = self.layer.try_fast_check(
                scope.get("method", "GET"), client[0] if client else None, request_state
            )
            if decision is None:
                app = await self._check(scope, request_state)
            elif decision.delay or not decision.allowed:
                app = await self._finish_fast_check(scope, decision)
        if request_state.writer is not None:  # that layer settles the checks and writes the headers
            await app(scope, receive, send)
            return
        request_state.writer = self
        started = False

        async def sender(message: Message) -> None:
            nonlocal started
            if not started and message["type"] in FIRST_MESSAGES:
                started = True
                if request_state.unsettled:
                    status = message.get("status", FIRST_MESSAGES[message["type"]])
                    await _settle_all(request_state, Response(status, message.get("headers", ())))
                message = self._with_headers(message, request_state)
            await send(message)
            if request_state.held:
                await _release_at_end(request_state, message)

        try:
            await app(scope, receive, sender)
        except RateLimitExceeded as error:
            if started:
                raise
            app = await denial_app_for(error, scope, request_state.middleware_layer)
            await app(scope, receive, sender)
        except Exception:
            if not started:
                await _settle_all(request_state, Response(500))
            raise
        finally:
            if request_state.held:
                await _release_at_end(request_state)

    async def _pass_on(self, scope: Any, receive: Any, send: Any) -> None:
        """What is no request: the server's start and end."""
        if scope["type"] == "lifespan":
            await connect(self.limiter)
        await self.app(scope, receive, send)

    async def _check(self, scope: Scope, request_state: RequestState) -> App:
        """Check a request; returns what responds to it, the application or a denial."""
        layer = self.layer
        request = AsgiRequest(scope, layer.identity)
        admission = await check_async(layer, request, request_state)
        if admission is None:
            return self.app
        if admission.refused:
            return await denial_app(layer.on_denied, request, admission.decision)
        if admission.holding is not None:
            request_state.unsettled = [*request_state.unsettled, admission]
        if admission.held is not None:
            request_state.held = [*request_state.held, admission]
        return self.app

    async def _finish_fast_check(self, scope: Scope, decision: Decision) -> App:
        """After a fast check: returns a denial, or the application after the delay."""
        if not decision.allowed:
            return await denial_app(self.layer.on_denied, AsgiRequest(scope, self.layer.identity), decision)
        await asyncio.sleep(self.layer.delay(decision))
        return self.app

    def _with_headers(self, message: Message, request_state: RequestState) -> Message:
        if not request_state.decisions or message["type"] == CLOSE:
            return message
        style = self.layer.style
        return with_headers(
            message, request_state.headers(style, self.limiter.clock.ticks() if style.reset == "epoch" else 0)
        )


async def _settle_all(request_state: RequestState, response: Response) -> None:
    """Settle the checks of all layers that use this layer's headers."""
    unsettled, request_state.unsettled = request_state.unsettled, ()
    for admission in unsettled:
        await settle_async(admission, response)


async def _release_at_end(request_state: RequestState, message: Message | None = None) -> None:
    """Release the slots of all layers if this message was the last of the response, or the application has ended."""
    if message is None or ends_response(message):
        held, request_state.held = request_state.held, ()
        await release_slots_async(held)
