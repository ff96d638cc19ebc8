"""Usage history in SQLite, MariaDB, MySQL or PostgreSQL.

An `add` locks the one row of its prefix in `crestgate_usage_turns`, so writes are serialised, and the number
of subjects can be bounded exactly; then it adds to the rows of the minute and of the hour, in the order of their keys.
The number of statements is small and does not depend on the number of rules. Readers do not wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import Connection, Table, and_, bindparam, delete, func, insert, or_, select
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.exc import IntegrityError

from crestgate.databases.engines import abandon, open_engine
from crestgate.databases.names import short_name
from crestgate.databases.transactions import SqlConflictError, Transactions
from crestgate.errors import StoreClosedError
from crestgate.history.names import decode_name, encode_name, merge_counts, top_names
from crestgate.history.port import (
    MAX_POINTS,
    MAX_USES,
    Order,
    Step,
    SubjectPoint,
    SubjectUsage,
    TopRules,
    UsagePoint,
)
from crestgate.history.spans import (
    HOUR,
    MINUTE,
    SECONDS,
    Span,
    begin_us,
    check_points,
    covering_spans,
    expired_before_us,
)
from crestgate.runtime.fork_safety import renew_after_fork
from crestgate.runtime.url_options import Options
from crestgate.stores.sql.factory import open_driver
from crestgate.stores.sql.schema import usage, usage_subjects, usage_turns
from crestgate.stores.sql.session import Driver
from crestgate.stores.sql.version import prepare_database

__all__ = ["SqlHistory", "open_sql_history"]

TIMEOUT_MS = 5000
POOL_SIZE = 2
SWEEP_BATCH = 1000
"""Rows that one transaction deletes; it may delete one minute's rows more."""
BATCH_SIZE = 200
"""Subjects in one statement."""
LAST_USE = 0
"""The step of rows that store when a counter was last used, not the usage of a subject."""
T = TypeVar("T")


def open_sql_history(options: Options) -> SqlHistory:
    """The history of a `sqlite://`, `mysql://`, `mariadb://` or `postgresql://` URL; its tables are created if
    there are none."""
    prefix, pool_size = options.prefix(), options.pool_size() or POOL_SIZE
    timeout = options.timeout_ms(TIMEOUT_MS) / 1000
    driver = open_driver(options)
    driver.option = "--rules-store"
    prepare_database(driver, timeout)
    return SqlHistory(driver, prefix=prefix, timeout=timeout, pool_size=pool_size)


class SqlHistory:
    """The usage under `prefix` in the database of `driver`, whose tables exist. `timeout` is in seconds, for one reply
    of the database and for lock conflicts to end."""

    def __init__(self, driver: Driver, *, prefix: str, timeout: float, pool_size: int = POOL_SIZE) -> None:
        self.title = driver.name
        self.prefix = short_name(prefix)
        self.engine = open_engine(driver, timeout, pool_size)
        self._transactions = Transactions(self.engine, self.title, timeout)
        self._closed = False
        renew_after_fork(self)

    def add(
        self, minute_us: int, rules: Mapping[str, tuple[int, int, int]], subjects: Mapping[str, tuple[int, int]]
    ) -> None:
        self._check_open()
        by_rule, by_subject = merge_counts(rules), merge_counts(subjects)
        if by_rule or by_subject:
            self._transactions.write(lambda connection: self._add(connection, minute_us, by_rule, by_subject))

    def usage(self, since_us: int, until_us: int, step: Step, rule: str | None = None) -> list[UsagePoint]:
        seconds = SECONDS[step]
        query = select(usage).where(self._within(usage, Span(seconds, begin_us(since_us, seconds), until_us)))
        if rule is not None:
            query = query.where(usage.c.rule == encode_name(rule))
        query = query.order_by(usage.c.at_us, usage.c.rule).limit(MAX_POINTS + 1)
        rows = self._read(lambda connection: connection.execute(query).all())
        check_points(len(rows))
        return [UsagePoint(row.at_us, decode_name(row.rule), row.allowed, row.denied, row.shadowed) for row in rows]

    def top_rules(self, since_us: int, until_us: int, step: Step, limit: int) -> TopRules:
        seconds = SECONDS[step]
        within = self._within(usage, Span(seconds, begin_us(since_us, seconds), until_us))
        sums = [func.sum(usage.c[name]) for name in ("allowed", "denied", "shadowed")]
        by_time = select(usage.c.at_us, *sums).where(within).group_by(usage.c.at_us).order_by(usage.c.at_us)
        number = select(func.count(usage.c.rule.distinct())).where(within)
        top = select(usage.c.rule).where(within).group_by(usage.c.rule)
        top = top.order_by(sums[1].desc(), sums[0].desc(), usage.c.rule).limit(limit)
        points = select(usage).where(within).order_by(usage.c.at_us, usage.c.rule)

        def read(connection: Connection) -> tuple[Sequence[Any], Sequence[Any], int]:
            names = connection.execute(top).scalars().all()
            of_top = connection.execute(points.where(usage.c.rule.in_(names))).all() if names else ()
            return connection.execute(by_time).all(), of_top, connection.execute(number).scalar() or 0

        totals, rows, rules = self._read(read)
        return TopRules(
            [
                UsagePoint(at_us, "", int(allowed), int(denied), int(shadow))
                for at_us, allowed, denied, shadow in totals
            ],
            [UsagePoint(row.at_us, decode_name(row.rule), row.allowed, row.denied, row.shadowed) for row in rows],
            rules,
        )

    def top(self, since_us: int, until_us: int, limit: int = 10, by: Order = "requests") -> list[SubjectUsage]:
        self._check_open()
        spans = covering_spans(since_us, until_us)
        if not spans or limit < 1:
            return []
        table = usage_subjects
        allowed, denied = func.sum(table.c.allowed), func.sum(table.c.denied)
        query = select(table.c.subject, allowed, denied).where(or_(*(self._within(table, span) for span in spans)))
        query = query.group_by(table.c.subject).limit(limit)
        if by == "denied":
            query = query.having(denied > 0).order_by(denied.desc(), table.c.subject)
        else:
            query = query.order_by((allowed + denied).desc(), table.c.subject)
        rows = self._read(lambda connection: connection.execute(query).all())
        return [SubjectUsage(decode_name(name), int(yes), int(no)) for name, yes, no in rows]

    def subject(self, since_us: int, until_us: int, step: Step, subject: str) -> list[SubjectPoint]:
        seconds = SECONDS[step]
        table = usage_subjects
        span = Span(seconds, begin_us(since_us, seconds), until_us)
        query = select(table.c.at_us, table.c.allowed, table.c.denied).where(
            self._within(table, span), table.c.subject == encode_name(subject)
        )
        query = query.order_by(table.c.at_us).limit(MAX_POINTS + 1)
        rows = self._read(lambda connection: connection.execute(query).all())
        check_points(len(rows))
        return [SubjectPoint(row.at_us, row.allowed, row.denied) for row in rows]

    def add_uses(self, uses: Mapping[str, int]) -> None:
        self._check_open()
        if uses:
            self._transactions.write(lambda connection: self._add_uses(connection, uses))

    def last_uses(self, names: Sequence[str]) -> dict[str, int]:
        times: dict[str, int] = {}
        for start in range(0, len(names), BATCH_SIZE):
            batch = [name.encode() for name in names[start : start + BATCH_SIZE]]
            query = select(usage_subjects.c.subject, usage_subjects.c.at_us).where(
                self._last_use(), usage_subjects.c.subject.in_(batch)
            )
            rows = self._read(partial(_rows, query))
            times.update((subject.decode(), at_us) for subject, at_us in rows)
        return times

    def sweep(self, now_us: int) -> None:
        self._check_open()
        old = self._within(usage_subjects, Span(LAST_USE, -(2**63), expired_before_us(now_us, MINUTE)))
        self._sweep(usage_subjects, old)
        for table in (usage, usage_subjects):
            for seconds in (MINUTE, HOUR):
                old = self._within(table, Span(seconds, -(2**63), expired_before_us(now_us, seconds)))
                self._sweep(table, old)

    def _sweep(self, table: Table, old: Any) -> None:
        while self._transactions.write(partial(_delete_batch, table, old)):
            self._check_open()  # there may be months of rows, and closing does not wait

    def close(self) -> None:
        self._closed = True
        self.engine.dispose()

    def renew(self) -> None:
        """In a forked child."""
        abandon(self.engine)

    # -- inside a transaction ------------------------------------------------------------------------------------

    def _add(
        self,
        connection: Connection,
        minute_us: int,
        rules: Mapping[bytes, tuple[int, ...]],
        subjects: Mapping[bytes, tuple[int, ...]],
    ) -> None:
        self._lock_prefix(connection)
        for seconds in (MINUTE, HOUR):
            key = {"prefix": self.prefix, "step": seconds, "at_us": begin_us(minute_us, seconds)}
            if rules:
                _add_counts(connection, usage, key, rules)
            if subjects:
                self._add_subjects(connection, key, subjects)

    def _lock_prefix(self, connection: Connection) -> None:
        """Lock the row of this prefix."""
        mine = select(usage_turns).where(usage_turns.c.prefix == self.prefix)
        if not connection.execute(mine.with_for_update(nowait=True)).all():
            try:
                connection.execute(insert(usage_turns).values(prefix=self.prefix))
            except IntegrityError:
                raise SqlConflictError from None  # another client has just inserted the row

    def _add_subjects(
        self, connection: Connection, key: dict[str, Any], subjects: Mapping[bytes, tuple[int, ...]]
    ) -> None:
        """Keep the top subjects, and delete the others."""
        table = usage_subjects
        here = and_(*(table.c[name] == value for name, value in key.items()))
        query = select(table.c.subject, table.c.allowed, table.c.denied).where(here)
        stored: dict[bytes, tuple[int, int]] = {row.subject: (row[1], row[2]) for row in connection.execute(query)}
        counts = dict(stored)
        for name, (allowed, denied) in subjects.items():
            known = stored.get(name, (0, 0))
            counts[name] = (known[0] + allowed, known[1] + denied)
        top = top_names(counts)
        dropped = sorted(stored.keys() - top)
        for start in range(0, len(dropped), BATCH_SIZE):
            batch = dropped[start : start + BATCH_SIZE]
            connection.execute(delete(table).where(here, table.c.subject.in_(batch)))
        retained = {name: numbers for name, numbers in subjects.items() if name in top}
        if retained:
            _add_counts(connection, table, key, retained)

    def _add_uses(self, connection: Connection, uses: Mapping[str, int]) -> None:
        """Replace the rows of counters that were used since: the time is part of the key."""
        self._lock_prefix(connection)
        table = usage_subjects
        query = select(table.c.subject, table.c.at_us).where(self._last_use())
        known = {subject.decode(): at_us for subject, at_us in connection.execute(query)}
        later = {name: at_us for name, at_us in uses.items() if at_us > known.get(name, -1)}
        replaced = [{"old_name": name.encode(), "old_us": known[name]} for name in later if name in known]
        if replaced:
            one = and_(table.c.at_us == bindparam("old_us"), table.c.subject == bindparam("old_name"))
            connection.execute(delete(table).where(self._last_use(), one), replaced)
        key = {"prefix": self.prefix, "step": LAST_USE, "allowed": 0, "denied": 0}
        rows = [{**key, "at_us": at_us, "subject": name.encode()} for name, at_us in later.items()]
        if rows:
            connection.execute(insert(table), rows)
        too_many = select(table.c.at_us).where(self._last_use()).order_by(table.c.at_us.desc()).offset(MAX_USES)
        last_us = connection.execute(too_many.limit(1)).scalar()
        if last_us is not None:
            connection.execute(delete(table).where(self._last_use(), table.c.at_us <= last_us))

    # -- helpers ----------------------------------------------------------------------------------------------------

    def _last_use(self) -> Any:
        return and_(usage_subjects.c.prefix == self.prefix, usage_subjects.c.step == LAST_USE)

    def _within(self, table: Table, span: Span) -> Any:
        at = table.c.at_us
        first_us, until_us = (max(-(2**63), min(moment, 2**63 - 1)) for moment in span[1:])
        return and_(table.c.prefix == self.prefix, table.c.step == span.seconds, at >= first_us, at < until_us)

    def _read(self, action: Callable[[Connection], T]) -> T:
        self._check_open()
        return self._transactions.read(action)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosedError(f"{self.title}: this history was closed; open it again")


def _add_counts(
    connection: Connection, table: Table, key: Mapping[str, Any], counts: Mapping[bytes, tuple[int, ...]]
) -> None:
    """Add to the rows of these names, and insert the missing ones."""
    name, *numbers = (column.name for column in list(table.c)[len(key) :])
    rows = [{**key, name: value, **dict(zip(numbers, values, strict=True))} for value, values in counts.items()]
    connection.execute(_upsert(connection.dialect.name, table, numbers), rows)


def _upsert(dialect: str, table: Table, numbers: list[str]) -> Any:
    if dialect == "mysql":
        statement = mysql.insert(table)
        return statement.on_duplicate_key_update({one: table.c[one] + statement.inserted[one] for one in numbers})
    other = sqlite.insert(table) if dialect == "sqlite" else postgresql.insert(table)
    sums = {one: table.c[one] + other.excluded[one] for one in numbers}
    return other.on_conflict_do_update(index_elements=list(table.primary_key), set_=sums)


def _rows(query: Any, connection: Connection) -> list[tuple[bytes, int]]:
    return [(subject, at_us) for subject, at_us in connection.execute(query)]


def _delete_batch(table: Table, old: Any, connection: Connection) -> bool:
    """Delete the oldest of these rows; whether there are more."""
    query = select(table.c.at_us).where(old).order_by(table.c.at_us).offset(SWEEP_BATCH).limit(1)
    last_us = connection.execute(query).scalar()
    oldest = delete(table).where(old)
    connection.execute(oldest if last_us is None else oldest.where(table.c.at_us <= last_us))
    return last_us is not None
