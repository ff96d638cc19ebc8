"""Deletes counters that are as good as new, and what was decided once and has had its time: a few rows at a time,
beside the checks and never in their way.

About once a second, and on as long as there is plenty, a short-lived thread takes a bite: it looks for rows that
have expired, locks those that nobody is using, deletes their log entries and then the rows. What it cannot have it
leaves for later. A connection that breaks is nobody's error here: a check that meets the same trouble reports it. But
a database that refuses to delete is warned about, because its tables grow while all checks succeed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from threading import Thread
from typing import final

from headgate.stores.forking import renew_after_fork
from headgate.stores.sql.pool import Pool
from headgate.stores.sql.session import Broken, Refused, Session

__all__ = ["Sweeper"]

BITE = 500
"""Rows, and log entries, deleted in one transaction."""
BITE_OF_RECORDS = 100
"""Records deleted in one transaction, of which each may have a hundred thousand bytes."""
PAUSE = 1.0
PATIENCE = 5.0
WARN_AGAIN = 60.0
"""Seconds between two warnings about the same thing."""
_log = logging.getLogger("headgate")


@final
class Sweeper:
    """Sweeps the counters of all prefixes, or of one (for a store on a clock of its own)."""

    def __init__(self, pool: Pool, clock: Callable[[], int] | None, prefix: bytes | None) -> None:
        self.pool = pool
        self.dialect = pool.driver.dialect
        self.clock = clock
        self.ours = f" AND prefix = {self.dialect.bytes_of(prefix[:255].hex())}" if prefix is not None else ""
        self.next = time.monotonic() + PAUSE
        self.busy = False
        self.warn_at = 0.0
        renew_after_fork(self)

    def renew(self) -> None:
        self.busy = False  # the thread stayed with the parent

    def notice(self) -> None:
        """A batch was decided: sweep if it is time."""
        if not self.busy and time.monotonic() >= self.next:
            self.busy = True
            try:
                Thread(target=self.run, name="headgate sweep", daemon=True).start()
            except RuntimeError:  # no more threads: the interpreter is ending, or the machine is full
                self.next = time.monotonic() + PAUSE
                self.busy = False

    def run(self) -> None:
        try:
            while not self.pool.closed and self.bite(time.monotonic() + PATIENCE) >= BITE:
                pass
        except Refused as refused:
            self.refused(refused)
        except Broken as broken:
            _log.debug("sweeping %s: %s", self.pool.driver.name, broken)
        finally:
            self.next = time.monotonic() + PAUSE
            self.busy = False

    def refused(self, refused: Refused) -> None:
        now = time.monotonic()
        if refused.again or now < self.warn_at:
            _log.debug("sweeping %s: %s", self.pool.driver.name, refused)
            return
        self.warn_at = now + WARN_AGAIN
        _log.warning("what has expired cannot be deleted, and stays: %s: %s", self.pool.driver.name, refused)

    def bite(self, deadline: float) -> int:
        """Delete some of what has expired; how much was found."""
        session, _ = self.pool.take(deadline)
        try:
            found = self.sweep(session, deadline)
        except BaseException:
            self.pool.drop(session)  # and with it the transaction
            raise
        self.pool.give(session)
        return found

    def sweep(self, session: Session, deadline: float) -> int:
        dialect = self.dialect
        now = dialect.clock if self.clock is None else str(self.clock())
        expired = f"expires_us < {now}{self.ours}"
        line = dialect.line(dialect.hex_of, "expires_us")
        looks = [
            f"SELECT {line} FROM {table} WHERE {expired} ORDER BY expires_us LIMIT {most}"
            for table, most in (("headgate_counters", BITE), ("headgate_once", BITE_OF_RECORDS))
        ]
        counters, records = ([row.partition(",")[0] for row in found] for found in session.run(looks, deadline))
        swept = self.sweep_counters(session, deadline, counters, expired) if counters else 0
        if records:
            ids = self.locked(session, deadline, "headgate_once", records, expired)
            if ids:
                session.run([dialect.delete_records(ids), "COMMIT"], deadline)
                swept += BITE if len(records) == BITE_OF_RECORDS else len(records)
        return swept

    def sweep_counters(self, session: Session, deadline: float, found: Sequence[str], expired: str) -> int:
        dialect = self.dialect
        ids = self.locked(session, deadline, "headgate_counters", found, expired)
        if not ids:
            return 0
        entries = f"SELECT {dialect.line(dialect.hex_of, 'tick')} FROM headgate_log WHERE id IN ({dialect.ids(ids)})"
        held = [line.split(",") for line in session.run([f"{entries} ORDER BY id, tick LIMIT {BITE + 1}"], deadline)[0]]
        if len(held) > BITE:
            # More than a bite: the rows go when the last of their entries is gone.
            last = {digits: int(tick) for digits, tick in held[:BITE]}
            deletes = [dialect.delete_entries(digits, tick, BITE) for digits, tick in last.items()]
        else:
            deletes = [f"DELETE FROM {table} WHERE id IN ({dialect.ids(ids)})" for table in _TABLES]
        session.run([*deletes, "COMMIT"], deadline)
        return BITE if len(held) > BITE else len(found)

    def locked(self, session: Session, deadline: float, table: str, found: Sequence[str], expired: str) -> list[str]:
        """Begin a transaction that has those of the rows that are still expired, and that nobody uses; or none."""
        dialect = self.dialect
        chosen = f"WHERE id IN ({dialect.ids(sorted(found))}) AND {expired} ORDER BY id{dialect.skipping}"
        locking = f"SELECT {dialect.hex_of} FROM {table} {dialect.by_key} {chosen}"
        ids = session.run([dialect.begin, locking], deadline)[0]
        if not ids:
            session.run(["ROLLBACK"], deadline)
        return ids


_TABLES = ("headgate_log", "headgate_counters")
