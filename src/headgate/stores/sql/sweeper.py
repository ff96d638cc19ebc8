"""Deletes counters that are as good as new, a few at a time, beside the checks and never in their way.

About once a second, and on as long as there is plenty, a short-lived thread takes a bite: it looks for rows that
have expired, locks those that nobody is using, deletes their log entries and then the rows. What it cannot have it
leaves for later. A connection that breaks is nobody's error here: a check that meets the same trouble reports it. But
a database that refuses to delete is warned about, because its tables grow while all checks succeed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from threading import Thread
from typing import final

from headgate.stores.forking import renew_after_fork
from headgate.stores.sql.pool import Pool
from headgate.stores.sql.session import Broken, Refused, Session

__all__ = ["Sweeper"]

BITE = 500
"""Rows, and log entries, deleted in one transaction."""
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
        _log.warning("expired counters cannot be deleted, and stay: %s: %s", self.pool.driver.name, refused)

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
        line = dialect.line(dialect.hex_of, "expires_us")
        expired = f"expires_us < {now}{self.ours}"
        looking = f"SELECT {line} FROM headgate_counters WHERE {expired} ORDER BY expires_us LIMIT {BITE}"
        found = [line.partition(",")[0] for line in session.run([looking], deadline)[0]]
        if not found:
            return 0
        chosen = f"WHERE id IN ({dialect.ids(sorted(found))}) AND {expired} ORDER BY id{dialect.skipping}"
        locking = f"SELECT {dialect.hex_of} FROM headgate_counters {dialect.by_key} {chosen}"
        ids = session.run([dialect.begin, locking], deadline)[0]
        if not ids:
            session.run(["ROLLBACK"], deadline)
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


_TABLES = ("headgate_log", "headgate_counters")
