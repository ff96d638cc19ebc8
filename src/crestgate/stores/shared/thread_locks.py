# mypyc: compile
"""Numbered locks between the threads of one process, without starvation.

A released `threading.Lock` goes to whichever thread tries next. A thread that checks one hot key again and again takes
the lock back before the first waiter is awake, so a waiter could miss any deadline behind a lock that is held for
microseconds. To hand the lock over every time would be fair, but cost a thread switch per check. So newcomers may
overtake, but only until the first waiter has waited for some milliseconds; then the lock is reserved for it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from threading import Lock
from typing import Protocol, final

from crestgate.runtime.fork_safety import Renewal
from crestgate.runtime.mutex import new_mutex

__all__ = ["MAX_OVERTAKEN_SECONDS", "NumberedWaitLimit", "ThreadLocks", "WaitLimit"]

MAX_OVERTAKEN_SECONDS = 0.01
SPINS = 20
"""Tries before a thread joins the queue: most locks are free again at once."""
FIRST_NAP = 0.001
"""Seconds after which the first waiter tries again by itself. It is woken only when the lock is reserved for it: to
wake it every time, and have it find the lock taken again, would cost more than the checks."""
OTHERS_NAP = 0.05
"""The same for the other waiters, who only check their deadline."""


class WaitLimit(Protocol):
    """Tells a waiter when to give up."""

    def expired(self) -> bool: ...


class NumberedWaitLimit(WaitLimit, Protocol):
    """The same for a waiter that waits for one lock after another."""

    def wait_for(self, number: int) -> None: ...


@final
class _Waiter:
    """A thread in a queue. `signal` is a lock that is released to wake it."""

    def __init__(self, since: float) -> None:
        self.since = since
        self.signal = Lock()
        self.signal.acquire()


@final
class ThreadLocks:
    """`count` locks. A forked child starts with all of them free: the threads that held them are not there."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.locks = [new_mutex() for _ in range(count)]
        self.queues: dict[int, deque[_Waiter]] = {}
        self.queues_lock = Lock()
        self.renewal = Renewal(self.renew)

    def try_acquire(self, number: int) -> bool:
        """Take a lock if it is free and not reserved for another thread."""
        if self.queues and self.is_reserved(number):
            return False
        return self.locks[number].acquire(False)

    def acquire(self, number: int, limit: WaitLimit) -> bool:
        """Take a lock, in order of arrival; False when `limit` expired before that."""
        lock = self.locks[number]
        for _ in range(SPINS):
            if number in self.queues:
                break
            time.sleep(0)
            if self.try_acquire(number):
                return True
        waiter = _Waiter(time.monotonic())
        with self.queues_lock:
            queue = self.queues.setdefault(number, deque())
            queue.append(waiter)
        try:
            while queue[0] is not waiter or not lock.acquire(False):
                if limit.expired():
                    return False
                waiter.signal.acquire(True, FIRST_NAP if queue[0] is waiter else OTHERS_NAP)
        finally:
            with self.queues_lock:
                self.leave_queue(number, waiter)
        return True

    def acquire_all(self, numbers: Sequence[int], limit: NumberedWaitLimit) -> bool:
        """Take several locks for which a thread has waited for long enough; False when `limit` expired before that.

        It joins the queues of all of them, and each is reserved for it as soon as it is first. A thread joins all its
        queues in one step, so of two that want the same locks one is ahead of the other in all of them."""
        waiter = _Waiter(time.monotonic() - 2 * MAX_OVERTAKEN_SECONDS)
        with self.queues_lock:
            for number in numbers:
                self.queues.setdefault(number, deque()).append(waiter)
        try:
            while True:
                busy = self.try_all_in_turn(numbers, waiter)
                if busy < 0:
                    return True
                limit.wait_for(busy)
                if limit.expired():
                    return False
                waiter.signal.acquire(True, FIRST_NAP)
        finally:
            with self.queues_lock:
                for number in numbers:
                    self.leave_queue(number, waiter)

    def try_all_in_turn(self, numbers: Sequence[int], waiter: _Waiter) -> int:
        """Take all locks if they are free and it is this waiter's turn: -1. Else the first that is not."""
        held = 0
        while held < len(numbers):
            number = numbers[held]
            if self.queues[number][0] is not waiter or not self.locks[number].acquire(False):
                for i in range(held):
                    self.locks[numbers[i]].release()
                return number
            held += 1
        return -1

    def leave_queue(self, number: int, waiter: _Waiter) -> None:
        """Leave a queue, under the queues' lock, and wake the next waiter."""
        queue = self.queues.get(number)
        if queue is None:
            return  # a forked child, which starts without queues
        queue.remove(waiter)
        if not queue:
            del self.queues[number]
        elif queue[0].signal.locked():
            queue[0].signal.release()

    def release(self, number: int) -> None:
        self.locks[number].release()
        if self.queues:
            self.wake_reserved(number)

    def is_reserved(self, number: int) -> bool:
        """Whether the first waiter has been overtaken for long enough."""
        queue = self.queues.get(number)
        if not queue:
            return False
        try:
            return time.monotonic() - queue[0].since > MAX_OVERTAKEN_SECONDS
        except IndexError:  # it has left the queue
            return False

    def wake_reserved(self, number: int) -> None:
        """Wake the first waiter, if the lock is reserved for it."""
        if not self.is_reserved(number):
            return
        with self.queues_lock:
            queue = self.queues.get(number)
            if queue and queue[0].signal.locked():  # released under the queues' lock only
                queue[0].signal.release()

    def renew(self) -> None:
        self.locks[:] = [new_mutex() for _ in range(self.count)]
        self.queues = {}
        self.queues_lock = Lock()
