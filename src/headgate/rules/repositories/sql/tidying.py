"""What nobody needs any more is taken away by those who write: about once an hour, and little at a time.

- Audit entries are kept for 90 days.
- What has ended is removed a day later, with an audit entry.
- That something was deleted is remembered for a day, so that others hear of it. `forgotten` is the revision up to
  which deletions may be forgotten: whoever has seen less than that is given everything anew.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from sqlalchemy import Connection, delete, select

from headgate.rules.repositories.port import AUDIT_DAYS, DAY_US, Kind, Record
from headgate.rules.repositories.sql.rows import bytes_of, record_of
from headgate.stores.sql.schema import audit, records

__all__ = ["BITE", "HOUR_US", "ended", "forget_audit", "forget_deletions", "is_due"]

HOUR_US = 3600 * 1_000_000
BITE = 200
"""So many rows at a time; if there are more, the next write goes on."""


class Bite(NamedTuple):
    """What a step has come to: the highest revision that it forgot, 0 for none, and whether there is more to do."""

    revision: int
    more: bool


def is_due(tidied_us: int, now_us: int) -> bool:
    """Also when the clock was set back behind the last time."""
    return not 0 <= now_us - tidied_us < HOUR_US


def forget_audit(connection: Connection, prefix: bytes, now_us: int) -> Bite:
    old = (audit.c.prefix == prefix, audit.c.at_us < now_us - AUDIT_DAYS * DAY_US)
    found = connection.scalars(select(audit.c.id).where(*old).order_by(audit.c.at_us).limit(BITE)).all()
    if found:
        connection.execute(delete(audit).where(audit.c.id.in_(found)))
    return Bite(0, len(found) == BITE)


def forget_deletions(connection: Connection, prefix: bytes, now_us: int) -> Bite:
    """The oldest first, so that all up to the last of them are forgotten."""
    old = (records.c.prefix == prefix, records.c.deleted == 1, records.c.updated_us < now_us - DAY_US)
    query = select(records.c.revision).where(*old).order_by(records.c.revision).limit(BITE)
    found = connection.scalars(query).all()
    if not found:
        return Bite(0, False)
    connection.execute(delete(records).where(*old, records.c.revision <= found[-1]))
    return Bite(found[-1], len(found) == BITE)


def ended(
    connection: Connection, prefix: bytes, now_us: int, place: str, spared: Collection[tuple[Kind, str]]
) -> list[Record]:
    """Some of the records that ended more than a day ago, except those that this same write is about."""
    old = (records.c.prefix == prefix, records.c.deleted == 0, records.c.expires_us < now_us - DAY_US)
    keys = {(kind, bytes_of(record_id)) for kind, record_id in spared}
    query = select(records).where(*old).order_by(records.c.expires_us).limit(BITE + len(keys))
    rows = [row for row in connection.execute(query) if (row.kind, row.id) not in keys]
    return [record_of(row, place) for row in rows[:BITE]]
