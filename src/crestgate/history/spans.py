"""Minutes and hours: their retention, and which of them cover a range of time."""

from __future__ import annotations

from typing import Final, NamedTuple

from crestgate.history.port import MAX_POINTS, Step

__all__ = [
    "HOUR",
    "MINUTE",
    "RETENTION_SECONDS",
    "SECONDS",
    "Span",
    "begin_us",
    "check_points",
    "covering_spans",
    "expired_before_us",
]

MINUTE: Final = 60
HOUR: Final = 3600
SECONDS: dict[Step, int] = {"minute": MINUTE, "hour": HOUR}
DAY = 24 * HOUR
RETENTION_SECONDS = {MINUTE: 30 * DAY, HOUR: 366 * DAY}
_US = 1_000_000


class Span(NamedTuple):
    """The minutes, or the hours, that begin at or after `first_us` and before `until_us`."""

    seconds: int
    first_us: int
    until_us: int


def begin_us(at_us: int, seconds: int) -> int:
    """The start of the minute or hour of this moment.

    >>> begin_us(3_599_999_999, MINUTE), begin_us(3_599_999_999, HOUR)
    (3540000000, 0)
    """
    return at_us - at_us % (seconds * _US)


def covering_spans(since_us: int, until_us: int) -> list[Span]:
    """Whole hours, and minutes at both ends, that cover this time without overlap."""
    first, last = begin_us(since_us, MINUTE), begin_us(until_us, HOUR)
    hour = begin_us(first + HOUR * _US - 1, HOUR)
    if hour >= last:
        spans = [Span(MINUTE, first, until_us)]
    else:
        spans = [Span(MINUTE, first, hour), Span(HOUR, hour, last), Span(MINUTE, last, until_us)]
    return [span for span in spans if span.first_us < span.until_us]


def expired_before_us(now_us: int, seconds: int) -> int:
    """Minutes or hours that begin before this are deleted."""
    return now_us - RETENTION_SECONDS[seconds] * _US


def check_points(count: int) -> None:
    if count > MAX_POINTS:
        raise ValueError(
            f"more than {MAX_POINTS:,} results: query a shorter time, hours instead of minutes, or one rule"
        )
