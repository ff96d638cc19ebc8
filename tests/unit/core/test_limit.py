"""Limits and their notation."""

from __future__ import annotations

import pickle
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crestgate import ConfigError, Limit
from crestgate.core.algorithms import ALGORITHMS
from crestgate.core.calendar_units import CALENDAR_UNITS

SIX = ("token_bucket", "leaky_bucket", "fixed_window", "sliding_window_log", "sliding_window_counter", "gcra")
DAY = 86_400

READ = [
    ("100/minute", Limit(100, 60)),
    ("100 / minute", Limit(100, 60)),
    ("100 per minute", Limit(100, 60)),
    ("100PER MINUTE", Limit(100, 60)),
    ("  5/s  ", Limit(5, 1)),
    ("5/sec", Limit(5, 1)),
    ("5/seconds", Limit(5, 1)),
    ("5/m", Limit(5, 60)),
    ("5/min", Limit(5, 60)),
    ("5/h", Limit(5, 3600)),
    ("5/hr", Limit(5, 3600)),
    ("5/hours", Limit(5, 3600)),
    ("5/d", Limit(5, DAY)),
    ("5/days", Limit(5, DAY)),
    ("5/w", Limit(5, 7 * DAY)),
    ("5/weeks", Limit(5, 7 * DAY)),
    ("5/month", Limit(5, 30 * DAY)),
    ("5/months", Limit(5, 30 * DAY)),
    ("5/year", Limit(5, 365 * DAY)),
    ("5/250ms", Limit(5, 0.25)),
    ("5/1.5 seconds", Limit(5, 1.5)),
    ("3per2weeks", Limit(3, 14 * DAY)),
    ("10 per 30 seconds burst 5 using gcra", Limit(10, 30, 5, "gcra")),
    ("10/30s burst5 using GCRA", Limit(10, 30, 5, "gcra")),
    ("10/second burst 20", Limit(10, 1, 20)),
    ("1000/day using fixed_window", Limit(1000, DAY, algorithm="fixed_window")),
    ("0/minute", Limit(0, 60)),
    ("1000/calendar month", Limit.calendar(1000, "month")),
    ("1000 PER Calendar Months in utc", Limit.calendar(1000, "month")),
    ("50/calendar day in Europe/Berlin", Limit.calendar(50, "day", "Europe/Berlin")),
    ("50/calendar d in europe/berlin using fixed_window", Limit.calendar(50, "day", "Europe/Berlin")),
    (
        "5/calendar quarter in America/Argentina/Buenos_Aires",
        Limit.calendar(5, "quarter", "America/Argentina/Buenos_Aires"),
    ),
    ("5/calendar hour in Etc/GMT+5", Limit.calendar(5, "hour", "Etc/GMT+5")),
    ("5/calendar week in America/Port-au-Prince", Limit.calendar(5, "week", "America/Port-au-Prince")),
    ("5/calendar year in GMT0", Limit.calendar(5, "year", "GMT0")),
    ("0/calendar minute", Limit.calendar(0, "minute")),
]


@pytest.mark.parametrize(("text", "limit"), READ, ids=[text for text, _ in READ])
def test_parse(text: str, limit: Limit) -> None:
    assert Limit.parse(text) == limit


def test_parse_chain() -> None:
    expected = (Limit(5, 1), Limit(1000, DAY, algorithm="fixed_window"))
    assert Limit.parse_chain("5/s; 1000/day using fixed_window") == expected
    assert Limit.parse_chain("5/s,1000/day using fixed_window") == expected


REFUSED = [
    ("", "the count, a whole number, is missing"),
    ("fast", "the count, a whole number, is missing"),
    ("5", "'/' or 'per' is missing"),
    ("5/", "the unit of time is missing"),
    ("5 per", "the unit of time is missing"),
    ("5/mnute", "unknown unit 'mnute'; did you mean 'minute'?"),
    ("5/M1N", "unexpected '1'"),
    ("5/us", "unknown unit 'us'"),
    ("5.5/s", "'5.5' is not a whole number"),
    ("-5/s", "the count, a whole number, is missing"),
    ("5//s", "the unit of time is missing"),
    ("5/s burst", "the burst, a whole number, is missing"),
    ("5/s burst 1.5", "'1.5' is not a whole number"),
    ("5/s burst 0", "burst must be a whole number of at least 1"),
    ("5/s using", "the algorithm is missing"),
    ("5/s using gcrra", "unknown algorithm 'gcrra'; did you mean 'gcra'?"),
    ("5/s using gcra burst 5", "unexpected 'burst'"),
    ("5/s burst 3 using fixed_window", "fixed_window has no burst"),
    ("5/s;", "the count, a whole number, is missing"),
    ("5/s;;3/m", "the count, a whole number, is missing"),
    ("5/s 3/m", "unexpected '3'"),
    ("5/s!", "unexpected '!'"),
    ("5/0 s", "0 s must be above 0"),
    ("1,000/day", "write numbers without commas"),
    ("100 requests per minute", "write no words between the count and 'per'"),
    ("5/s using leaky", "did you mean 'leaky_bucket'?"),
    ("5/0.0001 ms", "is not a whole number of microseconds"),
    ("0/minute burst 5", "takes no burst"),
    ("5/month5", "unexpected '5'"),
    ("٥/minute", "the count, a whole number, is missing"),
    ("1000000000/year using sliding_window_counter", "too large to count exactly"),
    ("9007199254740993/second", "too large to count exactly"),
    (f"1{'0' * 30}/second", "a number of 31 digits is too large"),
    (f"1/1{'0' * 5000} s", "a number of 5001 digits is too large"),
]


@pytest.mark.parametrize(("text", "problem"), REFUSED, ids=[text[:40] or "(empty)" for text, _ in REFUSED])
def test_syntax_error_shows_the_position(text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as error:
        Limit.parse_chain(text)
    message = str(error.value)
    assert problem in message
    line, marks = message.splitlines()[-2:]
    assert line == f"    {text}"
    assert set(marks.strip()) == {"^"}


def test_marker_is_at_the_position() -> None:
    with pytest.raises(ConfigError) as error:
        Limit.parse_chain("5/s; 10/mnute")
    assert str(error.value).splitlines()[1:] == ["    5/s; 10/mnute", "            ^^^^^"]


def test_parse_rejects_a_chain() -> None:
    with pytest.raises(ConfigError, match="is 2 limits; exactly one is expected"):
        Limit.parse("5/s; 10/m")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((-1, 60), "count must be a whole number of at least 0"),
        ((1.5, 60), "count must be a whole number"),
        ((True, 60), "count must be a whole number"),
        ((1, 0), "period must be a number of seconds above 0"),
        ((1, -1), "period must be a number of seconds above 0"),
        ((1, float("inf")), "period must be a number of seconds above 0"),
        ((1, float("nan")), "period must be a number of seconds above 0"),
        ((1, "60"), "period must be a number of seconds above 0"),
        ((1, 0.0000005), "whole number of microseconds"),
        ((1, 1.0000005), "whole number of microseconds"),
        ((1, 60, 0), "burst must be a whole number of at least 1"),
        ((1, 60, 2.5), "burst must be a whole number"),
        ((1, 60, 2, "fixed_window"), "has no burst"),
        ((1, 60, None, "token_buckt"), "did you mean 'token_bucket'"),
        ((1, 60, None, "gcra", ""), "name must be text"),
        ((1, 60, 10**18), "too large to count exactly"),
        ((10**5000, 60), "count is too large"),
        ((1, 10**400), "period is too long"),
        ((1, 1e13, None, "fixed_window"), "period is too long"),
    ],
)
def test_invalid_limits_are_rejected(arguments: tuple[object, ...], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        Limit(*arguments)  # type: ignore[arg-type]  # wrong on purpose


CALENDAR_REFUSED = [
    ("5/calendar", "the unit of the calendar window is missing"),
    ("5/calendar 2 months", "it has no number"),
    ("5/calendar fortnight", "unknown unit 'fortnight'"),
    ("5/calendar ms", "unknown unit 'ms'"),
    ("5/calendar second", "unknown unit 'second'"),
    ("5/calendar day in", "the time zone is missing"),
    ("5/calendar day in ; 5/s", "the time zone is missing"),
    ("5/calendar day in Mars/Olympus", "'Mars/Olympus' is not in the time zone database"),
    ("5/calendar day burst 5", "has no burst"),
    ("5/calendar day in UTC burst 3", "has no burst"),
    ("5/calendar day using gcra", "is fixed_window, not 'gcra'"),
    ("5/calendar day in UTC now", "unexpected 'now'"),
    ("5/day in UTC", "unexpected 'in'"),
]


@pytest.mark.parametrize(("text", "problem"), CALENDAR_REFUSED, ids=[text for text, _ in CALENDAR_REFUSED])
def test_wrong_calendar_limit_is_rejected(text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Limit.parse(text)
    assert problem in str(caught.value)
    assert "\n    5/" in str(caught.value), "it shows the text"


@pytest.mark.parametrize("unit", CALENDAR_UNITS)
@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "Etc/GMT-14", "America/North_Dakota/New_Salem", "EST5EDT"])
def test_calendar_limit_round_trips(unit: str, zone: str) -> None:
    limit = Limit.calendar(7, unit, zone)
    read = Limit.parse(str(limit))
    assert (read, hash(read), repr(read)) == (limit, hash(limit), repr(limit))
    assert eval(repr(limit), {"Limit": Limit}) == limit
    assert pickle.loads(pickle.dumps(limit)) == limit
    assert replace(limit, count=8) == Limit.calendar(8, unit, zone)
    assert (limit.algorithm, limit.unit, limit.zone, limit.burst) == ("fixed_window", unit, zone, None)


def test_calendar_limits_differ_by_unit_zone_and_from_periods() -> None:
    day = Limit.calendar(5, "day")
    others = [Limit.calendar(5, "day", "Europe/Berlin"), Limit.calendar(5, "week"), Limit(5, DAY, None, "fixed_window")]
    assert all(day != other for other in others)
    assert len({str(one) for one in (day, *others)}) == 4


@pytest.mark.parametrize(
    ("unit", "zone", "field"),
    [
        ("decade", "UTC", "unit"),
        (["day"], "UTC", "unit"),
        (None, "UTC", "unit"),
        ("day", "Nowhere", "zone"),
        ("day", 3, "zone"),
    ],
)
def test_wrong_unit_or_zone_is_named(unit: str, zone: str, field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Limit.calendar(5, unit, zone)
    assert caught.value.field == field


def test_period_of_a_calendar_limit_belongs_to_its_unit() -> None:
    with pytest.raises(ConfigError, match=r"Limit\.calendar"):
        Limit(5, 60, algorithm="fixed_window", unit="day")


def test_name_does_not_affect_equality() -> None:
    assert Limit(10, 60) == Limit(10, 60.0, burst=10, name="x")
    assert hash(Limit(10, 60)) == hash(Limit(10, 60.0, burst=10, name="x"))
    assert Limit(10, 60) != Limit(10, 60, burst=11)
    assert Limit(10, 60) != Limit(10, 60, algorithm="gcra")


def test_limit_is_immutable() -> None:
    with pytest.raises(AttributeError):
        Limit(10, 60).count = 11  # type: ignore[misc]  # wrong on purpose


@given(
    count=st.integers(0, 10**6),
    period_us=st.integers(1, 10**13)
    | st.integers(2**51, 2**53 - 2**20)
    | st.integers(1, 400).map(lambda days: days * 86_400_000_000),
    burst=st.none() | st.integers(1, 10**6),
    algorithm=st.sampled_from(SIX),
)
def test_canonical_spelling_round_trips(count: int, period_us: int, burst: int | None, algorithm: str) -> None:
    if count == 0 or not ALGORITHMS[algorithm].takes_burst:
        burst = None
    try:
        limit = Limit(count, Fraction(period_us, 1_000_000), burst, algorithm)
    except ConfigError:
        return  # too large to count: see test_invalid_limits_are_rejected
    assert limit.period_us == period_us
    assert Limit.parse(str(limit)) == limit


@pytest.mark.parametrize(
    ("limit", "text"),
    [
        (Limit(100, 60), "100/minute"),
        (Limit(5, 90), "5/90 seconds"),
        (Limit(5, 7200), "5/2 hours"),
        (Limit(5, 30 * DAY), "5/month"),
        (Limit(5, 60 * DAY), "5/2 months"),
        (Limit(5, 0.25), "5/250 ms"),
        (Limit(5, 0.0000015 * 2), "5/0.003 ms"),
        (Limit(5, 1.0000001 * 10), "5/10000.001 ms"),
        (Limit(5, 1, 7, "leaky_bucket"), "5/second burst 7 using leaky_bucket"),
    ],
)
def test_canonical_spelling(limit: Limit, text: str) -> None:
    assert str(limit) == text
