# mypyc: compile
"""The transaction of one batch: the statements of each round trip, and the decisions from their results.

No I/O happens here. `transact` is a generator: it yields statements and is sent their rows; its caller owns the
connection, the deadline and the errors.

    1st round trip   begin; idempotency records, if any: insert missing rows, lock them in order; insert missing rows
                     of counters; lock all rows in order; read the ends of the logs, and the time
    (another)        more of a log, when its ends do not suffice (seldom)
    2nd round trip   the changed rows and entries; commit

The time is read while the locks are held, so that it never runs backwards from one holder to the next. A batch that
changes nothing is rolled back, and a read-only one takes no locks.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple

from crestgate.stores.decide import decide
from crestgate.stores.idempotency import group_by_record, replay_or_claim
from crestgate.stores.idempotency_codec import encode_record
from crestgate.stores.port import BatchOutcomes
from crestgate.stores.sql.batch_plan import MAX_SHOWN_BYTES, BatchPlan, PlannedCounter
from crestgate.stores.sql.counter_row import EMPTY_ROW, CounterRow, RowCounter, RowWriters
from crestgate.stores.sql.dialect import Dialect, read_row
from crestgate.stores.sql.idempotency import SqlRecord, SqlRecords, read_records
from crestgate.stores.sql.partial_log import UNREAD, Entries, LogEnds, NeedMoreEntriesError

__all__ = ["RoundTrip", "RoundTrips", "SweptRowsError", "transact"]

FRONT = 64
"""Oldest entries read of a log, besides as many as the batch may need freed (up to MAX_FREED)."""
MAX_FREED = 1_000
BACK = 2
BACK_FOR_GIVE_BACK = 64
"""Newest entries read; more for a give-back, which may remove the newest."""
MAX_DELETED = 1_000
"""Entries deleted at once: a log with a hundred thousand to delete must not delay its request."""


class RoundTrip(NamedTuple):
    """Statements sent at once. If it `commits` and the result is lost, it is unknown whether it was carried out."""

    statements: list[str]
    commits: bool = False


RoundTrips = Generator[RoundTrip, list[list[str]], BatchOutcomes]
"""Yields round trips; is sent, for each SELECT, its rows as text."""


Changes = list[tuple[RowCounter, CounterRow]]
"""The changed counters, and their new rows."""


class SweptRowsError(Exception):
    """Rows that were known to exist have been deleted by a sweep; the batch is to be repeated."""

    def __init__(self, ids: Sequence[str]) -> None:
        super().__init__("rows were swept")
        self.ids = ids


class TransactionContext(NamedTuple):
    """What a transaction needs besides its batch."""

    dialect: Dialect
    writers: RowWriters
    clock: Callable[[], int] | None
    """This machine's time, or None where the database's clock is used."""


def transact(plan: BatchPlan, context: TransactionContext, missing: Sequence[PlannedCounter]) -> RoundTrips:
    """Decide a batch. `missing` are the counters whose rows may have to be inserted."""
    if plan.is_read_only:
        return (yield from _read_only(plan, context))
    dialect = context.dialect
    opening = [dialect.begin]
    prefix = plan.counter_ids.prefix
    if plan.records:
        ids = sorted(set(plan.records.values()))
        opening += [dialect.insert_records(ids, prefix[:MAX_SHOWN_BYTES].hex()), dialect.records(ids)]
    if missing:
        opening.append(dialect.insert_missing([counter.columns(prefix) for counter in missing]))
    reader = _BatchReader(plan, context)
    yield from reader.read(opening, locking=True)
    swept = [c.hex_id for c in plan.counters.values() if c.charges and c.hex_id not in reader.rows]
    swept += [hex_id for hex_id in plan.records.values() if hex_id not in reader.records]
    if swept:
        raise SweptRowsError(swept)
    replies, changes = yield from reader.decide()
    if changes or reader.has_record_changes():
        yield RoundTrip([*reader.writes(changes), "COMMIT"], commits=True)
    else:
        yield RoundTrip(["ROLLBACK"])
    return replies


def _read_only(plan: BatchPlan, context: TransactionContext) -> RoundTrips:
    """A batch of peeks: a snapshot, without locks."""
    reader = _BatchReader(plan, context)
    if not plan.logs:
        yield from reader.read([], locking=False)
        try:
            return reader.attempt()[0]
        except NeedMoreEntriesError:
            pass  # a counter that was a log before its limit was changed: read it again, on a snapshot
    yield from reader.read(list(context.dialect.snapshot), locking=False)
    replies, _ = yield from reader.decide()
    yield RoundTrip(["COMMIT"])
    return replies


class _BatchReader:
    """What was read of the rows and logs of a batch, and the decisions from it."""

    def __init__(self, plan: BatchPlan, context: TransactionContext) -> None:
        self.plan = plan
        self.dialect = context.dialect
        self.writers = context.writers
        self.clock = context.clock
        self.rows: dict[str, CounterRow] = {}
        self.ends: dict[str, LogEnds] = {}
        self.deeper: set[str] = set()
        self.records: dict[str, SqlRecord] = {}
        self.changed_records: SqlRecords | None = None
        """The idempotency records as the last attempt left them."""
        self.now = 0

    def read(self, opening: list[str], locking: bool) -> Generator[RoundTrip, list[list[str]], None]:
        dialect = self.dialect
        logs = self.plan.logs
        selects = [select for number, counter in enumerate(logs) for select in self.ends_of(number, counter)]
        combined = dialect.combine(selects)
        counters = list(self.plan.counters)
        statements = [*opening, *([dialect.rows(counters, locking)] if counters else []), *combined]
        if self.clock is None:
            statements.append(f"SELECT {dialect.line(dialect.clock)}")
        results = yield RoundTrip(statements)
        if self.plan.records:
            self.records = read_records(results[0])
            results = results[1:]
        if not counters:
            results = [[], *results]
        self.rows = dict([read_row(line) for line in results[0]])
        self.now = int(results[-1][0]) if self.clock is None else self.clock()
        self.plan.now = self.now
        self.add_entries(logs, results[1 : 1 + len(combined)], whole=False)

    def ends_of(self, number: int, counter: PlannedCounter, after: int | None = None) -> list[str]:
        """Selects of the ends of a log (the older one after a stored tick), and of the entries that give-backs name."""
        hex_id = counter.hex_id
        return [
            self.dialect.front(number, hex_id, _front_entries(counter), after),
            self.dialect.back(number, hex_id, BACK_FOR_GIVE_BACK if counter.ticks else BACK),
            *(self.dialect.single(number, hex_id, tick) for tick in counter.ticks),
        ]

    def add_entries(self, logs: Sequence[PlannedCounter], results: Sequence[Sequence[str]], whole: bool) -> None:
        parts: list[dict[str, Entries]] = [{"f": [], "b": [], "m": []} for _ in logs]
        for result in results:
            for line in result:
                number, part, tick, cost = line.split(",")
                parts[int(number)][part].append((int(tick), int(cost)))
        for counter, part_of in zip(logs, parts, strict=True):
            front, costs = sorted(part_of["f"]), dict(part_of["m"])
            moved = self.rows.get(counter.hex_id, EMPTY_ROW).moved
            ticks = [tick - moved for tick in counter.ticks]
            middle = [(tick, costs.get(tick, 0)) for tick in ticks]
            is_whole = whole or len(front) < _front_entries(counter)
            self.ends[counter.hex_id] = LogEnds(front, sorted(part_of["b"]), middle, is_whole)

    def decide(self) -> Generator[RoundTrip, list[list[str]], tuple[BatchOutcomes, Changes]]:
        """Decide, and read more of a log if needed: first with a sum of what has expired, then all of it."""
        while True:
            try:
                return self.attempt()
            except NeedMoreEntriesError as need:
                counter, cutoff = self.plan.counters[need.hex_id], need.cutoff
            whole = cutoff is None or counter.hex_id in self.deeper
            if cutoff is None or whole:
                selects = [self.dialect.whole(0, counter.hex_id)]
            else:
                self.deeper.add(counter.hex_id)
                selects = [self.dialect.summed(0, counter.hex_id, cutoff), *self.ends_of(0, counter, cutoff)]
            self.add_entries([counter], (yield RoundTrip(self.dialect.combine(selects))), whole)

    def attempt(self) -> tuple[BatchOutcomes, Changes]:
        """Decide from what was read. NeedMoreEntriesError, and nothing is changed, when that does not suffice."""
        now = self.now
        counters: dict[str, RowCounter] = {}
        for hex_id in self.plan.counters:
            row, ends = self.rows.get(hex_id, EMPTY_ROW), self.ends.get(hex_id, UNREAD)
            counters[hex_id] = RowCounter(hex_id, row, ends, self.writers, now)
        replies: BatchOutcomes = []
        if self.plan.records:
            replies = self.attempt_idempotent(counters, now)
        else:
            for request, ids in zip(self.plan.batch, self.plan.member_ids, strict=True):
                replies.append(decide(request.op, request.members, [counters[hex_id] for hex_id in ids], now))
        # A counter without a row was only read, reset or given back to: nothing to write.
        return replies, [(c, c.row()) for c in counters.values() if c.is_changed and c.hex_id in self.rows]

    def attempt_idempotent(self, counters: dict[str, RowCounter], now: int) -> BatchOutcomes:
        """The same for a batch with idempotent requests."""
        records = self.changed_records = SqlRecords(self.records, self.plan.records)
        replies: BatchOutcomes = []
        for group in group_by_record(self.plan.batch):
            first = len(replies)
            record = group[0].record
            if record is not None and replay_or_claim(records, record, group[0].op, now):
                replies += [[] for _ in group]
                continue
            for position, request in enumerate(group, first):
                ids = self.plan.member_ids[position]
                replies.append(decide(request.op, request.members, [counters[hex_id] for hex_id in ids], now))
            if record is not None:
                records.put(record.name, encode_record(record, now, replies[first:]), now)
        return replies

    def has_record_changes(self) -> bool:
        """Whether an idempotency record has changed."""
        return self.changed_records is not None and len(self.changed_records.changed) > 0

    def writes(self, changes: Changes) -> list[str]:
        """The statements that write the changes."""
        dialect = self.dialect
        entries = []
        statements = [] if self.changed_records is None else self.changed_records.writes(dialect)
        for counter, row in changes:
            log = counter.log()
            for tick, cost in log.changes.items() if log is not None else ():
                if cost and tick > row.dropped:
                    entries.append((counter.hex_id, tick, cost))
                elif tick > row.dropped:
                    statements.append(dialect.delete_entry(counter.hex_id, tick))
            if row.dropped > self.rows[counter.hex_id].dropped:
                statements.append(dialect.delete_entries(counter.hex_id, row.dropped, MAX_DELETED))
        if changes:
            statements.append(dialect.write_rows([(counter.hex_id, row) for counter, row in changes]))
        if entries:
            statements.append(dialect.write_entries(entries))
        return statements


def _front_entries(counter: PlannedCounter) -> int:
    """How many of a log's oldest entries to read."""
    return FRONT + min(counter.cost, MAX_FREED)
