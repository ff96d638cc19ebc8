"""Operations of the editor: each is one atomic, audited write."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from crestgate.errors import ConfigError, ConflictError, NotFoundError, StaleVersionError, StoreError, ValidationError
from crestgate.rules.editor import Editor
from crestgate.rules.port import Actor, AuditQuery
from crestgate.rules.records import record_of
from unit.rules.cases import one_rule, rules_of
from unit.rules.editing import audit_log, ids, winner
from unit.rules.memory_repository import MemoryRepository

# -- rules ----------------------------------------------------------------------------------------------------------


def test_create_get_list(editor: Editor, repository: MemoryRepository) -> None:
    made = editor.create(one_rule("b user"))
    editor.create(one_rule("a ip"))
    now_us = repository.clock.ticks()
    assert (made.version, made.created_us, made.updated_us) == (1, now_us, now_us)
    assert editor.rule("b") == made
    assert ids(editor) == ["a", "b"]
    assert audit_log(repository) == [("create", "rule:b"), ("create", "rule:a")]
    (entry,) = repository.audit(AuditQuery(subject="rule:b"))
    assert (entry.actor, entry.address, entry.before) == ("alice", "192.0.2.1", None)
    assert entry.after == made.body()


def test_create_refuses_an_existing_rule(editor: Editor) -> None:
    editor.create(one_rule("a user on=/u/*"))
    with pytest.raises(ConflictError, match="rule 'a' already exists"):
        editor.create(one_rule("a ip"))
    with pytest.raises(ConflictError, match="rule 'b' would be as specific as rule 'a' in the same slot"):
        editor.create(one_rule("b user on=/u/**"))
    editor.create(one_rule("b user on=/u/* ends=+5"))
    editor.create(one_rule("c user on=/u/* shadow"))
    editor.create(one_rule("d user on=/u/* disabled"))
    editor.create(one_rule("e user on=/u/* tier=gold"))
    assert ids(editor) == ["a", "b", "c", "d", "e"]


def test_create_refuses_an_equal_rule_of_several_dimensions(editor: Editor) -> None:
    editor.create(one_rule("a org,model for=acme,*"))
    with pytest.raises(ConflictError, match="rule 'b' would be as specific as rule 'a' in the same slot"):
        editor.create(one_rule("b model,org for=*,acme"))
    editor.create(one_rule("b org,model for=*,large"))
    editor.create(one_rule("c org,model for=acme,large"))
    editor.create(one_rule("d org for=acme"))
    assert editor.rule("a").to_data()["identifier"] == ["acme", "*"]
    assert ids(editor) == ["a", "b", "c", "d"]


def test_replace(editor: Editor, repository: MemoryRepository) -> None:
    editor.create(one_rule("a user"))
    repository.clock.advance(5)
    changed = editor.replace(one_rule("a user limit=7"))
    assert (changed.limit, changed.version) == (7, 2)
    assert changed.created_us != changed.updated_us
    assert editor.replace(one_rule("a user limit=8"), expected=2).version == 3
    with pytest.raises(StaleVersionError, match="version 2 was read, it is at 3 now"):
        editor.replace(one_rule("a user limit=9"), expected=2)
    with pytest.raises(NotFoundError, match="there is no rule 'x'"):
        editor.replace(one_rule("x user"))
    assert editor.rule("a").limit == 8


def test_replace_detects_a_concurrent_write(editor: Editor, repository: MemoryRepository) -> None:
    editor.create(one_rule("a user"))
    repository.before_write = lambda: Editor(repository, Actor("bob")).replace(one_rule("a user limit=7"))
    with pytest.raises(StaleVersionError):
        editor.replace(one_rule("a user limit=8"))
    assert editor.rule("a").limit == 7


def test_delete(editor: Editor, repository: MemoryRepository) -> None:
    editor.create(one_rule("a user"))
    with pytest.raises(StaleVersionError):
        editor.delete("a", expected=2)
    editor.delete("a", expected=1)
    for missing in (lambda: editor.delete("a"), lambda: editor.rule("a")):
        with pytest.raises(NotFoundError, match="there is no rule 'a'"):
            missing()
    assert editor.create(one_rule("a user")).version == 2, "versions continue"
    assert [action for action, _ in audit_log(repository)] == ["create", "delete", "create"]


def test_delete_is_atomic(editor: Editor) -> None:
    for rule in rules_of("a user\nb ip\nc global"):
        editor.create(rule)
    with pytest.raises(NotFoundError, match="there is no rule 'x'"):
        editor.delete_all(["a", "x"])
    editor.delete_all(["a", "b", "a"])
    assert ids(editor) == ["c"]


# -- differences ----------------------------------------------------------------------------------------------------


def test_apply_writes_the_difference(editor: Editor, repository: MemoryRepository) -> None:
    for rule in rules_of("same user\nchanged ip\nother global"):
        editor.create(rule)
    target = [record_of(rule) for rule in rules_of("same user\nchanged ip limit=5\nadded client")]
    difference = editor.difference(target)
    assert [record.id for record in difference.added] == ["added"]
    assert [(old.body["limit"], new.body["limit"]) for old, new in difference.changed] == [(100, 5)]
    assert [record.id for record in difference.same] == ["same"]
    assert [record.id for record in difference.other] == ["other"]
    assert repository.revision == 3, "a difference writes nothing"
    editor.apply(difference)
    assert repository.revision == 4, "all in one write"
    assert ids(editor) == ["added", "changed", "other", "same"]
    assert (editor.rule("changed").limit, editor.rule("same").version) == (5, 1)
    editor.apply(editor.difference(target))
    assert repository.revision == 4, "there is nothing left to write"
    editor.apply(editor.difference(target), prune=True)
    assert ids(editor) == ["added", "changed", "same"]


def test_apply_is_atomic(editor: Editor, repository: MemoryRepository) -> None:
    editor.create(one_rule("kept user"))
    clash = [record_of(rule) for rule in rules_of("a ip\nb user")]
    with pytest.raises(ConflictError, match="rule 'b' would be as specific as rule 'kept'"):
        editor.apply(editor.difference(clash))
    assert ids(editor) == ["kept"]
    editor.apply(editor.difference(clash), prune=True)
    assert ids(editor) == ["a", "b"], "pruning frees the slot"


def test_apply_swaps_slots(editor: Editor) -> None:
    for rule in rules_of("a user\nb ip"):
        editor.create(rule)
    editor.apply(editor.difference([record_of(rule) for rule in rules_of("a ip\nb user")]))
    assert [rule.dimension for rule in editor.rules()] == ["ip", "user"]


def test_apply_detects_a_concurrent_write(editor: Editor) -> None:
    editor.create(one_rule("a user"))
    changing = editor.difference([record_of(one_rule("a user limit=5"))])
    adding = editor.difference([record_of(one_rule("b ip"))])
    editor.replace(one_rule("a user limit=6"))
    editor.create(one_rule("b ip limit=7"))
    for difference in (changing, adding):
        with pytest.raises(StaleVersionError, match="nothing was written; try again"):
            editor.apply(difference)
    assert [rule.limit for rule in editor.rules()] == [6, 7]


# -- tiers ----------------------------------------------------------------------------------------------------------


def test_tiers(editor: Editor, repository: MemoryRepository) -> None:
    for rule in rules_of("free user tier=free\ngold user tier=gold"):
        editor.create(rule)
    assert winner(repository, user="alice").rule_id == "free"
    editor.set_tier("alice", "gold")
    assert winner(repository, user="alice").rule_id == "gold"
    editor.set_tier("alice", "free")
    editor.set_tier("alice", None)
    assert winner(repository, user="alice").rule_id == "free"
    assert audit_log(repository)[2:] == [
        ("create", "tier:alice"),
        ("update", "tier:alice"),
        ("delete", "tier:alice"),
    ]
    with pytest.raises(NotFoundError, match="'alice'"):
        editor.set_tier("alice", None)


@pytest.mark.parametrize("tier", ["", "*", 7, ["gold"], "t" * 256], ids=lambda tier: str(tier)[:8])
def test_invalid_tiers_are_refused(editor: Editor, repository: MemoryRepository, tier: Any) -> None:
    with pytest.raises(ConfigError, match="a tier has a name, such as 'premium'"):
        editor.set_tier("alice", tier)
    assert repository.revision == 0


@pytest.mark.parametrize("user", ["", None, 7])
def test_tier_needs_a_valid_user(editor: Editor, repository: MemoryRepository, user: Any) -> None:
    for tier in ("gold", None):
        with pytest.raises(ConfigError, match="the user must be text"):
            editor.set_tier(user, tier)
    assert repository.revision == 0


# -- overrides ------------------------------------------------------------------------------------------------------


def test_override_wins_until_it_expires(editor: Editor, repository: MemoryRepository) -> None:
    base = editor.create(one_rule("base user limit=10 burst=20 algorithm=gcra on_store_error=closed"))
    made = editor.override("alice", base, 500, 60)
    assert (made.identifier, made.limit, made.burst, made.tier) == ("alice", 500, 1000, "*")
    assert made.expires_us == repository.clock.ticks() + 60_000_000
    assert (made.counter, made.algorithm, made.on_store_error) == (base.counter, "gcra", "closed")
    assert made.name == "override of base for alice"
    assert winner(repository, user="alice") == made
    assert winner(repository, user="bob").rule_id == "base"
    repository.clock.advance(60)
    assert winner(repository, user="alice").rule_id == "base"


def test_override_wins_over_a_rule_for_the_same_user(editor: Editor, repository: MemoryRepository) -> None:
    base = editor.create(one_rule("base user for=alice limit=10"))
    made = editor.override("alice", base, 500, 60)
    assert winner(repository, user="alice") == made


def test_override_wins_over_a_rule_for_user_and_tier(editor: Editor, repository: MemoryRepository) -> None:
    base = editor.create(one_rule("base user for=alice tier=gold limit=10"))
    editor.set_tier("alice", "gold")
    made = editor.override("alice", base, 500, 60)
    assert winner(repository, user="alice") == made


def test_second_override_replaces_the_first(editor: Editor, repository: MemoryRepository) -> None:
    base = editor.create(one_rule("base user limit=10"))
    first = editor.override("alice", base, 500, 60)
    second = editor.override("alice", first, 700, 30)
    assert (second.rule_id, second.version, second.limit) == (first.rule_id, 2, 700)
    assert winner(repository, user="alice") == second
    assert len(ids(editor)) == 2


def test_expired_override_can_be_replaced(editor: Editor, repository: MemoryRepository) -> None:
    base = editor.create(one_rule("base user limit=10"))
    editor.create(one_rule("byhand user for=alice limit=5 ends=+10"))
    with pytest.raises(ConflictError, match="would be as specific as rule 'byhand'"):
        editor.override("alice", base, 500, 60)
    repository.clock.advance(10)
    made = editor.override("alice", base, 500, 60)
    assert winner(repository, user="alice") == made
    assert audit_log(repository)[-2:] == [("expire", "rule:byhand"), ("create", f"rule:{made.rule_id}")]


@pytest.mark.parametrize(
    ("base", "limit", "burst"),
    [
        ("limit=10 burst=100", 20, 200),
        ("limit=10 burst=5", 11, 6),
        ("limit=10 burst=1", 1, 1),
        ("limit=10 burst=100", 0, None),
        ("limit=10", 20, None),
        ("limit=0", 20, None),
    ],
)
def test_burst_scales_with_the_limit(editor: Editor, base: str, limit: int, burst: int | None) -> None:
    rule = editor.create(one_rule(f"base user algorithm=token_bucket {base}"))
    assert editor.override("alice", rule, limit, 60).burst == burst


@pytest.mark.parametrize("user", ["a:b", "u" * 1024, "é" * 500, "*"], ids=lambda user: user[:5])
def test_override_is_for_any_single_user(editor: Editor, repository: MemoryRepository, user: str) -> None:
    base = editor.create(one_rule("base user limit=10"))
    if user == "*":
        with pytest.raises(ConfigError, match="an override is for one user"):
            editor.override(user, base, 500, 60)
    else:
        made = editor.override(user, base, 500, 60)
        assert winner(repository, user=user) == made


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), 1e15], ids=str)
def test_override_needs_a_finite_duration(editor: Editor, repository: MemoryRepository, seconds: float) -> None:
    base = editor.create(one_rule("base user limit=10"))
    with pytest.raises(ConfigError, match="an override must last more than 0 seconds"):
        editor.override("alice", base, 500, seconds)
    assert repository.revision == 1


def test_rules_that_cannot_be_overridden(editor: Editor) -> None:
    with pytest.raises(ConfigError, match="rule 'i' is of dimension ip: only user rules can be overridden"):
        editor.override("alice", one_rule("i ip"), 500, 60)
    with pytest.raises(ValidationError, match="limit: must be a whole number"):
        editor.override("alice", one_rule("u user"), -1, 60)


# -- plans ----------------------------------------------------------------------------------------------------------


def test_plans(editor: Editor, repository: MemoryRepository) -> None:
    assert editor.put_plan("gold", "10/s burst 20", create=True) == ("10/second burst 20",)
    with pytest.raises(ConflictError, match="plan 'gold' already exists"):
        editor.put_plan("gold", "5/s", create=True)
    assert editor.put_plan("gold", ["5/s", "100/min; 1/day"], create=False) == ("5/second", "100/minute", "1/day")
    assert editor.put_plan("new", "5/s") == ("5/second",)
    with pytest.raises(NotFoundError, match="there is no plan 'x'"):
        editor.put_plan("x", "5/s", create=False)
    editor.delete_plan("gold")
    with pytest.raises(NotFoundError, match="there is no plan 'gold'"):
        editor.delete_plan("gold")
    record = repository.get("plan", "new")
    assert record is not None
    assert record.body == {"limits": ["5/second"]}


@pytest.mark.parametrize("limits", ["many", [], [5], None, {"a": "5/s"}, ["5/s", "x"]], ids=str)
def test_invalid_plans_are_refused(editor: Editor, repository: MemoryRepository, limits: object) -> None:
    with pytest.raises(ConfigError):
        editor.put_plan("gold", limits)
    assert repository.revision == 0


def test_resets_are_audited(editor: Editor, repository: MemoryRepository) -> None:
    editor.audit_reset("user:42")
    (entry,) = repository.audit(AuditQuery())
    assert (entry.actor, entry.action, entry.subject) == ("alice", "reset", "user:42")
    editor.audit_reset()
    editor.audit_reset("user:43", "apikey:secret")
    assert [entry.subject for entry in repository.audit(AuditQuery())] == [
        "apikey:sha256:ca195b975018",
        "user:43",
        "user:42",
    ]


def test_audited_reset_hides_the_api_key(editor: Editor, repository: MemoryRepository) -> None:
    editor.audit_reset("apikey:secret")
    (entry,) = repository.audit(AuditQuery())
    assert entry.action == "reset"
    assert entry.subject == "apikey:sha256:ca195b975018"


def test_failed_reset_is_raised_although_the_audit_log_cannot_be_written(
    editor: Editor, repository: MemoryRepository, caplog: pytest.LogCaptureFixture
) -> None:
    def reset() -> None:
        with editor.resetting("user:42"):
            repository.close()
            raise StoreError("the counters are away")

    with pytest.raises(StoreError, match="counters are away"):
        reset()
    assert "audit log: cannot record that a reset was not done" in caplog.text
    assert [entry.action for entry in repository.entries] == ["reset requested"]


def test_reset_is_done_although_the_audit_log_cannot_be_written(
    editor: Editor, repository: MemoryRepository, caplog: pytest.LogCaptureFixture
) -> None:
    with editor.resetting("user:42"):
        repository.close()
    assert "audit log: cannot record that a reset was done" in caplog.text


@pytest.mark.parametrize(
    ("user", "changes", "seconds", "field"),
    [("*", {}, 60, "user"), ("bob", {"mode": "disabled"}, 60, "base"), ("bob", {}, 0, "seconds")],
)
def test_override_error_carries_its_field(
    editor: Editor, user: str, changes: dict[str, Any], seconds: float, field: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        editor.override(user, replace(one_rule("a user limit=5"), **changes), 10, seconds)
    assert caught.value.field == field
