"""Open what keeps rules, by its URL: the only place that names every repository."""

from __future__ import annotations

import os

from headgate.errors import ConfigError
from headgate.rules.repositories.port import Repository
from headgate.stores.options import Options, masked

__all__ = ["open_repository"]

SQL = ("sqlite", "mysql", "mariadb", "postgresql", "postgres")
REDIS = ("redis", "rediss", "valkey", "valkeys")
_EXAMPLES = (
    "sqlite:///rules.db, mysql://user:password@host/database, postgresql://user:password@host/database, "
    "redis://host:6379/0, or the path of a YAML file or folder"
)


def open_repository(url: str) -> Repository:
    """The repository that a URL names; what is no URL is the path of a file or folder.

    >>> open_repository("memory://")
    Traceback (most recent call last):
    headgate.errors.ConfigError: rules cannot be kept at 'memory://': write sqlite:///rules.db, ...
    """
    if not isinstance(url, str) or not url:
        raise ConfigError(f"where rules are kept is given as a URL, such as {_EXAMPLES}, not {url!r}")
    scheme, colon, _ = url.partition("://")
    if not colon:
        return _files(url)
    family = scheme.lower().partition("+")[0]
    if family in SQL:
        return _sql(Options(url))
    if family in REDIS:
        return _redis(Options(url))
    raise ConfigError(f"rules cannot be kept at {masked(url)!r}: write {_EXAMPLES}")


def _files(path: str) -> Repository:
    from headgate.rules.repositories.files import FileRepository

    return FileRepository([os.path.abspath(path)])


def _sql(options: Options) -> Repository:
    try:
        from headgate.rules.repositories.sql.repository import open_sql_repository
    except ModuleNotFoundError as error:
        raise options.missing(error) from None
    return open_sql_repository(options)


def _redis(options: Options) -> Repository:
    try:
        from headgate.rules.repositories.redis.repository import open_redis_repository
    except ModuleNotFoundError as error:
        raise options.missing(error) from None
    return open_redis_repository(options)
