"""What was decided once, in rows of its own: as a transaction finds it, and what it is to write.

A transaction makes the rows that are missing, without a body, and locks all of them before the rows of its counters. So
of those who ask for the same at the same time one goes on; the others wait for the lock, and find what came of it, or
that it was rolled back. A row without a body is nobody else's to see: it gets one, or goes, before the commit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, final

from headgate.core.words import i64
from headgate.stores.port import ONCE_US
from headgate.stores.records import Records, is_fresh
from headgate.stores.sql.dialect import Dialect

__all__ = ["SqlRecord", "SqlRecords", "read_records"]


class SqlRecord(NamedTuple):
    """A row: when it expires, and what is kept in it, b"" for nothing yet."""

    expires_us: int
    body: bytes


def read_records(lines: Sequence[str]) -> dict[str, SqlRecord]:
    """The rows that `Dialect.records` asked for, by the digits of their ids."""
    rows = [line.split(",") for line in lines]
    return {digits: SqlRecord(int(expires_us), bytes.fromhex(body)) for digits, expires_us, body in rows}


@final
class SqlRecords(Records):
    """The records of one batch, whose rows are locked. Changes nothing but itself, so that a batch can be decided a
    second time from the same rows. `ids` has the digits of each name's id."""

    def __init__(self, found: Mapping[str, SqlRecord], ids: Mapping[str, str]) -> None:
        self.found = found
        self.ids = ids
        self.changed: dict[str, SqlRecord] = {}

    def find(self, name: str, now: i64) -> bytes | None:
        digits = self.ids[name]
        record = self.changed.get(digits) or self.found[digits]
        if not record.body or not is_fresh(record.expires_us - ONCE_US, now):
            return None
        return record.body

    def keep(self, name: str, kept: bytes, now: i64) -> None:
        self.changed[self.ids[name]] = SqlRecord(now + ONCE_US, kept)

    def forget(self, name: str) -> None:
        self.changed[self.ids[name]] = SqlRecord(0, b"")

    def writes(self, dialect: Dialect) -> list[str]:
        """The statements that keep what was decided, when there is something to commit."""
        after = {**self.found, **self.changed}
        kept = [(digits, after[digits].expires_us, after[digits].body) for digits in self.changed if after[digits].body]
        gone = [digits for digits, record in after.items() if not record.body]
        statements = []
        if kept:
            statements.append(dialect.write_records(sorted(kept)))
        if gone:
            statements.append(dialect.delete_records(sorted(gone)))
        return statements
