"""Background deletion of expired counters and idempotency records, in small batches that do not block checks.

About once a second, and repeatedly while there are many, a short-lived thread deletes a batch: it selects expired rows,
locks those that nobody uses, deletes their log entries and then the rows. Locked rows are left for later. A lost
connection is not reported here: a check with the same problem reports it. But a database that rejects the DELETE is
logged as a warning, because its tables grow while all checks succeed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from threading import Thread
from typing import final

from crestgate.runtime.fork_safety import renew_after_fork
from crestgate.stores.sql.pool import SessionPool
from crestgate.stores.sql.session import DatabaseConnectionError, Session, StatementError

__all__ = ["Sweeper"]

BATCH_ROWS = 500
"""Rows, and log entries, deleted in one transaction."""
BATCH_RECORDS = 100
"""Idempotency records deleted in one transaction; each may have a hundred thousand bytes."""
PAUSE = 1.0
SWEEP_SECONDS = 5.0
WARN_SECONDS = 60.0
"""Seconds between two warnings."""
_log = logging.getLogger("crestgate")


@final
class Sweeper:
    """Sweeps the counters of all prefixes, or of one (for a store with a virtual clock)."""

    def __init__(self, pool: SessionPool, clock: Callable[[], int] | None, prefix: bytes | None) -> None:
        self.pool = pool
        self.dialect = pool.driver.dialect
        self.clock = clock
        self.prefix_filter = f" AND prefix = {self.dialect.bytes_of(prefix[:255].hex())}" if prefix is not None else ""
        self.next = time.monotonic() + PAUSE
        self.busy = False
        self.warn_at = 0.0
        renew_after_fork(self)

    def renew(self) -> None:
        self.busy = False  # the thread stayed with the parent

    def sweep_if_due(self) -> None:
        """Called after each batch: start a sweep if it is due."""
        if not self.busy and time.monotonic() >= self.next:
            self.busy = True
            try:
                Thread(target=self.run, name="crestgate sweep", daemon=True).start()
            except RuntimeError:  # no more threads: the interpreter exits, or the limit of threads is reached
                self.next = time.monotonic() + PAUSE
                self.busy = False

    def run(self) -> None:
        try:
            while not self.pool.closed and self.sweep_batch(time.monotonic() + SWEEP_SECONDS) >= BATCH_ROWS:
                pass
        except StatementError as error:
            self.report(error)
        except DatabaseConnectionError as lost:
            _log.debug("sweeping %s: %s", self.pool.driver.name, lost)
        finally:
            self.next = time.monotonic() + PAUSE
            self.busy = False

    def report(self, error: StatementError) -> None:
        now = time.monotonic()
        if error.retryable or now < self.warn_at:
            _log.debug("sweeping %s: %s", self.pool.driver.name, error)
            return
        self.warn_at = now + WARN_SECONDS
        _log.warning("sweep failed, expired rows are not deleted: %s: %s", self.pool.driver.name, error)

    def sweep_batch(self, deadline: float) -> int:
        """Delete a batch of expired rows. Returns how many were found."""
        session, _ = self.pool.take(deadline)
        try:
            count = self.sweep(session, deadline)
        except BaseException:
            self.pool.drop(session)  # and with it the transaction
            raise
        self.pool.give(session)
        return count

    def sweep(self, session: Session, deadline: float) -> int:
        dialect = self.dialect
        now = dialect.clock if self.clock is None else str(self.clock())
        expired = f"expires_us < {now}{self.prefix_filter}"
        line = dialect.line(dialect.hex_of, "expires_us")
        selects = [
            f"SELECT {line} FROM {table} WHERE {expired} ORDER BY expires_us LIMIT {limit}"
            for table, limit in (("crestgate_counters", BATCH_ROWS), ("crestgate_idempotency", BATCH_RECORDS))
        ]
        counters, records = ([row.partition(",")[0] for row in rows] for rows in session.run(selects, deadline))
        swept = self.sweep_counters(session, deadline, counters, expired) if counters else 0
        if records:
            ids = self.lock_rows(session, deadline, "crestgate_idempotency", records, expired)
            if ids:
                session.run([dialect.delete_records(ids), "COMMIT"], deadline)
                swept += BATCH_ROWS if len(records) == BATCH_RECORDS else len(records)
        return swept

    def sweep_counters(self, session: Session, deadline: float, expired_ids: Sequence[str], expired: str) -> int:
        dialect = self.dialect
        ids = self.lock_rows(session, deadline, "crestgate_counters", expired_ids, expired)
        if not ids:
            return 0
        select = f"SELECT {dialect.line(dialect.hex_of, 'tick')} FROM crestgate_log WHERE id IN ({dialect.ids(ids)})"
        lines = session.run([f"{select} ORDER BY id, tick LIMIT {BATCH_ROWS + 1}"], deadline)[0]
        entries = [line.split(",") for line in lines]
        if len(entries) > BATCH_ROWS:
            # More than a batch: the rows are deleted with the last of their entries.
            last = {hex_id: int(tick) for hex_id, tick in entries[:BATCH_ROWS]}
            deletes = [dialect.delete_entries(hex_id, tick, BATCH_ROWS) for hex_id, tick in last.items()]
        else:
            deletes = [f"DELETE FROM {table} WHERE id IN ({dialect.ids(ids)})" for table in _TABLES]
        session.run([*deletes, "COMMIT"], deadline)
        return BATCH_ROWS if len(entries) > BATCH_ROWS else len(expired_ids)

    def lock_rows(self, session: Session, deadline: float, table: str, ids: Sequence[str], expired: str) -> list[str]:
        """Begin a transaction and lock those rows that are still expired and not in use; rolled back if none are."""
        dialect = self.dialect
        chosen = f"WHERE id IN ({dialect.ids(sorted(ids))}) AND {expired} ORDER BY id{dialect.skipping}"
        locking = f"SELECT {dialect.hex_of} FROM {table} {dialect.by_key} {chosen}"
        locked = session.run([dialect.begin, locking], deadline)[0]
        if not locked:
            session.run(["ROLLBACK"], deadline)
        return locked


_TABLES = ("crestgate_log", "crestgate_counters")
