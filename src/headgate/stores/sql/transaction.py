"""One batch as a conversation with the database: what is said in each round trip, and what comes of the answers.

No I/O happens here. `transact` is a generator: it yields what to send and is sent what came back, and whoever runs
it owns the connection, the deadline and the errors.

    1st round trip   begin; records of what is decided once, if any: rows for those that have none, lock them in order;
                     rows for counters that may have none; lock all rows in order; ends of the logs; the time
    (another)        more of a log, when its ends did not tell enough (seldom)
    2nd round trip   the changed rows and entries; commit

The time is read after the locks are held, so that it never runs backwards from one holder to the next. A batch that
changes nothing is rolled back, and one that only looks takes no locks at all.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple

from headgate.stores.deciding import decide
from headgate.stores.keeping import pack_kept
from headgate.stores.port import Replies
from headgate.stores.records import answered_before, grouped
from headgate.stores.sql.cell import NOTHING, Row, SqlCell, Writers
from headgate.stores.sql.dialect import Dialect, read_row
from headgate.stores.sql.partial_log import UNREAD, Ends, Entries, NeedMore
from headgate.stores.sql.plan import LONGEST_SHOWN, Counter, Plan
from headgate.stores.sql.records import SqlRecord, SqlRecords, read_records

__all__ = ["Conversation", "Gone", "Trip", "transact"]

FRONT = 64
"""Oldest entries that are read of a log, besides as many as the batch may want to see freed (up to MOST_FREED)."""
MOST_FREED = 1_000
BACK = 2
BACK_FOR_GIVING = 64
"""Newest entries that are read; more when something is given back, which may have been the newest."""
MOST_DELETED = 1_000
"""Entries deleted at once: a log that has a hundred thousand to drop must not keep its caller waiting for it."""


class Trip(NamedTuple):
    """What is sent at once. When it `commits` and no answer comes, nobody knows whether it was carried out."""

    statements: list[str]
    commits: bool = False


Conversation = Generator[Trip, list[list[str]], Replies]
"""Yields trips; is sent, for each SELECT of the trip, its rows as text."""


Changes = list[tuple[SqlCell, Row]]
"""The counters that were changed, and their new rows."""


class Gone(Exception):  # noqa: N818 - no error: the batch begins anew
    """Rows that were known to be there have been swept meanwhile."""

    def __init__(self, ids: Sequence[str]) -> None:
        super().__init__("rows were swept")
        self.ids = ids


class Context(NamedTuple):
    """What a conversation needs besides its batch."""

    dialect: Dialect
    writers: Writers
    clock: Callable[[], int] | None
    """This machine's time, or None where the database's counts."""


def transact(plan: Plan, context: Context, missing: Sequence[Counter]) -> Conversation:
    """Decide a batch. `missing` are the counters that need a row and may not have one (or all that need one)."""
    if plan.only_looks:
        return (yield from _look(plan, context))
    dialect = context.dialect
    opening = [dialect.begin]
    prefix = plan.identities.prefix
    if plan.records:
        ids = sorted(set(plan.records.values()))
        opening += [dialect.insert_records(ids, prefix[:LONGEST_SHOWN].hex()), dialect.records(ids)]
    if missing:
        opening.append(dialect.insert_missing([counter.shown(prefix) for counter in missing]))
    reading = _Reading(plan, context)
    yield from reading.read(opening, locking=True)
    gone = [c.digits for c in plan.counters.values() if c.charges and c.digits not in reading.rows]
    gone += [digits for digits in plan.records.values() if digits not in reading.records]
    if gone:
        raise Gone(gone)
    replies, changes = yield from reading.decide()
    if changes or reading.keeps():
        yield Trip([*reading.writes(changes), "COMMIT"], commits=True)
    else:
        yield Trip(["ROLLBACK"])
    return replies


def _look(plan: Plan, context: Context) -> Conversation:
    """A batch of peeks: rows and logs as of one instant, and no locks."""
    reading = _Reading(plan, context)
    if not plan.logs:
        yield from reading.read([], locking=False)
        try:
            return reading.attempt()[0]
        except NeedMore:
            pass  # a counter that was a log before its limit was changed: look again, at one instant
    yield from reading.read(list(context.dialect.snapshot), locking=False)
    replies, _ = yield from reading.decide()
    yield Trip(["COMMIT"])
    return replies


class _Reading:
    """The rows and entries of a batch, as far as they were read."""

    def __init__(self, plan: Plan, context: Context) -> None:
        self.plan = plan
        self.dialect = context.dialect
        self.writers = context.writers
        self.clock = context.clock
        self.rows: dict[str, Row] = {}
        self.ends: dict[str, Ends] = {}
        self.deeper: set[str] = set()
        self.records: dict[str, SqlRecord] = {}
        self.decided: SqlRecords | None = None
        """What was decided once by the last attempt, and is to be kept."""
        self.now = 0

    def read(self, opening: list[str], locking: bool) -> Generator[Trip, list[list[str]], None]:
        dialect = self.dialect
        logs = self.plan.logs
        selects = [select for number, counter in enumerate(logs) for select in self.ends_of(number, counter)]
        united = dialect.together(selects)
        counters = list(self.plan.counters)
        statements = [*opening, *([dialect.rows(counters, locking)] if counters else []), *united]
        if self.clock is None:
            statements.append(f"SELECT {dialect.line(dialect.clock)}")
        answers = yield Trip(statements)
        if self.plan.records:
            self.records = read_records(answers[0])
            answers = answers[1:]
        if not counters:
            answers = [[], *answers]
        self.rows = dict([read_row(line) for line in answers[0]])
        self.now = int(answers[-1][0]) if self.clock is None else self.clock()
        self.plan.now = self.now
        self.take_entries(logs, answers[1 : 1 + len(united)], whole=False)

    def ends_of(self, number: int, counter: Counter, after: int | None = None) -> list[str]:
        """What to ask for: the ends of a log (the older one after a stored tick), and what give-backs name."""
        digits = counter.digits
        return [
            self.dialect.front(number, digits, _most(counter), after),
            self.dialect.back(number, digits, BACK_FOR_GIVING if counter.ticks else BACK),
            *(self.dialect.single(number, digits, tick) for tick in counter.ticks),
        ]

    def take_entries(self, logs: Sequence[Counter], answers: Sequence[Sequence[str]], whole: bool) -> None:
        parts: list[dict[str, Entries]] = [{"f": [], "b": [], "m": []} for _ in logs]
        for answer in answers:
            for line in answer:
                number, part, tick, cost = line.split(",")
                parts[int(number)][part].append((int(tick), int(cost)))
        for counter, part_of in zip(logs, parts, strict=True):
            front, found = sorted(part_of["f"]), dict(part_of["m"])
            moved = self.rows.get(counter.digits, NOTHING).moved
            asked = [tick - moved for tick in counter.ticks]
            middle = [(tick, found.get(tick, 0)) for tick in asked]
            is_whole = whole or len(front) < _most(counter)
            self.ends[counter.digits] = Ends(front, sorted(part_of["b"]), middle, is_whole)

    def decide(self) -> Generator[Trip, list[list[str]], tuple[Replies, Changes]]:
        """Decide, and read on as often as a log needs it: once with a sum for what has expired, then all of it."""
        while True:
            try:
                return self.attempt()
            except NeedMore as need:
                counter, cutoff = self.plan.counters[need.digits], need.cutoff
            whole = cutoff is None or counter.digits in self.deeper
            if cutoff is None or whole:
                selects = [self.dialect.whole(0, counter.digits)]
            else:
                self.deeper.add(counter.digits)
                selects = [self.dialect.summed(0, counter.digits, cutoff), *self.ends_of(0, counter, cutoff)]
            self.take_entries([counter], (yield Trip(self.dialect.together(selects))), whole)

    def attempt(self) -> tuple[Replies, Changes]:
        """Decide from what was read. NeedMore when that does not suffice; nothing was changed then."""
        now = self.now
        cells: dict[str, SqlCell] = {}
        for digits in self.plan.counters:
            row, ends = self.rows.get(digits, NOTHING), self.ends.get(digits, UNREAD)
            cells[digits] = SqlCell(digits, row, ends, self.writers, now)
        replies: Replies = []
        if self.plan.records:
            replies = self.attempt_once(cells, now)
        else:
            for request, place in zip(self.plan.batch, self.plan.places, strict=True):
                replies.append(decide(request.op, request.members, [cells[digits] for digits in place], now))
        # A counter without a row was only looked at, reset or given back to: nothing to write.
        return replies, [(c, c.row()) for c in cells.values() if c.is_changed and c.digits in self.rows]

    def attempt_once(self, cells: dict[str, SqlCell], now: int) -> Replies:
        """A batch with requests that are decided once."""
        records = self.decided = SqlRecords(self.records, self.plan.records)
        replies: Replies = []
        for group in grouped(self.plan.batch):
            first = len(replies)
            once = group[0].once
            if once is not None and answered_before(records, once, group[0].op, now):
                replies += [[] for _ in group]
                continue
            for position, request in enumerate(group, first):
                place = self.plan.places[position]
                replies.append(decide(request.op, request.members, [cells[digits] for digits in place], now))
            if once is not None:
                records.keep(once.name, pack_kept(once, now, replies[first:]), now)
        return replies

    def keeps(self) -> bool:
        """Whether a record has changed."""
        return self.decided is not None and len(self.decided.changed) > 0

    def writes(self, changes: Changes) -> list[str]:
        """The statements that keep what was decided."""
        dialect = self.dialect
        entries = []
        statements = [] if self.decided is None else self.decided.writes(dialect)
        for cell, row in changes:
            log = cell.log()
            for tick, cost in log.changes.items() if log is not None else ():
                if cost and tick > row.dropped:
                    entries.append((cell.digits, tick, cost))
                elif tick > row.dropped:
                    statements.append(dialect.delete_entry(cell.digits, tick))
            if row.dropped > self.rows[cell.digits].dropped:
                statements.append(dialect.delete_entries(cell.digits, row.dropped, MOST_DELETED))
        if changes:
            statements.append(dialect.write_rows([(cell.digits, row) for cell, row in changes]))
        if entries:
            statements.append(dialect.write_entries(entries))
        return statements


def _most(counter: Counter) -> int:
    """How many of a log's oldest entries to read."""
    return FRONT + min(counter.cost, MOST_FREED)
