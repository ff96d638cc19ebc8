"""What `app.config` says: the names that are read, and what becomes of those that nobody reads.

A setting that is not read limits nothing, and nobody notices. So a name that begins as ours and is none is an error,
and one that Flask-Limiter has left behind is logged with the name it has here.
"""

from __future__ import annotations

import logging
import os
from difflib import get_close_matches

import flask

from crestgate.errors import ConfigError
from crestgate.integrations.layer import LayerOptions

__all__ = ["SETTINGS", "look_over"]

SETTINGS = (
    "CRESTGATE_STORE",
    "CRESTGATE_DEFAULT_LIMITS",
    "CRESTGATE_APPLICATION_LIMITS",
    "CRESTGATE_TRUSTED_PROXIES",
    "CRESTGATE_HEADERS",
    "CRESTGATE_ENABLED",
)
_OTHER_WORDS = {"limiter": "store", "storage_uri": "store"}
_OF_FLASK_LIMITER = {
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
    "RATELIMIT_STRATEGY": "said in the limit, as in '5/minute using fixed_window'",
    "RATELIMIT_SWALLOW_ERRORS": "on_store_error= of a limiter",
}
_log = logging.getLogger("crestgate")


def look_over(app: flask.Flask) -> None:
    """ConfigError for a name of ours that there is not; a warning for names that Flask-Limiter has left behind."""
    for name in app.config:
        if name.startswith("CRESTGATE_") and name not in SETTINGS and name not in os.environ:  # variables, copied
            raise ConfigError(f"app.config has {name!r}, which is not read: {_hint(name)}")
        if name in _OF_FLASK_LIMITER and "limiter" not in app.extensions:  # which is in use beside this one
            _log.warning(
                "%s in app.config is Flask-Limiter's, and not read: here it is %s", name, _OF_FLASK_LIMITER[name]
            )


def _hint(name: str) -> str:
    option = name.removeprefix("CRESTGATE_").lower()
    if option in LayerOptions.__annotations__:
        return f"write Crestgate(app, {option}=…)"
    words = [setting.removeprefix("CRESTGATE_").lower() for setting in SETTINGS]  # what they share says nothing
    for near in [_OTHER_WORDS[option]] if option in _OTHER_WORDS else get_close_matches(option, words, n=1):
        return f"did you mean CRESTGATE_{near.upper()}?"
    return f"there are {', '.join(SETTINGS)}"
