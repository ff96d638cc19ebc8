"""Locks and descriptors that come through a fork whole.

A fork copies memory as it is at that instant, also while another thread holds a lock half-way through a change; in
the child that thread does not exist and the lock would never be released. So every lock made here is taken before
a fork, in the order in which the locks were made, and released on both sides after it. (Whoever holds several at a
time must take them in that order too, or a fork and a check would wait for each other.) What must not be open while
a process forks is let go of then. And what a child inherits from its parent's threads, a shared descriptor or a place
in a line, is renewed in the child.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import count
from threading import Lock
from typing import Protocol
from weakref import WeakSet, WeakValueDictionary

__all__ = ["OwnDescriptor", "Renewal", "fork_safe_lock", "part_before_fork", "renew_after_fork"]

LONGEST_WAIT = 1.0
"""Seconds to wait for a lock before a fork: a fork from a signal handler must not hang for ever."""


class Renewed(Protocol):
    """What must start anew in a forked child."""

    def renew(self) -> None: ...


class Parted(Protocol):
    """What must let go of something before a fork."""

    def part(self) -> None: ...


_numbers = count()
_locks: WeakValueDictionary[int, Lock] = WeakValueDictionary()
_renewed: WeakSet[Renewed] = WeakSet()
_parted: WeakSet[Parted] = WeakSet()
_held: list[Lock] = []
_forking = Lock()
"""One fork at a time: two threads that fork at once would forget each other's locks."""


def fork_safe_lock() -> Lock:
    """A lock that no fork leaves locked in the child."""
    lock = Lock()
    _locks[next(_numbers)] = lock
    return lock


def renew_after_fork(thing: Renewed) -> None:
    """Have `thing.renew()` called in every forked child, for as long as the thing lives."""
    _renewed.add(thing)


def part_before_fork(thing: Parted) -> None:
    """Have `thing.part()` called before every fork, when all locks made here are held."""
    _parted.add(thing)


class Renewal:
    """Calls `renew` in every forked child, for as long as somebody keeps this object: for compiled classes, which
    cannot be remembered themselves without being kept alive."""

    def __init__(self, renew: Callable[[], None]) -> None:
        self.renew = renew
        renew_after_fork(self)


class OwnDescriptor:
    """A second descriptor of an open file that no other process shares. Owns both, and closes both."""

    def __init__(self, file: int) -> None:
        self.file = file
        self.number = [-1]  # in a list of one, so that others can keep it at hand and see it change
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
    _held[:] = [lock for lock in locks if lock.acquire(timeout=LONGEST_WAIT)]
    for thing in list(_parted):
        thing.part()


def _release() -> None:
    for lock in _held:
        lock.release()
    _held.clear()
    _forking.release()


def _child() -> None:
    _release()
    for lock in list(_locks.values()):
        if lock.locked():  # not to be had before the fork, and its holder is not here to release it
            lock.release()
    for thing in list(_renewed):
        thing.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_release, after_in_child=_child)
