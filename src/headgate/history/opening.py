"""Open what keeps the usage, by the URL of the rule database."""

from __future__ import annotations

from headgate.errors import ConfigError
from headgate.history.port import History
from headgate.rules.repositories.opening import REDIS, SQL
from headgate.stores.options import Options, masked

__all__ = ["open_history"]


def open_history(url: str) -> History:
    """The history beside the rules that a URL names. It is asked at once, so that a wrong URL shows now.

    >>> open_history("rules.yaml")
    Traceback (most recent call last):
    headgate.errors.ConfigError: usage cannot be kept at 'rules.yaml': files hold rules only; ...
    """
    family = url.partition("://")[0].lower().partition("+")[0] if "://" in url else ""
    if family in SQL:
        return _sql(Options(url))
    if family in REDIS:
        return _redis(Options(url))
    raise ConfigError(
        f"usage cannot be kept at {masked(url)!r}: files hold rules only; write the URL of a database, such as "
        "sqlite:///rules.db, mysql://…, postgresql://… or redis://…"
    )


def _sql(options: Options) -> History:
    try:
        from headgate.history.sql import open_sql_history
    except ModuleNotFoundError as error:
        raise options.missing(error) from None
    return open_sql_history(options)


def _redis(options: Options) -> History:
    try:
        from headgate.history.redis import open_redis_history
    except ModuleNotFoundError as error:
        raise options.missing(error) from None
    return open_redis_history(options)
