"""Options that are for limits, in a middleware that has none: they would be read, and mean nothing."""

from __future__ import annotations

from collections.abc import Collection

from headgate.errors import ConfigError

__all__ = ["refuse_idle"]

_ASKING = ("key", "cost", "exempt", "methods", "when", "dry_run", "wait", "websockets")


def refuse_idle(options: Collection[str]) -> None:
    """ConfigError for the first of the options that nothing is made of where nothing is asked."""
    for name in _ASKING:
        if name in options:
            raise ConfigError(
                f"{name}= is for limits, and the middleware has none: give it some, such as "
                'limits="100/minute", or a limiter with rules, such as limiter="headgate.yaml"'
            )
