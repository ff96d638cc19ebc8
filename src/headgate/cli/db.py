"""`headgate db upgrade`: make the tables of a SQL store, or bring them to the version that this Headgate needs."""

from __future__ import annotations

import argparse
import os
import sys

from headgate.errors import ConfigError, HeadgateError
from headgate.stores.options import Options, masked

__all__ = ["add_db"]


def add_db(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `db` and what it can do to the command line."""
    db = commands.add_parser("db", help="look after the tables of a SQL store")
    actions = db.add_subparsers(dest="action", metavar="ACTION", required=True)
    upgrade = actions.add_parser(
        "upgrade",
        help="make the tables, or bring them to the version this Headgate needs",
        description="Make the tables of a SQL store, or bring them to the version this Headgate needs. "
        "Safe to run at any time, from several machines at once; does nothing when there is nothing to do.",
    )
    upgrade.add_argument(
        "--store", metavar="URL", help="such as mysql://user:password@host/database (default: HEADGATE_STORE)"
    )
    upgrade.set_defaults(run=run_upgrade)


def run_upgrade(arguments: argparse.Namespace) -> int:
    url = arguments.store or os.environ.get("HEADGATE_STORE")
    try:
        if not url:
            raise ConfigError("which store? Write --store URL, or set HEADGATE_STORE")
        said = upgrade(url)
    except HeadgateError as error:
        print(f"headgate: {error}", file=sys.stderr)  # noqa: T201 - what the command says
        return 2
    print(said)  # noqa: T201
    return 0


def upgrade(url: str) -> str:
    """Do it; what was done, in words."""
    from headgate.stores.sql.opening import SCHEMES, open_driver
    from headgate.stores.sql.version import VERSION

    if url.partition("://")[0].lower() not in SCHEMES:
        names = ", ".join(f"{scheme}://" for scheme in SCHEMES)
        raise ConfigError(f"store URL {masked(url)!r} names no SQL database, so there are no tables: write {names}")
    driver = open_driver(Options(url))
    try:
        from headgate.stores.sql.upgrade import upgrade_database
    except ModuleNotFoundError as error:
        raise ConfigError(f"the package {error.name!r} is missing: pip install 'headgate[sqlite]'") from None
    before = upgrade_database(driver)
    if before == VERSION:
        return f"{driver.name}: the schema is at version {VERSION} already"
    if before:
        return f"{driver.name}: the schema was brought from version {before} to {VERSION}"
    return f"{driver.name}: the tables were made, schema version {VERSION}"
