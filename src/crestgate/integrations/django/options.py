"""`CRESTGATE` in a project's settings: what the middleware is made with, and what decorators have in common with it.

    LIMITER             a Limiter or AsyncLimiter, a store's URL or several, or the path of a configuration
    LIMITS              the limits of the middleware: "100/minute", plans, several; absent: the limiter's rules, if any
    KEY, COST, EXEMPT, METHODS, WHEN, DRY_RUN, WAIT, ON_DENIED, HEADERS, TRUSTED_PROXIES, USER, TIER, CLIENT,
    API_KEY_HEADER      as every integration takes them, in small letters

A callable may be written as text, `"shop.limits.tenant"`: settings are read before there is anything to import. One
that asks a database is an `async def` in a project under ASGI, as Django wants it; threads wait for it too. What is
wrong here is an ImproperlyConfigured when the server starts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple, cast

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from crestgate.integrations.layer import LayerLimits, LayerOptions
from crestgate.integrations.shared_limiters import GivenLimiter

__all__ = ["Project", "given", "project"]

_KNOWN = ("LIMITER", "LIMITS", *(name.upper() for name in LayerOptions.__annotations__))
_CALLABLES = ("KEY", "COST", "EXEMPT", "WHEN", "ON_DENIED", "USER", "TIER", "CLIENT")
_OTHER_WORDS = {"STORE": "LIMITER", "URL": "LIMITER", "LIMIT": "LIMITS", "RATE": "LIMITS", "KEY_FUNC": "KEY"}
_PER_LAYER = ("LIMITER", "LIMITS", "COST", "EXEMPT", "METHODS", "WHEN")
"""What is the middleware's own; everything else is so for the whole project, and for its decorators too."""
_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")


class Project(NamedTuple):
    """What the settings say."""

    limiter: GivenLimiter
    limits: LayerLimits
    options: LayerOptions
    """Those of the middleware."""
    shared: LayerOptions
    """Those of them that decorators have too."""


def given() -> Mapping[str, Any]:
    """`CRESTGATE` as it is written; nothing when it is not."""
    written = getattr(settings, "CRESTGATE", None)
    if written is None:
        return _NOTHING
    if not isinstance(written, Mapping):
        raise ImproperlyConfigured(f'CRESTGATE must be a dict such as {{"LIMITS": "100/minute"}}, not {written!r}')
    return written


def project(written: Mapping[str, Any]) -> Project:
    """What `CRESTGATE` says, with its callables."""
    for name in written:
        if name not in _KNOWN:
            raise ImproperlyConfigured(f"CRESTGATE has no {name!r}: {_hint(str(name))}")
    read = {name: _called(name, value) if name in _CALLABLES else value for name, value in written.items()}
    options = {name.lower(): value for name, value in read.items() if name not in ("LIMITER", "LIMITS")}
    shared = {name.lower(): value for name, value in read.items() if name not in _PER_LAYER}
    return Project(read.get("LIMITER"), read.get("LIMITS"), cast(LayerOptions, options), cast(LayerOptions, shared))


_NOTHING: Mapping[str, Any] = {}


def _hint(name: str) -> str:
    upper = name.upper()
    if upper in _OTHER_WORDS or upper in _KNOWN:
        return f"did you mean {_OTHER_WORDS.get(upper, upper)!r}?"
    close = get_close_matches(upper, _KNOWN, n=1)
    return f"did you mean {close[0]!r}?" if close else f"it has {', '.join(_KNOWN)}"


def _called(name: str, value: Any) -> Any:
    """A setting with the callables that its text names; of a key, in each part."""
    if name == "KEY":
        parts = value.split("|") if isinstance(value, str) else list(value) if _several(value) else None
        return value if parts is None else [_imported(name, part) for part in parts]
    return _imported(name, value)


def _several(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _imported(name: str, value: Any) -> Any:
    if not isinstance(value, str) or _DOTTED.fullmatch(value.strip()) is None:
        return value
    try:
        function = import_string(value.strip())
    except ImportError as error:
        raise ImproperlyConfigured(f"CRESTGATE[{name!r}] is {value!r}, which cannot be imported: {error}") from error
    if not callable(function):
        raise ImproperlyConfigured(f"CRESTGATE[{name!r}] is {value!r}, which must be a callable, not {function!r}")
    return function
