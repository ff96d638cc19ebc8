"""Settings in `app.config`, and the check for unknown ones.

A setting that is not read would silently limit nothing. So an unknown name that starts with CRESTGATE_ is an error, and
a setting of Flask-Limiter is logged with its name here.
"""

from __future__ import annotations

import logging
import os
from difflib import get_close_matches

import flask

from crestgate.errors import ConfigError
from crestgate.integrations.layer import LayerOptions

__all__ = ["SETTINGS", "check_settings"]

SETTINGS = (
    "CRESTGATE_STORE",
    "CRESTGATE_DEFAULT_LIMITS",
    "CRESTGATE_APPLICATION_LIMITS",
    "CRESTGATE_TRUSTED_PROXIES",
    "CRESTGATE_HEADERS",
    "CRESTGATE_RESET",
    "CRESTGATE_DEFAULT_ALGORITHM",
    "CRESTGATE_ENABLED",
)
_SYNONYMS = {"limiter": "store", "storage_uri": "store", "strategy": "default_algorithm"}
_FLASK_LIMITER_SETTINGS = {
    "RATELIMIT_APPLICATION": "CRESTGATE_APPLICATION_LIMITS",
    "RATELIMIT_DEFAULT": "CRESTGATE_DEFAULT_LIMITS",
    "RATELIMIT_ENABLED": "CRESTGATE_ENABLED",
    "RATELIMIT_HEADERS_ENABLED": "CRESTGATE_HEADERS",
    "RATELIMIT_IN_MEMORY_FALLBACK": "on_store_error='local' of a limiter",
    "RATELIMIT_IN_MEMORY_FALLBACK_ENABLED": "on_store_error='local' of a limiter",
    "RATELIMIT_KEY_PREFIX": "CRESTGATE_STORE, with ?prefix= in its URL",
    "RATELIMIT_STORAGE_OPTIONS": "CRESTGATE_STORE, with options in its URL",
    "RATELIMIT_STORAGE_URI": "CRESTGATE_STORE",
    "RATELIMIT_STORAGE_URL": "CRESTGATE_STORE",
    "RATELIMIT_STRATEGY": "CRESTGATE_DEFAULT_ALGORITHM, with the same value",
    "RATELIMIT_SWALLOW_ERRORS": "on_store_error= of a limiter",
}
_log = logging.getLogger("crestgate")


def check_settings(app: flask.Flask) -> None:
    """ConfigError for an unknown setting; a warning for settings of Flask-Limiter."""
    for name in app.config:
        if (
            name.startswith("CRESTGATE_") and name not in SETTINGS and name not in os.environ
        ):  # environment variables may be copied
            raise ConfigError(f"app.config has {name!r}, which is not read: {_hint(name)}")
        if name in _FLASK_LIMITER_SETTINGS and "limiter" not in app.extensions:  # unless both are in use
            _log.warning(
                "%s in app.config is Flask-Limiter's, and not read: here it is %s", name, _FLASK_LIMITER_SETTINGS[name]
            )


def _hint(name: str) -> str:
    option = name.removeprefix("CRESTGATE_").lower()
    if option in LayerOptions.__annotations__:
        return f"write Crestgate(app, {option}=…)"
    words = [setting.removeprefix("CRESTGATE_").lower() for setting in SETTINGS]
    for near in [_SYNONYMS[option]] if option in _SYNONYMS else get_close_matches(option, words, n=1):
        return f"did you mean CRESTGATE_{near.upper()}?"
    return f"there are {', '.join(SETTINGS)}"
