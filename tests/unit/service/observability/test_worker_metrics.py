"""Metrics of a worker: exact, by the minute, and bounded whatever clients send."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from crestgate.errors import StoreError
from crestgate.history.port import MAX_DENIED
from crestgate.history.port import MAX_SUBJECTS as MAX_RECORDED
from crestgate.rules.compat.rule_ids import derived_id
from crestgate.service.observability.metrics import DURATION_BUCKETS
from crestgate.service.observability.snapshot import Snapshot
from crestgate.service.observability.usage import (
    MAX_MINUTES,
    MAX_SUBJECT_BYTES,
    MINUTE_US,
    Usage,
    record_usage,
)
from crestgate.service.observability.worker_metrics import (
    MAX_CACHED_RULES,
    MAX_RULE_LABELS,
    MAX_SUBJECTS,
    OTHER,
    WorkerMetrics,
)
from unit.service.snapshots import decision_counts

START = 1_700_000_040_000_000
"""The start of a minute, in microseconds."""
DURATION = "check_duration_seconds"


def test_decisions_are_counted_by_rule_and_dimension() -> None:
    metrics = WorkerMetrics()
    metrics.count_decision("orders", "user", "user:1", True)
    metrics.count_decision("orders", "user", "user:2", False)
    metrics.count_decision("orders", "ip", "ip:1", True)
    metrics.count_shadowed("strict", "user")
    assert decision_counts(metrics.snapshot(START, {})) == {
        ("orders", "ip"): (1, 0, 0),
        ("orders", "user"): (1, 1, 0),
        ("strict", "user"): (0, 0, 1),
    }


def test_labels_are_bounded() -> None:
    metrics = WorkerMetrics()
    for number in range(MAX_RULE_LABELS * 3):
        metrics.count_decision(f"rule-{number}", "user", "user:1", True)
        metrics.count_shadowed(f"rule-{number}", "ip")
    decisions = decision_counts(metrics.snapshot(START, {}))
    assert len(decisions) <= MAX_RULE_LABELS + 2
    assert sum(counts[0] for counts in decisions.values()) == MAX_RULE_LABELS * 3
    assert sum(counts[2] for counts in decisions.values()) == MAX_RULE_LABELS * 3
    assert {rule for rule, _ in decisions} >= {OTHER, "rule-0"}


def test_rules_of_single_keys_share_one_label() -> None:
    metrics = WorkerMetrics()
    metrics.set_time(START)
    for number in range(MAX_CACHED_RULES + 1):
        metrics.count_decision(derived_id("policy", f"alice-{number}"), "key", "key:x", number % 2 == 0)
    metrics.count_decision(derived_id("policy", "alice" * 200), "key", "key:x", True)
    metrics.count_decision(derived_id("client", "alice", "API", "/web"), "client", "client:x", True)
    metrics.count_decision(derived_id("override", "alice", "rule|user"), "user", "user:x", True)
    metrics.count_shadowed(derived_id("override", "alice", "rule|user"), "user")
    metrics.set_remaining(derived_id("policy", "alice"), "key:x", 5, START)
    taken = metrics.snapshot(START, {})
    assert decision_counts(taken) == {
        ("client:API:/web", "client"): (1, 0, 0),
        ("override:rule%7Cuser", "user"): (1, 0, 1),
        ("policy", "key"): (MAX_CACHED_RULES // 2 + 2, MAX_CACHED_RULES // 2, 0),
    }
    assert list(taken.gauges["tokens_remaining"]) == [("policy", "key:x")]
    (usage,) = metrics.take_usage(START)
    assert set(usage.rules) == {"client:API:/web", "override:rule%7Cuser", "policy"}
    assert len(metrics._rules) <= MAX_CACHED_RULES


def test_decisions_without_a_rule_are_counted_as_no_rule() -> None:
    metrics = WorkerMetrics()
    metrics.count_decision("", "none", "", True)
    assert decision_counts(metrics.snapshot(START, {})) == {("no_rule", "none"): (1, 0, 0)}
    assert metrics.take_usage(START) == [Usage(START, {"no_rule": (1, 0, 0)}, {})]


def test_label_that_is_not_text_is_counted_as_other() -> None:
    metrics = WorkerMetrics()
    metrics.count_decision("\ud800", "user", "user:\ud800", True)
    assert decision_counts(metrics.snapshot(START, {})) == {(OTHER, "user"): (1, 0, 0)}
    assert metrics.take_usage(START) == [Usage(START, {OTHER: (1, 0, 0)}, {})]


def test_long_subjects_are_truncated_with_a_digest() -> None:
    """Callers choose their keys, and the history retains 100 of each minute for a month."""
    metrics = WorkerMetrics()
    metrics.set_time(START)
    names = [f"key:{letter * 250}{number}" for letter in ("x", "é", "😀") for number in range(10)]
    for name in names:
        metrics.count_decision("orders", "key", name, True)
    metrics.count_decision("orders", "key", "key:short", True)
    (usage,) = metrics.take_usage(START)
    assert len(usage.subjects) == len(names) + 1, "different subjects stay different"
    assert max(len(name.encode()) for name in usage.subjects) <= MAX_SUBJECT_BYTES
    assert "key:short" in usage.subjects


def test_subjects_are_bounded_and_the_busiest_are_kept_through_a_flood() -> None:
    metrics = WorkerMetrics()
    metrics.set_time(START)
    for number in range(MAX_SUBJECTS * 4):
        metrics.count_decision("orders", "ip", f"ip:{number}", True)
        if number % 5 == 0:
            metrics.count_decision("orders", "ip", "ip:busy", number % 2 == 0)
    assert len(metrics._subjects) <= MAX_SUBJECTS
    (usage,) = metrics.take_usage(START)
    assert len(usage.subjects) == MAX_RECORDED
    assert sum(usage.subjects["ip:busy"]) == MAX_SUBJECTS * 4 // 5


def test_subjects_that_are_denied_most_are_recorded_beside_the_busiest() -> None:
    metrics = WorkerMetrics()
    metrics.set_time(START)
    for customer in range(300):
        for number in range(60):
            metrics.count_decision("orders", "user", f"user:{customer}", number > 0)
    for _ in range(50):
        metrics.count_decision("login", "ip", "ip:attacker", False)
    (usage,) = metrics.take_usage(START)
    assert usage.subjects["ip:attacker"] == (0, 50)
    metrics.put_back_usage([usage, Usage(START, {}, {f"user:late-{number}": (99, 0) for number in range(300)})])
    (usage,) = metrics.take_usage(START)
    assert usage.subjects["ip:attacker"] == (0, 50)
    assert len(usage.subjects) <= MAX_RECORDED + MAX_DENIED


def test_usage_belongs_to_the_minute_it_happened_in() -> None:
    metrics = WorkerMetrics()
    metrics.set_time(START + 59_999_999)
    metrics.count_decision("orders", "user", "user:1", True)
    metrics.set_time(START + MINUTE_US)
    metrics.count_decision("orders", "user", "user:1", False)
    metrics.count_decision("orders", "ip", "ip:1", True)
    metrics.count_shadowed("strict", "user")
    assert metrics.take_usage(START + MINUTE_US + 5) == [
        Usage(START, {"orders": (1, 0, 0)}, {"user:1": (1, 0)}),
        Usage(START + MINUTE_US, {"orders": (1, 1, 0), "strict": (0, 0, 1)}, {"user:1": (0, 1), "ip:1": (1, 0)}),
    ]
    assert metrics.take_usage(START + MINUTE_US + 6) == []


def test_usage_of_one_minute_can_be_taken_in_parts() -> None:
    metrics = WorkerMetrics()
    metrics.set_time(START)
    metrics.count_decision("orders", "user", "user:1", True)
    assert metrics.take_usage(START + 10_000_000) == [Usage(START, {"orders": (1, 0, 0)}, {"user:1": (1, 0)})]
    metrics.count_decision("orders", "user", "user:1", True)
    assert metrics.take_usage(START + 20_000_000) == [Usage(START, {"orders": (1, 0, 0)}, {"user:1": (1, 0)})]


def test_usage_without_set_time_belongs_to_now() -> None:
    metrics = WorkerMetrics()
    metrics.count_decision("orders", "user", "user:1", True)
    assert [usage.minute_us for usage in metrics.take_usage(START + 7)] == [START]


def test_clock_step_back_loses_no_usage() -> None:
    metrics = WorkerMetrics()
    metrics.set_time(START + MINUTE_US)
    metrics.count_decision("orders", "user", "user:1", True)
    metrics.set_time(START)
    metrics.count_decision("orders", "user", "user:1", True)
    assert [(usage.minute_us, usage.rules) for usage in metrics.take_usage(START)] == [
        (START, {"orders": (1, 0, 0)}),
        (START + MINUTE_US, {"orders": (1, 0, 0)}),
    ]


def test_api_keys_are_hashed_in_usage() -> None:
    metrics = WorkerMetrics()
    metrics.count_decision("orders", "apikey", "apikey:sk-secret", True)
    (usage,) = metrics.take_usage(START)
    assert "sk-secret" not in str(usage)
    assert list(usage.subjects.values()) == [(1, 0)]


class Database:
    """A history that can be unreachable."""

    def __init__(self) -> None:
        self.away = False
        self.added: list[tuple[int, Mapping[str, tuple[int, int, int]], Mapping[str, tuple[int, int]]]] = []

    def add(
        self, minute_us: int, rules: Mapping[str, tuple[int, int, int]], subjects: Mapping[str, tuple[int, int]]
    ) -> None:
        if self.away:
            raise StoreError("the database at nowhere does not answer")
        self.added.append((minute_us, rules, subjects))


def record(metrics: WorkerMetrics, database: Database, now_us: int) -> bool:
    return asyncio.run(record_usage(metrics, database, now_us))  # type: ignore[arg-type]  # only add() is used


def test_unrecorded_usage_is_recorded_later(caplog: pytest.LogCaptureFixture) -> None:
    metrics, database = WorkerMetrics(), Database()
    database.away = True
    for second in (0, 10, 70):
        metrics.set_time(START + second * 1_000_000)
        metrics.count_decision("orders", "user", "user:1", True)
        assert not record(metrics, database, START + second * 1_000_000)
    assert "cannot record usage" in caplog.text
    database.away = False
    assert record(metrics, database, START + 80_000_000)
    assert database.added == [
        (START, {"orders": (2, 0, 0)}, {"user:1": (2, 0)}),
        (START + MINUTE_US, {"orders": (1, 0, 0)}, {"user:1": (1, 0)}),
    ]
    assert record(metrics, database, START + 90_000_000)
    assert len(database.added) == 2


def test_pending_usage_is_bounded_to_an_hour() -> None:
    metrics, database = WorkerMetrics(), Database()
    database.away = True
    for minute in range(MAX_MINUTES * 3):
        metrics.set_time(START + minute * MINUTE_US)
        for subject in range(MAX_RECORDED * 2):
            metrics.count_decision("orders", "user", f"user:{minute}-{subject}", True)
        record(metrics, database, START + minute * MINUTE_US)
    taken = metrics.take_usage(START + MAX_MINUTES * 3 * MINUTE_US)
    assert len(taken) == MAX_MINUTES
    assert all(len(usage.subjects) <= MAX_RECORDED for usage in taken)
    assert taken[-1].minute_us == START + (MAX_MINUTES * 3 - 1) * MINUTE_US


def test_durations_fall_into_their_buckets() -> None:
    metrics = WorkerMetrics()
    for seconds in (0.0, 0.00005, 0.000051, 5.0, 60.0):
        metrics.durations.observe(seconds)
    durations = metrics.snapshot(START, {}).histograms[DURATION]
    assert durations.counts == [2, 1, *[0] * (len(DURATION_BUCKETS) - 3), 1, 1]
    assert durations.total == pytest.approx(65.000101)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(-3.0, 3.0), (3.0, 3.0), (1e300, 86_400.0), (float("-inf"), 86_400.0), (float("nan"), 86_400.0)],
)
def test_skew_is_a_distance_and_bounded(seconds: float, expected: float) -> None:
    metrics = WorkerMetrics()
    metrics.observe_clock_skew(seconds)
    skews = metrics.snapshot(START, {}).histograms["clock_skew_seconds"]
    assert (sum(skews.counts), skews.total) == (1, expected)


def everything(metrics: WorkerMetrics) -> None:
    metrics.count_decision("orders", "user", "user:1", True)
    metrics.count_decision("orders", "user", "user:1", False)
    metrics.count_shadowed("strict", "user")
    metrics.durations.observe(0.001)
    metrics.observe_batch(7)
    metrics.observe_clock_skew(2.0)
    metrics.count_replay()
    metrics.count_fail_open()
    metrics.count_request("data", 200)
    metrics.count_cache_lookup("idempotency", False)
    metrics.count_cache_lookup("idempotency", True)
    metrics.count_pressure("warning")


def test_successor_continues_the_counters() -> None:
    first = WorkerMetrics()
    everything(first)
    before = first.snapshot(START, {"store_errors": 3}, {"rules": {(): 9}, "breaker_state": {("Redis",): 2}})
    first.set_remaining("orders", "user:1", 5, START)
    second = WorkerMetrics(before)
    assert second.take_usage(START) == [], "the predecessor has recorded its usage"
    everything(second)
    twice = WorkerMetrics()
    everything(twice)
    everything(twice)
    now = second.snapshot(START, {"store_errors": 1})
    assert now.sequence > before.sequence
    expected = twice.snapshot(START, {"store_errors": 4})
    expected.sequence = now.sequence
    assert now == expected, "all counters, and no gauges"
    assert second.take_usage(START) == [Usage(START, {"orders": (1, 1, 0), "strict": (0, 0, 1)}, {"user:1": (1, 1)})]


def test_histogram_with_other_buckets_is_not_continued() -> None:
    first = WorkerMetrics()
    first.durations.observe(1.0)
    before = first.snapshot(START, {})
    before.histograms[DURATION].counts.append(0)
    durations = WorkerMetrics(before).snapshot(START, {}).histograms[DURATION]
    assert (sum(durations.counts), durations.total) == (0, 0.0)


def test_labels_of_requests_and_caches_are_bounded() -> None:
    metrics = WorkerMetrics()
    for number in range(2000):
        metrics.count_request("data", number)
        metrics.count_cache_lookup(f"cache-{number}", True)
    taken = metrics.snapshot(START, {})
    assert len(taken.counters["requests"]) == 500
    assert len(taken.counters["cache_hits"]) == 501, "500 and the cache of rules, which is always listed"


def test_snapshot_is_a_copy() -> None:
    metrics = WorkerMetrics()
    everything(metrics)
    one, other = metrics.snapshot(START, {}), metrics.snapshot(START, {})
    everything(metrics)
    other.sequence = one.sequence
    assert one == other
    assert one != Snapshot()
