"""Bring a database's tables to the version that this Headgate needs.

Any number of processes may do it at once: each waits until it is alone, and then finds what is left to do. A
database that a newer Headgate has made is left as it is.
"""

from __future__ import annotations

import time
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from headgate.errors import StoreError
from headgate.stores.sql.session import Broken, Driver, Refused
from headgate.stores.sql.version import VERSION, explain

__all__ = ["upgrade_database"]

VERSION_TABLE = "headgate_version"


def upgrade_database(driver: Driver) -> str:
    """Make or change the tables; the version they were of, '' for none. Nothing happens if it is the right one."""
    try:
        driver.open(time.monotonic() + 5).close()  # its errors say more than those that come through SQLAlchemy
        engine = driver.engine()
        try:
            with engine.connect() as connection:
                driver.lock(connection)
                try:
                    return _run(driver, connection)
                finally:
                    driver.unlock(connection)
        finally:
            engine.dispose()
    except (Broken, Refused) as error:
        raise StoreError(f"{driver.name}: {error}") from error
    except SQLAlchemyError as error:
        problem = getattr(error, "orig", None) or error
        raise StoreError(f"{driver.name}: its tables could not be made or changed: {problem}") from error


def _run(driver: Driver, connection: Connection) -> str:
    found = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE}).get_current_revision()
    if found is not None and found > VERSION:
        raise StoreError(explain(driver, found))
    if found != VERSION:
        config = Config()
        config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
        config.attributes.update(connection=connection, version_table=VERSION_TABLE)
        command.upgrade(config, VERSION)
    connection.commit()
    return found or ""
