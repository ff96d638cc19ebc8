"""Calendar windows by brute force, from nothing but ``datetime`` and ``zoneinfo``.

The library computes boundaries and caches them. Here every instant is looked up
by itself: two instants are in one window when they have the same key, which is
read off the civil clock.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

__all__ = ["CALENDAR_UNITS", "CALENDAR_ZONES", "calendar", "is_calendar", "longest_us", "nominal_us", "window_key"]

SECOND = 1_000_000
DAY = 86_400 * SECOND
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NOMINAL_DAYS = {"day": 1, "week": 7, "month": 31, "quarter": 92, "year": 366}
SHORT = {"minute": 60 * SECOND, "hour": 3_600 * SECOND}
CALENDAR_UNITS = (*SHORT, *NOMINAL_DAYS)
CALENDAR_ZONES = (
    *("UTC", "Europe/Berlin", "America/New_York", "America/Nuuk", "Australia/Lord_Howe", "Asia/Kathmandu"),
    *("America/Sao_Paulo", "Asia/Beirut", "Pacific/Apia", "Africa/Casablanca"),
)
"""Clocks that change by an hour or half an hour, at night, at midnight or over it; offsets of quarters of an hour."""


def calendar(unit: str, zone: str) -> str:
    """A calendar window as the model's limits spell it."""
    return f"calendar {unit} in {zone}"


def is_calendar(algorithm: str) -> bool:
    return algorithm.startswith("calendar ")


def longest_us(algorithm: str) -> int:
    """Longer than any window: clocks may go back by up to a day."""
    unit, _ = _parts(algorithm)
    return SHORT[unit] if unit in SHORT else (NOMINAL_DAYS[unit] + 1) * DAY


def nominal_us(algorithm: str) -> int:
    unit, _ = _parts(algorithm)
    return SHORT[unit] if unit in SHORT else NOMINAL_DAYS[unit] * DAY


@lru_cache(maxsize=200_000)
def window_key(algorithm: str, instant_us: int) -> tuple[object, ...]:
    """Equal for two instants of one window, and only for those."""
    unit, zone = _parts(algorithm)
    second = instant_us // SECOND
    local = _local(zone, second)
    if unit in SHORT:
        minute = 0 if unit == "hour" else local.minute
        return local.replace(minute=minute, second=0, microsecond=0, tzinfo=None), _offset(local)
    reached = local.date()
    if _offset(_local(zone, second - 30 * 3_600)) > _offset(local):
        # The clocks went back a while ago. A date that had been reached before that stays reached.
        for before in range(1, 30 * 60):
            reached = max(reached, _local(zone, second // 60 * 60 - before * 60 + 59).date())
    return _label(unit, reached)


def _label(unit: str, day: date) -> tuple[object, ...]:
    if unit == "week":
        return day.isocalendar()[:2]
    if unit == "month":
        return day.year, day.month
    if unit == "quarter":
        return day.year, (day.month + 2) // 3
    return (day.year,) if unit == "year" else (day,)


@lru_cache(maxsize=1000)
def _parts(algorithm: str) -> tuple[str, str]:
    _, unit, _, zone = algorithm.split(" ")
    return unit, zone


def _local(zone: str, second: int) -> datetime:
    return (EPOCH + timedelta(seconds=second)).astimezone(ZoneInfo(zone))


def _offset(local: datetime) -> timedelta:
    offset = local.utcoffset()
    assert offset is not None
    return offset
