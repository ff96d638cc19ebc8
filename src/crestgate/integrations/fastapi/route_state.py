"""The state of a request between the check of its route's limits and its response.

A RateLimitMiddleware around the application sees every response, writes the headers and settles the check. Without one,
this module does so as far as a route can: on the response that FastAPI creates or the endpoint returns, and by the
status of an exception.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response as StarletteResponse

from crestgate.errors import RateLimitExceeded
from crestgate.integrations.asgi.request import Scope
from crestgate.integrations.asgi.routes import chosen_route
from crestgate.integrations.drivers import LayerResult, release_slots_async, settle_async
from crestgate.integrations.layer import LimitLayer
from crestgate.integrations.request import Response
from crestgate.integrations.request_state import RequestState
from crestgate.limiter.async_limiter import AsyncLimiter

__all__ = ["RouteState", "can_hold"]

_STACKS = ("fastapi_function_astack", "fastapi_inner_astack")
"""The scope's keys for the exit stack that FastAPI closes after the endpoint; the first that exists is used."""
_FUNCTION_STACK, _REQUEST_STACK = _STACKS
"""Where both exist, FastAPI closes the second after the response."""


class RouteState:
    """One request that the limits of its route have admitted."""

    __slots__ = ("_admission", "_layer", "_request_state", "_response", "_scope")

    def __init__(
        self,
        layer: LimitLayer[AsyncLimiter],
        request_state: RequestState,
        admission: LayerResult[AsyncLimiter] | None,
        scope: Scope,
        response: StarletteResponse,
    ) -> None:
        self._layer = layer
        self._request_state = request_state
        self._admission = admission
        self._scope = scope
        self._response = response
        """FastAPI copies its headers to the response that it creates."""
        if admission is not None and admission.holding is not None and request_state.writer is not None:
            request_state.unsettled = [*request_state.unsettled, admission]
        if admission is not None and admission.held is not None:
            self._release_at_end(admission)

    def _release_at_end(self, admission: LayerResult[AsyncLimiter]) -> None:
        """Have the slots of in-flight limits released when the response has ended: by the middleware, else by
        FastAPI, after the response and its background tasks."""
        if self._request_state.writer is not None:
            self._request_state.held = [*self._request_state.held, admission]
        else:
            self._scope[_REQUEST_STACK].push_async_callback(release_slots_async, [admission])

    @property
    def must_settle(self) -> bool:
        """Whether the check must be settled here, because no middleware does it."""
        admission = self._admission
        return self._request_state.writer is None and admission is not None and admission.holding is not None

    def start(self) -> None:
        """Called before the endpoint."""
        if self._request_state.writer is None:
            self.write_headers(None)
            stack = next((self._scope[name] for name in _STACKS if name in self._scope), None)
            if stack is not None and self.must_settle:
                stack.push_async_exit(self._on_exit)

    async def finish(self, returned: Any) -> None:
        """Called with the endpoint's result."""
        admission = self._admission
        if self.must_settle and admission is not None:
            if isinstance(returned, StarletteResponse):
                response = Response(returned.status_code, returned.raw_headers)
            else:
                response = Response(self._status(), self._response.raw_headers)
            await settle_async(admission, response)
        self.write_headers(returned)

    def write_headers(self, returned: Any) -> None:
        """Write the headers to the response that the endpoint returned, else to that which FastAPI creates."""
        if self._request_state.writer is None:
            response = returned if isinstance(returned, StarletteResponse) else self._response
            for name, value in self._layer.limit_headers(self._request_state):
                response.headers[name] = value

    async def fail(self, error: Exception) -> None:
        """Called with the error of the endpoint, or of what FastAPI does before it."""
        if self.must_settle and self._admission is not None:
            await settle_async(self._admission, Response(_status_of(error)))

    async def _on_exit(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> bool:
        if isinstance(error, Exception):  # a cancelled request stays charged: its client has disconnected
            await self.fail(error)
        return False

    def _status(self) -> int:
        """The status of the response that FastAPI creates."""
        status = self._response.status_code or getattr(chosen_route(self._scope), "status_code", None)
        return 200 if status is None else int(status)


def _status_of(error: Exception) -> int:
    """The likely status for an exception, whose handler has not run yet."""
    if isinstance(error, HTTPException):
        return error.status_code
    if isinstance(error, RequestValidationError):
        return 422
    return 429 if isinstance(error, RateLimitExceeded) else 500


def can_hold(scope: Scope, request_state: RequestState) -> bool:
    """Whether the end of the response will be known, to release slots of in-flight limits."""
    return request_state.writer is not None or (_FUNCTION_STACK in scope and _REQUEST_STACK in scope)
