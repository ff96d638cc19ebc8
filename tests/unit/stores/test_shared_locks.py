"""The locks of a shared file: queueing order, stopped holders, and timeouts."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from crestgate.errors import StoreClosedError, StoreError
from crestgate.stores.shared import SharedStore, lock_holders
from crestgate.stores.shared import locks as locks_module
from crestgate.stores.shared.lock_holders import COUNT_MASK, first_stamp, is_stopped
from crestgate.stores.shared.locks import FIRST_STRIPE, LockBusyError
from crestgate.stores.shared.thread_locks import MAX_OVERTAKEN_SECONDS, ThreadLocks

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


def test_lock_is_reserved_for_an_overtaken_thread() -> None:
    locks = ThreadLocks(2)
    assert locks.try_acquire(1)
    order: list[str] = []

    def wait() -> None:
        assert locks.acquire(1, Never())
        order.append("waiter")
        locks.release(1)

    waiter = threading.Thread(target=wait)
    waiter.start()
    until(lambda: locks.is_reserved(1))
    assert locks.try_acquire(0), "other locks are not reserved"
    assert not locks.is_reserved(0)
    locks.release(1)
    assert not locks.try_acquire(1), "the lock is reserved for the waiter"
    assert locks.acquire(1, Never())
    order.append("newcomer")
    locks.release(1)
    waiter.join(PATIENCE)
    assert order == ["waiter", "newcomer"]
    assert locks.queues == {}


def test_waiters_are_served_in_order_of_arrival() -> None:
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
        until(lambda number=number: len(locks.queues.get(0, ())) == number + 1)  # type: ignore[misc]
    time.sleep(2 * MAX_OVERTAKEN_SECONDS)  # real threads in real time: all of them were overtaken for long enough
    locks.release(0)
    for thread in threads:
        thread.join(PATIENCE)
    assert order == list(range(10))


def test_waiter_that_times_out_leaves_the_queue() -> None:
    locks = ThreadLocks(1)
    assert locks.try_acquire(0)
    assert not locks.acquire(0, Now())
    assert locks.queues == {}
    locks.release(0)
    assert locks.try_acquire(0)


def test_running_process_is_not_stopped() -> None:
    assert not is_stopped(first_stamp())
    assert not is_stopped(first_stamp() + COUNT_MASK)


def test_exited_process_is_not_stopped() -> None:
    exited = subprocess.Popen([sys.executable, "-c", ""])
    exited.wait(PATIENCE)
    stamp = first_stamp()
    assert not is_stopped(stamp - ((os.getpid() - exited.pid) << 32)), "the kernel has freed what it held"


def test_process_that_exits_while_it_is_checked_is_not_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its /proc file can be opened then, but not read any more: ESRCH."""

    def fail(path: str, mode: str) -> None:
        raise ProcessLookupError(errno.ESRCH, "No such process", path)

    stamp = first_stamp()
    monkeypatch.setattr("builtins.open", fail)
    assert not is_stopped(stamp)


def test_holder_that_has_not_written_its_stamp_yet_is_not_stopped() -> None:
    """Nobody had taken the lock before it: a process that opens a new file, on a busy machine."""
    assert not is_stopped(0)


def test_process_of_another_namespace_counts_as_stopped() -> None:
    """Its state is unknown here, so only the deadline applies."""
    assert is_stopped(first_stamp() ^ (1 << 54))


def test_stalled_holder_is_waited_for_only_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not visibly stopped, but makes no progress. Only the first waiter waits that long."""
    monkeypatch.setattr(lock_holders, "MAX_STALL_SECONDS", 0.3)
    path = str(tmp_path / "counters")
    store, other = SharedStore(path, timeout_ms=10), SharedStore(path)
    other.locks.acquire(FIRST_STRIPE, 1.0)
    stamp = store.locks.stamp_of(FIRST_STRIPE)
    with pytest.raises(LockBusyError):
        store.locks.acquire(FIRST_STRIPE, store.timeout)
    assert store.locks.stalled == {FIRST_STRIPE: stamp}
    with pytest.raises(StoreError):
        store.locks.acquire(FIRST_STRIPE, store.timeout)
    other.locks.release(FIRST_STRIPE)
    store.locks.acquire(FIRST_STRIPE, store.timeout)
    store.close()
    other.close()


def test_stamp_counter_never_overflows_into_the_pid(tmp_path: Path) -> None:
    store = SharedStore(str(tmp_path / "counters"))
    stamp = first_stamp()
    store.locks.stamp = stamp + COUNT_MASK - 1
    stamps = []
    for _ in range(4):
        store.locks.acquire(FIRST_STRIPE, 1.0)
        store.locks.release(FIRST_STRIPE)
        stamps.append(store.locks.stamp_of(FIRST_STRIPE))
    assert {taken >> 32 for taken in stamps} == {stamp >> 32}
    assert len(set(stamps)) == 4
    store.close()


def test_closing_leaves_the_file_to_a_check_that_still_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another file may get the number of a closed descriptor, and would be locked or unlocked in its place."""
    monkeypatch.setattr(locks_module, "CLOSE_TIMEOUT", 0.01)
    store = SharedStore(str(tmp_path / "counters"))
    store.locks.acquire(FIRST_STRIPE, 1.0)
    store.close()
    store.locks.release(FIRST_STRIPE)
    with pytest.raises(StoreClosedError):
        store.apply([])


def test_a_check_that_meets_a_closed_store_says_so(tmp_path: Path) -> None:
    """Neither the size of the file nor the stamp of a lock is read under a lock, so closing may come between."""
    store = SharedStore(str(tmp_path / "counters"))
    store.close()
    with pytest.raises(StoreClosedError, match="is closed"):
        store.corruption.check_size()
    with pytest.raises(StoreClosedError, match="is closed"):
        store.locks.detector(1.0).wait_for(FIRST_STRIPE)
