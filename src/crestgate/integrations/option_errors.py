"""Errors about options that do not exist, or would have no effect."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from difflib import get_close_matches

from crestgate.errors import ConfigError

__all__ = ["refuse_unused", "unknown_option"]

_OTHER_LIBRARIES = {
    # of Flask-Limiter
    "deduct_when": "here it is when",
    "error_message": "here it is on_denied, which makes the response",
    "exempt_when": "here it is exempt",
    "headers_enabled": "here it is headers, and True by default",
    "in_memory_fallback_enabled": 'here it is set on the limiter, Limiter(url, on_store_error="local")',
    "key_func": "here it is key",
    "key_prefix": "here it is in the store's URL, as in redis://localhost?prefix=shop",
    "on_breach": "here it is on_denied, which makes the response",
    "storage_uri": "here it is limiter",
    "strategy": "here it is default_algorithm, or part of a limit, as in '5/minute using fixed_window'",
    "swallow_errors": 'here it is set on the limiter, Limiter(url, on_store_error="open")',
    # of django-ratelimit
    "block": "here requests over a limit are always denied, except with dry_run=True",
    "group": "here it is scope",
    "method": "here it is methods, a list",
    "rate": "here it is limits",
}


def unknown_option(name: str, known: Sequence[str]) -> ConfigError:
    """The error for an option that is not among `known`."""
    if name in _OTHER_LIBRARIES:
        return ConfigError(f"there is no option {name}: {_OTHER_LIBRARIES[name]}")
    hint = "".join(f" (did you mean {near}?)" for near in get_close_matches(name, known, n=1))
    return ConfigError(f"there is no option {name}{hint}: there are {', '.join(known)}")


_FOR_LIMITS = ("key", "cost", "exempt", "methods", "when", "dry_run", "wait", "websockets")


def refuse_unused(options: Collection[str], others: Sequence[str] = ()) -> None:
    """ConfigError for options that have no effect in a middleware without limits; `others` are further ones."""
    for name in (*_FOR_LIMITS, *others):
        if name in options:
            raise ConfigError(
                f"{name}= is for limits, and the middleware has none: give it some, such as "
                'limits="100/minute", or a limiter with rules, such as limiter="crestgate.yaml"'
            )
