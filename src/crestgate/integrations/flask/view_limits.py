"""Limits on Flask's views, wherever the decorator stands.

A view that is decorated is wrapped, and the wrapper carries a mark: what is registered with Flask is looked through for
marks before the request is handled. That finds them

    below @app.route            the wrapper is what is registered
    below other decorators      which leave what they wrap in `__wrapped__`, as functools.wraps does
    above @app.route            what was registered is what the wrapper wraps, and the wrapper itself is nowhere

Below a decorator that hides what it wraps, nothing can be found from outside: then the wrapper asks when it is called,
and the defaults have been asked already, since nobody knew of limits in their place. Above one, the view is looked for
in what the decorated function was made with.
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

__all__ = ["ViewLimit", "mark", "view_limits_of", "wrapped_functions"]

ATTRIBUTE: Final = "__crestgate__"
MAX_DEPTH: Final = 50
"""How many decorators are looked through. Nobody has as many."""


@dataclass(frozen=True, slots=True, eq=False)
class ViewLimit:
    """What was written about a view: limits, or without limits that it is exempt."""

    owner: object
    """The extension whose it is."""
    limits: LayerLimits
    options: Mapping[str, Any]
    scope: str | None = None
    per_method: bool = False
    replaces: bool = True
    """Whether limits that stand further out, the blueprint's and the defaults, are not asked."""
    everywhere: bool = False
    """Whether all routes have one counter for each caller."""

    @property
    def exempts(self) -> bool:
        return self.limits is None and not self.everywhere


def mark(function: Callable[..., Any], mark: ViewLimit, ask: Callable[[ViewLimit, Any], Any]) -> Callable[..., Any]:
    """The function with a mark. `ask` is called before it, and answers in its place if it returns anything."""
    limited: Any
    if is_coroutine(function):

        @functools.wraps(function)
        async def limited(*args: Any, **kwargs: Any) -> Any:
            denied = ask(mark, function)
            return await function(*args, **kwargs) if denied is None else denied

    else:

        @functools.wraps(function)
        def limited(*args: Any, **kwargs: Any) -> Any:
            denied = ask(mark, function)
            return function(*args, **kwargs) if denied is None else denied

    setattr(limited, ATTRIBUTE, mark)
    marked: Callable[..., Any] = limited
    return marked


def view_limits_of(view: object, owner: object) -> list[ViewLimit]:
    """The marks of an extension that can be seen on a view, outermost first."""
    marks: list[ViewLimit] = []
    for one in unwrapped(view):
        mark = getattr(one, ATTRIBUTE, None)
        if (
            isinstance(mark, ViewLimit) and mark.owner is owner and mark not in marks
        ):  # functools.wraps copies it outwards
            marks.append(mark)
    return marks


def unwrapped(view: object) -> Iterator[object]:
    """A function and what it tells that it wraps, one after the other."""
    for _ in range(MAX_DEPTH):
        yield view
        inner = _told(view)
        if inner is None:
            return
        view = inner


def wrapped_functions(function: object) -> Iterator[object]:
    """Everything that a decorated function may be wrapping, also where its decorators do not tell."""
    seen: set[int] = set()
    waiting = [function]
    while waiting and len(seen) < MAX_DEPTH:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        inner = _told(one)
        waiting.extend(_untold(one) if inner is None else [inner])


def _told(function: object) -> object | None:
    if isinstance(function, functools.partial):
        return function.func
    if inspect.ismethod(function):
        return function.__func__
    return getattr(function, "__wrapped__", None)


def _untold(function: object) -> list[object]:
    """The functions that a decorator's own function was made with. What stands beside it in the same function, as all
    of an application may in the one that makes it, is only called by it."""
    if isinstance(function, type) or not callable(function):
        return []
    if not isinstance(function, FunctionType):
        return [held for held in getattr(function, "__dict__", {}).values() if callable(held)]
    held = []
    for cell in function.__closure__ or ():
        try:
            content = cell.cell_contents
        except ValueError:  # not there yet
            continue
        if callable(content) and _place(content) != _place(function):
            held.append(content)
    return held


def _place(function: Any) -> tuple[str, str]:
    name = getattr(function, "__qualname__", "")
    return getattr(function, "__module__", "") or "", name.rpartition(".")[0]
