"""Create or upgrade the tables of a SQL database, with Alembic.

Any number of processes may do so at once: each waits for an advisory lock, and then runs the migrations that are
left. A database that a newer Crestgate has made is not changed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.util.exc import CommandError
from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from crestgate.errors import StoreError
from crestgate.runtime.fork_safety import fork_safe_lock
from crestgate.stores.sql.session import DatabaseConnectionError, Driver, StatementError
from crestgate.stores.sql.version import VERSION, version_mismatch

__all__ = ["upgrade_database", "wait_for_upgrade"]

VERSION_TABLE = "crestgate_version"
MIGRATIONS = Path(__file__).parent / "migrations"
_alembic_lock = fork_safe_lock()
"""Alembic passes the context to its migrations in a global, so a process upgrades one database at a time."""
_DENIED = {
    *(1044, 1142, 1143, 1227),  # MariaDB and MySQL: the database, a command, a column, a privilege
    "42501",  # PostgreSQL: insufficient privilege
}


def upgrade_database(driver: Driver) -> str:
    """Create or upgrade the tables; the version they had before, '' for none."""
    with _locked(driver) as connection:
        return _run(driver, connection)


def wait_for_upgrade(driver: Driver) -> None:
    """Return when no other process upgrades the tables: MySQL commits, and so shows, every step of an upgrade."""
    with _locked(driver) as connection:
        connection.rollback()


@contextmanager
def _locked(driver: Driver) -> Iterator[Connection]:
    """A connection that holds the advisory lock for upgrades."""
    try:
        driver.open(time.monotonic() + 5).close()  # its errors are clearer than SQLAlchemy's
        engine = driver.engine()
        try:
            with engine.connect() as connection:
                driver.lock(connection)
                yield connection
                driver.unlock(connection)  # after an error, closing the connection unlocks
        finally:
            engine.dispose()
    except (DatabaseConnectionError, StatementError) as error:
        raise StoreError(f"{driver.name}: {error}") from None
    except SQLAlchemyError as error:
        raise StoreError(f"{driver.name}: its tables could not be made or changed: {_reason(driver, error)}") from None


def _run(driver: Driver, connection: Connection) -> str:
    before = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE}).get_current_revision()
    if before is not None and before > VERSION:
        raise StoreError(version_mismatch(driver, before))
    if before != VERSION:
        config = Config()
        config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
        config.attributes.update(connection=connection, version_table=VERSION_TABLE)
        try:
            with _alembic_lock:
                command.upgrade(config, VERSION)
        except CommandError:
            raise StoreError(
                f"{driver.name}: its tables are of schema version {before}, which this Crestgate does not know, and it "
                f"needs version {VERSION}: they were made by another Crestgate, perhaps a newer one: install that, or "
                "use another database"
            ) from None
    connection.commit()
    return before or ""


def _reason(driver: Driver, error: SQLAlchemyError) -> str:
    """The database's message, and the remedy if this account may not create tables."""
    cause = getattr(error, "orig", None) or error
    message = str(cause.args[1] if len(cause.args) > 1 else cause)  # PyMySQL's arguments: number and message
    reason = message.strip().partition("\n")[0]
    if _DENIED.isdisjoint({getattr(cause, "sqlstate", None), *cause.args[:1]}):
        return reason
    upgrade = f"crestgate db upgrade {driver.option} '{driver.url}'"
    return f"{reason}: run `{upgrade}` once, with an account that may create tables"
