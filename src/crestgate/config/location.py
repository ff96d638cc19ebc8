"""Where the configuration is: the same for `Limiter.from_config()`, `crestgate serve`, the commands and frameworks.

1. the file that is named: an argument, or `--config FILE`
2. CRESTGATE_CONFIG
3. crestgate.yaml in the working folder
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from crestgate.errors import ConfigError

__all__ = ["DEFAULT_CONFIG", "VARIABLE", "find_config", "no_config"]

DEFAULT_CONFIG = "crestgate.yaml"
VARIABLE = "CRESTGATE_CONFIG"


def find_config(path: str | os.PathLike[str] | None, environ: Mapping[str, str]) -> str | None:
    """The file to read, or None if none is named and there is none here. A file that is named need not exist: reading
    it reports that.

    >>> find_config("mine.yaml", {"CRESTGATE_CONFIG": "other.yaml"})
    'mine.yaml'
    >>> find_config(None, {"CRESTGATE_CONFIG": "other.yaml"})
    'other.yaml'
    """
    named = os.fspath(path) if path is not None else ""
    named = named or environ.get(VARIABLE, "").strip()
    if named:
        return named
    return DEFAULT_CONFIG if os.path.exists(DEFAULT_CONFIG) else None


def no_config(remedy: str) -> ConfigError:
    """The error where a configuration is needed and `find_config` finds none. `remedy` is what to do instead."""
    return ConfigError(
        f"there is no configuration: no file is named, {VARIABLE} is not set, and there is no {DEFAULT_CONFIG} in "
        f"{os.getcwd()}: {remedy}"
    )
