# mypyc: compile
"""A fast lock, which no signal can leave locked when it is entered by `with`.

Calling `acquire` and entering `try` after it leaves a gap in which a signal handler may raise, and the lock then stays
locked. `with` has no such gap. Plain Python enters a `threading.Lock` fastest.

Compiled code runs under the interpreter lock without interruption: other threads and signal handlers have their turn
only where Python code runs or something blocks. So it may look at a flag and set it, in a tenth of the time of a
`threading.Lock`. Another thread finds the flag set only when its holder runs Python code (an algorithm of the program's
own, a virtual clock, a finalizer) or makes a system call, and then sleeps until it is free. Where there is no such lock
(free-threaded Python), a `threading.Lock` is used here, too.
"""

from __future__ import annotations

import sys
import time
from threading import Lock
from typing import Final, cast, final

from crestgate.runtime.fork_safety import ForkGuard, fork_safe_lock

__all__ = ["Mutex", "new_fork_safe_mutex", "new_mutex"]

COMPILED = not __file__.endswith(".py")
NAP: Final = 0.000_05
"""Seconds between two looks at a flag that is set."""


@final
class Mutex:
    """A lock of the compiled build, with the methods of a `threading.Lock`, which the other build has in its place."""

    def __init__(self) -> None:
        has_gil = getattr(sys, "_is_gil_enabled", None)
        self.held = False
        self.lock: Lock | None = None if has_gil is None or has_gil() else Lock()
        self.fork_guard: ForkGuard | None = None

    def acquire(self, blocking: bool = True, timeout: float = -1.0) -> bool:
        if self.lock is not None:
            return self.lock.acquire(blocking, timeout)
        if self.held and not (blocking and self.wait(timeout)):
            return False
        self.held = True
        return True

    def release(self) -> None:
        if self.lock is not None:
            self.lock.release()
        self.held = False

    def locked(self) -> bool:
        return self.held if self.lock is None else self.lock.locked()

    def __enter__(self) -> None:
        if self.held or self.lock is not None:
            self.acquire()
        else:
            self.held = True

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.release()

    def wait(self, timeout: float) -> bool:
        """Wait until the flag is free: the caller then sets it, before any other thread has a turn. False when it is
        not free within so many seconds; a negative number is for ever."""
        give_up_at = time.monotonic() + timeout
        while self.held:
            if timeout >= 0 and time.monotonic() >= give_up_at:
                return False
            time.sleep(NAP)
        return True


def new_mutex() -> Mutex:
    return Mutex() if COMPILED else cast(Mutex, Lock())


def new_fork_safe_mutex() -> Mutex:
    """A lock that no fork leaves locked in the child."""
    if not COMPILED:
        return cast(Mutex, fork_safe_lock())
    mutex = Mutex()
    mutex.fork_guard = ForkGuard(mutex.acquire, mutex.release, mutex.locked)
    return mutex
