"""Look into the tables of a rule repository, and change them behind its back."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import literal_column, select, update

from crestgate.rules.storage.sql.repository import SqlRepository
from crestgate.stores.sql.schema import records

__all__ = ["SqlOpener", "advance", "corrupt", "now_of", "rows"]

SqlOpener = Callable[[str], SqlRepository]


def now_of(repository: SqlRepository) -> int:
    with repository.engine.connect() as connection:
        now: int = connection.execute(select(repository.clock)).scalar_one()
        return now


def advance(repository: SqlRepository, microseconds: int) -> None:
    """Advance the repository's clock."""
    repository.clock = literal_column(str(now_of(repository) + microseconds))


def rows(repository: SqlRepository) -> dict[str, int]:
    """Ids of all rows, with 1 for deleted records."""
    query = select(records.c.id, records.c.deleted).where(records.c.prefix == repository.prefix)
    with repository.engine.connect() as connection:
        return {row.id.decode(): row.deleted for row in connection.execute(query)}


def corrupt(repository: SqlRepository, **values: object) -> None:
    with repository.engine.begin() as connection:
        connection.execute(update(records).where(records.c.prefix == repository.prefix).values(values))
