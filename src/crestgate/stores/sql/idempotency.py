# mypyc: compile
"""Idempotency records in a table of their own: what a transaction reads and writes.

A transaction inserts the rows that are missing, without a body, and locks all of them before the rows of its counters.
So of concurrent transactions with the same record one proceeds; the others wait for the lock, and find the record, or
that it was rolled back. A row without a body is never visible to others: it gets one, or is deleted, before the commit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, final

from crestgate.core.mypyc_types import i64
from crestgate.stores.idempotency import IdempotencyRecords, is_fresh
from crestgate.stores.port import IDEMPOTENCY_TTL_US
from crestgate.stores.sql.dialect import Dialect

__all__ = ["SqlRecord", "SqlRecords", "read_records"]


class SqlRecord(NamedTuple):
    """A row: when it expires, and its content; b"" while there is none."""

    expires_us: int
    body: bytes


def read_records(lines: Sequence[str]) -> dict[str, SqlRecord]:
    """Parse the lines of `Dialect.records`: the rows, by id."""
    rows = [line.split(",") for line in lines]
    return {hex_id: SqlRecord(int(expires_us), bytes.fromhex(body)) for hex_id, expires_us, body in rows}


@final
class SqlRecords(IdempotencyRecords):
    """The records of one batch, whose rows are locked. Changes nothing but itself, so that a batch can be decided a
    second time from the same rows. `ids` has the id of each name."""

    def __init__(self, rows: Mapping[str, SqlRecord], ids: Mapping[str, str]) -> None:
        self.rows = rows
        self.ids = ids
        self.changed: dict[str, SqlRecord] = {}

    def find(self, name: str, now: i64) -> bytes | None:
        hex_id = self.ids[name]
        record = self.changed.get(hex_id) or self.rows[hex_id]
        if not record.body or not is_fresh(record.expires_us - IDEMPOTENCY_TTL_US, now):
            return None
        return record.body

    def put(self, name: str, content: bytes, now: i64) -> None:
        self.changed[self.ids[name]] = SqlRecord(now + IDEMPOTENCY_TTL_US, content)

    def delete(self, name: str) -> None:
        self.changed[self.ids[name]] = SqlRecord(0, b"")

    def dropped_until(self, name: str, now: i64) -> int | None:
        """Rows are deleted when they have expired, and never for want of room."""
        return None

    def writes(self, dialect: Dialect) -> list[str]:
        """The statements that write the changes, when there is something to commit."""
        after = {**self.rows, **self.changed}
        saved = [(hex_id, row.expires_us, row.body) for hex_id, row in self.changed.items() if row.body]
        unused = [hex_id for hex_id, row in after.items() if not row.body]
        statements = []
        if saved:
            statements.append(dialect.write_records(sorted(saved)))
        if unused:
            statements.append(dialect.delete_records(sorted(unused)))
        return statements
