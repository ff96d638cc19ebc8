"""Opens SQL stores by URL: database, address, credentials and TLS options."""

from __future__ import annotations

import os
from importlib.util import find_spec

from crestgate.runtime.clock import Clock
from crestgate.runtime.url_options import Options, redact_url
from crestgate.stores.remote_store import DEFAULT_TIMEOUT_MS
from crestgate.stores.sql.session import DatabaseAddress, Driver
from crestgate.stores.sql.store import SqlStore

__all__ = ["open_driver", "open_sql"]

_MYSQL_OPTIONS = ("unix_socket", "ssl_ca", "ssl_cert", "ssl_key")
_POSTGRES_OPTIONS = ("unix_socket", "sslmode", "sslrootcert", "sslcert", "sslkey")
_FILES = ("ssl_ca", "ssl_cert", "ssl_key", "sslrootcert", "sslcert", "sslkey")
_MIGRATION_PACKAGES = ("sqlalchemy", "alembic")
"""Packages that are needed to create the tables."""
_SSLMODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")


def open_sql(options: Options, clock: Clock | None) -> SqlStore:
    """The store of a `mysql://`, `mariadb://`, `postgresql://` or `sqlite://` URL."""
    return SqlStore(
        open_driver(options),
        prefix=options.prefix(),
        timeout_ms=options.timeout_ms(DEFAULT_TIMEOUT_MS),
        pool_size=options.pool_size(),
        clock=clock,
    )


def open_driver(options: Options) -> Driver:
    """The driver of a URL; nothing is connected yet."""
    openers = {"sqlite": _sqlite, "postgresql": _postgres, "postgres": _postgres}
    driver = openers.get(options.scheme, _mysql)(options)
    absent = next((name for name in _MIGRATION_PACKAGES if find_spec(name) is None), None)
    if absent is not None and not driver.has_tables():
        raise options.missing_package(ModuleNotFoundError(name=absent))
    driver.url = redact_url(options.url)
    return driver


def _sqlite(options: Options) -> Driver:
    from crestgate.stores.sql.sqlite import SqliteDriver

    options.allow()
    path = options.path[1:]
    if options.host or not path or path.endswith("/") or path == ":memory:":
        raise options.error(
            "name the file: sqlite:///relative/file, or with four slashes sqlite:////absolute/file "
            "(for counters in memory there is memory://)"
        )
    return SqliteDriver(os.path.abspath(path))


def _mysql(options: Options) -> Driver:
    address = _address(options, 3306, _MYSQL_OPTIONS)
    try:
        from crestgate.stores.sql.mysql import MysqlDriver
    except ModuleNotFoundError as error:
        raise options.missing_package(error) from None
    return MysqlDriver("MariaDB" if options.scheme == "mariadb" else "MySQL", address)


def _postgres(options: Options) -> Driver:
    address = _address(options, 5432, _POSTGRES_OPTIONS)
    mode = options.values.get("sslmode", "prefer")
    if mode not in _SSLMODES:
        raise options.error(f"sslmode must be one of {', '.join(_SSLMODES)}, not {mode!r}")
    try:
        from crestgate.stores.sql.postgres import PostgresDriver
    except ImportError as error:  # also when psycopg finds no libpq
        raise options.missing_package(error) from None
    return PostgresDriver(address, options.timeout_ms(DEFAULT_TIMEOUT_MS) / 1000)


def _address(options: Options, port: int, known: tuple[str, ...]) -> DatabaseAddress:
    servers = options.servers(port)  # before the options: an unknown option may be the rest of a password
    options.allow(*known)
    if len(servers) > 1:
        raise options.error("name one server here; for several stores give a list of URLs")
    database = options.path.strip("/")
    if not database or "/" in database:
        raise options.error(f"name the database: {options.scheme}://user:password@host/database")
    given = {name: value for name, value in options.values.items() if name in known}
    for name in _FILES:
        _check_file(options, name, given.get(name))
    return DatabaseAddress(*servers[0], options.username, options.password, database, given)


def _check_file(options: Options, name: str, path: str | None) -> None:
    """Check that a file can be read. For libpq, "system" and a key with an engine prefix are no files."""
    if path is None or (name, path) == ("sslrootcert", "system") or (name == "sslkey" and ":" in path):
        return
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise options.error(f"{name}: the file {path!r} cannot be read: {error.strerror}") from None
