"""Policies and client limits written by the editor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from crestgate.errors import ConfigError, ConflictError, NotFoundError, StaleVersionError, ValidationError
from crestgate.rules.compat.clients import ClientLimit
from crestgate.rules.compat.policies import Policy
from crestgate.rules.editor import Editor
from crestgate.rules.port import Actor, AuditQuery, Edit
from crestgate.rules.records import record_of
from unit.rules.cases import one_rule
from unit.rules.editing import ALICE
from unit.rules.memory_repository import MemoryRepository

# -- policies -------------------------------------------------------------------------------------------------------


def test_policies_are_numbered(editor: Editor) -> None:
    first = editor.create_policy(Policy("a", capacity=5))
    second = editor.create_policy(Policy("b/c"))
    assert (first.id, second.id) == (1, 2)
    assert editor.policy("a") == first == Policy("a", capacity=5, id=1)
    editor.delete_policy("b/c")
    assert editor.create_policy(Policy("d")).id == 3, "numbers are never reused"
    assert editor.create_policy(Policy("b/c")).id == 4


def test_policy_keeps_its_number(editor: Editor) -> None:
    editor.create_policy(Policy("a"))
    changed = editor.replace_policy(Policy("a", "SLIDING_WINDOW", 5, 6, 7))
    assert changed == Policy("a", "SLIDING_WINDOW", 5, 6, 7, id=1) == editor.policy("a")


def test_existing_and_missing_policies(editor: Editor) -> None:
    editor.create_policy(Policy("a"))
    with pytest.raises(ConflictError, match="there is a policy for key 'a' already: change that one"):
        editor.create_policy(Policy("a", capacity=7))
    assert editor.create_policy(Policy("b")).id == 2, "a refused policy uses no number"
    for missing in (
        lambda: editor.policy("x"),
        lambda: editor.replace_policy(Policy("x")),
        lambda: editor.delete_policy("x"),
    ):
        with pytest.raises(NotFoundError, match="there is no policy for key 'x'"):
            missing()


def test_concurrent_policies_get_different_numbers(editor: Editor, repository: MemoryRepository) -> None:
    other = Editor(repository, Actor("bob"))
    repository.before_write = lambda: other.create_policy(Policy("theirs"))
    assert editor.create_policy(Policy("mine")).id == 2
    assert editor.policy("theirs").id == 1


def test_conflict_names_the_rule_in_the_slot_of_a_policy(editor: Editor, repository: MemoryRepository) -> None:
    editor.create(one_rule("byhand key for=a 1s"))
    with pytest.raises(ConflictError, match="would be as specific as rule 'byhand'"):
        editor.create_policy(Policy("a"))
    assert repository.revision == 1


def test_changed_policy_rule_becomes_an_ordinary_rule(editor: Editor) -> None:
    editor.create_policy(Policy("a", capacity=5))
    editor.create_policy(Policy("b"))
    renamed = editor.replace(replace(editor.rule("policy:a"), name="mine"))
    assert (renamed.name, editor.policy("a").capacity) == ("mine", 5)
    changed = editor.replace(replace(renamed, limit=7))
    assert (changed.limit, changed.origin) == (7, None)
    uses: list[Callable[[], object]] = [lambda: editor.policy("a"), lambda: editor.replace_policy(Policy("a"))]
    for missing in uses:
        with pytest.raises(NotFoundError, match="there is no policy for key 'a'"):
            missing()
    with pytest.raises(ConflictError, match="rule 'policy:a' is not a policy: delete it, or change it as a rule"):
        editor.create_policy(Policy("a"))
    assert editor.rule("policy:a") == changed


def test_unknown_origin_is_not_written(editor: Editor, repository: MemoryRepository) -> None:
    for origin in ({"view": "policy"}, {"view": "client"}, {"view": {"deep": {"er": 1}}}, {}):
        rule = replace(one_rule("a user"), origin=origin)
        editor.apply(editor.difference([record_of(rule)]))
        editor.delete("a")
        assert editor.create(rule).origin is None
        editor.delete("a")
    assert not any("origin" in (entry.after or {}) for entry in repository.audit(AuditQuery()))


@pytest.mark.parametrize("body", [{}, {"last": "many"}, {"last": None}, {"last": True}, {"last": -1}])
def test_invalid_last_number(editor: Editor, repository: MemoryRepository, body: dict[str, Any]) -> None:
    repository.write([Edit("default", "policy_ids", body)], ALICE)
    uses: list[Callable[[], object]] = [lambda: editor.create_policy(Policy("a")), lambda: editor.difference([])]
    for use in uses:
        with pytest.raises(ValidationError, match="default 'policy_ids': last: must be a whole number"):
            use()


# -- clients --------------------------------------------------------------------------------------------------------

GLOBAL = ClientLimit("acme", "DEFAULT", "GLOBAL", "MIN", 100)
API = ClientLimit("acme", "API", "getUsers", "SEC", 5)
PUT = ClientLimit("acme", "METHOD", "PUT", "HOUR", 7)


def test_configuring_a_client_leaves_its_other_limits(editor: Editor, repository: MemoryRepository) -> None:
    editor.configure_client("acme", [GLOBAL, API])
    assert repository.revision == 1, "one write"
    changed = replace(API, max_requests=50)
    editor.configure_client("acme", [changed, PUT])
    editor.configure_client("acme2", [ClientLimit("acme2", "DEFAULT", "GLOBAL", "MIN", 1)])
    assert sorted(editor.client_limits("acme"), key=str) == sorted([GLOBAL, changed, PUT], key=str)
    assert editor.client_limits("nobody") == []


@pytest.mark.parametrize("name", ["a", "a:b", "a%3Ab", "c" * 101, "c" * 1024, "é" * 300], ids=lambda name: name[:6])
def test_clients_do_not_share_limits(editor: Editor, name: str) -> None:
    limits = [replace(limit, client=name) for limit in (GLOBAL, API)]
    editor.configure_client(name, limits)
    for other in (name + "x", name[:-1] + "y", name + ":b"):
        if len(other.encode()) <= 1024:
            editor.configure_client(other, [replace(PUT, client=other)])
    assert sorted(editor.client_limits(name), key=str) == sorted(limits, key=str)


def test_clients_are_configured_separately(editor: Editor, repository: MemoryRepository) -> None:
    with pytest.raises(ConfigError, match="all limits must be of client 'acme', and one is of 'other'"):
        editor.configure_client("acme", [GLOBAL, replace(API, client="other")])
    assert repository.revision == 0


def test_client_limits_are_deleted_atomically(editor: Editor) -> None:
    editor.configure_client("acme", [GLOBAL, API, PUT])
    with pytest.raises(NotFoundError, match="client 'acme' has no limit METHOD GET"):
        editor.delete_client_limits("acme", [("API", "getUsers"), ("METHOD", "GET")])
    editor.delete_client_limits("acme", [("API", "getUsers"), ("API", "getUsers")])
    assert len(editor.client_limits("acme")) == 2
    editor.delete_client("acme")
    with pytest.raises(NotFoundError, match="client 'acme' was never configured"):
        editor.delete_client("acme")


def test_client_is_changed_under_its_lock(repository: MemoryRepository) -> None:
    class Locks:
        """A lock service that records names, and is busy on request."""

        def __init__(self) -> None:
            self.names: list[str] = []
            self.busy = False
            self.held = False

        @contextmanager
        def hold(self, name: str, **_: object) -> Iterator[None]:
            self.names.append(name)
            if self.busy:
                raise TimeoutError("the lock is held by somebody else")
            self.held = True
            yield
            self.held = False

    locks = Locks()
    held_at_notification: list[bool] = []
    editor = Editor(
        repository,
        ALICE,
        locks=locks,  # type: ignore[arg-type]  # as much of one as is needed
        on_write=lambda: held_at_notification.append(locks.held),
    )
    editor.configure_client("acme", [GLOBAL, API])
    editor.delete_client_limits("acme", [("API", "getUsers")])
    editor.delete_client("acme")
    assert locks.names == ["client:acme"] * 3
    assert held_at_notification == [False] * 3
    locks.busy = True
    with pytest.raises(StaleVersionError, match="concurrent write: the lock is held by somebody else; try again"):
        editor.configure_client("acme", [GLOBAL])
    assert editor.client_limits("acme") == []


def test_unreadable_record_is_not_written(editor: Editor, repository: MemoryRepository) -> None:
    """It would prevent every process from reading later rules."""
    with pytest.raises(ValidationError, match="identifier"):
        editor.configure_client("c" * 1025, [replace(GLOBAL, client="c" * 1025)])
    with pytest.raises(ValidationError, match="identifier"):
        editor.create_policy(Policy("k" * 1025))
    with pytest.raises(ValidationError, match="limit"):
        editor.create(replace(one_rule("a user"), limit=-1))
    assert repository.revision == 0
