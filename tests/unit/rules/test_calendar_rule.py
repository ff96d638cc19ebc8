"""Rules with calendar windows: their fields, slots, counters and decisions."""

from __future__ import annotations

from typing import Any

import pytest

from crestgate import Limiter, RequestContext
from crestgate.core.limit import Limit
from crestgate.errors import ValidationError
from crestgate.rules.compat.strategies import rules_for_all
from crestgate.rules.compiled_rule import CompiledRule
from crestgate.rules.rule import Rule, rule_body_schema, rule_schema
from crestgate.testing import FakeClock

MINIMAL: dict[str, Any] = {"rule_id": "r", "dimension": "user", "limit": 100}
NOON = 1_774_778_400.0  # of 2026-03-29 in Berlin, which has 23 hours


def read(**fields: Any) -> Rule:
    return Rule.read({**MINIMAL, **fields})


def test_calendar_rule_round_trips() -> None:
    rule = read(calendar="Month", timezone="europe/berlin")
    data = rule.to_data()
    assert (data["calendar"], data["timezone"], data["algorithm"]) == ("month", "Europe/Berlin", "fixed_window")
    assert "window_seconds" not in data
    assert Rule.read(data) == rule
    assert Rule.stored(rule.body(), 1, 0, 0) == rule
    assert rule.compiled() == Limit.calendar(100, "month", "Europe/Berlin")


def test_zone_is_utc_unless_given_and_other_rules_have_none() -> None:
    assert read(calendar="day").timezone == "UTC"
    assert {"calendar", "timezone"}.isdisjoint(read(window_seconds=60).to_data())
    assert read(window_seconds=60, calendar=None, timezone=None) == read(window_seconds=60)


@pytest.mark.parametrize(
    ("fields", "field", "message"),
    [
        ({}, "window_seconds", "is missing"),
        ({"calendar": "day", "window_seconds": 60}, "window_seconds", "is not allowed with calendar"),
        ({"calendar": "decade"}, "calendar", "must be one of minute, hour, day, week, month, quarter, year"),
        (
            {"calendar": "day", "timezone": "Mars/Olympus"},
            "timezone",
            "'Mars/Olympus' is not in the time zone database",
        ),
        ({"calendar": "day", "timezone": 7}, "timezone", "must be text"),
        ({"window_seconds": 60, "timezone": "UTC"}, "timezone", "is for calendar windows"),
        ({"calendar": "day", "algorithm": "gcra"}, "algorithm", "is fixed_window, not gcra"),
        ({"calendar": "day", "burst": 5}, "burst", "has no burst"),
        ({"calendar": "day", "limit": "5/calendar day"}, "limit", "write limit: 5, calendar: day, timezone: UTC"),
    ],
)
def test_wrong_field_is_named(fields: dict[str, Any], field: str, message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        read(**fields)
    (problem,) = caught.value.problems
    assert problem.field == field
    assert message in problem.message


def test_unit_and_zone_are_part_of_the_slot() -> None:
    rules = [
        read(calendar="day"),
        read(calendar="day", timezone="Asia/Tokyo"),
        read(calendar="week"),
        read(window_seconds=86_400),
        read(window_seconds=86_400, algorithm="fixed_window"),
    ]
    assert len({rule.counter for rule in rules}) == 4, "the algorithm alone makes no slot"
    assert len({CompiledRule(rule, "*").order for rule in rules}) == 4
    assert read(calendar="day").unique_key == read(calendar="day", timezone="UTC", limit=7).unique_key


def test_schemas_have_the_fields() -> None:
    body, response = rule_body_schema(), rule_schema()
    assert "window_seconds" not in body["required"]
    assert {"window_seconds", "calendar", "timezone"}.isdisjoint(response["required"])
    assert "quarter" in body["properties"]["calendar"]["anyOf"][0]["enum"]


def test_strategies_take_calendar_windows() -> None:
    rules = rules_for_all("ip", "x", "x", "5/calendar day; 5/calendar day in Asia/Tokyo; 5/day")
    assert [rule.window for rule in rules] == ["calendar day in UTC", "calendar day in Asia/Tokyo", "86400"]
    assert rules[1].compiled() == Limit.calendar(5, "day", "Asia/Tokyo")


def test_rule_decides_by_the_civil_day(tmp_path: Any) -> None:
    settings = tmp_path / "crestgate.yaml"
    settings.write_text(
        "mode: embedded\nstore: memory://\nrules:\n"
        "  - {rule_id: day, dimension: user, limit: 3, calendar: day, timezone: Europe/Berlin}\n"
    )
    clock = FakeClock(NOON)
    with Limiter.from_config(settings, clock=clock) as limiter:
        context = RequestContext(user="alice", path="/")
        assert limiter.check_request(context, cost=3).reset_after == 12 * 3600
        denied = limiter.check_request(context)
        assert (denied.allowed, denied.retry_after, denied.name) == (False, 12 * 3600, "day")
        clock.advance(12 * 3600)
        assert limiter.check_request(context, cost=3).reset_after == 24 * 3600
