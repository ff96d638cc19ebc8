"""Several sources of one catalog: the later has the say, and each is taken in by itself."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from crestgate.errors import CrestgateError
from crestgate.rules.port import Edit
from unit.rules.cases import NOW_US, context_of
from unit.rules.fake_sources import (
    ALICE,
    Book,
    catalog_of,
    chosen,
    ids,
)


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
            except CrestgateError:
                continue  # another rule has its place there
            if data.draw(st.booleans()):
                catalog.refresh()
        catalog.refresh()
        with catalog_of(*books) as fresh:
            assert catalog.current.rules == fresh.current.rules
            assert set(catalog.current.entries) == set(fresh.current.entries)
            for text in ("user=1 path=/x", "user=2 path=/x", "user=1", "ip=10.0.0.1"):
                assert chosen(catalog, text) == chosen(fresh, text)


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
