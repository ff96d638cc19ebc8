"""SQLAlchemy tables: the schema after all migrations.

Columns that hold bytes are binary in every database, so that no collation, case or trailing blank ever makes two
counters, or two rules, one. JSON is written in ASCII, so that it may hold any character. docs/layouts.md describes the
columns.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.types import TypeEngine

__all__ = [
    "MAX_ID_BYTES",
    "MAX_NAME_BYTES",
    "MAX_SUBJECT_BYTES",
    "audit",
    "counters",
    "locks",
    "log",
    "metadata",
    "name_type",
    "once",
    "records",
    "revisions",
    "table_options",
    "usage",
    "usage_subjects",
    "usage_turns",
    "writes",
]

MAX_NAME_BYTES = 255
MAX_ID_BYTES = 1024
MAX_SUBJECT_BYTES = 1100
"""Room for a kind and an id."""

metadata = MetaData()

table_options: dict[str, Any] = {
    "mysql_engine": "InnoDB",
    "mariadb_engine": "InnoDB",
    "sqlite_with_rowid": False,
}


def bytes_type(length: int, exactly: bool = False) -> TypeEngine[bytes]:
    """Up to `length` bytes, or exactly so many."""
    short = mysql.BINARY(length) if exactly else mysql.VARBINARY(length)
    return LargeBinary().with_variant(short, "mysql", "mariadb")


def name_type(length: int) -> TypeEngine[str]:
    """ASCII text with a binary collation."""
    return String(length).with_variant(
        mysql.VARCHAR(length, charset="ascii", collation="ascii_bin"), "mysql", "mariadb"
    )


def json_type() -> TypeEngine[str]:
    """JSON in ASCII, up to 16 MB."""
    return Text().with_variant(mysql.MEDIUMTEXT(charset="ascii", collation="ascii_bin"), "mysql", "mariadb")


def number(name: str) -> Column[int]:
    return Column(name, BigInteger, nullable=False)


counters = Table(
    "crestgate_counters",
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
    Index("crestgate_counters_expires_us", "expires_us"),
    **table_options,
)

log = Table(
    "crestgate_log",
    metadata,
    Column("id", bytes_type(16, exactly=True), primary_key=True),
    Column("tick", BigInteger, primary_key=True, autoincrement=False),
    number("cost"),
    **table_options,
)

locks = Table(
    "crestgate_locks",
    metadata,
    Column("name", bytes_type(255), primary_key=True),
    number("version"),
    Column("holder", name_type(64), nullable=False),
    number("expires_us"),
    **table_options,
)

revisions = Table(
    "crestgate_revisions",
    metadata,
    Column("prefix", bytes_type(MAX_NAME_BYTES), primary_key=True),
    number("revision"),
    number("compacted"),
    number("swept_us"),
    **table_options,
)

writes = Table(
    "crestgate_writes",
    metadata,
    Column("prefix", bytes_type(MAX_NAME_BYTES), primary_key=True),
    Column("revision", BigInteger, primary_key=True, autoincrement=False),
    Column("nonce", name_type(32), nullable=False),
    **table_options,
)

_engine = {name: value for name, value in table_options.items() if not name.startswith("sqlite")}
"""For tables with long rows, which SQLite stores better with a rowid."""

records = Table(
    "crestgate_records",
    metadata,
    Column("prefix", bytes_type(MAX_NAME_BYTES), primary_key=True),
    Column("kind", name_type(16), primary_key=True),
    Column("id", bytes_type(MAX_ID_BYTES), primary_key=True),
    number("version"),
    number("revision"),
    Column("deleted", SmallInteger, nullable=False),
    Column("claim", bytes_type(32, exactly=True)),
    Column("claim_text", json_type()),
    Column("expires_us", BigInteger),
    number("created_us"),
    number("updated_us"),
    Column("body", json_type()),
    Index("crestgate_records_revision", "prefix", "revision"),
    Index("crestgate_records_claim", "prefix", "claim"),
    Index("crestgate_records_expires_us", "prefix", "expires_us"),
    **_engine,
)

audit = Table(
    "crestgate_audit",
    metadata,
    Column("id", BigInteger().with_variant(Integer(), "sqlite"), Identity(), primary_key=True),
    Column("prefix", bytes_type(MAX_NAME_BYTES), nullable=False),
    number("at_us"),
    Column("actor", bytes_type(MAX_NAME_BYTES), nullable=False),
    Column("address", bytes_type(MAX_NAME_BYTES), nullable=False),
    Column("action", name_type(64), nullable=False),
    Column("subject", bytes_type(MAX_SUBJECT_BYTES), nullable=False),
    Column("before", json_type()),
    Column("after", json_type()),
    Index("crestgate_audit_at_us", "prefix", "at_us"),
    Index("crestgate_audit_actor", "prefix", "actor", "id"),
    Index("crestgate_audit_subject", "prefix", "subject", "id"),
    sqlite_autoincrement=True,
    **_engine,
)

usage_turns = Table(
    "crestgate_usage_turns", metadata, Column("prefix", bytes_type(MAX_NAME_BYTES), primary_key=True), **table_options
)


def usage_key(name: str) -> list[Column[Any]]:
    """The primary key of usage: prefix, step (minute or hour), its start, and a rule or subject."""
    return [
        Column("prefix", bytes_type(MAX_NAME_BYTES), primary_key=True),
        Column("step", SmallInteger, primary_key=True, autoincrement=False),
        Column("at_us", BigInteger, primary_key=True, autoincrement=False),
        Column(name, bytes_type(MAX_ID_BYTES), primary_key=True),
    ]


usage = Table(
    "crestgate_usage",
    metadata,
    *usage_key("rule"),
    number("allowed"),
    number("denied"),
    number("shadowed"),
    Index("crestgate_usage_rule", "prefix", "step", "rule", "at_us"),
    **table_options,
)

usage_subjects = Table(
    "crestgate_usage_subjects",
    metadata,
    *usage_key("subject"),
    number("allowed"),
    number("denied"),
    **table_options,
)

once = Table(
    "crestgate_idempotency",
    metadata,
    Column("id", bytes_type(16, exactly=True), primary_key=True),
    Column("prefix", bytes_type(MAX_NAME_BYTES), nullable=False),
    number("expires_us"),
    Column("body", LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")),
    Index("crestgate_idempotency_expires_us", "expires_us"),
    **_engine,
)
