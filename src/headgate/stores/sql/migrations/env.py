"""What Alembic runs: the migrations, on the connection that upgrade.py has locked."""

from __future__ import annotations

from alembic import context

from headgate.stores.sql.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=context.config.attributes["version_table"],
)
with context.begin_transaction():
    context.run_migrations()
