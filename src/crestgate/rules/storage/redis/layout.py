"""Redis keys of rules, and the encoding of their values. Layout version 1.

All keys begin with the tag of the prefix, `{cg}` for `cg`, so that a cluster stores them in one slot, as
transactions require. A *name* is the kind and the id of a record, `rule:orders-per-user`, in UTF-8.

    {cg}:rules:state     hash        `layout` (1), `revision`, `nonce` (a random text of the last write), `compacted`
                                     (the revision up to which changes are dropped), `swept_us` (the last sweep)
    {cg}:rules:records   hash        name → the record as JSON: version, revision, created_us, updated_us, claim,
                                     expires_us, body
    {cg}:rules:deleted   hash        name → the last version of a deleted record, as long as its deletion is stored
    {cg}:rules:claims    hash        claim → the name of the record that has it
    {cg}:rules:changed   sorted set  name, by the revision of its last change; deleted ones too
    {cg}:rules:writes    sorted set  nonce of each write, by its revision
    {cg}:rules:names     sorted set  name of each record, all with score 0: in the order of their bytes
    {cg}:rules:ends      sorted set  name of each record that expires, by its expires_us
    {cg}:rules:audit     stream      at_us, actor, address, action, subject, before, after (JSON, or empty)
    {cg}:rules           channel     the revision, whenever there is a new one

No key has a TTL. The stored changes are bounded (see repository.py), and so is the audit log.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple, cast, get_args

from crestgate.databases.names import quoted
from crestgate.errors import ConfigError, Problem, StoreError, ValidationError
from crestgate.rules.port import AuditEntry, Kind, Record

__all__ = [
    "LAYOUT",
    "Keys",
    "audit_fields",
    "check_layout",
    "encoded",
    "lenient_name",
    "name_of",
    "parse_audit_id",
    "read_audit",
    "read_record",
    "text_of_record",
]

LAYOUT = b"1"
_KINDS = {kind.encode(): kind for kind in get_args(Kind)}
_AUDIT_ID = re.compile(r"([0-9]{15})-([0-9]{10})")


class Keys(NamedTuple):
    """The keys of one prefix, in the order in which scripts get them."""

    state: str
    records: str
    deleted: str
    claims: str
    changed: str
    writes: str
    names: str
    ends: str
    audit: str

    @classmethod
    def of(cls, prefix: str) -> Keys:
        return cls(*(f"{channel_of(prefix)}:{field}" for field in cls._fields))

    @property
    def channel(self) -> str:
        """
        >>> Keys.of("cg").channel
        '{cg}:rules'
        """
        return self.state.removesuffix(":state")


def channel_of(prefix: str) -> str:
    return f"{{{quoted(prefix)}}}:rules"


def check_layout(layout: bytes | None, keys: Keys, address: str) -> None:
    if layout is not None and layout != LAYOUT:
        shown = layout.decode(errors="replace")
        raise StoreError(
            f"{address}: the rules under {keys.channel} have layout {shown}, and this version of Crestgate supports "
            f"layout {LAYOUT.decode()}: upgrade Crestgate, or use another prefix"
        )


def encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def decoded(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


def name_of(kind: Kind, record_id: str) -> bytes:
    return encoded(f"{kind}:{record_id}")


def split_name(name: bytes, location: str) -> tuple[Kind, str]:
    kind, _, record_id = name.partition(b":")
    try:
        return _KINDS[kind], decoded(record_id)
    except (KeyError, UnicodeDecodeError):
        raise _unreadable(
            name, location, "is not the name of a record: another program, or a newer Crestgate, has written it"
        ) from None


def lenient_name(name: bytes) -> tuple[Kind, str]:
    """The name of a record that may be unreadable, or of its deletion."""
    try:
        text = decoded(name)
    except UnicodeDecodeError:
        text = name.decode("utf-8", "backslashreplace")
    kind, _, record_id = text.partition(":")
    return cast(Kind, kind), record_id


def text_of_record(record: Record, revision: int) -> str:
    return _json(
        {
            "version": record.version,
            "revision": revision,
            "created_us": record.created_us,
            "updated_us": record.updated_us,
            "claim": record.unique_key,
            "expires_us": record.expires_us,
            "body": dict(record.body),
        }
    )


def read_record(name: bytes, text: bytes, location: str) -> Record:
    """The record of this name, or ValidationError if its text is invalid. `location` is for messages."""
    kind, record_id = split_name(name, location)
    try:
        stored = json.loads(text)
        record = Record(
            kind,
            record_id,
            stored["version"],
            stored["body"],
            stored["created_us"],
            stored["updated_us"],
            stored["claim"],
            stored["expires_us"],
        )
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise _unreadable(name, location, f"cannot be read ({_reason(error)})") from None
    numbers = (record.version, record.created_us, record.updated_us)
    whole = all(type(number) is int for number in numbers) and type(record.expires_us) in (int, type(None))
    if not whole or not isinstance(record.body, dict) or not isinstance(record.unique_key, str | None):
        raise _unreadable(name, location, "cannot be read (a field has the wrong type)")
    return record


def audit_fields(entry: AuditEntry) -> dict[str, bytes]:
    """The fields of a stream entry, in the order of the layout."""
    fields = {
        "at_us": str(entry.at_us),
        "actor": entry.actor,
        "address": entry.address,
        "action": entry.action,
        "subject": entry.subject,
        "before": "" if entry.before is None else _json(entry.before),
        "after": "" if entry.after is None else _json(entry.after),
    }
    return {field: encoded(value) for field, value in fields.items()}


def read_audit(entry_id: bytes, fields: Mapping[bytes, bytes], location: str) -> AuditEntry:
    milliseconds, _, number = entry_id.partition(b"-")
    try:
        at_us, actor, address, action, subject, before, after = (
            decoded(fields[field])
            for field in (b"at_us", b"actor", b"address", b"action", b"subject", b"before", b"after")
        )
        return AuditEntry(
            int(at_us),
            actor,
            address,
            action,
            subject,
            json.loads(before) if before else None,
            json.loads(after) if after else None,
            # Zero-padded, so that ids compare as the port requires: 9-10 is before 10-9.
            id=f"{int(milliseconds):015}-{int(number):010}",
        )
    except (ValueError, KeyError, RecursionError) as error:
        raise _unreadable(entry_id, location, f"cannot be read ({_reason(error)})") from None


def parse_audit_id(text: str) -> tuple[int, int]:
    """Milliseconds and number of an entry's id.

    >>> parse_audit_id("001790000000000-0000000003")
    (1790000000000, 3)
    """
    match = _AUDIT_ID.fullmatch(text)
    if match is None:
        raise ConfigError.of("before", f"must be the id of an audit entry, as returned by a query, not {text!r}")
    return int(match[1]), int(match[2])


def _json(data: Any) -> str:
    """In ASCII, so that any text is valid; NaN and infinities are not allowed."""
    return json.dumps(dict(data), separators=(",", ":"), allow_nan=False)


def _reason(error: Exception) -> str:
    return f"there is no {error}" if isinstance(error, KeyError) else str(error)


def _unreadable(name: bytes, location: str, problem: str) -> ValidationError:
    return ValidationError([Problem(name.decode("utf-8", "backslashreplace"), problem, file=location)])
