"""Contract of repositories for readers: see kit.py."""

from __future__ import annotations

import pytest

from crestgate.errors import StaleVersionError
from crestgate.rules.port import Actor, AuditEntry, AuditQuery, Edit, Repository
from unit.rules.storage.kit_edits import (
    ALICE,
    BOB,
    Opener,
    edit,
    encoded,
    ids,
    put,
    revision_of,
    sort_key,
    subjects,
    summary,
    visible_state,
)

__all__ = ["ReadingKit"]

UNUSUAL_IDS = (
    "a", "A", "\u00e1", "a\u0301", "a ", " a", "a\t", "a\n", "a\x00", "a\x00b", "a:b", "a/b", "a{b}", "{a}b", "a|b",
    "a%62", "a%", "a%b", "a_b", "axb", "ab", "\u00df", "ss", "\ufb03", "\U0001f6a6", "\U0001f6a6\U0001f6a6", "\ud83d",
    "\uffff", "\U00010000", "'; --", '"a"', "a\\", "a,b", "a;b", "*", "k" * 1024, "0", "-1",
)  # fmt: skip


class ReadingKit:
    """Changes since a revision, lists, and the audit log."""

    # -- changes ----------------------------------------------------------------------------------------------------

    def test_changes_since_a_revision(self, repository: Repository) -> None:
        one = put(repository, "one", {"n": 1})
        first = revision_of(repository)
        assert repository.changes(first) is None
        two = put(repository, "two", {"n": 2})
        gold = put(repository, "alice", {"tier": "gold"}, kind="tier")
        changes = repository.changes(first)
        assert changes is not None
        assert (changes.revision, changes.complete, list(changes.deleted)) == (first + 2, False, [])
        assert sorted(changes.records, key=lambda r: r.id) == [gold, two]
        repository.write([edit("one", None)], ALICE)
        changes = repository.changes(first + 2)
        assert changes is not None
        assert (list(changes.records), list(changes.deleted)) == ([], [("rule", "one")])
        assert (changes.revision, changes.complete) == (first + 3, False)
        again = put(repository, "one", {"n": 3})
        changes = repository.changes(first)
        assert changes is not None
        assert sorted(changes.records, key=lambda r: r.id) == [gold, again, two]
        assert list(changes.deleted) == [], "it exists again"
        assert again != one

    def test_changes_since_zero_are_complete(self, repository: Repository) -> None:
        record = put(repository, "kept", {"n": 1}, unique_key="slot")
        put(repository, "gone", {"n": 2})
        repository.write([edit("gone", None)], ALICE)
        changes = repository.changes(0)
        assert changes is not None
        assert (changes.complete, list(changes.records), list(changes.deleted)) == (True, [record], [])

    def test_future_revision_means_that_a_backup_was_restored(self, repository: Repository) -> None:
        record = put(repository, "kept", {"n": 1})
        revision = revision_of(repository)
        changes = repository.changes(revision + 1000)
        assert changes is not None
        assert (changes.revision, changes.complete, list(changes.records)) == (revision, True, [record])

    def test_future_revision_of_an_empty_repository(self, repository: Repository) -> None:
        changes = repository.changes(7)
        assert changes is not None
        assert (changes.revision, changes.complete, list(changes.records), list(changes.deleted)) == (0, True, [], [])

    def test_writes_are_visible_to_other_processes(self, opener: Opener, prefix: str) -> None:
        writer, reader = opener(prefix), opener(prefix)
        made = put(writer, "r", {"n": 1})
        assert reader.get("rule", "r") == made
        changes = reader.changes(0)
        assert changes is not None
        assert list(changes.records) == [made]
        changed = put(reader, "r", {"n": 2}, expected=1)
        assert writer.get("rule", "r") == changed
        with pytest.raises(StaleVersionError):
            writer.write([edit("r", {"n": 3}, expected=1)], ALICE)

    # -- listing ----------------------------------------------------------------------------------------------------

    def test_unusual_ids_are_distinct_and_ordered(self, repository: Repository) -> None:
        repository.write([edit(name, {"is": name}, unique_key=f"claim {name}") for name in UNUSUAL_IDS], ALICE)
        ordered = sorted(UNUSUAL_IDS, key=encoded)
        assert ids(repository.list("rule")) == ordered
        for name in UNUSUAL_IDS:
            record = repository.get("rule", name)
            assert record is not None
            assert (record.id, record.body, record.unique_key) == (name, {"is": name}, f"claim {name}")
            matching = [other for other in ordered if other.startswith(name)]
            assert ids(repository.list("rule", prefix=name)) == matching
            behind = [other for other in ordered if encoded(other) > encoded(name)]
            assert ids(repository.list("rule", after=name)) == behind
            assert [e.subject for e in repository.audit(AuditQuery(subject=f"rule:{name}"))] == [f"rule:{name}"]
        changes = repository.changes(0)
        assert changes is not None
        assert sorted((r.id for r in changes.records), key=encoded) == ordered
        repository.write([edit(name, None) for name in UNUSUAL_IDS[::2]], ALICE)
        assert ids(repository.list("rule")) == sorted(UNUSUAL_IDS[1::2], key=encoded)

    def test_lists_are_paged(self, repository: Repository) -> None:
        names = [f"a{n:02}" for n in range(25)]
        repository.write([edit(name, {}) for name in [*names, "b", "A"]], ALICE)
        pages, after = [], ""
        while page := ids(repository.list("rule", prefix="a", after=after, limit=10)):
            pages.append(page)
            after = page[-1]
        assert pages == [names[:10], names[10:20], names[20:]]
        assert ids(repository.list("rule", prefix="a", after="a22")) == ["a23", "a24"]
        assert ids(repository.list("rule", prefix="b", after="a22")) == ["b"]
        assert ids(repository.list("rule", prefix="a", after="b")) == []
        assert ids(repository.list("rule", after="a", limit=1)) == ["a00"]
        assert ids(repository.list("rule", after="nobody")) == []

    def test_prefixes_are_separate(self, opener: Opener, prefix: str) -> None:
        first, *others = [opener(prefix + end) for end in ("", " ", "A", "a", ":", "\u00e9", "x" * 300, "x" * 301)]
        made = put(first, "r", {"n": 1}, unique_key="slot")
        before = visible_state(first)
        for other in others:
            assert other.get("rule", "r") is None
            assert other.changes(0) is None
            assert list(other.audit(AuditQuery())) == []
            put(other, "s", {"n": 2}, unique_key="slot")
            put(other, "r", {"n": 2}, expected=0)
            assert ids(other.list("rule")) == ["r", "s"]
            other.write([edit("s", None)], ALICE)
        assert first.get("rule", "r") == made
        assert visible_state(first) == before

    # -- audit ------------------------------------------------------------------------------------------------------

    def test_every_write_is_audited(self, repository: Repository) -> None:
        made = put(repository, "r", {"n": 1})
        changed = put(repository, "r", {"n": 2}, actor=BOB)
        repository.write([edit("r", None)], ALICE)
        repository.note(BOB, "reset", "user:42")
        reset, deleted, update, create = repository.audit(AuditQuery())
        assert summary(create) == ("alice", "192.0.2.1", "create", "rule:r")
        assert (create.at_us, create.before, create.after) == (made.updated_us, None, {"n": 1})
        assert summary(update) == ("bob", "2001:db8::1", "update", "rule:r")
        assert (update.at_us, update.before, update.after) == (changed.updated_us, {"n": 1}, {"n": 2})
        assert summary(deleted) == ("alice", "192.0.2.1", "delete", "rule:r")
        assert (deleted.before, deleted.after) == ({"n": 2}, None)
        assert summary(reset) == ("bob", "2001:db8::1", "reset", "user:42")
        assert (reset.before, reset.after) == (None, None)
        assert changed.updated_us <= deleted.at_us <= reset.at_us
        sort_keys = [sort_key(entry) for entry in (create, update, deleted, reset)]
        assert sort_keys == sorted(set(sort_keys)), "a later entry has a greater id"

    def test_key_is_stored_whole_and_its_digest_is_not_audited(self, repository: Repository) -> None:
        body = {"name": "ci", "scope": "read", "digest": "d1" * 32, "expires_us": None}
        put(repository, "0a1b", body, kind="key")
        changed = put(repository, "0a1b", {**body, "scope": "write"}, kind="key")
        assert changed.body == {**body, "scope": "write"}
        assert repository.get("key", "0a1b") == changed
        assert ids(repository.list("key")) == ["0a1b"]
        assert ids(repository.list("rule")) == []
        changes = repository.changes(0)
        assert changes is not None
        assert [(one.kind, one.body["digest"]) for one in changes.records] == [("key", "d1" * 32)]
        repository.write([Edit("key", "0a1b", None)], ALICE)
        entries = repository.audit(AuditQuery())
        assert [(entry.action, entry.subject) for entry in entries] == [
            ("delete", "key:0a1b"),
            ("update", "key:0a1b"),
            ("create", "key:0a1b"),
        ]
        audited = {"name": "ci", "scope": "read", "expires_us": None}
        assert entries[1].before == entries[2].after == audited
        assert entries[0].before == entries[1].after == {**audited, "scope": "write"}

    def test_note_changes_no_record(self, repository: Repository) -> None:
        put(repository, "r", {})
        revision = revision_of(repository)
        repository.note(ALICE, "reset", "\U0001f6a6 \ud83d")
        assert revision_of(repository) == revision
        assert repository.changes(revision) is None
        assert repository.audit(AuditQuery(limit=1))[0].subject == "\U0001f6a6 \ud83d"

    def test_note_may_be_the_first_write(self, repository: Repository) -> None:
        repository.note(ALICE, "reset", "user:42")
        assert [summary(e) for e in repository.audit(AuditQuery())] == [("alice", "192.0.2.1", "reset", "user:42")]
        assert repository.changes(0) is None

    def test_several_subjects_are_noted_together(self, repository: Repository) -> None:
        names = [f"user:{number}" for number in range(100)]
        repository.note(BOB, "reset", *names)
        entries = repository.audit(AuditQuery())
        assert [summary(entry) for entry in reversed(entries)] == [
            ("bob", "2001:db8::1", "reset", name) for name in names
        ]
        assert len({entry.at_us for entry in entries}) == 1

    def test_audit_is_filtered_by_actor_and_subject(self, repository: Repository) -> None:
        for name, actor in (("a", ALICE), ("b", BOB), ("a", BOB), ("A", ALICE), ("a ", Actor("Alice"))):
            put(repository, name, {}, actor=actor)
        assert subjects(repository, actor="alice") == ["rule:A", "rule:a"]
        assert subjects(repository, actor="bob") == ["rule:a", "rule:b"]
        assert subjects(repository, actor="nobody") == []
        entries = repository.audit(AuditQuery(subject="rule:a"))
        assert [(e.actor, e.action) for e in entries] == [("bob", "update"), ("alice", "create")]
        assert subjects(repository, subject="rule:a", actor="bob") == ["rule:a"]
        assert subjects(repository, subject="rule:b", actor="alice") == []
        assert subjects(repository, limit=2) == ["rule:a ", "rule:A"]

    def test_audit_is_filtered_by_time(self, repository: Repository) -> None:
        """`since_us` is inclusive, `until_us` exclusive."""
        for n in range(5):
            put(repository, f"r{n}", {})
        entries = repository.audit(AuditQuery())
        times = [entry.at_us for entry in entries]
        assert times == sorted(times, reverse=True)
        for time in {*times, times[0] + 1, times[-1] - 1}:
            since = [e for e in entries if e.at_us >= time]
            until = [e for e in entries if e.at_us < time]
            assert list(repository.audit(AuditQuery(since_us=time))) == since
            assert list(repository.audit(AuditQuery(until_us=time))) == until
            assert list(repository.audit(AuditQuery(since_us=time, until_us=time))) == []
        both = AuditQuery(since_us=times[-1], until_us=times[0] + 1, actor="alice")
        assert list(repository.audit(both)) == list(entries)

    def test_audit_log_is_paged(self, repository: Repository) -> None:
        repository.write([edit(f"r{n:02}", {}) for n in range(12)], ALICE)
        repository.write([edit(f"s{n:02}", {}) for n in range(12)], BOB)
        whole = list(repository.audit(AuditQuery()))
        assert len(whole) == 24
        pages: list[AuditEntry] = []
        while page := repository.audit(AuditQuery(before=pages[-1].id if pages else None, limit=5)):
            assert len(page) == min(5, 24 - len(pages))
            pages += page
        assert pages == whole
        alices = [e for e in whole if e.actor == "alice"]
        behind = AuditQuery(before=alices[3].id, actor="alice", limit=4)
        assert list(repository.audit(behind)) == alices[4:8]
