"""Endpoints with a limit: the function is wrapped, with one more parameter in its signature, which FastAPI fills.

The parameter is the RouteState of the check, which runs before the endpoint. The endpoint's result is used for the
headers and for `when`, and returned unchanged.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any
from weakref import ref

import anyio.from_thread
from fastapi import Depends

from crestgate.errors import ConfigError
from crestgate.integrations.fastapi.route_state import RouteState
from crestgate.integrations.fastapi.routes import is_endpoint, unwrapped
from crestgate.integrations.keys import is_coroutine
from crestgate.limiter.decorator_arguments import name_of

__all__ = ["has_limit", "limited_endpoint", "require_function"]

Endpoint = Callable[..., Any]
_LIMIT = "__crestgate_limit__"
"""The attribute of an endpoint with its limit."""
_FIRST_PARAMETERS = ("self", "cls")
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)


def limited_endpoint(function: Endpoint, limit: Any, name: str) -> Endpoint:
    """The wrapped function, with a parameter `name` for the RouteState."""
    unchecked = _UncheckedCall(limit)
    endpoint = (_async if is_coroutine(function) else _sync)(function, limit, name, unchecked)
    unchecked.endpoint = ref(endpoint)
    setattr(endpoint, _LIMIT, limit)
    endpoint.__signature__ = _signature(function, limit, name)  # type: ignore[attr-defined]  # functions may have one
    return endpoint


def has_limit(endpoint: Any, limit: Any) -> bool:
    """Whether an endpoint is decorated with this limit."""
    return any(getattr(part, _LIMIT, None) is limit for part in unwrapped(endpoint))


def require_function(function: Any, limit: Any) -> None:
    """ConfigError unless a limit decorates a function."""
    if isinstance(function, staticmethod | classmethod | property):
        raise ConfigError(f"put {limit!r} below @{type(function).__name__}, next to the function, not above it")
    if isinstance(function, type):
        raise ConfigError(
            f"{limit!r} is on {name_of(function)}, a class: put it on the functions that answer requests, or into "
            "dependencies=[Depends(limit(…))] of the route"
        )
    if not callable(function):
        raise ConfigError(f"{limit!r} decorates functions, and {function!r} is none")


def _async(function: Endpoint, _limit: Any, name: str, unchecked: _UncheckedCall) -> Endpoint:
    @functools.wraps(function)
    async def limited(*args: Any, **kwargs: Any) -> Any:
        route_state = kwargs.pop(name, None)
        if not isinstance(route_state, RouteState):
            if route_state is None:
                unchecked()
            return await function(*args, **kwargs)
        try:
            returned = await function(*args, **kwargs)
        except Exception as error:
            await route_state.fail(error)
            raise
        await route_state.finish(returned)
        return returned

    return limited


def _sync(function: Endpoint, limit: Any, name: str, unchecked: _UncheckedCall) -> Endpoint:
    streams = inspect.isgeneratorfunction(inspect.unwrap(function)) or inspect.isasyncgenfunction(
        inspect.unwrap(function)
    )

    @functools.wraps(function)
    def limited(*args: Any, **kwargs: Any) -> Any:
        route_state = kwargs.pop(name, None)
        if not isinstance(route_state, RouteState):
            if route_state is None:
                unchecked()
            return function(*args, **kwargs)
        if not route_state.must_settle:
            returned = function(*args, **kwargs)
            route_state.write_headers(returned)
            return returned
        if streams:
            raise ConfigError(
                f"when= of {limit!r}: {name_of(function)} is a generator, so its response is not known here. "
                "Add the RateLimitMiddleware, which sees all responses"
            )
        try:  # in a thread of FastAPI's; the charge is given back on its event loop
            returned = function(*args, **kwargs)
        except Exception as error:
            anyio.from_thread.run(route_state.fail, error)
            raise
        anyio.from_thread.run(route_state.finish, returned)
        return returned

    return limited


class _UncheckedCall:
    """Handles the call of an endpoint without a RouteState. That is correct if the program calls the function itself,
    and an error if another decorator hides the parameter from FastAPI: the limit would have no effect."""

    def __init__(self, limit: Any) -> None:
        self._limit = limit
        self._known = False
        self.endpoint: Callable[[], Endpoint | None] = lambda: None
        """The endpoint, by a weak reference: its reference count must not change."""

    def __call__(self) -> None:
        endpoint = self.endpoint()
        if self._known or endpoint is None:
            return
        if not is_endpoint(endpoint, self._limit):
            raise ConfigError(
                f"{self._limit!r} on {name_of(endpoint)} limits nothing: no FastAPI route uses it. Put it right "
                "below the route's decorator, such as @app.get; decorators between them must use functools.wraps"
            )
        self._known = True


def _signature(function: Endpoint, limit: Any, name: str) -> inspect.Signature:
    """All parameters as keyword-only, as FastAPI passes them, so that the limit's can be the first to be resolved."""
    try:
        signature = inspect.signature(function, eval_str=True)
    except Exception:  # noqa: BLE001 - an annotation may be anything; FastAPI evaluates those that remain text
        signature = inspect.signature(function)
    before, after = [], []
    for position, parameter in enumerate(signature.parameters.values()):
        if (position == 0 and parameter.name in _FIRST_PARAMETERS) or parameter.kind in _POSITIONAL:
            before.append(parameter)
        elif parameter.kind is parameter.VAR_KEYWORD:
            after.append(parameter)
        else:
            after.append(parameter.replace(kind=parameter.KEYWORD_ONLY))
    own = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=Depends(limit), annotation=Any)
    return signature.replace(parameters=[*before, own, *after])
