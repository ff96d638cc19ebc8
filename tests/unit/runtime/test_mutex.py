"""The lock of local stores: one holder at a time, free after errors and in forked children."""

from __future__ import annotations

import os
import threading
import time

import pytest

from crestgate.runtime.mutex import new_fork_safe_mutex, new_mutex


def test_only_one_holder() -> None:
    mutex = new_mutex()
    assert mutex.acquire(False)
    assert mutex.locked()
    assert not mutex.acquire(False)
    assert not mutex.acquire(True, 0.001)
    mutex.release()
    assert not mutex.locked()
    assert mutex.acquire(True, 30.0)


def test_waiter_gets_it_when_it_is_released() -> None:
    mutex = new_mutex()
    mutex.acquire()
    waiting = threading.Event()
    order: list[str] = []

    def wait() -> None:
        waiting.set()
        with mutex:
            order.append("waiter")

    thread = threading.Thread(target=wait)
    thread.start()
    waiting.wait()
    order.append("holder")
    mutex.release()
    thread.join()
    assert order == ["holder", "waiter"]
    assert not mutex.locked()


def test_holder_that_gives_other_threads_a_turn_still_excludes_them() -> None:
    mutex = new_mutex()
    count = 0

    def add() -> None:
        nonlocal count
        for _ in range(20):
            with mutex:
                before = count
                time.sleep(0)
                count = before + 1

    threads = [threading.Thread(target=add) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert count == 8 * 20


def test_error_in_the_block_releases_it() -> None:
    mutex = new_mutex()
    with pytest.raises(ZeroDivisionError), mutex:
        _ = 1 / 0
    assert not mutex.locked()


def test_it_is_free_in_a_forked_child() -> None:
    mutex = new_fork_safe_mutex()
    held, forked = threading.Event(), threading.Event()

    def hold() -> None:
        with mutex:
            held.set()
            forked.wait(0.1)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if child == 0:
        os._exit(0 if mutex.acquire(False) else 1)
    forked.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not mutex.locked()
