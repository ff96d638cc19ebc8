"""Counters in MariaDB, MySQL, PostgreSQL and SQLite."""

from headgate.stores.sql.store import SqlStore

__all__ = ["SqlStore"]
