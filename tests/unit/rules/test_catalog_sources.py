"""Several sources of one catalog: later sources take precedence, and each is read independently."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from crestgate.errors import CrestgateError
from crestgate.rules.plan import StoredPlan
from crestgate.rules.port import Edit
from unit.rules.cases import NOW_US, context_of
from unit.rules.fake_sources import (
    ALICE,
    FakeSource,
    catalog_of,
    chosen,
    ids,
)


def test_later_source_wins_for_the_same_id() -> None:
    files, database = FakeSource("files"), FakeSource("database")
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


def test_later_source_wins_among_equally_specific_rules() -> None:
    files, database = FakeSource("files"), FakeSource("database")
    files.put("f user on=/u/*\nother user for=1")
    database.put("d user on=/u/**")
    with catalog_of(files, database) as catalog:
        assert chosen(catalog, "user=2 path=/u/1") == ["d"]
        assert ids(catalog) == ["d", "f", "other"], "all are listed"
        database.put("d user on=/v/*")
        catalog.refresh()
        assert chosen(catalog, "user=2 path=/u/1") == ["f"], "it is in force again"
        database.put("e user on=/u/*")
        catalog.refresh()
        assert chosen(catalog, "user=2 path=/u/1") == ["e"]
        files.put("f user on=/u/* limit=7")
        catalog.refresh()
        assert chosen(catalog, "user=2 path=/u/1") == ["e"], "the last source wins"
        database.delete("e")
        catalog.refresh()
        assert chosen(catalog, "user=2 path=/u/1") == ["f"]
        database.put("e user on=/u/* disabled")
        catalog.refresh()
        assert chosen(catalog, "user=2 path=/u/1") == ["f"], "a disabled rule never wins"


def test_expired_override_does_not_hide_an_active_one_of_another_source() -> None:
    files, database = FakeSource("files"), FakeSource("database")
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
    files, database = FakeSource("files"), FakeSource("database")
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
        assert rules.plans == {"fast": StoredPlan(("20/second",))}
        assert (rules.defaults.policy.burst, rules.defaults.client) == (6, ())
        database.write(
            [Edit("tier", "alice", None), Edit("plan", "fast", None), Edit("default", "policy", None)], ALICE
        )
        catalog.refresh()
        assert catalog.current.tiers["alice"] == "gold"
        assert catalog.current.plans == {"fast": StoredPlan(("10/second",))}
        assert catalog.current.defaults.policy.burst == 5


def written(draw: Any) -> tuple[int, str, str | None]:
    index, name = draw(st.integers(0, 1)), draw(st.sampled_from("abc"))
    rule = draw(st.sampled_from([None, "user", "user for=1", "user on=/x", "user shadow", "user disabled", "ip"]))
    return index, name, rule


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_incremental_updates_equal_a_full_read(data: st.DataObject) -> None:
    sources = FakeSource("first"), FakeSource("second")
    with catalog_of(*sources) as catalog:
        for _ in range(data.draw(st.integers(1, 8))):
            index, name, rule = written(data.draw)
            source = sources[index]
            try:
                if rule is not None:
                    source.put(f"{name} {rule}")
                elif source.get("rule", name) is not None:
                    source.delete(name)
            except CrestgateError:
                continue  # another rule has the same slot there
            if data.draw(st.booleans()):
                catalog.refresh()
        catalog.refresh()
        with catalog_of(*sources) as fresh:
            assert catalog.current.rules == fresh.current.rules
            assert set(catalog.current.entries) == set(fresh.current.entries)
            for text in ("user=1 path=/x", "user=2 path=/x", "user=1", "ip=10.0.0.1"):
                assert chosen(catalog, text) == chosen(fresh, text)


def test_update_rebuilds_only_changed_entries() -> None:
    """A new tier in the database must not rebuild all rules of the files."""
    files, database = FakeSource("files"), FakeSource("database")
    files.put("a user\nb ip")
    with catalog_of(files, database) as catalog:
        before = dict(catalog.current.entries)
        database.put("c user on=/x")
        catalog.refresh()
        database.write([Edit("tier", "alice", {"tier": "gold"})], ALICE)
        catalog.refresh()
        assert {name: catalog.current.entries[name] for name in before} == before
