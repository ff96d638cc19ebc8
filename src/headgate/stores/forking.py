"""Locks and stores that come through a fork whole.

A fork copies memory as it is at that instant, also while another thread holds a lock half-way through a change; in
the child that thread does not exist and the lock would never be released. So every lock made here is taken before
a fork and released on both sides after it, and whoever needs to do more in the child says so.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import Lock
from weakref import WeakSet

__all__ = ["after_fork_in_child", "fork_safe_lock"]

LONGEST_WAIT = 1.0
"""Seconds to wait for a lock before a fork: a fork from a signal handler must not hang for ever."""

_locks: WeakSet[Lock] = WeakSet()
_held: list[Lock] = []
_in_child: dict[int, Callable[[], None]] = {}


def fork_safe_lock() -> Lock:
    """A lock that no fork leaves locked in the child."""
    lock = Lock()
    _locks.add(lock)
    return lock


def after_fork_in_child(call: Callable[[], None]) -> Callable[[], None]:
    """Have `call` made in every forked child; returns what ends that."""
    number = id(call)
    _in_child[number] = call

    def stop() -> None:
        _in_child.pop(number, None)

    return stop


def _before() -> None:
    _held[:] = [lock for lock in list(_locks) if lock.acquire(timeout=LONGEST_WAIT)]


def _release() -> None:
    for lock in _held:
        lock.release()
    _held.clear()


def _child() -> None:
    _release()
    for call in list(_in_child.values()):
        call()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_release, after_in_child=_child)
