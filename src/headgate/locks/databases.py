"""A SQLAlchemy engine for the rows of locks: the database of a SQL store's URL, with every wait bounded.

The store's own engine is for making tables; this one is used while others wait. A server that hangs, and a client
that is stopped in the middle of a transaction, must not hold them up for ever: a transaction that says nothing for
the timeout is ended by MariaDB and PostgreSQL (MySQL and SQLite cannot).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from sqlalchemy import Engine, QueuePool, create_engine, event

from headgate.stores.sql.dialect import MYSQL, SQLITE
from headgate.stores.sql.session import Driver

if TYPE_CHECKING:
    from headgate.stores.sql.mysql import MysqlDriver
    from headgate.stores.sql.postgres import PostgresDriver
    from headgate.stores.sql.sqlite import SqliteDriver

__all__ = ["open_engine"]

POOL_SIZE = 5


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
        return _sqlite(kind, pool)
    return _mysql(kind, timeout, pool) if driver.dialect is MYSQL else _postgres(kind, timeout, pool)


def _sqlite(driver: SqliteDriver, pool: dict[str, Any]) -> Engine:
    return create_engine("sqlite://", creator=driver.connect, **pool)


def _mysql(driver: MysqlDriver, timeout: float, pool: dict[str, Any]) -> Engine:
    import pymysql

    waits = dict.fromkeys(("connect_timeout", "read_timeout", "write_timeout"), timeout)
    given = {**driver.parameters(), **waits, "autocommit": False, "client_flag": 0}
    engine = create_engine(
        "mysql+pymysql://", creator=lambda: pymysql.connect(**given), isolation_level="READ COMMITTED", **pool
    )
    seconds = max(math.ceil(timeout), 1)
    _at_connect(
        engine,
        f"SET SESSION innodb_lock_wait_timeout = {seconds}, sql_mode = 'STRICT_ALL_TABLES'"
        f"/*M!100300 , idle_transaction_timeout = {seconds} */",
    )
    return engine


def _postgres(driver: PostgresDriver, timeout: float, pool: dict[str, Any]) -> Engine:
    from headgate.locks.bounded_postgres import bounded_connect

    engine = create_engine(
        "postgresql+psycopg://",
        creator=lambda: bounded_connect(driver.conninfo(), timeout),
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
    def say(connection: Any, _: object) -> None:
        with connection.cursor() as cursor:
            cursor.execute(statement)
        connection.commit()

    event.listen(engine, "connect", say)
