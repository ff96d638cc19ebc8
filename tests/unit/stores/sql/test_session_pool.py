"""The pool of sessions: who opens one, who gets it, and that no slot is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from crestgate.stores.sql.pool import SessionPool
from crestgate.stores.sql.session import DatabaseConnectionError, Driver, Session

SIZE = 3


class FakeSession(Session):
    closed = False

    def close(self) -> None:
        self.closed = True


class SlowDriver(Driver):
    """Opens sessions when the test allows it."""

    name = "a database"
    opens_in_background = True

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.opened: list[FakeSession] = []
        self.problem: DatabaseConnectionError | None = None

    def open(self, deadline: float) -> Session:
        if not self.gate.wait(deadline - time.monotonic()):
            raise DatabaseConnectionError("no answer", timed_out=True)
        if self.problem is not None:
            raise self.problem
        self.opened.append(FakeSession())
        return self.opened[-1]


@pytest.fixture
def driver() -> SlowDriver:
    return SlowDriver()


@pytest.fixture
def pool(driver: SlowDriver) -> SessionPool:
    return SessionPool(driver, SIZE)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def take_in_vain(pool: SessionPool) -> None:
    with pytest.raises(DatabaseConnectionError, match="no answer in time") as late:
        pool.take(time.monotonic() + 0.02)
    assert late.value.timed_out


def free_slots(pool: SessionPool) -> int:
    return pool.slots.qsize()


def test_late_session_is_for_the_next_caller(driver: SlowDriver, pool: SessionPool) -> None:
    """A server that needs longer than a deadline to accept a connection is reached all the same."""
    told: list[bool] = []
    pool.on_late_session = lambda: told.append(True)
    take_in_vain(pool)
    assert free_slots(pool) == SIZE - 1
    driver.gate.set()
    until(lambda: bool(told))
    assert pool.take(time.monotonic() + 10) == (driver.opened[0], False)
    assert len(driver.opened) == 1
    pool.give(driver.opened[0])
    assert free_slots(pool) == SIZE


def test_session_in_time(driver: SlowDriver, pool: SessionPool) -> None:
    told: list[bool] = []
    pool.on_late_session = lambda: told.append(True)
    driver.gate.set()
    assert pool.take(time.monotonic() + 10) == (driver.opened[0], True)
    assert not told
    assert free_slots(pool) == SIZE - 1


@pytest.mark.parametrize("late", [True, False])
def test_failed_session_leaves_its_slot(late: bool, driver: SlowDriver, pool: SessionPool) -> None:
    driver.problem = DatabaseConnectionError("refused")
    if late:
        take_in_vain(pool)
    driver.gate.set()
    if not late:
        with pytest.raises(DatabaseConnectionError, match="refused"):
            pool.take(time.monotonic() + 10)
    until(lambda: free_slots(pool) == SIZE)
    driver.problem = None
    assert len({pool.take(time.monotonic() + 10)[0] for _ in range(SIZE)}) == SIZE


def test_late_session_of_a_closed_pool_is_closed(driver: SlowDriver, pool: SessionPool) -> None:
    take_in_vain(pool)
    pool.close()
    driver.gate.set()
    until(lambda: bool(driver.opened) and driver.opened[0].closed)


def test_replacement_is_late(driver: SlowDriver, pool: SessionPool) -> None:
    driver.gate.set()
    session, _ = pool.take(time.monotonic() + 10)
    driver.gate.clear()
    with pytest.raises(DatabaseConnectionError, match="no answer in time"):
        pool.replace(session, time.monotonic() + 0.02)
    driver.gate.set()
    until(lambda: free_slots(pool) == SIZE)
    assert pool.take(time.monotonic() + 10) == (driver.opened[1], False)


def test_idle_sessions_are_taken_before_new_ones_are_opened(driver: SlowDriver, pool: SessionPool) -> None:
    driver.gate.set()
    first, second = (pool.take(time.monotonic() + 10)[0] for _ in range(2))
    pool.give(first)
    pool.drop(second)
    assert pool.take(time.monotonic() + 10) == (first, False)


def test_interrupted_caller_leaves_its_slot(
    driver: SlowDriver, pool: SessionPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            raise KeyboardInterrupt

    monkeypatch.setattr("crestgate.stores.sql.pool.Event", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        pool.take(time.monotonic() + 10)
    driver.gate.set()
    until(lambda: free_slots(pool) == SIZE)
    assert pool.take(time.monotonic() + 10) == (driver.opened[0], False)
