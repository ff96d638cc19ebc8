"""Where a function is an endpoint already: for a decorator that stands above the route's.

`@app.get` keeps the function it is given. Whatever is put above it afterwards, FastAPI never sees; a limit there would
do nothing and say nothing. So the routes that have the function are found, among all objects there are, and changed:
those of routers, and what was made of them where a router was included.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterable, Iterator
from types import FunctionType, MethodType
from typing import Any

import fastapi.routing
import starlette.routing
from fastapi.dependencies.utils import get_dependant

from crestgate.errors import ConfigError
from crestgate.limiter.decorator import name_of

__all__ = ["is_endpoint", "limit_routes", "routes_of", "unwrapped"]

Endpoint = Callable[..., Any]
_KINDS: tuple[type, ...] = (
    starlette.routing.Route,  # FastAPI's are such routes, too
    starlette.routing.WebSocketRoute,
    *filter(None, [getattr(fastapi.routing, "_EffectiveRouteContext", None)]),  # a route of a router that was included
)
_DEEPEST = 100


def routes_of(functions: Iterable[Endpoint]) -> list[Any]:
    """The routes that have one of these functions for an endpoint. All objects are looked at: tens of milliseconds."""
    wanted = list(functions)
    candidates = [one for one in gc.get_objects() if issubclass(type(one), _KINDS)]
    return [
        route for route in candidates if any(_same(getattr(route, "endpoint", None), function) for function in wanted)
    ]


def limit_routes(
    function: Endpoint, limit: Any, wrap: Callable[[Endpoint], Endpoint], name: str, alone: bool
) -> list[Any]:
    """Have the routes ask a limit that have this function already, or what another decorator made it from.

    `wrap` makes of an endpoint one that takes what was asked under `name`. `alone`: no route has the function itself.
    """
    reached = list(unwrapped(function))[1 if alone else 0 :]
    hidden = [] if hasattr(function, "__wrapped__") else list(_enclosed(function))
    if not reached and not hidden:
        return []
    routes = routes_of([*reached, *hidden])
    for route in routes:
        if any(_same(route.endpoint, one) for one in hidden):
            raise ConfigError(
                f"{limit!r} is above a route of {name_of(route.endpoint)}, with a decorator in between that hides it: "
                "write it below the route's decorator, or let the other decorator use functools.wraps"
            )
        if getattr(route, "dependant", None) is None:
            raise ConfigError(
                f"{limit!r} is on {name_of(function)}, a plain Starlette route ({route.path!r}), which has no "
                "dependencies: make it one of FastAPI's, such as @app.get, or use the RateLimitMiddleware"
            )
    for route in routes:
        dependant = route.dependant
        asking = get_dependant(path=dependant.path or route.path, call=limit, name=name)
        dependant.dependencies.insert(len(route.dependencies), asking)  # after those of `dependencies=[…]`
        route.endpoint = dependant.call = wrap(dependant.call)
    return routes


def is_endpoint(function: Endpoint, limit: Any) -> bool:
    """Whether some route has this function for an endpoint, under whatever decorators, and asks the limit."""
    for one in gc.get_objects():
        if issubclass(type(one), _KINDS):
            dependencies = getattr(getattr(one, "dependant", None), "dependencies", ())
            if any(each.call is limit for each in dependencies) and any(
                function is part for part in unwrapped(one.endpoint)
            ):
                return True
    return False


def unwrapped(function: Any) -> Iterator[Endpoint]:
    """A function, and what decorators have made it from, as far as they tell."""
    for _ in range(_DEEPEST):
        yield function
        function = function.func if isinstance(function, functools.partial) else getattr(function, "__wrapped__", None)
        if function is None:
            return


def _enclosed(function: Any) -> Iterator[Endpoint]:
    """Functions that one was given by a decorator that does not tell. One that stands beside it in the same function,
    and that it calls by its name, is none of these."""
    function = getattr(function, "__func__", function)
    if not isinstance(function, FunctionType):
        yield from [one for one in getattr(function, "__dict__", {}).values() if isinstance(one, FunctionType)]
        return
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            held = cell.cell_contents
        except ValueError:  # it is not there yet
            continue
        if isinstance(held, FunctionType | MethodType):
            around = held.__qualname__.rpartition(".")[0]
            if not (name == held.__name__ and around and function.__qualname__.startswith(around)):
                yield held


def _same(endpoint: Any, function: Endpoint) -> bool:
    return endpoint is function or (isinstance(endpoint, MethodType) and endpoint == function)
