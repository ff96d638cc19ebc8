"""The locks of a shared file: who goes next, who is waited for, and for how long."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headgate.errors import StoreError
from headgate.stores.shared import SharedStore, holders
from headgate.stores.shared.holders import COUNT_MASK, first_mark, is_stopped
from headgate.stores.shared.locks import FIRST_STRIPE, LockBusy
from headgate.stores.shared.thread_locks import MAX_OVERTAKEN_SECONDS, ThreadLocks

PATIENCE = 30.0


class Never:
    """Waits for as long as it takes."""

    def expired(self) -> bool:
        return False


class Now:
    """Does not wait."""

    def expired(self) -> bool:
        return True


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_lock_is_kept_for_a_thread_that_was_overtaken() -> None:
    locks = ThreadLocks(2)
    assert locks.try_acquire(1)
    order: list[str] = []

    def wait() -> None:
        assert locks.acquire(1, Never())
        order.append("waiter")
        locks.release(1)

    waiter = threading.Thread(target=wait)
    waiter.start()
    until(lambda: locks.is_kept(1))
    assert locks.try_acquire(0), "other locks are not kept"
    assert not locks.is_kept(0)
    locks.release(1)
    assert not locks.try_acquire(1), "the lock is kept for the waiter"
    assert locks.acquire(1, Never())
    order.append("newcomer")
    locks.release(1)
    waiter.join(PATIENCE)
    assert order == ["waiter", "newcomer"]
    assert locks.lines == {}


def test_waiters_are_served_in_the_order_in_which_they_came() -> None:
    locks = ThreadLocks(1)
    assert locks.try_acquire(0)
    order: list[int] = []

    def wait(number: int) -> None:
        assert locks.acquire(0, Never())
        order.append(number)
        locks.release(0)

    threads = []
    for number in range(10):
        threads.append(threading.Thread(target=wait, args=(number,)))
        threads[-1].start()
        until(lambda number=number: len(locks.lines.get(0, ())) == number + 1)  # type: ignore[misc]
    time.sleep(2 * MAX_OVERTAKEN_SECONDS)  # real threads in real time: all of them were overtaken for long enough
    locks.release(0)
    for thread in threads:
        thread.join(PATIENCE)
    assert order == list(range(10))


def test_waiter_that_gives_up_leaves_the_line() -> None:
    locks = ThreadLocks(1)
    assert locks.try_acquire(0)
    assert not locks.acquire(0, Now())
    assert locks.lines == {}
    locks.release(0)
    assert locks.try_acquire(0)


def test_running_process_is_not_stopped() -> None:
    assert not is_stopped(first_mark())
    assert not is_stopped(first_mark() + COUNT_MASK)


def test_process_that_is_gone_is_not_stopped() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait(PATIENCE)
    mark = first_mark()
    assert not is_stopped(mark - ((os.getpid() - gone.pid) << 32)), "the kernel has freed what it held"


def test_process_of_another_namespace_counts_as_stopped() -> None:
    """Nothing can be found out about it here, so the deadline alone decides."""
    assert is_stopped(first_mark() ^ (1 << 54))


def test_holder_that_never_goes_on_is_given_up_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not stopped, as far as anybody can see; but it does not go on. Only the first one waits that long."""
    monkeypatch.setattr(holders, "MAX_SECONDS", 0.3)
    path = str(tmp_path / "counters")
    store, other = SharedStore(path, timeout_ms=10), SharedStore(path)
    other.locks.acquire(FIRST_STRIPE, 1.0)
    mark = store.locks.mark_of(FIRST_STRIPE)
    with pytest.raises(LockBusy):
        store.locks.acquire(FIRST_STRIPE, store.timeout)
    assert store.locks.stalled == {FIRST_STRIPE: mark}
    with pytest.raises(StoreError):
        store.locks.acquire(FIRST_STRIPE, store.timeout)
    other.locks.release(FIRST_STRIPE)
    store.locks.acquire(FIRST_STRIPE, store.timeout)
    store.close()
    other.close()


def test_count_of_a_mark_never_reaches_the_process(tmp_path: Path) -> None:
    store = SharedStore(str(tmp_path / "counters"))
    mark = first_mark()
    store.locks.mark = mark + COUNT_MASK - 1
    seen = []
    for _ in range(4):
        store.locks.acquire(FIRST_STRIPE, 1.0)
        store.locks.release(FIRST_STRIPE)
        seen.append(store.locks.mark_of(FIRST_STRIPE))
    assert {taken >> 32 for taken in seen} == {mark >> 32}
    assert len(set(seen)) == 4
    store.close()
