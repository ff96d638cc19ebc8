"""What rule readers find in a database: backups, promoted replicas that lack writes, and rows that cannot be read."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pytest
from sqlalchemy import select, update

from crestgate.errors import ValidationError
from crestgate.rules.catalog import Catalog
from crestgate.rules.port import AuditQuery
from crestgate.rules.records import edit_of
from crestgate.rules.rule import Rule
from crestgate.rules.storage.sql.repository import SqlRepository
from crestgate.rules.storage.sql.retention import HOUR_US
from crestgate.stores.sql.schema import audit, records, revisions, writes
from unit.rules.storage.kit import ALICE, edit, ids, put, revision_of
from unit.rules.storage.sql_rules import SqlOpener, advance, corrupt, rows


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
