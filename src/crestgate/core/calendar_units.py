"""The units of calendar windows, apart from their arithmetic: every limit needs these, few need core/calendar.py."""

from __future__ import annotations

from typing import Final

__all__ = ["CALENDAR_UNITS", "DAY", "DEFAULT_ZONE"]

DAY: Final = 86_400
CALENDAR_UNITS: Final = {
    "minute": 60,
    "hour": 3_600,
    "day": DAY,
    "week": 7 * DAY,
    "month": 31 * DAY,
    "quarter": 92 * DAY,
    "year": 366 * DAY,
}
"""The longest window of each unit in seconds, apart from clock changes."""
DEFAULT_ZONE: Final = "UTC"
