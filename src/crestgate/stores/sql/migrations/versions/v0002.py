"""Writes of rules: a random nonce for each revision, by which readers notice that a failover has lost writes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "crestgate_writes",
        sa.Column(
            "prefix",
            sa.LargeBinary().with_variant(mysql.VARBINARY(255), "mysql", "mariadb"),
            primary_key=True,
        ),
        sa.Column("revision", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column(
            "nonce",
            sa.String(32).with_variant(mysql.VARCHAR(32, charset="ascii", collation="ascii_bin"), "mysql", "mariadb"),
            nullable=False,
        ),
        if_not_exists=True,  # MariaDB and MySQL commit every DDL statement, also that of an interrupted run
        mysql_engine="InnoDB",
        mariadb_engine="InnoDB",
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    op.drop_table("crestgate_writes")
