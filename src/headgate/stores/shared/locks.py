"""Locks between processes that die with their owner, and between the threads of one.

Each stripe has a byte range of the file that is locked through the kernel by open file description (OFD): whoever
is killed lets go, whoever is stopped keeps what it has, and nobody ever blocks on it: a taken lock is tried again
until the deadline. Such locks exclude neither the threads of a process nor a forked child that inherited the
descriptor, so a thread lock comes first, and a child opens a descriptor of its own.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock

from headgate.errors import ConfigError, StoreClosed, StoreError
from headgate.stores.forking import OwnDescriptor, fork_safe_lock

__all__ = ["ARENA", "FIRST_STRIPE", "HEADER", "WIDE", "FileLocks", "LockBusy"]

HEADER = 0
ARENA = 1
FIRST_STRIPE = 2
WIDE = 16
"""Stripes of a batch from which on it is cheaper to lock all between the first and the last."""

SPINS = 50
SHORTEST_NAP = 0.000_05
LONGEST_NAP = 0.002


class LockBusy(StoreError):  # noqa: N818 - says what it is; never leaves the store
    """A lock was not free by the deadline."""


class FileLocks:
    """The numbered locks of one open file, for the threads of this process. Owns `file`, a descriptor of it."""

    def __init__(self, path: str, file: int, count: int, timeout: float) -> None:
        if not hasattr(fcntl, "F_OFD_SETLK"):
            raise ConfigError("shared:// needs open file description locks, which this system does not have")
        self.path = path
        self.timeout = timeout
        self.fcntl: Callable[[int, int, bytes], object] = fcntl.fcntl
        self.command: int = fcntl.F_OFD_SETLK
        # Made in the order in which they are taken: stripes rising, then the arena, then the header (see forking).
        stripes = [fork_safe_lock() for _ in range(FIRST_STRIPE, count)]
        arena, header = fork_safe_lock(), fork_safe_lock()
        self.threads: list[Lock] = [header, arena, *stripes]
        self.locking = [struct.pack("@hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, i, 1, 0) for i in range(count)]
        self.unlocking = [struct.pack("@hhqqi4x", fcntl.F_UNLCK, os.SEEK_SET, i, 1, 0) for i in range(count)]
        self.own = OwnDescriptor(file)
        self.descriptor: list[int] = self.own.number

    def acquire(self, number: int, patience: float) -> None:
        """Take one lock, or raise LockBusy when it is not free within so many seconds."""
        thread = self.threads[number]
        deadline = 0.0  # read the clock only when there is something to wait for
        if not thread.acquire(False):
            deadline = time.monotonic() + patience
            if patience <= 0 or not thread.acquire(True, patience):
                raise self.too_late()
        try:
            if not self.try_file(number):
                self.wait_for_file(number, deadline or time.monotonic() + patience)
        except BaseException:
            thread.release()
            raise

    def acquire_all(self, numbers: Sequence[int], patience: float) -> None:
        """Take several locks, or none and raise LockBusy. Nobody waits while holding another: a participant that is
        stopped holds up those who need what it has, and not those who need what they have."""
        deadline = time.monotonic() + patience
        busy = numbers[0]
        while True:
            self.acquire(busy, max(deadline - time.monotonic(), 0.0))
            held = [busy]
            try:
                for number in numbers:
                    if number == held[0]:
                        continue
                    if not self.try_acquire(number):
                        busy = number
                        break
                    held.append(number)
            finally:
                if len(held) < len(numbers):
                    for number in held:
                        self.release(number)
            if len(held) == len(numbers):
                return

    def try_acquire(self, number: int) -> bool:
        """Take one lock if it is free at this instant."""
        if not self.threads[number].acquire(False):
            return False
        free = False
        try:
            free = self.try_file(number)
        finally:
            if not free:
                self.threads[number].release()
        return free

    def try_all(self, numbers: Sequence[int]) -> bool:
        """Take several locks if all are free at this instant, or none."""
        held = 0
        try:
            while held < len(numbers) and self.try_acquire(numbers[held]):
                held += 1
        finally:
            if held < len(numbers):
                for i in range(held):
                    self.release(numbers[i])
        return held == len(numbers)

    def try_range(self, first: int, last: int) -> bool:
        """Take all locks from one number to another if they are free at this instant: one call of the kernel instead of
        one for each. Those of other threads count, too: what they hold would be let go with the range."""
        held = first
        try:
            while held <= last and self.threads[held].acquire(False):
                held += 1
            if held > last and self.try_file_range(fcntl.F_WRLCK, first, last):
                return True
        except BaseException:
            self.release_threads(first, held)
            raise
        self.release_threads(first, held)
        return False

    def release_range(self, first: int, last: int) -> None:
        try:
            self.try_file_range(fcntl.F_UNLCK, first, last)
        finally:
            self.release_threads(first, last + 1)

    def release_threads(self, first: int, end: int) -> None:
        for number in range(first, end):
            self.threads[number].release()

    def release(self, number: int) -> None:
        try:
            self.fcntl(self.descriptor[0], self.command, self.unlocking[number])
        finally:
            self.threads[number].release()

    def try_file_range(self, kind: int, first: int, last: int) -> bool:
        """Lock or unlock a range of the file."""
        return self.try_flock(struct.pack("@hhqqi4x", kind, os.SEEK_SET, first, last - first + 1, 0))

    def try_file(self, number: int) -> bool:
        return self.try_flock(self.locking[number])

    def try_flock(self, flock: bytes) -> bool:
        try:
            descriptor = self.descriptor[0]
            if descriptor < 0:
                raise StoreClosed(f"shared store {self.path} is closed")
            self.fcntl(descriptor, self.command, flock)
        except (BlockingIOError, PermissionError):
            return False
        except OSError as error:
            raise StoreError(f"shared store {self.path}: cannot lock the file: {error.strerror}") from error
        return True

    def wait_for_file(self, number: int, deadline: float) -> None:
        nap = SHORTEST_NAP
        tries = 0
        while not self.try_file(number):
            if time.monotonic() >= deadline:
                raise self.too_late()
            tries += 1
            if tries < SPINS:
                os.sched_yield()
            else:
                time.sleep(nap)
                nap = min(nap * 2, LONGEST_NAP)

    def too_late(self) -> LockBusy:
        return LockBusy(
            f"shared store {self.path}: a lock was not free within {self.timeout * 1000:.0f} ms; "
            "another process that holds it may be stopped"
        )

    @contextmanager
    def all_threads(self) -> Iterator[None]:
        """Keep the other threads of this process out, or at least for so long as a check may take."""
        held = [thread for thread in self.threads[FIRST_STRIPE:] if thread.acquire(True, self.timeout)]
        try:
            yield
        finally:
            for thread in held:
                thread.release()

    def close(self) -> None:
        self.own.close()
