"""Rules and what else is configured, how often each set of them was written, and the audit log.

As in 0001, an earlier try may have been cut off between two statements, on a server without transactions for its
DDL: whatever is there already, a table or an index of one, is left as it is.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

OPTIONS: dict[str, Any] = {"mysql_engine": "InnoDB", "mariadb_engine": "InnoDB"}
SHORT = sa.LargeBinary().with_variant(mysql.VARBINARY(255), "mysql", "mariadb")
ID = sa.LargeBinary().with_variant(mysql.VARBINARY(1024), "mysql", "mariadb")
SUBJECT = sa.LargeBinary().with_variant(mysql.VARBINARY(1100), "mysql", "mariadb")
DIGEST = sa.LargeBinary().with_variant(mysql.BINARY(32), "mysql", "mariadb")
KIND = sa.String(16).with_variant(mysql.VARCHAR(16, charset="ascii", collation="ascii_bin"), "mysql", "mariadb")
WORD = sa.String(64).with_variant(mysql.VARCHAR(64, charset="ascii", collation="ascii_bin"), "mysql", "mariadb")
JSON = sa.Text().with_variant(mysql.MEDIUMTEXT(charset="ascii", collation="ascii_bin"), "mysql", "mariadb")
PLACE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")  # the one type that SQLite counts up by itself
INDEXES = {
    "headgate_records": {
        "headgate_records_revision": ["prefix", "revision"],
        "headgate_records_claim": ["prefix", "claim"],
        "headgate_records_expires_us": ["prefix", "expires_us"],
    },
    "headgate_audit": {
        "headgate_audit_at_us": ["prefix", "at_us"],
        "headgate_audit_actor": ["prefix", "actor", "id"],
        "headgate_audit_subject": ["prefix", "subject", "id"],
    },
}


def upgrade() -> None:
    op.create_table(
        "headgate_revisions",
        sa.Column("prefix", SHORT, primary_key=True),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("forgotten", sa.BigInteger, nullable=False),
        sa.Column("tidied_us", sa.BigInteger, nullable=False),
        if_not_exists=True,
        sqlite_with_rowid=False,
        **OPTIONS,
    )
    op.create_table(
        "headgate_records",
        sa.Column("prefix", SHORT, primary_key=True),
        sa.Column("kind", KIND, primary_key=True),
        sa.Column("id", ID, primary_key=True),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("deleted", sa.SmallInteger, nullable=False),
        sa.Column("claim", DIGEST),
        sa.Column("claim_text", JSON),
        sa.Column("expires_us", sa.BigInteger),
        sa.Column("created_us", sa.BigInteger, nullable=False),
        sa.Column("updated_us", sa.BigInteger, nullable=False),
        sa.Column("body", JSON),
        if_not_exists=True,
        **OPTIONS,
    )
    op.create_table(
        "headgate_audit",
        # An identity, not a serial: writing to the table is then all that an account must be allowed to.
        sa.Column("id", PLACE, sa.Identity(), primary_key=True),
        sa.Column("prefix", SHORT, nullable=False),
        sa.Column("at_us", sa.BigInteger, nullable=False),
        sa.Column("actor", SHORT, nullable=False),
        sa.Column("address", SHORT, nullable=False),
        sa.Column("action", WORD, nullable=False),
        sa.Column("subject", SUBJECT, nullable=False),
        sa.Column("before", JSON),
        sa.Column("after", JSON),
        if_not_exists=True,
        sqlite_autoincrement=True,  # or the number of an entry that was deleted might be given again
        **OPTIONS,
    )
    for table, indexes in INDEXES.items():
        there = {index["name"] for index in sa.inspect(op.get_bind()).get_indexes(table)}
        for name, columns in indexes.items():
            if name not in there:
                op.create_index(name, table, columns)


def downgrade() -> None:
    for table in ("headgate_audit", "headgate_records", "headgate_revisions"):
        op.drop_table(table)
