"""The SQL store's rows, expiry, schema versions and batch pieces. On SQLite, which needs no server."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from crestgate import AsyncLimiter, ConfigError, Limit, Limiter, StoreError, Verdict, register_algorithm
from crestgate.core.algorithms import ALGORITHMS, Algorithm, build
from crestgate.errors import StoreClosedError
from crestgate.runtime.url_options import Options
from crestgate.stores.port import Member, Op, Outcome, PartialStoreError, Request
from crestgate.stores.sql import SqlStore, sweeper
from crestgate.stores.sql.factory import open_driver
from crestgate.stores.sql.session import StatementError
from crestgate.stores.sql.sqlite import SqliteSession
from crestgate.stores.sql.version import VERSION
from crestgate.testing import FakeClock
from databases import open_at
from stalls import Stalls


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "counters.db"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(1_700_000_000)


@pytest.fixture
def store(path: Path, clock: FakeClock) -> SqlStore:
    return open_at(f"sqlite:///{path}", clock)


def compiled(text: str, name: str = "limit") -> Algorithm:
    return build(Limit.parse(text), name)


def ask(store: SqlStore, op: Op, algorithm: Algorithm, cost: int = 1, key: str = "key") -> Outcome:
    return store.apply([Request(op, [Member(key, algorithm, cost)])])[0][0]


def rows(path: Path, what: str = "count(*)", table: str = "crestgate_counters") -> list[tuple[object, ...]]:
    with sqlite3.connect(path) as connection:
        return connection.execute(f"SELECT {what} FROM {table}").fetchall()


def test_row_has_readable_names(store: SqlStore, path: Path) -> None:
    ask(store, Op.TAKE, compiled("5/minute", "gold"), 2, "user:42")
    assert rows(path, "name, subject, algorithm, count, capacity, period_us, expires_us") == [
        (b"gold", b"user:42", "token_bucket", 5, 5, 60_000_000, 1_700_000_030_000_000)
    ]


def test_peek_and_denial_write_nothing(store: SqlStore, path: Path) -> None:
    limit = compiled("5/minute")
    ask(store, Op.PEEK, limit)
    ask(store, Op.TAKE, limit, cost=6)
    ask(store, Op.TAKE, limit, cost=0)
    ask(store, Op.TAKE, compiled("0/minute"))
    ask(store, Op.RESET, limit)
    assert rows(path) == [(0,)]


def test_expired_counter_is_swept(store: SqlStore, path: Path, clock: FakeClock) -> None:
    ask(store, Op.TAKE, compiled("5/minute"))
    ask(store, Op.TAKE, compiled("5/minute using sliding_window_log", "log"), key="other")
    clock.advance(5)
    assert store.sweep() == 0
    clock.advance(75)
    assert store.sweep() == 2
    assert rows(path) == rows(path, table="crestgate_log") == [(0,)]
    assert ask(store, Op.TAKE, compiled("5/minute")).decision.remaining == 4, "cached rows may be deleted"


def test_sweep_works_in_batches(store: SqlStore, path: Path, clock: FakeClock) -> None:
    limit = compiled("5/minute")
    store.apply([Request(Op.TAKE, [Member(f"key:{i}", limit, 1)]) for i in range(1100)])
    clock.advance(120)
    assert [store.sweep() for _ in range(4)] == [500, 500, 100, 0]
    assert rows(path) == [(0,)]


def test_long_log_is_swept_before_its_row(store: SqlStore, path: Path, clock: FakeClock) -> None:
    limit = compiled("10000/minute using sliding_window_log")
    for _ in range(1100):
        clock.advance(0.000001)
        ask(store, Op.TAKE, limit)
    clock.advance(120)
    left = []
    while store.sweep():
        left.append((rows(path)[0][0], rows(path, table="crestgate_log")[0][0]))
    assert left == [(1, 600), (1, 100), (0, 0)]


def test_batches_trigger_a_sweep(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeper, "PAUSE", 0.0)
    store = open_at(f"sqlite:///{path}")
    limit = compiled("1000/second", "short")
    ask(store, Op.TAKE, limit, key="a")
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE crestgate_counters SET expires_us = 1")
    deadline = time.monotonic() + 10
    while (b"a",) in rows(path, "subject"):
        ask(store, Op.TAKE, limit, key="b")
        assert time.monotonic() < deadline
    store.close()


def test_rejected_sweep_is_logged_once_a_minute(
    store: SqlStore, path: Path, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    ask(store, Op.TAKE, compiled("5/minute"))
    clock.advance(120)
    with sqlite3.connect(path) as connection:
        forbidden = "BEGIN SELECT RAISE(ABORT, 'no right to delete'); END"
        connection.execute(f"CREATE TRIGGER forbid BEFORE DELETE ON crestgate_counters {forbidden}")
    store.sweeper.run()
    store.sweeper.run()
    (warning,) = caplog.records
    assert warning.levelname == "WARNING"
    assert warning.getMessage().endswith("counters.db: no right to delete")
    store.sweeper.warn_at = 0.0
    store.sweeper.run()
    assert len(caplog.records) == 2


def test_unreadable_row_is_an_error(store: SqlStore) -> None:
    session, _ = store.pool.take(time.monotonic() + 1)
    with pytest.raises(StatementError, match="integer overflow"):
        session.run([f"SELECT abs(column1) FROM (VALUES (1), ({-(2**63)}))"], time.monotonic() + 1)
    store.pool.give(session)


def test_store_with_a_virtual_clock_sweeps_only_its_own_counters(path: Path, store: SqlStore) -> None:
    ask(store, Op.TAKE, compiled("5/minute"))
    later = open_at(f"sqlite:///{path}", FakeClock(1_900_000_000))
    assert later.sweep() == 0
    assert rows(path) == [(1,)]


def test_batch_of_many_members_is_decided_in_pieces(store: SqlStore) -> None:
    limit = compiled("700/minute")
    replies = store.apply([Request(Op.TAKE, [Member("key", limit, 1)]) for _ in range(1200)])
    assert [reply[0].decision.allowed for reply in replies] == [True] * 700 + [False] * 500
    assert store.apply([]) == []
    assert store.apply([Request(Op.TAKE, [])]) == [[]]


def test_decided_pieces_are_reported_when_a_later_one_fails(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    decide, calls = store._decide, []

    def second_fails(piece: list[Request], deadline: float) -> list[list[Outcome]]:
        calls.append(piece)
        if len(calls) == 2:
            raise StoreError("gone")
        return decide(piece, deadline)

    monkeypatch.setattr(store, "_decide", second_fails)
    limit = compiled("700/minute")
    with pytest.raises(PartialStoreError) as caught:
        store.apply([Request(Op.TAKE, [Member("key", limit, 1)]) for _ in range(1200)])
    kinds = [type(reply[0]) for reply in caught.value.outcomes]
    assert kinds == [Outcome] * 500 + [StoreError] * 700


def test_log_of_thousands_of_entries_with_large_costs(store: SqlStore, path: Path, clock: FakeClock) -> None:
    """Its ends suffice. The middle is read as a sum when half of it has expired."""
    limit = compiled("1000000/hour using sliding_window_log")
    other = compiled("1000000/hour using sliding_window_log", "memory")
    memory = Limiter("memory://", clock=clock)
    bound = memory.bind("1000000/hour using sliding_window_log")
    ticks = []
    for number in range(300):
        batch = []
        for key in range(10):
            batch.append(Request(Op.TAKE, [Member("key" if key < 5 else f"key:{key}", limit, 100 + number)]))
        ticks.append(store.apply(batch)[0][0].tick)
        for _ in range(5):
            bound.check("key", 100 + number)
        clock.advance(1)
    assert len(rows(path, "tick", "crestgate_log WHERE id = (SELECT id FROM crestgate_counters LIMIT 1)")) == 300
    for seconds, cost in ((0, 630_000), (3_000, 630_000), (400, 1), (0, 800_000), (100, 1), (4_000, 1)):
        clock.advance(seconds)
        mine, theirs = ask(store, Op.TAKE, limit, cost).decision, bound.check("key", cost)
        got = (mine.allowed, mine.remaining, mine.retry_after, mine.reset_after)
        assert got == (theirs.allowed, theirs.remaining, theirs.retry_after, theirs.reset_after), (seconds, cost)
    assert ask(store, Op.PEEK, other, 0).decision.remaining == 1_000_000


def test_give_back_deep_inside_a_log(store: SqlStore, clock: FakeClock) -> None:
    limit = compiled("5000/hour using sliding_window_log")
    outcomes = []
    for _ in range(400):
        outcomes.append(ask(store, Op.TAKE, limit, 3))
        clock.advance(0.1)
    for location, amount in ((200, 2), (200, 2), (399, 3), (398, 1), (0, 3)):
        member = Member("key", limit, 3, True, outcomes[location].tick, amount)
        store.apply([Request(Op.GIVE_BACK, [member])])
    assert ask(store, Op.PEEK, limit).decision.remaining == 5000 - 400 * 3 + 3 + 3 + 1 + 3


def test_log_becomes_another_algorithm_and_a_log_again(store: SqlStore, path: Path, clock: FakeClock) -> None:
    log, bucket = compiled("3000/hour using sliding_window_log"), compiled("4000/hour")
    for _ in range(50):
        for _ in range(40):
            clock.advance(0.001)
            ask(store, Op.TAKE, log)
        assert ask(store, Op.PEEK, bucket).decision.remaining >= 2000
        ask(store, Op.RESET, log)
    ask(store, Op.TAKE, log, 7)
    assert ask(store, Op.TAKE, bucket, 3).decision.remaining == 3990
    assert ask(store, Op.TAKE, log, 5).decision.remaining == 2985
    assert len(rows(path, "tick", "crestgate_log")) == 1, "expired entries are deleted meanwhile"


def test_database_of_another_version_is_rejected_and_unchanged(store: SqlStore, path: Path) -> None:
    for version, advice in (
        ("0000", "crestgate db upgrade --store 'sqlite:///.*counters.db'"),
        ("0099", "newer Crestgate"),
    ):
        with sqlite3.connect(path) as connection:
            connection.execute("UPDATE crestgate_version SET version_num = ?", (version,))
        with pytest.raises(StoreError, match=rf"SQLite file .*version {version}, .* needs version 0002: .*{advice}"):
            open_at(f"sqlite:///{path}")
        assert rows(path, "version_num", "crestgate_version") == [(version,)]


def test_tables_of_another_version_are_never_touched_by_a_check(
    store: SqlStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An AsyncLimiter keeps using a store whose connection failed."""
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE crestgate_version SET version_num = '0003'")
    fresh = SqlStore(store.driver, timeout_ms=10_000)
    with pytest.raises(StoreError, match="newer Crestgate"):
        fresh.connect()
    looks: list[str] = []
    monkeypatch.setattr(SqliteSession, "run", lambda session, statements, deadline: looks.extend(statements))
    for use in (lambda: ask(fresh, Op.TAKE, compiled("5/minute")), fresh.sweep):
        with pytest.raises(StoreError, match="schema version 0003, and this Crestgate needs version 0002"):
            use()
    assert looks == [], "not checked again within a second"
    monkeypatch.undo()
    fresh.prepare_at = 0.0
    with pytest.raises(StoreError, match="schema version 0003"):
        ask(fresh, Op.TAKE, compiled("5/minute"))
    assert rows(path) == [(0,)]


def test_async_limiter_does_not_touch_tables_of_another_version(store: SqlStore, path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE crestgate_version SET version_num = '0003'")

    async def main() -> None:
        limiter = AsyncLimiter(f"sqlite:///{path}?timeout_ms=5000", on_store_error="open")
        for _ in range(3):
            assert (await limiter.check("user:42", "2/minute")).reason == "fail_open"
        await limiter.aclose()

    asyncio.run(main())
    assert rows(path) == [(0,)]


def test_database_unreachable_at_first_recovers(path: Path) -> None:
    path.mkdir()
    store = SqlStore(open_driver(Options(f"sqlite:///{path}")), timeout_ms=10_000)
    with pytest.raises(StoreError, match="unable to open"):
        store.connect()
    path.rmdir()
    with pytest.raises(StoreError, match="unable to open"):
        ask(store, Op.TAKE, compiled("5/minute"))
    store.prepare_at = 0.0
    assert ask(store, Op.TAKE, compiled("5/minute")).decision.remaining == 4


def test_busy_pool_does_not_count_as_server_failure(store: SqlStore) -> None:
    session, _ = store.pool.take(time.monotonic() + 1)
    request = [Request(Op.TAKE, [Member("key", compiled("5/minute"), 1)])]
    for _ in range(5):
        with pytest.raises(StoreError, match="all connections are busy"):
            store.call(request, time.monotonic() + 0.001)
    assert store.breaker.state(time.monotonic()) == "closed"
    for _ in range(3):
        store.breaker.failed(time.monotonic() - 2)
    with pytest.raises(StoreError, match="all connections are busy"):
        store.call(request, time.monotonic() + 0.001)
    store.pool.give(session)
    assert store.apply(request)[0][0].decision.allowed, "the probe was not lost"


def test_several_processes_create_the_tables_concurrently(path: Path) -> None:
    errors: list[StoreError] = []

    def work() -> None:
        try:
            open_at(f"sqlite:///{path}").close()
        except StoreError as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert rows(path, "version_num", "crestgate_version") == [(VERSION,)]


def test_locked_file_is_an_error_at_the_deadline(path: Path, stalls: Stalls) -> None:
    store = open_at(f"sqlite:///{path}", timeout_ms=80)
    with sqlite3.connect(path, isolation_level=None) as connection:
        connection.execute("BEGIN IMMEDIATE")
        before = time.monotonic()
        with pytest.raises(StoreError, match="database is locked by another process"):
            ask(store, Op.TAKE, compiled("5/minute"))
        assert 0.05 < time.monotonic() - before
        assert stalls.without(before, time.monotonic()) < 1.0
        connection.execute("ROLLBACK")
    assert ask(store, Op.TAKE, compiled("5/minute")).decision.remaining == 4


def test_breaker_opens_for_a_failing_database(path: Path) -> None:
    store = open_at(f"sqlite:///{path}", timeout_ms=5)
    limit = compiled("5/minute")
    with sqlite3.connect(path, isolation_level=None) as connection:
        connection.execute("BEGIN IMMEDIATE")
        for _ in range(3):
            with pytest.raises(StoreError, match="locked"):
                ask(store, Op.TAKE, limit)
        with pytest.raises(StoreError, match="several times in a row"):
            ask(store, Op.TAKE, limit)
        connection.execute("ROLLBACK")
    with pytest.raises(StoreError, match="several times in a row"):
        ask(store, Op.TAKE, limit)


def test_missing_table_does_not_open_the_breaker(store: SqlStore, path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE crestgate_counters")
    for _ in range(5):
        with pytest.raises(StoreError, match="no such table: crestgate_counters"):
            ask(store, Op.TAKE, compiled("5/minute"))
    assert store.breaker.state(time.monotonic()) == "closed"


def test_failing_algorithm_leaves_nothing_locked(store: SqlStore) -> None:
    def fail(*arguments: object) -> tuple[None, Verdict]:
        raise ZeroDivisionError

    if "fails_in_sql" not in ALGORITHMS:
        register_algorithm("fails_in_sql", fail)
    with pytest.raises(ZeroDivisionError):
        ask(store, Op.TAKE, compiled("5/minute using fails_in_sql"))
    assert ask(store, Op.TAKE, compiled("5/minute")).decision.remaining == 4


def test_closed_store_closes_its_file(store: SqlStore) -> None:
    ask(store, Op.TAKE, compiled("5/minute"))
    session, _ = store.pool.take(time.monotonic() + 1)
    store.close()
    store.pool.give(session)
    assert isinstance(session, SqliteSession)
    with pytest.raises(sqlite3.ProgrammingError):
        session.connection.execute("SELECT 1")
    for use in (lambda: ask(store, Op.TAKE, compiled("5/minute")), store.connect, store.sweep):
        with pytest.raises(StoreClosedError):
            use()


def test_algorithm_with_too_long_a_name_is_not_supported(store: SqlStore) -> None:
    limit = compiled("5/minute")
    assert store.supports(limit)
    object.__setattr__(limit.limit, "algorithm", "x" * 65)
    assert not store.supports(limit)


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///", "sqlite://host/file", "sqlite:///:memory:", "sqlite:///a/"])
def test_file_must_be_named(url: str) -> None:
    with pytest.raises(ConfigError, match="name the file"):
        Limiter(url)


def test_file_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"SQLite file .*nowhere/file: unable to open"):
        Limiter(f"sqlite:///{tmp_path}/nowhere/file")
    (tmp_path / "text").write_text("no database at all, just some text that is long enough to be looked at" * 20)
    with pytest.raises(StoreError, match="not a database"):
        Limiter(f"sqlite:///{tmp_path}/text")


def test_limiter_on_sqlite(path: Path) -> None:
    with Limiter(f"sqlite:///{path}?prefix=app&timeout_ms=5000") as limiter:
        assert [limiter.check("user:42", "2/minute").allowed for _ in range(3)] == [True, True, False]
    with Limiter(f"sqlite:///{path}?prefix=app&timeout_ms=5000") as limiter:
        assert not limiter.check("user:42", "2/minute").allowed, "counters outlive the process"
    with Limiter(f"sqlite:///{path}?prefix=other&timeout_ms=5000") as limiter:
        assert limiter.check("user:42", "2/minute").allowed


def test_threads_create_the_tables_of_different_databases_concurrently(tmp_path: Path) -> None:
    """Alembic's migrations use a global context."""
    urls = [f"sqlite:///{tmp_path}/{n}.db" for n in range(8)]
    with ThreadPoolExecutor(len(urls)) as pool:
        for store in pool.map(open_at, urls):
            store.close()
    for url in urls:
        with sqlite3.connect(url.removeprefix("sqlite:///")) as database:
            assert database.execute("SELECT version_num FROM crestgate_version").fetchall() == [(VERSION,)]
