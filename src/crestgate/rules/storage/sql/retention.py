"""Retention: writers purge old rows about once an hour, in small batches.

- Audit entries are kept for 90 days.
- Expired records are removed a day later, with an audit entry.
- Deletions are kept for a day, so that other processes see them. `compacted` is the revision up to which deletions
  may be purged: a reader that has seen less than that reads everything again.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from sqlalchemy import Connection, delete, select

from crestgate.rules.port import AUDIT_DAYS, DAY_US, Kind, Record
from crestgate.rules.storage.sql.rows import bytes_of, split_records
from crestgate.stores.sql.schema import audit, records

__all__ = ["BATCH_SIZE", "HOUR_US", "expired", "is_due", "purge_audit", "purge_deletions"]

HOUR_US = 3600 * 1_000_000
BATCH_SIZE = 200
"""Rows at a time; if there are more, the next write continues."""


class BatchResult(NamedTuple):
    """The highest revision that was purged, 0 for none, and whether there is more to do."""

    revision: int
    more: bool


def is_due(swept_us: int, now_us: int) -> bool:
    """Whether an hour has passed, or the clock was set back."""
    return not 0 <= now_us - swept_us < HOUR_US


def purge_audit(connection: Connection, prefix: bytes, now_us: int) -> BatchResult:
    old = (audit.c.prefix == prefix, audit.c.at_us < now_us - AUDIT_DAYS * DAY_US)
    found = connection.scalars(select(audit.c.id).where(*old).order_by(audit.c.at_us).limit(BATCH_SIZE)).all()
    if found:
        connection.execute(delete(audit).where(audit.c.id.in_(found)))
    return BatchResult(0, len(found) == BATCH_SIZE)


def purge_deletions(connection: Connection, prefix: bytes, now_us: int) -> BatchResult:
    """Purge the oldest first, so that all up to the returned revision are purged."""
    old = (records.c.prefix == prefix, records.c.deleted == 1, records.c.updated_us < now_us - DAY_US)
    query = select(records.c.revision).where(*old).order_by(records.c.revision).limit(BATCH_SIZE)
    found = connection.scalars(query).all()
    if not found:
        return BatchResult(0, False)
    connection.execute(delete(records).where(*old, records.c.revision <= found[-1]))
    return BatchResult(found[-1], len(found) == BATCH_SIZE)


def expired(
    connection: Connection, prefix: bytes, now_us: int, location: str, excluded: Collection[tuple[Kind, str]]
) -> list[Record]:
    """A batch of records that expired more than a day ago, except those that the same write touches."""
    old = (records.c.prefix == prefix, records.c.deleted == 0, records.c.expires_us < now_us - DAY_US)
    keys = {(kind, bytes_of(record_id)) for kind, record_id in excluded}
    query = select(records).where(*old).order_by(records.c.expires_us).limit(BATCH_SIZE + len(keys))
    rows = [row for row in connection.execute(query) if (row.kind, row.id) not in keys]
    # Unreadable ones stay: readers report them, and other writes do not fail because of them.
    return split_records(rows[:BATCH_SIZE], location)[0]
