"""Limits of decorated Flask views, in any order of decorators.

A decorated view is wrapped, and the wrapper has its ViewLimit as an attribute. Before a request is handled, the
function that is registered with Flask is searched for it. The decorator may be

    below @app.route            the wrapper is registered
    below other decorators      the wrapper is in their `__wrapped__`, which functools.wraps sets
    above @app.route            the registered function is in the wrapper's `__wrapped__`

Below a decorator that hides the function it wraps, the wrapper cannot be found: then the limit is checked when the
wrapper is called, and the defaults, which it should replace, have been checked already. Above such a decorator, the
view is searched for in the closure of the decorated function.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Final

from crestgate.integrations.keys import is_coroutine
from crestgate.integrations.layer import LayerLimits

__all__ = ["ViewLimit", "limited_view", "unwrapped", "view_limits_of", "wrapped_functions"]

ATTRIBUTE: Final = "__crestgate__"
MAX_DEPTH: Final = 50
"""The maximum number of nested decorators that are searched."""


@dataclass(frozen=True, slots=True, eq=False)
class ViewLimit:
    """The limits of a decorated view; without limits the view is exempt."""

    owner: object
    """The registry of the extension."""
    limits: LayerLimits
    options: Mapping[str, Any]
    scope: str | None = None
    per_method: bool = False
    replaces: bool = True
    """Whether they replace outer limits: the blueprint's and the defaults."""
    everywhere: bool = False
    """Whether a caller has one counter for all routes."""

    @property
    def exempts(self) -> bool:
        return self.limits is None and not self.everywhere


def limited_view(
    function: Callable[..., Any], view_limit: ViewLimit, check: Callable[[ViewLimit, Any], Any]
) -> Callable[..., Any]:
    """Wrap a function. `check` is called first, and its result returned if it is not None."""
    limited: Any
    if is_coroutine(function):

        @functools.wraps(function)
        async def limited(*args: Any, **kwargs: Any) -> Any:
            response = check(view_limit, function)
            return await function(*args, **kwargs) if response is None else response

    else:

        @functools.wraps(function)
        def limited(*args: Any, **kwargs: Any) -> Any:
            response = check(view_limit, function)
            return function(*args, **kwargs) if response is None else response

    setattr(limited, ATTRIBUTE, view_limit)
    wrapper: Callable[..., Any] = limited
    return wrapper


def view_limits_of(view: object, owner: object) -> list[ViewLimit]:
    """The limits of an extension on a view, outermost first."""
    limits: list[ViewLimit] = []
    for one in unwrapped(view):
        limit = getattr(one, ATTRIBUTE, None)
        if isinstance(limit, ViewLimit) and limit.owner is owner and limit not in limits:  # functools.wraps copies it
            limits.append(limit)
    return limits


def unwrapped(view: object) -> Iterator[object]:
    """A function and the functions that it wraps, as far as its decorators expose them."""
    for _ in range(MAX_DEPTH):
        yield view
        inner = _exposed(view)
        if inner is None:
            return
        view = inner


def wrapped_functions(function: object) -> Iterator[object]:
    """A function and all functions that it may wrap, also where its decorators do not expose them."""
    visited: set[int] = set()
    pending = [function]
    while pending and len(visited) < MAX_DEPTH:
        one = pending.pop()
        if id(one) in visited:
            continue
        visited.add(id(one))
        yield one
        inner = _exposed(one)
        pending.extend(_enclosed(one) if inner is None else [inner])


def _exposed(function: object) -> object | None:
    if isinstance(function, functools.partial):
        return function.func
    if inspect.ismethod(function):
        return function.__func__
    return getattr(function, "__wrapped__", None)


def _enclosed(function: object) -> list[object]:
    """The callables in a function's closure. Siblings, defined in the same enclosing function (such as an application
    factory), are not included: they are called, not wrapped."""
    if isinstance(function, type) or not callable(function):
        return []
    if not isinstance(function, FunctionType):
        return [value for value in getattr(function, "__dict__", {}).values() if callable(value)]
    callables = []
    for cell in function.__closure__ or ():
        try:
            content = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
        if callable(content) and _parent(content) != _parent(function):
            callables.append(content)
    return callables


def _parent(function: Any) -> tuple[str, str]:
    name = getattr(function, "__qualname__", "")
    return getattr(function, "__module__", "") or "", name.rpartition(".")[0]
