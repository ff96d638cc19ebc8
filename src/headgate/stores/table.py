"""The counters of one process: found by name and key, bounded, the expired and the least recently used going first.

Every entry sits in two rings. The *recent* ring orders entries by use, so the one to evict is always at hand. Limits
that callers of a service write out have a recent ring of their own. Its entries are evicted first, and nothing else is
evicted for them: otherwise whoever may check could lift the limits of rules and plans with a flood of counters.
The *due* rings gather entries by when they will have expired, rounded up a little (a sixty-fourth of the time that a
counter lasts); an entry that was used since is moved on when its ring comes due. So expiry needs no thread and no scan:
each insertion looks at a few entries that are due first, and a full table looks for an expired one before it evicts a
live one.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import final

from headgate.core.algorithms.algorithm import Algorithm
from headgate.core.algorithms.token_bucket import TokenBucket
from headgate.core.limit import Limit
from headgate.core.state import Log, State
from headgate.core.words import i64
from headgate.errors import StoreError

__all__ = ["Entry", "Table"]

SWEPT_PER_INSERT = 2
SWEPT_WHEN_FULL = 64
_NO_LIMIT = TokenBucket(Limit(1, 1), "")


@final
class Entry(State):
    """A counter in the table: its state, the algorithm that wrote it, and its neighbours in both rings."""

    __slots__ = ("algorithm", "due_after", "due_before", "key", "newer", "older")

    def __init__(self, key: str, algorithm: Algorithm, time: i64, a: i64, b: i64, log: Log | None) -> None:
        self.time = time
        self.a = a
        self.b = b
        self.log = log
        self.key = key
        self.algorithm = algorithm
        self.older: Entry = self
        self.newer: Entry = self
        self.due_before: Entry = self
        self.due_after: Entry = self


def _root() -> Entry:
    """The fixed point of a ring."""
    return Entry("", _NO_LIMIT, 0, 0, 0, None)


@final
class Table:
    """At most `max_keys` entries. Not locked: the store sees to that."""

    def __init__(self, max_keys: i64) -> None:
        self.max_keys = max_keys
        self.size = 0
        self.names: dict[str, dict[str, Entry]] = {}
        self.recent = _root()  # recent.newer is the least recently used, recent.older the most recently used
        self.inline_recent = _root()  # the same for limits that callers wrote out
        self.due: dict[int, Entry] = {}
        self.due_times: list[int] = []

    def find(self, name: str, key: str) -> Entry | None:
        keys = self.names.get(name)
        return None if keys is None else keys.get(key)

    def touch(self, entry: Entry) -> None:
        """Note that an entry was used just now, unless it was removed meanwhile."""
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

    def make_room(self, wanted: i64, now: i64, inline: bool) -> None:
        """Remove what must go before so many entries are added; with it a few that have expired anyway. `inline`: a
        caller wrote one of their limits out. A StoreError when there is no room for such a one."""
        self.sweep(now, SWEPT_PER_INSERT * wanted, SWEPT_PER_INSERT * wanted)
        while self.size and self.size + wanted > self.max_keys:
            if self.sweep(now, SWEPT_WHEN_FULL, 1):
                continue
            if self.inline_recent.newer is not self.inline_recent:
                self.remove(self.inline_recent.newer)
            elif inline:
                raise StoreError(
                    "no room for another limit that a caller wrote out: those of rules and plans fill it; "
                    "give the store a larger max_keys"
                )
            else:
                self.remove(self.recent.newer)

    def insert(self, entry: Entry, now: i64) -> None:
        """Add an entry that is not there yet. Removes none, so that a request keeps the entries it has found."""
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
        self.schedule(entry, now)

    def remove(self, entry: Entry) -> None:
        name = entry.algorithm.name
        keys = self.names[name]
        del keys[entry.key]
        if not keys:
            del self.names[name]
        self.size -= 1
        entry.older.newer = entry.newer
        entry.newer.older = entry.older
        self.unschedule(entry)
        # Nothing that was removed is kept alive by its old neighbours, or by itself, until the collector comes.
        entry.older = entry.newer = entry.due_before = entry.due_after = self.recent

    def clear(self) -> None:
        """Forget everything, and take nothing more in."""
        for recent in (self.recent, self.inline_recent):
            while recent.newer is not recent:
                self.remove(recent.newer)
        self.max_keys = 0

    def forget_drained(self, now: i64) -> None:
        """Remove every entry that is as good as new at this time."""
        for recent in (self.recent, self.inline_recent):
            entry = recent.newer
            while entry is not recent:
                following = entry.newer
                if entry.algorithm.used(entry, now) == 0:
                    self.remove(entry)
                entry = following

    def schedule(self, entry: Entry, now: i64) -> None:
        """Put an entry into the ring in which its expiry will be looked at."""
        algorithm = entry.algorithm
        expiry = algorithm.frees(entry, now, 0)
        width = (algorithm.lasts_us >> 6) + 1
        time = (expiry // width + 1) * width
        root = self.due.get(time)
        if root is None:
            root = _root()
            root.time = time
            self.due[time] = root
            if len(self.due_times) > 2 * len(self.due) + 64:
                self.due_times = sorted(self.due)  # without those whose rings are gone
            else:
                heappush(self.due_times, time)
        last = root.due_before
        last.due_after = entry
        entry.due_before = last
        entry.due_after = root
        root.due_before = entry

    def unschedule(self, entry: Entry) -> None:
        """Take an entry out of its due ring, and the ring away when that was all it held."""
        before = entry.due_before
        after = entry.due_after
        before.due_after = after
        after.due_before = before
        if before is after:
            del self.due[before.time]

    def sweep(self, now: i64, looks: i64, enough: i64) -> i64:
        """Look at up to `looks` entries that are due; stop when `enough` have been removed. Says how many were."""
        removed = 0
        while looks and removed < enough and self.due_times and self.due_times[0] <= now:
            root = self.due.get(self.due_times[0])
            if root is None:
                heappop(self.due_times)
                continue
            entry = root.due_after
            looks -= 1
            if entry.algorithm.frees(entry, now, 0) <= now:
                self.remove(entry)
                removed += 1
            else:
                self.unschedule(entry)
                self.schedule(entry, now)
        return removed
