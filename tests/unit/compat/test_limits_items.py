"""Items and notation of `crestgate.compat.limits`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from crestgate.compat import limits
from crestgate.compat.limits import RateLimitItemPerMinute, RateLimitItemPerYear, parse, parse_many
from crestgate.compat.limits.errors import ConfigurationError
from crestgate.compat.limits.limits import GRANULARITIES, Granularity, RateLimitItem
from crestgate.compat.limits.util import LazyDependency

SOURCE = Path(__file__).parents[3] / "src"


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("10/minute", ["10 per 1 minute"]),
        ("10 PER 2 Hours", ["10 per 2 hour"]),
        ("1per3day", ["1 per 3 day"]),
        (
            " 1 / second ; 2 per month|3/year, 4/0 seconds",
            ["1 per 1 second", "2 per 1 month", "3 per 1 year", "4 per 1 second"],
        ),
    ],
)
def test_notation(text: str, items: list[str]) -> None:
    assert [repr(item) for item in parse_many(text)] == items
    assert repr(parse(text)) == items[0]


@pytest.mark.parametrize(
    "text", ["", "meow", "1/minute;", "1/fortnight", "1/minute burst 2", "-1/minute", "1.5/minute", None]
)
def test_what_is_no_limit_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"rate limit|unknown unit"):
        parse_many(text)


def test_error_shows_the_part_that_is_wrong() -> None:
    with pytest.raises(ValueError, match=r"cannot parse '5 an hour' in the rate limit '1/minute; 5 an hour': write"):
        parse("1/minute; 5 an hour")


def test_key_names_the_limit_and_what_is_limited() -> None:
    item = RateLimitItemPerMinute(10, 2, namespace="SHOP")
    assert item.key_for(b"user", 42, None, 1.5) == "SHOP/user/42/None/1.5/10/2/minute"
    assert item.get_expiry() == 120


def test_year_has_twelve_months_of_thirty_days() -> None:
    assert RateLimitItemPerYear(1).get_expiry() == 360 * 24 * 3600


def test_items_are_compared_by_unit_and_equal_by_value() -> None:
    assert parse("100/second") < parse("1/minute") < parse("1/hour")
    assert parse("5/minute") == parse("5 per 1 minute") != parse("5 per 2 minutes")
    assert parse("5/minute") != "5/minute"
    assert len({parse("5/minute"), parse("5/minute"), parse("6/minute")}) == 2


def test_unit_of_ones_own() -> None:
    class PerFortnight(RateLimitItem):
        GRANULARITY = Granularity(14 * 24 * 3600, "fortnight")

    try:
        assert parse("3 per 2 fortnights").get_expiry() == 28 * 24 * 3600
    finally:
        del GRANULARITIES["fortnight"]


def test_public_names_are_those_of_limits_and_from_limits() -> None:
    assert [name for name in limits.__all__ if not hasattr(limits, name)] == []
    assert limits.storage.storage_from_string("memory://").check()


def test_missing_dependency_of_a_storage_of_ones_own() -> None:
    class Version(str):
        """As one of `packaging.version`."""

    class Storage(LazyDependency):
        DEPENDENCIES = {"json": Version("9999"), "no_such_module": None, "os.path": None}  # noqa: RUF012 - as programs write it

    dependencies = Storage().dependencies
    assert dependencies["os.path"].module is not None
    with pytest.raises(ConfigurationError, match=r"minimum version of 9999 for 'json' could not be found"):
        assert dependencies["json"]
    with pytest.raises(ConfigurationError, match="'no_such_module' prerequisite not available"):
        assert dependencies["no_such_module"]


def test_neither_limits_nor_any_other_package_is_needed() -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from crestgate.compat.limits import parse, storage, strategies; "
        "limiter = strategies.MovingWindowRateLimiter(storage.storage_from_string('memory://')); "
        "print([limiter.hit(parse('1/minute')) for _ in range(2)]); "
        "print([m for m in sys.modules if 'site-packages' in (getattr(sys.modules[m], '__file__', '') or '')])"
    )
    run = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, str(SOURCE)], capture_output=True, text=True, check=True
    )
    assert run.stdout.splitlines() == ["[True, False]", "[]"]
