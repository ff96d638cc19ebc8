"""The object that is both: a dependency that FastAPI asks, and a decorator of endpoints."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable, Coroutine
from itertools import count
from types import MethodType
from typing import Annotated, Any, TypeVar, Unpack, cast, overload
from weakref import WeakSet

from anyio import from_thread
from fastapi import Depends, Response
from starlette.requests import HTTPConnection

from crestgate.core.plans import reusable
from crestgate.errors import ConfigError
from crestgate.integrations.asgi import RateLimitMiddleware
from crestgate.integrations.asgi.denial import Refused
from crestgate.integrations.asgi.request import AsgiRequest, Scope
from crestgate.integrations.asgi.routes import route_name
from crestgate.integrations.drivers import check_async
from crestgate.integrations.fastapi.denial import answer_denials
from crestgate.integrations.fastapi.endpoints import has_limit, limited_endpoint, refuse_others
from crestgate.integrations.fastapi.route_state import RouteState
from crestgate.integrations.fastapi.routes import limit_routes
from crestgate.integrations.layer import LayerLimits, LayerOptions, LimitLayer, no_limits
from crestgate.integrations.request_state import NAME, RequestState
from crestgate.integrations.shared_limiters import GivenLimiter, async_limiter_for
from crestgate.limiter.async_limiter import AsyncLimiter
from crestgate.limiter.decorator import refuse_missing_brackets

__all__ = ["RouteLimit", "limit"]

F = TypeVar("F", bound=Callable[..., Any])
_names = count(1)
_unrouted: WeakSet[Any] = WeakSet()
"""Endpoints that no route had when they were made."""


class _WithoutBrackets:
    """Stands on the first parameter of `limit`, which FastAPI only looks at when `limit` itself is the dependency."""

    def __call__(self) -> None: ...

    @property
    def __signature__(self) -> inspect.Signature:
        raise ConfigError('limit is no dependency by itself: write Depends(limit("5/minute")), with the limits in it')


def limit(
    limits: Annotated[LayerLimits, Depends(_WithoutBrackets())],
    *,
    limiter: GivenLimiter = None,
    scope: str | None = None,
    **options: Unpack[LayerOptions],
) -> RouteLimit:
    """Limits of a route: `Depends(limit("5/minute"))`, or `@limit("5/minute")`."""
    refuse_missing_brackets(limits, '@limit("5/minute")')
    return RouteLimit(limits, limiter, scope, options)


class RouteLimit:
    """What `limit` returns: a dependency of FastAPI's, and a decorator of its endpoints."""

    def __init__(self, limits: LayerLimits, limiter: GivenLimiter, scope: str | None, options: LayerOptions) -> None:
        self._limits = limits if callable(limits) or limits is None else reusable(limits)
        self._scope = scope
        self._options = options
        self._limiter = None if limiter is None else async_limiter_for(limiter)
        self._gates: dict[tuple[int, int], tuple[LimitLayer[AsyncLimiter], RateLimitMiddleware | None]] = {}
        """By the limiter, and by the middleware around; both are kept, so that no other ever has their ids."""
        if self._limiter is not None:
            self._gate(self._limiter)
        else:  # what cannot be read is an error now, although nobody knows yet whose plans are meant
            LimitLayer(_anybody, no_limits if self._limits is None else self._limits, scope=scope, **options)

    @overload
    def __call__(self, function: F, /) -> F: ...
    @overload
    def __call__(
        self, function: None = None, /, *, connection: HTTPConnection, response: Response
    ) -> Coroutine[Any, Any, RouteState]: ...
    def __call__(self, function: Any = None, /, *, connection: Any = None, response: Any = None) -> Any:
        """Given a function, decorates it. FastAPI gives a connection, and awaits what comes of it; one that takes this
        for a plain function, as older ones do, calls it in a thread."""
        if connection is not None:
            return self._ask(connection, response) if _on_a_loop() else from_thread.run(self._ask, connection, response)
        references = sys.getrefcount(function)  # before it is given to anybody else
        alone = references <= _ALONE and not isinstance(function, MethodType)  # each time one asks, it is a new method
        return self._decorated(function, alone)

    def __repr__(self) -> str:
        return f"limit({self._limits!r})"

    def _decorated(self, function: Any, alone: bool) -> Any:
        """`alone`: nobody but the decorator has the function, so no route has it either."""
        refuse_others(function, self)
        name = f"crestgate_limit_{next(_names)}"
        made: dict[int, Any] = {}

        def limited(endpoint: Any) -> Any:
            if id(endpoint) not in made:
                made[id(endpoint)] = limited_endpoint(endpoint, self, name)
            return made[id(endpoint)]

        decorated = limited(function)
        if (alone and function in _unrouted) or not limit_routes(function, self, limited, name, alone):
            _unrouted.add(decorated)
        return decorated

    async def _ask(self, connection: HTTPConnection, response: Response) -> RouteState:
        scope = connection.scope
        request_state: RequestState | None = scope.get(NAME)
        if request_state is None:
            request_state = scope[NAME] = RequestState()
        around = request_state.around if isinstance(request_state.around, RateLimitMiddleware) else None
        layer = self._gate(self._limiter or (async_limiter_for(None) if around is None else around.limiter), around)
        answer_denials(scope, layer)
        if layer.when is not None and request_state.writer is None:
            self._refuse_unsettled(scope)
        request = AsgiRequest(scope, layer.identity)
        admission = await check_async(layer, request, request_state, route_name(scope))
        if admission is not None:
            if admission.refused:
                raise Refused(admission.decision, request, layer.on_denied)
            delay = layer.delay(admission.decision)
            if delay:
                await asyncio.sleep(delay)
        route_state = RouteState(layer, request_state, admission, scope, response)
        route_state.begin()
        return route_state

    def _gate(self, limiter: AsyncLimiter, around: RateLimitMiddleware | None = None) -> LimitLayer[AsyncLimiter]:
        known = self._gates.get((id(limiter), id(around)))
        if known is None:
            layer = LimitLayer(limiter, self._limits, scope=self._scope, **_inheriting(self._options, around))
            if around is not None and "trusted_proxies" not in self._options:
                layer.identity.proxies = around.layer.identity.proxies
            known = self._gates[id(limiter), id(around)] = layer, around
        return known[0]

    def _refuse_unsettled(self, scope: Scope) -> None:
        """A dependency never hears of the response, so it cannot know whether the request counts."""
        if scope["type"] == "websocket" or not has_limit(scope.get("endpoint"), self):
            raise ConfigError(
                f"when= of {self!r} is about responses, and a dependency does not see them: write @limit(…) above the "
                "endpoint instead of Depends(limit(…)), or add the RateLimitMiddleware"
            )


RouteLimit.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # what FastAPI is to give to a dependency
    [
        inspect.Parameter("connection", inspect.Parameter.KEYWORD_ONLY, annotation=HTTPConnection),
        inspect.Parameter("response", inspect.Parameter.KEYWORD_ONLY, annotation=Response),
    ]
)
if sys.version_info >= (3, 12):
    inspect.markcoroutinefunction(RouteLimit.__call__)
else:
    cast(Any, RouteLimit.__call__)._is_coroutine = asyncio.coroutines._is_coroutine  # type: ignore[attr-defined]


def _on_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _inheriting(options: LayerOptions, around: RateLimitMiddleware | None) -> LayerOptions:
    """A route's options, and what it does not say itself as the middleware around has it."""
    if around is None:
        return options
    identity = around.layer.identity
    outer: LayerOptions = {"user": identity.user, "tier": identity.tier, "client": identity.client}
    return {**outer, "api_key_header": identity.api_key_header, "on_denied": around.layer.on_denied, **options}


class _Counting:
    """Counts as `RouteLimit` does who holds a function."""

    def __call__(self, function: Any = None, /, *, connection: Any = None, response: Any = None) -> Any:
        return sys.getrefcount(function)


def _alone() -> int:
    """How many hold a function that only its decorator has. Where Python does not count exactly: fewer than any."""

    @_Counting()
    def probe() -> None: ...

    exact = getattr(sys, "_is_gil_enabled", lambda: True)()
    return cast(int, probe) if exact else 0


_ALONE = _alone()
_anybody = AsyncLimiter(plans=lambda name: None if name[:1].isdigit() else "1/second")
