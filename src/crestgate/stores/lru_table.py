# mypyc: compile
"""Bounded table of the counters of one process, with expiry and LRU eviction.

Every entry is in two linked rings. The *recent* ring orders entries by use, so the one to evict is always known.
Inline limits, which requests carry themselves, have a recent ring of their own: its entries are evicted first, and
nothing else is evicted for them, or any caller could flush the counters of rules and plans. The *due* rings group
entries by expiry, rounded up a little (by 1/64 of a counter's lifetime); an entry that was used since is moved to a
later ring when its ring comes due. So expiry needs no thread and no scan: each insertion checks a few entries that are
due first, and a full table looks for an expired entry before it evicts a live one.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import final

from crestgate.core.algorithms.algorithm import Algorithm
from crestgate.core.algorithms.token_bucket import TokenBucket
from crestgate.core.limit import Limit
from crestgate.core.mypyc_types import i64
from crestgate.core.state import Log, State
from crestgate.errors import StoreError

__all__ = ["LruTable", "TableEntry"]

SWEEP_PER_INSERT = 2
SWEEP_WHEN_FULL = 64
_NO_LIMIT = TokenBucket(Limit(1, 1), "")


@final
class TableEntry(State):
    """A counter in the table: its state, the algorithm that wrote it, and its neighbours in both rings."""

    __slots__ = ("algorithm", "due_after", "due_before", "key", "newer", "older")

    def __init__(self, key: str, algorithm: Algorithm, time: i64, a: i64, b: i64, log: Log | None) -> None:
        self.time = time
        self.a = a
        self.b = b
        self.log = log
        self.key = key
        self.algorithm = algorithm
        self.older: TableEntry = self
        self.newer: TableEntry = self
        self.due_before: TableEntry = self
        self.due_after: TableEntry = self


def _new_ring() -> TableEntry:
    """The root of an empty ring."""
    return TableEntry("", _NO_LIMIT, 0, 0, 0, None)


@final
class LruTable:
    """At most `max_keys` entries. Not locked: the store does that."""

    def __init__(self, max_keys: i64) -> None:
        self.max_keys = max_keys
        self.size = 0
        self.names: dict[str, dict[str, TableEntry]] = {}
        self.recent = _new_ring()  # recent.newer is the least recently used, recent.older the most recently used
        self.inline_recent = _new_ring()  # the same for inline limits
        self.due: dict[int, TableEntry] = {}
        self.due_times: list[int] = []

    def find(self, name: str, key: str) -> TableEntry | None:
        keys = self.names.get(name)
        return None if keys is None else keys.get(key)

    def touch(self, entry: TableEntry) -> None:
        """Mark an entry as the most recently used, unless it was removed."""
        recent = self.inline_recent if entry.algorithm.inline else self.recent
        last = recent.older
        older = entry.older
        if last is entry or older.newer is not entry:
            return
        newer = entry.newer
        older.newer = newer
        newer.older = older
        last.newer = entry
        entry.older = last
        entry.newer = recent
        recent.older = entry

    def holds(self, entry: TableEntry) -> bool:
        """Whether an entry was not removed since it was found."""
        return entry.older.newer is entry

    def make_room(self, new_keys: i64, now: i64, inline: bool) -> None:
        """Evict until so many entries can be added, and sweep a few that have expired. `inline`: one of them is of an
        inline limit. StoreError when there is no room for such an entry."""
        self.sweep(now, SWEEP_PER_INSERT * new_keys, SWEEP_PER_INSERT * new_keys)
        while self.size and self.size + new_keys > self.max_keys:
            if self.sweep(now, SWEEP_WHEN_FULL, 1):
                continue
            if self.inline_recent.newer is not self.inline_recent:
                self.remove(self.inline_recent.newer)
            elif inline:
                raise StoreError(
                    "no room for another inline limit: counters of rules and plans fill the store; "
                    "give it a larger max_keys"
                )
            else:
                self.remove(self.recent.newer)

    def insert(self, entry: TableEntry, expiry: i64) -> None:
        """Add a new entry, which has recovered at `expiry`. Evicts none, so that a request keeps the entries it has
        looked up."""
        name = entry.algorithm.name
        keys = self.names.get(name)
        if keys is None:
            keys = {}
            self.names[name] = keys
        keys[entry.key] = entry
        self.size += 1
        recent = self.inline_recent if entry.algorithm.inline else self.recent
        last = recent.older
        last.newer = entry
        entry.older = last
        entry.newer = recent
        recent.older = entry
        self.schedule(entry, expiry)

    def remove(self, entry: TableEntry) -> None:
        name = entry.algorithm.name
        keys = self.names[name]
        del keys[entry.key]
        if not keys:
            del self.names[name]
        self.size -= 1
        entry.older.newer = entry.newer
        entry.newer.older = entry.older
        self.unschedule(entry)
        # Break reference cycles, so that the entry is freed without the garbage collector.
        entry.older = entry.newer = entry.due_before = entry.due_after = self.recent

    def clear(self) -> None:
        """Remove all entries, and accept no more."""
        for recent in (self.recent, self.inline_recent):
            while recent.newer is not recent:
                self.remove(recent.newer)
        self.max_keys = 0

    def remove_expired(self, now: i64) -> None:
        """Remove every entry that is fully recovered at this time."""
        for recent in (self.recent, self.inline_recent):
            entry = recent.newer
            while entry is not recent:
                following = entry.newer
                if entry.algorithm.used(entry, now) == 0:
                    self.remove(entry)
                entry = following

    def schedule(self, entry: TableEntry, expiry: i64) -> None:
        """Put an entry into the due ring of its expiry."""
        width = (entry.algorithm.recovery_us >> 6) + 1
        time = (expiry // width + 1) * width
        root = self.due.get(time)
        if root is None:
            root = _new_ring()
            root.time = time
            self.due[time] = root
            if len(self.due_times) > 2 * len(self.due) + 64:
                self.due_times = sorted(self.due)  # without those whose rings were removed
            else:
                heappush(self.due_times, time)
        last = root.due_before
        last.due_after = entry
        entry.due_before = last
        entry.due_after = root
        root.due_before = entry

    def unschedule(self, entry: TableEntry) -> None:
        """Take an entry out of its due ring, and remove a ring that is empty then."""
        before = entry.due_before
        after = entry.due_after
        before.due_after = after
        after.due_before = before
        if before is after:
            del self.due[before.time]

    def sweep(self, now: i64, max_checks: i64, enough: i64) -> i64:
        """Check up to `max_checks` entries that are due, until `enough` are removed. Returns how many were."""
        removed = 0
        while max_checks and removed < enough and self.due_times and self.due_times[0] <= now:
            root = self.due.get(self.due_times[0])
            if root is None:
                heappop(self.due_times)
                continue
            entry = root.due_after
            max_checks -= 1
            expiry = entry.algorithm.available_at(entry, now, 0)
            if expiry <= now:
                self.remove(entry)
                removed += 1
            else:
                self.unschedule(entry)
                self.schedule(entry, expiry)
        return removed
