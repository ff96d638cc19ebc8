"""Locks and file descriptors that survive a fork.

A fork copies memory as it is at that instant, also while another thread holds a lock half-way through a change; in
the child that thread does not exist and the lock would never be released. So every lock made here is taken before
a fork, in the order of creation, and released on both sides after it. (Whoever holds several at a time must take them
in that order too, or a fork and a check would dead-lock.) What must not be open while a process forks is closed
before. And what a child must not share with its parent, a descriptor or a wait queue, is renewed in the child.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import count
from threading import Lock
from typing import Protocol
from weakref import WeakSet, WeakValueDictionary

__all__ = ["ForkGuard", "OwnDescriptor", "Renewal", "call_before_fork", "fork_safe_lock", "renew_after_fork"]

MAX_WAIT = 1.0
"""Seconds to wait for a lock before a fork: a fork from a signal handler must not hang for ever."""


class Renewable(Protocol):
    """Has state that a forked child must replace."""

    def renew(self) -> None: ...


class ForkLock(Protocol):
    """What is done with a lock before and after a fork."""

    def acquire(self, *, timeout: float) -> bool: ...

    def release(self) -> None: ...

    def locked(self) -> bool: ...


class ForkListener(Protocol):
    """Has something to close before a fork."""

    def before_fork(self) -> None: ...


_numbers = count()
_locks: WeakValueDictionary[int, ForkLock] = WeakValueDictionary()
_renewed: WeakSet[Renewable] = WeakSet()
_listeners: WeakSet[ForkListener] = WeakSet()
_held: list[ForkLock] = []
_forking = Lock()
"""One fork at a time: two threads that fork at once would overwrite each other's list of locks."""


def fork_safe_lock() -> Lock:
    """A lock that no fork leaves locked in the child."""
    lock = Lock()
    _locks[next(_numbers)] = lock
    return lock


class ForkGuard:
    """A lock of a compiled class, which has no weak references, as one that no fork leaves locked in the child: as long
    as this object lives."""

    def __init__(
        self, acquire: Callable[[bool, float], bool], release: Callable[[], None], locked: Callable[[], bool]
    ) -> None:
        self._acquire = acquire
        self.release = release
        self.locked = locked
        _locks[next(_numbers)] = self

    def acquire(self, *, timeout: float) -> bool:
        return self._acquire(True, timeout)


def renew_after_fork(target: Renewable) -> None:
    """Have `target.renew()` called in every forked child, as long as the target lives."""
    _renewed.add(target)


def call_before_fork(listener: ForkListener) -> None:
    """Have `listener.before_fork()` called before every fork, while all locks made here are held."""
    _listeners.add(listener)


class Renewal:
    """Calls `renew` in every forked child, as long as this object lives: for compiled classes, which have no weak
    references."""

    def __init__(self, renew: Callable[[], None]) -> None:
        self.renew = renew
        renew_after_fork(self)


class OwnDescriptor:
    """A second descriptor of an open file, not shared with other processes. Owns both, and closes both."""

    def __init__(self, file: int) -> None:
        self.file = file
        self.number = [-1]  # in a list of one, so that others can hold the list and see it change
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Open the file anew, by its descriptor rather than its path: the path may lead to another one by now."""
        if self.number[0] >= 0:
            os.close(self.number[0])
        self.number[0] = os.open(f"/proc/self/fd/{self.file}", os.O_RDWR | os.O_CLOEXEC)

    def close(self) -> None:
        if self.number[0] >= 0:
            _renewed.discard(self)
            os.close(self.number[0])
            os.close(self.file)
            self.number[0] = -1

    def __del__(self) -> None:
        self.close()


def _before() -> None:
    _forking.acquire()
    locks = [lock for _, lock in sorted(_locks.items())]
    _held[:] = [lock for lock in locks if lock.acquire(timeout=MAX_WAIT)]
    for listener in list(_listeners):
        listener.before_fork()


def _release() -> None:
    for lock in _held:
        lock.release()
    _held.clear()
    _forking.release()


def _child() -> None:
    _release()
    for lock in list(_locks.values()):
        if lock.locked():  # not acquired before the fork, and its holder does not exist here
            lock.release()
    for target in list(_renewed):
        target.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_release, after_in_child=_child)
