"""Locks and descriptors that come through a fork whole.

A fork copies memory as it is at that instant, also while another thread holds a lock half-way through a change; in
the child that thread does not exist and the lock would never be released. So every lock made here is taken before
a fork and released on both sides after it. And a descriptor that a child inherits is one with its parent's, file
locks included; so every one made here is opened anew in the child.
"""

from __future__ import annotations

import os
from threading import Lock
from weakref import WeakSet

__all__ = ["OwnDescriptor", "fork_safe_lock"]

LONGEST_WAIT = 1.0
"""Seconds to wait for a lock before a fork: a fork from a signal handler must not hang for ever."""

_locks: WeakSet[Lock] = WeakSet()
_held: list[Lock] = []
_descriptors: WeakSet[OwnDescriptor] = WeakSet()


class OwnDescriptor:
    """A second descriptor of an open file that no other process shares. Owns both, and closes both."""

    def __init__(self, file: int) -> None:
        self.file = file
        self.number = -1
        self.open()
        _descriptors.add(self)

    def open(self) -> None:
        """Open the file anew, by its descriptor rather than its path: the path may lead to another one by now."""
        if self.number >= 0:
            os.close(self.number)
        self.number = os.open(f"/proc/self/fd/{self.file}", os.O_RDWR | os.O_CLOEXEC)

    def close(self) -> None:
        if self.number >= 0:
            _descriptors.discard(self)
            os.close(self.number)
            os.close(self.file)
            self.number = -1

    def __del__(self) -> None:
        self.close()


def fork_safe_lock() -> Lock:
    """A lock that no fork leaves locked in the child."""
    lock = Lock()
    _locks.add(lock)
    return lock


def _before() -> None:
    _held[:] = [lock for lock in list(_locks) if lock.acquire(timeout=LONGEST_WAIT)]


def _release() -> None:
    for lock in _held:
        lock.release()
    _held.clear()


def _child() -> None:
    _release()
    for lock in list(_locks):
        if lock.locked():  # not to be had before the fork, and its holder is not here to release it
            lock.release()
    for descriptor in list(_descriptors):
        descriptor.open()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_release, after_in_child=_child)
