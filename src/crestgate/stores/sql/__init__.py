"""Counters in MariaDB, MySQL, PostgreSQL and SQLite."""

from crestgate.stores.sql.store import SqlStore

__all__ = ["SqlStore"]
