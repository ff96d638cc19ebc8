"""A catalog keeps up with its sources, believes nothing by halves, and lets go of everything in the end."""

from __future__ import annotations

import gc
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from threading import Event
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.errors import ConfigError, HeadgateError, Invalid, StoreError
from headgate.rules.catalog import Catalog
from headgate.rules.records import edit_of
from headgate.rules.repositories.port import Actor, Changes, Edit, Record
from headgate.rules.rule import Rule
from headgate.rules.ruleset import RuleSet
from headgate.stores.forking import LONGEST_WAIT
from unit.rules.cases import NOW_US, context_of, one_rule, rules_of
from unit.rules.memory_repository import MemoryRepository
from unit.rules.repositories.kit import in_a_child

ALICE = Actor("alice")
PATIENCE = 20.0
NEVER = 3600.0
"""Seconds between looks: so long that only what is asked for happens."""


class Book(MemoryRepository):
    """A source that can be told to fail, and counts what is asked of it."""

    def __init__(self, title: str = "the book", *, tells: bool = False) -> None:
        super().__init__()
        self.title = title
        self.tells = tells
        self.error: Exception | None = None
        self.reloads = 0
        self.looks = 0
        self.closed = 0

    def changes(self, since: int) -> Changes | None:
        self.looks += 1
        if self.error is not None:
            raise self.error
        return super().changes(since)

    def listen(self, wake: Callable[[], None]) -> None:
        if self.tells:
            super().listen(wake)

    def reload(self) -> None:
        self.reloads += 1

    def close(self) -> None:
        self.closed += 1

    def put(self, text: str) -> None:
        self.write([edit_of(rule) for rule in rules_of(text)], ALICE)

    def delete(self, *rule_ids: str) -> None:
        self.write([Edit("rule", rule_id, None) for rule_id in rule_ids], ALICE)


class Emptied(Book):
    """What is left of a database that was emptied."""

    def changes(self, since: int) -> Changes | None:
        return Changes(0, True, ()) if since else None


class Hanging(Book):
    """A source whose looks take as long as somebody wants."""

    def __init__(self, title: str) -> None:
        super().__init__(title)
        self.hang, self.hanging = Event(), Event()
        self.hang.set()

    def changes(self, since: int) -> Changes | None:
        if not self.hang.is_set():
            self.hanging.set()
        assert self.hang.wait(PATIENCE)
        return super().changes(since)


class NoMemory:
    """A rule set at the wrong moment."""

    def edited(self, *given: object, **more: object) -> RuleSet:
        raise MemoryError


@contextmanager
def catalog_of(*books: Book, refresh_seconds: float = NEVER) -> Iterator[Catalog]:
    catalog = Catalog(books, refresh_seconds)
    try:
        yield catalog
    finally:
        catalog.close()


def until(happened: Callable[[], bool], patience: float = PATIENCE) -> None:
    """Another thread is to do it, in real time."""
    deadline = time.monotonic() + patience
    while not happened():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.001)


def ids(catalog: Catalog) -> list[str]:
    return sorted(catalog.current.rules)


def told_of(catalog: Catalog) -> str:
    """What is wrong now: asked anew each time, as another call may have changed it."""
    return catalog.problem or ""


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


# -- sources in trouble ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [StoreError("the database is away"), ConfigError("a mistake")], ids=lambda error: type(error).__name__
)
def test_the_last_good_rules_stay_while_a_source_cannot_be_read(
    error: HeadgateError, caplog: pytest.LogCaptureFixture
) -> None:
    book = Book()
    book.put("a user")
    with catalog_of(book) as catalog, caplog.at_level(logging.WARNING, "headgate"):
        book.put("b user on=/b")
        book.error = error
        for failures in (1, 2, 3):
            assert catalog.refresh() is False
            assert catalog.failures == failures
        assert ids(catalog) == ["a"]
        assert told_of(catalog) == f"the book: {error}"
        assert [record.getMessage() for record in caplog.records] == [
            f"rules could not be read, and those known so far stay in force: the book: {error}"
        ], "said once"
        book.error = None
        assert catalog.refresh() is True
        assert (ids(catalog), catalog.failures) == (["a", "b"], 3)
        assert not told_of(catalog)
        assert caplog.records[-1].getMessage() == "rules can be read again: the book"
        book.error = error
        catalog.refresh()
        assert len(caplog.records) == 3, "a new failure is said again"


BROKEN: list[tuple[Edit, str]] = [
    (
        Edit("rule", "bad", {"rule_id": "bad", "dimension": "user", "limit": -1, "window_seconds": 1}),
        "rule 'bad': limit",
    ),
    (Edit("rule", "bad", {}), "rule 'bad': dimension"),
    (Edit("tier", "alice", {"tier": 7}), "tier of 'alice': must be text, not 7"),
    (Edit("plan", "fast", {"limits": "quick"}), "quick"),
    (Edit("plan", "fast", {}), "must be a limit such as '10/second burst 20', or a list of them"),
    (Edit("default", "policy", {"capacity": 0}), "default policy.capacity"),
    (Edit("default", "client_limits", {}), "defaults: cannot be read"),
    (Edit("default", "client_limits", {"limits": ["5/s", "6/s"]}), "two limits of one period"),
]


@pytest.mark.parametrize(("broken", "words"), BROKEN, ids=lambda value: str(value)[:60])
def test_of_a_change_with_a_mistake_nothing_is_believed(broken: Edit, words: str) -> None:
    book = Book()
    book.put("a user")
    with catalog_of(book) as catalog:
        before = catalog.current
        book.write([edit_of(one_rule("b ip")), broken], ALICE)
        book.put("c global")
        assert catalog.refresh() is False
        assert catalog.current is before
        assert catalog.problem is not None
        assert words in catalog.problem
        book.write([Edit(broken.kind, broken.id, None)], ALICE)
        assert catalog.refresh() is True
        assert ids(catalog) == ["a", "b", "c"]
        assert catalog.problem is None


def test_one_source_in_trouble_does_not_hold_up_the_other() -> None:
    first, second = Book("first"), Book("second")
    first.put("a user")
    second.put("b ip")
    with catalog_of(first, second) as catalog:
        first.error = StoreError("away")
        second.put("c global")
        assert catalog.refresh() is True
        assert ids(catalog) == ["a", "b", "c"]
        assert catalog.problem == "first: away"


def test_two_sources_in_trouble_are_both_told() -> None:
    first, second = Book("first"), Book("second")
    with catalog_of(first, second) as catalog:
        first.error, second.error = StoreError("away"), ConfigError("wrong")
        catalog.refresh()
        assert catalog.failures == 2
        assert catalog.problem == "first: away\nsecond: wrong"


def test_a_bad_start_is_an_error_and_lets_go_of_the_sources() -> None:
    first, second = Book("first"), Book("second")
    second.write([Edit("rule", "bad", {})], ALICE)
    with pytest.raises(Invalid, match="rule 'bad': dimension"):
        Catalog([first, second])
    assert (first.closed, second.closed) == (1, 1)
    second.error = StoreError("away")
    with pytest.raises(StoreError, match="away"):
        Catalog([first, second])


def test_whatever_goes_wrong_the_thread_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    book = Book()
    with catalog_of(book, refresh_seconds=0.001) as catalog:
        book.error = RuntimeError("a bug")
        until(lambda: "a bug" in caplog.text)
        book.error = None
        book.put("a user")
        until(lambda: ids(catalog) == ["a"])


def test_rules_that_are_of_no_use_are_refused() -> None:
    book = Book()
    book.put("a user")
    with catalog_of(book) as catalog:
        looked_at: list[str] = []

        def check(rule: Rule) -> None:
            looked_at.append(rule.rule_id)
            if rule.rule_id == "bad":
                raise ConfigError("this store cannot do that")

        catalog.accept_only(check)
        book.put("b ip\nbad global")
        assert catalog.refresh() is False
        assert (ids(catalog), catalog.problem) == (["a"], "the book: this store cannot do that")
        book.delete("bad")
        assert catalog.refresh() is True
        assert ids(catalog) == ["a", "b"]
        assert looked_at[0] == "a"

        def refuse(rule: Rule) -> None:
            raise ConfigError(f"not {rule.rule_id}")

        with pytest.raises(ConfigError, match="not a"):
            catalog.accept_only(refuse)


# -- several sources ------------------------------------------------------------------------------------------------


def test_of_one_id_the_later_source_counts() -> None:
    files, database = Book("files"), Book("database")
    files.put("a user 1s\nb ip")
    database.put("a user 2s")
    with catalog_of(files, database) as catalog:
        assert catalog.current.rules["a"].window_seconds == 2
        files.put("a user 3s")
        catalog.refresh()
        assert catalog.current.rules["a"].window_seconds == 2
        database.delete("a")
        catalog.refresh()
        assert catalog.current.rules["a"].window_seconds == 3
        database.put("b ip disabled")
        catalog.refresh()
        assert "b" not in catalog.current.entries, "a rule of a file is switched off in the database"


def chosen(catalog: Catalog, text: str) -> list[str]:
    return [entry.rule.rule_id for _, entry in catalog.current.resolve(context_of(text), NOW_US)]


def test_of_two_equally_specific_rules_the_later_source_s_counts() -> None:
    files, database = Book("files"), Book("database")
    files.put("f user on=/u/*\nother user for=1")
    database.put("d user on=/u/**")
    with catalog_of(files, database) as catalog:
        assert chosen(catalog, "user=2 path=/u/1") == ["d"]
        assert ids(catalog) == ["d", "f", "other"], "all are known"
        database.put("d user on=/v/*")
        catalog.refresh()
        assert chosen(catalog, "user=2 path=/u/1") == ["f"], "it has its place back"
        database.put("e user on=/u/*")
        catalog.refresh()
        assert chosen(catalog, "user=2 path=/u/1") == ["e"]
        files.put("f user on=/u/* limit=7")
        catalog.refresh()
        assert chosen(catalog, "user=2 path=/u/1") == ["e"], "whoever wrote last"
        database.delete("e")
        catalog.refresh()
        assert chosen(catalog, "user=2 path=/u/1") == ["f"]
        database.put("e user on=/u/* disabled")
        catalog.refresh()
        assert chosen(catalog, "user=2 path=/u/1") == ["f"], "a disabled rule wins nothing"


def test_an_override_that_has_ended_in_one_source_does_not_hide_one_that_lasts_in_another() -> None:
    files, database = Book("files"), Book("database")
    files.put("f user for=1 ends=+100\ng user for=2 ends=+5")
    database.put("d user for=1 ends=+10\ne user for=2 ends=+10")
    with catalog_of(files, database) as catalog:

        def at(seconds: float, user: int) -> list[str]:
            found = catalog.current.resolve(context_of(f"user={user}"), NOW_US + round(seconds * 1_000_000))
            return [entry.rule.rule_id for _, entry in found]

        assert [at(seconds, 1) for seconds in (0, 9, 10, 99, 100)] == [["d"], ["d"], ["f"], ["f"], []]
        assert [at(seconds, 2) for seconds in (0, 9, 10)] == [["e"], ["e"], []]
        database.put("d user for=1 ends=+200")
        catalog.refresh()
        assert [at(seconds, 1) for seconds in (0, 99, 150, 200)] == [["d"], ["d"], ["d"], []]
        database.put("d user for=1 ends=-1")
        catalog.refresh()
        assert [at(seconds, 1) for seconds in (0, 99, 100)] == [["f"], ["f"], []]


def test_tiers_plans_and_defaults_are_overlaid_by_name() -> None:
    files, database = Book("files"), Book("database")
    files.write(
        [
            Edit("tier", "alice", {"tier": "gold"}),
            Edit("tier", "bob", {"tier": "gold"}),
            Edit("plan", "fast", {"limits": ["10/s"]}),
            Edit("default", "policy", {"capacity": 5}),
            Edit("default", "client_limits", {"limits": []}),
        ],
        ALICE,
    )
    database.write(
        [
            Edit("tier", "alice", {"tier": "silver"}),
            Edit("plan", "fast", {"limits": ["20/s"]}),
            Edit("default", "policy", {"capacity": 6}),
        ],
        ALICE,
    )
    with catalog_of(files, database) as catalog:
        rules = catalog.current
        assert rules.tiers == {"alice": "silver", "bob": "gold"}
        assert rules.plans == {"fast": ("20/second",)}
        assert (rules.defaults.policy.burst, rules.defaults.client) == (6, ())
        database.write(
            [Edit("tier", "alice", None), Edit("plan", "fast", None), Edit("default", "policy", None)], ALICE
        )
        catalog.refresh()
        assert catalog.current.tiers["alice"] == "gold"
        assert catalog.current.plans == {"fast": ("10/second",)}
        assert catalog.current.defaults.policy.burst == 5


def written(draw: Any) -> tuple[int, str, str | None]:
    which, name = draw(st.integers(0, 1)), draw(st.sampled_from("abc"))
    rule = draw(st.sampled_from([None, "user", "user for=1", "user on=/x", "user shadow", "user disabled", "ip"]))
    return which, name, rule


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_step_by_step_is_the_same_as_all_at_once(data: st.DataObject) -> None:
    books = Book("first"), Book("second")
    with catalog_of(*books) as catalog:
        for _ in range(data.draw(st.integers(1, 8))):
            which, name, rule = written(data.draw)
            book = books[which]
            try:
                if rule is not None:
                    book.put(f"{name} {rule}")
                elif book.get("rule", name) is not None:
                    book.delete(name)
            except HeadgateError:
                continue  # another rule has its place there
            if data.draw(st.booleans()):
                catalog.refresh()
        catalog.refresh()
        with catalog_of(*books) as fresh:
            assert catalog.current.rules == fresh.current.rules
            assert set(catalog.current.entries) == set(fresh.current.entries)
            for text in ("user=1 path=/x", "user=2 path=/x", "user=1", "ip=10.0.0.1"):
                assert chosen(catalog, text) == chosen(fresh, text)


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


def test_reload_only_sets_a_mark() -> None:
    book, plain = Book(), Book()
    with catalog_of(book, plain) as catalog:
        looks = book.looks
        catalog.reload()
        catalog.reload()
        assert (book.reloads, book.looks) == (0, looks), "a signal handler may do no more"
        catalog.refresh()
        assert (book.reloads, plain.reloads) == (1, 1)
        catalog.refresh()
        assert book.reloads == 1


def test_reload_reads_everything_again() -> None:
    """A database that was restored may have reached the revision that is known with other rules."""
    book = Book()
    book.put("a user")
    with catalog_of(book) as catalog:
        restored = Book()
        restored.put("b user")
        catalog._shelves[0].source = restored
        catalog.refresh()
        assert ids(catalog) == ["a"], "the revision is the same"
        catalog.reload()
        catalog.refresh()
        assert ids(catalog) == ["b"]
        catalog._shelves[0].source = Book()
        catalog.reload()
        catalog.refresh()
        assert ids(catalog) == []


def test_a_reload_that_found_its_source_away_is_made_up_for() -> None:
    book = Book()
    book.put("a user")
    with catalog_of(book) as catalog:
        catalog._shelves[0].known = replace(catalog._shelves[0].known, rules={})
        book.error = StoreError("away")
        catalog.reload()
        catalog.refresh()
        book.error = None
        catalog.refresh()
        assert set(catalog._shelves[0].known.rules) == {"a"}


def test_a_source_that_has_lost_everything_is_broken() -> None:
    book = Book()
    book.put("a user")
    with catalog_of(book) as catalog:
        catalog._shelves[0].source = Emptied("the book")
        assert not catalog.refresh()
        assert ids(catalog) == ["a"]
        assert catalog.problem is not None
        assert catalog.problem.startswith("the book: all that was kept there is gone, up to revision 1")
        catalog.reload()
        assert catalog.refresh()
        assert ids(catalog) == []
        assert catalog.problem is None


def test_a_source_that_hangs_holds_up_neither_the_others_nor_a_fork() -> None:
    slow, quick = Hanging("slow"), Book("quick", tells=True)
    with catalog_of(slow, quick) as catalog:
        slow.hang.clear()
        catalog.wake()
        assert slow.hanging.wait(PATIENCE)
        quick.put("a user")
        until(lambda: ids(catalog) == ["a"])
        began = time.monotonic()
        child = os.fork()
        if child == 0:
            os._exit(0)
        took = time.monotonic() - began
        os.waitpid(child, 0)
        slow.hang.set()
        assert took < LONGEST_WAIT, "no lock was waited for"


def test_an_update_that_fails_is_not_lost() -> None:
    book = Book()
    with catalog_of(book) as catalog:
        book.put("a user")
        known = catalog.current
        catalog.current = cast(RuleSet, NoMemory())
        assert not catalog.refresh()
        catalog.current = known
        assert catalog.refresh()
        assert ids(catalog) == ["a"]


def test_what_nobody_foresaw_is_said_once_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    book, other = Book("odd"), Book("other")
    with catalog_of(book, other) as catalog:
        book.error = RecursionError("too deep")
        other.put("a user")
        for _ in range(3):
            catalog.refresh()
        assert ids(catalog) == ["a"], "the others are read all the same"
        assert catalog.failures == 3
        assert [record.exc_info is not None for record in caplog.records] == [True]
        assert catalog.problem == "odd: RecursionError('too deep')"


def test_a_change_is_told_and_so_is_that_nothing_is_left(caplog: pytest.LogCaptureFixture) -> None:
    book = Book()
    with catalog_of(book) as catalog, caplog.at_level(logging.INFO, "headgate"):
        book.put("a user")
        catalog.refresh()
        catalog.refresh()
        book.delete("a")
        catalog.refresh()
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "rules have changed: the book: 0 before, 1 now"),
        ("WARNING", "rules have changed: the book: 1 before, 0 now"),
    ]


def test_a_problem_names_its_place_once() -> None:
    book = Book("the book at the end")
    with catalog_of(book) as catalog:
        book.error = StoreError("the book at the end: it is closed")
        catalog.refresh()
        assert catalog.problem == "the book at the end: it is closed"


def test_a_change_touches_only_what_changed() -> None:
    """Else a tier that is written to the database would have all rules of the files taken in anew."""
    files, database = Book("files"), Book("database")
    files.put("a user\nb ip")
    with catalog_of(files, database) as catalog:
        before = dict(catalog.current.entries)
        database.put("c user on=/x")
        catalog.refresh()
        database.write([Edit("tier", "alice", {"tier": "gold"})], ALICE)
        catalog.refresh()
        assert {name: catalog.current.entries[name] for name in before} == before


def test_closing_ends_the_thread_and_the_rules_stay() -> None:
    book = Book()
    book.put("a user")
    catalog = Catalog([book], NEVER)
    thread = catalog._watchers[0]
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
    thread = catalog._watchers[0]
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
