"""Bounded tracking of recently seen names."""

from __future__ import annotations

from crestgate.service.observability.recent_names import IDLE_US, RecentNames, RemainingQuotas, latest


def test_last_seen_time_is_kept() -> None:
    recent = RecentNames()
    recent.record("a", 1)
    recent.record("b", 2)
    recent.record("a", 3)
    assert recent.last_us == {"a": 3, "b": 2}
    assert latest(recent.last_us, 1) == [("a", 3)]


def test_flood_drops_the_least_recent_names() -> None:
    recent = RecentNames(max_names=100)
    for number in range(10_000):
        recent.record(f"ip:{number}", number)
        recent.record("regular", number)
        assert len(recent.last_us) <= 100
    assert "regular" in recent.last_us
    assert set(recent.last_us) >= {f"ip:{number}" for number in range(9_960, 10_000)}


def test_long_names_count_by_their_length() -> None:
    recent = RecentNames(max_names=1000, max_characters=10_000)
    for number in range(5_000):
        recent.record(f"{number:0>1000}", number)
        assert sum(map(len, recent.last_us)) <= 10_000
    assert f"{4999:0>1000}" in recent.last_us
    for number in range(5_000):
        recent.record(f"short:{number}", 5_000 + number)
    assert 400 < len(recent.last_us) <= 1000, "freed room is used again"


def test_names_that_are_not_text_are_ignored() -> None:
    recent = RecentNames()
    recent.record("\ud800", 1)
    assert recent.last_us == {}
    remaining = RemainingQuotas()
    remaining.record("gold", "\ud800", 1, 1)
    assert remaining.rows(1) == {}


def test_remaining_quotas_keep_the_first_counters_while_in_use() -> None:
    remaining = RemainingQuotas(max_counters=2)
    remaining.record("gold", "user:1", 9, 1)
    remaining.record("gold", "user:2", 9, 2)
    remaining.record("gold", "user:3", 9, 3)
    remaining.record("gold", "user:1", 8, 4)
    assert remaining.rows(5) == {("gold", "user:1"): (8, 4), ("gold", "user:2"): (9, 2)}
    remaining.record("gold", "user:3", 7, IDLE_US + 3)
    assert remaining.rows(IDLE_US + 3) == {("gold", "user:1"): (8, 4), ("gold", "user:3"): (7, IDLE_US + 3)}
    assert remaining.rows(3 * IDLE_US) == {}, "all keys have been idle for too long"


def test_flood_creates_few_new_series() -> None:
    remaining = RemainingQuotas(max_counters=10)
    keys: set[str] = set()
    for number in range(5_000):
        now_us = number * 100_000  # within ten minutes
        remaining.record("gold", f"ip:{number}", 1, now_us)
        keys.update(row[1] for row in remaining.rows(now_us))
    assert len(keys) == 10
