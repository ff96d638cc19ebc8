"""Schema version check of a SQL database.

Runs once, when a store is opened, and with the store's own driver: SQLAlchemy and Alembic are needed only to create
or upgrade the tables, not to use them.
"""

from __future__ import annotations

import time

from crestgate.errors import ConfigError, StoreError, install_hint
from crestgate.stores.sql.session import DatabaseConnectionError, Driver, Session, StatementError

__all__ = ["VERSION", "prepare", "prepare_database", "read_version", "version_mismatch"]

VERSION = "0002"
"""The schema version that this Crestgate reads and writes: the latest revision in migrations/versions."""


def prepare(driver: Driver, session: Session, deadline: float) -> None:
    """Create the tables if there are none. StoreError, and nothing changed, if they have another version and no other
    process is upgrading them."""
    version = read_version(session, deadline)
    if version is None or version < VERSION:
        began = time.monotonic()
        try:
            from crestgate.stores.sql.upgrade import upgrade_database, wait_for_upgrade
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"{driver.name}: its tables must be created or upgraded, and the package {error.name!r} is missing: "
                f"{install_hint('sqlite')} (or [mysql], [postgres])"
            ) from None
        if version is None:
            upgrade_database(driver)
        else:
            wait_for_upgrade(driver)
        # Processes create the tables one after another: the time spent waiting for others is added to the deadline.
        version = read_version(session, deadline + time.monotonic() - began)
    if version != VERSION:
        raise StoreError(version_mismatch(driver, version or "none"))


def prepare_database(driver: Driver, timeout: float) -> None:
    """`prepare` on a session of its own, so that a wrong URL fails early: StoreError if the database does not answer
    within `timeout` seconds."""
    deadline = time.monotonic() + timeout
    try:
        session = driver.open(deadline)
        try:
            prepare(driver, session, deadline)
        finally:
            session.close()
    except (DatabaseConnectionError, StatementError) as error:
        raise StoreError(f"{driver.name}: {error}") from None


def read_version(session: Session, deadline: float) -> str | None:
    """None for a database without Crestgate's tables."""
    try:
        rows = session.run(["SELECT version_num FROM crestgate_version"], deadline)[0]
    except StatementError as error:
        if error.missing_table:
            return None
        raise
    return rows[0] if rows else None


def version_mismatch(driver: Driver, version: str) -> str:
    """The error message for a schema of another version."""
    remedy = (
        f"bring it up to date with `crestgate db upgrade {driver.option} '{driver.url}'`"
        if version < VERSION
        else "it was made by a newer Crestgate: install that, or use another database"
    )
    return (
        f"{driver.name}: its tables are of schema version {version}, and this Crestgate needs version {VERSION}: "
        f"{remedy}"
    )
