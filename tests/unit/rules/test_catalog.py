"""A catalog follows its sources, applies changes atomically, and releases everything when closed."""

from __future__ import annotations

import gc
import logging
import threading

import pytest

from crestgate.rules.catalog import Catalog
from crestgate.rules.plan import StoredPlan
from crestgate.rules.port import Actor, Changes, Edit, Record
from crestgate.rules.records import edit_of
from crestgate.rules.ruleset import RuleSet
from unit.rules.cases import one_rule
from unit.rules.fake_sources import (
    ALICE,
    NEVER,
    TIMEOUT,
    FakeSource,
    HangingSource,
    catalog_of,
    ids,
    until,
)
from unit.rules.storage.kit import run_in_child

# -- reading --------------------------------------------------------------------------------------------------------


def test_all_records_are_read_at_the_start() -> None:
    source = FakeSource()
    source.put("a user\nb ip disabled\nc user ends=-5")
    source.write(
        [
            Edit("tier", "alice", {"tier": "gold"}),
            Edit("plan", "fast", {"limits": ["10/s", "100/min"]}),
            Edit("default", "policy", {"type": "SLIDING_WINDOW", "capacity": 7, "refillRate": 1, "windowSeconds": 9}),
            Edit("default", "client_limits", {"limits": ["5/second"]}),
            Edit("default", "policy_key", {"parts": ["user", "route"]}),
        ],
        ALICE,
    )
    with catalog_of(source) as catalog:
        rules = catalog.current
        assert ids(catalog) == ["a", "b", "c"]
        assert rules.rules["a"].version == 1
        assert rules.tiers == {"alice": "gold"}
        assert rules.plans == {"fast": StoredPlan(("10/second", "100/minute"))}
        assert (rules.defaults.policy.limit, rules.defaults.policy.window_seconds) == (7, 9)
        assert [rule.limit for rule in rules.defaults.client] == [5]
        assert rules.defaults.policy_key == ("user", "route")


def test_api_keys_are_refreshed_like_rules() -> None:
    source = FakeSource()
    source.put("a user")
    source.write([Edit("key", "0a", {"digest": "one"}), Edit("key", "0b", {"digest": "two"})], ALICE)
    with catalog_of(source) as catalog:
        before = catalog.keys
        assert before == {"0a": {"digest": "one"}, "0b": {"digest": "two"}}
        source.write([Edit("key", "0a", None), Edit("key", "0c", {"name": ["cannot", "be", "a", "key"]})], ALICE)
        assert catalog.refresh() is True
        assert catalog.keys == {"0b": {"digest": "two"}, "0c": {"name": ["cannot", "be", "a", "key"]}}
        assert ids(catalog) == ["a"], "an invalid key does not affect rules"
        assert "0a" in before, "an old snapshot of keys does not change"
        source.put("b ip")
        catalog.refresh()
        assert sorted(catalog.keys) == ["0b", "0c"]
        assert "two" not in repr(catalog.states[0].snapshot)


def test_empty_source_has_no_rules() -> None:
    with catalog_of(FakeSource()) as catalog:
        assert ids(catalog) == []
        assert catalog.current.defaults.policy.burst == 100


def test_refresh_applies_additions_changes_and_deletions() -> None:
    source = FakeSource()
    source.put("a user\nb ip")
    with catalog_of(source) as catalog:
        before = catalog.current
        assert catalog.refresh() is False
        assert catalog.current is before, "nothing has changed"
        source.put("c global\na user 5s")
        source.delete("b")
        assert catalog.refresh() is True
        assert ids(catalog) == ["a", "c"]
        assert (catalog.current.rules["a"].window_seconds, catalog.current.rules["a"].version) == (5, 2)
        assert sorted(before.rules) == ["a", "b"], "an old rule set does not change"


def test_complete_changes_replace_all_earlier_records() -> None:
    class File(FakeSource):
        """Returns all records each time, as files do."""

        def changes(self, since: int) -> Changes | None:
            whole = super().changes(0)
            return None if since == self.revision else whole

    file = File()
    file.put("a user\nb ip")
    file.write([Edit("tier", "alice", {"tier": "gold"})], ALICE)
    with catalog_of(file) as catalog:
        unchanged = catalog.current.entries["a"]
        file.delete("b")
        file.write([Edit("tier", "alice", None), Edit("tier", "bob", {"tier": "gold"})], ALICE)
        assert catalog.refresh()
        assert ids(catalog) == ["a"]
        assert catalog.current.tiers == {"bob": "gold"}
        assert catalog.current.entries["a"] is unchanged, "unchanged entries are reused"


# -- atomicity ------------------------------------------------------------------------------------------------------


def test_changes_are_visible_atomically() -> None:
    """Each write changes two rules and a tier together; concurrent readers always see them agree."""
    source = FakeSource()

    def write(n: int) -> None:
        edits = [edit_of(one_rule(f"{name} user on=/{name} {n + 1}s")) for name in ("a", "b")]
        extra = edit_of(one_rule("extra ip")) if n % 2 == 0 else Edit("rule", "extra", None)
        source.write([*edits, extra, Edit("tier", "n", {"tier": str(n)})], ALICE)

    write(0)
    observed: set[float] = set()
    torn: list[str] = []
    done = threading.Event()
    with catalog_of(source, refresh_seconds=0.001) as catalog:

        def read() -> None:
            while not done.is_set():
                rules: RuleSet = catalog.current
                a, b = rules.rules["a"].window_seconds, rules.rules["b"].window_seconds
                n = int(rules.tiers["n"])
                observed.add(a)
                windows = {entry.rule.window_seconds for entry in rules.entries.values()} - {60.0}
                if not (a == b == n + 1 and windows == {a} - {60.0} and ("extra" in rules.rules) == (n % 2 == 0)):
                    torn.append(f"{a} {b} {n} {windows} {sorted(rules.rules)}")

        readers = [threading.Thread(target=read) for _ in range(2)]
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
    assert len(observed) > 5


# -- waking, reloading, closing, forking ----------------------------------------------------------------------------


def test_notifying_source_is_polled_immediately() -> None:
    source = FakeSource(notifies=True)
    with catalog_of(source, refresh_seconds=NEVER) as catalog:
        source.put("a user")
        until(lambda: ids(catalog) == ["a"])


def test_source_without_notifications_is_polled() -> None:
    source = FakeSource()
    with catalog_of(source, refresh_seconds=0.01) as catalog:
        source.put("a user")
        until(lambda: ids(catalog) == ["a"])


def test_reload_polls_soon_in_another_thread() -> None:
    """A signal handler calls reload, and must not wait for a source."""
    source, slow = FakeSource(), HangingSource("slow")
    with catalog_of(source, slow) as catalog:
        slow.hang.clear()
        catalog.reload()
        assert slow.hanging.wait(TIMEOUT), "polled by the background thread"
        until(lambda: source.reloads == 1)
        slow.hang.set()
        until(lambda: slow.reloads == 1 and not any(state.full_reload for state in catalog.states))
        catalog.refresh()
        assert (source.reloads, slow.reloads) == (1, 1), "once for each reload"


def test_reload_reads_everything_again() -> None:
    """A restored database may have reached the cached revision with other rules."""
    source = FakeSource()
    source.put("a user")
    with catalog_of(source) as catalog:
        restored = FakeSource()
        restored.put("b user")
        catalog.states[0].source = restored
        catalog.refresh()
        assert ids(catalog) == ["a"], "the revision is the same"
        catalog.reload()
        until(lambda: ids(catalog) == ["b"])
        catalog.states[0].source = FakeSource()
        catalog.reload()
        until(lambda: ids(catalog) == [])


def test_changes_are_logged_and_an_empty_rule_set_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    source = FakeSource()
    with catalog_of(source) as catalog, caplog.at_level(logging.INFO, "crestgate"):
        source.put("a user")
        catalog.refresh()
        catalog.refresh()
        source.delete("a")
        catalog.refresh()
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "rules reloaded: the source: 0 before, 1 now"),
        ("WARNING", "rules reloaded: the source: 1 before, 0 now"),
    ]


def test_changed_api_key_is_not_logged_as_a_change_of_rules(caplog: pytest.LogCaptureFixture) -> None:
    source = FakeSource()
    source.put("a user")
    with catalog_of(source) as catalog, caplog.at_level(logging.INFO, "crestgate"):
        source.write([Edit("key", "3f9c02d17ab4", {"name": "ops"})], Actor("alice"))
        catalog.refresh()
        assert list(catalog.keys) == ["3f9c02d17ab4"]
    assert [record.getMessage() for record in caplog.records] == ["API keys changed: the source"]


def test_close_ends_the_thread_and_keeps_the_rules() -> None:
    source = FakeSource()
    source.put("a user")
    catalog = Catalog([source], NEVER)
    thread = catalog._refreshes[0].thread
    assert thread is not None
    assert thread.is_alive()
    assert thread.daemon
    catalog.close()
    assert not thread.is_alive()
    assert source.closed == 1
    assert ids(catalog) == ["a"]
    catalog.close()


def test_unreferenced_catalog_is_collected_and_its_thread_ends() -> None:
    source = FakeSource(notifies=True)
    catalog = Catalog([source], 0.01)
    thread = catalog._refreshes[0].thread
    assert thread is not None
    del catalog
    gc.collect()
    thread.join(TIMEOUT)
    assert not thread.is_alive()
    source.put("a user")  # no listener is left


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_forked_child_refreshes_by_itself() -> None:
    source = FakeSource(notifies=True)
    source.put("a user")
    with catalog_of(source, refresh_seconds=NEVER) as catalog:

        def child() -> None:
            source.put("b ip")  # the child's own copy
            until(lambda: ids(catalog) == ["a", "b"])
            catalog.close()

        assert run_in_child(child) == 0
        assert ids(catalog) == ["a"]
        source.put("c global")
        until(lambda: ids(catalog) == ["a", "c"])


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_fork_during_a_poll_leaves_nothing_locked() -> None:
    source = FakeSource()
    with catalog_of(source, refresh_seconds=0.0001) as catalog:
        for n in range(5):
            source.put(f"r{n} user on=/{n}")

            def child(name: str = f"c{n}") -> None:
                source.put(f"{name} ip on=/{name}")
                until(lambda: name in catalog.current.rules)

            assert run_in_child(child) == 0


def test_records_keep_the_metadata_of_the_repository() -> None:
    source = FakeSource()
    source.put("a user")
    stored = source.get("rule", "a")
    assert isinstance(stored, Record)
    with catalog_of(source) as catalog:
        rule = catalog.current.rules["a"]
        assert (rule.version, rule.created_us, rule.updated_us) == (1, stored.created_us, stored.updated_us)
        source.clock.advance(5)
        source.put("a user")
        catalog.refresh()
        again = catalog.current.rules["a"]
        assert (again.version, again.created_us) == (2, stored.created_us)
        assert again.updated_us == stored.updated_us + 5_000_000
