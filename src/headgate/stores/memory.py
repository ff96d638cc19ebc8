"""Counters in this process: a table behind one lock.

The fastest store and the simplest: exact for the threads and tasks of one process, gone when it ends, and not
shared with other worker processes (that is what `shared://` is for).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import final

from headgate.core.algorithms.algorithm import EMPTY, Algorithm
from headgate.core.decision import Decision
from headgate.core.state import ListLog, State
from headgate.core.words import i64
from headgate.errors import StoreClosed, StoreError
from headgate.stores.clock import Clock, MachineClock, nanoseconds_of, wall_minus_monotonic
from headgate.stores.deciding import Cell, decide
from headgate.stores.keeping import pack_kept
from headgate.stores.mutex import new_mutex
from headgate.stores.port import LocalStore, Member, Op, Outcome, PartlyAnswered, Request, Take
from headgate.stores.records import MemoryRecords, answered_before, check_kept, grouped
from headgate.stores.table import Entry, Table

__all__ = ["DEFAULT_MAX_KEYS", "MemoryStore"]

DEFAULT_MAX_KEYS = 100_000


@final
class MemoryStore(LocalStore):
    """At most `max_keys` counters of this process; thread-safe. `clock` replaces the machine's, for tests."""

    def __init__(self, max_keys: i64 = DEFAULT_MAX_KEYS, clock: Clock | None = None) -> None:
        self.table = Table(max_keys)
        self.names = self.table.names
        self.recent = self.table.recent
        self.inline_recent = self.table.inline_recent
        self.records = MemoryRecords()
        # The time is anchor + nanoseconds() // 1000, of the machine's clock without the detour through an object.
        self.anchor: i64 = 0
        if clock is None:
            anchor = wall_minus_monotonic()
            self.anchor = anchor
            self.clock = MachineClock(anchor)
            self.nanoseconds: Callable[[], int] = time.monotonic_ns
        else:
            self.clock = clock
            # A remote store's own clock, for its fallback, follows the server's to the microsecond, back and forth.
            follows = isinstance(clock, MachineClock)
            self.nanoseconds = partial(nanoseconds_of, clock) if follows else self.driven_nanoseconds
        self.latest: i64 = 0
        self.closed = False
        self.waits = False
        self.timeout = 0.0
        self.mutex = new_mutex()

    def now(self) -> int:
        return self.anchor + self.nanoseconds() // 1000

    def driven_nanoseconds(self) -> int:
        """The time of a given clock, under the lock. Unlike the machine's it may step back: what was as good as new
        before that is forgotten, whether or not it was swept."""
        now = self.clock.ticks()
        if now < self.latest:
            self.table.forget_drained(self.latest)
        self.latest = now
        return nanoseconds_of(self.clock)

    def take(self, algorithm: Algorithm, key: str, cost: i64) -> Decision:  # noqa: PLR0912 - the hot path, in one piece
        with self.mutex:
            now: i64 = self.anchor + self.nanoseconds() // 1000
            keys = self.names.get(algorithm.name)
            entry = keys.get(key) if keys is not None else None
            if entry is None:
                if self.closed:
                    raise closed()
                allowed, at, a, b, remaining, wait, reset = algorithm.step(EMPTY, now, cost)
                if allowed and cost:
                    entry = Entry(key, algorithm, at, 0, 0, ListLog() if algorithm.keeps_log else None)
                    entry.put(at, a, b, cost)
                    self.table.make_room(1, now, algorithm.inline)
                    self.table.insert(entry, now)
            elif entry.algorithm is algorithm or entry.algorithm.shape == algorithm.shape:
                allowed, at, a, b, remaining, wait, reset = algorithm.step(entry, now, cost)
                if not allowed:
                    if at < entry.time:
                        entry.rebase(at)
                elif cost:
                    log = entry.log
                    if log is not None:
                        if at < entry.time or entry.a + cost != a:
                            entry.put(at, a, b, cost)
                        else:
                            log.append(at, cost)
                    entry.time = at
                    entry.a = a
                    entry.b = b
                elif at < entry.time:
                    entry.rebase(at)
                # The entry is now the most recently used: Table.touch, spelled out.
                recent = self.inline_recent if entry.algorithm.inline else self.recent
                last = recent.older
                if last is not entry:
                    older = entry.older
                    newer = entry.newer
                    older.newer = newer
                    newer.older = older
                    last.newer = entry
                    entry.older = last
                    entry.newer = recent
                    recent.older = entry
            else:
                return self.decide(Request(Op.TAKE, [Member(key, algorithm, cost)]), now)[0].decision
        return Decision(algorithm, allowed, remaining, wait, reset, None)

    def take_many(self, takes: Sequence[Take]) -> list[Decision] | None:
        for algorithm, _, cost in takes:
            if cost > algorithm.ceiling:
                return None
        return [self.take(algorithm, key, cost) for algorithm, key, cost in takes]

    def apply(self, batch: Sequence[Request]) -> list[list[Outcome]]:
        if self.closed:
            raise closed()
        with self.mutex:
            now = self.now()
            for request in batch:
                if request.once is not None:
                    return self.decide_once(batch, now)
            return self.decide_each(batch, now)

    def apply_within(self, batch: Sequence[Request], patience: float) -> list[list[Outcome]] | None:
        return self.apply(batch)

    def decide_each(self, batch: Sequence[Request], now: i64) -> list[list[Outcome]]:
        """The requests of a batch, under the lock. One for which there is no room does not fail the others."""
        replies: list[list[Outcome]] = []
        failed: dict[int, StoreError] = {}
        for request in batch:
            try:
                replies.append(self.decide(request, now))
            except StoreError as error:
                if len(batch) == 1:
                    raise
                failed[len(replies)] = error
                replies.append([])
        if failed:
            raise PartlyAnswered(
                [[failed[i]] * len(batch[i].members) if i in failed else replies[i] for i in range(len(batch))]
            )
        return replies

    def decide_once(self, batch: Sequence[Request], now: i64) -> list[list[Outcome]]:
        """A batch with requests that are decided once, under the lock."""
        check_kept(batch)
        replies: list[list[Outcome]] = []
        answers: list[Sequence[Outcome | StoreError]] = []  # the same, with what went wrong
        for group in grouped(batch):
            once = group[0].once
            if once is not None and answered_before(self.records, once, group[0].op, now):
                replies += [[] for _ in group]
                answers += [[] for _ in group]
                continue
            try:
                decided = self.decide_each(group, now)
            except PartlyAnswered as partly:
                answers += partly.replies
                continue
            except StoreError as error:  # a group of one
                if len(batch) == 1:
                    raise
                answers.append([error] * len(group[0].members))
                continue
            if once is not None:
                self.records.keep(once.name, pack_kept(once, now, decided), now)
            replies += decided
            answers += decided
        if len(replies) < len(batch):
            raise PartlyAnswered(answers)
        return replies

    def decide(self, request: Request, now: i64) -> list[Outcome]:
        """One request, under the lock."""
        table = self.table
        if request.op is Op.TAKE or request.op is Op.CHARGE:
            missing = 0
            inline = False
            for member in request.members:
                entry = table.find(member.algorithm.name, member.key)
                if entry is None:
                    missing += 1
                    inline = inline or member.algorithm.inline
                else:
                    table.touch(entry)
            if missing:
                table.make_room(missing, now, inline)
        return decide(request.op, request.members, [TableCell(table, m, now) for m in request.members], now)

    def close(self) -> None:
        with self.mutex:
            self.closed = True
            self.table.clear()
            self.records.clear()


def closed() -> StoreClosed:
    return StoreClosed("this memory store is closed")


@final
class TableCell(Cell):
    """A counter of the table within one request."""

    def __init__(self, table: Table, member: Member, now: i64) -> None:
        self.table = table
        self.key = member.key
        self.now = now
        entry = table.find(member.algorithm.name, member.key)
        self.entry = entry
        self.state = entry
        self.writer = entry.algorithm if entry is not None else None

    def replace(self, state: State, algorithm: Algorithm) -> None:
        self.forget()
        entry = Entry(self.key, algorithm, state.time, state.a, state.b, state.log)
        self.table.insert(entry, self.now)
        self.entry = entry
        self.state = entry
        self.writer = algorithm

    def changed(self) -> None:
        """Nothing to do: the entry is the counter."""

    def forget(self) -> None:
        if self.entry is not None:
            self.table.remove(self.entry)
            self.entry = None
            self.state = None
            self.writer = None
