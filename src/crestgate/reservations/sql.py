"""Reservations in a SQL database: rows of `crestgate_records` under a prefix of their own.

The columns are used as rules use them: `version` for compare-and-set, `expires_us` for when a row must be swept, and
`claim` for a digest of the owner, while the reservation is open. Rules have another prefix, so neither sees the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from typing import Any, TypeVar

from sqlalchemy import Connection, delete, func, insert, select, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as NoConnectionFree

from crestgate.databases.engines import abandon, is_busy, open_engine
from crestgate.databases.names import quoted, short_name
from crestgate.errors import StoreError
from crestgate.reservations.port import ReservationBook, ReservationRow
from crestgate.runtime.backoff import poll
from crestgate.runtime.fork_safety import renew_after_fork
from crestgate.stores.sql.schema import records
from crestgate.stores.sql.session import Driver

__all__ = ["SqlBook"]

T = TypeVar("T")
KIND = "reservation"
OWNER_END = "\n"
"""Between the owner and the body in a row: no id of a caller has a line end."""


class SqlBook(ReservationBook):
    """The rows under `prefix` in the database of `driver`, whose tables exist."""

    def __init__(self, driver: Driver, *, prefix: str, timeout: float, pool_size: int | None) -> None:
        self._address = driver.name
        self._prefix = short_name(f"{quoted(prefix)}\0reservations")
        self._timeout = timeout
        self._engine = open_engine(driver, timeout, pool_size)
        renew_after_fork(self)

    def add(self, row: ReservationRow, max_open: int) -> bool:
        mine = select(func.count()).select_from(records)
        mine = mine.where(records.c.prefix == self._prefix, records.c.claim == _claim(row.owner))
        values = {
            **self._values(row),
            "prefix": self._prefix,
            "kind": KIND,
            "id": row.id.encode(),
            "revision": 0,
            "deleted": 0,
            "created_us": 0,
            "updated_us": 0,
        }

        def run(connection: Connection) -> bool:
            if connection.execute(mine).scalar_one() >= max_open:
                return False
            connection.execute(insert(records).values(values))
            return True

        return self._transaction(run)

    def find(self, reservation_id: str) -> ReservationRow | None:
        rows = self._select(records.c.id == reservation_id.encode(), 1)
        return rows[0] if rows else None

    def replace(self, row: ReservationRow) -> bool:
        statement = update(records).where(*self._is(row.id, row.version - 1)).values(self._values(row))
        return self._transaction(lambda connection: connection.execute(statement).rowcount == 1)

    def delete(self, row: ReservationRow) -> bool:
        statement = delete(records).where(*self._is(row.id, row.version))
        return self._transaction(lambda connection: connection.execute(statement).rowcount == 1)

    def due(self, now_us: int, count: int) -> list[ReservationRow]:
        return self._select(records.c.expires_us <= now_us, count)

    def close(self) -> None:
        self._engine.dispose()

    def renew(self) -> None:
        """In a forked child."""
        abandon(self._engine)

    def _select(self, condition: Any, count: int) -> list[ReservationRow]:
        query = select(records.c.id, records.c.version, records.c.expires_us, records.c.claim, records.c.body)
        query = query.where(records.c.prefix == self._prefix, records.c.kind == KIND, condition)
        query = query.order_by(records.c.expires_us).limit(count)
        rows = self._transaction(lambda connection: connection.execute(query).fetchall(), writes=False)
        return [_row(row) for row in rows]

    def _is(self, reservation_id: str, version: int) -> tuple[Any, ...]:
        return (
            records.c.prefix == self._prefix,
            records.c.kind == KIND,
            records.c.id == reservation_id.encode(),
            records.c.version == version,
        )

    def _values(self, row: ReservationRow) -> dict[str, Any]:
        claim = _claim(row.owner) if row.is_open else None
        body = f"{row.owner}{OWNER_END}{row.body}"
        return {"version": row.version, "expires_us": row.due_us, "claim": claim, "body": body}

    def _transaction(self, action: Callable[[Connection], T], *, writes: bool = True) -> T:
        """The result of a transaction of its own, which is repeated on lock conflicts."""

        def attempt() -> tuple[T] | None:
            try:
                with self._engine.connect() as connection:
                    if writes and self._engine.dialect.name == "sqlite":
                        connection.exec_driver_sql("BEGIN IMMEDIATE")
                    result = action(connection)
                    connection.commit()
                    return (result,)
            except DBAPIError as error:
                if is_busy(error):
                    return None
                raise

        with self._map_errors():
            result = poll(attempt, self._timeout)
        if result is None:
            raise StoreError(f"{self._address}: lock wait timeout after {self._timeout:g} s")
        return result[0]

    @contextmanager
    def _map_errors(self) -> Iterator[None]:
        try:
            yield
        except NoConnectionFree:
            raise StoreError(f"{self._address}: all connections of the pool are busy; see pool_size") from None
        except DBAPIError as error:
            problem = str(error.orig).strip().partition("\n")[0]
            raise StoreError(f"{self._address}: {problem}") from None


def _claim(owner: str) -> bytes:
    return sha256(owner.encode("utf-8", "surrogatepass")).digest()


def _row(row: Any) -> ReservationRow:
    owner, _, body = row.body.partition(OWNER_END)
    return ReservationRow(bytes(row.id).decode(), owner, row.version, row.expires_us, row.claim is not None, body)
