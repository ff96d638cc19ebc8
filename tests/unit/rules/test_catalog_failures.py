"""Unreachable, invalid, slow or emptied sources: the last good rules stay in force, and the problem is reported."""

from __future__ import annotations

import logging
import os
import time
from dataclasses import replace
from typing import cast

import pytest

from crestgate.errors import ConfigError, CrestgateError, Problem, StoreError, ValidationError
from crestgate.rules.catalog import Catalog
from crestgate.rules.plan import StoredPlan
from crestgate.rules.port import Edit, UnreadableRecord
from crestgate.rules.records import edit_of
from crestgate.rules.rule import Rule
from crestgate.rules.ruleset import RuleSet
from crestgate.runtime.fork_safety import MAX_WAIT
from unit.rules.cases import one_rule
from unit.rules.fake_sources import (
    ALICE,
    TIMEOUT,
    EmptiedSource,
    FailingRuleSet,
    FakeSource,
    HangingSource,
    catalog_of,
    ids,
    problem_of,
    until,
)


@pytest.mark.parametrize(
    "error", [StoreError("the database is away"), ConfigError("a mistake")], ids=lambda error: type(error).__name__
)
def test_last_good_rules_stay_while_a_source_fails(error: CrestgateError, caplog: pytest.LogCaptureFixture) -> None:
    source = FakeSource()
    source.put("a user")
    with catalog_of(source) as catalog, caplog.at_level(logging.WARNING, "crestgate"):
        source.put("b user on=/b")
        source.error = error
        for failures in (1, 2, 3):
            assert catalog.refresh() is False
            assert catalog.failures == failures
        assert ids(catalog) == ["a"]
        assert problem_of(catalog) == f"the source: {error}"
        assert [record.getMessage() for record in caplog.records] == [
            f"rule reload failed, keeping the previous rules: the source: {error}"
        ], "logged once"
        source.error = None
        assert catalog.refresh() is True
        assert (ids(catalog), catalog.failures) == (["a", "b"], 3)
        assert not problem_of(catalog)
        assert caplog.records[-1].getMessage() == "rule reload recovered: the source"
        source.error = error
        catalog.refresh()
        assert len(caplog.records) == 3, "a new failure is logged again"


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
    (
        Edit("default", "client_limits", {"limits": "5/s"}),
        "limits of client_limits must be a list of strings, not '5/s'",
    ),
    (Edit("default", "policy_key", {"parts": "ip"}), "parts of policy_key must be a list of strings, not 'ip'"),
    (
        Edit("default", "policy_key", {"parts": ["path"]}),
        "policy_key may only have user, apikey, client, ip, route, not path",
    ),
    (Edit("default", "client_limits", {"limits": ["5/s", "6/s"]}), "two limits of one period"),
]


@pytest.mark.parametrize(("broken", "message"), BROKEN, ids=lambda value: str(value)[:60])
def test_invalid_record_does_not_keep_the_others_out(
    broken: Edit, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    source = FakeSource()
    source.put("a user")
    with catalog_of(source) as catalog, caplog.at_level(logging.WARNING, "crestgate"):
        source.write([edit_of(one_rule("b ip")), broken], ALICE)
        source.put("c global")
        assert catalog.refresh() is True
        assert ids(catalog) == ["a", "b", "c"]
        assert message in problem_of(catalog)
        assert [(one.kind, one.id) for one in catalog.unreadable] == [(broken.kind, broken.id)]
        assert (catalog.failures, catalog.reload_problem) == (0, None)
        catalog.refresh()
        source.put("d global on=/d")
        catalog.reload()
        until(lambda: "d" in ids(catalog))
        (record,) = caplog.records
        assert record.levelname == "ERROR", "logged once"
        assert record.getMessage().startswith("stored rule cannot be used, it is not in force: the source: ")
        assert message in record.getMessage()
        source.write([Edit(broken.kind, broken.id, None)], ALICE)
        assert catalog.refresh() is True
        assert (catalog.unreadable, problem_of(catalog)) == ([], "")
        assert caplog.records[-1].getMessage() == (
            f"stored rules can be used again, or were deleted: the source: {broken.kind} {broken.id!r}"
        )


def test_invalid_rule_keeps_its_last_valid_version(caplog: pytest.LogCaptureFixture) -> None:
    source = FakeSource()
    source.put("a user limit=5\nb ip")
    source.write([Edit("tier", "alice", {"tier": "gold"}), Edit("plan", "fast", {"limits": ["5/s"]})], ALICE)
    with catalog_of(source) as catalog, caplog.at_level(logging.WARNING, "crestgate"):
        source.write(
            [
                Edit("rule", "a", {"rule_id": "a", "of_a_newer_version": True}),
                Edit("tier", "alice", {"tier": 7}),
                Edit("plan", "fast", {"limits": "quick"}),
            ],
            ALICE,
        )
        source.delete("b")
        for reload in (False, True):  # by its changes, and everything again
            catalog.states[0].full_reload = reload
            catalog.refresh()
            assert ids(catalog) == ["a"]
            assert catalog.current.rules["a"].limit == 5
            assert (catalog.current.tiers, catalog.current.plans) == (
                {"alice": "gold"},
                {"fast": StoredPlan(("5/second",))},
            )
            assert len(catalog.unreadable) == 3
        messages = [record.getMessage() for record in caplog.records]
        assert len(messages) == 3, "logged once each"
        assert all(text.startswith("stored rule cannot be used, keeping its last valid version: ") for text in messages)
        assert "rule 'a': " in messages[0]
        source.put("a user limit=6")
        catalog.refresh()
        assert catalog.current.rules["a"].limit == 6
        assert len(catalog.unreadable) == 2


def test_unreadable_api_key_is_no_longer_accepted() -> None:
    source = FakeSource()
    source.write([Edit("key", "k", {"digest": "d"}), Edit("key", "l", {"digest": "e"})], ALICE)
    with catalog_of(source) as catalog:
        assert set(catalog.keys) == {"k", "l"}
        source.put("a user")
        source.unreadable = [UnreadableRecord("key", "k", (Problem("key 'k'", "its body cannot be read"),))]
        assert catalog.refresh()
        assert set(catalog.keys) == {"l"}


def test_many_unreadable_records_are_named_in_part(caplog: pytest.LogCaptureFixture) -> None:
    source = FakeSource()
    source.write([Edit("rule", f"bad{n:02}", {}) for n in range(15)], ALICE)
    with catalog_of(source) as catalog:
        assert len(catalog.unreadable) == 15
        assert problem_of(catalog).endswith("\nand 5 more")
        assert len(caplog.records) == 11
        assert caplog.records[-1].getMessage() == "stored rules cannot be used: the source: 5 more"
        source.delete(*[f"bad{n:02}" for n in range(15)])
        catalog.refresh()
        assert caplog.records[-1].getMessage().endswith("'bad09' and 5 more")


def test_records_of_files_are_used_all_or_none() -> None:
    source = FakeSource()
    source.atomic = True
    source.put("a user")
    with catalog_of(source) as catalog:
        before = catalog.current
        source.write([edit_of(one_rule("b ip")), Edit("rule", "bad", {})], ALICE)
        assert catalog.refresh() is False
        assert catalog.current is before
        assert "rule 'bad': dimension" in problem_of(catalog)
        assert (catalog.failures, catalog.unreadable) == (1, [])


def test_failing_source_does_not_block_the_other() -> None:
    first, second = FakeSource("first"), FakeSource("second")
    first.put("a user")
    second.put("b ip")
    with catalog_of(first, second) as catalog:
        first.error = StoreError("away")
        second.put("c global")
        assert catalog.refresh() is True
        assert ids(catalog) == ["a", "b", "c"]
        assert catalog.problem == "first: away"


def test_problems_of_two_sources_are_both_reported() -> None:
    first, second = FakeSource("first"), FakeSource("second")
    with catalog_of(first, second) as catalog:
        first.error, second.error = StoreError("away"), ConfigError("wrong")
        catalog.refresh()
        assert catalog.failures == 2
        assert catalog.problem == "first: away\nsecond: wrong"


def test_failed_start_is_an_error_and_closes_the_sources() -> None:
    first, second = FakeSource("first"), FakeSource("second")
    second.atomic = True
    second.write([Edit("rule", "bad", {})], ALICE)
    with pytest.raises(ValidationError, match="rule 'bad': dimension"):
        Catalog([first, second])
    assert (first.closed, second.closed) == (1, 1)
    second.error = StoreError("away")
    with pytest.raises(StoreError, match="away"):
        Catalog([first, second])


def test_start_with_an_unreadable_record(caplog: pytest.LogCaptureFixture) -> None:
    """A rule that only a newer version understands must not keep a process from starting."""
    source = FakeSource()
    source.write([edit_of(one_rule("a user")), Edit("rule", "bad", {})], ALICE)
    with catalog_of(source) as catalog:
        assert ids(catalog) == ["a"]
        assert [one.id for one in catalog.unreadable] == ["bad"]
        assert "it is not in force: the source: rule 'bad': rule_id: is missing" in caplog.text


def test_thread_survives_any_error(caplog: pytest.LogCaptureFixture) -> None:
    source = FakeSource()
    with catalog_of(source, refresh_seconds=0.001) as catalog:
        source.error = RuntimeError("a bug")
        until(lambda: "a bug" in caplog.text)
        source.error = None
        source.put("a user")
        until(lambda: ids(catalog) == ["a"])


def test_rules_that_fail_the_check_are_refused() -> None:
    source = FakeSource()
    source.put("a user")
    with catalog_of(source) as catalog:
        checked: list[str] = []

        def check(rule: Rule) -> None:
            checked.append(rule.rule_id)
            if rule.rule_id == "bad":
                raise ConfigError("this store cannot do that")

        catalog.accept_only(check)
        source.put("b ip\nbad global")
        assert catalog.refresh() is True
        assert (ids(catalog), catalog.problem) == (["a", "b"], "rule 'bad': this store cannot do that")
        source.delete("bad")
        assert catalog.refresh() is True
        assert (ids(catalog), problem_of(catalog)) == (["a", "b"], "")
        assert checked[0] == "a"

        def refuse(rule: Rule) -> None:
            raise ConfigError(f"not {rule.rule_id}")

        with pytest.raises(ConfigError, match="not a"):
            catalog.accept_only(refuse)


def test_reload_of_an_unreachable_source_is_retried() -> None:
    source = FakeSource()
    source.put("a user")
    with catalog_of(source) as catalog:
        catalog.states[0].snapshot = replace(catalog.states[0].snapshot, rules={})
        source.error = StoreError("away")
        catalog.reload()
        catalog.refresh()
        source.error = None
        catalog.refresh()
        assert set(catalog.states[0].snapshot.rules) == {"a"}


def test_source_that_lost_everything_is_a_problem() -> None:
    source = FakeSource()
    source.put("a user")
    source.put("b ip")
    with catalog_of(source) as catalog:
        emptied = EmptiedSource("the source")
        catalog.states[0].source = emptied
        assert not catalog.refresh()
        assert ids(catalog) == ["a", "b"]
        assert catalog.problem is not None
        assert catalog.problem.startswith("the source: all rules up to revision 2 are gone")
        catalog.states[0].source = young = FakeSource("the source")
        young.put("c user")
        assert not catalog.refresh(), "the first new write does not resolve it"
        assert ids(catalog) == ["a", "b"]
        catalog.reload()
        until(lambda: ids(catalog) == ["c"] and catalog.problem is None)


def test_reload_accepts_an_emptied_source() -> None:
    source = FakeSource()
    source.put("a user")
    with catalog_of(source) as catalog:
        catalog.states[0].source = EmptiedSource("the source")
        catalog.refresh()
        catalog.reload()
        until(lambda: (ids(catalog), catalog.problem) == ([], None))


def test_hanging_source_blocks_neither_the_others_nor_a_fork() -> None:
    slow, quick = HangingSource("slow"), FakeSource("quick", notifies=True)
    with catalog_of(slow, quick) as catalog:
        slow.hang.clear()
        catalog.wake()
        assert slow.hanging.wait(TIMEOUT)
        quick.put("a user")
        until(lambda: ids(catalog) == ["a"])
        started = time.monotonic()
        child = os.fork()
        if child == 0:
            os._exit(0)
        elapsed = time.monotonic() - started
        os.waitpid(child, 0)
        slow.hang.set()
        assert elapsed < MAX_WAIT, "it waits for no lock"


def test_failed_update_is_retried() -> None:
    source = FakeSource()
    with catalog_of(source) as catalog:
        source.put("a user")
        before = catalog.current
        catalog.current = cast(RuleSet, FailingRuleSet())
        assert not catalog.refresh()
        catalog.current = before
        assert catalog.refresh()
        assert ids(catalog) == ["a"]


def test_unexpected_error_is_logged_once_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    source, other = FakeSource("odd"), FakeSource("other")
    with catalog_of(source, other) as catalog:
        source.error = RecursionError("too deep")
        other.put("a user")
        for _ in range(3):
            catalog.refresh()
        assert ids(catalog) == ["a"], "the other sources are still read"
        assert catalog.failures == 3
        assert [record.exc_info is not None for record in caplog.records] == [True]
        assert catalog.problem == "odd: RecursionError('too deep')"


def test_problem_names_its_source_once() -> None:
    source = FakeSource("the source at the end")
    with catalog_of(source) as catalog:
        source.error = StoreError("the source at the end: it is closed")
        catalog.refresh()
        assert catalog.problem == "the source at the end: it is closed"
