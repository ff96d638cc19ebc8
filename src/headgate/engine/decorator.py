"""The key of a decorated call: a template or a callable, looked at when the function is decorated.

Mistakes that would silently limit nothing, or everything together, are refused at that moment.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from string import Formatter
from typing import Any

from headgate.errors import ConfigError

__all__ = ["key_maker", "refuse_generators"]

KeyMaker = Callable[..., str]


def refuse_generators(function: Callable[..., Any]) -> None:
    """A generator function does nothing when called, so a limit on the call would come too early."""
    if not callable(function):
        raise ConfigError(f"only functions can be limited, not {function!r}: put @limiter.limit below @staticmethod")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigError(
            f"{function.__qualname__} is a generator: its body runs after the call, when the limit has already "
            "been checked. Limit the function that iterates it, or call limiter.check inside"
        )


def key_maker(function: Callable[..., Any], key: str | KeyMaker | None) -> KeyMaker:
    """From the arguments of a call to its key."""
    if key is None:
        name = f"{function.__module__}.{function.__qualname__}"
        return lambda *_args, **_kwargs: name
    if not isinstance(key, str):
        if not callable(key):
            raise ConfigError(f"key must be a template such as 'user:{{user_id}}' or a callable, not {key!r}")
        return key
    signature = inspect.signature(function)
    fields = _fields(key)
    for field in fields:
        if field not in signature.parameters:
            known = ", ".join(signature.parameters) or "none"
            raise ConfigError(
                f"key template {key!r}: {function.__qualname__} has no parameter {field!r}; its parameters are: {known}"
            )
    if not fields:
        return lambda *_args, **_kwargs: key.format()

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
