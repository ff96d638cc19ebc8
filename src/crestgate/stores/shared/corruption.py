# mypyc: compile
"""Handling of a shared file that was corrupted on the disk, or written to or truncated by another program.

A slot whose state no writer can have written is reset: its counter starts fresh. The request that found it, and those
of the next 100 ms in this process, fail with a StoreError, so that the failure policy answers them: a client that
retries at once must not be admitted silently. Each reset is counted, and logged at most once a second. Corruption that
looks like another valid state cannot be detected.

Touching the missing part of a truncated mapped file kills the process (SIGBUS). So the size is checked again every
100 ms, before the first request after that; a truncation in between cannot be caught.
"""

from __future__ import annotations

import logging
import time
from mmap import mmap
from typing import TYPE_CHECKING, Final, final

from crestgate.core.bounded_cache import BoundedCache
from crestgate.core.mypyc_types import i64
from crestgate.errors import StoreClosedError, StoreError

if TYPE_CHECKING:
    from crestgate.stores.shared.store import SharedStore

__all__ = ["MAX_COMMITS", "CorruptionGuard", "check_file_size", "is_commit_count"]

SIZE_CHECK_US = 100_000
MAX_COMMITS: Final = 1 << 62
RESET_US = 100_000
MAX_RECENT = 1_000
LOG_SECONDS = 1.0
_log = logging.getLogger("crestgate")


def is_commit_count(commits: i64) -> bool:
    """Whether a state can have been committed so often. Beyond it, the next count might not fit its word."""
    return 0 <= commits < MAX_COMMITS


def check_file_size(path: str, memory: mmap) -> None:
    """StoreError when the file is shorter than its mapping. It is called without a lock, so another thread may have
    closed the store meanwhile."""
    try:
        size, mapped = memory.size(), len(memory)
    except (ValueError, OSError):  # an OSError in the middle of mmap.close, which lets other threads run
        raise StoreClosedError(f"shared store {path} is closed") from None
    if size < mapped:
        raise StoreError(
            f"shared store {path}: the file was truncated while in use ({size} bytes instead of {mapped}); "
            "restart the processes that use it, or they will be killed when they touch the missing part"
        )


@final
class CorruptionGuard:
    """Resets corrupt counters and records of one store, and fails the requests that found them."""

    def __init__(self, store: SharedStore) -> None:
        self.store = store
        self.resets = 0  # counters and records reset so far
        # Counters that were reset, and until when requests for them fail.
        self.recent: dict[bytes, int] = BoundedCache(MAX_RECENT)
        self.logged_at = float("-inf")

    def check_size(self) -> None:
        """Check the sizes of the files, and schedule the next check."""
        store = self.store
        now = store.anchor + store.nanoseconds() // 1000
        store.next_size_check = 0  # at every request, for as long as it is wrong
        check_file_size(store.path, store.memory)
        if store.records is not None:
            check_file_size(store.records.path, store.records.memory)
        store.next_size_check = now + SIZE_CHECK_US

    def reset_slot(self, stripe: int, slot: int, digest: bytes, now: int, reason: str) -> StoreError:
        """Clear a slot, whose stripe the caller has locked. Returns the error to raise."""
        self.store.table.clear(stripe, slot)
        self.recent[digest] = now + RESET_US
        return self.report(f"a corrupt counter was reset: {reason}")

    def check_recent(self, digest: bytes, now: int) -> None:
        """StoreError for a counter that was reset within the last 100 ms."""
        until = self.recent.get(digest)
        if until is None:
            return
        if until - RESET_US <= now < until:
            raise StoreError(f"shared store {self.store.path}: a corrupt counter was reset just now")
        self.recent.pop(digest, None)

    def report(self, problem: str) -> StoreError:
        """Count and log a reset. Returns the error to raise."""
        self.resets += 1
        message = f"shared store {self.store.path}: {problem}"
        now = time.monotonic()
        if now - self.logged_at >= LOG_SECONDS:
            self.logged_at = now
            _log.error("%s (%d so far in this process)", message, self.resets)
        return StoreError(message)
