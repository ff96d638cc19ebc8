"""Which version of the tables a database has, and whether this Headgate can use it.

Looked at once, when a store is opened, and with the store's own driver: SQLAlchemy and Alembic are only needed to
make tables, not to use them. (That they are there is looked at before, when the URL is taken apart.)
"""

from __future__ import annotations

import time

from headgate.errors import ConfigError, StoreError
from headgate.stores.sql.session import Broken, Driver, Refused, Session

__all__ = ["VERSION", "explain", "found_version", "prepare", "prepare_database"]

VERSION = "0003"
"""The version of the tables that this Headgate reads and writes: the last revision in migrations/versions."""


def prepare(driver: Driver, session: Session, deadline: float) -> None:
    """Make the tables if there are none; StoreError, and nothing changed, if they are of another version and stay so
    when nobody changes them."""
    version = found_version(session, deadline)
    if version is None or version < VERSION:
        began = time.monotonic()
        try:
            from headgate.stores.sql.upgrade import upgrade_database, wait_for_others
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"{driver.name}: its tables are to be made or changed, and the package {error.name!r} is missing: "
                "pip install 'headgate[sqlite]' (or [mysql], [postgres])"
            ) from None
        if version is None:
            upgrade_database(driver)
        else:
            wait_for_others(driver)
        # Processes that find no tables make them one after another: waiting for the others costs nobody its time.
        version = found_version(session, deadline + time.monotonic() - began)
    if version != VERSION:
        raise StoreError(explain(driver, version or "none"))


def prepare_database(driver: Driver, timeout: float) -> None:
    """The same for a database that nobody has asked yet, so that a wrong URL shows: StoreError if it does not answer
    within `timeout` seconds."""
    deadline = time.monotonic() + timeout
    try:
        session = driver.open(deadline)
        try:
            prepare(driver, session, deadline)
        finally:
            session.close()
    except (Broken, Refused) as error:
        raise StoreError(f"{driver.name}: {error}") from None


def found_version(session: Session, deadline: float) -> str | None:
    """None for a database without Headgate's tables."""
    try:
        lines = session.run(["SELECT version_num FROM headgate_version"], deadline)[0]
    except Refused as refused:
        if refused.no_table:
            return None
        raise
    return lines[0] if lines else None


def explain(driver: Driver, version: str) -> str:
    older = version < VERSION
    advice = (
        f"bring it up to date with `headgate db upgrade {driver.option} '{driver.url}'`"
        if older
        else "it was made by a newer Headgate: install that, or use another database"
    )
    found = f"its tables are of schema version {version}, and this Headgate needs version {VERSION}"
    return f"{driver.name}: {found}: {advice}"
