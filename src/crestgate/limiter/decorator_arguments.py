"""Keys of decorated calls (templates and callables), and checks of a decorator's arguments.

Mistakes that would silently limit nothing, or all calls together, are errors when the function is decorated.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from string import Formatter
from typing import Any

from crestgate.errors import ConfigError

__all__ = [
    "KeyMaker",
    "check_arguments",
    "is_coroutine",
    "key_maker",
    "name_of",
    "plain_callable",
    "refuse_generators",
    "refuse_missing_brackets",
]

KeyMaker = Callable[..., str]
_MAX_FRAMES = 4
"""How many stack frames are searched for the decorated function's definition."""


def refuse_generators(function: Callable[..., Any]) -> None:
    """Refuse generator functions: their body runs after the call, so the check would come too early."""
    if isinstance(function, staticmethod | classmethod | property):
        kind = type(function).__name__
        raise ConfigError(f"put @limiter.limit below @{kind}, next to the function, not above it")
    if isinstance(function, type) or not callable(function):
        raise ConfigError(f"only functions and methods can be limited, not {function!r}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigError(
            f"{name_of(function)} is a generator: its body runs after the call, when the limit has already "
            "been checked. Limit the function that iterates it, or call limiter.check inside"
        )


def refuse_missing_brackets(limits: object, form: str) -> None:
    """Refuse `@limiter.limit` without brackets: it is given the function itself, would take it for a callable that
    returns limits, and would limit nothing. `form` is what to write instead."""
    if isinstance(limits, type) or (callable(limits) and _is_being_defined(limits)):
        raise ConfigError(
            f"{name_of(limits)} was given instead of limits: write {form}, with the limits in parentheses"
        )


def _is_being_defined(function: Callable[..., Any]) -> bool:
    """Whether a stack frame is at a line of this function's definition, as one is only while its decorators run. A
    lambda is never decorated, and is often written where it is passed."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None or code.co_name == "<lambda>":
        return False
    last = max((line for _, _, line in code.co_lines() if line is not None), default=code.co_firstlineno)
    frame = sys._getframe()
    for _ in range(_MAX_FRAMES):
        if frame.f_back is None:
            return False
        frame = frame.f_back
        if code.co_firstlineno <= frame.f_lineno <= last and any(one is code for one in frame.f_code.co_consts):
            return True
    return False


def name_of(function: Callable[..., Any]) -> str:
    """The name of a function, or of the type of another callable object."""
    return getattr(function, "__qualname__", None) or type(function).__qualname__


def is_coroutine(function: object) -> bool:
    """Whether a callable is a coroutine function, or an object whose `__call__` is one."""
    called = getattr(type(function), "__call__", None)  # noqa: B004 - not whether it can be called, but how
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)


def plain_callable(name: str, given: Any) -> Callable[..., Any]:
    """A callable that is not async: an unawaited coroutine would always be true."""
    if not callable(given):
        raise ConfigError(f"{name} must be a callable, not {given!r}")
    if is_coroutine(given):
        raise ConfigError(f"{name} must be a plain function, and {name_of(given)} is async")
    function: Callable[..., Any] = given
    return function


def check_arguments(name: str, given: Callable[..., Any], function: Callable[..., Any]) -> None:
    """Refuse a callable that does not accept the function's arguments: it would fail at every call."""
    try:
        takes, called = inspect.signature(given), inspect.signature(function)
    except ValueError:  # a builtin without a signature
        return
    parameters = called.parameters.values()
    if any(one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for one in parameters):
        return
    needed = [one for one in parameters if one.default is one.empty]
    for arguments in (needed, parameters):  # the call with the fewest arguments, and that with the most
        positional = [None for one in arguments if one.kind is not one.KEYWORD_ONLY]
        try:
            takes.bind(*positional, **{one.name: None for one in arguments if one.kind is one.KEYWORD_ONLY})
        except TypeError:
            continue
        return
    raise ConfigError(
        f"{name} is given the arguments of the call, and takes {takes} where {name_of(function)} is called with "
        f"({', '.join(called.parameters)})"
    )


def key_maker(function: Callable[..., Any], key: str | KeyMaker | None) -> KeyMaker:
    """A function from the arguments of a call to its key."""
    if key is None:
        name = f"{getattr(function, '__module__', '')}.{name_of(function)}"
        return lambda *_args, **_kwargs: name
    if not isinstance(key, str):
        if not callable(key):
            raise ConfigError(f"key must be a template such as 'user:{{user_id}}' or a callable, not {key!r}")
        return plain_callable("key", key)
    if not key:
        raise ConfigError("key must not be empty: leave it out, or write a template such as 'user:{user_id}'")
    fields = _fields(key)
    if not fields:
        return lambda *_args, **_kwargs: key.format()
    try:
        signature = inspect.signature(function)
    except ValueError:
        raise ConfigError(f"key template {key!r}: {name_of(function)} has no signature") from None
    for field in fields:
        if field not in signature.parameters:
            known = ", ".join(signature.parameters) or "none"
            raise ConfigError(
                f"key template {key!r}: {name_of(function)} has no parameter {field!r}; its parameters are: {known}"
            )

    def make(*args: Any, **kwargs: Any) -> str:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return key.format_map(bound.arguments)

    return make


def _fields(template: str) -> list[str]:
    """The parameters that a template names: 'user' of '{user.id}' and '{user[0]}'."""
    try:
        names = [name for _, name, _, _ in Formatter().parse(template) if name is not None]
    except ValueError as error:
        raise ConfigError(f"key template {template!r}: {error}; write {{{{ for a brace") from None
    roots = [name.split(".")[0].split("[")[0] for name in names]
    if any(not root or root.isdigit() for root in roots):
        raise ConfigError(f"key template {template!r}: name the parameter between the braces, as in 'user:{{user_id}}'")
    return roots
