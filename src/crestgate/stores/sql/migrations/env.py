"""Alembic environment: runs the migrations on the connection that upgrade.py has locked."""

from __future__ import annotations

from alembic import context

from crestgate.stores.sql.schema import metadata

__all__ = ["run"]


def run() -> None:
    attributes = context.config.attributes
    context.configure(
        connection=attributes["connection"], target_metadata=metadata, version_table=attributes["version_table"]
    )
    with context.begin_transaction():
        context.run_migrations()


if hasattr(context, "config"):  # absent when the file is imported outside of Alembic
    run()
