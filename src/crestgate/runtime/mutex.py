# mypyc: compile
"""A fast lock for `with` blocks that no signal can leave locked.

Calling `acquire` and entering `try` after it leaves a gap in which a signal handler may raise, and the lock then stays
locked. `with` has no such gap. Plain Python enters a `threading.Lock` fastest, compiled code a native class. So each
build uses its own.
"""

from __future__ import annotations

from threading import Lock
from typing import cast, final

from crestgate.runtime.fork_safety import fork_safe_lock

__all__ = ["Mutex", "new_mutex"]

COMPILED = not __file__.endswith(".py")


@final
class Mutex:
    """A fork-safe lock, in the compiled build."""

    def __init__(self, lock: Lock) -> None:
        self.acquire = lock.acquire
        self.release = lock.release

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.release()


def new_mutex() -> Mutex:
    """A fork-safe lock, only for `with`."""
    lock = fork_safe_lock()
    return Mutex(lock) if COMPILED else cast(Mutex, lock)
