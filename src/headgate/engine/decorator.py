"""The key of a decorated call, a template or a callable, and other callables, looked at when the function is decorated.

Mistakes that would silently limit nothing, or everything together, are refused at that moment.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from string import Formatter
from typing import Any

from headgate.errors import ConfigError

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
_NEAREST = 4
"""How many callers are looked at for the one who decorates."""


def refuse_generators(function: Callable[..., Any]) -> None:
    """A generator function does nothing when called, so a limit on the call would come too early."""
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
    """A decorator that was written without its brackets is given the function that it was to decorate, and would take
    it for a callable that tells limits: nothing would be limited. `form` is what to write instead."""
    if isinstance(limits, type) or (callable(limits) and _is_being_defined(limits)):
        raise ConfigError(f"{name_of(limits)} stands in the place of limits: write {form}, with the limits in brackets")


def _is_being_defined(function: Callable[..., Any]) -> bool:
    """Whether some caller is at a line of this function's own definition, as it is only while its decorators run. A
    lambda is never decorated, and is often written where it is given."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None or code.co_name == "<lambda>":
        return False
    last = max((line for _, _, line in code.co_lines() if line is not None), default=code.co_firstlineno)
    frame = sys._getframe()
    for _ in range(_NEAREST):
        if frame.f_back is None:
            return False
        frame = frame.f_back
        if code.co_firstlineno <= frame.f_lineno <= last and any(one is code for one in frame.f_code.co_consts):
            return True
    return False


def name_of(function: Callable[..., Any]) -> str:
    """What a function is called; a partial or another callable object has no name of its own."""
    return getattr(function, "__qualname__", None) or type(function).__qualname__


def is_coroutine(function: object) -> bool:
    """Whether somebody has to wait for what a callable says: a function or an object that is called by `async def`."""
    called = getattr(type(function), "__call__", None)  # noqa: B004 - not whether it can be called, but how
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)


def plain_callable(name: str, given: Any) -> Callable[..., Any]:
    """A callable that answers at once. A coroutine function does not, and what it returns unawaited is always true."""
    if not callable(given):
        raise ConfigError(f"{name} must be a callable, not {given!r}")
    if is_coroutine(given):
        raise ConfigError(f"{name} must be a plain function that answers at once, and {name_of(given)} is async")
    told: Callable[..., Any] = given
    return told


def check_arguments(name: str, told: Callable[..., Any], function: Callable[..., Any]) -> None:
    """Refuse a callable that cannot be given what the function is: it would fail at every call."""
    try:
        takes, called = inspect.signature(told), inspect.signature(function)
    except ValueError:  # one of them does not tell
        return
    parameters = called.parameters.values()
    if any(one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for one in parameters):
        return
    needed = [one for one in parameters if one.default is one.empty]
    for some in (needed, parameters):  # the call with the fewest arguments, and that with the most
        positional = [None for one in some if one.kind is not one.KEYWORD_ONLY]
        try:
            takes.bind(*positional, **{one.name: None for one in some if one.kind is one.KEYWORD_ONLY})
        except TypeError:
            continue
        return
    raise ConfigError(
        f"{name} is given the arguments of the call, and takes {takes} where {name_of(function)} is called with "
        f"({', '.join(called.parameters)})"
    )


def key_maker(function: Callable[..., Any], key: str | KeyMaker | None) -> KeyMaker:
    """From the arguments of a call to its key."""
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
        raise ConfigError(f"key template {key!r}: {name_of(function)} does not tell its parameters") from None
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
