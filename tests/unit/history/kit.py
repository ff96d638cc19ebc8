"""Conformance tests of usage histories, for a class with a fixture `opener`."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from crestgate.errors import StoreClosedError
from crestgate.history.port import MAX_DENIED, MAX_SUBJECTS, History, SubjectPoint, SubjectUsage, TopRules, UsagePoint

__all__ = ["DAY_US", "HOUR_US", "MINUTE_US", "NOON", "HistoryKit", "Opener"]

MINUTE_US = 60_000_000
HOUR_US = 60 * MINUTE_US
DAY_US = 24 * HOUR_US
NOON = 1_789_041_600_000_000
"""The start of an hour."""
Opener = Callable[[str], History]
NAMES = ["r", "R", "r ", "é", "e\u0301", "\U0001f6a6", "\ud83d", "a\x00b", "'; --", "a:b", "{a}", "k" * 1024, "%s"]


class HistoryKit:
    @pytest.fixture
    def history(self, opener: Opener, request: pytest.FixtureRequest) -> History:
        return opener(request.node.name)

    def test_add_counts_in_the_minute_and_its_hour(self, history: History) -> None:
        history.add(NOON + 5 * MINUTE_US + 7, {"a": (3, 2, 1), "b": (1, 0, 0)}, {})
        history.add(NOON + 5 * MINUTE_US, {"a": (10, 0, 0)}, {})
        history.add(NOON + 6 * MINUTE_US, {"a": (0, 0, 5)}, {})
        history.add(NOON + HOUR_US, {"a": (1, 1, 1)}, {})
        assert history.usage(NOON, NOON + HOUR_US, "minute") == [
            UsagePoint(NOON + 5 * MINUTE_US, "a", 13, 2, 1),
            UsagePoint(NOON + 5 * MINUTE_US, "b", 1, 0, 0),
            UsagePoint(NOON + 6 * MINUTE_US, "a", 0, 0, 5),
        ]
        assert history.usage(NOON, NOON + DAY_US, "hour") == [
            UsagePoint(NOON, "a", 13, 2, 6),
            UsagePoint(NOON, "b", 1, 0, 0),
            UsagePoint(NOON + HOUR_US, "a", 1, 1, 1),
        ]

    def test_range_includes_the_step_of_its_start(self, history: History) -> None:
        for minute in range(3):
            history.add(NOON + minute * MINUTE_US, {"a": (minute + 1, 0, 0)}, {})

        def minutes(since_us: int, until_us: int) -> list[int]:
            return [point.allowed for point in history.usage(since_us, until_us, "minute")]

        assert minutes(NOON + MINUTE_US, NOON + 2 * MINUTE_US) == [2]
        assert minutes(NOON + 2 * MINUTE_US - 1, NOON + 2 * MINUTE_US + 1) == [2, 3]
        assert minutes(NOON + 3 * MINUTE_US, NOON + DAY_US) == []
        assert minutes(NOON + MINUTE_US, NOON) == []
        assert minutes(-(2**70), 2**70) == [1, 2, 3]
        assert [point.allowed for point in history.usage(NOON + HOUR_US - 1, NOON + DAY_US, "hour")] == [6]

    def test_later_time_of_last_use_wins(self, history: History) -> None:
        history.add_uses({})
        history.add_uses({"a": NOON, "b": NOON + 5})
        history.add_uses({"a": NOON + 1, "b": NOON, "c" * 64: NOON + 123_456})
        assert history.last_uses(["a", "b", "c" * 64, "d"]) == {"a": NOON + 1, "b": NOON + 5, "c" * 64: NOON + 123_456}
        assert history.last_uses([]) == {}
        assert history.usage(0, 2**62, "minute") == history.usage(0, 2**62, "hour") == []
        assert history.top(0, 2**62) == [], "last uses are not usage"

    def test_times_of_last_use_are_bounded_and_swept(self, history: History, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(f"{type(history).__module__}.MAX_USES", 3)
        names = [f"counter-{number}" for number in range(8)]
        history.add_uses({name: NOON + day * DAY_US for day, name in enumerate(names[:4])})
        for day, name in enumerate(names[4:], 4):
            history.add_uses({name: NOON + day * DAY_US})
        assert sorted(history.last_uses(names)) == names[5:]
        history.sweep(NOON + 36 * DAY_US)
        assert sorted(history.last_uses(names)) == names[6:]
        history.sweep(NOON + 100 * DAY_US)
        assert history.last_uses(names) == {}

    def test_many_last_uses_in_one_query(self, history: History) -> None:
        uses = {f"counter-{number}": NOON + number for number in range(2000)}
        history.add_uses(uses)
        history.add_uses({name: at_us + 1 for name, at_us in uses.items()})
        assert history.last_uses(list(uses)) == {name: at_us + 1 for name, at_us in uses.items()}

    def test_usage_of_one_rule(self, history: History) -> None:
        history.add(NOON, {"a": (1, 0, 0), "b": (0, 2, 0)}, {})
        history.add(NOON + MINUTE_US, {"b": (0, 0, 3)}, {})
        assert history.usage(NOON, NOON + DAY_US, "minute", "b") == [
            UsagePoint(NOON, "b", 0, 2, 0),
            UsagePoint(NOON + MINUTE_US, "b", 0, 0, 3),
        ]
        assert history.usage(NOON, NOON + DAY_US, "hour", "b") == [UsagePoint(NOON, "b", 0, 2, 3)]
        assert history.usage(NOON, NOON + DAY_US, "hour", "nobody") == []

    def test_top_rules(self, history: History) -> None:
        assert history.top_rules(NOON, NOON + DAY_US, "minute", 2) == TopRules([], [], 0)
        history.add(NOON, {"busy": (90, 0, 2), "b": (0, 2, 0), "c": (1, 2, 0)}, {})
        history.add(NOON + MINUTE_US, {"b": (0, 0, 3), "c": (1, 0, 0)}, {})
        history.add(NOON + HOUR_US, {"busy": (0, 50, 0)}, {})
        found = history.top_rules(NOON + 1, NOON + HOUR_US, "minute", 2)
        assert found.totals == [UsagePoint(NOON, "", 91, 4, 2), UsagePoint(NOON + MINUTE_US, "", 1, 0, 3)]
        assert found.points == [
            UsagePoint(NOON, "b", 0, 2, 0),
            UsagePoint(NOON, "c", 1, 2, 0),
            UsagePoint(NOON + MINUTE_US, "b", 0, 0, 3),
            UsagePoint(NOON + MINUTE_US, "c", 1, 0, 0),
        ]
        assert found.rules == 3
        assert {point.rule for point in history.top_rules(NOON, NOON + DAY_US, "hour", 1).points} == {"busy"}

    def test_top_rules_of_any_number(self, history: History, monkeypatch: pytest.MonkeyPatch) -> None:
        for module in ("spans", "sql"):
            monkeypatch.setattr(f"crestgate.history.{module}.MAX_POINTS", 3)
        history.add(NOON, {f"r{number}": (1, number, 0) for number in range(10)}, {})
        found = history.top_rules(NOON, NOON + MINUTE_US, "minute", 2)
        assert ([point.rule for point in found.points], found.rules) == (["r8", "r9"], 10)

    def test_any_text_is_a_name(self, history: History) -> None:
        history.add(NOON, {name: (n + 1, 0, 0) for n, name in enumerate(NAMES)}, dict.fromkeys(NAMES, (0, 1)))
        points = history.usage(NOON, NOON + 1, "minute")
        assert {point.rule: point.allowed for point in points} == {name: n + 1 for n, name in enumerate(NAMES)}
        assert [history.usage(NOON, NOON + 1, "hour", name)[0].rule for name in NAMES] == NAMES
        assert {found.subject for found in history.top(NOON, NOON + 1, 100)} == set(NAMES)

    def test_long_name_is_truncated(self, history: History) -> None:
        history.add(NOON, {"é" * 513: (1, 0, 0), "é" * 514: (2, 0, 0)}, {"k" * 2000: (1, 1)})
        assert history.usage(NOON, NOON + 1, "minute") == [UsagePoint(NOON, "é" * 512, 3, 0, 0)]
        assert history.usage(NOON, NOON + 1, "hour", "é" * 600) == [UsagePoint(NOON, "é" * 512, 3, 0, 0)]
        assert history.top(NOON, NOON + 1) == [SubjectUsage("k" * 1024, 1, 1)]

    def test_empty_add_writes_nothing(self, history: History) -> None:
        history.add(NOON, {}, {})
        history.add(NOON, {"a": (0, 0, 0)}, {"s": (0, 0)})
        assert history.usage(NOON, NOON + DAY_US, "minute") == []
        assert history.top(NOON, NOON + DAY_US) == []

    def test_prefixes_are_separate(self, opener: Opener) -> None:
        opener("one").add(NOON, {"a": (1, 0, 0)}, {"s": (1, 0)})
        two = opener("two")
        assert two.usage(NOON, NOON + DAY_US, "minute") == [] == two.usage(NOON, NOON + DAY_US, "hour")
        assert two.top(NOON, NOON + DAY_US) == []
        two.sweep(NOON + 1000 * DAY_US)
        assert opener("one").usage(NOON, NOON + DAY_US, "hour") == [UsagePoint(NOON, "a", 1, 0, 0)]

    def test_concurrent_adds(self, opener: Opener) -> None:
        """Rules and subjects in different orders, as from different workers."""
        workers, rounds, names = 4, 10, [f"n{number}" for number in range(30)]
        start = threading.Barrier(workers)
        failures: list[BaseException] = []

        def work(number: int) -> None:
            try:
                mine = opener("busy")
                start.wait(30)
                for _ in range(rounds):
                    order = names[number:] + names[:number]
                    mine.add(NOON, dict.fromkeys(order, (1, 2, 3)), dict.fromkeys(reversed(order), (1, 1)))
            except BaseException as error:  # noqa: BLE001 - handed to the test
                failures.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        history, total = opener("busy"), workers * rounds
        for step in ("minute", "hour"):
            points = history.usage(NOON, NOON + 1, step)
            assert points == [UsagePoint(NOON, name, total, 2 * total, 3 * total) for name in sorted(names)]
        assert history.top(NOON, NOON + 1, 3) == [SubjectUsage(name, total, total) for name in sorted(names)[:3]]

    def test_top_subjects(self, history: History) -> None:
        history.add(NOON, {}, {"a": (1, 1), "b": (5, 0), "c": (0, 4)})
        history.add(NOON + MINUTE_US, {}, {"a": (9, 0), "d": (0, 1)})
        assert history.top(NOON, NOON + 2 * MINUTE_US, 2) == [SubjectUsage("a", 10, 1), SubjectUsage("b", 5, 0)]
        assert history.top(NOON, NOON + MINUTE_US)[0] == SubjectUsage("b", 5, 0)
        assert [found.subject for found in history.top(NOON, NOON + DAY_US)] == ["a", "b", "c", "d"]
        assert history.top(NOON, NOON + DAY_US, 0) == []
        assert history.top(NOON + DAY_US, NOON) == []

    def test_subjects_that_are_denied_most(self, history: History) -> None:
        customers = {f"customer-{number:03}": (1000, 1) for number in range(200)}
        for minute in range(70):
            history.add(NOON + minute * MINUTE_US, {}, {**customers, "attack": (0, 50), "unlucky": (9, 30)})
        for minutes in (1, 59, 65):  # hours as well
            expected = [SubjectUsage("attack", 0, 50 * minutes), SubjectUsage("unlucky", 9 * minutes, 30 * minutes)]
            assert history.top(NOON, NOON + minutes * MINUTE_US, 2, "denied") == expected
        history.add(NOON + DAY_US, {}, {"fine": (1, 0)})
        assert history.top(NOON + DAY_US, NOON + 2 * DAY_US, 10, "denied") == []
        assert history.top(NOON + DAY_US, NOON, 10, "denied") == []

    def test_one_subject_over_time(self, history: History) -> None:
        history.add(NOON, {}, {"user:42": (3, 1), "user:4": (9, 9)})
        history.add(NOON + 2 * MINUTE_US, {}, {"user:42": (1, 0)})
        history.add(NOON + HOUR_US, {}, {"user:42": (5, 5)})
        assert history.subject(NOON + 1, NOON + HOUR_US, "minute", "user:42") == [
            SubjectPoint(NOON, 3, 1),
            SubjectPoint(NOON + 2 * MINUTE_US, 1, 0),
        ]
        assert history.subject(NOON, NOON + DAY_US, "hour", "user:42") == [
            SubjectPoint(NOON, 4, 1),
            SubjectPoint(NOON + HOUR_US, 5, 5),
        ]
        assert history.subject(NOON, NOON + DAY_US, "hour", "user:nobody") == []

    def test_minutes_at_the_ends_of_whole_hours_count_once(self, history: History) -> None:
        for minute in range(-2, 182):
            history.add(NOON + minute * MINUTE_US, {}, {"s": (1, 0)})
        for first, last, expected in [(-1, 181, 182), (0, 180, 180), (1, 59, 58), (1, 61, 60), (59, 121, 62)]:
            times = NOON + first * MINUTE_US, NOON + last * MINUTE_US
            assert history.top(*times) == [SubjectUsage("s", expected, 0)], (first, last)

    def test_subjects_are_bounded_to_the_highest_counts(self, history: History) -> None:
        for group in range(5):
            history.add(NOON + group, {}, {f"{group}-{n:02}": (n, group) for n in range(60)} | {"big": (0, 1000)})
        for until_us in (NOON + 1, NOON + HOUR_US):  # the minute, and the hour
            top = history.top(NOON, until_us, 1000)
            assert MAX_SUBJECTS <= len(top) <= MAX_SUBJECTS + MAX_DENIED
            assert top[0] == SubjectUsage("big", 0, 5000)
            assert SubjectUsage("4-59", 59, 4) in top
            assert SubjectUsage("0-59", 59, 0) in top
            assert "0-01" not in {found.subject for found in top}

    def test_sweep_deletes_expired_rows(self, history: History) -> None:
        for at_us in (NOON - DAY_US, NOON - MINUTE_US, NOON, NOON + 400 * DAY_US):
            history.add(at_us, {"a": (1, 0, 0)}, {"s": (1, 0)})

        def retained() -> tuple[list[int], list[int]]:
            minutes = history.usage(0, 2**62, "minute")
            hours = history.usage(0, 2**62, "hour")
            return [point.at_us for point in minutes], [point.at_us for point in hours]

        late = NOON + 400 * DAY_US
        hours = [NOON - DAY_US, NOON - HOUR_US, NOON, late]
        history.sweep(NOON + 29 * DAY_US)
        assert retained() == ([NOON - DAY_US, NOON - MINUTE_US, NOON, late], hours)
        history.sweep(NOON + 30 * DAY_US)
        assert retained() == ([NOON, late], hours)
        assert history.top(NOON - MINUTE_US, NOON) == []
        history.sweep(NOON + 366 * DAY_US)
        assert retained() == ([late], [NOON, late])
        history.sweep(NOON + 366 * DAY_US + 1)
        assert retained() == ([late], [late])
        assert history.top(NOON - 2 * DAY_US, NOON + 2 * DAY_US) == []

    def test_long_backlog_is_swept_in_batches(self, history: History) -> None:
        rules = {f"r{number}": (1, 0, 0) for number in range(30)}
        for minute in range(210):
            history.add(NOON + minute * MINUTE_US, rules if minute % 3 == 0 else {"r0": (1, 0, 0)}, {"s": (0, 1)})
        history.sweep(NOON + 31 * DAY_US)
        assert history.usage(0, 2**62, "minute") == []
        assert history.top(NOON + MINUTE_US, NOON + HOUR_US) == []
        assert len(history.usage(0, 2**62, "hour", "r0")) == 4

    def test_too_many_points_are_refused(self, history: History, monkeypatch: pytest.MonkeyPatch) -> None:
        for module in ("spans", "sql"):
            monkeypatch.setattr(f"crestgate.history.{module}.MAX_POINTS", 3)
        history.add(NOON, {"a": (1, 0, 0), "b": (1, 0, 0), "c": (1, 0, 0)}, {})
        assert len(history.usage(NOON, NOON + DAY_US, "minute")) == 3
        history.add(NOON + MINUTE_US, {"a": (1, 0, 0)}, {})
        with pytest.raises(ValueError, match="more than 3 results: query a shorter time, hours"):
            history.usage(NOON, NOON + DAY_US, "minute")
        assert len(history.usage(NOON, NOON + DAY_US, "minute", "a")) == 2

    def test_closed_history_refuses_calls(self, history: History) -> None:
        history.close()
        history.close()
        for use in (
            lambda: history.add(NOON, {"a": (1, 0, 0)}, {}),
            lambda: history.usage(NOON, NOON + 1, "hour"),
            lambda: history.top(NOON, NOON + 1),
            lambda: history.sweep(NOON),
        ):
            with pytest.raises(StoreClosedError, match="this history was closed; open it again"):
                use()
