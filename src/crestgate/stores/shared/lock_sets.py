# mypyc: compile
"""Taking several locks of the shared file at once, without deadlock and without starvation."""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence

from crestgate.runtime.file_locks import F_UNLCK, F_WRLCK
from crestgate.stores.shared.lock_holders import COUNT_MASK, StallDetector
from crestgate.stores.shared.locks import StripeLocks, flock_args
from crestgate.stores.shared.thread_locks import MAX_OVERTAKEN_SECONDS

__all__ = ["RANGE_STRIPES", "acquire_all", "release_range", "try_all", "try_range"]

RANGE_STRIPES = 16
"""From so many stripes on, one range lock from the first to the last is cheaper than a lock for each."""


def acquire_all(locks: StripeLocks, numbers: Sequence[int], timeout: float) -> None:
    """Take several locks, or none and raise LockBusyError. Nobody waits while holding another: a stopped process
    delays those who need what it holds, and not those who need what the waiters hold."""
    if try_all(locks, numbers):
        return
    detector = locks.detector(timeout)
    overtaken_at = time.monotonic() + MAX_OVERTAKEN_SECONDS
    busy = numbers[0]
    while True:
        if time.monotonic() > overtaken_at:
            busy = _acquire_in_turn(locks, numbers, detector)
            if busy < 0:
                return
        if not locks.try_acquire(busy):
            locks.wait(busy, detector)
        held = [busy]
        try:
            for number in numbers:
                if number == held[0]:
                    continue
                if not locks.try_acquire(number):
                    busy = number
                    break
                held.append(number)
        finally:
            if len(held) < len(numbers):
                for number in held:
                    locks.release(number)
        if len(held) == len(numbers):
            return


def _acquire_in_turn(locks: StripeLocks, numbers: Sequence[int], detector: StallDetector) -> int:
    """Take several locks that other threads take one by one, again and again: all are reserved for this thread.
    If another process has one of them, takes none and returns its number; else -1."""
    if not locks.threads.acquire_all(numbers, detector):
        raise locks.busy_error()
    busy = -1
    held = 0
    try:
        while held < len(numbers):
            if not locks.try_fcntl(locks.lock_args[numbers[held]]):
                busy = numbers[held]
                break
            held += 1
    finally:
        if held < len(numbers):
            for i in range(held):
                locks.fcntl(locks.descriptor[0], locks.command, locks.unlock_args[numbers[i]])
            for number in numbers:
                locks.threads.release(number)
    if busy < 0:
        for i in range(len(numbers)):
            locks.acquired(numbers[i])
    return busy


def try_all(locks: StripeLocks, numbers: Sequence[int]) -> bool:
    """Take several locks if all are free at this instant, or none."""
    held = 0
    try:
        while held < len(numbers) and locks.try_acquire(numbers[held]):
            held += 1
    finally:
        if held < len(numbers):
            for i in range(held):
                locks.release(numbers[i])
    return held == len(numbers)


def try_range(locks: StripeLocks, first: int, last: int) -> bool:
    """Take all locks from `first` to `last` if they are free at this instant, with one system call. The locks of
    other threads count, too: to unlock the range would unlock theirs."""
    held = first
    locked = False
    threads = locks.threads
    try:
        while held <= last:
            if (threads.queues and threads.is_reserved(held)) or not threads.locks[held].acquire(False):
                break
            held += 1
        locked = held > last and locks.try_fcntl(flock_args(F_WRLCK, first, last - first + 1))
    finally:
        if not locked:
            _release_threads(locks, first, held)
    if not locked:
        return False
    locks.stamp += 1
    if locks.stamp & COUNT_MASK == 0:
        locks.renew_stamp()
    count = last - first + 1
    stamps_at = locks.stamps_at + first
    locks.words[stamps_at : stamps_at + count] = memoryview(array("q", [locks.stamp]) * count)
    refs_at = locks.refs_at + first
    if locks.words[refs_at : refs_at + count].tobytes().strip(b"\0"):
        _recover_range(locks, first, last)
    return True


def _recover_range(locks: StripeLocks, first: int, last: int) -> None:
    try:
        for number in range(first, last + 1):
            if locks.recovery is not None and locks.words[locks.refs_at + number]:
                locks.recovery.recover(number)
    except BaseException:
        release_range(locks, first, last)
        raise


def release_range(locks: StripeLocks, first: int, last: int) -> None:
    try:
        locks.try_fcntl(flock_args(F_UNLCK, first, last - first + 1))
    finally:
        _release_threads(locks, first, last + 1)


def _release_threads(locks: StripeLocks, first: int, end: int) -> None:
    for number in range(first, end):
        locks.threads.release(number)
