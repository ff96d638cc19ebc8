"""`CRESTGATE` in a project's settings: options of the middleware, some of which are defaults of decorators too.

    LIMITER             a Limiter or AsyncLimiter, a store's URL or several, or the path of a configuration
    LIMITS              the limits of the middleware: "100/minute", plans, several; absent: the limiter's rules, if any
    KEY, COST, EXEMPT, METHODS, WHEN, DRY_RUN, WAIT, ON_DENIED, HEADERS, RESET, DEFAULT_ALGORITHM,
    TRUSTED_PROXIES, USER, TIER, CLIENT, API_KEY_HEADER
                        the options of all integrations, which are lower-case there

A callable may be written as text, `"shop.limits.tenant"`, because settings are read before other modules can be
imported. Under ASGI, one that queries a database must be an `async def`, as Django requires; it works in threads too.
Errors raise ImproperlyConfigured when the server starts.
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

__all__ = ["Project", "crestgate_settings", "project_options"]

_KNOWN = ("LIMITER", "LIMITS", *(name.upper() for name in LayerOptions.__annotations__))
_CALLABLES = ("KEY", "COST", "EXEMPT", "WHEN", "ON_DENIED", "USER", "TIER", "CLIENT")
_SYNONYMS = {"STORE": "LIMITER", "URL": "LIMITER", "LIMIT": "LIMITS", "RATE": "LIMITS", "KEY_FUNC": "KEY"}
_SYNONYMS["STRATEGY"] = _SYNONYMS["ALGORITHM"] = "DEFAULT_ALGORITHM"
_PER_LAYER = ("LIMITER", "LIMITS", "COST", "EXEMPT", "METHODS", "WHEN")
"""The options of the middleware alone. All others are defaults of decorators too."""
_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")


class Project(NamedTuple):
    """The options in the settings."""

    limiter: GivenLimiter
    limits: LayerLimits
    options: LayerOptions
    """Of the middleware."""
    shared: LayerOptions
    """The part of them that decorators inherit."""


def crestgate_settings() -> Mapping[str, Any]:
    """`CRESTGATE` of the settings; empty if it is missing."""
    given = getattr(settings, "CRESTGATE", None)
    if given is None:
        return _EMPTY
    if not isinstance(given, Mapping):
        raise ImproperlyConfigured(f'CRESTGATE must be a dict such as {{"LIMITS": "100/minute"}}, not {given!r}')
    return given


def project_options(given: Mapping[str, Any]) -> Project:
    """The options in `CRESTGATE`, with its callables imported."""
    for name in given:
        if name not in _KNOWN:
            raise ImproperlyConfigured(f"CRESTGATE has no {name!r}: {_hint(str(name))}")
    values = {name: _with_imports(name, value) if name in _CALLABLES else value for name, value in given.items()}
    options = {name.lower(): value for name, value in values.items() if name not in ("LIMITER", "LIMITS")}
    shared = {name.lower(): value for name, value in values.items() if name not in _PER_LAYER}
    return Project(values.get("LIMITER"), values.get("LIMITS"), cast(LayerOptions, options), cast(LayerOptions, shared))


_EMPTY: Mapping[str, Any] = {}


def _hint(name: str) -> str:
    upper = name.upper()
    if upper in _SYNONYMS or upper in _KNOWN:
        return f"did you mean {_SYNONYMS.get(upper, upper)!r}?"
    close = get_close_matches(upper, _KNOWN, n=1)
    return f"did you mean {close[0]!r}?" if close else f"it has {', '.join(_KNOWN)}"


def _with_imports(name: str, value: Any) -> Any:
    """A setting with the callables that its text names imported; for a key, in each part."""
    if name == "KEY" and isinstance(value, str | list | tuple):
        return [_import(name, part) for part in (value.split("|") if isinstance(value, str) else value)]
    return _import(name, value)


def _import(name: str, value: Any) -> Any:
    if not isinstance(value, str) or _DOTTED.fullmatch(value.strip()) is None:
        return value
    try:
        function = import_string(value.strip())
    except ImportError as error:
        raise ImproperlyConfigured(f"CRESTGATE[{name!r}] is {value!r}, which cannot be imported: {error}") from error
    if not callable(function):
        raise ImproperlyConfigured(f"CRESTGATE[{name!r}] is {value!r}, which must be a callable, not {function!r}")
    return function
