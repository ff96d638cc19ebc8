"""What every repository promises (see headgate.rules.repositories.port), as tests that each of them inherits.

Subclass `RepositoryKit` in a test file and give it the one fixture that it lacks, `opener`:

    class TestMyRepository(RepositoryKit):
        tells = True

        @pytest.fixture
        def opener(self) -> Iterator[Opener]:
            with ExitStack() as stack:
                def open_one(prefix: str) -> Repository:
                    return stack.enter_context(closing(MyRepository(URL, prefix=prefix)))

                yield open_one

What is opened twice with one prefix is the same repository, seen by two processes. Each test has a prefix of its own,
and the fixture `repository` is the repository of that prefix. `tells` says whether `listen` wakes by itself when
another process writes. (Import the kit as `unit.rules.repositories.kit`; pytest does not collect this file itself.)
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from headgate.errors import Conflict, NotFound, Stale, StoreClosed
from headgate.rules.repositories.port import Actor, AuditEntry, AuditQuery, Edit, Kind, Record, Repository

__all__ = ["ALICE", "PATIENCE", "Opener", "RepositoryKit", "edit", "ids", "in_a_child", "put"]

Opener = Callable[[str], Repository]
ALICE = Actor("alice", "192.0.2.1")
BOB = Actor("bob", "2001:db8::1")
PATIENCE = 20.0
"""Seconds until something that must happen is taken not to: tests share two cores."""
SECOND = 1_000_000
STRANGE_IDS = (
    "a", "A", "\u00e1", "a\u0301", "a ", " a", "a\t", "a\n", "a\x00", "a\x00b", "a:b", "a/b", "a{b}", "{a}b", "a|b",
    "a%62", "a%", "a%b", "a_b", "axb", "ab", "\u00df", "ss", "\ufb03", "\U0001f6a6", "\U0001f6a6\U0001f6a6", "\ud83d",
    "\uffff", "\U00010000", "'; --", '"a"', "a\\", "a,b", "a;b", "*", "k" * 1024, "0", "-1",
)  # fmt: skip
STRANGE_BODY: dict[str, Any] = {
    "name": "\u00dcber \U0001f6a6 \ud83d \x00 \\ ' \" \u2028",
    "limit": 2**53 + 1,
    "share": 0.1,
    "burst": None,
    "on": True,
    "": [1, [2, {"three": []}], {}],
    "\U0001f6a6": "key",
}
_numbers = count()


class RepositoryKit:
    """The tests. A subclass says how a repository is opened."""

    tells = False

    @pytest.fixture
    def opener(self) -> Opener:
        """Opens a repository under a prefix; whatever it has opened is closed after the test."""
        raise NotImplementedError("say how a repository is opened")

    @pytest.fixture
    def prefix(self) -> str:
        return f"test-{os.getpid()}-{next(_numbers)}"

    @pytest.fixture
    def repository(self, opener: Opener, prefix: str) -> Repository:
        return opener(prefix)

    # -- one record -------------------------------------------------------------------------------------------------

    def test_a_new_repository_has_nothing(self, repository: Repository) -> None:
        assert repository.get("rule", "r") is None
        assert list(repository.list("rule")) == []
        assert repository.changes(0) is None, "nothing is new"
        assert list(repository.audit(AuditQuery())) == []

    def test_a_record_is_made_changed_and_deleted(self, repository: Repository) -> None:
        made = put(repository, "r", {"limit": 1})
        assert (made.kind, made.id, made.version, made.body) == ("rule", "r", 1, {"limit": 1})
        assert (made.claim, made.expires_us) == (None, None)
        assert made.created_us == made.updated_us > 1_700_000_000 * SECOND
        assert repository.get("rule", "r") == made
        changed = put(repository, "r", {"limit": 2}, claim="slot", expires_us=made.updated_us + 3600 * SECOND)
        assert (changed.version, changed.body, changed.claim) == (2, {"limit": 2}, "slot")
        assert changed.expires_us == made.updated_us + 3600 * SECOND
        assert changed.created_us == made.created_us <= changed.updated_us
        assert repository.get("rule", "r") == changed
        plain = put(repository, "r", {})
        assert (plain.version, plain.body, plain.claim, plain.expires_us) == (3, {}, None, None)
        assert repository.get("rule", "r") == plain
        assert list(repository.write([edit("r", None)], ALICE)) == [None]
        assert repository.get("rule", "r") is None
        assert list(repository.list("rule")) == []

    def test_kinds_are_apart(self, repository: Repository) -> None:
        rule = put(repository, "gold", {"n": 1})
        plan = put(repository, "gold", {"n": 2}, kind="plan")
        assert rule.version == plan.version == 1
        assert repository.get("rule", "gold") == rule
        assert repository.get("plan", "gold") == plan
        assert repository.get("tier", "gold") is None
        repository.write([Edit("plan", "gold", None)], ALICE)
        assert repository.get("rule", "gold") == rule

    def test_versions_go_on_when_a_record_is_made_again(self, repository: Repository) -> None:
        first = put(repository, "r", {"n": 1})
        put(repository, "r", {"n": 2})
        repository.write([edit("r", None)], ALICE)
        again = put(repository, "r", {"n": 3}, expected=0)
        assert again.version == 3
        assert again.created_us >= first.created_us
        assert again.created_us == again.updated_us, "it is a new one all the same"
        with pytest.raises(Stale):
            repository.write([edit("r", {"n": 4}, expected=1)], ALICE)

    def test_any_plain_data_is_a_body(self, repository: Repository) -> None:
        put(repository, "r", STRANGE_BODY)
        put(repository, "r", {"text": "\u00e9" * 32_000})
        large = repository.get("rule", "r")
        assert large is not None
        assert large.body == {"text": "\u00e9" * 32_000}
        changed, made = repository.audit(AuditQuery())
        assert (made.after, changed.before, changed.after) == (STRANGE_BODY, STRANGE_BODY, large.body)
        put(repository, "r", STRANGE_BODY)
        kept = repository.get("rule", "r")
        assert kept is not None
        assert kept.body == STRANGE_BODY

    # -- optimism ---------------------------------------------------------------------------------------------------

    def test_what_is_not_there_cannot_be_changed_or_deleted(self, repository: Repository) -> None:
        for wrong in (edit("r", None), edit("r", None, expected=1), edit("r", {"n": 1}, expected=1)):
            with pytest.raises(NotFound, match="there is no rule 'r'"):
                repository.write([wrong], ALICE)
        put(repository, "r", {"n": 1}, expected=0)
        repository.write([edit("r", None, expected=1)], ALICE)
        with pytest.raises(NotFound):
            repository.write([edit("r", None)], ALICE)
        with pytest.raises(NotFound):
            repository.write([edit("r", {"n": 1}, expected=1)], ALICE)

    def test_what_another_has_changed_is_not_overwritten(self, repository: Repository) -> None:
        put(repository, "r", {"n": 1})
        put(repository, "r", {"n": 2}, expected=1)
        with pytest.raises(Stale, match="version 1 was read, and it is at 2 now"):
            repository.write([edit("r", {"n": 3}, expected=1)], BOB)
        with pytest.raises(Stale):
            repository.write([edit("r", None, expected=1)], BOB)
        with pytest.raises(Conflict, match="exists already"):
            repository.write([edit("r", {"n": 3}, expected=0)], BOB)
        kept = repository.get("rule", "r")
        assert kept is not None
        assert (kept.version, kept.body) == (2, {"n": 2})

    # -- claims -----------------------------------------------------------------------------------------------------

    def test_a_claim_is_of_one_record(self, repository: Repository) -> None:
        put(repository, "first", {"n": 1}, claim="slot")
        with pytest.raises(Conflict, match="'second' would be as specific as rule 'first'"):
            repository.write([edit("second", {"n": 2}, claim="slot")], ALICE)
        put(repository, "second", {"n": 2}, claim="slot ")
        put(repository, "third", {"n": 2}, claim="Slot")
        put(repository, "first", {"n": 3}, claim="slot")
        with pytest.raises(Conflict):
            repository.write([edit("second", {"n": 2}, claim="slot")], ALICE)

    def test_a_claim_is_free_again(self, repository: Repository) -> None:
        put(repository, "first", {}, claim="slot")
        repository.write([edit("first", None)], ALICE)
        put(repository, "second", {}, claim="slot")
        put(repository, "second", {}, claim="another")
        put(repository, "third", {}, claim="slot")
        put(repository, "third", {})
        assert put(repository, "fourth", {}, claim="slot").claim == "slot"

    def test_one_write_may_hand_a_claim_on(self, repository: Repository) -> None:
        put(repository, "first", {}, claim="one")
        put(repository, "second", {}, claim="two")
        repository.write([edit("first", {}, claim="two"), edit("second", {}, claim="one")], ALICE)
        repository.write([edit("third", {}, claim="two"), edit("first", None)], ALICE)
        assert [(r.id, r.claim) for r in repository.list("rule")] == [("second", "one"), ("third", "two")]
        with pytest.raises(Conflict):
            repository.write([edit("x", {}, claim="new"), edit("y", {}, claim="new")], ALICE)
        assert repository.get("rule", "x") is None

    def test_the_claim_of_a_record_that_has_ended_is_void(self, repository: Repository) -> None:
        now = put(repository, "clock", {}).updated_us
        put(repository, "ended", {"n": 1}, claim="slot", expires_us=now)
        put(repository, "lasting", {"n": 2}, claim="other", expires_us=now + 3600 * SECOND)
        with pytest.raises(Conflict):
            repository.write([edit("heir", {}, claim="other")], BOB)
        revision = revision_of(repository)
        heir = put(repository, "heir", {"n": 3}, claim="slot", actor=BOB)
        assert heir.version == 1
        assert repository.get("rule", "ended") is None
        changes = repository.changes(revision)
        assert changes is not None
        assert (list(changes.records), list(changes.deleted)) == ([heir], [("rule", "ended")])
        entries = repository.audit(AuditQuery(limit=2))
        assert {told(e) for e in entries} == {
            ("headgate", "", "expire", "rule:ended"),
            (BOB.name, BOB.address, "create", "rule:heir"),
        }

    # -- atomicity --------------------------------------------------------------------------------------------------

    def test_a_write_is_all_of_its_edits_or_nothing(self, repository: Repository) -> None:
        put(repository, "kept", {"n": 1}, claim="slot")
        put(repository, "other", {"n": 1})
        before = everything(repository)
        good = [edit("new", {"n": 1}), edit("kept", {"n": 2}), edit("other", None)]
        for bad, error in (
            (edit("away", None), NotFound),
            (edit("away", {}, expected=3), NotFound),
            (Edit("plan", "away", {}, expected=1), NotFound),
            (edit("kept", {}, expected=0), Conflict),
        ):
            some = [item for item in good if item.id != bad.id]
            with pytest.raises(error):
                repository.write([*some, bad], ALICE)
            assert everything(repository) == before
        with pytest.raises(Conflict, match="one record twice"):
            repository.write([edit("new", {"n": 1}), edit("new", {"n": 2})], ALICE)
        with pytest.raises(Conflict):
            repository.write([edit("other", None), edit("rival", {}, claim="slot")], ALICE)
        with pytest.raises(Stale):
            repository.write([edit("new", {}), edit("kept", {}, expected=7)], ALICE)
        assert everything(repository) == before, "no record, no audit entry, no revision"

    def test_the_answers_are_in_the_order_of_the_edits(self, repository: Repository) -> None:
        put(repository, "b", {"n": 1})
        answers = repository.write([edit("c", {"n": 3}), edit("b", None), edit("a", {"n": 2}, claim="x")], ALICE)
        assert list(answers) == [repository.get("rule", "c"), None, repository.get("rule", "a")]
        assert [answer.body if answer else None for answer in answers] == [{"n": 3}, None, {"n": 2}]

    def test_a_write_of_nothing_writes_nothing(self, repository: Repository) -> None:
        put(repository, "r", {})
        before = everything(repository)
        assert list(repository.write([], ALICE)) == []
        assert everything(repository) == before

    def test_a_write_of_many(self, repository: Repository) -> None:
        many = [edit(f"r{n:04}", {"n": n}, claim=f"slot {n}") for n in range(600)]
        assert [r.id for r in repository.write(many, ALICE) if r] == [e.id for e in many]
        changes = repository.changes(0)
        assert changes is not None
        assert len(changes.records) == 600
        assert len(repository.audit(AuditQuery(limit=1000))) == 600
        assert list(repository.write([replace(e, body=None, claim=None) for e in many], ALICE)) == [None] * 600
        assert list(repository.list("rule")) == []

    # -- changes ----------------------------------------------------------------------------------------------------

    def test_what_is_new_since_a_revision(self, repository: Repository) -> None:
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
        assert list(changes.deleted) == [], "it is there again"
        assert again != one

    def test_everything_there_is(self, repository: Repository) -> None:
        kept = put(repository, "kept", {"n": 1}, claim="slot")
        put(repository, "gone", {"n": 2})
        repository.write([edit("gone", None)], ALICE)
        changes = repository.changes(0)
        assert changes is not None
        assert (changes.complete, list(changes.records), list(changes.deleted)) == (True, [kept], [])

    def test_a_revision_from_the_future_means_that_a_backup_was_restored(self, repository: Repository) -> None:
        kept = put(repository, "kept", {"n": 1})
        revision = revision_of(repository)
        changes = repository.changes(revision + 1000)
        assert changes is not None
        assert (changes.revision, changes.complete, list(changes.records)) == (revision, True, [kept])

    def test_a_revision_from_the_future_of_an_empty_repository(self, repository: Repository) -> None:
        changes = repository.changes(7)
        assert changes is not None
        assert (changes.revision, changes.complete, list(changes.records), list(changes.deleted)) == (0, True, [], [])

    def test_another_process_sees_what_was_written(self, opener: Opener, prefix: str) -> None:
        writer, reader = opener(prefix), opener(prefix)
        made = put(writer, "r", {"n": 1})
        assert reader.get("rule", "r") == made
        changes = reader.changes(0)
        assert changes is not None
        assert list(changes.records) == [made]
        changed = put(reader, "r", {"n": 2}, expected=1)
        assert writer.get("rule", "r") == changed
        with pytest.raises(Stale):
            writer.write([edit("r", {"n": 3}, expected=1)], ALICE)

    # -- listing ----------------------------------------------------------------------------------------------------

    def test_strange_ids_are_all_different_and_in_order(self, repository: Repository) -> None:
        repository.write([edit(name, {"is": name}, claim=f"claim {name}") for name in STRANGE_IDS], ALICE)
        ordered = sorted(STRANGE_IDS, key=encoded)
        assert ids(repository.list("rule")) == ordered
        for name in STRANGE_IDS:
            record = repository.get("rule", name)
            assert record is not None
            assert (record.id, record.body, record.claim) == (name, {"is": name}, f"claim {name}")
            begun = [other for other in ordered if other.startswith(name)]
            assert ids(repository.list("rule", prefix=name)) == begun
            behind = [other for other in ordered if encoded(other) > encoded(name)]
            assert ids(repository.list("rule", after=name)) == behind
            assert [e.subject for e in repository.audit(AuditQuery(subject=f"rule:{name}"))] == [f"rule:{name}"]
        changes = repository.changes(0)
        assert changes is not None
        assert sorted((r.id for r in changes.records), key=encoded) == ordered
        repository.write([edit(name, None) for name in STRANGE_IDS[::2]], ALICE)
        assert ids(repository.list("rule")) == sorted(STRANGE_IDS[1::2], key=encoded)

    def test_pages_of_a_list(self, repository: Repository) -> None:
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

    def test_prefixes_are_apart(self, opener: Opener, prefix: str) -> None:
        first, *others = [opener(prefix + end) for end in ("", " ", "A", "a", ":", "\u00e9", "x" * 300, "x" * 301)]
        made = put(first, "r", {"n": 1}, claim="slot")
        before = everything(first)
        for other in others:
            assert other.get("rule", "r") is None
            assert other.changes(0) is None
            assert list(other.audit(AuditQuery())) == []
            put(other, "s", {"n": 2}, claim="slot")
            put(other, "r", {"n": 2}, expected=0)
            assert ids(other.list("rule")) == ["r", "s"]
            other.write([edit("s", None)], ALICE)
        assert first.get("rule", "r") == made
        assert everything(first) == before

    # -- audit ------------------------------------------------------------------------------------------------------

    def test_every_write_is_in_the_audit_log(self, repository: Repository) -> None:
        made = put(repository, "r", {"n": 1})
        changed = put(repository, "r", {"n": 2}, actor=BOB)
        repository.write([edit("r", None)], ALICE)
        repository.note(BOB, "reset", "user:42")
        reset, deleted, update, create = repository.audit(AuditQuery())
        assert told(create) == ("alice", "192.0.2.1", "create", "rule:r")
        assert (create.at_us, create.before, create.after) == (made.updated_us, None, {"n": 1})
        assert told(update) == ("bob", "2001:db8::1", "update", "rule:r")
        assert (update.at_us, update.before, update.after) == (changed.updated_us, {"n": 1}, {"n": 2})
        assert told(deleted) == ("alice", "192.0.2.1", "delete", "rule:r")
        assert (deleted.before, deleted.after) == ({"n": 2}, None)
        assert told(reset) == ("bob", "2001:db8::1", "reset", "user:42")
        assert (reset.before, reset.after) == (None, None)
        assert changed.updated_us <= deleted.at_us <= reset.at_us
        places = [place(entry) for entry in (create, update, deleted, reset)]
        assert places == sorted(set(places)), "a later entry has a greater id"

    def test_a_note_changes_nothing(self, repository: Repository) -> None:
        put(repository, "r", {})
        revision = revision_of(repository)
        repository.note(ALICE, "reset", "\U0001f6a6 \ud83d")
        assert revision_of(repository) == revision
        assert repository.changes(revision) is None
        assert repository.audit(AuditQuery(limit=1))[0].subject == "\U0001f6a6 \ud83d"

    def test_a_note_may_be_the_first_that_is_written(self, repository: Repository) -> None:
        repository.note(ALICE, "reset", "user:42")
        assert [told(e) for e in repository.audit(AuditQuery())] == [("alice", "192.0.2.1", "reset", "user:42")]
        assert repository.changes(0) is None

    def test_whom_and_what_to_show(self, repository: Repository) -> None:
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

    def test_when_to_show(self, repository: Repository) -> None:
        """From `since_us` on, and before `until_us`."""
        for n in range(5):
            put(repository, f"r{n}", {})
        entries = repository.audit(AuditQuery())
        moments = [entry.at_us for entry in entries]
        assert moments == sorted(moments, reverse=True)
        for moment in {*moments, moments[0] + 1, moments[-1] - 1}:
            since = [e for e in entries if e.at_us >= moment]
            until = [e for e in entries if e.at_us < moment]
            assert list(repository.audit(AuditQuery(since_us=moment))) == since
            assert list(repository.audit(AuditQuery(until_us=moment))) == until
            assert list(repository.audit(AuditQuery(since_us=moment, until_us=moment))) == []
        both = AuditQuery(since_us=moments[-1], until_us=moments[0] + 1, actor="alice")
        assert list(repository.audit(both)) == list(entries)

    def test_pages_of_the_audit_log(self, repository: Repository) -> None:
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

    # -- many at once -----------------------------------------------------------------------------------------------

    def test_writers_come_one_after_another(self, opener: Opener, prefix: str) -> None:
        workers, rounds = 4, 12
        repositories = [opener(prefix), opener(prefix)]

        def work(worker: int) -> None:
            repository = repositories[worker % 2]
            for n in range(rounds):
                put(repository, f"own-{worker}", {"n": n})
                while True:
                    found = repository.get("rule", "shared")
                    body = {"n": found.body["n"] + 1 if found else 1}
                    try:
                        put(repository, "shared", body, expected=found.version if found else 0)
                    except (Stale, Conflict):
                        continue
                    break

        with ThreadPoolExecutor(workers) as pool:
            for future in [pool.submit(work, n) for n in range(workers)]:
                future.result()
        shared = repositories[0].get("rule", "shared")
        assert shared is not None
        assert (shared.version, shared.body) == (workers * rounds, {"n": workers * rounds}), "no update was lost"
        assert revision_of(repositories[0]) == 2 * workers * rounds
        entries = repositories[1].audit(AuditQuery(limit=1000))
        assert len(entries) == 2 * workers * rounds, "and no audit entry"
        seen = [entry.after["n"] for entry in entries if entry.subject == "rule:shared" and entry.after]
        assert seen == list(range(workers * rounds, 0, -1))

    def test_a_reader_never_sees_half_of_a_write(self, opener: Opener, prefix: str) -> None:
        writer, reader = opener(prefix), opener(prefix)
        names = [f"r{n}" for n in range(5)]
        writer.write([edit(name, {"n": 0}) for name in names], ALICE)
        done = threading.Event()

        def write() -> None:
            try:
                for n in range(1, 60):
                    gone = names[n % 5]
                    writer.write([edit(f"extra{n % 2}", {"n": n}), *(edit(name, {"n": n}) for name in names)], ALICE)
                    writer.write([edit(f"extra{n % 2}", None), edit(gone, {"n": n})], ALICE)
            finally:
                done.set()

        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(write)
            held: dict[str, Any] = {}
            revision = looks = 0
            while True:
                last = done.is_set()
                changes = reader.changes(revision)
                if changes is not None:
                    looks += 1
                    assert changes.revision > revision
                    assert changes.complete == (revision == 0)
                    revision = changes.revision
                    for _, name in changes.deleted:
                        held.pop(name, None)
                    held.update({record.id: record.body["n"] for record in changes.records})
                    rounds = {held[name] for name in names}
                    assert len(rounds) == 1, f"revision {revision} is torn: {held}"
                    extra = {name for name in held if name.startswith("extra")}
                    assert len(extra) == (1 if revision % 2 == 0 else 0), f"revision {revision} is torn: {held}"
                elif last:
                    break
            writing.result()
        assert revision == 1 + 2 * 59
        assert looks > 1

    # -- listening, forking, closing --------------------------------------------------------------------------------

    def test_listening(self, opener: Opener, prefix: str) -> None:
        writer, reader = opener(prefix), opener(prefix)
        woken = threading.Semaphore(0)
        reader.listen(lambda: woken.release())
        if not self.tells:
            put(writer, "r", {})
            assert reader.changes(0) is not None, "whoever asks finds it all the same"
            return
        for n in range(3):
            while woken.acquire(blocking=False):
                pass
            revision = put(writer, "r", {"n": n}).version
            assert woken.acquire(timeout=PATIENCE)
            assert revision_of(reader) == revision
        reader.close()

    def test_a_fork(self, repository: Repository) -> None:
        put(repository, "before", {"n": 1})

        def child() -> None:
            found = repository.get("rule", "before")
            assert found is not None
            put(repository, "child", {"n": 2})
            assert ids(repository.list("rule")) == ["before", "child"]

        assert in_a_child(child) == 0
        put(repository, "parent", {"n": 3})
        assert ids(repository.list("rule")) == ["before", "child", "parent"]
        assert in_a_child(repository.close) == 0
        assert put(repository, "parent", {"n": 4}).version == 2, "what a child closes is its own"

    def test_closed(self, repository: Repository) -> None:
        put(repository, "r", {})
        repository.close()
        repository.close()
        uses: list[Callable[[], object]] = [
            lambda: repository.get("rule", "r"),
            lambda: repository.list("rule"),
            lambda: repository.changes(0),
            lambda: repository.write([edit("r", {})], ALICE),
            lambda: repository.note(ALICE, "reset", "x"),
            lambda: repository.audit(AuditQuery()),
            lambda: repository.listen(lambda: None),
        ]
        for use in uses:
            with pytest.raises(StoreClosed):
                use()


def edit(
    record_id: str,
    body: Mapping[str, Any] | None,
    *,
    expected: int | None = None,
    claim: str | None = None,
    expires_us: int | None = None,
) -> Edit:
    """An edit of a rule."""
    return Edit("rule", record_id, body, expected, claim, expires_us)


def put(
    repository: Repository,
    record_id: str,
    body: Mapping[str, Any],
    *,
    kind: Kind = "rule",
    actor: Actor = ALICE,
    expected: int | None = None,
    claim: str | None = None,
    expires_us: int | None = None,
) -> Record:
    """Write one record; how it stands afterwards."""
    (record,) = repository.write([Edit(kind, record_id, body, expected, claim, expires_us)], actor)
    assert record is not None
    return record


def ids(records: Sequence[Record]) -> list[str]:
    return [record.id for record in records]


def revision_of(repository: Repository) -> int:
    changes = repository.changes(0)
    assert changes is not None
    return changes.revision


def everything(repository: Repository) -> tuple[object, ...]:
    """All that can be seen of it."""
    changes = repository.changes(0)
    assert changes is not None
    return changes.revision, list(repository.list("rule")), list(repository.audit(AuditQuery(limit=10_000)))


def told(entry: AuditEntry) -> tuple[str, str, str, str]:
    return entry.actor, entry.address, entry.action, entry.subject


def place(entry: AuditEntry) -> tuple[int, str]:
    return len(entry.id), entry.id


def subjects(repository: Repository, **query: Any) -> list[str]:
    return [entry.subject for entry in repository.audit(AuditQuery(**query))]


def encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def in_a_child(work: Callable[[], None]) -> int:
    """Run it in a forked process; 0 if it went well."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
