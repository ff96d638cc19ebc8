"""Timestamps of logs, in whole microseconds since the epoch.

Neighbouring lines have the same second, so what was parsed is cached by its text.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Final

from crestgate.core.bounded_cache import add_bounded
from crestgate.simulate.bad_lines import LineError

__all__ = ["parse_clf_time", "parse_time"]

MAX_US: Final = 7_258_118_400_000_000
"""The year 2200."""
MAX_CACHED: Final = 4096
_MONTHS: Final = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec"
MONTHS: Final = {name: number for number, name in enumerate(_MONTHS.split(), 1)}
_CLF: Final = re.compile(r"(\d{1,2})/([A-Z][a-z]{2})/(\d{4}):(\d\d):(\d\d):(\d\d) ([+-])(\d\d)(\d\d)", re.ASCII)
_ISO: Final = re.compile(
    r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d)(?:[.,](\d{1,12}))?\s?(Z|[+-]\d\d:?\d\d)?", re.ASCII | re.IGNORECASE
)
_NUMBER: Final = re.compile(r"\d{1,19}(?:\.\d{1,12})?", re.ASCII)
_seconds: dict[str, int] = {}


def parse_clf_time(text: str) -> int:
    """The time of the combined log format. LineError if it is none.

    >>> parse_clf_time("10/Oct/2000:13:55:36 -0700")
    971211336000000
    """
    found = _seconds.get(text)
    if found is not None:
        return found
    match = _CLF.fullmatch(text)
    if match is None:
        raise LineError("the time is not as [10/Oct/2000:13:55:36 -0700]")
    day, month, year, hour, minute, second, sign, hours, minutes = match.groups()
    offset = timedelta(hours=int(hours), minutes=int(minutes))
    try:
        zone = timezone(-offset if sign == "-" else offset)
        moment = datetime(int(year), MONTHS[month], int(day), int(hour), int(minute), min(int(second), 59), tzinfo=zone)
        parsed = _bounded(round(moment.timestamp()) * 1_000_000)
    except (ValueError, KeyError, OverflowError):
        raise LineError("the time is not a date that exists") from None
    return add_bounded(_seconds, text, parsed, MAX_CACHED)


def parse_time(value: object) -> int:
    """The time of a JSON line: RFC 3339, the combined format, or seconds, milliseconds, microseconds or nanoseconds
    since the epoch, whichever is near our time. Without a time zone it is UTC. LineError if it is none.

    >>> parse_time("2023-11-14T22:13:20.5Z"), parse_time(1700000000.5), parse_time("1700000000500")
    (1700000000500000, 1700000000500000, 1700000000500000)
    """
    if isinstance(value, str):
        match = _ISO.fullmatch(value)
        if match is not None:
            base, fraction, zone = match.groups()
            whole = _seconds.get(base + (zone or ""))
            if whole is None:
                whole = _whole_seconds(base, zone)
            return whole + int(fraction[:6].ljust(6, "0")) if fraction else whole
        if _NUMBER.fullmatch(value):
            return _epoch(float(value) if "." in value else int(value))
        return parse_clf_time(value.strip("[]"))
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _epoch(value)
    raise LineError("the time is neither text nor a number")


def _whole_seconds(base: str, zone: str | None) -> int:
    try:
        moment = datetime.fromisoformat(base + (zone or "").upper())
        moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
        parsed = _bounded(round(moment.timestamp()) * 1_000_000)
    except (ValueError, OverflowError):
        raise LineError("the time is not a date that exists") from None
    return add_bounded(_seconds, base + (zone or ""), parsed, MAX_CACHED)


def _epoch(number: float) -> int:
    for limit, factor, divisor in ((10**11, 1_000_000, 1), (10**14, 1_000, 1), (10**17, 1, 1)):
        if number < limit:
            return _bounded(round(number * factor) // divisor)
    return _bounded(round(number) // 1_000) if number < 10**20 else _bounded(MAX_US)


def _bounded(time_us: int) -> int:
    if not 0 <= time_us < MAX_US:
        raise LineError("the time is not between 1970 and 2200")
    return time_us
