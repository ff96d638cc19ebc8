"""Open the usage history by the URL of the rule database."""

from __future__ import annotations

from crestgate.errors import ConfigError
from crestgate.history.port import History
from crestgate.runtime.url_options import REDIS_SCHEMES, SQL_SCHEMES, Options, redact_url

__all__ = ["open_history"]


def open_history(url: str) -> History:
    """The history in the database that a URL names. Connects immediately, so that a wrong URL fails here.

    >>> open_history("rules.yaml")
    Traceback (most recent call last):
    crestgate.errors.ConfigError: usage cannot be stored in 'rules.yaml': files contain rules only; ...
    """
    scheme = url.partition("://")[0].lower() if "://" in url else ""
    if scheme in SQL_SCHEMES:
        return _sql(Options(url))
    if scheme in REDIS_SCHEMES:
        return _redis(Options(url))
    raise ConfigError(
        f"usage cannot be stored in {redact_url(url)!r}: files contain rules only; write the URL of a database, such "
        "as sqlite:///rules.db, mysql://…, postgresql://… or redis://…"
    )


def _sql(options: Options) -> History:
    try:
        from crestgate.history.sql import open_sql_history
    except ModuleNotFoundError as error:
        raise options.missing_package(error) from None
    return open_sql_history(options)


def _redis(options: Options) -> History:
    try:
        from crestgate.history.redis import open_redis_history
    except ModuleNotFoundError as error:
        raise options.missing_package(error) from None
    return open_redis_history(options)
