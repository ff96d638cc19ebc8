# mypyc: compile
"""SQL dialects: the statements of the store, as text.

Only integers, hexadecimal digits and column names of our own tables are written into a statement. User input (keys,
names of limits, the prefix) is passed as hexadecimal literals, so it is never parsed as SQL; an algorithm's name is an
ASCII identifier, which is checked when it is registered.

A row is selected as one comma-separated text: drivers written in Python are slow per field, the database is not (500
rows took PyMySQL half the time).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from crestgate.stores.sql.counter_row import EMPTY_ROW, CounterRow

__all__ = ["MYSQL", "POSTGRES", "SQLITE", "Dialect", "read_row"]

_ROW = "algorithm, count, capacity, period_us, time, a, b, moved, dropped, expires_us"
_FIELDS = _ROW.split(", ")
_FRESH = f"'', {', '.join(str(number) for number in EMPTY_ROW[1:])}"
MAX_SELECTS = 100
"""Selects in one UNION: each takes planning time."""


class Dialect(NamedTuple):
    """What differs between the databases."""

    begin: str
    snapshot: tuple[str, ...]
    """Begins a read-only transaction on a snapshot."""
    blob: str
    """A bytes literal, with its hexadecimal digits at %s."""
    hex_of: str
    hex_body: str
    """The body of an idempotency record in hexadecimal; empty for NULL."""
    joined: tuple[str, str, str]
    """Joins fields with commas: what comes before, between and after them."""
    keep: str
    """The end of an INSERT that leaves an existing row unchanged, if possible with a lock on it."""
    upsert: str
    """The end of an INSERT that replaces; the assignments follow."""
    inserted: str
    """The value that the INSERT has for the column at %s."""
    locking: str
    skipping: str
    by_key: str
    """After a table's name: use the primary key, whatever the number of rows."""
    clock: str
    """Now in microseconds since the epoch, read when the statement runs; '' if this machine's clock is used."""
    limits_deletes: bool
    """Whether a DELETE may have a LIMIT."""
    supports_ordered_union: bool
    """Whether selects with an ORDER BY of their own can be united."""
    updates_values: bool
    """Whether to update many rows with UPDATE ... FROM (VALUES ...) (PostgreSQL: four times faster) rather than with
    an upsert (SQLite: a third faster; MySQL and MariaDB have no common form of UPDATE ... FROM)."""

    # -- reading ----------------------------------------------------------------------------------------------------

    def line(self, *fields: str) -> str:
        before, between, after = self.joined
        return before + between.join(fields) + after

    def bytes_of(self, hex_id: str) -> str:
        return self.blob % hex_id

    def ids(self, ids: Iterable[str]) -> str:
        return ", ".join([self.blob % hex_id for hex_id in ids])

    def rows(self, ids: Sequence[str], locking: bool) -> str:
        """The counters of sorted ids; locked in that order, as every transaction does."""
        tail = self.locking if locking else ""
        return (
            f"SELECT {self.line(self.hex_of, *_FIELDS)} FROM crestgate_counters {self.by_key} "
            f"WHERE id IN ({self.ids(ids)}) ORDER BY id{tail}"
        )

    def front(self, number: int, hex_id: str, limit: int, after: int | None = None) -> str:
        """The oldest entries of a log that count, or those after a stored tick."""
        return f"{self.entries(number, 'f', hex_id, after)} ORDER BY tick LIMIT {limit}"

    def back(self, number: int, hex_id: str, limit: int) -> str:
        """The newest entries of a log, newest first."""
        return f"{self.entries(number, 'b', hex_id)} ORDER BY tick DESC LIMIT {limit}"

    def single(self, number: int, hex_id: str, tick: int) -> str:
        """The entry of a real tick."""
        moved = f"(SELECT moved FROM crestgate_counters WHERE id = {self.blob % hex_id})"
        return f"{self.entries(number, 'm', hex_id)} AND tick = {tick} - {moved}"

    def whole(self, number: int, hex_id: str) -> str:
        return f"{self.entries(number, 'f', hex_id)} ORDER BY tick"

    def summed(self, number: int, hex_id: str, cutoff: int) -> str:
        """All entries that count up to a stored tick, as one entry at the last of their ticks."""
        line = self.line(str(number), "'f'", "MAX(tick)", "SUM(cost)")
        return (
            f"SELECT {line} FROM crestgate_log WHERE id = {self.blob % hex_id} AND tick <= {cutoff} "
            f"AND tick > {self.dropped(hex_id)} GROUP BY id"
        )

    def entries(self, number: int, part: str, hex_id: str, after: int | None = None) -> str:
        first = self.dropped(hex_id) if after is None else str(after)
        line = self.line(str(number), f"'{part}'", "tick", "cost")
        return f"SELECT {line} FROM crestgate_log WHERE id = {self.blob % hex_id} AND tick > {first}"

    def dropped(self, hex_id: str) -> str:
        return f"(SELECT dropped FROM crestgate_counters WHERE id = {self.blob % hex_id})"

    def combine(self, selects: Sequence[str]) -> list[str]:
        """Combine many small selects into few statements, where a statement costs more than a part of a UNION."""
        if not self.supports_ordered_union:
            return list(selects)
        batches = [selects[i : i + MAX_SELECTS] for i in range(0, len(selects), MAX_SELECTS)]
        return [" UNION ALL ".join([f"({select})" for select in batch]) for batch in batches]

    # -- writing ----------------------------------------------------------------------------------------------------

    def insert_missing(self, counters: Iterable[tuple[str, str, str, str]]) -> str:
        """Insert rows without a state where they are missing; each an id, prefix, name and subject in hexadecimal."""
        rows = [f"({', '.join([self.blob % hex_id for hex_id in counter])}, {_FRESH})" for counter in counters]
        return f"INSERT INTO crestgate_counters (id, prefix, name, subject, {_ROW}) VALUES {', '.join(rows)}{self.keep}"

    def write_rows(self, rows: Iterable[tuple[str, CounterRow]]) -> str:
        """Replace the states of existing rows, which the transaction has locked."""
        nothing = "" if self.updates_values else f" {self.bytes_of('')}," * 3
        texts = []
        for hex_id, row in rows:
            numbers = ", ".join([str(number) for number in row[1:]])
            texts.append(f"({self.blob % hex_id},{nothing} '{row.algorithm}', {numbers})")
        values = f"VALUES {', '.join(texts)}"
        if self.updates_values:
            sets = ", ".join([f"{field} = v.column{number}" for number, field in enumerate(_FIELDS, 2)])
            return f"UPDATE crestgate_counters SET {sets} FROM ({values}) AS v WHERE id = v.column1"
        sets = ", ".join([f"{field} = {self.inserted % field}" for field in _FIELDS])
        return f"INSERT INTO crestgate_counters (id, prefix, name, subject, {_ROW}) {values}{self.upsert}{sets}"

    def write_entries(self, entries: Iterable[tuple[str, int, int]]) -> str:
        rows = ", ".join([f"({self.blob % hex_id}, {tick}, {cost})" for hex_id, tick, cost in entries])
        tail = (self.upsert.replace("(id)", "(id, tick)")) + f"cost = {self.inserted % 'cost'}"
        return f"INSERT INTO crestgate_log (id, tick, cost) VALUES {rows}{tail}"

    def delete_entry(self, hex_id: str, tick: int) -> str:
        return f"DELETE FROM crestgate_log WHERE id = {self.blob % hex_id} AND tick = {tick}"

    def delete_entries(self, hex_id: str, dropped: int, limit: int) -> str:
        """Some of the entries that no longer count, the oldest first."""
        which = f"WHERE id = {self.blob % hex_id} AND tick <= {dropped} ORDER BY tick LIMIT {limit}"
        if self.limits_deletes:
            return f"DELETE FROM crestgate_log {which}"
        ticks = f"SELECT tick FROM crestgate_log {which}"
        return f"DELETE FROM crestgate_log WHERE id = {self.blob % hex_id} AND tick IN ({ticks})"

    # -- idempotency records ----------------------------------------------------------------------------------------

    def insert_records(self, ids: Iterable[str], prefix: str) -> str:
        """Insert rows without a body where they are missing; the ids are sorted."""
        rows = ", ".join([f"({self.blob % hex_id}, {self.blob % prefix}, 0, NULL)" for hex_id in ids])
        return f"INSERT INTO crestgate_idempotency (id, prefix, expires_us, body) VALUES {rows}{self.keep}"

    def records(self, ids: Iterable[str]) -> str:
        """Records of sorted ids, locked in that order: their ids, when they expire, and their bodies."""
        return (
            f"SELECT {self.line(self.hex_of, 'expires_us', self.hex_body)} FROM crestgate_idempotency {self.by_key} "
            f"WHERE id IN ({self.ids(ids)}) ORDER BY id{self.locking}"
        )

    def write_records(self, records: Iterable[tuple[str, int, bytes]]) -> str:
        """Replace the contents of existing rows, which the transaction has locked."""
        nothing = self.bytes_of("")
        rows = ", ".join([f"({self.blob % d}, {nothing}, {at}, {self.blob % body.hex()})" for d, at, body in records])
        sets = ", ".join([f"{field} = {self.inserted % field}" for field in ("expires_us", "body")])
        return f"INSERT INTO crestgate_idempotency (id, prefix, expires_us, body) VALUES {rows}{self.upsert}{sets}"

    def delete_records(self, ids: Iterable[str]) -> str:
        return f"DELETE FROM crestgate_idempotency WHERE id IN ({self.ids(ids)})"


def read_row(line: str) -> tuple[str, CounterRow]:
    """Parse a line of `Dialect.rows`: the id, and the row."""
    hex_id, algorithm, count, capacity, period, time, a, b, moved, dropped, expires = line.split(",")
    return hex_id, CounterRow(
        algorithm,
        int(count),
        int(capacity),
        int(period),
        int(time),
        int(a),
        int(b),
        int(moved),
        int(dropped),
        int(expires),
    )


MYSQL = Dialect(
    begin="START TRANSACTION",
    snapshot=("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ", "START TRANSACTION READ ONLY"),
    blob="x'%s'",
    hex_of="LOWER(HEX(id))",
    hex_body="COALESCE(HEX(body), '')",
    joined=("CONCAT_WS(',', ", ", ", ")"),
    # INSERT IGNORE takes a shared lock on an existing row, and two of those deadlock when both transactions then
    # change it; this takes the exclusive lock.
    keep=" ON DUPLICATE KEY UPDATE id = id",
    upsert=" ON DUPLICATE KEY UPDATE ",
    inserted="VALUES(%s)",
    locking=" FOR UPDATE",
    skipping=" FOR UPDATE SKIP LOCKED",
    by_key="FORCE INDEX (PRIMARY)",
    # NOW() is the start of the statement, before it waits for locks; SYSDATE() is evaluated when it is reached.
    clock="TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6))",
    limits_deletes=True,
    supports_ordered_union=True,
    updates_values=False,
)

POSTGRES = Dialect(
    begin="BEGIN",
    snapshot=("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",),
    blob="'\\x%s'::bytea",
    hex_of="encode(id, 'hex')",
    hex_body="coalesce(encode(body, 'hex'), '')",
    joined=("concat_ws(',', ", ", ", ")"),
    keep=" ON CONFLICT DO NOTHING",
    upsert=" ON CONFLICT (id) DO UPDATE SET ",
    inserted="excluded.%s",
    locking=" FOR UPDATE",
    skipping=" FOR UPDATE SKIP LOCKED",
    by_key="",
    # now() is the start of the transaction.
    clock="(extract(epoch FROM clock_timestamp()) * 1000000)::bigint",
    limits_deletes=False,
    supports_ordered_union=True,
    updates_values=True,
)

SQLITE = Dialect(
    begin="BEGIN IMMEDIATE",
    snapshot=("BEGIN",),
    blob="x'%s'",
    hex_of="lower(hex(id))",
    hex_body="coalesce(hex(body), '')",
    joined=("", " || ',' || ", ""),
    keep=" ON CONFLICT DO NOTHING",
    upsert=" ON CONFLICT (id) DO UPDATE SET ",
    inserted="excluded.%s",
    locking="",
    skipping="",
    by_key="",
    clock="",
    limits_deletes=False,
    supports_ordered_union=False,
    updates_values=False,
)
