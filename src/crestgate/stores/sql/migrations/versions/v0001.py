"""Initial schema: counters, locks, rules with their audit log, usage history and idempotency records.

MariaDB and MySQL commit every DDL statement by itself, so an interrupted run may have created a part of the schema.
Tables and indexes that exist already are therefore skipped.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

OPTIONS: dict[str, Any] = {"if_not_exists": True, "mysql_engine": "InnoDB", "mariadb_engine": "InnoDB"}
WITHOUT_ROWID: dict[str, Any] = {**OPTIONS, "sqlite_with_rowid": False}
INDEXES = {
    "crestgate_counters": {"crestgate_counters_expires_us": ["expires_us"]},
    "crestgate_records": {
        "crestgate_records_revision": ["prefix", "revision"],
        "crestgate_records_claim": ["prefix", "claim"],
        "crestgate_records_expires_us": ["prefix", "expires_us"],
    },
    "crestgate_audit": {
        "crestgate_audit_at_us": ["prefix", "at_us"],
        "crestgate_audit_actor": ["prefix", "actor", "id"],
        "crestgate_audit_subject": ["prefix", "subject", "id"],
    },
    "crestgate_usage": {"crestgate_usage_rule": ["prefix", "step", "rule", "at_us"]},
    "crestgate_idempotency": {"crestgate_idempotency_expires_us": ["expires_us"]},
}
TABLES = [
    *("crestgate_counters", "crestgate_log", "crestgate_locks"),
    *("crestgate_revisions", "crestgate_records", "crestgate_audit"),
    *("crestgate_usage_turns", "crestgate_usage", "crestgate_usage_subjects", "crestgate_idempotency"),
]


def varbinary(length: int) -> sa.types.TypeEngine[bytes]:
    return sa.LargeBinary().with_variant(mysql.VARBINARY(length), "mysql", "mariadb")


def binary(length: int) -> sa.types.TypeEngine[bytes]:
    return sa.LargeBinary().with_variant(mysql.BINARY(length), "mysql", "mariadb")


def ascii_string(length: int) -> sa.types.TypeEngine[str]:
    return sa.String(length).with_variant(
        mysql.VARCHAR(length, charset="ascii", collation="ascii_bin"), "mysql", "mariadb"
    )


def numbers(*names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.BigInteger, nullable=False) for name in names]


JSON = sa.Text().with_variant(mysql.MEDIUMTEXT(charset="ascii", collation="ascii_bin"), "mysql", "mariadb")
BODY = sa.LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")
AUDIT_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")  # SQLite autoincrements INTEGER only


def upgrade() -> None:
    create_counter_tables()
    create_rule_tables()
    create_service_tables()
    for table, indexes in INDEXES.items():
        existing = {index["name"] for index in sa.inspect(op.get_bind()).get_indexes(table)}
        for name, columns in indexes.items():
            if name not in existing:
                op.create_index(name, table, columns)


def create_counter_tables() -> None:
    op.create_table(
        "crestgate_counters",
        sa.Column("id", binary(16), primary_key=True),
        sa.Column("prefix", varbinary(255), nullable=False),
        sa.Column("name", varbinary(255), nullable=False),
        sa.Column("subject", varbinary(1024), nullable=False),
        sa.Column("algorithm", ascii_string(64), nullable=False),
        *numbers("count", "capacity", "period_us", "time", "a", "b", "moved", "dropped", "expires_us"),
        **WITHOUT_ROWID,
    )
    if op.get_bind().dialect.name == "postgresql":
        # Nearly every check rewrites its row: free space in the page allows heap-only updates, without index writes.
        op.execute("ALTER TABLE crestgate_counters SET (fillfactor = 50)")
    op.create_table(
        "crestgate_log",
        sa.Column("id", binary(16), primary_key=True),
        sa.Column("tick", sa.BigInteger, primary_key=True, autoincrement=False),
        *numbers("cost"),
        **WITHOUT_ROWID,
    )
    op.create_table(
        "crestgate_locks",
        sa.Column("name", varbinary(255), primary_key=True),
        *numbers("version"),
        sa.Column("holder", ascii_string(64), nullable=False),
        *numbers("expires_us"),
        **WITHOUT_ROWID,
    )


def create_rule_tables() -> None:
    op.create_table(
        "crestgate_revisions",
        sa.Column("prefix", varbinary(255), primary_key=True),
        *numbers("revision", "compacted", "swept_us"),
        **WITHOUT_ROWID,
    )
    op.create_table(
        "crestgate_records",
        sa.Column("prefix", varbinary(255), primary_key=True),
        sa.Column("kind", ascii_string(16), primary_key=True),
        sa.Column("id", varbinary(1024), primary_key=True),
        *numbers("version", "revision"),
        sa.Column("deleted", sa.SmallInteger, nullable=False),
        sa.Column("claim", binary(32)),
        sa.Column("claim_text", JSON),
        sa.Column("expires_us", sa.BigInteger),
        *numbers("created_us", "updated_us"),
        sa.Column("body", JSON),
        **OPTIONS,
    )
    op.create_table(
        "crestgate_audit",
        # An identity column, not a serial: INSERT on the table is then the only privilege that an account needs.
        sa.Column("id", AUDIT_ID, sa.Identity(), primary_key=True),
        sa.Column("prefix", varbinary(255), nullable=False),
        *numbers("at_us"),
        sa.Column("actor", varbinary(255), nullable=False),
        sa.Column("address", varbinary(255), nullable=False),
        sa.Column("action", ascii_string(64), nullable=False),
        sa.Column("subject", varbinary(1100), nullable=False),
        sa.Column("before", JSON),
        sa.Column("after", JSON),
        sqlite_autoincrement=True,  # never reuse the id of a deleted entry
        **OPTIONS,
    )


def create_service_tables() -> None:
    op.create_table("crestgate_usage_turns", sa.Column("prefix", varbinary(255), primary_key=True), **WITHOUT_ROWID)
    for table, subject, counts in (
        ("crestgate_usage", "rule", ("allowed", "denied", "shadowed")),
        ("crestgate_usage_subjects", "subject", ("allowed", "denied")),
    ):
        op.create_table(
            table,
            sa.Column("prefix", varbinary(255), primary_key=True),
            sa.Column("step", sa.SmallInteger, primary_key=True, autoincrement=False),
            sa.Column("at_us", sa.BigInteger, primary_key=True, autoincrement=False),
            sa.Column(subject, varbinary(1024), primary_key=True),
            *numbers(*counts),
            **WITHOUT_ROWID,
        )
    op.create_table(
        "crestgate_idempotency",
        sa.Column("id", binary(16), primary_key=True),
        sa.Column("prefix", varbinary(255), nullable=False),
        *numbers("expires_us"),
        sa.Column("body", BODY),
        **OPTIONS,
    )


def downgrade() -> None:
    for table in reversed(TABLES):
        op.drop_table(table)
