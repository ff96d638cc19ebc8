"""Rules in SQLite, MariaDB and PostgreSQL: the contract of repositories, and behaviour specific to databases."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import psycopg
import pymysql
import pytest
from sqlalchemy import event, select, text
from sqlalchemy.exc import OperationalError

from crestgate.errors import CrestgateError, StoreError, ValidationError
from crestgate.rules.port import AUDIT_DAYS, DAY_US, Actor, AuditQuery
from crestgate.rules.storage.sql.repository import SqlRepository, open_sql_repository
from crestgate.rules.storage.sql.retention import BATCH_SIZE, HOUR_US
from crestgate.runtime.url_options import Options
from crestgate.stores.sql.factory import open_driver
from crestgate.stores.sql.schema import counters, metadata, records, revisions, usage
from crestgate.stores.sql.upgrade import upgrade_database
from servers.mariadb import MariaDB
from servers.process import GivenServer
from unit.rules.storage.kit import ALICE, Opener, RepositoryKit, edit, ids, put, revision_of
from unit.rules.storage.sql_rules import SqlOpener, advance, rows


class TestSqlRepository(RepositoryKit):
    @pytest.fixture
    def opener(self, opener: Opener, url: str, monkeypatch: pytest.MonkeyPatch) -> Opener:
        monkeypatch.setattr(self, "notifies", url.startswith("postgresql"))
        return opener


# -- retention --------------------------------------------------------------------------------------------------------


def test_expired_record_is_removed_a_day_later(repository: SqlRepository) -> None:
    now = put(repository, "lasting", {"n": 1}).updated_us
    ended = put(repository, "ended", {"n": 2}, unique_key="slot", expires_us=now + DAY_US)
    put(repository, "later", {"n": 3}, expires_us=now + 2 * DAY_US)
    advance(repository, DAY_US + HOUR_US)
    put(repository, "lasting", {"n": 4})
    assert repository.get("rule", "ended") == ended, "it expired less than a day ago"
    advance(repository, DAY_US + HOUR_US)
    revision = revision_of(repository)
    other = put(repository, "other", {"n": 5})
    changes = repository.changes(revision)
    assert changes is not None
    assert (changes.revision, changes.complete) == (revision + 1, False)
    assert (list(changes.records), list(changes.deleted)) == ([other], [("rule", "ended")])
    assert ids(repository.list("rule")) == ["lasting", "later", "other"]
    entry = repository.audit(AuditQuery(subject="rule:ended"))[0]
    assert (entry.actor, entry.action, entry.before, entry.after) == ("crestgate", "expire", {"n": 2}, None)


def test_note_removes_expired_records(repository: SqlRepository) -> None:
    put(repository, "ended", {}, expires_us=1)
    revision = revision_of(repository)
    advance(repository, HOUR_US)
    repository.note(ALICE, "reset", "user:42")
    changes = repository.changes(revision)
    assert changes is not None
    assert (changes.revision, list(changes.deleted)) == (revision + 1, [("rule", "ended")])


def test_retention_skips_records_of_the_same_write(repository: SqlRepository) -> None:
    put(repository, "ended", {"n": 1}, expires_us=1)
    put(repository, "gone", {"n": 1}, expires_us=1)
    put(repository, "rival", {"n": 1}, unique_key="slot", expires_us=1)
    advance(repository, HOUR_US)
    repository.write([edit("ended", {"n": 2}), edit("gone", None), edit("heir", {}, unique_key="slot")], ALICE)
    assert rows(repository) == {"ended": 0, "gone": 1, "rival": 1, "heir": 0}
    actions = [(entry.action, entry.subject) for entry in repository.audit(AuditQuery(limit=4))]
    assert sorted(actions) == [
        ("create", "rule:heir"),
        ("delete", "rule:gone"),
        ("expire", "rule:rival"),
        ("update", "rule:ended"),
    ]


def test_deletions_are_retained_for_a_day(repository: SqlRepository) -> None:
    put(repository, "kept", {})
    put(repository, "old", {})
    old_revision = revision_of(repository)
    repository.write([edit("old", None)], ALICE)
    recent_revision = revision_of(repository)
    advance(repository, DAY_US - HOUR_US)
    put(repository, "kept", {})
    assert rows(repository) == {"kept": 0, "old": 1}
    advance(repository, DAY_US + HOUR_US)
    put(repository, "young", {})
    repository.write([edit("young", None)], ALICE)
    assert rows(repository) == {"kept": 0, "young": 1}
    missed = repository.changes(old_revision)
    assert missed is not None
    assert missed.complete, "deletions since then have been dropped"
    assert ids(missed.records) == ["kept"]
    changes = repository.changes(recent_revision)
    assert changes is not None
    assert (changes.complete, list(changes.deleted)) == (False, [("rule", "young")])
    assert put(repository, "young", {}).version == 2
    assert put(repository, "old", {}).version == 1


def test_audit_entries_are_retained_for_ninety_days(repository: SqlRepository) -> None:
    put(repository, "r", {"n": 1})
    advance(repository, 2 * HOUR_US)
    put(repository, "r", {"n": 2})
    advance(repository, AUDIT_DAYS * DAY_US - HOUR_US)
    put(repository, "r", {"n": 3})
    bodies = [entry.after for entry in repository.audit(AuditQuery())]
    assert bodies == [{"n": 3}, {"n": 2}]


def test_purge_without_writes(repository: SqlRepository) -> None:
    repository.purge()  # nothing was ever written
    assert rows(repository) == {}
    count = 2 * BATCH_SIZE + 1
    repository.write([edit(f"ended{n:03}", {}, expires_us=1) for n in range(count)], ALICE)
    advance(repository, AUDIT_DAYS * DAY_US + HOUR_US)
    revision = revision_of(repository)
    repository.purge()
    entries = repository.audit(AuditQuery(limit=10_000))
    assert {entry.action for entry in entries} == {"expire"}, "the old entries are gone"
    assert (len(entries), list(repository.list("rule"))) == (count, [])
    assert revision_of(repository) > revision, "readers see that the rules are gone"
    revision = revision_of(repository)
    repository.purge()
    assert revision_of(repository) == revision


def test_retention_removes_a_bounded_number_per_write(repository: SqlRepository) -> None:
    count = BATCH_SIZE + BATCH_SIZE // 2
    repository.write([edit(f"ended{n:03}", {}, expires_us=1) for n in range(count)], ALICE)
    repository.write([edit(f"gone{n:03}", {}) for n in range(count)], ALICE)
    for n in range(0, count, 50):
        repository.write([edit(f"gone{m:03}", None) for m in range(n, n + 50)], ALICE)
    advance(repository, AUDIT_DAYS * DAY_US + HOUR_US)
    left = []
    for _ in range(5):
        repository.note(ALICE, "tidy", "")
        deleted = sum(name.startswith("gone") for name in rows(repository))
        entries = repository.audit(AuditQuery(limit=10_000))
        old = sum(entry.action not in ("tidy", "expire") for entry in entries)
        left.append((len(repository.list("rule")), deleted, old))
    half = BATCH_SIZE // 2
    assert left[:2] == [(half, half, 3 * count - BATCH_SIZE), (0, 0, 3 * count - 2 * BATCH_SIZE)]
    assert left[3:] == [(0, 0, half), (0, 0, 0)], "each write continues where the last one stopped"
    assert sum(entry.action == "expire" for entry in entries) == count


def test_retention_runs_hourly(repository: SqlRepository) -> None:
    put(repository, "r", {})
    put(repository, "ended", {}, expires_us=1)
    advance(repository, HOUR_US // 2)
    put(repository, "r", {})
    assert repository.get("rule", "ended") is not None
    advance(repository, HOUR_US)
    put(repository, "r", {})
    assert repository.get("rule", "ended") is None
    put(repository, "ended", {}, expires_us=1)
    put(repository, "r", {})
    assert repository.get("rule", "ended") is not None
    advance(repository, -10 * DAY_US)
    put(repository, "r", {})
    assert repository.get("rule", "ended") is None, "a clock step back does not postpone it for ever"


# -- stored data ------------------------------------------------------------------------------------------------------


def test_id_that_is_too_long(repository: SqlRepository) -> None:
    put(repository, "é" * 512, {})
    with pytest.raises(ValidationError, match=r"id: is 1,026 bytes long; the maximum is 1,024: 'é+'…"):
        repository.write([edit("é" * 513, {})], ALICE)
    assert repository.get("rule", "é" * 513) is None


def test_long_names_are_truncated_in_the_audit_log(repository: SqlRepository) -> None:
    repository.note(Actor("é" * 200, "x" * 300), "reset", "é" * 1000)
    (entry,) = repository.audit(AuditQuery(actor="é" * 200, subject="é" * 1000))
    assert (entry.actor, entry.address, entry.subject) == ("é" * 127, "x" * 255, "é" * 550)


def test_invalid_audit_cursor(repository: SqlRepository) -> None:
    for wrong in ("", "x", "-1", "1" * 30, "²"):
        with pytest.raises(ValueError, match="before must be the id of an audit entry"):
            repository.audit(AuditQuery(before=wrong))


def test_numbers_beyond_the_column_range(repository: SqlRepository) -> None:
    put(repository, "r", {})
    assert len(repository.audit(AuditQuery(since_us=-(10**30), until_us=10**30, limit=10**30))) == 1
    assert list(repository.audit(AuditQuery(since_us=10**30))) == []
    assert list(repository.audit(AuditQuery(limit=0))) == list(repository.audit(AuditQuery(limit=-1))) == []
    assert ids(repository.list("rule", limit=10**30)) == ["r"]
    assert ids(repository.list("rule", limit=0)) == ids(repository.list("rule", limit=-1)) == []


def test_poll_without_changes_costs_one_statement(repository: SqlRepository) -> None:
    put(repository, "r", {})
    revision = revision_of(repository)
    statements: list[str] = []
    event.listen(repository.engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
    assert repository.changes(revision) is None
    assert len(statements) == 1
    assert "crestgate_revisions" in statements[0]


# -- faults -----------------------------------------------------------------------------------------------------------


def test_deadlocked_transaction_is_retried(repository: SqlRepository) -> None:
    failures = 2

    def fail(*given: object) -> None:
        nonlocal failures
        if "INSERT INTO crestgate_audit" in str(given[2]) and failures:
            failures -= 1
            raise _deadlock_error(repository.engine.dialect.name)

    event.listen(repository.engine, "before_cursor_execute", fail)
    assert put(repository, "r", {"n": 1}).version == 1
    assert failures == 0
    assert len(repository.audit(AuditQuery())) == 1
    assert revision_of(repository) == 1


def test_connection_lost_before_the_commit(repository: SqlRepository) -> None:
    put(repository, "r", {"n": 1})
    queries = {"mysql": "SELECT CONNECTION_ID()", "postgresql": "SELECT pg_backend_pid()"}
    kill = {"mysql": "KILL {}", "postgresql": "SELECT pg_terminate_backend({})"}
    dialect = repository.engine.dialect.name
    killed: list[int] = []

    def end(connection: Any, cursor: Any, statement: str, *_: object) -> None:
        if "INSERT INTO crestgate_audit" not in statement or killed:
            return
        if dialect == "sqlite":
            killed.append(0)
            raise OperationalError(statement, None, sqlite3.OperationalError("disk I/O error"))
        cursor.execute(queries[dialect])
        killed.append(cursor.fetchone()[0])
        with repository.engine.connect() as other:
            other.exec_driver_sql(kill[dialect].format(killed[0]))

    event.listen(repository.engine, "before_cursor_execute", end)
    with pytest.raises(StoreError) as error:
        repository.write([edit("r", {"n": 2}), edit("s", {})], ALICE)
    assert len(killed) == 1
    assert str(error.value).startswith(f"{repository.title}: ")
    assert "not known" not in str(error.value), "nothing was written"
    record = repository.get("rule", "r")
    assert record is not None
    assert (record.version, ids(repository.list("rule")), revision_of(repository)) == (1, ["r"], 1)
    assert put(repository, "r", {"n": 2}, expected=1).version == 2
    assert len(repository.audit(AuditQuery())) == 2


def test_replaced_primary(repository: SqlRepository) -> None:
    """It reports that it is read-only. Its connections are closed: new ones may reach the new primary."""
    put(repository, "r", {})
    pool = repository.engine.pool
    causes: dict[str, Exception] = {
        "mysql": pymysql.OperationalError(1290, "The server is running with the --read-only option"),
        "postgresql": psycopg.errors.ReadOnlySqlTransaction("cannot execute DELETE in a read-only transaction"),
        "sqlite": sqlite3.OperationalError("attempt to write a readonly database"),
    }
    dialect = repository.engine.dialect.name

    def refuse(*given: object) -> None:
        if "INSERT INTO" in str(given[2]):
            raise OperationalError(str(given[2]), None, causes[dialect])

    event.listen(repository.engine, "before_cursor_execute", refuse)
    with pytest.raises(StoreError, match=r"read-?only"):
        repository.write([edit("r", {})], ALICE)
    assert (repository.engine.pool is pool) == (dialect == "sqlite")
    event.remove(repository.engine, "before_cursor_execute", refuse)
    assert put(repository, "r", {}).version == 2


def test_interrupted_commit_has_an_unknown_outcome(repository: SqlRepository, monkeypatch: pytest.MonkeyPatch) -> None:
    put(repository, "r", {"n": 1})

    dialect: Any = repository.engine.dialect

    def fail(_: object) -> None:
        raise dialect.dbapi.OperationalError("server closed the connection unexpectedly\nmore")

    monkeypatch.setattr(dialect, "do_commit", fail)
    with pytest.raises(StoreError) as error:
        repository.write([edit("r", {"n": 2})], ALICE)
    problem = "server closed the connection unexpectedly; the outcome of the write is unknown"
    assert str(error.value) == f"{repository.title}: {problem}"
    monkeypatch.undo()
    assert put(repository, "r", {"n": 3}, expected=1).version == 2


def test_blocked_writer_times_out(repository: SqlRepository, url: str) -> None:
    put(repository, "r", {})
    options = Options(f"{url}?timeout_ms=100")
    options.values["prefix"] = repository.prefix.decode()
    with closing(open_sql_repository(options)) as impatient, repository.engine.connect() as connection:
        if url.startswith("sqlite"):
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        mine = select(revisions).where(revisions.c.prefix == repository.prefix)
        assert connection.execute(mine.with_for_update()).one()
        message = "lock wait timeout after 0.1 s"
        with pytest.raises(StoreError, match=message):
            impatient.write([edit("r", {"n": 2})], ALICE)
        assert impatient.get("rule", "r") is not None, "readers do not wait"
        assert revision_of(impatient) == 1


def test_concurrent_first_writes(opener: SqlOpener, request: pytest.FixtureRequest) -> None:
    several = [opener(request.node.name) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda n: put(several[n], f"r{n}", {}).version, range(4)))
    assert made == [1, 1, 1, 1]
    assert revision_of(several[0]) == 4


def test_missing_table(tmp_path_factory: pytest.TempPathFactory) -> None:
    url = f"sqlite:///{tmp_path_factory.mktemp('gone')}/rules.db"
    with closing(open_sql_repository(Options(url))) as repository:
        with repository.engine.begin() as connection:
            connection.execute(text("DROP TABLE crestgate_records"))
        with pytest.raises(StoreError, match=r"^SQLite file .*rules\.db: no such table: crestgate_records$"):
            repository.get("rule", "r")
        with pytest.raises(StoreError, match="no such table"):
            repository.write([edit("r", {})], ALICE)


def test_all_connections_in_use(mariadb: MariaDB | GivenServer) -> None:
    url = f"{mariadb.url}{'&' if '?' in mariadb.url else '?'}prefix=busy&pool_size=1&timeout_ms=1000"
    with closing(open_sql_repository(Options(url))) as repository, repository.engine.connect():
        with pytest.raises(StoreError, match="all connections of the pool are busy; see pool_size"):
            repository.get("rule", "r")


# -- tables -----------------------------------------------------------------------------------------------------------


def test_older_schema_is_refused(opener: SqlOpener) -> None:
    repository = opener("older")
    set_version = text("UPDATE crestgate_version SET version_num = :version")
    with repository.engine.begin() as connection:
        connection.execute(set_version, {"version": "0000"})
    try:
        with pytest.raises(
            StoreError, match=r"version 0000, and this Crestgate needs version 0002: .*crestgate db upgrade"
        ):
            opener("older")
    finally:
        with repository.engine.begin() as connection:
            connection.execute(set_version, {"version": "0002"})


def test_interrupted_migration_is_completed(url: str, opener: SqlOpener) -> None:
    repository = opener("interrupted")
    with repository.engine.begin() as connection:
        metadata.drop_all(connection)
        connection.execute(text("DELETE FROM crestgate_version"))
        for table in (counters, revisions, records, usage):
            table.create(connection)
    assert upgrade_database(open_driver(Options(url))) == ""
    assert put(opener("interrupted"), "r", {"n": 1}).version == 1


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("sqlite:///rules.db?what=1", "unknown option 'what'"),
        ("sqlite:///rules.db?timeout_ms=0", "timeout_ms must be a whole number"),
        ("sqlite:///rules.db?pool_size=x", "pool_size must be a whole number"),
        ("sqlite:///rules.db?prefix=", "prefix must not be empty"),
        ("sqlite://", "name the file"),
        ("mysql://u:secret@127.0.0.1:1/db", "MySQL at 127.0.0.1:1/db: Can't connect"),
        ("postgresql://u:secret@127.0.0.1:1/db", "PostgreSQL at 127.0.0.1:1/db: .*127.0.0.1"),
        ("sqlite:////nowhere/at/all/rules.db", "SQLite file /nowhere/at/all/rules.db: unable to open"),
    ],
)
def test_unusable_urls(url: str, problem: str) -> None:
    with pytest.raises(CrestgateError, match=problem) as error:
        open_sql_repository(Options(url))
    assert "secret" not in str(error.value)


def _deadlock_error(dialect: str) -> OperationalError:
    cause: Exception
    if dialect == "sqlite":
        cause = sqlite3.OperationalError("database is locked")
        cause.sqlite_errorcode = sqlite3.SQLITE_BUSY
    elif dialect == "mysql":
        cause = pymysql.OperationalError(1213, "Deadlock found when trying to get lock")
    else:
        cause = psycopg.errors.DeadlockDetected("deadlock detected")
    return OperationalError("INSERT", None, cause)
