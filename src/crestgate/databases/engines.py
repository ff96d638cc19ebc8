"""SQLAlchemy engines for rules, locks and history, with every wait bounded.

A server that hangs, and a client that is stopped in the middle of a transaction, must not block others for ever: a
transaction that is idle for the timeout is ended by MariaDB and PostgreSQL (MySQL and SQLite cannot).
"""

from __future__ import annotations

import math
import sqlite3
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Engine,
    NullPool,
    Pool,
    QueuePool,
    create_engine,
    event,
    literal_column,
)
from sqlalchemy.exc import DBAPIError

from crestgate.stores.sql.dialect import MYSQL, SQLITE
from crestgate.stores.sql.session import Driver

if TYPE_CHECKING:
    from crestgate.stores.sql.mysql import MysqlDriver
    from crestgate.stores.sql.postgres import PostgresDriver
    from crestgate.stores.sql.sqlite import SqliteDriver

__all__ = ["abandon", "clock_of", "is_busy", "open_engine"]

POOL_SIZE = 5
_CLOCKS = {  # microseconds since the epoch
    "mysql": "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))",
    "postgresql": "CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS BIGINT)",
    "sqlite": "CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)",
}
_BUSY = {
    *(1205, 1213, 3572),  # MariaDB and MySQL: lock wait timeout, deadlock, NOWAIT
    *("55P03", "40P01", "40001"),  # PostgreSQL: NOWAIT or lock timeout, deadlock, serialization failure
}
_abandoned: list[Pool] = []
"""Connections of a parent process: closing one here would close the parent's session."""


def open_engine(driver: Driver, timeout: float, pool_size: int | None) -> Engine:
    """An engine for this driver's database; nothing is connected yet. `timeout` is in seconds."""
    kind: Any = driver
    pool = {
        "poolclass": QueuePool,
        "pool_size": pool_size or POOL_SIZE,
        "max_overflow": 0,
        "pool_timeout": timeout,
        "pool_pre_ping": True,
    }
    if driver.dialect is SQLITE:
        return _sqlite(kind)
    return _mysql(kind, timeout, pool) if driver.dialect is MYSQL else _postgres(kind, timeout, pool)


def clock_of(engine: Engine) -> ColumnElement[int]:
    """The database's own clock, in microseconds since the epoch, read when the statement runs."""
    return literal_column(_CLOCKS[engine.dialect.name], BigInteger)


def is_busy(error: DBAPIError) -> bool:
    """Whether it is a lock conflict, and a retry may succeed."""
    cause = error.orig
    if isinstance(cause, sqlite3.Error):
        return getattr(cause, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
    codes = {getattr(cause, "sqlstate", None), *(cause.args[:1] if cause is not None else ())}
    return not codes.isdisjoint(_BUSY)


def abandon(engine: Engine) -> None:
    """Drop the connections without closing them: in a forked child they are still the parent's."""
    _abandoned.append(engine.pool)
    engine.dispose(close=False)


def _sqlite(driver: SqliteDriver) -> Engine:
    """A connection for each use: none may be open during a fork, and a replaced file is noticed."""
    return create_engine("sqlite://", creator=driver.connect_briefly, poolclass=NullPool)


def _mysql(driver: MysqlDriver, timeout: float, pool: dict[str, Any]) -> Engine:
    import pymysql

    timeouts = dict.fromkeys(("connect_timeout", "read_timeout", "write_timeout"), timeout)
    arguments = {**driver.parameters(), **timeouts, "autocommit": False, "client_flag": 0}
    engine = create_engine(
        "mysql+pymysql://", creator=lambda: pymysql.connect(**arguments), isolation_level="READ COMMITTED", **pool
    )
    seconds = max(math.ceil(timeout), 1)
    _at_connect(
        engine,
        f"SET SESSION innodb_lock_wait_timeout = {seconds}, sql_mode = 'STRICT_ALL_TABLES'"
        f"/*M!100300 , idle_transaction_timeout = {seconds} */",
    )
    return engine


def _postgres(driver: PostgresDriver, timeout: float, pool: dict[str, Any]) -> Engine:
    from crestgate.databases.postgres import connect_with_timeout

    engine = create_engine(
        "postgresql+psycopg://",
        creator=lambda: connect_with_timeout(driver.conninfo(), timeout),
        isolation_level="READ COMMITTED",
        **pool,
    )
    milliseconds = max(int(timeout * 1000), 1)
    _at_connect(
        engine,
        f"SET lock_timeout = {milliseconds}; SET idle_in_transaction_session_timeout = {milliseconds}",
    )
    return engine


def _at_connect(engine: Engine, statement: str) -> None:
    def set_up(connection: Any, _: object) -> None:
        with connection.cursor() as cursor:
            cursor.execute(statement)
        connection.commit()

    event.listen(engine, "connect", set_up)
