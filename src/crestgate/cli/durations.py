"""Durations that people write: 2h, 90d."""

from __future__ import annotations

import re

from crestgate.core.limit import Limit
from crestgate.errors import ConfigError

__all__ = ["duration_us", "parse_duration"]

_DURATION = re.compile(r"(\d{1,9})\s*([a-zA-Z]+)")


def duration_us(text: str) -> int | None:
    """Microseconds; None if it is no duration.

    >>> duration_us("2h"), duration_us("90 d"), duration_us("soon")
    (7200000000, 7776000000000, None)
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        return None
    try:
        return int(match[1]) * Limit.parse(f"1/{match[2]}").period_us
    except ConfigError:  # unknown unit
        return None


def parse_duration(text: str, option: str) -> float:
    """Seconds; ConfigError, with the option, if it is no duration."""
    microseconds = duration_us(text)
    if not microseconds:
        raise ConfigError(f"{option} is a duration such as 30m, 2h or 7d, not {text!r}")
    return microseconds / 1_000_000
