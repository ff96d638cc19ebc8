"""Counters, the entries of sliding logs, and locks.

A server without transactions for its DDL (MariaDB, MySQL) may have made some of them when an earlier try was cut
off: those are left as they are.
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

OPTIONS: dict[str, Any] = {
    "if_not_exists": True,
    "mysql_engine": "InnoDB",
    "mariadb_engine": "InnoDB",
    "sqlite_with_rowid": False,
}
ID = sa.LargeBinary().with_variant(mysql.BINARY(16), "mysql", "mariadb")
SHORT = sa.LargeBinary().with_variant(mysql.VARBINARY(255), "mysql", "mariadb")
SUBJECT = sa.LargeBinary().with_variant(mysql.VARBINARY(1024), "mysql", "mariadb")
NAME = sa.String(64).with_variant(mysql.VARCHAR(64, charset="ascii", collation="ascii_bin"), "mysql", "mariadb")
NUMBERS = ("count", "capacity", "period_us", "time", "a", "b", "moved", "dropped", "expires_us")


def upgrade() -> None:
    op.create_table(
        "headgate_counters",
        sa.Column("id", ID, primary_key=True),
        sa.Column("prefix", SHORT, nullable=False),
        sa.Column("name", SHORT, nullable=False),
        sa.Column("subject", SUBJECT, nullable=False),
        sa.Column("algorithm", NAME, nullable=False),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in NUMBERS),
        sa.Index("headgate_counters_expires_us", "expires_us"),
        **OPTIONS,
    )
    if op.get_bind().dialect.name == "postgresql":
        # Rows are rewritten at nearly every check: with room in its page a new version needs no new index entry.
        op.execute("ALTER TABLE headgate_counters SET (fillfactor = 50)")
    op.create_table(
        "headgate_log",
        sa.Column("id", ID, primary_key=True),
        sa.Column("tick", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("cost", sa.BigInteger, nullable=False),
        **OPTIONS,
    )
    op.create_table(
        "headgate_locks",
        sa.Column("name", SHORT, primary_key=True),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("holder", NAME, nullable=False),
        sa.Column("expires_us", sa.BigInteger, nullable=False),
        **OPTIONS,
    )


def downgrade() -> None:
    for table in ("headgate_locks", "headgate_log", "headgate_counters"):
        op.drop_table(table)
