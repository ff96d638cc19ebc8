"""Readable ids of overrides, and their undo."""

from __future__ import annotations

import pytest

from crestgate.errors import NotFoundError
from crestgate.rules.compat.rule_ids import derived_id
from crestgate.rules.editor import Editor
from crestgate.rules.rule import Rule
from unit.rules.cases import one_rule
from unit.rules.editing import audit_log, ids, winner
from unit.rules.memory_repository import MemoryRepository


@pytest.fixture
def base(editor: Editor) -> Rule:
    return editor.create(one_rule("orders-per-user user limit=10"))


def old_override(editor: Editor, repository: MemoryRepository, base: Rule) -> Rule:
    """An override as older versions named it: by its slot."""
    made = editor.override("acme", base, 500, 60)
    editor.undo_override("acme", made.rule_id)
    old_id = derived_id("override", "acme", base.counter)
    assert "%7C" in old_id
    return editor.create(Rule.read({**made.body(), "rule_id": old_id}))


def test_id_names_the_user_and_the_rule(editor: Editor, base: Rule) -> None:
    assert editor.override("acme", base, 500, 60).rule_id == "override:acme:orders-per-user"
    assert editor.override("a:b", base, 500, 60).rule_id == "override:a%3Ab:orders-per-user"


def test_override_through_another_rule_of_the_slot_replaces_the_first(
    editor: Editor, repository: MemoryRepository, base: Rule
) -> None:
    editor.override("acme", base, 500, 60)
    premium = editor.create(one_rule("premium user tier=premium limit=100"))
    second = editor.override("acme", premium, 700, 60)
    assert ids(editor) == ["orders-per-user", "override:acme:premium", "premium"]
    assert winner(repository, user="acme") == second


def test_override_replaces_one_with_an_old_id(editor: Editor, repository: MemoryRepository, base: Rule) -> None:
    old = old_override(editor, repository, base)
    assert winner(repository, user="acme").rule_id == old.rule_id
    made = editor.override("acme", base, 700, 60)
    assert winner(repository, user="acme") == made
    assert ids(editor) == ["orders-per-user", "override:acme:orders-per-user"]
    assert audit_log(repository)[-2:] == [("create", f"rule:{made.rule_id}"), ("delete", f"rule:{old.rule_id}")]


def test_undo_by_rule_ends_the_override(editor: Editor, repository: MemoryRepository, base: Rule) -> None:
    made = editor.override("acme", base, 500, 60)
    assert editor.undo_override("acme", "orders-per-user") == made
    assert winner(repository, user="acme").rule_id == "orders-per-user"
    assert audit_log(repository)[-2:] == [("create", f"rule:{made.rule_id}"), ("delete", f"rule:{made.rule_id}")]


def test_undo_works_after_the_rule_was_deleted(editor: Editor, base: Rule) -> None:
    editor.override("acme", base, 500, 60)
    editor.delete(base.rule_id)
    editor.undo_override("acme", base.rule_id)
    assert ids(editor) == []


def test_undo_finds_an_old_id_by_the_slot(editor: Editor, repository: MemoryRepository, base: Rule) -> None:
    old = old_override(editor, repository, base)
    with pytest.raises(NotFoundError):
        editor.undo_override("acme", base.rule_id)
    assert editor.undo_override("acme", base.rule_id, base).rule_id == old.rule_id
    assert ids(editor) == ["orders-per-user"]


def test_undo_deletes_overrides_of_this_user_only(editor: Editor, repository: MemoryRepository, base: Rule) -> None:
    editor.override("acme:eu", base, 500, 60)
    editor.create(one_rule("byhand user for=acme limit=5"))
    before = ids(editor)
    for rule_id in ("orders-per-user", "byhand", "override:acme%3Aeu:orders-per-user"):
        with pytest.raises(NotFoundError, match="user 'acme' has no override of rule"):
            editor.undo_override("acme", rule_id, base)
    assert ids(editor) == before


def test_expired_override_cannot_be_undone(editor: Editor, repository: MemoryRepository, base: Rule) -> None:
    editor.override("acme", base, 500, 60)
    repository.clock.advance(60)
    with pytest.raises(NotFoundError):
        editor.undo_override("acme", base.rule_id)
