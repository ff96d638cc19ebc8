"""What Alembic runs: the migrations, on the connection that upgrade.py has locked."""

from __future__ import annotations

from alembic import context

from headgate.stores.sql.schema import metadata

__all__ = ["run"]


def run() -> None:
    attributes = context.config.attributes
    context.configure(
        connection=attributes["connection"], target_metadata=metadata, version_table=attributes["version_table"]
    )
    with context.begin_transaction():
        context.run_migrations()


if hasattr(context, "config"):  # else somebody only looks at this file, and there is nothing to migrate
    run()
