"""Options that do not exist: which one was meant, also by somebody who knows the names of another library."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from headgate.errors import ConfigError

__all__ = ["no_option"]

_ELSEWHERE = {
    # of Flask-Limiter
    "deduct_when": "here it is when",
    "error_message": "here it is on_denied, which makes the response",
    "exempt_when": "here it is exempt",
    "headers_enabled": "here it is headers, and True unless said",
    "in_memory_fallback_enabled": 'here it is said by the limiter, Limiter(url, on_store_error="local")',
    "key_func": "here it is key",
    "key_prefix": "here it is in the store's URL, as in redis://localhost?prefix=shop",
    "on_breach": "here it is on_denied, which makes the response",
    "storage_uri": "here it is limiter",
    "strategy": "here it is said in the limit, as in '5/minute using fixed_window'",
    "swallow_errors": 'here it is said by the limiter, Limiter(url, on_store_error="open")',
    # of django-ratelimit
    "block": "here whoever is over a limit is always denied, except with dry_run=True",
    "group": "here it is scope",
    "method": "here it is methods, a list",
    "rate": "here it is limits",
}


def no_option(name: str, known: Sequence[str]) -> ConfigError:
    """The error about an option that is none of those known."""
    if name in _ELSEWHERE:
        return ConfigError(f"there is no option {name}: {_ELSEWHERE[name]}")
    hint = "".join(f" (did you mean {near}?)" for near in get_close_matches(name, known, n=1))
    return ConfigError(f"there is no option {name}{hint}: there are {', '.join(known)}")
