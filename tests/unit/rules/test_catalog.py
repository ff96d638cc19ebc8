"""A catalog keeps up with its sources, believes nothing by halves, and lets go of everything in the end."""

from __future__ import annotations

import gc
import logging
import threading

import pytest

from crestgate.rules.catalog import Catalog
from crestgate.rules.port import Changes, Edit, Record
from crestgate.rules.records import edit_of
from crestgate.rules.ruleset import RuleSet
from unit.rules.cases import one_rule
from unit.rules.fake_sources import (
    ALICE,
    NEVER,
    PATIENCE,
    Book,
    Hanging,
    catalog_of,
    ids,
    until,
)
from unit.rules.storage.kit import in_a_child

# -- what is read ---------------------------------------------------------------------------------------------------


def test_everything_is_read_at_the_start() -> None:
    book = Book()
    book.put("a user\nb ip disabled\nc user ends=-5")
    book.write(
        [
            Edit("tier", "alice", {"tier": "gold"}),
            Edit("plan", "fast", {"limits": ["10/s", "100/min"]}),
            Edit("default", "policy", {"type": "SLIDING_WINDOW", "capacity": 7, "refillRate": 1, "windowSeconds": 9}),
            Edit("default", "client_limits", {"limits": ["5/second"]}),
            Edit("default", "policy_key", {"parts": ["user", "route"]}),
        ],
        ALICE,
    )
    with catalog_of(book) as catalog:
        rules = catalog.current
        assert ids(catalog) == ["a", "b", "c"]
        assert rules.rules["a"].version == 1
        assert rules.tiers == {"alice": "gold"}
        assert rules.plans == {"fast": ("10/second", "100/minute")}
        assert (rules.defaults.policy.limit, rules.defaults.policy.window_seconds) == (7, 9)
        assert [rule.limit for rule in rules.defaults.client] == [5]
        assert rules.defaults.policy_key == ("user", "route")


def test_keys_of_the_service_come_and_go_like_rules() -> None:
    book = Book()
    book.put("a user")
    book.write([Edit("key", "0a", {"digest": "one"}), Edit("key", "0b", {"digest": "two"})], ALICE)
    with catalog_of(book) as catalog:
        before = catalog.keys
        assert before == {"0a": {"digest": "one"}, "0b": {"digest": "two"}}
        book.write([Edit("key", "0a", None), Edit("key", "0c", {"name": ["cannot", "be", "a", "key"]})], ALICE)
        assert catalog.refresh() is True
        assert catalog.keys == {"0b": {"digest": "two"}, "0c": {"name": ["cannot", "be", "a", "key"]}}
        assert ids(catalog) == ["a"], "and a broken key keeps no rule from being used"
        assert "0a" in before, "who holds the old keys holds them whole"
        book.put("b ip")
        catalog.refresh()
        assert sorted(catalog.keys) == ["0b", "0c"]
        assert "two" not in repr(catalog.states[0].snapshot)


def test_an_empty_source_is_no_rules() -> None:
    with catalog_of(Book()) as catalog:
        assert ids(catalog) == []
        assert catalog.current.defaults.policy.burst == 100


def test_what_is_new_is_taken_and_what_is_gone_goes() -> None:
    book = Book()
    book.put("a user\nb ip")
    with catalog_of(book) as catalog:
        before = catalog.current
        assert catalog.refresh() is False
        assert catalog.current is before, "nothing is new"
        book.put("c global\na user 5s")
        book.delete("b")
        assert catalog.refresh() is True
        assert ids(catalog) == ["a", "c"]
        assert (catalog.current.rules["a"].window_seconds, catalog.current.rules["a"].version) == (5, 2)
        assert sorted(before.rules) == ["a", "b"], "who holds the old rules holds them whole"


def test_what_a_source_says_in_full_replaces_what_it_said_before() -> None:
    class File(Book):
        """Gives all there is each time, as files do."""

        def changes(self, since: int) -> Changes | None:
            whole = super().changes(0)
            return None if since == self.revision else whole

    file = File()
    file.put("a user\nb ip")
    file.write([Edit("tier", "alice", {"tier": "gold"})], ALICE)
    with catalog_of(file) as catalog:
        kept = catalog.current.entries["a"]
        file.delete("b")
        file.write([Edit("tier", "alice", None), Edit("tier", "bob", {"tier": "gold"})], ALICE)
        assert catalog.refresh()
        assert ids(catalog) == ["a"]
        assert catalog.current.tiers == {"bob": "gold"}
        assert catalog.current.entries["a"] is kept, "what stayed the same is not made anew"


# -- never half new -------------------------------------------------------------------------------------------------


def test_nobody_ever_sees_half_of_a_change() -> None:
    """Each write changes two rules and a tier together; whoever looks meanwhile sees them agree."""
    book = Book()

    def write(n: int) -> None:
        edits = [edit_of(one_rule(f"{name} user on=/{name} {n + 1}s")) for name in ("a", "b")]
        extra = edit_of(one_rule("extra ip")) if n % 2 == 0 else Edit("rule", "extra", None)
        book.write([*edits, extra, Edit("tier", "n", {"tier": str(n)})], ALICE)

    write(0)
    seen: set[float] = set()
    torn: list[str] = []
    done = threading.Event()
    with catalog_of(book, refresh_seconds=0.001) as catalog:

        def look() -> None:
            while not done.is_set():
                rules: RuleSet = catalog.current
                a, b = rules.rules["a"].window_seconds, rules.rules["b"].window_seconds
                n = int(rules.tiers["n"])
                seen.add(a)
                windows = {entry.rule.window_seconds for entry in rules.entries.values()} - {60.0}
                if not (a == b == n + 1 and windows == {a} and ("extra" in rules.rules) == (n % 2 == 0)):
                    torn.append(f"{a} {b} {n} {windows} {sorted(rules.rules)}")

        readers = [threading.Thread(target=look) for _ in range(2)]
        for reader in readers:
            reader.start()
        try:
            for n in range(1, 200):
                write(n)
                if n % 20 == 0:
                    until(lambda n=n: catalog.current.tiers["n"] == str(n))  # type: ignore[misc]  # of a lambda's default
        finally:
            done.set()
            for reader in readers:
                reader.join()
    assert not torn
    assert len(seen) > 5


# -- waking, reloading, closing, forking ----------------------------------------------------------------------------


def test_a_source_that_tells_is_looked_at_at_once() -> None:
    book = Book(tells=True)
    with catalog_of(book, refresh_seconds=NEVER) as catalog:
        book.put("a user")
        until(lambda: ids(catalog) == ["a"])


def test_a_source_that_does_not_tell_is_looked_at_all_the_same() -> None:
    book = Book()
    with catalog_of(book, refresh_seconds=0.01) as catalog:
        book.put("a user")
        until(lambda: ids(catalog) == ["a"])


def test_reload_looks_soon_and_never_itself() -> None:
    """A signal handler calls it, and must not wait for a source."""
    book, slow = Book(), Hanging("slow")
    with catalog_of(book, slow) as catalog:
        slow.hang.clear()
        catalog.reload()
        assert slow.hanging.wait(PATIENCE), "it is asked, by somebody else"
        until(lambda: book.reloads == 1)
        slow.hang.set()
        until(lambda: slow.reloads == 1 and not any(state.full_reload for state in catalog.states))
        catalog.refresh()
        assert (book.reloads, slow.reloads) == (1, 1), "once for each reload"


def test_reload_reads_everything_again() -> None:
    """A database that was restored may have reached the revision that is known with other rules."""
    book = Book()
    book.put("a user")
    with catalog_of(book) as catalog:
        restored = Book()
        restored.put("b user")
        catalog.states[0].source = restored
        catalog.refresh()
        assert ids(catalog) == ["a"], "the revision is the same"
        catalog.reload()
        until(lambda: ids(catalog) == ["b"])
        catalog.states[0].source = Book()
        catalog.reload()
        until(lambda: ids(catalog) == [])


def test_a_change_is_told_and_so_is_that_nothing_is_left(caplog: pytest.LogCaptureFixture) -> None:
    book = Book()
    with catalog_of(book) as catalog, caplog.at_level(logging.INFO, "crestgate"):
        book.put("a user")
        catalog.refresh()
        catalog.refresh()
        book.delete("a")
        catalog.refresh()
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "rules reloaded: the book: 0 before, 1 now"),
        ("WARNING", "rules reloaded: the book: 1 before, 0 now"),
    ]


def test_closing_ends_the_thread_and_the_rules_stay() -> None:
    book = Book()
    book.put("a user")
    catalog = Catalog([book], NEVER)
    thread = catalog._refreshes[0].thread
    assert thread is not None
    assert thread.is_alive()
    assert thread.daemon
    catalog.close()
    assert not thread.is_alive()
    assert book.closed == 1
    assert ids(catalog) == ["a"]
    catalog.close()


def test_a_catalog_that_nobody_holds_goes_and_its_thread_with_it() -> None:
    book = Book(tells=True)
    catalog = Catalog([book], 0.01)
    thread = catalog._refreshes[0].thread
    assert thread is not None
    del catalog
    gc.collect()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    book.put("a user")  # tells nobody


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_keeps_up_by_itself() -> None:
    book = Book(tells=True)
    book.put("a user")
    with catalog_of(book, refresh_seconds=NEVER) as catalog:

        def child() -> None:
            book.put("b ip")  # the child's own copy
            until(lambda: ids(catalog) == ["a", "b"])
            catalog.close()

        assert in_a_child(child) == 0
        assert ids(catalog) == ["a"]
        book.put("c global")
        until(lambda: ids(catalog) == ["a", "c"])


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_fork_in_the_middle_of_a_look_leaves_nothing_locked() -> None:
    book = Book()
    with catalog_of(book, refresh_seconds=0.0001) as catalog:
        for n in range(5):
            book.put(f"r{n} user on=/{n}")

            def child(name: str = f"c{n}") -> None:
                book.put(f"{name} ip on=/{name}")
                until(lambda: name in catalog.current.rules)

            assert in_a_child(child) == 0


def test_records_keep_what_the_repository_knows() -> None:
    book = Book()
    book.put("a user")
    stored = book.get("rule", "a")
    assert isinstance(stored, Record)
    with catalog_of(book) as catalog:
        rule = catalog.current.rules["a"]
        assert (rule.version, rule.created_us, rule.updated_us) == (1, stored.created_us, stored.updated_us)
        book.clock.advance(5)
        book.put("a user")
        catalog.refresh()
        again = catalog.current.rules["a"]
        assert (again.version, again.created_us) == (2, stored.created_us)
        assert again.updated_us == stored.updated_us + 5_000_000
