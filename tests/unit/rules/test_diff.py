"""Differences between records and a repository, applied in one write."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from crestgate.errors import ConflictError, NotFoundError, StaleVersionError
from crestgate.rules.compat.policies import Policy
from crestgate.rules.diff import compare, field_changes
from crestgate.rules.editor import Editor
from crestgate.rules.port import Actor, AuditQuery, Edit, Record, Repository
from crestgate.rules.records import record_of
from crestgate.rules.rule import Rule
from crestgate.rules.storage.factory import open_repository


@pytest.fixture
def repository(tmp_path: Path) -> Iterator[Repository]:
    with closing(open_repository(f"sqlite:///{tmp_path}/rules.db?timeout_ms=30000")) as opened:
        yield opened


@pytest.fixture
def editor(repository: Repository) -> Editor:
    return Editor(repository, Actor("me"))


def rule(rule_id: str = "per-ip", **fields: Any) -> Record:
    read = Rule.read({"rule_id": rule_id, "dimension": "ip", "limit": 10, "window_seconds": 60, **fields})
    assert read is not None
    return record_of(read)


def plan(name: str, *limits: str) -> Record:
    return Record("plan", name, 1, {"limits": list(limits)}, 0, 0)


def test_all_kinds_are_written_together(editor: Editor, repository: Repository) -> None:
    records = [rule(), plan("gold", "10/second"), Record("tier", "alice", 1, {"tier": "premium"}, 0, 0)]
    difference = editor.difference(records)
    assert [record.id for record in difference.added] == ["per-ip", "gold", "alice"]
    editor.apply(difference)
    again = editor.difference(records)
    assert (again.added, again.changed, len(again.same), again.other) == ([], [], 3, [])
    changes = repository.changes(0)
    assert changes is not None
    assert changes.revision == 1
    editor.apply(again)
    assert repository.changes(1) is None, "unchanged records are not written"


def test_api_keys_are_not_changed_by_files(editor: Editor, repository: Repository) -> None:
    body = {"name": "ci", "scope": "read", "digest": "0" * 64, "expires_us": None}
    repository.write([Edit("key", "0a1b", body)], Actor("me"))
    difference = editor.difference([rule(), plan("gold", "10/second")])
    assert difference.other == []
    editor.apply(difference, prune=True)
    editor.apply(editor.difference([]), prune=True)
    assert repository.get("rule", "per-ip") is None
    key = repository.get("key", "0a1b")
    assert key is not None
    assert (key.version, key.body) == (1, body)


def test_change_lists_its_fields(editor: Editor) -> None:
    editor.apply(editor.difference([rule(), plan("gold", "10/second")]))
    difference = editor.difference([rule(limit=20, method="get"), plan("gold", "5/second")])
    assert [field_changes(old, new) for old, new in difference.changed] == [
        [("method", "*", "GET"), ("limit", 10, 20)],
        [("limits", ["10/second"], ["5/second"])],
    ]


def test_only_missing_rules_are_pruned(editor: Editor, repository: Repository) -> None:
    editor.apply(editor.difference([rule(), rule("old", method="PUT"), plan("gold", "10/second")]))
    difference = editor.difference([rule()])
    assert [record.id for record in difference.other] == ["old"]
    editor.apply(difference, prune=True)
    assert [record.id for record in repository.list("rule")] == ["per-ip"]
    assert repository.get("plan", "gold") is not None


def test_policies_keep_their_numbers_and_new_ones_get_the_next(editor: Editor) -> None:
    for key in ("a", "b"):
        editor.create_policy(Policy(key))
    from_file = [record_of(Policy(key, id=number).rule()) for number, key in enumerate(("b", "c", "d"), 1)]
    difference = editor.difference(from_file)
    assert [record.id for record in difference.same] == ["policy:b"]
    editor.apply(difference)
    assert [editor.policy(key).id for key in "abcd"] == [1, 2, 3, 4]
    assert editor.create_policy(Policy("e")).id == 5


def test_edited_export_is_applied(editor: Editor) -> None:
    """A policy's rule is exported with its origin; an edit of its fields changes the rule."""
    editor.create_policy(Policy("a", capacity=5))
    exported = editor.rule("policy:a").to_data()
    difference = editor.difference([record_of(Rule.read({**exported, "limit": 7}))])
    ((old, new),) = difference.changed
    assert [change.name for change in field_changes(old, new)] == ["limit", "origin"]
    editor.apply(difference)
    assert (editor.rule("policy:a").limit, editor.rule("policy:a").origin) == (7, None)
    with pytest.raises(NotFoundError, match="there is no policy for key 'a'"):
        editor.policy("a")


def test_policy_keeps_its_number_when_its_rule_is_applied(editor: Editor) -> None:
    editor.create_policy(Policy("a"))
    exported = editor.rule("policy:a").to_data()
    mine = {**exported, "name": "mine", "origin": {**exported["origin"], "id": 9}}
    editor.apply(editor.difference([record_of(Rule.read(mine))]))
    assert (editor.rule("policy:a").name, editor.policy("a").id) == ("mine", 1)


@pytest.mark.parametrize("meanwhile", ["created", "changed", "deleted"])
def test_concurrent_writes_are_not_overwritten(meanwhile: str, editor: Editor, repository: Repository) -> None:
    other = Editor(repository, Actor("other"))
    if meanwhile != "created":
        editor.apply(editor.difference([rule()]))
    difference = editor.difference([rule(limit=20), rule("new", method="PUT")])
    if meanwhile == "deleted":
        other.delete("per-ip")
    else:
        other.apply(other.difference([rule(limit=30)]))
    with pytest.raises(StaleVersionError, match=r"concurrent write .*: nothing was written; try again"):
        editor.apply(difference)
    assert repository.get("rule", "new") is None


def test_occupied_slot_is_a_conflict(editor: Editor) -> None:
    editor.apply(editor.difference([rule()]))
    with pytest.raises(ConflictError, match="'rival' would be as specific as rule 'per-ip'"):
        editor.apply(editor.difference([rule("rival")]))


def test_rules_are_deleted_atomically(editor: Editor, repository: Repository) -> None:
    editor.apply(editor.difference([rule(), rule("old", method="PUT")]))
    with pytest.raises(NotFoundError, match="no rule 'x'"):
        editor.delete_all(["old", "x"])
    editor.delete_all(["old", "old", "per-ip"])
    assert compare(repository, []).other == []
    assert [entry.action for entry in repository.audit(AuditQuery(actor="me"))] == ["delete"] * 2 + ["create"] * 2
