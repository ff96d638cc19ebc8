"""Numbered locks between the threads of one process, in which no thread starves.

`threading.Lock` goes to whoever asks at the right moment. A thread that checks one hot key again and again releases
the lock and has it back before the next in line is awake, so a waiter could miss any deadline behind a lock that is
held for microseconds. To hand the lock over every time would be fair, and cost a switch of threads for each check. So
newcomers may overtake, but only until the first in line has waited for some milliseconds; then the lock is kept for it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from threading import Lock
from typing import Protocol, final

from headgate.stores.forking import Renewal

__all__ = ["MAX_OVERTAKEN_SECONDS", "NumberedWatch", "ThreadLocks", "Watch"]

MAX_OVERTAKEN_SECONDS = 0.01
SPINS = 20
"""Looks at a lock before a thread gets in line: most are free again at once."""
FIRST_NAP = 0.001
"""Seconds after which the first in line looks again by itself. It is woken only when the lock is kept for it: to wake
it every time, and have it find the lock taken again, would cost more than the checks."""
OTHERS_NAP = 0.05
"""The same for the others, who have nothing to look at but their deadline."""


class Watch(Protocol):
    """Says when a waiter is to give up."""

    def expired(self) -> bool: ...


class NumberedWatch(Watch, Protocol):
    """The same for a waiter that waits for one lock after another."""

    def waits_for(self, number: int) -> None: ...


@final
class _Waiter:
    """A thread in line. `signal` is a lock that is released to wake it."""

    def __init__(self, since: float) -> None:
        self.since = since
        self.signal = Lock()
        self.signal.acquire()


@final
class ThreadLocks:
    """So many locks. A forked child starts with all of them free: the threads that held them are not there."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.locks = [Lock() for _ in range(count)]
        self.lines: dict[int, deque[_Waiter]] = {}
        self.lines_lock = Lock()
        self.renewal = Renewal(self.renew)

    def try_acquire(self, number: int) -> bool:
        """Take a lock if it is free and not kept for another."""
        if self.lines and self.is_kept(number):
            return False
        return self.locks[number].acquire(False)

    def acquire(self, number: int, watch: Watch) -> bool:
        """Take a lock, in turn; False when `watch` expired before that."""
        lock = self.locks[number]
        for _ in range(SPINS):
            if number in self.lines:
                break
            time.sleep(0)
            if self.try_acquire(number):
                return True
        waiter = _Waiter(time.monotonic())
        with self.lines_lock:
            line = self.lines.setdefault(number, deque())
            line.append(waiter)
        try:
            while line[0] is not waiter or not lock.acquire(False):
                if watch.expired():
                    return False
                waiter.signal.acquire(True, FIRST_NAP if line[0] is waiter else OTHERS_NAP)
        finally:
            with self.lines_lock:
                self.leave(number, waiter)
        return True

    def acquire_all(self, numbers: Sequence[int], watch: NumberedWatch) -> bool:
        """Take several locks, for which a thread has waited for long enough; False when `watch` expired before that.

        It stands in the lines of all of them, and as soon as it is first they are kept for it. All who do so get into
        their lines in one step, so of two that want the same locks one is before the other in all of them."""
        waiter = _Waiter(time.monotonic() - 2 * MAX_OVERTAKEN_SECONDS)
        with self.lines_lock:
            for number in numbers:
                self.lines.setdefault(number, deque()).append(waiter)
        try:
            while True:
                busy = self.first_taken(numbers, waiter)
                if busy < 0:
                    return True
                watch.waits_for(busy)
                if watch.expired():
                    return False
                waiter.signal.acquire(True, FIRST_NAP)
        finally:
            with self.lines_lock:
                for number in numbers:
                    self.leave(number, waiter)

    def first_taken(self, numbers: Sequence[int], waiter: _Waiter) -> int:
        """Take all locks if they are free and it is this waiter's turn; else the first that is not."""
        held = 0
        while held < len(numbers):
            number = numbers[held]
            if self.lines[number][0] is not waiter or not self.locks[number].acquire(False):
                for i in range(held):
                    self.locks[numbers[i]].release()
                return number
            held += 1
        return -1

    def leave(self, number: int, waiter: _Waiter) -> None:
        """Get out of a line, under the lines' lock, and have the next one look at once."""
        line = self.lines.get(number)
        if line is None:
            return  # a forked child, which starts without lines
        line.remove(waiter)
        if not line:
            del self.lines[number]
        elif line[0].signal.locked():
            line[0].signal.release()

    def release(self, number: int) -> None:
        self.locks[number].release()
        if self.lines:
            self.wake_kept(number)

    def is_kept(self, number: int) -> bool:
        """Whether the first in line has been overtaken for long enough."""
        line = self.lines.get(number)
        if not line:
            return False
        try:
            return time.monotonic() - line[0].since > MAX_OVERTAKEN_SECONDS
        except IndexError:  # it left meanwhile
            return False

    def wake_kept(self, number: int) -> None:
        """Have the first in line look at the lock, if it is kept for it."""
        if not self.is_kept(number):
            return
        with self.lines_lock:
            line = self.lines.get(number)
            if line and line[0].signal.locked():  # only whoever has the lines' lock releases it
                line[0].signal.release()

    def renew(self) -> None:
        self.locks[:] = [Lock() for _ in range(self.count)]
        self.lines = {}
        self.lines_lock = Lock()
