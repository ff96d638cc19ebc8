"""An endpoint with a limit: the same function, with one more parameter that FastAPI fills and its author never sees.

What is in the parameter came of asking the limit, before the endpoint was called. The endpoint's result is looked at
once, for the headers and for `when`, and goes on as it is.
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
from crestgate.limiter.decorator import name_of

__all__ = ["has_limit", "limited_endpoint", "refuse_others"]

Endpoint = Callable[..., Any]
_LIMIT = "__crestgate_limit__"
"""Where an endpoint keeps its limit."""
_FIRST = ("self", "cls")
_PLACED = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)


def limited_endpoint(function: Endpoint, limit: Any, name: str) -> Endpoint:
    """The function, with what was asked under `name` among its parameters."""
    unasked = _Unasked(limit)
    made = (_async if is_coroutine(function) else _sync)(function, limit, name, unasked)
    unasked.endpoint = ref(made)
    setattr(made, _LIMIT, limit)
    made.__signature__ = _signature(function, limit, name)  # type: ignore[attr-defined]  # functions may have one
    return made


def has_limit(endpoint: Any, limit: Any) -> bool:
    """Whether an endpoint takes what came of asking this limit."""
    return any(getattr(part, _LIMIT, None) is limit for part in unwrapped(endpoint))


def refuse_others(function: Any, limit: Any) -> None:
    """Only functions can be endpoints with limits; what else was meant is told."""
    if isinstance(function, staticmethod | classmethod | property):
        raise ConfigError(f"put {limit!r} below @{type(function).__name__}, next to the function, not above it")
    if isinstance(function, type):
        raise ConfigError(
            f"{limit!r} is on {name_of(function)}, a class: put it on the functions that answer requests, or into "
            "dependencies=[Depends(limit(…))] of the route"
        )
    if not callable(function):
        raise ConfigError(f"{limit!r} decorates functions, and {function!r} is none")


def _async(function: Endpoint, _limit: Any, name: str, unasked: _Unasked) -> Endpoint:
    @functools.wraps(function)
    async def limited(*args: Any, **kwargs: Any) -> Any:
        route_state = kwargs.pop(name, None)
        if not isinstance(route_state, RouteState):
            if route_state is None:
                unasked()
            return await function(*args, **kwargs)
        try:
            returned = await function(*args, **kwargs)
        except Exception as error:
            await route_state.failed(error)
            raise
        await route_state.answered(returned)
        return returned

    return limited


def _sync(function: Endpoint, limit: Any, name: str, unasked: _Unasked) -> Endpoint:
    streams = inspect.isgeneratorfunction(inspect.unwrap(function)) or inspect.isasyncgenfunction(
        inspect.unwrap(function)
    )

    @functools.wraps(function)
    def limited(*args: Any, **kwargs: Any) -> Any:
        route_state = kwargs.pop(name, None)
        if not isinstance(route_state, RouteState):
            if route_state is None:
                unasked()
            return function(*args, **kwargs)
        if not route_state.waits:
            returned = function(*args, **kwargs)
            route_state.write(returned)
            return returned
        if streams:
            raise ConfigError(
                f"when= of {limit!r}: {name_of(function)} is a generator, so its response is not known here. "
                "Add the RateLimitMiddleware, which sees all responses"
            )
        try:  # in a thread of FastAPI's, since something must be given back on its event loop
            returned = function(*args, **kwargs)
        except Exception as error:
            anyio.from_thread.run(route_state.failed, error)
            raise
        anyio.from_thread.run(route_state.answered, returned)
        return returned

    return limited


class _Unasked:
    """Called when an endpoint is, without anything that came of asking. That is as it should be where a program calls
    the function itself, and a limit that does nothing where a decorator hides its parameter from FastAPI."""

    def __init__(self, limit: Any) -> None:
        self._limit = limit
        self._known = False
        self.endpoint: Callable[[], Endpoint | None] = lambda: None
        """Who calls this, if it is there still; held loosely, so that it is seen who else holds it."""

    def __call__(self) -> None:
        endpoint = self.endpoint()
        if self._known or endpoint is None:
            return
        if not is_endpoint(endpoint, self._limit):
            raise ConfigError(
                f"{self._limit!r} on {name_of(endpoint)} limits nothing: no route of FastAPI's asks it. Put it right "
                "below the route's decorator, such as @app.get; decorators between them must use functools.wraps"
            )
        self._known = True


def _signature(function: Endpoint, limit: Any, name: str) -> inspect.Signature:
    """All parameters by keyword, as FastAPI gives them, so that the limit's can be the first, which is asked first."""
    try:
        signature = inspect.signature(function, eval_str=True)
    except Exception:  # noqa: BLE001 - an annotation may be anything; FastAPI reads those that are left as text
        signature = inspect.signature(function)
    before, after = [], []
    for position, parameter in enumerate(signature.parameters.values()):
        if (position == 0 and parameter.name in _FIRST) or parameter.kind in _PLACED:
            before.append(parameter)
        elif parameter.kind is parameter.VAR_KEYWORD:
            after.append(parameter)
        else:
            after.append(parameter.replace(kind=parameter.KEYWORD_ONLY))
    own = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=Depends(limit), annotation=Any)
    return signature.replace(parameters=[*before, own, *after])
