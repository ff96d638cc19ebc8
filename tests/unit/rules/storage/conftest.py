"""Rule repositories in SQLite, MariaDB and PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from crestgate.rules.storage.sql.repository import SqlRepository, open_sql_repository
from crestgate.runtime.url_options import Options
from databases import KINDS, url_of
from unit.rules.storage.sql_rules import SqlOpener


@pytest.fixture(scope="module", params=KINDS)
def url(request: pytest.FixtureRequest) -> str:
    return url_of(request.param, request)


@pytest.fixture
def opener(url: str) -> Iterator[SqlOpener]:
    with ExitStack() as stack:

        def open_one(prefix: str) -> SqlRepository:
            options = Options(f"{url}?timeout_ms=20000")
            options.values["prefix"] = prefix
            return stack.enter_context(closing(open_sql_repository(options)))

        yield open_one


@pytest.fixture
def repository(opener: SqlOpener, request: pytest.FixtureRequest) -> SqlRepository:
    return opener(request.node.name)
