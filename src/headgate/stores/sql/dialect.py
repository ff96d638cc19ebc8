"""How the databases spell what the store says to them: the statements, as text.

Only whole numbers, hexadecimal digits and names from our own tables are ever written into a statement. What users
wrote (keys, names of limits, the prefix) goes in as hexadecimal literals, so no character of it is ever read as SQL;
an algorithm's name is an ASCII identifier, which registering it has made sure of.

A row is asked for as one text with commas: drivers written in Python pay for each field, the database hardly does
(500 rows took PyMySQL half the time).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from headgate.stores.sql.cell import NOTHING, Row

__all__ = ["MYSQL", "POSTGRES", "SQLITE", "Dialect", "read_row"]

_ROW = "algorithm, count, capacity, period_us, time, a, b, moved, dropped, expires_us"
_FIELDS = _ROW.split(", ")
_FRESH = f"'', {', '.join(str(number) for number in NOTHING[1:])}"
MOST_SELECTS = 100
"""Selects in one UNION: planners need time for each."""


class Dialect(NamedTuple):
    """What differs between the databases."""

    begin: str
    snapshot: tuple[str, ...]
    """Begins a transaction that only looks, and sees one instant."""
    blob: str
    """How bytes are written, with their hexadecimal digits at %s."""
    hex_of: str
    hex_body: str
    """The body of what was decided once as hexadecimal digits; none where there is none."""
    joined: tuple[str, str, str]
    """How a text with commas is made of fields: what stands before, between and after them."""
    keep: str
    """The end of an INSERT that leaves a row alone that is there already, if possible with a lock on it."""
    upsert: str
    """The end of an INSERT that replaces; the assignments follow."""
    inserted: str
    """What the INSERT would have put there, with the column at %s."""
    locking: str
    skipping: str
    by_key: str
    """After a table's name: look rows up by the primary key, whatever their number."""
    clock: str
    """Now in whole microseconds since the epoch, read when the statement runs; '' where this machine's clock counts."""
    limits_deletes: bool
    """Whether a DELETE may have a LIMIT."""
    unites: bool
    """Whether selects with an ORDER BY of their own can be united."""
    updates_values: bool
    """Whether many rows are better updated from a list of values (PostgreSQL, four times faster) than by an INSERT
    that finds them there (SQLite, half as long again; MySQL has no form of it that MariaDB has too)."""

    # -- reading ----------------------------------------------------------------------------------------------------

    def line(self, *fields: str) -> str:
        before, between, after = self.joined
        return before + between.join(fields) + after

    def bytes_of(self, digits: str) -> str:
        return self.blob % digits

    def ids(self, ids: Iterable[str]) -> str:
        return ", ".join([self.blob % digits for digits in ids])

    def rows(self, ids: Sequence[str], locking: bool) -> str:
        """The counters of sorted ids; locked in that order, as every transaction does."""
        tail = self.locking if locking else ""
        return (
            f"SELECT {self.line(self.hex_of, *_FIELDS)} FROM headgate_counters {self.by_key} "
            f"WHERE id IN ({self.ids(ids)}) ORDER BY id{tail}"
        )

    def front(self, number: int, digits: str, most: int, after: int | None = None) -> str:
        """The oldest entries of a log that count, or those after a stored tick."""
        return f"{self.entries(number, 'f', digits, after)} ORDER BY tick LIMIT {most}"

    def back(self, number: int, digits: str, most: int) -> str:
        """The newest entries of a log, newest first."""
        return f"{self.entries(number, 'b', digits)} ORDER BY tick DESC LIMIT {most}"

    def single(self, number: int, digits: str, tick: int) -> str:
        """The entry of a real tick."""
        moved = f"(SELECT moved FROM headgate_counters WHERE id = {self.blob % digits})"
        return f"{self.entries(number, 'm', digits)} AND tick = {tick} - {moved}"

    def whole(self, number: int, digits: str) -> str:
        return f"{self.entries(number, 'f', digits)} ORDER BY tick"

    def summed(self, number: int, digits: str, cutoff: int) -> str:
        """All entries that count up to a stored tick, as one entry at the last of their ticks."""
        line = self.line(str(number), "'f'", "MAX(tick)", "SUM(cost)")
        return (
            f"SELECT {line} FROM headgate_log WHERE id = {self.blob % digits} AND tick <= {cutoff} "
            f"AND tick > {self.dropped(digits)} GROUP BY id"
        )

    def entries(self, number: int, part: str, digits: str, after: int | None = None) -> str:
        first = self.dropped(digits) if after is None else str(after)
        line = self.line(str(number), f"'{part}'", "tick", "cost")
        return f"SELECT {line} FROM headgate_log WHERE id = {self.blob % digits} AND tick > {first}"

    def dropped(self, digits: str) -> str:
        return f"(SELECT dropped FROM headgate_counters WHERE id = {self.blob % digits})"

    def together(self, selects: Sequence[str]) -> list[str]:
        """Many small selects as few statements, where a statement costs more than a part of one."""
        if not self.unites:
            return list(selects)
        bites = [selects[i : i + MOST_SELECTS] for i in range(0, len(selects), MOST_SELECTS)]
        return [" UNION ALL ".join([f"({select})" for select in bite]) for bite in bites]

    # -- writing ----------------------------------------------------------------------------------------------------

    def insert_missing(self, counters: Iterable[tuple[str, str, str, str]]) -> str:
        """Rows without a state for counters that have none; each an id, prefix, name and subject in hex digits."""
        rows = [f"({', '.join([self.blob % digits for digits in counter])}, {_FRESH})" for counter in counters]
        return f"INSERT INTO headgate_counters (id, prefix, name, subject, {_ROW}) VALUES {', '.join(rows)}{self.keep}"

    def write_rows(self, rows: Iterable[tuple[str, Row]]) -> str:
        """Replace the states of rows that are there, which the transaction has locked."""
        nothing = "" if self.updates_values else f" {self.bytes_of('')}," * 3
        texts = []
        for digits, row in rows:
            numbers = ", ".join([str(number) for number in row[1:]])
            texts.append(f"({self.blob % digits},{nothing} '{row.algorithm}', {numbers})")
        values = f"VALUES {', '.join(texts)}"
        if self.updates_values:
            sets = ", ".join([f"{field} = v.column{number}" for number, field in enumerate(_FIELDS, 2)])
            return f"UPDATE headgate_counters SET {sets} FROM ({values}) AS v WHERE id = v.column1"
        sets = ", ".join([f"{field} = {self.inserted % field}" for field in _FIELDS])
        return f"INSERT INTO headgate_counters (id, prefix, name, subject, {_ROW}) {values}{self.upsert}{sets}"

    def write_entries(self, entries: Iterable[tuple[str, int, int]]) -> str:
        rows = ", ".join([f"({self.blob % digits}, {tick}, {cost})" for digits, tick, cost in entries])
        tail = (self.upsert.replace("(id)", "(id, tick)")) + f"cost = {self.inserted % 'cost'}"
        return f"INSERT INTO headgate_log (id, tick, cost) VALUES {rows}{tail}"

    def delete_entry(self, digits: str, tick: int) -> str:
        return f"DELETE FROM headgate_log WHERE id = {self.blob % digits} AND tick = {tick}"

    def delete_entries(self, digits: str, dropped: int, most: int) -> str:
        """Some of the entries that no longer count, the oldest first."""
        which = f"WHERE id = {self.blob % digits} AND tick <= {dropped} ORDER BY tick LIMIT {most}"
        if self.limits_deletes:
            return f"DELETE FROM headgate_log {which}"
        ticks = f"SELECT tick FROM headgate_log {which}"
        return f"DELETE FROM headgate_log WHERE id = {self.blob % digits} AND tick IN ({ticks})"

    # -- what was decided once --------------------------------------------------------------------------------------

    def insert_records(self, ids: Iterable[str], prefix: str) -> str:
        """Rows without a body for records that have none, whose ids are sorted."""
        rows = ", ".join([f"({self.blob % digits}, {self.blob % prefix}, 0, NULL)" for digits in ids])
        return f"INSERT INTO headgate_once (id, prefix, expires_us, body) VALUES {rows}{self.keep}"

    def records(self, ids: Iterable[str]) -> str:
        """Records of sorted ids, locked in that order: their ids, when they expire, and their bodies."""
        return (
            f"SELECT {self.line(self.hex_of, 'expires_us', self.hex_body)} FROM headgate_once {self.by_key} "
            f"WHERE id IN ({self.ids(ids)}) ORDER BY id{self.locking}"
        )

    def write_records(self, records: Iterable[tuple[str, int, bytes]]) -> str:
        """Replace what rows say that are there, which the transaction has locked."""
        nothing = self.bytes_of("")
        rows = ", ".join([f"({self.blob % d}, {nothing}, {at}, {self.blob % body.hex()})" for d, at, body in records])
        sets = ", ".join([f"{field} = {self.inserted % field}" for field in ("expires_us", "body")])
        return f"INSERT INTO headgate_once (id, prefix, expires_us, body) VALUES {rows}{self.upsert}{sets}"

    def delete_records(self, ids: Iterable[str]) -> str:
        return f"DELETE FROM headgate_once WHERE id IN ({self.ids(ids)})"


def read_row(line: str) -> tuple[str, Row]:
    """An id's digits and its row, from the text that `Dialect.rows` asked for."""
    digits, algorithm, count, capacity, period, time, a, b, moved, dropped, expires = line.split(",")
    return digits, Row(
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
    # INSERT IGNORE would take a shared lock on a row that is there, and two of those dead-lock when both go on to
    # change it; this takes the exclusive one.
    keep=" ON DUPLICATE KEY UPDATE id = id",
    upsert=" ON DUPLICATE KEY UPDATE ",
    inserted="VALUES(%s)",
    locking=" FOR UPDATE",
    skipping=" FOR UPDATE SKIP LOCKED",
    by_key="FORCE INDEX (PRIMARY)",
    # NOW() is when the statement began to wait; SYSDATE() when it is reached.
    clock="TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6))",
    limits_deletes=True,
    unites=True,
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
    # now() is when the transaction began.
    clock="(extract(epoch FROM clock_timestamp()) * 1000000)::bigint",
    limits_deletes=False,
    unites=True,
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
    unites=False,
    updates_values=False,
)
