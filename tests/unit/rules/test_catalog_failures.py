"""Sources that are away, wrong, slow or emptied: the last good rules stay, nothing is lost, and it is told."""

from __future__ import annotations

import logging
import os
import time
from dataclasses import replace
from typing import cast

import pytest

from crestgate.errors import ConfigError, CrestgateError, StoreError, ValidationError
from crestgate.rules.catalog import Catalog
from crestgate.rules.port import Edit
from crestgate.rules.records import edit_of
from crestgate.rules.rule import Rule
from crestgate.rules.ruleset import RuleSet
from crestgate.runtime.fork_safety import MAX_WAIT
from unit.rules.cases import one_rule
from unit.rules.fake_sources import (
    ALICE,
    PATIENCE,
    Book,
    Emptied,
    Hanging,
    NoMemory,
    catalog_of,
    ids,
    told_of,
    until,
)


@pytest.mark.parametrize(
    "error", [StoreError("the database is away"), ConfigError("a mistake")], ids=lambda error: type(error).__name__
)
def test_the_last_good_rules_stay_while_a_source_cannot_be_read(
    error: CrestgateError, caplog: pytest.LogCaptureFixture
) -> None:
    book = Book()
    book.put("a user")
    with catalog_of(book) as catalog, caplog.at_level(logging.WARNING, "crestgate"):
        book.put("b user on=/b")
        book.error = error
        for failures in (1, 2, 3):
            assert catalog.refresh() is False
            assert catalog.failures == failures
        assert ids(catalog) == ["a"]
        assert told_of(catalog) == f"the book: {error}"
        assert [record.getMessage() for record in caplog.records] == [
            f"rule reload failed, keeping the previous rules: the book: {error}"
        ], "said once"
        book.error = None
        assert catalog.refresh() is True
        assert (ids(catalog), catalog.failures) == (["a", "b"], 3)
        assert not told_of(catalog)
        assert caplog.records[-1].getMessage() == "rule reload recovered: the book"
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
    (Edit("default", "client_limits", {"limits": "5/s"}), "limits of client_limits must be a list of texts, not '5/s'"),
    (Edit("default", "policy_key", {"parts": "ip"}), "parts of policy_key must be a list of texts, not 'ip'"),
    (
        Edit("default", "policy_key", {"parts": ["path"]}),
        "policy_key is made of user, apikey, client, ip, route, not path",
    ),
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
    with pytest.raises(ValidationError, match="rule 'bad': dimension"):
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


def test_a_reload_that_found_its_source_away_is_made_up_for() -> None:
    book = Book()
    book.put("a user")
    with catalog_of(book) as catalog:
        catalog.states[0].snapshot = replace(catalog.states[0].snapshot, rules={})
        book.error = StoreError("away")
        catalog.reload()
        catalog.refresh()
        book.error = None
        catalog.refresh()
        assert set(catalog.states[0].snapshot.rules) == {"a"}


def test_a_source_that_has_lost_everything_is_broken() -> None:
    book = Book()
    book.put("a user")
    book.put("b ip")
    with catalog_of(book) as catalog:
        emptied = Emptied("the book")
        catalog.states[0].source = emptied
        assert not catalog.refresh()
        assert ids(catalog) == ["a", "b"]
        assert catalog.problem is not None
        assert catalog.problem.startswith("the book: all rules up to revision 2 are gone")
        catalog.states[0].source = young = Book("the book")
        young.put("c user")
        assert not catalog.refresh(), "nor is it mended by the first who writes there"
        assert ids(catalog) == ["a", "b"]
        catalog.reload()
        until(lambda: ids(catalog) == ["c"] and catalog.problem is None)


def test_what_is_gone_and_was_meant_is_gone_on_reload() -> None:
    book = Book()
    book.put("a user")
    with catalog_of(book) as catalog:
        catalog.states[0].source = Emptied("the book")
        catalog.refresh()
        catalog.reload()
        until(lambda: (ids(catalog), catalog.problem) == ([], None))


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
        assert took < MAX_WAIT, "no lock was waited for"


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


def test_a_problem_names_its_place_once() -> None:
    book = Book("the book at the end")
    with catalog_of(book) as catalog:
        book.error = StoreError("the book at the end: it is closed")
        catalog.refresh()
        assert catalog.problem == "the book at the end: it is closed"
