"""Rule repository in a SQL database: SQLite, MariaDB, MySQL or PostgreSQL.

`crestgate_revisions` has one row for each prefix. A write locks it, so writes are serialized; it reads what its edits
touch, calls `plan_write`, stores the plan under the next revision, and commits. `changes` reads the revision and the
records that are newer than what its caller has seen, in one snapshot; usually there are none, and it reads one row.
A deleted record stays for a day as a row without a body, for readers that have not seen its deletion.

A promoted replica may lack the last writes, and a backup the last day's: revisions are then assigned again. So
`crestgate_writes` has a nonce for each of the last 10,000 writes (see seen_nonces.py).

PostgreSQL notifies other processes of a write (see notifications.py); the other databases are polled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import sha256
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import Connection, and_, delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from crestgate.databases.engines import abandon, clock_of, open_engine
from crestgate.databases.names import short_name
from crestgate.databases.transactions import SqlConflictError, Transactions
from crestgate.errors import ConfigError, StoreClosedError, ValidationError
from crestgate.rules.port import Actor, AuditEntry, AuditQuery, Changes, Edit, Kind, Record
from crestgate.rules.storage.seen_nonces import MAX_WRITES, SeenNonces, create_nonce
from crestgate.rules.storage.sql import retention
from crestgate.rules.storage.sql.notifications import PostgresChangeListener
from crestgate.rules.storage.sql.rows import (
    audit_row,
    bytes_of,
    check_edit,
    cut,
    digest,
    entry_of,
    lenient_name_of,
    name_of,
    record_of,
    record_row,
    split_records,
)
from crestgate.rules.storage.write_rules import StoredState, WritePlan, plan_expiry, plan_write
from crestgate.runtime.fork_safety import renew_after_fork
from crestgate.runtime.url_options import Options
from crestgate.stores.sql.factory import open_driver
from crestgate.stores.sql.schema import MAX_NAME_BYTES, MAX_SUBJECT_BYTES, audit, records, revisions, writes
from crestgate.stores.sql.session import Driver
from crestgate.stores.sql.version import prepare_database

__all__ = ["SqlRepository", "open_sql_repository"]

TIMEOUT_MS = 5000
MAX_PER_STATEMENT = 200
"""Ids or claims in one statement."""
T = TypeVar("T")
Holders = dict[str, list[Record]]


def open_sql_repository(options: Options) -> SqlRepository:
    """The rules of a `sqlite://`, `mysql://`, `mariadb://` or `postgresql://` URL. Connects immediately, so
    that a wrong URL fails now, and creates the tables if there are none."""
    prefix, pool_size = options.prefix(), options.pool_size()
    timeout = options.timeout_ms(TIMEOUT_MS) / 1000
    driver = open_driver(options)
    driver.option = "--rules-store"
    prepare_database(driver, timeout)
    return SqlRepository(driver, prefix=prefix, timeout=timeout, pool_size=pool_size)


class Mark(NamedTuple):
    """The revision of a prefix, and its retention state."""

    revision: int = 0
    compacted: int = 0
    swept_us: int = 0
    nonce: str | None = None
    """Of the write that made the revision; None if that was an older Crestgate."""

    def columns(self) -> dict[str, int]:
        return {"revision": self.revision, "compacted": self.compacted, "swept_us": self.swept_us}


class SqlRepository:
    """The records under `prefix` in the database of `driver`, whose tables exist. See port.py for the guarantees.
    `timeout` is in seconds, for one response of the database and for waiting on locks."""

    def __init__(self, driver: Driver, *, prefix: str, timeout: float, pool_size: int | None = None) -> None:
        self.title = driver.name
        self.prefix = short_name(prefix)
        self.engine = open_engine(driver, timeout, pool_size)
        self.clock = clock_of(self.engine)
        self.channel: str | None = None
        self._seen = SeenNonces()
        self._transactions = Transactions(self.engine, self.title, timeout)
        self._listener: PostgresChangeListener | None = None
        if self.engine.dialect.name == "postgresql":
            self.channel = f"crestgate_{sha256(self.prefix).hexdigest()[:32]}"
            self._listener = PostgresChangeListener(driver, self.channel, timeout)
        self._closed = False
        renew_after_fork(self)

    # -- reading ----------------------------------------------------------------------------------------------------

    def get(self, kind: Kind, record_id: str) -> Record | None:
        query = select(records).where(*self._not_deleted(kind), records.c.id == bytes_of(record_id))
        found = self._records(query)
        return found[0] if found else None

    def list(self, kind: Kind, *, prefix: str = "", after: str = "", limit: int = 1000) -> Sequence[Record]:
        query = select(records).where(*self._not_deleted(kind)).order_by(records.c.id).limit(max(_clamp(limit), 0))
        if prefix:
            first = bytes_of(prefix)
            beyond = first[:-1] + bytes([first[-1] + 1])  # UTF-8 never has the byte 0xFF
            query = query.where(records.c.id >= first, records.c.id < beyond)
        if after:
            query = query.where(records.c.id > bytes_of(after))
        return self._records(query)

    def changes(self, since: int) -> Changes | None:
        seen = self._seen.get(since)
        mark, changes = self._read(lambda connection: self._changes(connection, since, seen))
        self._seen.remember(mark.revision, mark.nonce)  # only now: else, after an error, nothing would be new
        return changes

    def audit(self, query: AuditQuery) -> Sequence[AuditEntry]:
        statement = select(audit).where(audit.c.prefix == self.prefix)
        if query.actor is not None:
            statement = statement.where(audit.c.actor == cut(query.actor, MAX_NAME_BYTES))
        if query.subject is not None:
            statement = statement.where(audit.c.subject == cut(query.subject, MAX_SUBJECT_BYTES))
        if query.since_us is not None:
            statement = statement.where(audit.c.at_us >= _clamp(query.since_us))
        if query.until_us is not None:
            statement = statement.where(audit.c.at_us < _clamp(query.until_us))
        if query.before is not None:
            statement = statement.where(audit.c.id < _audit_id(query.before))
        statement = statement.order_by(audit.c.id.desc()).limit(max(_clamp(query.limit), 0))
        rows = self._read(lambda connection: connection.execute(statement).all())
        return [entry_of(row, self.title) for row in rows]

    # -- writing ----------------------------------------------------------------------------------------------------

    def write(self, edits: Sequence[Edit], actor: Actor) -> Sequence[Record | None]:
        self._check_open()
        for edit in edits:
            check_edit(edit)
        if not edits:
            return []
        return self._transactions.write(lambda connection: self._write(connection, edits, actor))

    def note(self, actor: Actor, action: str, *subjects: str) -> None:
        self._check_open()
        self._transactions.write(lambda connection: self._note(connection, actor, action, subjects))

    def purge(self) -> None:
        self._check_open()
        while self._transactions.write(self._purge):  # in small batches, between which others can write
            pass

    def listen(self, wake: Callable[[], None]) -> None:
        self._check_open()
        if self._listener is not None:
            self._listener.add(wake)

    def close(self) -> None:
        self._closed = True
        if self._listener is not None:
            self._listener.close()
        self.engine.dispose()

    def renew(self) -> None:
        """In a forked child: the connections and the listener thread are the parent's."""
        abandon(self.engine)
        if self._listener is not None:
            self._listener.renew()

    # -- inside of a transaction ------------------------------------------------------------------------------------

    def _changes(self, connection: Connection, since: int, seen: str | None) -> tuple[Mark, Changes | None]:
        """`seen` is the nonce of the revision `since`, if it is known."""
        mark = self._mark(connection)
        if mark.revision == since and seen in (None, mark.nonce):
            return mark, None
        self._transactions.snapshot(connection)
        mark = self._mark(connection)
        if mark.revision == since and seen in (None, mark.nonce):
            return mark, None
        ours = seen is None or self._nonce(connection, since) == seen
        complete = since <= 0 or since > mark.revision or since < mark.compacted or not ours
        replaced = since > mark.revision or (not ours and since > mark.revision - MAX_WRITES)
        query = select(records).where(records.c.prefix == self.prefix)
        query = query.where(records.c.deleted == 0) if complete else query.where(records.c.revision > since)
        rows = connection.execute(query.order_by(records.c.revision, records.c.kind, records.c.id)).all()
        found, unreadable = split_records((row for row in rows if not row.deleted), self.title)
        deleted = [lenient_name_of(row.kind, row.id) for row in rows if row.deleted]
        return mark, Changes(mark.revision, complete, found, deleted, replaced, unreadable)

    def _write(self, connection: Connection, edits: Sequence[Edit], actor: Actor) -> Sequence[Record | None]:
        mark, now_us = self._lock_prefix(connection)
        stored = self._stored(connection, edits)
        plan = plan_write(edits, stored, self._holders(connection, edits), now_us, actor)
        touched = {(kind, record_id) for kind, record_id, _ in plan.deletes} | set(_names(edits))
        self._store(connection, mark, now_us, plan, touched)
        return plan.results

    def _note(self, connection: Connection, actor: Actor, action: str, subjects: Sequence[str]) -> None:
        mark, now_us = self._lock_prefix(connection)
        entries = [AuditEntry(now_us, actor.name, actor.address, action, subject) for subject in subjects]
        self._store(connection, mark, now_us, WritePlan(audit=entries), set())

    def _purge(self, connection: Connection) -> bool:
        """Purge old rows if that is due; whether there are more."""
        if not self._marks(connection, locking=True):
            return False  # nothing was ever written
        mark, now_us = self._lock_prefix(connection)
        if not retention.is_due(mark.swept_us, now_us):
            return False
        self._store(connection, mark, now_us, WritePlan(), set())
        return retention.is_due(self._mark(connection).swept_us, now_us)

    def _lock_prefix(self, connection: Connection) -> tuple[Mark, int]:
        """Lock the prefix against other writers; returns its mark, and the time."""
        rows = self._marks(connection, locking=True)
        now_us: int = connection.execute(select(self.clock)).scalar_one()
        if rows:
            return Mark(*rows[0]), now_us
        mark = Mark(swept_us=now_us)
        try:
            connection.execute(insert(revisions).values(prefix=self.prefix, **mark.columns()))
        except IntegrityError:
            raise SqlConflictError from None  # another writer has just created the row
        return mark, now_us

    def _store(
        self, connection: Connection, mark: Mark, now_us: int, revision: WritePlan, touched: set[tuple[Kind, str]]
    ) -> None:
        """Store it under the next revision, and purge old rows if that is due."""
        compacted, swept_us = mark.compacted, mark.swept_us
        if retention.is_due(swept_us, now_us):
            expired = retention.expired(connection, self.prefix, now_us, self.title, touched)
            removal = plan_expiry(expired, now_us)
            revision.deletes += removal.deletes
            revision.audit += removal.audit
            deletions = retention.purge_deletions(connection, self.prefix, now_us)
            compacted = max(compacted, deletions.revision)
            entries = retention.purge_audit(connection, self.prefix, now_us)
            if not (deletions.more or entries.more or len(expired) == retention.BATCH_SIZE):
                swept_us = now_us
        changed = bool(revision.puts or revision.deletes)
        after = Mark(mark.revision + changed, compacted, swept_us, mark.nonce)
        if changed:
            self._add_nonce(connection, after.revision)
            self._replace(connection, after.revision, now_us, revision)
            if self.channel is not None:
                connection.execute(select(func.pg_notify(self.channel, str(after.revision))))
        if revision.audit:
            connection.execute(insert(audit), [audit_row(self.prefix, entry) for entry in revision.audit])
        if after != mark:
            connection.execute(update(revisions).where(revisions.c.prefix == self.prefix).values(after.columns()))

    def _add_nonce(self, connection: Connection, number: int) -> None:
        mine = writes.c.prefix == self.prefix
        connection.execute(delete(writes).where(mine, writes.c.revision <= number - MAX_WRITES))
        connection.execute(delete(writes).where(mine, writes.c.revision >= number))  # of a revision set by hand
        connection.execute(insert(writes).values(prefix=self.prefix, revision=number, nonce=create_nonce()))

    def _replace(self, connection: Connection, number: int, now_us: int, revision: WritePlan) -> None:
        """Replace all rows: delete, then insert."""
        rows = [record_row(self.prefix, number, record) for record in revision.puts]
        for kind, record_id, version in revision.deletes:
            tombstone = Record(kind, record_id, version, {}, now_us, now_us)
            rows.append({**record_row(self.prefix, number, tombstone), "deleted": 1, "body": None})
        for kind, ids in _by_kind((row["kind"], row["id"]) for row in rows):
            connection.execute(delete(records).where(*self._of(kind), records.c.id.in_(ids)))
        connection.execute(insert(records), rows)

    def _stored(self, connection: Connection, edits: Sequence[Edit]) -> dict[tuple[Kind, str], StoredState]:
        found = {}
        deletions = {(edit.kind, edit.id) for edit in edits if edit.body is None}
        for kind, ids in _by_kind((kind, bytes_of(record_id)) for kind, record_id in _names(edits)):
            for row in connection.execute(select(records).where(*self._of(kind), records.c.id.in_(ids))):
                name = name_of(row.kind, row.id, self.title)
                try:
                    record = None if row.deleted else record_of(row, self.title)
                except ValidationError:
                    if name not in deletions:
                        raise
                    record = Record(*name, row.version, {}, 0, 0)  # what cannot be read can be deleted
                found[name] = StoredState(row.version, record)
        return found

    def _holders(self, connection: Connection, edits: Sequence[Edit]) -> Holders:
        claims = {digest(edit.unique_key): edit.unique_key for edit in edits if edit.unique_key is not None}
        holders: Holders = {}
        mine = (records.c.prefix == self.prefix, records.c.deleted == 0)
        for some in _batches(sorted(claims)):
            for row in connection.execute(select(records).where(*mine, records.c.claim.in_(some))):
                holders.setdefault(claims[row.claim], []).append(record_of(row, self.title))
        return holders

    # -- helpers ----------------------------------------------------------------------------------------------------

    def _mark(self, connection: Connection) -> Mark:
        rows = self._marks(connection)
        return Mark(*rows[0]) if rows else Mark()

    def _marks(self, connection: Connection, *, locking: bool = False) -> Sequence[Any]:
        columns = (revisions.c.revision, revisions.c.compacted, revisions.c.swept_us)
        if locking:
            query = select(*columns).where(revisions.c.prefix == self.prefix)
            return connection.execute(query.with_for_update(nowait=True)).all()
        last = and_(writes.c.prefix == revisions.c.prefix, writes.c.revision == revisions.c.revision)
        joined = revisions.outerjoin(writes, last)
        return connection.execute(
            select(*columns, writes.c.nonce).select_from(joined).where(revisions.c.prefix == self.prefix)
        ).all()

    def _nonce(self, connection: Connection, number: int) -> str | None:
        """The nonce of a revision; None if it is not stored, or no longer."""
        query = select(writes.c.nonce).where(writes.c.prefix == self.prefix, writes.c.revision == number)
        return connection.execute(query).scalar_one_or_none()

    def _of(self, kind: Kind) -> tuple[Any, ...]:
        return records.c.prefix == self.prefix, records.c.kind == kind

    def _not_deleted(self, kind: Kind) -> tuple[Any, ...]:
        return *self._of(kind), records.c.deleted == 0

    def _records(self, query: Any) -> Sequence[Record]:
        rows: Sequence[Any] = self._read(lambda connection: connection.execute(query).all())
        return [record_of(row, self.title) for row in rows]

    def _read(self, action: Callable[[Connection], T]) -> T:
        self._check_open()
        return self._transactions.read(action)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosedError(f"{self.title}: the rule repository is closed; open it again")


def _names(edits: Iterable[Edit]) -> list[tuple[Kind, str]]:
    return [(edit.kind, edit.id) for edit in edits]


def _by_kind(names: Iterable[tuple[Kind, bytes]]) -> Iterator[tuple[Kind, Sequence[bytes]]]:
    """Each kind and its ids in the order of the index, in batches."""
    kinds: dict[Kind, set[bytes]] = {}
    for kind, record_id in names:
        kinds.setdefault(kind, set()).add(record_id)
    for kind, ids in sorted(kinds.items()):
        for some in _batches(sorted(ids)):
            yield kind, some


def _batches(whole: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    for start in range(0, len(whole), MAX_PER_STATEMENT):
        yield whole[start : start + MAX_PER_STATEMENT]


def _clamp(number: int) -> int:
    """The nearest number that the columns can hold."""
    return max(-(2**63), min(number, 2**63 - 1))


def _audit_id(entry_id: str) -> int:
    if not entry_id.isdecimal() or len(entry_id) > 18:
        raise ConfigError.of("before", f"must be the id of an audit entry, such as '42', not {entry_id!r}")
    return int(entry_id)
