"""Calendar windows: where a civil minute, hour, day, week, month, quarter or year begins and ends in a time zone.

A day, and what is made of days, begins at the first instant whose civil time is not before its midnight. So a day on
which clocks change has 23 or 25 hours, one whose midnight is skipped begins after the gap, and one whose midnight comes
twice begins once. A minute or an hour also ends where the zone's offset from UTC changes: none is longer than usual.

This module is imported for the first calendar limit, and `zoneinfo` for the first zone that is not UTC: other programs
do not pay for them. Times are whole seconds since the epoch, as all boundaries are, and microseconds at the edges.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from hashlib import sha256
from typing import Final

from crestgate.core.calendar_units import CALENDAR_UNITS, DAY, DEFAULT_ZONE
from crestgate.errors import ConfigError, install_hint

__all__ = ["Calendar", "calendar_of", "parse_zone"]

MAX_ZONE_LENGTH: Final = 64
SECOND_US: Final = 1_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MACHINE_ZONES: Final = ("localtime", "posixrules")
"""Files beside the zones of a tz database which differ between machines."""
_OTHER_DATABASES: Final = ("posix/", "right/")
_zones: dict[str, tzinfo] = {DEFAULT_ZONE: UTC}
_spellings: dict[str, str] = {}
"""The names of all zones by their lower case; empty until a zone is not found."""

Segment = tuple[int, int]
"""Start and length, in microseconds: from this start, windows of this length follow each other."""


class Calendar:
    """The windows of one unit in one zone. Create it with `calendar_of`."""

    def __init__(self, unit: str, zone: str) -> None:
        self.unit = unit
        self.zone = zone
        self.identity = int.from_bytes(sha256(f"{unit} in {zone}".encode()).digest()[:6])
        """A number for this unit and zone, in the bytes of counters."""
        slack = DAY if CALENDAR_UNITS[unit] >= DAY else 0  # clocks that go back, by a day at most
        self.max_us = (CALENDAR_UNITS[unit] + slack) * SECOND_US
        """No window is longer."""
        self._tz = _zones[zone]
        self._fixed = CALENDAR_UNITS[unit] if CALENDAR_UNITS[unit] < DAY else 0
        """Seconds in a minute or an hour; 0 for units of whole days."""

    def window(self, at_us: int) -> tuple[int, int]:
        """Start and end of the window of an instant, in microseconds.

        >>> calendar_of("day", "Europe/Berlin").window(1_774_746_000_000_000)      # 2026-03-29 has 23 hours
        (1774738800000000, 1774821600000000)
        """
        start, end = self._window(at_us // SECOND_US)
        return start * SECOND_US, end * SECOND_US

    def segments(self, since_us: int, until_us: int) -> tuple[Segment, ...]:
        """The windows from one instant to another, for a store that cannot know zones.

        Each segment lasts until the next one's start, which may cut its last window short. A day in UTC is one
        segment; each change of the clocks, and each month of another length, begins another.
        """
        second, until = since_us // SECOND_US, until_us // SECOND_US
        found: list[tuple[int, int]] = []
        regular = CALENDAR_UNITS[self.unit] if CALENDAR_UNITS[self.unit] <= 7 * DAY else 0
        while second <= until:
            start, end = self._window(second)
            length = end - start
            # Windows of whole weeks or less are alike until the clocks change; months are not.
            windows = max((self._next_change(start, until) - start) // length, 1) if length == regular else 1
            if not found or found[-1][1] != length or (start - found[-1][0]) % length:
                found.append((start, length))
            second = start + windows * length
        return tuple((start * SECOND_US, length * SECOND_US) for start, length in found)

    def _window(self, second: int) -> tuple[int, int]:
        if self._fixed:
            return self._short_window(second, self._fixed)
        civil = _floor(self._civil(second), self.unit)
        after = _next(civil, self.unit)
        start, end = self._first(civil), self._first(after)
        while end <= second:  # clocks went back over the boundary, which has passed already
            start, after = end, _next(after, self.unit)
            end = self._first(after)
        return start, end

    def _short_window(self, second: int, length: int) -> tuple[int, int]:
        offset = self._offset(second)
        start = (second + offset) // length * length - offset
        end = start + length
        if self._offset(start) != offset:
            start = _first_second(start, second, lambda at: self._offset(at) == offset)
        if self._offset(end - 1) != offset:
            end = _first_second(second, end - 1, lambda at: self._offset(at) != offset)
        return start, end

    def _first(self, civil: datetime) -> int:
        """The first second whose civil time is not before this one."""
        second = _seconds(civil.replace(tzinfo=self._tz))
        if self._civil(second) == civil:
            return second
        # Clocks skip it: the change lies between the times that the offsets after and before it give.
        earlier = _seconds(civil.replace(tzinfo=self._tz, fold=1))
        return _first_second(earlier, second, lambda at: self._civil(at) >= civil)

    def _next_change(self, second: int, until: int) -> int:
        """The first second after this one at which the offset from UTC changes; `until` or later if there is none."""
        if self._tz is UTC:
            return until + self.max_us
        offset = self._offset(second)
        while second <= until:
            if self._offset(second + DAY) != offset:
                return _first_second(second, second + DAY, lambda at: self._offset(at) != offset)
            second += DAY
        return second

    def _civil(self, second: int) -> datetime:
        return (_EPOCH + timedelta(seconds=second)).astimezone(self._tz).replace(tzinfo=None, fold=0)

    def _offset(self, second: int) -> int:
        offset = (_EPOCH + timedelta(seconds=second)).astimezone(self._tz).utcoffset()
        return 0 if offset is None else offset // timedelta(seconds=1)


@lru_cache(maxsize=8192)
def calendar_of(unit: str, zone: str) -> Calendar:
    """The windows of a unit in a zone, both in their canonical spelling."""
    return Calendar(unit, parse_zone(zone))


def parse_zone(name: object) -> str:
    """The canonical name of a time zone, in any case. ConfigError if there is none, or no database of zones.

    >>> parse_zone("utc"), parse_zone("europe/berlin")
    ('UTC', 'Europe/Berlin')
    """
    if not isinstance(name, str) or not 0 < len(name) <= MAX_ZONE_LENGTH or not name.isascii():
        raise ConfigError.of("zone", f"must be the name of a time zone such as 'Europe/Berlin', not {name!r}")
    if name in _zones:
        return name
    if not _spellings and name.lower() not in ("utc", *_MACHINE_ZONES) and not name.startswith(_OTHER_DATABASES):
        zone = _load(name)
        if zone is not None:
            _zones[name] = zone
            return name
    spelling = _spelling(name)
    if spelling not in _zones:
        zone = _load(spelling)
        if zone is None:
            raise _unknown(name)
        _zones[spelling] = zone
    return spelling


def _load(name: str) -> tzinfo | None:
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # ValueError and OSError: not the name of a file in the database
        return None


def _spelling(name: str) -> str:
    """The name with the case it has in the database, which is listed once: after that, names that are not in it cost
    no file access, whoever sends them."""
    if name.lower() == "utc":
        return DEFAULT_ZONE
    from zoneinfo import available_timezones

    if not _spellings:
        known = available_timezones() - {*_MACHINE_ZONES}
        _spellings.update({zone.lower(): zone for zone in known})
        _spellings.setdefault("utc", DEFAULT_ZONE)
    spelling = _spellings.get(name.lower())
    if spelling is None:
        raise _unknown(name)
    return spelling


def _unknown(name: str) -> ConfigError:
    if len(_spellings) <= 1:
        return ConfigError.of(
            "zone", f"{name!r} is not known, because this machine has no time zone database: {install_hint('tz')}"
        )
    from difflib import get_close_matches

    close = get_close_matches(name.lower(), _spellings, n=1)
    hint = f"did you mean {_spellings[close[0]]!r}? " if close else ""
    return ConfigError.of(
        "zone",
        f"{name!r} is not in the time zone database: {hint}write an IANA name such as 'Europe/Berlin' "
        f"(a newer database: {install_hint('tz')})",
    )


def _floor(civil: datetime, unit: str) -> datetime:
    midnight = civil.replace(hour=0, minute=0, second=0, microsecond=0)
    if unit == "week":
        return midnight - timedelta(days=midnight.weekday())
    if unit == "month":
        return midnight.replace(day=1)
    if unit == "quarter":
        return midnight.replace(month=(midnight.month - 1) // 3 * 3 + 1, day=1)
    return midnight.replace(month=1, day=1) if unit == "year" else midnight


def _next(start: datetime, unit: str) -> datetime:
    """The start of the window after the one that starts here."""
    if unit in ("day", "week"):
        return start + timedelta(seconds=CALENDAR_UNITS[unit])
    months = start.month - 1 + {"month": 1, "quarter": 3, "year": 12}[unit]
    return start.replace(year=start.year + months // 12, month=months % 12 + 1)


def _seconds(aware: datetime) -> int:
    return (aware - _EPOCH) // timedelta(seconds=1)


def _first_second(low: int, high: int, is_past: Callable[[int], bool]) -> int:
    """The first second after `low`, at most `high`, that is past a change."""
    while high - low > 1:
        middle = (low + high) // 2
        if is_past(middle):
            high = middle
        else:
            low = middle
    return high
