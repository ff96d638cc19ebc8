"""What a worker counts: right, by the minute, and bounded whatever clients send."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from headgate.errors import StoreError
from headgate.rules.views.ids import view_id
from headgate.service.observe.snapshot import Snapshot
from headgate.service.observe.tally import DURATION_BUCKETS, MOST_LABELS, MOST_RULES, MOST_SUBJECTS, OTHER, Tally
from headgate.service.observe.usage import MAX_SUBJECT_BYTES, MINUTE_US, MOST_MINUTES, Usage, record_usage
from headgate.service.observe.usage import MOST_SUBJECTS as MOST_TOLD

START = 1_700_000_040_000_000
"""The beginning of a minute, in microseconds."""


def test_decisions_are_counted_by_rule_and_dimension() -> None:
    tally = Tally()
    tally.decided("orders", "user", "user:1", True)
    tally.decided("orders", "user", "user:2", False)
    tally.decided("orders", "ip", "ip:1", True)
    tally.shadowed("strict", "user")
    assert sorted(tally.snapshot(START, {}).decisions) == [
        ("orders", "ip", 1, 0, 0),
        ("orders", "user", 1, 1, 0),
        ("strict", "user", 0, 0, 1),
    ]


def test_labels_are_bounded() -> None:
    tally = Tally()
    for number in range(MOST_LABELS * 3):
        tally.decided(f"rule-{number}", "user", "user:1", True)
        tally.shadowed(f"rule-{number}", "ip")
    decisions = tally.snapshot(START, {}).decisions
    assert len(decisions) <= MOST_LABELS + 2
    assert sum(row[2] for row in decisions) == MOST_LABELS * 3
    assert sum(row[4] for row in decisions) == MOST_LABELS * 3
    assert {row[0] for row in decisions} >= {OTHER, "rule-0"}


def test_rules_made_for_one_key_each_are_counted_as_one_and_name_nobody() -> None:
    tally = Tally()
    tally.at(START)
    for number in range(MOST_RULES + 1):
        tally.decided(view_id("policy", f"alice-{number}"), "key", "key:x", number % 2 == 0)
    tally.decided(view_id("policy", "alice" * 200), "key", "key:x", True)
    tally.decided(view_id("client", "alice", "API", "/web"), "client", "client:x", True)
    tally.decided(view_id("override", "alice", "rule|user"), "user", "user:x", True)
    tally.shadowed(view_id("override", "alice", "rule|user"), "user")
    tally.left(view_id("policy", "alice"), "key:x", 5, START)
    taken = tally.snapshot(START, {})
    assert sorted(taken.decisions) == [
        ("client:API:/web", "client", 1, 0, 0),
        ("override:rule%7Cuser", "user", 1, 0, 1),
        ("policy", "key", MOST_RULES // 2 + 2, MOST_RULES // 2, 0),
    ]
    assert [row[0] for row in taken.remaining] == ["policy"]
    (usage,) = tally.take_usage(START)
    assert set(usage.rules) == {"client:API:/web", "override:rule%7Cuser", "policy"}
    assert len(tally._rules) <= MOST_RULES


def test_what_no_rule_applied_to_is_nobodys() -> None:
    tally = Tally()
    tally.decided("", "none", "", True)
    assert tally.snapshot(START, {}).decisions == [("no_rule", "none", 1, 0, 0)]
    assert tally.take_usage(START) == [Usage(START, {"no_rule": (1, 0, 0)}, {})]


def test_a_label_that_no_file_can_hold_is_among_the_others() -> None:
    tally = Tally()
    tally.decided("\ud800", "user", "user:\ud800", True)
    assert tally.snapshot(START, {}).decisions == [(OTHER, "user", 1, 0, 0)]
    assert tally.take_usage(START) == [Usage(START, {OTHER: (1, 0, 0)}, {})]


def test_long_subjects_are_recorded_in_few_bytes() -> None:
    """Callers choose their keys, and the history keeps 100 of each minute for a month."""
    tally = Tally()
    tally.at(START)
    names = [f"key:{letter * 250}{number}" for letter in ("x", "é", "😀") for number in range(10)]
    for name in names:
        tally.decided("orders", "key", name, True)
    tally.decided("orders", "key", "key:short", True)
    (usage,) = tally.take_usage(START)
    assert len(usage.subjects) == len(names) + 1, "different subjects stay different"
    assert max(len(name.encode()) for name in usage.subjects) <= MAX_SUBJECT_BYTES
    assert "key:short" in usage.subjects


def test_subjects_are_bounded_and_the_busiest_are_kept_through_a_flood() -> None:
    tally = Tally()
    tally.at(START)
    for number in range(MOST_SUBJECTS * 4):
        tally.decided("orders", "ip", f"ip:{number}", True)
        if number % 5 == 0:
            tally.decided("orders", "ip", "ip:busy", number % 2 == 0)
    assert len(tally._subjects) <= MOST_SUBJECTS
    (usage,) = tally.take_usage(START)
    assert len(usage.subjects) == MOST_TOLD
    assert next(iter(usage.subjects)) == "ip:busy"
    assert sum(usage.subjects["ip:busy"]) == MOST_SUBJECTS * 4 // 5


def test_usage_belongs_to_the_minute_it_happened_in() -> None:
    tally = Tally()
    tally.at(START + 59_999_999)
    tally.decided("orders", "user", "user:1", True)
    tally.at(START + MINUTE_US)
    tally.decided("orders", "user", "user:1", False)
    tally.decided("orders", "ip", "ip:1", True)
    tally.shadowed("strict", "user")
    assert tally.take_usage(START + MINUTE_US + 5) == [
        Usage(START, {"orders": (1, 0, 0)}, {"user:1": (1, 0)}),
        Usage(START + MINUTE_US, {"orders": (1, 1, 0), "strict": (0, 0, 1)}, {"user:1": (0, 1), "ip:1": (1, 0)}),
    ]
    assert tally.take_usage(START + MINUTE_US + 6) == []


def test_usage_can_be_taken_several_times_a_minute() -> None:
    tally = Tally()
    tally.at(START)
    tally.decided("orders", "user", "user:1", True)
    assert tally.take_usage(START + 10_000_000) == [Usage(START, {"orders": (1, 0, 0)}, {"user:1": (1, 0)})]
    tally.decided("orders", "user", "user:1", True)
    assert tally.take_usage(START + 20_000_000) == [Usage(START, {"orders": (1, 0, 0)}, {"user:1": (1, 0)})]


def test_before_anybody_told_the_time_it_is_now() -> None:
    tally = Tally()
    tally.decided("orders", "user", "user:1", True)
    assert [usage.minute_us for usage in tally.take_usage(START + 7)] == [START]


def test_a_clock_that_steps_back_loses_nothing() -> None:
    tally = Tally()
    tally.at(START + MINUTE_US)
    tally.decided("orders", "user", "user:1", True)
    tally.at(START)
    tally.decided("orders", "user", "user:1", True)
    assert [(usage.minute_us, usage.rules) for usage in tally.take_usage(START)] == [
        (START, {"orders": (1, 0, 0)}),
        (START + MINUTE_US, {"orders": (1, 0, 0)}),
    ]


def test_an_api_key_is_not_named_in_usage() -> None:
    tally = Tally()
    tally.decided("orders", "apikey", "apikey:sk-secret", True)
    (usage,) = tally.take_usage(START)
    assert "sk-secret" not in str(usage)
    assert list(usage.subjects.values()) == [(1, 0)]


class Database:
    """A history that can be away."""

    def __init__(self) -> None:
        self.away = False
        self.added: list[tuple[int, Mapping[str, tuple[int, int, int]], Mapping[str, tuple[int, int]]]] = []

    def add(
        self, minute_us: int, rules: Mapping[str, tuple[int, int, int]], subjects: Mapping[str, tuple[int, int]]
    ) -> None:
        if self.away:
            raise StoreError("the database at nowhere does not answer")
        self.added.append((minute_us, rules, subjects))


def record(tally: Tally, database: Database, now_us: int) -> bool:
    return asyncio.run(record_usage(tally, database, now_us))  # type: ignore[arg-type]  # all that is asked of it


def test_what_could_not_be_written_is_written_later(caplog: pytest.LogCaptureFixture) -> None:
    tally, database = Tally(), Database()
    database.away = True
    for second in (0, 10, 70):
        tally.at(START + second * 1_000_000)
        tally.decided("orders", "user", "user:1", True)
        assert not record(tally, database, START + second * 1_000_000)
    assert "kept for later" in caplog.text
    database.away = False
    assert record(tally, database, START + 80_000_000)
    assert database.added == [
        (START, {"orders": (2, 0, 0)}, {"user:1": (2, 0)}),
        (START + MINUTE_US, {"orders": (1, 0, 0)}, {"user:1": (1, 0)}),
    ]
    assert record(tally, database, START + 90_000_000)
    assert len(database.added) == 2


def test_a_database_that_stays_away_costs_an_hour_of_numbers_at_most() -> None:
    tally, database = Tally(), Database()
    database.away = True
    for minute in range(MOST_MINUTES * 3):
        tally.at(START + minute * MINUTE_US)
        for subject in range(MOST_TOLD * 2):
            tally.decided("orders", "user", f"user:{minute}-{subject}", True)
        record(tally, database, START + minute * MINUTE_US)
    kept = tally.take_usage(START + MOST_MINUTES * 3 * MINUTE_US)
    assert len(kept) == MOST_MINUTES
    assert all(len(usage.subjects) <= MOST_TOLD for usage in kept)
    assert kept[-1].minute_us == START + (MOST_MINUTES * 3 - 1) * MINUTE_US


def test_durations_fall_into_their_buckets() -> None:
    tally = Tally()
    for seconds in (0.0, 0.00005, 0.000051, 5.0, 60.0):
        tally.timed(seconds)
    durations = tally.snapshot(START, {}).durations
    assert durations is not None
    assert durations.counts == [2, 1, *[0] * (len(DURATION_BUCKETS) - 3), 1, 1]
    assert durations.total == pytest.approx(65.000101)


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(-3.0, 3.0), (3.0, 3.0), (1e300, 86_400.0), (float("-inf"), 86_400.0), (float("nan"), 86_400.0)],
)
def test_skew_is_a_distance_and_bounded(seconds: float, told: float) -> None:
    tally = Tally()
    tally.skewed(seconds)
    skews = tally.snapshot(START, {}).skews
    assert skews is not None
    assert (sum(skews.counts), skews.total) == (1, told)


def everything(tally: Tally) -> None:
    tally.decided("orders", "user", "user:1", True)
    tally.decided("orders", "user", "user:1", False)
    tally.shadowed("strict", "user")
    tally.timed(0.001)
    tally.batch(7)
    tally.skewed(2.0)
    tally.replayed()
    tally.failed_open()
    tally.request("data", 200)
    tally.cached("idempotency", False)
    tally.cached("idempotency", True)
    tally.pressed("warning")


def test_a_successor_goes_on_from_what_was_counted() -> None:
    first = Tally()
    everything(first)
    before = first.snapshot(START, {"store_errors": 3}, rules=9, breakers={"Redis": 2})
    first.left("orders", "user:1", 5, START)
    second = Tally(before)
    assert second.take_usage(START) == [], "what was counted before was written before"
    everything(second)
    twice = Tally()
    everything(twice)
    everything(twice)
    now = second.snapshot(START, {"store_errors": 1})
    assert now.sequence > before.sequence
    expected = twice.snapshot(START, {"store_errors": 4})
    expected.sequence = now.sequence
    assert now == expected, "all counters, and no states"
    assert second.take_usage(START) == [Usage(START, {"orders": (1, 1, 0), "strict": (0, 0, 1)}, {"user:1": (1, 1)})]


def test_numbers_in_other_buckets_are_not_gone_on_from() -> None:
    first = Tally()
    first.timed(1.0)
    before = first.snapshot(START, {})
    assert before.durations is not None
    before.durations.counts.append(0)
    durations = Tally(before).snapshot(START, {}).durations
    assert durations is not None
    assert (sum(durations.counts), durations.total) == (0, 0.0)


def test_requests_and_caches_have_a_bound_too() -> None:
    tally = Tally()
    for number in range(2000):
        tally.request("data", number)
        tally.cached(f"cache-{number}", True)
    taken = tally.snapshot(START, {})
    assert len(taken.requests) == len(taken.caches) == 500


def test_a_snapshot_stays_as_it_is() -> None:
    tally = Tally()
    everything(tally)
    one, other = tally.snapshot(START, {}), tally.snapshot(START, {})
    everything(tally)
    other.sequence = one.sequence
    assert one == other
    assert one != Snapshot()
