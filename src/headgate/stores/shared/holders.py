"""Who holds a lock of the shared file, and whether to go on waiting for it.

A deadline on a store of this machine is for holders that are stopped. One that is merely slow, because the machine is
busy or its interpreter runs other threads, finishes within moments, and giving up on it would let requests pass that
were to be counted. So whoever takes a lock leaves its mark, a process and a count, and who waits looks at the mark once
its deadline is over: a mark that changes, or a process that runs, is waited for.

The mark has the namespace of the process, too: of a process in another container nothing can be found out here, so
there the deadline alone decides. And some processes are stopped without being so called (a paused container, a lock
that is waited for inside it): a mark that stays the same for `MAX_SECONDS` is given up, too, and remembered, so that
only the first to find it waits that long.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from headgate.stores.shared.locks import FileLocks

__all__ = ["COUNT_MASK", "PROC_SECONDS", "StallWatch", "first_mark", "is_stopped"]

MAX_SECONDS = 2.0
PROC_SECONDS = 0.02
"""How often a process is looked at, however many wait for it."""
_COUNT_BITS = 32
COUNT_MASK: Final = (1 << 32) - 1
_PID_BITS = 22
_NAMESPACE_BITS = 9


def first_mark() -> int:
    """The first mark of this process: namespace, process, and a count of zero."""
    return (_namespace() << _PID_BITS | os.getpid() & ((1 << _PID_BITS) - 1)) << _COUNT_BITS


def is_stopped(mark: int) -> bool:
    """Whether the process that left this mark will not go on by itself, as far as can be known here."""
    process = mark >> _COUNT_BITS
    if process >> _PID_BITS != _namespace():
        return True
    try:
        with open(f"/proc/{process & ((1 << _PID_BITS) - 1)}/stat", "rb") as file:
            # The name of the program stands in brackets before the state, and may have brackets itself.
            state = file.read().rpartition(b")")[2].split()[0]
    except FileNotFoundError:
        return not os.path.isdir("/proc/self")  # it is gone, and the kernel has freed its locks
    except (OSError, IndexError):
        return True
    return state in (b"T", b"t")


def _namespace() -> int:
    try:
        return os.stat("/proc/self/ns/pid").st_ino & ((1 << _NAMESPACE_BITS) - 1)
    except OSError:
        return 0


@final
class StallWatch:
    """Says when to stop waiting for a lock: not before the deadline, and then only if its holder does not go on."""

    def __init__(self, locks: FileLocks, seconds: float) -> None:
        self.locks = locks
        self.seconds = seconds
        self.number = -1
        self.mark = 0
        self.look_at = time.monotonic() + seconds
        self.give_up_at = 0.0

    def waits_for(self, number: int) -> None:
        """Begin, or go on, to wait for this lock."""
        if number != self.number:
            self.number = number
            self.mark = self.locks.mark_of(number)
            self.give_up_at = time.monotonic() + max(self.seconds, MAX_SECONDS)

    def is_due(self) -> bool:
        """Whether it is time to look at the holder."""
        return time.monotonic() >= self.look_at

    def expired(self) -> bool:
        if self.seconds <= 0:
            return True
        now = time.monotonic()
        if now < self.look_at:
            return False
        locks = self.locks
        mark = locks.mark_of(self.number)
        self.look_at = now + PROC_SECONDS
        if mark != self.mark:
            self.mark = mark
            self.give_up_at = now + max(self.seconds, MAX_SECONDS)
            return False
        if now >= self.give_up_at:
            locks.stalled[self.number] = mark
            return True
        return locks.stalled.get(self.number) == mark or locks.holder_is_stopped(mark, now)
