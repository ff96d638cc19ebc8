# mypyc: compile
"""Stall detection: who holds a lock of the shared file, and whether to go on waiting for it.

The timeout of a store on this machine is meant for holders that are stopped. One that is merely slow, because the
machine is busy or its interpreter runs other threads, finishes soon, and giving up on it would admit requests that
were to be counted. So whoever takes a lock writes its stamp, a process and a count. A waiter whose timeout is over
reads the stamp: as long as it changes, or its process runs, the waiter goes on waiting.

The stamp includes the PID namespace: nothing is known of a process in another container, so there the timeout alone
decides. Some processes do not run although the kernel does not call them stopped (a paused container, a lock that is
waited for inside it): after `MAX_STALL_SECONDS` with the same stamp a waiter gives up, too, and the stamp is
remembered, so that only the first waiter takes that long.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from crestgate.stores.shared.locks import StripeLocks

__all__ = ["COUNT_MASK", "PROCESS_STATE_SECONDS", "StallDetector", "first_stamp", "is_stopped"]

MAX_STALL_SECONDS = 2.0
PROCESS_STATE_SECONDS = 0.02
"""How long the state of a process is cached, however many threads wait for it."""
_COUNT_BITS = 32
COUNT_MASK: Final = (1 << 32) - 1
_PID_BITS = 22
_NAMESPACE_BITS = 9


def first_stamp() -> int:
    """The first stamp of this process: namespace, process, and a count of zero."""
    return (_namespace() << _PID_BITS | os.getpid() & ((1 << _PID_BITS) - 1)) << _COUNT_BITS


def is_stopped(stamp: int) -> bool:
    """Whether the process that wrote this stamp will not continue by itself, as far as can be known here."""
    if not stamp:
        return False  # taken for the first time: the holder has not written its stamp yet
    process = stamp >> _COUNT_BITS
    if process >> _PID_BITS != _namespace():
        return True
    try:
        with open(f"/proc/{process & ((1 << _PID_BITS) - 1)}/stat", "rb") as file:
            # The name of the program is in brackets before the state, and may contain brackets itself.
            state = file.read().rpartition(b")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return not os.path.isdir("/proc/self")  # it has exited, and the kernel has released its locks
    except (OSError, IndexError):
        return True
    return state in (b"T", b"t")


def _namespace() -> int:
    try:
        return os.stat("/proc/self/ns/pid").st_ino & ((1 << _NAMESPACE_BITS) - 1)
    except OSError:
        return 0


@final
class StallDetector:
    """Tells a waiter when to give up: not before its timeout, and then only if the holder does not make progress."""

    def __init__(self, locks: StripeLocks, timeout: float) -> None:
        self.locks = locks
        self.timeout = timeout
        self.number = -1
        self.stamp = 0
        self.next_check = time.monotonic() + timeout
        self.give_up_at = 0.0

    def wait_for(self, number: int) -> None:
        """Start, or continue, to wait for this lock."""
        if number != self.number:
            self.number = number
            self.stamp = self.locks.stamp_of(number)
            self.give_up_at = time.monotonic() + max(self.timeout, MAX_STALL_SECONDS)

    def is_due(self) -> bool:
        """Whether it is time to check the holder."""
        return time.monotonic() >= self.next_check

    def expired(self) -> bool:
        if self.timeout <= 0:
            return True
        now = time.monotonic()
        if now < self.next_check:
            return False
        locks = self.locks
        stamp = locks.stamp_of(self.number)
        self.next_check = now + PROCESS_STATE_SECONDS
        if stamp != self.stamp:
            self.stamp = stamp
            self.give_up_at = now + max(self.timeout, MAX_STALL_SECONDS)
            return False
        if now >= self.give_up_at:
            locks.stalled[self.number] = stamp
            return True
        return locks.stalled.get(self.number) == stamp or locks.holder_is_stopped(stamp, now)
