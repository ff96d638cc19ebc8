"""The log line when a store is back, and what the policy answered in the last minute."""

from __future__ import annotations

import logging

import pytest

from crestgate.limiter.outages import OutageWatch, RecentAnswers
from crestgate.stores.breaker import Breaker


class Store:
    """Servers with breakers, on virtual time."""

    def __init__(self, *servers: str) -> None:
        self.now = 100.0
        self.breakers = {server: Breaker() for server in servers}
        self.watch = OutageWatch("Redis at a:1", "open", lambda: self.breakers, lambda: self.now)

    def fail(self, server: str, checks: int) -> None:
        self.breakers[server].failed(self.now, "no response")
        self.watch.answered(checks)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_one_line_when_the_store_is_back(caplog: pytest.LogCaptureFixture) -> None:
    store = Store("a")
    for _ in range(5):
        store.fail("a", 10)
        store.now += 1
    assert lines(caplog) == []
    store.breakers["a"].succeeded()
    store.breakers["a"].succeeded()
    assert lines(caplog) == [
        "store is back: Redis at a:1: away for 5.0 s, on_store_error=open answered 50 checks meanwhile"
    ]
    assert caplog.records[0].levelno == logging.WARNING
    assert not store.watch.is_open


def test_each_outage_has_its_own_line(caplog: pytest.LogCaptureFixture) -> None:
    store = Store("a")
    for checks in (1, 2):
        store.fail("a", checks)
        store.now += 3
        store.breakers["a"].succeeded()
    assert [line[-24:] for line in lines(caplog)] == [
        "answered 1 checks meanwhile"[-24:],
        "answered 2 checks meanwhile"[-24:],
    ]


def test_flapping_store_is_logged_at_most_once_a_second(caplog: pytest.LogCaptureFixture) -> None:
    store = Store("a")
    for _ in range(30):
        store.fail("a", 1)
        store.now += 0.25
        store.breakers["a"].succeeded()
    assert len(lines(caplog)) == 8
    assert "answered 4 checks" in lines(caplog)[-1]


def test_store_is_away_until_all_servers_respond(caplog: pytest.LogCaptureFixture) -> None:
    store = Store("a", "b")
    store.fail("a", 1)
    store.fail("b", 1)
    store.breakers["a"].succeeded()
    assert lines(caplog) == []
    store.breakers["b"].succeeded()
    assert len(lines(caplog)) == 1


def test_server_that_is_not_asked_any_more_is_not_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    store = Store("old", "new")
    store.fail("old", 1)
    store.fail("new", 1)
    store.now += 6
    store.breakers["new"].succeeded()
    assert len(lines(caplog)) == 1


def test_server_that_responds_with_errors_is_not_away(caplog: pytest.LogCaptureFixture) -> None:
    store = Store("a")
    store.watch.answered(5)
    assert not store.watch.is_open
    store.breakers["a"].succeeded()
    assert lines(caplog) == []


def test_answers_of_the_last_minute() -> None:
    recent = RecentAnswers()
    assert recent.last_minute(1000.0) == 0
    for second in range(200):
        recent.add(2, 1000.0 + second, "no response")
    assert recent.last_minute(1199.5) == 120
    assert recent.last_minute(1230.0) < 120
    assert recent.last_minute(1300.0) == 0
    assert (recent.last_at, recent.last_error) == (1199.0, "no response")
