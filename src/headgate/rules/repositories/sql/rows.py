"""Records and audit entries as the rows that a database keeps, and back.

Ids and names are UTF-8 bytes, also those with half of a surrogate pair; whatever is JSON is written in ASCII. A claim
is looked for by its SHA-256, which is short enough for an index, and kept as text beside it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, cast

from sqlalchemy import Row

from headgate.errors import Invalid, Problem
from headgate.rules.repositories.port import AuditEntry, Edit, Kind, Record
from headgate.stores.sql.schema import MOST_ID_BYTES, MOST_NAME_BYTES, MOST_SUBJECT_BYTES

__all__ = ["audit_row", "bytes_of", "check_edit", "cut", "digest", "entry_of", "name_of", "record_of", "record_row"]


def bytes_of(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def digest(claim: str) -> bytes:
    return sha256(bytes_of(claim)).digest()


def cut(text: str, most: int) -> bytes:
    """As many whole characters as fit.

    >>> cut("naïve", 3), cut("naïve", 4)
    (b'na', b'na\\xc3\\xaf')
    """
    data = bytes_of(text)
    if len(data) <= most:
        return data
    while data[most] & 0xC0 == 0x80:  # in the middle of a character
        most -= 1
    return data[:most]


def check_edit(edit: Edit) -> None:
    """Invalid if there is no room for its id."""
    size = len(bytes_of(edit.id))
    if size > MOST_ID_BYTES:
        problem = f"is {size:,} bytes long and may have {MOST_ID_BYTES:,} at most: {edit.id[:40]!r}…"
        raise Invalid([Problem("id", problem)])


def name_of(kind: str, record_id: bytes, place: str) -> tuple[Kind, str]:
    try:
        return cast(Kind, kind), record_id.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise _unreadable(f"{kind} {record_id!r}", "id", error, place, "headgate_records") from None


def record_row(prefix: bytes, revision: int, record: Record) -> dict[str, Any]:
    claim = record.claim
    return {
        "prefix": prefix,
        "kind": record.kind,
        "id": bytes_of(record.id),
        "version": record.version,
        "revision": revision,
        "deleted": 0,
        "claim": None if claim is None else digest(claim),
        "claim_text": None if claim is None else json.dumps(claim),
        "expires_us": record.expires_us,
        "created_us": record.created_us,
        "updated_us": record.updated_us,
        "body": _json(record.body),
    }


def record_of(row: Row[Any], place: str) -> Record:
    """The living record of a row; Invalid if it is none of ours."""
    kind, record_id = name_of(row.kind, row.id, place)
    body = _mapping(row.body, f"{kind} {record_id!r}", "body", place, "headgate_records")
    try:
        claim = None if row.claim_text is None else str(json.loads(row.claim_text))
    except (ValueError, RecursionError) as error:
        raise _unreadable(f"{kind} {record_id!r}", "claim_text", error, place, "headgate_records") from None
    return Record(kind, record_id, row.version, body or {}, row.created_us, row.updated_us, claim, row.expires_us)


def audit_row(prefix: bytes, entry: AuditEntry) -> dict[str, Any]:
    """Names that are too long are cut: nobody is to be kept from writing by what they are called."""
    return {
        "prefix": prefix,
        "at_us": entry.at_us,
        "actor": cut(entry.actor, MOST_NAME_BYTES),
        "address": cut(entry.address, MOST_NAME_BYTES),
        "action": entry.action,
        "subject": cut(entry.subject, MOST_SUBJECT_BYTES),
        "before": None if entry.before is None else _json(entry.before),
        "after": None if entry.after is None else _json(entry.after),
    }


def entry_of(row: Row[Any], place: str) -> AuditEntry:
    what = f"audit entry {row.id}"
    try:
        actor, address, subject = (
            data.decode("utf-8", "surrogatepass") for data in (row.actor, row.address, row.subject)
        )
    except UnicodeDecodeError as error:
        raise _unreadable(what, "actor, address, subject", error, place, "headgate_audit") from None
    before = _mapping(row.before, what, "before", place, "headgate_audit")
    after = _mapping(row.after, what, "after", place, "headgate_audit")
    return AuditEntry(row.at_us, actor, address, row.action, subject, before, after, str(row.id))


def _json(body: Mapping[str, Any]) -> str:
    return json.dumps(dict(body), separators=(",", ":"))


def _mapping(text: str | None, what: str, column: str, place: str, table: str) -> Mapping[str, Any] | None:
    if text is None:
        return None
    try:
        body = json.loads(text)
        if not isinstance(body, dict):
            raise ValueError(f"a JSON object is expected, not {text[:40]!r}")
    except (ValueError, RecursionError) as error:
        raise _unreadable(what, column, error, place, table) from None
    return body


def _unreadable(what: str, column: str, error: Exception, place: str, table: str) -> Invalid:
    advice = f"mend the row of {table}, or delete it"
    return Invalid([Problem(what, f"its {column} cannot be read: {error}; {advice}", place)])
