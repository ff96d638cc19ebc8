# mypyc: compile
"""Inter-process locks that the kernel releases when their owner is killed.

Each stripe has a byte range of the file that is locked by open file description (OFD). A killed process releases it, a
stopped one keeps it, and nobody blocks in the kernel: a lock that is taken is tried again until it is free, or its
holder is found to be stopped (see lock_holders.py). OFD locks exclude neither the threads of a process nor a forked
child that inherited the descriptor, so a thread lock is taken first (see thread_locks.py), and a child opens a
descriptor of its own.

Whoever has taken a lock writes its stamp to the file, and checks whether a process was killed in the middle of a chain
that changed this stripe: then the stripe is recovered before anything else (see journal.py).
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Protocol, final

from crestgate.core.mypyc_types import i64
from crestgate.errors import StoreClosedError, StoreError
from crestgate.runtime.file_locks import F_OFD_SETLK, F_UNLCK, F_WRLCK, fcntl
from crestgate.runtime.fork_safety import OwnDescriptor, Renewal
from crestgate.stores.shared.lock_holders import (
    COUNT_MASK,
    PROCESS_STATE_SECONDS,
    StallDetector,
    first_stamp,
    is_stopped,
)
from crestgate.stores.shared.thread_locks import ThreadLocks

__all__ = ["ARENA", "FIRST_STRIPE", "HEADER", "LockBusyError", "Recovery", "StripeLocks", "flock_args"]

HEADER: Final = 0
ARENA: Final = 1
FIRST_STRIPE: Final = 2
MAX_SPINS = 50
MIN_NAP = 0.000_05
MAX_NAP = 0.002
CLOSE_TIMEOUT = 5.0
"""Seconds that closing waits for checks of other threads, which may be slow on a busy machine."""


class LockBusyError(StoreError):
    """A lock was not free in time, and nothing was done. Never leaves the store."""


class Recovery(Protocol):
    """Repairs what a killed process left behind in a stripe."""

    def recover(self, number: int) -> None:
        """Called with a lock's number, by whoever has just taken it."""


@final
class StripeLocks:
    """The numbered locks of one open file, for the threads of this process. Owns `file`, a descriptor of it.

    `words` is the file's memory. Each lock has a word at `stamps_at` for its holder's stamp, and one at `refs_at` that
    is not zero after a process was killed in the middle of a chain; `recovery` is called then.
    """

    def __init__(
        self, path: str, file: int, count: int, timeout: float, words: memoryview, stamps_at: int, refs_at: int
    ) -> None:
        self.path = path
        self.timeout = timeout
        self.fcntl: Callable[[int, int, bytes], object] = fcntl
        self.command: int = F_OFD_SETLK
        self.threads = ThreadLocks(count)
        self.lock_args = [flock_args(F_WRLCK, number, 1) for number in range(count)]
        self.unlock_args = [flock_args(F_UNLCK, number, 1) for number in range(count)]
        self.own = OwnDescriptor(file)
        self.descriptor: list[int] = self.own.number
        self.words = words
        self.stamps_at = stamps_at
        self.refs_at = refs_at
        self.recovery: Recovery | None = None
        self.stalled: dict[int, int] = {}
        """Locks whose holders were given up although they were not stopped, and their stamps."""
        self.process_state: tuple[int, float, bool] = (0, 0.0, False)
        """The stamp whose process was checked last, until when that is valid, and whether it was stopped."""
        self.stamp: i64 = 0
        self.renew_stamp()
        self.renewal = Renewal(self.renew_stamp)

    def renew_stamp(self) -> None:
        self.stamp = first_stamp()

    def acquire(self, number: int, timeout: float) -> bool:
        """Take one lock, or raise LockBusyError when it is not free in `timeout` seconds and its holder is stuck.
        Returns whether it had to wait."""
        threads = self.threads
        waits = False
        if (not threads.queues or not threads.is_reserved(number)) and threads.locks[number].acquire(False):
            try:
                waits = not self.try_fcntl(self.lock_args[number])
                if waits:
                    self.wait_for_file(number, self.detector(timeout))
            except BaseException:
                threads.release(number)
                raise
            self.acquired(number)
            return waits
        self.wait(number, self.detector(timeout))
        return True

    def try_acquire(self, number: int) -> bool:
        """Take one lock if it is free at this instant."""
        threads = self.threads
        if (threads.queues and threads.is_reserved(number)) or not threads.locks[number].acquire(False):
            return False
        free = False
        try:
            free = self.try_fcntl(self.lock_args[number])
        finally:
            if not free:
                threads.release(number)
        if free:
            self.acquired(number)
        return free

    def release(self, number: int) -> None:
        try:
            self.fcntl(self.descriptor[0], self.command, self.unlock_args[number])
        finally:
            threads = self.threads
            threads.locks[number].release()
            if threads.queues:
                threads.wake_reserved(number)

    def wait(self, number: int, detector: StallDetector) -> None:
        """Take one lock, in turn, or raise LockBusyError."""
        detector.wait_for(number)
        if not self.threads.acquire(number, detector):
            raise self.busy_error()
        try:
            if not self.try_fcntl(self.lock_args[number]):
                self.wait_for_file(number, detector)
        except BaseException:
            self.threads.release(number)
            raise
        self.acquired(number)

    def wait_for_file(self, number: int, detector: StallDetector) -> None:
        detector.wait_for(number)
        nap = MIN_NAP
        spins = 0
        while not self.try_fcntl(self.lock_args[number]):
            if detector.expired():
                raise self.busy_error()
            spins += 1
            if spins < MAX_SPINS:
                os.sched_yield()
            else:
                time.sleep(nap)
                nap = min(nap * 2, MAX_NAP)

    def try_fcntl(self, flock: bytes) -> bool:
        """Lock or unlock a range of the file; False when another process has it."""
        try:
            descriptor = self.descriptor[0]
            if descriptor < 0:
                raise StoreClosedError(f"shared store {self.path} is closed")
            self.fcntl(descriptor, self.command, flock)
        except (BlockingIOError, PermissionError):
            return False
        except OSError as error:
            raise StoreError(f"shared store {self.path}: cannot lock the file: {error.strerror}") from error
        return True

    def acquired(self, number: int) -> None:
        """Write a new stamp of this process, and recover what the last holder left unfinished."""
        self.stamp += 1
        if self.stamp & COUNT_MASK == 0:
            self.renew_stamp()  # the count has overflowed
        self.words[self.stamps_at + number] = self.stamp
        if self.words[self.refs_at + number]:
            self.recover(number)

    def recover(self, number: int) -> None:
        try:
            if self.recovery is not None:
                self.recovery.recover(number)
        except BaseException:
            self.release(number)
            raise

    def stamp_of(self, number: int) -> int:
        """The stamp of whoever took this lock last. Read by waiters, while another thread may close the store."""
        try:
            stamp: int = self.words[self.stamps_at + number]
        except ValueError:
            raise StoreClosedError(f"shared store {self.path} is closed") from None
        return stamp

    def holder_is_stopped(self, stamp: int, now: float) -> bool:
        """Whether the process that wrote this stamp is stopped; cached for a moment."""
        known, until, stopped = self.process_state
        if known != stamp or now >= until:
            stopped = is_stopped(stamp)
            self.process_state = (stamp, now + PROCESS_STATE_SECONDS, stopped)
        return stopped

    def detector(self, timeout: float) -> StallDetector:
        """For a waiter who wants a lock within `timeout` seconds."""
        return StallDetector(self, timeout)

    def is_stalled(self, numbers: Sequence[int], detector: StallDetector) -> bool:
        """Whether a caller that polls for these locks should give up."""
        if not detector.is_due():
            return False
        for number in numbers:
            if not self.try_acquire(number):
                detector.wait_for(number)
                return detector.expired()
            self.release(number)
        return False

    def busy_error(self) -> LockBusyError:
        return LockBusyError(
            f"shared store {self.path}: a lock was not free within {self.timeout * 1000:.0f} ms; "
            "the process that holds it is stopped or stalled"
        )

    @contextmanager
    def all_threads(self) -> Iterator[bool]:
        """Wait for checks of other threads to finish, and block new ones. False if one does not finish."""
        deadline = time.monotonic() + CLOSE_TIMEOUT
        # In the order of a check, which takes the others while it holds a stripe.
        locks = [*self.threads.locks[FIRST_STRIPE:], self.threads.locks[ARENA], self.threads.locks[HEADER]]
        held = [thread for thread in locks if thread.acquire(True, max(deadline - time.monotonic(), 0))]
        try:
            yield len(held) == len(locks)
        finally:
            for thread in held:
                thread.release()

    def close(self) -> None:
        self.own.close()


def flock_args(kind: int, first: int, count: int) -> bytes:
    """The `struct flock` of fcntl for so many locks from the first."""
    return struct.pack("@hhqqi4x", kind, os.SEEK_SET, first, count, 0)
