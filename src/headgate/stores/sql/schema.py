"""The tables, in SQLAlchemy's words: what the migrations must have made when the last of them has run.

Columns that hold bytes are binary in every database, so that no collation, case or trailing blank ever makes two
counters one. docs/stores.md says what each column means.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Column, Index, LargeBinary, MetaData, String, Table
from sqlalchemy.dialects import mysql
from sqlalchemy.types import TypeEngine

__all__ = ["counters", "locks", "log", "metadata", "name_type", "table_options"]

metadata = MetaData()

table_options: dict[str, Any] = {
    "mysql_engine": "InnoDB",
    "mariadb_engine": "InnoDB",
    "sqlite_with_rowid": False,
}


def bytes_type(length: int, exactly: bool = False) -> TypeEngine[bytes]:
    """So many bytes, at most or exactly."""
    short = mysql.BINARY(length) if exactly else mysql.VARBINARY(length)
    return LargeBinary().with_variant(short, "mysql", "mariadb")


def name_type(length: int) -> TypeEngine[str]:
    """ASCII text that is compared as it is."""
    return String(length).with_variant(
        mysql.VARCHAR(length, charset="ascii", collation="ascii_bin"), "mysql", "mariadb"
    )


def number(name: str) -> Column[int]:
    return Column(name, BigInteger, nullable=False)


counters = Table(
    "headgate_counters",
    metadata,
    Column("id", bytes_type(16, exactly=True), primary_key=True),
    Column("prefix", bytes_type(255), nullable=False),
    Column("name", bytes_type(255), nullable=False),
    Column("subject", bytes_type(1024), nullable=False),
    Column("algorithm", name_type(64), nullable=False),
    number("count"),
    number("capacity"),
    number("period_us"),
    number("time"),
    number("a"),
    number("b"),
    number("moved"),
    number("dropped"),
    number("expires_us"),
    Index("headgate_counters_expires_us", "expires_us"),
    **table_options,
)

log = Table(
    "headgate_log",
    metadata,
    Column("id", bytes_type(16, exactly=True), primary_key=True),
    Column("tick", BigInteger, primary_key=True, autoincrement=False),
    number("cost"),
    **table_options,
)

locks = Table(
    "headgate_locks",
    metadata,
    Column("name", bytes_type(255), primary_key=True),
    number("version"),
    Column("holder", name_type(64), nullable=False),
    number("expires_us"),
    **table_options,
)
