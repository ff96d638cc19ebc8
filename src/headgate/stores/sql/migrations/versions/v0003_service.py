"""What a service keeps: how much was let through and how much was not, and what was decided once.

As in 0002, an earlier try may have been cut off between two statements: what is there already is left as it is.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

OPTIONS: dict[str, Any] = {"if_not_exists": True, "mysql_engine": "InnoDB", "mariadb_engine": "InnoDB"}
ID = sa.LargeBinary().with_variant(mysql.BINARY(16), "mysql", "mariadb")
SHORT = sa.LargeBinary().with_variant(mysql.VARBINARY(255), "mysql", "mariadb")
NAME = sa.LargeBinary().with_variant(mysql.VARBINARY(1024), "mysql", "mariadb")
BODY = sa.LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")
INDEXES = {
    "headgate_usage": {"headgate_usage_rule": ["prefix", "step", "rule", "at_us"]},
    "headgate_once": {"headgate_once_expires_us": ["expires_us"]},
}


def upgrade() -> None:
    op.create_table(
        "headgate_usage_turns", sa.Column("prefix", SHORT, primary_key=True), sqlite_with_rowid=False, **OPTIONS
    )
    op.create_table(
        "headgate_usage",
        *_place("rule"),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in ("allowed", "denied", "shadowed")),
        sqlite_with_rowid=False,
        **OPTIONS,
    )
    op.create_table(
        "headgate_usage_subjects",
        *_place("subject"),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in ("allowed", "denied")),
        sqlite_with_rowid=False,
        **OPTIONS,
    )
    op.create_table(
        "headgate_once",
        sa.Column("id", ID, primary_key=True),
        sa.Column("prefix", SHORT, nullable=False),
        sa.Column("expires_us", sa.BigInteger, nullable=False),
        sa.Column("body", BODY),
        **OPTIONS,
    )
    for table, indexes in INDEXES.items():
        there = {index["name"] for index in sa.inspect(op.get_bind()).get_indexes(table)}
        for name, columns in indexes.items():
            if name not in there:
                op.create_index(name, table, columns)


def _place(name: str) -> list[sa.Column[Any]]:
    """Whose minute or hour a row is about, and what it is about."""
    return [
        sa.Column("prefix", SHORT, primary_key=True),
        sa.Column("step", sa.SmallInteger, primary_key=True, autoincrement=False),
        sa.Column("at_us", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column(name, NAME, primary_key=True),
    ]


def downgrade() -> None:
    for table in ("headgate_once", "headgate_usage_subjects", "headgate_usage", "headgate_usage_turns"):
        op.drop_table(table)
