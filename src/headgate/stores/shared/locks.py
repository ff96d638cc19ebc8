"""Locks between processes that die with their owner, and between the threads of one.

Each stripe has a byte range of the file that is locked through the kernel by open file description (OFD): whoever
is killed lets go, whoever is stopped keeps what it has, and nobody ever blocks on it: a taken lock is tried again
until it is had, or its holder is found to be stopped (see holders.py). Such locks exclude neither the threads of a
process nor a forked child that inherited the descriptor, so a thread lock comes first (see thread_locks.py), and a
child opens a descriptor of its own.

Whoever has taken a lock leaves its mark in the file, and sees whether somebody was killed in the middle of a chain that
changed this stripe: then that is put right before anything else (see journal.py).
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, final

from headgate.core.words import i64
from headgate.errors import ConfigError, StoreClosed, StoreError
from headgate.stores.forking import OwnDescriptor, Renewal
from headgate.stores.shared.holders import COUNT_MASK, PROC_SECONDS, StallWatch, first_mark, is_stopped
from headgate.stores.shared.thread_locks import MAX_OVERTAKEN_SECONDS, ThreadLocks

__all__ = ["ARENA", "FIRST_STRIPE", "HEADER", "WIDE", "FileLocks", "LockBusy", "Recovery"]

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


class Recovery(Protocol):
    """Puts right what a killed process left behind in a stripe."""

    def recover(self, number: int) -> None:
        """Called with a lock's number, by whoever has just taken it."""


@final
class FileLocks:
    """The numbered locks of one open file, for the threads of this process. Owns `file`, a descriptor of it.

    `words` is the file's memory: each lock has one at `marks_at` for its holder's mark, and one at `chains_at` that is
    not zero after somebody was killed in the middle of a chain (both count words). `recovery` is called then.
    """

    def __init__(
        self, path: str, file: int, count: int, timeout: float, words: memoryview, marks_at: int, chains_at: int
    ) -> None:
        if not hasattr(fcntl, "F_OFD_SETLK"):
            raise ConfigError("shared:// needs open file description locks, which this system does not have")
        self.path = path
        self.timeout = timeout
        self.fcntl: Callable[[int, int, bytes], object] = fcntl.fcntl
        self.command: int = fcntl.F_OFD_SETLK
        self.threads = ThreadLocks(count)
        self.locking = [struct.pack("@hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, i, 1, 0) for i in range(count)]
        self.unlocking = [struct.pack("@hhqqi4x", fcntl.F_UNLCK, os.SEEK_SET, i, 1, 0) for i in range(count)]
        self.own = OwnDescriptor(file)
        self.descriptor: list[int] = self.own.number
        self.words = words
        self.marks_at = marks_at
        self.chains_at = chains_at
        self.recovery: Recovery | None = None
        self.stalled: dict[int, int] = {}
        """Locks whose holders were given up although they were not stopped, and their marks."""
        self.looked_at: tuple[int, float, bool] = (0, 0.0, False)
        """The mark whose process was looked at last, until when that holds, and whether it was stopped."""
        self.mark: i64 = 0
        self.new_marks()
        self.renewal = Renewal(self.new_marks)

    def new_marks(self) -> None:
        self.mark = first_mark()

    def next_mark(self) -> None:
        self.mark += 1
        if self.mark & COUNT_MASK == 0:
            self.new_marks()  # the count has run over

    def mark_of(self, number: int) -> int:
        """The mark of whoever took this lock last."""
        mark: int = self.words[self.marks_at + number]
        return mark

    def holder_is_stopped(self, mark: int, now: float) -> bool:
        """Whether the process that left this mark is stopped, as it was found within the last moment."""
        known, until, stopped = self.looked_at
        if known != mark or now >= until:
            stopped = is_stopped(mark)
            self.looked_at = (mark, now + PROC_SECONDS, stopped)
        return stopped

    def watch(self, seconds: float) -> StallWatch:
        """Says when to stop waiting for a lock that should be had within so many seconds."""
        return StallWatch(self, seconds)

    def is_stalled(self, numbers: Sequence[int], watch: StallWatch) -> bool:
        """Whether to stop trying to take these locks, for whoever does so again and again."""
        if not watch.is_due():
            return False
        for number in numbers:
            if not self.try_acquire(number):
                watch.waits_for(number)
                return watch.expired()
            self.release(number)
        return False

    def acquire(self, number: int, seconds: float) -> None:
        """Take one lock, or raise LockBusy when it is not free within so many seconds and its holder does not go on."""
        threads = self.threads
        if (not threads.lines or not threads.is_kept(number)) and threads.locks[number].acquire(False):
            try:
                if not self.try_file(number):
                    self.wait_for_file(number, self.watch(seconds))
            except BaseException:
                threads.release(number)
                raise
        else:
            self.wait(number, self.watch(seconds))
        self.taken(number)

    def wait(self, number: int, watch: StallWatch) -> None:
        """Take one lock, in turn, or raise LockBusy."""
        watch.waits_for(number)
        if not self.threads.acquire(number, watch):
            raise self.too_late()
        try:
            if not self.try_file(number):
                self.wait_for_file(number, watch)
        except BaseException:
            self.threads.release(number)
            raise

    def taken(self, number: int) -> None:
        """Leave this process's mark, and recover what the last holder left undone."""
        self.next_mark()
        self.words[self.marks_at + number] = self.mark
        if self.words[self.chains_at + number]:
            self.recover(number)

    def recover(self, number: int) -> None:
        try:
            if self.recovery is not None:
                self.recovery.recover(number)
        except BaseException:
            self.release(number)
            raise

    def acquire_all(self, numbers: Sequence[int], seconds: float) -> None:
        """Take several locks, or none and raise LockBusy. Nobody waits while holding another: a participant that is
        stopped holds up those who need what it has, and not those who need what they have."""
        if self.try_all(numbers):
            return
        watch = self.watch(seconds)
        overtaken_at = time.monotonic() + MAX_OVERTAKEN_SECONDS
        busy = numbers[0]
        while True:
            if time.monotonic() > overtaken_at:
                busy = self.acquire_in_turn(numbers, watch)
                if busy < 0:
                    return
            if not self.try_acquire(busy):
                self.wait(busy, watch)
                self.taken(busy)
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

    def acquire_in_turn(self, numbers: Sequence[int], watch: StallWatch) -> int:
        """Take several locks that other threads take one by one, again and again: all of them are kept for this one.
        Says which one another process has, if any, and then takes none; else -1."""
        if not self.threads.acquire_all(numbers, watch):
            raise self.too_late()
        busy = -1
        held = 0
        try:
            while held < len(numbers):
                if not self.try_file(numbers[held]):
                    busy = numbers[held]
                    break
                held += 1
        finally:
            if held < len(numbers):
                for i in range(held):
                    self.fcntl(self.descriptor[0], self.command, self.unlocking[numbers[i]])
                for number in numbers:
                    self.threads.release(number)
        if busy < 0:
            for i in range(len(numbers)):
                self.taken(numbers[i])
        return busy

    def try_acquire(self, number: int) -> bool:
        """Take one lock if it is free at this instant."""
        threads = self.threads
        if (threads.lines and threads.is_kept(number)) or not threads.locks[number].acquire(False):
            return False
        free = False
        try:
            free = self.try_file(number)
        finally:
            if not free:
                threads.release(number)
        if free:
            self.taken(number)
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
        locked = False
        threads = self.threads
        try:
            while held <= last:
                if (threads.lines and threads.is_kept(held)) or not threads.locks[held].acquire(False):
                    break
                held += 1
            locked = held > last and self.try_file_range(fcntl.F_WRLCK, first, last)
        finally:
            if not locked:
                self.release_threads(first, held)
        if not locked:
            return False
        self.next_mark()
        count = last - first + 1
        marks_at = self.marks_at + first
        self.words[marks_at : marks_at + count] = memoryview(array("q", [self.mark]) * count)
        chains_at = self.chains_at + first
        if self.words[chains_at : chains_at + count].tobytes().strip(b"\0"):
            self.recover_range(first, last)
        return True

    def recover_range(self, first: int, last: int) -> None:
        try:
            for number in range(first, last + 1):
                if self.recovery is not None and self.words[self.chains_at + number]:
                    self.recovery.recover(number)
        except BaseException:
            self.release_range(first, last)
            raise

    def release_range(self, first: int, last: int) -> None:
        try:
            self.try_file_range(fcntl.F_UNLCK, first, last)
        finally:
            self.release_threads(first, last + 1)

    def release_threads(self, first: int, end: int) -> None:
        threads = self.threads
        for number in range(first, end):
            threads.locks[number].release()
            if threads.lines:
                threads.wake_kept(number)

    def release(self, number: int) -> None:
        try:
            self.fcntl(self.descriptor[0], self.command, self.unlocking[number])
        finally:
            threads = self.threads
            threads.locks[number].release()
            if threads.lines:
                threads.wake_kept(number)

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

    def wait_for_file(self, number: int, watch: StallWatch) -> None:
        watch.waits_for(number)
        nap = SHORTEST_NAP
        tries = 0
        while not self.try_file(number):
            if watch.expired():
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
            "the process that holds it is stopped, or is held up"
        )

    @contextmanager
    def all_threads(self) -> Iterator[None]:
        """Keep the other threads of this process out, or at least for so long as a check may take."""
        held = [thread for thread in self.threads.locks[FIRST_STRIPE:] if thread.acquire(True, self.timeout)]
        try:
            yield
        finally:
            for thread in held:
                thread.release()

    def close(self) -> None:
        self.own.close()
