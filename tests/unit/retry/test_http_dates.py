"""HTTP dates: the three formats, and nothing else."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crestgate.retry.dates import read_date

NOW = 1_800_000_000.0  # in January 2027


@given(st.datetimes(datetime(1970, 1, 1), datetime(9999, 12, 31), timezones=st.just(UTC)))
def test_any_time_is_parsed_in_both_full_formats(moment: datetime) -> None:
    moment = moment.replace(microsecond=0)
    assert read_date(format_datetime(moment, usegmt=True), NOW) == moment.timestamp()
    assert read_date(moment.ctime(), NOW) == moment.timestamp()


@pytest.mark.parametrize(
    ("text", "year"), [("77", 2077), ("78", 1978), ("94", 1994), ("27", 2027), ("00", 2000), ("26", 2026)]
)
def test_two_digit_year_is_at_most_fifty_years_ahead(text: str, year: int) -> None:
    moment = read_date(f"Sunday, 06-Nov-{text} 08:49:37 GMT", NOW)
    assert moment == datetime(year, 11, 6, 8, 49, 37, tzinfo=UTC).timestamp()


def test_leap_second_is_the_next_second() -> None:
    moment = read_date("Sat, 31 Dec 2016 23:59:60 GMT", NOW)
    assert moment == datetime(2017, 1, 1, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "soon",
        "Sun, 6 Nov 1994 08:49:37 GMT",
        "Sun, 06 Nov 1994 08:49:37 CET",
        "Sun, 06 Nov 1994 08:49:37 +0000",
        "Sun, 06 Nov 1994 08:49:37",
        "Sun, 06 Nov 94 08:49:37 GMT",
        "Sun, 31 Feb 1994 08:49:37 GMT",
        "Sun, 06 Nob 1994 08:49:37 GMT",
        "So, 06 Nov 1994 08:49:37 GMT",
        "Sun, 06 Nov 1994 24:49:37 GMT",
        "Sun, 06 Nov 1994 08:49:61 GMT",
        "Sun, 06 Nov 0000 08:49:37 GMT",
        "Sun, 06 Nov 1994 08:49:37 GMT, Sun, 06 Nov 1994 08:49:37 GMT",
        "Sun, ٠٦ Nov 1994 08:49:37 GMT",
        "1994-11-06T08:49:37Z",
    ],
)
def test_invalid_dates(text: str) -> None:
    assert read_date(text, NOW) is None
