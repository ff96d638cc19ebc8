"""Names that were seen lately."""

from __future__ import annotations

from crestgate.service.observability.recent_names import IDLE_US, RecentNames, RemainingQuotas, latest


def test_last_seen_time_is_kept() -> None:
    seen = RecentNames()
    seen.see("a", 1)
    seen.see("b", 2)
    seen.see("a", 3)
    assert seen.last_us == {"a": 3, "b": 2}
    assert latest(seen.last_us, 1) == [("a", 3)]


def test_flood_drops_the_least_recent_names() -> None:
    seen = RecentNames(max_names=100)
    for number in range(10_000):
        seen.see(f"ip:{number}", number)
        seen.see("regular", number)
        assert len(seen.last_us) <= 100
    assert "regular" in seen.last_us
    assert set(seen.last_us) >= {f"ip:{number}" for number in range(9_960, 10_000)}


def test_long_names_count_by_their_length() -> None:
    seen = RecentNames(max_names=1000, max_characters=10_000)
    for number in range(5_000):
        seen.see(f"{number:0>1000}", number)
        assert sum(map(len, seen.last_us)) <= 10_000
    assert f"{4999:0>1000}" in seen.last_us
    for number in range(5_000):
        seen.see(f"short:{number}", 5_000 + number)
    assert 400 < len(seen.last_us) <= 1000, "room that was given up is used again"


def test_names_that_are_not_text_are_ignored() -> None:
    seen = RecentNames()
    seen.see("\ud800", 1)
    assert seen.last_us == {}
    remaining = RemainingQuotas()
    remaining.see("gold", "\ud800", 1, 1)
    assert remaining.rows(1) == {}


def test_remaining_quotas_keep_the_first_counters_while_in_use() -> None:
    remaining = RemainingQuotas(max_counters=2)
    remaining.see("gold", "user:1", 9, 1)
    remaining.see("gold", "user:2", 9, 2)
    remaining.see("gold", "user:3", 9, 3)
    remaining.see("gold", "user:1", 8, 4)
    assert remaining.rows(5) == {("gold", "user:1"): (8, 4), ("gold", "user:2"): (9, 2)}
    remaining.see("gold", "user:3", 7, IDLE_US + 3)
    assert remaining.rows(IDLE_US + 3) == {("gold", "user:1"): (8, 4), ("gold", "user:3"): (7, IDLE_US + 3)}
    assert remaining.rows(3 * IDLE_US) == {}, "nobody was seen for so long"


def test_flood_creates_few_new_series() -> None:
    remaining = RemainingQuotas(max_counters=10)
    told: set[str] = set()
    for number in range(5_000):
        now_us = number * 100_000  # within ten minutes
        remaining.see("gold", f"ip:{number}", 1, now_us)
        told.update(row[1] for row in remaining.rows(now_us))
    assert len(told) == 10
