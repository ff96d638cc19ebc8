"""Rules in SQLite, MariaDB and PostgreSQL: the contract of repositories, and behaviour specific to databases."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any

import psycopg
import pymysql
import pytest
from sqlalchemy import event, literal_column, select, text, update
from sqlalchemy.exc import OperationalError

from crestgate.errors import CrestgateError, StoreError, ValidationError
from crestgate.rules.catalog import Catalog
from crestgate.rules.port import AUDIT_DAYS, DAY_US, Actor, AuditQuery
from crestgate.rules.records import edit_of
from crestgate.rules.rule import Rule
from crestgate.rules.storage.sql.repository import SqlRepository, open_sql_repository
from crestgate.rules.storage.sql.retention import BATCH_SIZE, HOUR_US
from crestgate.runtime.url_options import Options
from crestgate.stores.sql.factory import open_driver
from crestgate.stores.sql.schema import audit, counters, metadata, records, revisions, usage, writes
from crestgate.stores.sql.upgrade import upgrade_database
from databases import KINDS, url_of
from servers.mariadb import MariaDB
from servers.process import GivenServer
from unit.rules.storage.kit import ALICE, Opener, RepositoryKit, edit, ids, put, revision_of

SqlOpener = Callable[[str], SqlRepository]


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


class TestSqlRepository(RepositoryKit):
    @pytest.fixture
    def opener(self, opener: Opener, url: str, monkeypatch: pytest.MonkeyPatch) -> Opener:
        monkeypatch.setattr(self, "notifies", url.startswith("postgresql"))
        return opener


@pytest.fixture
def repository(opener: SqlOpener, request: pytest.FixtureRequest) -> SqlRepository:
    return opener(request.node.name)


def now_of(repository: SqlRepository) -> int:
    with repository.engine.connect() as connection:
        now: int = connection.execute(select(repository.clock)).scalar_one()
        return now


def advance(repository: SqlRepository, microseconds: int) -> None:
    """Advance the repository's clock."""
    repository.clock = literal_column(str(now_of(repository) + microseconds))


def rows(repository: SqlRepository) -> dict[str, int]:
    """Ids of all rows, with 1 for deleted records."""
    query = select(records.c.id, records.c.deleted).where(records.c.prefix == repository.prefix)
    with repository.engine.connect() as connection:
        return {row.id.decode(): row.deleted for row in connection.execute(query)}


def corrupt(repository: SqlRepository, **values: object) -> None:
    with repository.engine.begin() as connection:
        connection.execute(update(records).where(records.c.prefix == repository.prefix).values(values))


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


def test_restored_backup(repository: SqlRepository) -> None:
    """The revision is smaller than that of a reader."""
    record = put(repository, "kept", {"n": 1})
    for n in range(5):
        put(repository, "lost", {"n": n})
    latest = revision_of(repository)
    with repository.engine.begin() as connection:
        mine = revisions.c.prefix == repository.prefix
        connection.execute(update(revisions).where(mine).values(revision=1))
        connection.execute(records.delete().where(records.c.prefix == repository.prefix, records.c.id == b"lost"))
    changes = repository.changes(latest)
    assert changes is not None
    assert (changes.revision, changes.complete, list(changes.records)) == (1, True, [record])


def copy_state(repository: SqlRepository) -> Callable[[], None]:
    """Copy the rows of the rules; returns a function that restores them, as a replica that lacks later writes."""
    tables = (revisions, records, writes)
    with repository.engine.connect() as connection:
        copies = [
            [row._asdict() for row in connection.execute(select(table).where(table.c.prefix == repository.prefix))]
            for table in tables
        ]

    def restore() -> None:
        with repository.engine.begin() as connection:
            for table, copy in zip(tables, copies, strict=True):
                connection.execute(table.delete().where(table.c.prefix == repository.prefix))
                connection.execute(table.insert(), copy)

    return restore


def changes_since(repository: SqlRepository, since: int) -> tuple[int, bool, bool, list[str]]:
    changes = repository.changes(since)
    assert changes is not None
    return changes.revision, changes.complete, changes.replaced, sorted(ids(changes.records))


def test_promoted_replica_that_lags_reuses_revisions(opener: SqlOpener, request: pytest.FixtureRequest) -> None:
    reader, writer = opener(request.node.name), opener(request.node.name)
    put(writer, "r", {"n": 1})
    put(writer, "r", {"n": 2})
    promote = copy_state(writer)
    put(writer, "lost", {"n": 3})
    assert changes_since(reader, 0) == (3, True, False, ["lost", "r"])
    promote()
    assert changes_since(reader, 3) == (2, True, True, ["r"])

    put(writer, "lost", {"n": 3})
    assert changes_since(reader, 2) == (3, False, False, ["lost"])
    promote()
    put(writer, "other", {"n": 3})
    assert changes_since(reader, 3) == (3, True, True, ["other", "r"]), "the same number, another write"
    assert reader.changes(3) is None, "it is reported once"

    promote()
    put(writer, "third", {"n": 3})
    put(writer, "fourth", {"n": 3})
    assert changes_since(reader, 3) == (4, True, True, ["fourth", "r", "third"]), "further on, but not the same"
    put(writer, "fifth", {"n": 3})
    assert changes_since(reader, 4) == (5, False, False, ["fifth"])


def test_catalog_notices_a_failover_that_lost_writes(
    opener: SqlOpener, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    def write(rule_id: str) -> None:
        rule = {"rule_id": rule_id, "dimension": "user", "identifier": rule_id, "limit": 1, "window_seconds": 60}
        writer.write([edit_of(Rule.read(rule))], ALICE)

    reader, writer = opener(request.node.name), opener(request.node.name)
    write("kept")
    promote = copy_state(writer)
    write("lost")
    with closing(Catalog([reader], refresh_seconds=3600)) as catalog:
        assert sorted(catalog.current.rules) == ["kept", "lost"]
        promote()
        write("other")
        assert catalog.refresh()
        assert sorted(catalog.current.rules) == ["kept", "other"]
        assert not catalog.refresh()
    (message,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert message == (
        f"rule history replaced, all rules were read again: {reader.title}: revision 2 that was read is gone, "
        "by a failover or a restored backup"
    )


def test_backup_without_nonces(repository: SqlRepository) -> None:
    """Written by an older Crestgate, or restored without the table: rules can be read and written all the same."""
    put(repository, "a", {})
    with repository.engine.begin() as connection:
        connection.execute(writes.delete().where(writes.c.prefix == repository.prefix))
    assert changes_since(repository, 0) == (1, True, False, ["a"])
    assert repository.changes(1) is None
    put(repository, "b", {})
    assert changes_since(repository, 1) == (2, False, False, ["b"])
    with repository.engine.begin() as connection:
        connection.execute(update(revisions).where(revisions.c.prefix == repository.prefix).values(revision=0))
    put(repository, "c", {})
    put(repository, "d", {})
    assert changes_since(repository, 2) == (2, True, True, ["a", "b", "c", "d"])


def test_nonces_are_bounded(repository: SqlRepository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crestgate.rules.storage.sql.repository.MAX_WRITES", 3)
    put(repository, "r", {})
    assert changes_since(repository, 0)[0] == 1
    for _ in range(5):
        put(repository, "r", {})
    stored = select(writes.c.revision).where(writes.c.prefix == repository.prefix).order_by(writes.c.revision)
    with repository.engine.connect() as connection:
        assert connection.scalars(stored).all() == [4, 5, 6]
    assert changes_since(repository, 1) == (6, True, False, ["r"]), "too old to say what became of it"


@pytest.mark.parametrize(
    "body",
    ["{", "[]", '"text"', "", "null", pytest.param('{"a":' * 10_000 + "1" + "}" * 10_000, id="nested")],
)
def test_unreadable_body(repository: SqlRepository, body: str) -> None:
    put(repository, "r", {"n": 1})
    corrupt(repository, body=body)
    uses: list[Callable[[], object]] = [
        lambda: repository.get("rule", "r"),
        lambda: repository.list("rule"),
        lambda: repository.write([edit("r", {})], ALICE),
    ]
    for use in uses:
        with pytest.raises(ValidationError) as error:
            use()
        (problem,) = error.value.problems
        assert (problem.file, problem.field) == (repository.title, "rule 'r'")
        assert problem.message.startswith("its body cannot be read: ")
        assert problem.message.endswith("; correct the row of crestgate_records, or delete it")
    assert len(repository.audit(AuditQuery())) == 1
    fine = put(repository, "fine", {"n": 2})
    changes = repository.changes(0)
    assert changes is not None
    assert list(changes.records) == [fine], "the others are read"
    assert [(one.kind, one.id, one.problems) for one in changes.unreadable] == [("rule", "r", (problem,))]
    repository.write([edit("r", None)], ALICE)
    changes = repository.changes(changes.revision)
    assert changes is not None
    assert (changes.deleted, changes.unreadable) == ([("rule", "r")], []), "it can be deleted"
    assert put(repository, "r", {}).version == 2


def test_other_unreadable_columns(repository: SqlRepository) -> None:
    put(repository, "r", {"n": 1}, unique_key="slot")
    corrupt(repository, claim_text="{")
    with pytest.raises(ValidationError, match="rule 'r': its claim_text cannot be read"):
        repository.get("rule", "r")
    corrupt(repository, claim_text=None, id=b"\xff")
    changes = repository.changes(0)
    assert changes is not None
    (unreadable,) = changes.unreadable
    assert (unreadable.kind, unreadable.id) == ("rule", "\\xff")
    assert "rule b'\\xff': its id cannot be read" in str(unreadable)
    corrupt(repository, id=b"r", kind="cake")
    changes = repository.changes(0)
    assert changes is not None
    assert "its kind cannot be read: 'cake' is none of rule, tier" in str(changes.unreadable[0])
    with repository.engine.begin() as connection:
        connection.execute(update(audit).where(audit.c.prefix == repository.prefix).values(after="{"))
    with pytest.raises(ValidationError, match=r"audit entry \d+: its after cannot be read: .*crestgate_audit"):
        repository.audit(AuditQuery())
    with repository.engine.begin() as connection:
        connection.execute(update(audit).where(audit.c.prefix == repository.prefix).values(after=None, actor=b"\xff"))
    with pytest.raises(ValidationError, match=r"audit entry \d+: its actor, address, subject cannot be read"):
        repository.audit(AuditQuery())


def test_unreadable_expired_record_does_not_make_writes_fail(repository: SqlRepository) -> None:
    put(repository, "r", {}, expires_us=1)
    corrupt(repository, body="{")
    advance(repository, HOUR_US)
    put(repository, "other", {})
    assert rows(repository) == {"other": 0, "r": 0}


def test_catalog_uses_the_readable_rules(repository: SqlRepository) -> None:
    def write(*rule_ids: str, limit: int) -> None:
        rules = [{"rule_id": name, "dimension": "user", "identifier": name, "limit": limit} for name in rule_ids]
        repository.write([edit_of(Rule.read({**rule, "window_seconds": 60})) for rule in rules], ALICE)

    write("a", "b", limit=1)
    with closing(Catalog([repository], refresh_seconds=3600)) as catalog:
        write("a", "b", limit=2)
        with repository.engine.begin() as connection:
            mine = (records.c.prefix == repository.prefix, records.c.id == b"a")
            connection.execute(update(records).where(*mine).values(body="{"))
        assert catalog.refresh()
        assert {name: rule.limit for name, rule in catalog.current.rules.items()} == {"a": 1, "b": 2}
        assert [one.id for one in catalog.unreadable] == ["a"]
        assert "rule 'a': its body cannot be read" in (catalog.problem or "")


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
