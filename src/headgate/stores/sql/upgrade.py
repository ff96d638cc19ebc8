"""Bring a database's tables to the version that this Headgate needs.

Any number of processes may do it at once: each waits until it is alone, and then finds what is left to do. A
database that a newer Headgate has made is left as it is.
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

from headgate.errors import StoreError
from headgate.stores.forking import fork_safe_lock
from headgate.stores.sql.session import Broken, Driver, Refused
from headgate.stores.sql.version import VERSION, explain

__all__ = ["upgrade_database", "wait_for_others"]

VERSION_TABLE = "headgate_version"
_one_at_a_time = fork_safe_lock()
"""Alembic tells its migrations by a global what they work on, so one process changes one database at a time."""
_DENIED = {
    *(1044, 1142, 1143, 1227),  # MariaDB and MySQL: the database, a command, a column, a privilege
    "42501",  # PostgreSQL: insufficient privilege
}


def upgrade_database(driver: Driver) -> str:
    """Make or change the tables; the version they were of, '' for none. Nothing happens if it is the right one."""
    with _alone(driver) as connection:
        return _run(driver, connection)


def wait_for_others(driver: Driver) -> None:
    """Return when no other process changes the tables: MySQL shows every step of a change to whoever looks."""
    with _alone(driver) as connection:
        connection.rollback()


@contextmanager
def _alone(driver: Driver) -> Iterator[Connection]:
    """A connection that is the only one to change the tables."""
    try:
        driver.open(time.monotonic() + 5).close()  # its errors say more than those that come through SQLAlchemy
        engine = driver.engine()
        try:
            with engine.connect() as connection:
                driver.lock(connection)
                yield connection
                driver.unlock(connection)  # what fails above ends the connection, and so the lock
        finally:
            engine.dispose()
    except (Broken, Refused) as error:
        raise StoreError(f"{driver.name}: {error}") from None
    except SQLAlchemyError as error:
        raise StoreError(f"{driver.name}: its tables could not be made or changed: {_told(driver, error)}") from None


def _run(driver: Driver, connection: Connection) -> str:
    found = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE}).get_current_revision()
    if found is not None and found > VERSION:
        raise StoreError(explain(driver, found))
    if found != VERSION:
        config = Config()
        config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
        config.attributes.update(connection=connection, version_table=VERSION_TABLE)
        try:
            with _one_at_a_time:
                command.upgrade(config, VERSION)
        except CommandError:
            raise StoreError(
                f"{driver.name}: its tables are of schema version {found}, which this Headgate does not know, and it "
                f"needs version {VERSION}: they were made by another Headgate, perhaps a newer one: install that, or "
                "use another database"
            ) from None
    connection.commit()
    return found or ""


def _told(driver: Driver, error: SQLAlchemyError) -> str:
    """The database's words, and what to do if this account may not make tables."""
    cause = getattr(error, "orig", None) or error
    words = cause.args[1] if len(cause.args) > 1 else cause  # PyMySQL's number and words
    told = str(words).strip().partition("\n")[0]
    if _DENIED.isdisjoint({getattr(cause, "sqlstate", None), *cause.args[:1]}):
        return told
    command = f"headgate db upgrade {driver.option} '{driver.url}'"
    return f"{told}: run `{command}` once, with an account that may create tables"
