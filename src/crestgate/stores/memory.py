# mypyc: compile
"""Counters in the memory of this process, behind one lock.

The fastest and simplest store: exact for the threads and tasks of one process, lost when it ends, and not shared with
other worker processes (use `shared://` for that).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import final

from crestgate.core.algorithms.algorithm import EMPTY, Algorithm, Step
from crestgate.core.decision import Decision
from crestgate.core.mypyc_types import i64
from crestgate.core.state import ListLog, State
from crestgate.errors import StoreClosedError, StoreError
from crestgate.runtime.clock import Clock, MachineClock, nanoseconds_of, wall_minus_monotonic
from crestgate.runtime.mutex import new_fork_safe_mutex
from crestgate.stores.decide import StoredCounter, decide
from crestgate.stores.idempotency import MemoryRecords, check_record_size, group_by_record, replay_or_claim
from crestgate.stores.idempotency_codec import encode_record
from crestgate.stores.lru_table import LruTable, TableEntry
from crestgate.stores.port import LocalStore, Member, Op, Outcome, PartialStoreError, Request, SingleTake

__all__ = ["DEFAULT_MAX_KEYS", "MemoryStore"]

DEFAULT_MAX_KEYS = 100_000


@final
class MemoryStore(LocalStore):
    """At most `max_keys` counters of this process; thread-safe. `clock` replaces the machine's, for tests."""

    def __init__(self, max_keys: i64 = DEFAULT_MAX_KEYS, clock: Clock | None = None) -> None:
        self.table = LruTable(max_keys)
        self.names = self.table.names
        self.recent = self.table.recent
        self.inline_recent = self.table.inline_recent
        self.records = MemoryRecords()
        # The time is anchor + nanoseconds() // 1000, without a call of the clock object.
        self.anchor: i64 = 0
        if clock is None:
            anchor = wall_minus_monotonic()
            self.anchor = anchor
            self.clock = MachineClock(anchor)
            self.nanoseconds: Callable[[], int] = time.monotonic_ns
        else:
            self.clock = clock
            # A remote store's own clock, for its fallback, follows the server's to the microsecond, back and forth.
            is_machine = isinstance(clock, MachineClock)
            self.nanoseconds = partial(nanoseconds_of, clock) if is_machine else self.virtual_nanoseconds
        self.latest: i64 = 0
        self.closed = False
        self.waits = False
        self.timeout = 0.0
        self.mutex = new_fork_safe_mutex()

    def now(self) -> int:
        return self.anchor + self.nanoseconds() // 1000

    def virtual_nanoseconds(self) -> int:
        """Read a virtual clock, under the lock. Unlike the machine's it may step back: what had expired before that is
        removed, whether or not it was swept."""
        now = self.clock.ticks()
        if now < self.latest:
            self.table.remove_expired(self.latest)
        self.latest = now
        return now * 1000

    def take(self, algorithm: Algorithm, key: str, cost: i64) -> Decision:  # noqa: PLR0912 - the hot path, in one function
        with self.mutex:
            nanoseconds: i64 = self.nanoseconds()  # divided as a C integer
            now = self.anchor + nanoseconds // 1000
            keys = self.names.get(algorithm.name)
            entry = keys.get(key) if keys is not None else None
            if entry is None:
                if self.closed:
                    raise closed_error()
                allowed, at, a, b, remaining, wait, reset = algorithm.step(EMPTY, now, cost)
                if allowed and cost:
                    entry = TableEntry(key, algorithm, at, 0, 0, ListLog() if algorithm.keeps_log else None)
                    entry.put(at, a, b, cost)
                    self.table.make_room(1, now, algorithm.inline)
                    self.table.insert(entry, now + reset)
            elif entry.algorithm is algorithm or entry.algorithm.shape == algorithm.shape:
                allowed, at, a, b, remaining, wait, reset = algorithm.step(entry, now, cost)
                if not allowed:
                    if at < entry.time:
                        algorithm.rebase(entry, now)
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
                    algorithm.rebase(entry, now)
                # LruTable.touch, inlined.
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

    def take_many(self, takes: Sequence[SingleTake]) -> list[Decision] | None:
        inline = False
        for algorithm, _, cost in takes:
            if cost > algorithm.ceiling:
                return None
            inline = inline or algorithm.inline
        if inline and self.table.size + len(takes) > self.table.max_keys:
            return None  # a new inline limit may fail for want of room, when those before it are charged
        return [self.take(algorithm, key, cost) for algorithm, key, cost in takes]

    def apply(self, batch: Sequence[Request]) -> list[list[Outcome]]:
        if self.closed:
            raise closed_error()
        with self.mutex:
            now = self.now()
            if len(batch) == 1 and batch[0].record is None:
                return [self.decide(batch[0], now)]
            for request in batch:
                if request.record is not None:
                    return self.decide_idempotent(batch, now)
            return self.decide_each(batch, now)

    def apply_within(self, batch: Sequence[Request], timeout: float) -> list[list[Outcome]] | None:
        return self.apply(batch)

    def decide_each(self, batch: Sequence[Request], now: i64) -> list[list[Outcome]]:
        """Decide the requests of a batch, under the lock. One for which there is no room does not fail the others."""
        replies: list[list[Outcome]] = []
        errors: dict[int, StoreError] = {}
        for request in batch:
            try:
                replies.append(self.decide(request, now))
            except StoreError as error:
                if len(batch) == 1:
                    raise
                errors[len(replies)] = error
                replies.append([])
        if errors:
            raise PartialStoreError(
                [[errors[i]] * len(batch[i].members) if i in errors else replies[i] for i in range(len(batch))]
            )
        return replies

    def decide_idempotent(self, batch: Sequence[Request], now: i64) -> list[list[Outcome]]:
        """Decide a batch with idempotent requests, under the lock."""
        check_record_size(batch)
        replies: list[list[Outcome]] = []
        answers: list[Sequence[Outcome | StoreError]] = []  # the same, with errors
        for group in group_by_record(batch):
            record = group[0].record
            if record is not None and replay_or_claim(self.records, record, group[0].op, now):
                replies += [[] for _ in group]
                answers += [[] for _ in group]
                continue
            try:
                decided = self.decide_each(group, now)
            except PartialStoreError as failure:
                answers += failure.outcomes
                continue
            except StoreError as error:  # a group of one
                if len(batch) == 1:
                    raise
                answers.append([error] * len(group[0].members))
                continue
            if record is not None:
                self.records.put(record.name, encode_record(record, now, decided), now)
            replies += decided
            answers += decided
        if len(replies) < len(batch):
            raise PartialStoreError(answers)
        return replies

    def decide(self, request: Request, now: i64) -> list[Outcome]:
        """Decide one request, under the lock."""
        table = self.table
        members = request.members
        if request.op is Op.TAKE:
            taken = self.take_all(members, now)
            if taken is not None:
                return taken
        entries = [table.find(member.algorithm.name, member.key) for member in members]
        if request.op is Op.TAKE or request.op is Op.CHARGE:
            missing = 0
            inline = False
            for i in range(len(entries)):
                entry = entries[i]
                if entry is None:
                    missing += 1
                    inline = inline or members[i].algorithm.inline
                else:
                    table.touch(entry)
            if missing:
                table.make_room(missing, now, inline)
                if missing < len(entries):  # those that had expired are removed
                    entries = [table.find(member.algorithm.name, member.key) for member in members]
        counters = [TableCounter(table, members[i].key, entries[i], now) for i in range(len(entries))]
        return decide(request.op, members, counters, now)

    def take_all(self, members: Sequence[Member], now: i64) -> list[Outcome] | None:
        """Decide the usual TAKE, under the lock: every limit admits it, and each counter is new, or was written by its
        limit and is not ahead of the clock. None, and no counter is changed, for any other: see decide.py."""
        table = self.table
        names = self.names
        entries: list[TableEntry | None] = []
        steps: list[Step] = []
        new = 0
        inline = False
        for member in members:
            algorithm = member.algorithm
            cost = member.cost
            if cost > algorithm.ceiling or not cost or member.peeks:
                return None
            keys = names.get(algorithm.name)
            entry = keys.get(member.key) if keys is not None else None
            if entry is None:
                step = algorithm.step(EMPTY, now, cost)
                new += 1
                inline = inline or algorithm.inline
            elif entry.algorithm is algorithm and entry.time * algorithm.tick <= now:
                step = algorithm.step(entry, now, cost)
                table.touch(entry)
            else:
                return None
            if not step[0]:
                return None
            steps.append(step)
            entries.append(entry)
        if new:
            table.make_room(new, now, inline)
            for entry in entries:
                if entry is not None and not table.holds(entry):
                    return None
        outcomes: list[Outcome] = []
        for i in range(len(steps)):
            member = members[i]
            algorithm = member.algorithm
            _, at, a, b, remaining, wait, reset = steps[i]
            entry = entries[i]
            if entry is not None:
                entry.put(at, a, b, member.cost)
            else:
                entry = TableEntry(member.key, algorithm, at, 0, 0, ListLog() if algorithm.keeps_log else None)
                entry.put(at, a, b, member.cost)
                table.insert(entry, now + reset)
            outcomes.append(Outcome(Decision(algorithm, True, remaining, wait, reset, None), at))
        return outcomes

    def close(self) -> None:
        with self.mutex:
            self.closed = True
            self.table.clear()
            self.records.clear()


def closed_error() -> StoreClosedError:
    return StoreClosedError("this memory store is closed")


@final
class TableCounter(StoredCounter):
    """A counter of the table within one request."""

    def __init__(self, table: LruTable, key: str, entry: TableEntry | None, now: i64) -> None:
        self.table = table
        self.key = key
        self.now = now
        self.entry = entry
        self.state = entry
        self.writer = entry.algorithm if entry is not None else None

    @property
    def is_shared(self) -> bool:
        return False

    def replace(self, state: State, algorithm: Algorithm) -> None:
        if self.entry is not None:
            self.table.remove(self.entry)
        entry = TableEntry(self.key, algorithm, state.time, state.a, state.b, state.log)
        self.table.insert(entry, algorithm.available_at(entry, self.now, 0))
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
