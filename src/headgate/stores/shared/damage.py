"""What is done about a shared file that was damaged: on the disk, or by a program that wrote to it or cut it short.

A slot whose state no writer can have written is reset: its counter starts fresh. The request that found it, and those
of the next 100 ms in this process, fail with a StoreError, so that the failure policy answers them: whoever asks again
at once must not be let in silently. Each reset is counted, and logged at most once a second. Damage that looks like
another valid state cannot be noticed.

A mapped file that is cut short kills whoever touches the part that is gone (SIGBUS). So its size is looked at again
every 100 ms, before the first request that comes after that; the moments in between cannot be helped.
"""

from __future__ import annotations

import logging
import time
from mmap import mmap
from typing import TYPE_CHECKING, final

from headgate.core.words import i64
from headgate.errors import StoreError

if TYPE_CHECKING:
    from headgate.stores.shared.store import SharedStore

__all__ = ["MAX_COMMITS", "Damage", "check_size", "is_commit_count"]

SIZE_CHECK_US = 100_000
MAX_COMMITS = 1 << 62
RESET_US = 100_000
MAX_RECENT = 1_000
LOG_SECONDS = 1.0
_log = logging.getLogger("headgate")


def is_commit_count(commits: i64) -> bool:
    """Whether a cell can have been committed so often. Beyond it, the next count might not fit its word."""
    return 0 <= commits < MAX_COMMITS


def check_size(path: str, memory: mmap) -> None:
    """StoreError when the file is no longer as large as it is mapped."""
    size = memory.size()
    if size < len(memory):
        raise StoreError(
            f"shared store {path}: the file was cut short while in use ({size} bytes instead of {len(memory)}); "
            "restart the processes that use it, or they will be killed when they touch what is gone"
        )


@final
class Damage:
    """What one process has found damaged in its file."""

    def __init__(self, store: SharedStore) -> None:
        self.store = store
        self.resets = 0  # counters and records reset so far
        self.recent: dict[bytes, int] = {}  # counters reset lately, and until when they are not made anew
        self.logged_at = float("-inf")

    def check_size(self) -> None:
        """Look at the size of the files, and say when to look again."""
        store = self.store
        now = store.anchor + store.nanoseconds() // 1000
        store.next_size_check = 0  # at every request, for as long as it is wrong
        check_size(store.path, store.memory)
        if store.records is not None:
            check_size(store.records.path, store.records.memory)
        store.next_size_check = now + SIZE_CHECK_US

    def reset_slot(self, stripe: int, slot: int, digest: bytes, now: int, reason: str) -> StoreError:
        """Forget the counter of a slot, whose stripe the caller has locked. The error to raise."""
        self.store.clear_slot(stripe, slot)
        if len(self.recent) >= MAX_RECENT:
            self.recent.clear()
        self.recent[digest] = now + RESET_US
        return self.note(f"a damaged counter was reset: {reason}")

    def check_recent(self, digest: bytes, now: int) -> None:
        """StoreError for a counter that was reset just now."""
        until = self.recent.get(digest)
        if until is None:
            return
        if until - RESET_US <= now < until:
            raise StoreError(f"shared store {self.store.path}: a damaged counter was reset just now")
        self.recent.pop(digest, None)

    def note(self, what: str) -> StoreError:
        """Count and log what was reset. The error to raise."""
        self.resets += 1
        message = f"shared store {self.store.path}: {what}"
        now = time.monotonic()
        if now - self.logged_at >= LOG_SECONDS:
            self.logged_at = now
            _log.error("%s (%d so far in this process)", message, self.resets)
        return StoreError(message)
