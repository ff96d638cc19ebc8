"""The databases that the tests of the SQL stores share: a file for SQLite, and a server of each other kind."""

from __future__ import annotations

import itertools

import pytest

from crestgate.runtime.clock import Clock
from crestgate.runtime.url_options import Options
from crestgate.stores.sql import SqlStore
from crestgate.stores.sql.factory import open_driver

__all__ = ["KINDS", "SERVERS", "open_at", "url_of"]

SERVERS = ["mariadb", "postgres"]
KINDS = ["sqlite", *SERVERS]
_numbers = itertools.count()


def url_of(kind: str, request: pytest.FixtureRequest) -> str:
    """The URL of the test database of this kind."""
    if kind == "sqlite":
        factory: pytest.TempPathFactory = request.getfixturevalue("tmp_path_factory")
        return f"sqlite:///{factory.mktemp('sqlite')}/counters.db"
    url: str = request.getfixturevalue(kind).url
    return url


def open_at(
    url: str, clock: Clock | None = None, *, prefix: str = "", timeout_ms: int = 10_000, pool_size: int | None = None
) -> SqlStore:
    """A store with its own prefix, and so its own counters. Its timeout is long, because tests share two cores."""
    store = SqlStore(
        open_driver(Options(url)),
        prefix=prefix or f"test-{next(_numbers)}",
        timeout_ms=timeout_ms,
        pool_size=pool_size,
        clock=clock,
    )
    store.connect()
    return store
