"""What came of asking about a request for a route, until its response is made.

Where a RateLimitMiddleware stands around the application, it sees every response as it leaves, writes the headers and
settles. Without one, that is done here as far as a route can: on the response that FastAPI makes, on one that the
endpoint makes itself, and by the status of an exception.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

from fastapi.exceptions import RequestValidationError
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import Response as Answer

from crestgate.errors import RateLimitExceeded
from crestgate.integrations.asgi.request import Scope
from crestgate.integrations.asgi.routes import chosen_route
from crestgate.integrations.drivers import Admission, settle_async
from crestgate.integrations.layer import LimitLayer
from crestgate.integrations.request import Response
from crestgate.integrations.request_state import RequestState
from crestgate.limiter.async_limiter import AsyncLimiter

__all__ = ["RouteState"]

_STACKS = ("fastapi_function_astack", "fastapi_inner_astack")
"""Where FastAPI keeps what is to be left when an endpoint is through; the first that it has."""


class RouteState:
    """One request, once the limits of its route have let it through."""

    __slots__ = ("_gate", "_made", "_passage", "_scope", "_visit")

    def __init__(
        self,
        layer: LimitLayer[AsyncLimiter],
        request_state: RequestState,
        admission: Admission[AsyncLimiter] | None,
        scope: Scope,
        made: Answer,
    ) -> None:
        self._gate = layer
        self._visit = request_state
        self._passage = admission
        self._scope = scope
        self._made = made
        """What FastAPI takes the headers from for the response that it makes."""
        if admission is not None and admission.holding is not None and request_state.writer is not None:
            request_state.open = [*request_state.open, admission]

    @property
    def waits(self) -> bool:
        """Whether something is to be given back that nobody else will."""
        return self._visit.writer is None and self._passage is not None and self._passage.holding is not None

    def begin(self) -> None:
        """The endpoint is called next."""
        if self._visit.writer is None:
            self._write(self._made.headers)
            stack = next((self._scope[name] for name in _STACKS if name in self._scope), None)
            if stack is not None and self.waits:
                stack.push_async_exit(self._left)

    async def answered(self, returned: Any) -> None:
        """The endpoint has returned."""
        admission = self._passage
        if self.waits and admission is not None:
            if isinstance(returned, Answer):
                response = Response(returned.status_code, returned.raw_headers)
            else:
                response = Response(self._status(), self._made.raw_headers)
            await settle_async(admission, response)
        self.write(returned)

    def write(self, returned: Any) -> None:
        """Put the headers where what the endpoint returned takes them from."""
        if self._visit.writer is None:
            self._write(returned.headers if isinstance(returned, Answer) else self._made.headers)

    async def failed(self, error: Exception) -> None:
        """The endpoint has raised, or never came to run."""
        if self.waits and self._passage is not None:
            await settle_async(self._passage, Response(_status_of(error)))

    async def _left(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> bool:
        if isinstance(error, Exception):  # who was cancelled has gone away, and that is charged
            await self.failed(error)
        return False

    def _status(self) -> int:
        """The status of what FastAPI makes of a value."""
        status = self._made.status_code or getattr(chosen_route(self._scope), "status_code", None)
        return 200 if status is None else int(status)

    def _write(self, headers: MutableHeaders) -> None:
        for name, value in self._visit.headers(self._gate.style, self._gate.limiter.clock.ticks()):
            headers[name.decode("latin-1")] = value.decode("latin-1")


def _status_of(error: Exception) -> int:
    """What becomes of an exception, as far as one can tell before its handler has run."""
    if isinstance(error, HTTPException):
        return error.status_code
    if isinstance(error, RequestValidationError):
        return 422
    return 429 if isinstance(error, RateLimitExceeded) else 500
