"""Calendar windows against `zoneinfo` by brute force, and against dates that anybody can look up."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import zoneinfo
from datetime import datetime
from itertools import pairwise
from zoneinfo import ZoneInfo

import civil
import pytest

from crestgate.core import calendar
from crestgate.core.algorithms import build
from crestgate.core.algorithms.calendar_window import calendar_writer
from crestgate.core.calendar import calendar_of, parse_zone
from crestgate.core.calendar_units import CALENDAR_UNITS
from crestgate.core.limit import Limit
from crestgate.errors import ConfigError

SECOND = 1_000_000
HOUR = 3_600
ZONES = (
    *("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Nuuk", "Asia/Beirut", "Africa/Casablanca"),
    *("America/Sao_Paulo", "America/St_Johns", "Pacific/Apia", "Asia/Kathmandu", "America/Havana", "Asia/Tehran"),
)


def instant(text: str, zone: str = "UTC") -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()) * SECOND


def local(at_us: int, zone: str) -> str:
    return datetime.fromtimestamp(at_us // SECOND, ZoneInfo(zone)).strftime("%Y-%m-%d %H:%M:%S")


def offset_changes(zone: str, first: int, last: int) -> list[int]:
    """Hours, in seconds since the epoch, in which the offset of a zone changes."""
    tz = ZoneInfo(zone)
    offsets = [(hour, datetime.fromtimestamp(hour, tz).utcoffset()) for hour in range(first, last, HOUR)]
    return [hour for (hour, before), (_, after) in pairwise(offsets) if before != after]


def check_window(unit: str, zone: str, at_us: int) -> tuple[int, int]:
    """A window has the instants of one key, and neither the one before it nor the one after it."""
    start, end = calendar_of(unit, zone).window(at_us)
    name = civil.calendar(unit, zone)
    keys = [civil.window_key(name, at) for at in (start, at_us, end - 1)]
    assert start <= at_us < end
    assert keys[0] == keys[1] == keys[2], (unit, zone, at_us)
    assert civil.window_key(name, start - 1) != keys[0], (unit, zone, at_us, "starts earlier")
    assert civil.window_key(name, end) != keys[0], (unit, zone, at_us, "ends later")
    assert end - start <= calendar_of(unit, zone).max_us
    return start, end


@pytest.mark.parametrize("zone", ZONES)
def test_windows_around_every_clock_change(zone: str) -> None:
    """Each change of 2004 to 2027, with all units, from two days before it to two days after."""
    draw = random.Random(zone)
    changes = offset_changes(zone, instant("2004-01-01") // SECOND, instant("2027-12-31") // SECOND)
    for change in changes[:: max(len(changes) // 16, 1)]:
        for unit in CALENDAR_UNITS:
            at = (change - 2 * 86_400) * SECOND
            if unit in ("minute", "hour"):
                at = (change - 2 * HOUR) * SECOND
            until = (change + (HOUR if unit == "minute" else 2 * 86_400)) * SECOND
            windows = 0
            while at < until and windows < 200:
                at = check_window(unit, zone, at)[1]
                windows += 1
            check_window(unit, zone, (change + draw.randrange(-90_000, 90_000)) * SECOND + draw.randrange(SECOND))


@pytest.mark.parametrize("unit", CALENDAR_UNITS)
def test_windows_at_random_instants(unit: str) -> None:
    """In all zones that there are, from 1970 to 2100."""
    draw = random.Random(unit)
    zones = sorted(zoneinfo.available_timezones() - {"localtime", "posixrules"})
    for zone in draw.sample(zones, 60):
        check_window(unit, zone, draw.randrange(0, instant("2100-01-01")))


@pytest.mark.parametrize("zone", ["UTC", *ZONES])
@pytest.mark.parametrize("unit", CALENDAR_UNITS)
def test_segments_have_the_same_windows(unit: str, zone: str) -> None:
    draw = random.Random(f"{unit} {zone}")
    one = calendar_of(unit, zone)
    for text in ("2006-10-20", "2011-12-25", "2018-10-30", "2024-02-20", "2024-10-20", "2026-03-20"):
        since, until = instant(text), instant(text) + 100 * 86_400 * SECOND
        segments = one.segments(since, until)
        assert len(segments) <= 12, segments
        for _ in range(60):
            at = draw.randrange(since, until)
            assert window_in(segments, at) == one.window(at), (text, at, segments)


def window_in(segments: tuple[tuple[int, int], ...], at: int) -> tuple[int, int]:
    """As lua/calendar_window.lua finds it."""
    index = max(i for i, (start, _) in enumerate(segments) if start <= at)
    first, length = segments[index]
    start = first + (at - first) // length * length
    end = start + length
    return start, min(end, segments[index + 1][0]) if index + 1 < len(segments) else end


@pytest.mark.parametrize(
    ("unit", "zone", "at", "start", "hours"),
    [
        ("day", "Europe/Berlin", "2026-03-29 12:00", "2026-03-29 00:00:00", 23),
        ("day", "Europe/Berlin", "2026-10-25 12:00", "2026-10-25 00:00:00", 25),
        ("day", "Australia/Lord_Howe", "2026-04-05 12:00", "2026-04-05 00:00:00", 24.5),
        ("day", "Asia/Beirut", "2024-03-31 12:00", "2024-03-31 01:00:00", 23),  # there was no midnight
        ("day", "America/Nuuk", "2024-10-26 12:00", "2024-10-26 00:00:00", 25),  # 24:00 became 23:00
        ("day", "Pacific/Apia", "2011-12-29 12:00", "2011-12-29 00:00:00", 24),
        ("day", "Pacific/Apia", "2011-12-31 12:00", "2011-12-31 00:00:00", 24),  # there was no 30th
        ("day", "America/Toronto", "1919-03-31 12:00", "1919-03-31 00:30:00", 23.5),  # 23:30 became 00:30
        ("day", "Pacific/Kwajalein", "1969-09-30 12:00", "1969-09-30 00:00:00", 47),
        ("hour", "Europe/Berlin", "2026-10-25 01:30", "2026-10-25 01:00:00", 1),
        ("hour", "Asia/Kathmandu", "2026-10-25 01:30", "2026-10-25 01:00:00", 1),
        ("hour", "Australia/Lord_Howe", "2026-10-04 02:45", "2026-10-04 02:30:00", 0.5),  # 02:00 became 02:30
        ("week", "Europe/Berlin", "2026-03-29 23:59", "2026-03-23 00:00:00", 7 * 24 - 1),
        ("week", "UTC", "2026-11-18 00:00", "2026-11-16 00:00:00", 7 * 24),
        ("month", "UTC", "2024-02-29 23:59", "2024-02-01 00:00:00", 29 * 24),
        ("month", "UTC", "2023-02-28 23:59", "2023-02-01 00:00:00", 28 * 24),
        ("month", "America/New_York", "2026-12-31 23:59", "2026-12-01 00:00:00", 31 * 24),
        ("quarter", "Europe/Berlin", "2026-03-31 23:59", "2026-01-01 00:00:00", 90 * 24 - 1),
        ("quarter", "UTC", "2026-12-31 23:59", "2026-10-01 00:00:00", 92 * 24),
        ("year", "Asia/Tokyo", "2024-12-31 23:59", "2024-01-01 00:00:00", 366 * 24),
        ("year", "UTC", "1900-12-31 23:59", "1900-01-01 00:00:00", 365 * 24),
    ],
)
def test_known_windows(unit: str, zone: str, at: str, start: str, hours: float) -> None:
    found = calendar_of(unit, zone).window(instant(at, zone))
    assert local(found[0], zone) == start
    assert found[1] - found[0] == hours * HOUR * SECOND


def test_repeated_hour_is_two_windows() -> None:
    """02:00 came twice: 60 seconds and 3,600 are the most, or a clock change would double what a window lasts."""
    first = instant("2026-10-25 00:30:00")  # 02:30 CEST
    for at in (first, first + HOUR * SECOND):
        start, end = calendar_of("hour", "Europe/Berlin").window(at)
        assert (local(start, "Europe/Berlin"), end - start) == ("2026-10-25 02:00:00", HOUR * SECOND)


def without_database(code: str) -> str:
    """What a program prints where there is neither a database of the system nor the package tzdata."""
    program = f"import sys; sys.modules['tzdata'] = None\nfrom crestgate import ConfigError, Limit\n{code}"
    environ = {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONTZPATH": ""}
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environ)
    return run.stdout


@pytest.mark.parametrize("name", ["utc", "UTC", "Utc"])
def test_utc_needs_no_database(name: str) -> None:
    assert parse_zone(name) == "UTC"
    code = f"import sys; Limit.parse('1/calendar day in {name}'); print('zoneinfo' in sys.modules)"
    assert without_database(code).strip() == "False"


def test_zone_names_have_one_spelling() -> None:
    assert parse_zone("america/new_york") == "America/New_York"
    assert Limit.parse("5/calendar day in europe/BERLIN") == Limit.calendar(5, "day", "Europe/Berlin")


@pytest.mark.parametrize(
    "name",
    ["Mars/Olympus", "localtime", "posixrules", "right/UTC", "../../etc/passwd", "/etc/localtime", "a" * 65, "", 7],
)
def test_unknown_zone_is_a_config_error(name: object) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_zone(name)
    assert caught.value.field == "zone"
    assert repr(name) in str(caught.value)


def test_close_zone_is_suggested() -> None:
    with pytest.raises(ConfigError, match="did you mean 'Europe/Berlin'"):
        parse_zone("Europe/Berln")


def test_missing_database_names_the_zone_and_the_extra() -> None:
    code = "try: Limit.parse('1/calendar day in Europe/Berlin')\nexcept ConfigError as error: print(error)"
    message = without_database(code)
    assert "'Europe/Berlin'" in message
    assert "no time zone database" in message
    assert "[tz]" in message


def test_unknown_names_are_not_looked_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError):
        parse_zone("Mars/Olympus")

    def refuse(*_: object) -> None:
        raise AssertionError("a file was opened for a name that a caller made up")

    monkeypatch.setattr(calendar, "_load", refuse)
    with pytest.raises(ConfigError):
        parse_zone("Mars/Elysium")


def test_units_and_zones_have_identities_of_their_own() -> None:
    zones = sorted(zoneinfo.available_timezones() - {"localtime", "posixrules"})
    identities = {calendar_of(unit, zone).identity for unit in CALENDAR_UNITS for zone in zones}
    assert len(identities) == len(CALENDAR_UNITS) * len(zones)


def test_stored_window_reads_states_and_decides_nothing() -> None:
    algorithm = build(Limit.calendar(5, "day"), "x")
    writer = calendar_writer(*algorithm.stored_as[1:])
    assert (writer.shape, writer.stored_as) == (algorithm.shape, algorithm.stored_as)
    with pytest.raises(ConfigError, match="rebuilt"):
        writer.window(0)
    with pytest.raises(ConfigError, match="rebuilt"):
        writer.segments(0, 1)


def test_far_future_and_far_past() -> None:
    for text in ("0010-06-01", "1800-06-01", "9990-06-01"):
        at = instant(text)
        for unit in CALENDAR_UNITS:
            start, end = calendar_of(unit, "Europe/Berlin").window(at)
            assert start <= at < end
