"""`limit(…)` of FastAPI: one object that is a dependency and a decorator."""

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
from crestgate.integrations.asgi.denial import RouteLimitExceeded
from crestgate.integrations.asgi.request import AsgiRequest, Scope
from crestgate.integrations.asgi.routes import route_name
from crestgate.integrations.drivers import check_async, release_slots_async
from crestgate.integrations.fastapi.denial import add_denial_handler
from crestgate.integrations.fastapi.endpoints import has_limit, limited_endpoint, require_function
from crestgate.integrations.fastapi.route_state import RouteState, can_hold
from crestgate.integrations.fastapi.routes import limit_routes
from crestgate.integrations.layer import LayerLimits, LayerOptions, LimitLayer, no_limits
from crestgate.integrations.request_state import request_state_in
from crestgate.integrations.shared_limiters import GivenLimiter, async_limiter_for
from crestgate.limiter.async_limiter import AsyncLimiter
from crestgate.limiter.decorator_arguments import refuse_missing_brackets

__all__ = ["RouteLimit", "limit"]

F = TypeVar("F", bound=Callable[..., Any])
_names = count(1)
_reference_count: Callable[[object], int] = getattr(sys, "getrefcount", id)
"""PyPy has none: there `_UNSHARED` is 0, below any number."""
_unrouted: WeakSet[Any] = WeakSet()
"""Endpoints that no route had when they were decorated."""


class _WithoutBrackets:
    """The annotation of `limit`'s first parameter, which FastAPI reads only if `limit` itself is the dependency."""

    def __call__(self) -> None: ...

    @property
    def __signature__(self) -> inspect.Signature:
        raise ConfigError('limit is not a dependency by itself: write Depends(limit("5/minute")), with limits')


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
    """The result of `limit`: a FastAPI dependency, and a decorator of endpoints."""

    def __init__(self, limits: LayerLimits, limiter: GivenLimiter, scope: str | None, options: LayerOptions) -> None:
        self._limits = limits if callable(limits) or limits is None else reusable(limits)
        self._scope = scope
        self._options = options
        self._limiter = None if limiter is None else async_limiter_for(limiter)
        self._layers: dict[tuple[int, int], tuple[LimitLayer[AsyncLimiter], LimitLayer[AsyncLimiter] | None]] = {}
        """By the ids of the limiter and of the middleware's layer. Both are referenced here, so no id is reused."""
        if self._limiter is not None:
            self._layer(self._limiter)
        else:  # raises ConfigError for invalid limits; the limiter, and so its plans, are not known yet
            LimitLayer(_any_plans, no_limits if self._limits is None else self._limits, scope=scope, **options)

    @overload
    def __call__(self, function: F, /) -> F: ...
    @overload
    def __call__(
        self, function: None = None, /, *, connection: HTTPConnection, response: Response
    ) -> Coroutine[Any, Any, RouteState]: ...
    def __call__(self, function: Any = None, /, *, connection: Any = None, response: Any = None) -> Any:
        """Decorate a function, or check a connection as a dependency. FastAPI awaits the result; older versions take
        this for a plain function and call it in a thread."""
        if connection is not None:
            in_loop = _has_running_loop()
            return self._check(connection, response) if in_loop else from_thread.run(self._check, connection, response)
        references = _reference_count(function)  # before anything else references it
        unshared = references <= _UNSHARED and not isinstance(function, MethodType)  # methods are created per access
        return self._decorate(function, unshared)

    def __repr__(self) -> str:
        return f"limit({self._limits!r})"

    def _decorate(self, function: Any, unshared: bool) -> Any:
        """`unshared`: nothing but the decorator references the function, so no route does."""
        require_function(function, self)
        name = f"crestgate_limit_{next(_names)}"
        wrapped: dict[int, Any] = {}

        def wrap(endpoint: Any) -> Any:
            if id(endpoint) not in wrapped:
                wrapped[id(endpoint)] = limited_endpoint(endpoint, self, name)
            return wrapped[id(endpoint)]

        decorated = wrap(function)
        if (unshared and function in _unrouted) or not limit_routes(function, self, wrap, name, unshared):
            _unrouted.add(decorated)
        return decorated

    async def _check(self, connection: HTTPConnection, response: Response) -> RouteState:
        scope = connection.scope
        request_state = request_state_in(scope)
        outer: LimitLayer[AsyncLimiter] | None = request_state.middleware_layer
        layer = self._layer(self._limiter or (async_limiter_for(None) if outer is None else outer.limiter), outer)
        add_denial_handler(scope, layer)
        if layer.when is not None and request_state.writer is None:
            self._refuse_unsettled(scope)
        request = AsgiRequest(scope, layer.identity)
        admission = await check_async(layer, request, request_state, route_name(scope))
        if admission is not None and admission.held is not None and not can_hold(scope, request_state):
            await release_slots_async([admission])
            raise ConfigError(
                f"{self!r} is an in-flight limit, and this version of FastAPI does not tell a route when its response "
                "has ended: add the RateLimitMiddleware, or use FastAPI 0.121 or later"
            )
        if admission is not None and admission.refused:
            raise RouteLimitExceeded(admission.decision, request, layer.on_denied)
        route_state = RouteState(layer, request_state, admission, scope, response)
        route_state.start()
        return route_state

    def _layer(self, limiter: AsyncLimiter, outer: LimitLayer[AsyncLimiter] | None = None) -> LimitLayer[AsyncLimiter]:
        known = self._layers.get((id(limiter), id(outer)))
        if known is None:
            layer = LimitLayer(limiter, self._limits, scope=self._scope, **_with_inherited(self._options, outer))
            if outer is not None and "trusted_proxies" not in self._options:
                layer.identity.proxies = outer.identity.proxies
            known = self._layers[id(limiter), id(outer)] = layer, outer
        return known[0]

    def _refuse_unsettled(self, scope: Scope) -> None:
        """ConfigError for `when` in a dependency, which does not see the response."""
        if scope["type"] == "websocket" or not has_limit(scope.get("endpoint"), self):
            raise ConfigError(
                f"when= of {self!r} is about responses, and a dependency does not see them: write @limit(…) above the "
                "endpoint instead of Depends(limit(…)), or add the RateLimitMiddleware"
            )


RouteLimit.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # the parameters of the dependency
    [
        inspect.Parameter("connection", inspect.Parameter.KEYWORD_ONLY, annotation=HTTPConnection),
        inspect.Parameter("response", inspect.Parameter.KEYWORD_ONLY, annotation=Response),
    ]
)
if sys.version_info >= (3, 12):
    inspect.markcoroutinefunction(RouteLimit.__call__)
else:
    cast(Any, RouteLimit.__call__)._is_coroutine = asyncio.coroutines._is_coroutine  # type: ignore[attr-defined]


def _has_running_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _with_inherited(options: LayerOptions, outer: LimitLayer[AsyncLimiter] | None) -> LayerOptions:
    """A route's options, with those of the middleware around it as defaults."""
    if outer is None:
        return options
    identity = outer.identity
    inherited: LayerOptions = {
        "user": identity.user,
        "tier": identity.tier,
        "client": identity.client,
        "attributes": identity.attributes,
    }
    inherited["default_algorithm"] = outer.default_algorithm
    return {**inherited, "api_key_header": identity.api_key_header, "on_denied": outer.on_denied, **options}


class _ReferenceCounter:
    """Counts references to a function in the same way as `RouteLimit`."""

    def __call__(self, function: Any = None, /, *, connection: Any = None, response: Any = None) -> Any:
        return _reference_count(function)


def _unshared_references() -> int:
    """The reference count of a function that only its decorator has; 0 where Python does not count exactly."""

    @_ReferenceCounter()
    def probe() -> None: ...

    exact = hasattr(sys, "getrefcount") and getattr(sys, "_is_gil_enabled", lambda: True)()
    return cast(int, probe) if exact else 0


_UNSHARED = _unshared_references()
_any_plans = AsyncLimiter(plans=lambda name: None if name[:1].isdigit() else "1/second")
"""Has a plan of every name, to check limits whose limiter is not known yet."""
