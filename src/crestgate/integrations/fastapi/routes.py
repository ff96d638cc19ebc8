"""Find and change the routes of an endpoint, for a decorator above the route's.

`@app.get` registers the function that it decorates. FastAPI never sees a decorator above it, so a limit there would
silently have no effect. So the routes with this function are searched for among all objects, and changed: those of
routers, and their copies where a router was included.
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
from crestgate.limiter.decorator_arguments import name_of

__all__ = ["is_endpoint", "limit_routes", "routes_of", "unwrapped"]

Endpoint = Callable[..., Any]
_KINDS: tuple[type, ...] = (
    starlette.routing.Route,  # and its subclass in FastAPI
    starlette.routing.WebSocketRoute,
    *filter(None, [getattr(fastapi.routing, "_EffectiveRouteContext", None)]),  # a route of a router that was included
)
_MAX_DEPTH = 100


def routes_of(functions: Iterable[Endpoint]) -> list[Any]:
    """The routes whose endpoint is one of these functions. Searches all objects, which takes tens of milliseconds."""
    endpoints = list(functions)
    candidates = [one for one in gc.get_objects() if issubclass(type(one), _KINDS)]
    return [
        route
        for route in candidates
        if any(_same(getattr(route, "endpoint", None), function) for function in endpoints)
    ]


def limit_routes(
    function: Endpoint, limit: Any, wrap: Callable[[Endpoint], Endpoint], name: str, unshared: bool
) -> list[Any]:
    """Add a limit to the existing routes of this function, or of a function that it wraps.

    `wrap` adds the parameter `name` to an endpoint. `unshared`: no route has the function itself.
    """
    visible = list(unwrapped(function))[1 if unshared else 0 :]
    hidden = [] if hasattr(function, "__wrapped__") else list(_enclosed(function))
    if not visible and not hidden:
        return []
    routes = routes_of([*visible, *hidden])
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
        dependency = get_dependant(path=dependant.path or route.path, call=limit, name=name)
        dependant.dependencies.insert(len(route.dependencies), dependency)  # after those of `dependencies=[…]`
        route.endpoint = dependant.call = wrap(dependant.call)
    return routes


def is_endpoint(function: Endpoint, limit: Any) -> bool:
    """Whether some route has this limit, and this function as its endpoint, under any decorators."""
    for one in gc.get_objects():
        if issubclass(type(one), _KINDS):
            dependencies = getattr(getattr(one, "dependant", None), "dependencies", ())
            if any(each.call is limit for each in dependencies) and any(
                function is part for part in unwrapped(one.endpoint)
            ):
                return True
    return False


def unwrapped(function: Any) -> Iterator[Endpoint]:
    """A function and the functions that it wraps, as far as its decorators expose them."""
    for _ in range(_MAX_DEPTH):
        yield function
        function = function.func if isinstance(function, functools.partial) else getattr(function, "__wrapped__", None)
        if function is None:
            return


def _enclosed(function: Any) -> Iterator[Endpoint]:
    """Functions wrapped by a decorator that does not expose them. Siblings, defined in the same enclosing function and
    called by name, are not included."""
    function = getattr(function, "__func__", function)
    if not isinstance(function, FunctionType):
        yield from [one for one in getattr(function, "__dict__", {}).values() if isinstance(one, FunctionType)]
        return
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            content = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
        if isinstance(content, FunctionType | MethodType):
            parent = content.__qualname__.rpartition(".")[0]
            if not (name == content.__name__ and parent and function.__qualname__.startswith(parent)):
                yield content


def _same(endpoint: Any, function: Endpoint) -> bool:
    return endpoint is function or (isinstance(endpoint, MethodType) and endpoint == function)
