"""Usage history in SQLite, MariaDB and PostgreSQL."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest
from sqlalchemy import func, select

from crestgate.errors import StoreError
from crestgate.history.port import UsagePoint
from crestgate.history.sql import SqlHistory, open_sql_history
from crestgate.runtime.url_options import Options
from crestgate.stores.sql.schema import usage_subjects, usage_turns
from databases import KINDS, url_of
from unit.history.kit import MINUTE_US, NOON, HistoryKit

SqlOpener = Callable[[str], SqlHistory]


@pytest.fixture(scope="module", params=KINDS)
def url(request: pytest.FixtureRequest) -> str:
    return url_of(request.param, request)


@pytest.fixture
def opener(url: str) -> Iterator[SqlOpener]:
    with ExitStack() as stack:

        def open_one(prefix: str, timeout_ms: int = 20_000) -> SqlHistory:
            options = Options(f"{url}?timeout_ms={timeout_ms}")
            options.values["prefix"] = prefix
            return stack.enter_context(closing(open_sql_history(options)))

        yield open_one


class TestSqlHistory(HistoryKit):
    @pytest.fixture
    def opener(self, opener: SqlOpener) -> SqlOpener:
        return opener


def test_rows_of_subjects_are_bounded(opener: SqlOpener) -> None:
    history = opener("bounded")
    for group in range(4):
        history.add(NOON, {}, {f"{group}-{n}": (1, 0) for n in range(80)})
    query = select(func.count()).select_from(usage_subjects).where(usage_subjects.c.prefix == history.prefix)
    with history.engine.connect() as connection:
        assert connection.execute(query.where(usage_subjects.c.step == 60)).scalar() == 100
        assert connection.execute(query).scalar() == 200


def test_failed_add_is_rolled_back(opener: SqlOpener, monkeypatch: pytest.MonkeyPatch) -> None:
    history = opener("half")
    history.add(NOON, {"a": (1, 0, 0)}, {})

    def fail(*_: object) -> None:
        raise RuntimeError("in the middle")

    monkeypatch.setattr(SqlHistory, "_add_subjects", fail)
    with pytest.raises(RuntimeError, match="in the middle"):
        history.add(NOON, {"a": (1, 0, 0)}, {"s": (1, 0)})
    monkeypatch.undo()
    assert history.usage(NOON, NOON + 1, "minute") == [UsagePoint(NOON, "a", 1, 0, 0)]
    history.add(NOON, {"a": (1, 0, 0)}, {})
    assert history.usage(NOON, NOON + 1, "hour") == [UsagePoint(NOON, "a", 2, 0, 0)]


def test_lock_conflict_is_waited_for_up_to_the_timeout(opener: Callable[[str, int], SqlHistory]) -> None:
    history = opener("waiting", 200)
    history.add(NOON, {"a": (1, 0, 0)}, {})
    with opener("waiting", 20_000).engine.connect() as other:
        if other.dialect.name == "sqlite":
            other.exec_driver_sql("BEGIN IMMEDIATE")
        other.execute(select(usage_turns).where(usage_turns.c.prefix == history.prefix).with_for_update())
        with pytest.raises(StoreError, match=r"lock wait timeout after 0\.2 s"):
            history.add(NOON, {"a": (1, 0, 0)}, {})
        assert history.usage(NOON, NOON + 1, "minute") == [UsagePoint(NOON, "a", 1, 0, 0)], "readers do not wait"
    history.add(NOON, {"a": (1, 0, 0)}, {})


def test_forked_child_uses_its_own_connection(opener: SqlOpener) -> None:
    history = opener("forked")
    history.add(NOON, {"a": (1, 0, 0)}, {})
    child = os.fork()
    if child == 0:
        status = 1
        try:
            history.add(NOON + MINUTE_US, {"a": (1, 0, 0)}, {})
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    history.add(NOON + MINUTE_US, {"a": (1, 0, 0)}, {})
    assert history.usage(NOON, NOON + 1, "hour") == [UsagePoint(NOON, "a", 3, 0, 0)]
