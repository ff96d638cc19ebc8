"""Parser for HTTP dates (RFC 9110, section 5.6.7): the current format and two obsolete ones.

The standard library's parser is for mail and accepts almost anything, and `strptime` depends on the locale.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

__all__ = ["read_date"]

_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MONTH: Final = r"(?P<month>[A-Z][a-z]{2})"
_TIME: Final = r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)"
_FORMS: Final = tuple(
    re.compile(form, re.ASCII)
    for form in (
        rf"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun), (?P<day>\d\d) {_MONTH} (?P<year>\d{{4}}) {_TIME} GMT",
        rf"(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day, (?P<day>\d\d)-{_MONTH}-(?P<year>\d\d) {_TIME} GMT",
        rf"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) {_MONTH} (?P<day>[ \d]\d) {_TIME} (?P<year>\d{{4}})",
    )
)


def read_date(text: str, now: float) -> float | None:
    """Seconds since the epoch; None if the text is not a date. `now` determines the century of a two-digit year.

    >>> [read_date(text, 1_700_000_000) for text in ("Sun, 06 Nov 1994 08:49:37 GMT",
    ...     "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994")]
    [784111777.0, 784111777.0, 784111777.0]
    """
    match = next(filter(None, (form.fullmatch(text) for form in _FORMS)), None)
    if match is None or match["month"] not in _MONTHS:
        return None
    year = int(match["year"])
    if len(match["year"]) == 2:
        year = _full_year(year, now)
    leap = match["second"] == "60"
    try:
        moment = datetime(
            year,
            _MONTHS.index(match["month"]) + 1,
            int(match["day"]),
            int(match["hour"]),
            int(match["minute"]),
            59 if leap else int(match["second"]),
            tzinfo=UTC,
        )
    except ValueError:
        return None
    return moment.timestamp() + (1.0 if leap else 0.0)


def _full_year(two_digits: int, now: float) -> int:
    """In this century, unless that is more than 50 years ahead."""
    this_year = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=now)).year
    year = this_year - this_year % 100 + two_digits
    return year if year <= this_year + 50 else year - 100
