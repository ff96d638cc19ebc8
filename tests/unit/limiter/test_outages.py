"""The log line when a store is back, and what the policy answered in the last minute."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Sequence

import pytest

from crestgate import AsyncLimiter, Limiter
from crestgate.errors import StoreError
from crestgate.limiter.observer import Observer
from crestgate.limiter.outages import OutageWatch, RecentAnswers
from crestgate.stores.breaker import Breaker
from crestgate.stores.memory import MemoryStore
from crestgate.stores.port import BatchCallback, BatchOutcomes, Request
from crestgate.stores.remote_store import RemoteStore
from crestgate.testing import FakeClock


class Store(RemoteStore):
    """Servers with breakers, on virtual time."""

    title = "Redis at a:1"
    timeout = 1.0

    def __init__(self, *servers: str) -> None:
        self.now = 100.0
        self.servers = {server: Breaker() for server in servers}
        self.watch = OutageWatch(self, "open", lambda: self.now)

    def breakers(self) -> dict[str, Breaker]:
        return self.servers

    def fail(self, server: str, checks: int) -> None:
        self.servers[server].failed(self.now, "no response")
        self.watch.answered(checks)

    def decide(self) -> None:
        """As a coalescer does after a batch."""
        if self.on_decided is not None:
            self.on_decided()


class Erring(RemoteStore):
    """Responds with errors, until it does not."""

    title = "Redis at a:1"
    timeout = 1.0
    erring = True

    def call(self, batch: Sequence[Request], deadline: float) -> BatchOutcomes:
        if self.erring:
            raise StoreError("OOM command not allowed when used memory > 'maxmemory'")
        return MemoryStore().apply(batch)

    def begin(self, batch: Sequence[Request], deadline: float, done: BatchCallback) -> None:
        done(self.call(batch, deadline))

    def connect(self) -> None:
        pass

    async def connect_async(self) -> None:
        pass

    def close(self) -> None:
        pass


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_one_line_when_the_store_is_back(caplog: pytest.LogCaptureFixture) -> None:
    store = Store("a")
    for _ in range(5):
        store.fail("a", 10)
        store.now += 1
    assert lines(caplog) == []
    store.servers["a"].succeeded()
    store.servers["a"].succeeded()
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
        store.servers["a"].succeeded()
    assert [line[-24:] for line in lines(caplog)] == [
        "answered 1 checks meanwhile"[-24:],
        "answered 2 checks meanwhile"[-24:],
    ]


def test_flapping_store_is_logged_at_most_once_a_second(caplog: pytest.LogCaptureFixture) -> None:
    store = Store("a")
    for _ in range(30):
        store.fail("a", 1)
        store.now += 0.25
        store.servers["a"].succeeded()
    assert len(lines(caplog)) == 8
    assert "answered 4 checks" in lines(caplog)[-1]


def test_store_is_away_until_all_servers_respond(caplog: pytest.LogCaptureFixture) -> None:
    store = Store("a", "b")
    store.fail("a", 1)
    store.fail("b", 1)
    store.servers["a"].succeeded()
    assert lines(caplog) == []
    store.servers["b"].succeeded()
    assert len(lines(caplog)) == 1


def test_server_that_is_not_asked_any_more_is_not_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    store = Store("old", "new")
    store.fail("old", 1)
    store.fail("new", 1)
    store.now += 6
    store.servers["new"].succeeded()
    assert len(lines(caplog)) == 1


def test_server_that_responds_with_errors_is_back_with_the_first_decision(caplog: pytest.LogCaptureFixture) -> None:
    store = Store("a")
    for _ in range(3):
        store.watch.answered(5)
        store.now += 1
    assert store.watch.is_open
    store.decide()
    assert not store.watch.is_open
    assert store.on_decided is None
    (line,) = lines(caplog)
    assert line.endswith("away for 3.0 s, on_store_error=open answered 15 checks meanwhile")


def test_single_checks_that_fail_are_no_outage(caplog: pytest.LogCaptureFixture) -> None:
    store = Store("a")
    for _ in range(10):
        store.watch.answered(1)
        store.now += 0.2
        store.decide()
        store.now += 10
    assert lines(caplog) == []


def test_server_that_does_not_respond_any_more_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    store = Store("a", "b")
    store.watch.answered(1)
    store.fail("a", 1)
    store.now += 2
    store.decide()
    assert store.watch.is_open, "a batch that only b decided"
    store.servers["a"].succeeded()
    assert len(lines(caplog)) == 1


@pytest.mark.parametrize("observed", [False, True])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_checks_tell_that_errors_are_over(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, asynchronous: bool, observed: bool
) -> None:
    monkeypatch.setattr("crestgate.limiter.outages.LOG_SECONDS", 0.0)
    store = Erring()
    store.clock = FakeClock()
    observer = Observer() if observed else None
    limiter = AsyncLimiter(store, observer=observer) if asynchronous else Limiter(store, observer=observer)

    def check() -> str:
        decision = limiter.bind("5/minute").check("k")
        return asyncio.run(decision).reason if inspect.isawaitable(decision) else decision.reason

    assert [check(), check()] == ["fail_open", "fail_open"]
    store.erring = False
    assert check() == "ok"
    assert "answered 2 checks meanwhile" in lines(caplog)[-1]
    assert check() == "ok"
    assert sum("store is back" in line for line in lines(caplog)) == 1


def test_answers_of_the_last_minute() -> None:
    recent = RecentAnswers()
    assert recent.last_minute(1000.0) == 0
    for second in range(200):
        recent.add(2, 1000.0 + second, "no response")
    assert recent.last_minute(1199.5) == 120
    assert recent.last_minute(1230.0) < 120
    assert recent.last_minute(1300.0) == 0
    assert (recent.last_at, recent.last_error) == (1199.0, "no response")
