"""Open a rule repository by its URL: the only module that knows every repository."""

from __future__ import annotations

import os

from crestgate.errors import ConfigError
from crestgate.rules.port import Repository
from crestgate.runtime.url_options import REDIS_SCHEMES, SQL_SCHEMES, Options, redact_url

__all__ = ["open_repository"]

_EXAMPLES = (
    "sqlite:///rules.db, mysql://user:password@host/database, postgresql://user:password@host/database, "
    "redis://host:6379/0, or the path of a YAML file or folder"
)


def open_repository(url: str) -> Repository:
    """The repository of a URL; text that is not a URL is the path of a file or folder.

    >>> open_repository("memory://")
    Traceback (most recent call last):
    crestgate.errors.ConfigError: rules cannot be stored at 'memory://': write sqlite:///rules.db, ...
    """
    if not isinstance(url, str) or not url:
        raise ConfigError(f"the location of rules must be a URL, such as {_EXAMPLES}, not {url!r}")
    scheme, colon, _ = url.partition("://")
    if not colon:
        return _files(url)
    if scheme.lower() in SQL_SCHEMES:
        return _sql(Options(url))
    if scheme.lower() in REDIS_SCHEMES:
        return _redis(Options(url))
    raise ConfigError(f"rules cannot be stored at {redact_url(url)!r}: write {_EXAMPLES}")


def _files(path: str) -> Repository:
    from crestgate.rules.storage.files import FileRepository

    return FileRepository([os.path.abspath(path)])


def _sql(options: Options) -> Repository:
    try:
        from crestgate.rules.storage.sql.repository import open_sql_repository
    except ModuleNotFoundError as error:
        raise options.missing_package(error) from None
    return open_sql_repository(options)


def _redis(options: Options) -> Repository:
    try:
        from crestgate.rules.storage.redis.repository import open_redis_repository
    except ModuleNotFoundError as error:
        raise options.missing_package(error) from None
    return open_redis_repository(options)
