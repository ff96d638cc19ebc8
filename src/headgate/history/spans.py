"""Minutes and hours: how long each is kept, and which of them a question is about."""

from __future__ import annotations

from typing import Final, NamedTuple

from headgate.history.port import MOST_POINTS, Step

__all__ = ["HOUR", "KEPT_SECONDS", "MINUTE", "SECONDS", "Span", "begin_us", "check_points", "too_old_us", "whole_spans"]

MINUTE: Final = 60
HOUR: Final = 3600
SECONDS: dict[Step, int] = {"minute": MINUTE, "hour": HOUR}
DAY = 24 * HOUR
KEPT_SECONDS = {MINUTE: 30 * DAY, HOUR: 366 * DAY}
"""For how long minutes and hours are kept."""
_US = 1_000_000


class Span(NamedTuple):
    """The minutes, or the hours, that begin at or after `first_us` and before `until_us`."""

    seconds: int
    first_us: int
    until_us: int


def begin_us(at_us: int, seconds: int) -> int:
    """When the minute or the hour of this moment begins.

    >>> begin_us(3_599_999_999, MINUTE), begin_us(3_599_999_999, HOUR)
    (3540000000, 0)
    """
    return at_us - at_us % (seconds * _US)


def whole_spans(since_us: int, until_us: int) -> list[Span]:
    """What covers this time, each minute once: whole hours, and minutes at both ends."""
    first, last = begin_us(since_us, MINUTE), begin_us(until_us, HOUR)
    hour = begin_us(first + HOUR * _US - 1, HOUR)
    if hour >= last:
        spans = [Span(MINUTE, first, until_us)]
    else:
        spans = [Span(MINUTE, first, hour), Span(HOUR, hour, last), Span(MINUTE, last, until_us)]
    return [span for span in spans if span.first_us < span.until_us]


def too_old_us(now_us: int, seconds: int) -> int:
    """Minutes or hours that begin before this are not kept."""
    return now_us - KEPT_SECONDS[seconds] * _US


def check_points(count: int) -> None:
    if count > MOST_POINTS:
        raise ValueError(
            f"there are more than {MOST_POINTS:,} numbers of that time: ask for a shorter one, for hours instead of "
            "minutes, or for one rule"
        )
