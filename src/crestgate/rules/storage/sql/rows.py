"""Conversion of records and audit entries to and from database rows.

Ids and names are UTF-8 bytes, including lone surrogates; JSON is in ASCII. A unique key is indexed by its SHA-256 in
column `claim`, and stored as text beside it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any, cast, get_args

from sqlalchemy import Row

from crestgate.errors import Problem, ValidationError
from crestgate.rules.port import AuditEntry, Edit, Kind, Record, UnreadableRecord
from crestgate.stores.sql.schema import MAX_ID_BYTES, MAX_NAME_BYTES, MAX_SUBJECT_BYTES

__all__ = [
    "audit_row",
    "bytes_of",
    "check_edit",
    "cut",
    "digest",
    "entry_of",
    "lenient_name_of",
    "name_of",
    "record_of",
    "record_row",
    "split_records",
]

KINDS: tuple[str, ...] = get_args(Kind)


def bytes_of(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def digest(unique_key: str) -> bytes:
    return sha256(bytes_of(unique_key)).digest()


def cut(text: str, max_bytes: int) -> bytes:
    """The text in UTF-8, truncated to whole characters.

    >>> cut("naïve", 3), cut("naïve", 4)
    (b'na', b'na\\xc3\\xaf')
    """
    data = bytes_of(text)
    if len(data) <= max_bytes:
        return data
    while data[max_bytes] & 0xC0 == 0x80:  # in the middle of a character
        max_bytes -= 1
    return data[:max_bytes]


def check_edit(edit: Edit) -> None:
    """ValidationError if its id is too long for the column."""
    size = len(bytes_of(edit.id))
    if size > MAX_ID_BYTES:
        problem = f"is {size:,} bytes long; the maximum is {MAX_ID_BYTES:,}: {edit.id[:40]!r}…"
        raise ValidationError([Problem("id", problem)])


def name_of(kind: str, record_id: bytes, location: str) -> tuple[Kind, str]:
    shown = f"{kind} {record_id!r}"
    if kind not in KINDS:
        reason = ValueError(f"{kind!r} is none of {', '.join(KINDS)}: a newer Crestgate may have written it")
        raise _unreadable(shown, "kind", reason, location, "crestgate_records")
    try:
        return cast(Kind, kind), record_id.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise _unreadable(shown, "id", error, location, "crestgate_records") from None


def lenient_name_of(kind: str, record_id: bytes) -> tuple[Kind, str]:
    """The name of a record that may be unreadable, or of its deletion."""
    try:
        return cast(Kind, kind), record_id.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return cast(Kind, kind), record_id.decode("utf-8", "backslashreplace")


def split_records(rows: Iterable[Row[Any]], location: str) -> tuple[list[Record], list[UnreadableRecord]]:
    """The records of rows, and those that cannot be read."""
    records, unreadable = [], []
    for row in rows:
        try:
            records.append(record_of(row, location))
        except ValidationError as error:
            unreadable.append(UnreadableRecord(*lenient_name_of(row.kind, row.id), error.problems))
    return records, unreadable


def record_row(prefix: bytes, revision: int, record: Record) -> dict[str, Any]:
    unique_key = record.unique_key
    return {
        "prefix": prefix,
        "kind": record.kind,
        "id": bytes_of(record.id),
        "version": record.version,
        "revision": revision,
        "deleted": 0,
        "claim": None if unique_key is None else digest(unique_key),
        "claim_text": None if unique_key is None else json.dumps(unique_key),
        "expires_us": record.expires_us,
        "created_us": record.created_us,
        "updated_us": record.updated_us,
        "body": _json(record.body),
    }


def record_of(row: Row[Any], location: str) -> Record:
    """The record of a row; ValidationError if it is invalid."""
    kind, record_id = name_of(row.kind, row.id, location)
    body = _mapping(row.body, f"{kind} {record_id!r}", "body", location, "crestgate_records")
    try:
        unique_key = None if row.claim_text is None else str(json.loads(row.claim_text))
    except (ValueError, RecursionError) as error:
        raise _unreadable(f"{kind} {record_id!r}", "claim_text", error, location, "crestgate_records") from None
    numbers = (row.version, row.created_us, row.updated_us, row.expires_us or 0)
    if not all(isinstance(number, int) for number in numbers):  # SQLite checks no types
        reason = ValueError(f"whole numbers are expected, not {numbers!r}")
        columns = "version, created_us, updated_us, expires_us"
        raise _unreadable(f"{kind} {record_id!r}", columns, reason, location, "crestgate_records")
    return Record(kind, record_id, row.version, body or {}, row.created_us, row.updated_us, unique_key, row.expires_us)


def audit_row(prefix: bytes, entry: AuditEntry) -> dict[str, Any]:
    """Names that are too long are truncated: they must not make a write fail."""
    return {
        "prefix": prefix,
        "at_us": entry.at_us,
        "actor": cut(entry.actor, MAX_NAME_BYTES),
        "address": cut(entry.address, MAX_NAME_BYTES),
        "action": entry.action,
        "subject": cut(entry.subject, MAX_SUBJECT_BYTES),
        "before": None if entry.before is None else _json(entry.before),
        "after": None if entry.after is None else _json(entry.after),
    }


def entry_of(row: Row[Any], location: str) -> AuditEntry:
    what = f"audit entry {row.id}"
    try:
        actor, address, subject = (
            data.decode("utf-8", "surrogatepass") for data in (row.actor, row.address, row.subject)
        )
    except UnicodeDecodeError as error:
        raise _unreadable(what, "actor, address, subject", error, location, "crestgate_audit") from None
    before = _mapping(row.before, what, "before", location, "crestgate_audit")
    after = _mapping(row.after, what, "after", location, "crestgate_audit")
    return AuditEntry(row.at_us, actor, address, row.action, subject, before, after, str(row.id))


def _json(body: Mapping[str, Any]) -> str:
    return json.dumps(dict(body), separators=(",", ":"))


def _mapping(text: str | None, what: str, column: str, location: str, table: str) -> Mapping[str, Any] | None:
    if text is None:
        return None
    try:
        body = json.loads(text)
        if not isinstance(body, dict):
            raise ValueError(f"a JSON object is expected, not {type(body).__name__}")
    except (ValueError, TypeError, RecursionError) as error:
        raise _unreadable(what, column, error, location, table) from None
    return body


def _unreadable(what: str, column: str, error: Exception, location: str, table: str) -> ValidationError:
    advice = f"correct the row of {table}, or delete it"  # without what it holds: it may be of an API key
    return ValidationError([Problem(what, f"its {column} cannot be read: {error}; {advice}", location)])
