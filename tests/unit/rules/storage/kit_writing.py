"""Contract of repositories for writers: see kit.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from crestgate.errors import ConflictError, NotFoundError, StaleVersionError
from crestgate.rules.editor import Editor
from crestgate.rules.port import AuditQuery, Edit, Repository
from crestgate.rules.records import plan_of
from crestgate.rules.rule import Rule
from unit.rules.storage.kit_edits import ALICE, BOB, SECOND, edit, put, revision_of, summary, visible_state

__all__ = ["WritingKit"]

UNUSUAL_BODY: dict[str, Any] = {
    "name": "\u00dcber \U0001f6a6 \ud83d \x00 \\ ' \" \u2028",
    "limit": 2**53 + 1,
    "share": 0.1,
    "burst": None,
    "on": True,
    "": [1, [2, {"three": []}], {}],
    "\U0001f6a6": "key",
}


class WritingKit:
    """Records, versions, unique keys, and atomic writes."""

    # -- one record -------------------------------------------------------------------------------------------------

    def test_new_repository_is_empty(self, repository: Repository) -> None:
        assert repository.get("rule", "r") is None
        assert list(repository.list("rule")) == []
        assert repository.changes(0) is None, "nothing has changed"
        assert list(repository.audit(AuditQuery())) == []

    def test_record_is_created_changed_and_deleted(self, repository: Repository) -> None:
        made = put(repository, "r", {"limit": 1})
        assert (made.kind, made.id, made.version, made.body) == ("rule", "r", 1, {"limit": 1})
        assert (made.unique_key, made.expires_us) == (None, None)
        assert made.created_us == made.updated_us > 1_700_000_000 * SECOND
        assert repository.get("rule", "r") == made
        changed = put(repository, "r", {"limit": 2}, unique_key="slot", expires_us=made.updated_us + 3600 * SECOND)
        assert (changed.version, changed.body, changed.unique_key) == (2, {"limit": 2}, "slot")
        assert changed.expires_us == made.updated_us + 3600 * SECOND
        assert changed.created_us == made.created_us <= changed.updated_us
        assert repository.get("rule", "r") == changed
        plain = put(repository, "r", {})
        assert (plain.version, plain.body, plain.unique_key, plain.expires_us) == (3, {}, None, None)
        assert repository.get("rule", "r") == plain
        assert list(repository.write([edit("r", None)], ALICE)) == [None]
        assert repository.get("rule", "r") is None
        assert list(repository.list("rule")) == []

    def test_rules_and_plans_keep_their_leases(self, repository: Repository) -> None:
        editor = Editor(repository, ALICE)
        old = {"rule_id": "old", "dimension": "ip", "limit": 5, "window_seconds": 60, "algorithm": "gcra"}
        put(repository, "old", old)  # as it was stored before there were leases
        editor.create(Rule.read({**old, "rule_id": "new", "dimension": "user", "lease": True}))
        put(repository, "cold", {"limits": ["5/second"]}, kind="plan")
        editor.put_plan("hot", "5/s", lease=True)
        assert {rule.rule_id: rule.lease for rule in editor.rules()} == {"old": False, "new": True}
        plans = {record.id: plan_of(record).lease for record in repository.list("plan")}
        assert plans == {"cold": False, "hot": True}
        editor.replace(replace(editor.rule("new"), lease=False))
        record = repository.get("rule", "new")
        assert record is not None
        assert "lease" not in record.body

    def test_kinds_are_separate(self, repository: Repository) -> None:
        rule = put(repository, "gold", {"n": 1})
        plan = put(repository, "gold", {"n": 2}, kind="plan")
        assert rule.version == plan.version == 1
        assert repository.get("rule", "gold") == rule
        assert repository.get("plan", "gold") == plan
        assert repository.get("tier", "gold") is None
        repository.write([Edit("plan", "gold", None)], ALICE)
        assert repository.get("rule", "gold") == rule

    def test_versions_continue_when_a_record_is_recreated(self, repository: Repository) -> None:
        first = put(repository, "r", {"n": 1})
        put(repository, "r", {"n": 2})
        repository.write([edit("r", None)], ALICE)
        again = put(repository, "r", {"n": 3}, expected=0)
        assert again.version == 3
        assert again.created_us >= first.created_us
        assert again.created_us == again.updated_us, "it is a new record"
        with pytest.raises(StaleVersionError):
            repository.write([edit("r", {"n": 4}, expected=1)], ALICE)

    def test_any_plain_data_is_a_body(self, repository: Repository) -> None:
        put(repository, "r", UNUSUAL_BODY)
        put(repository, "r", {"text": "\u00e9" * 32_000})
        large = repository.get("rule", "r")
        assert large is not None
        assert large.body == {"text": "\u00e9" * 32_000}
        changed, made = repository.audit(AuditQuery())
        assert (made.after, changed.before, changed.after) == (UNUSUAL_BODY, UNUSUAL_BODY, large.body)
        put(repository, "r", UNUSUAL_BODY)
        record = repository.get("rule", "r")
        assert record is not None
        assert record.body == UNUSUAL_BODY

    # -- optimistic locking -----------------------------------------------------------------------------------------

    def test_missing_record_cannot_be_changed_or_deleted(self, repository: Repository) -> None:
        for wrong in (edit("r", None), edit("r", None, expected=1), edit("r", {"n": 1}, expected=1)):
            with pytest.raises(NotFoundError, match="there is no rule 'r'"):
                repository.write([wrong], ALICE)
        put(repository, "r", {"n": 1}, expected=0)
        repository.write([edit("r", None, expected=1)], ALICE)
        with pytest.raises(NotFoundError):
            repository.write([edit("r", None)], ALICE)
        with pytest.raises(NotFoundError):
            repository.write([edit("r", {"n": 1}, expected=1)], ALICE)

    def test_concurrent_change_is_not_overwritten(self, repository: Repository) -> None:
        put(repository, "r", {"n": 1})
        put(repository, "r", {"n": 2}, expected=1)
        with pytest.raises(StaleVersionError, match="version 1 was read, it is at 2 now"):
            repository.write([edit("r", {"n": 3}, expected=1)], BOB)
        with pytest.raises(StaleVersionError):
            repository.write([edit("r", None, expected=1)], BOB)
        with pytest.raises(ConflictError, match="already exists"):
            repository.write([edit("r", {"n": 3}, expected=0)], BOB)
        record = repository.get("rule", "r")
        assert record is not None
        assert (record.version, record.body) == (2, {"n": 2})

    # -- unique keys ------------------------------------------------------------------------------------------------

    def test_unique_key_belongs_to_one_record(self, repository: Repository) -> None:
        put(repository, "first", {"n": 1}, unique_key="slot")
        with pytest.raises(ConflictError, match="'second' would be as specific as rule 'first'"):
            repository.write([edit("second", {"n": 2}, unique_key="slot")], ALICE)
        put(repository, "second", {"n": 2}, unique_key="slot ")
        put(repository, "third", {"n": 2}, unique_key="Slot")
        put(repository, "first", {"n": 3}, unique_key="slot")
        with pytest.raises(ConflictError):
            repository.write([edit("second", {"n": 2}, unique_key="slot")], ALICE)

    def test_unique_key_is_released(self, repository: Repository) -> None:
        put(repository, "first", {}, unique_key="slot")
        repository.write([edit("first", None)], ALICE)
        put(repository, "second", {}, unique_key="slot")
        put(repository, "second", {}, unique_key="another")
        put(repository, "third", {}, unique_key="slot")
        put(repository, "third", {})
        assert put(repository, "fourth", {}, unique_key="slot").unique_key == "slot"

    def test_one_write_may_transfer_a_unique_key(self, repository: Repository) -> None:
        put(repository, "first", {}, unique_key="one")
        put(repository, "second", {}, unique_key="two")
        repository.write([edit("first", {}, unique_key="two"), edit("second", {}, unique_key="one")], ALICE)
        repository.write([edit("third", {}, unique_key="two"), edit("first", None)], ALICE)
        assert [(r.id, r.unique_key) for r in repository.list("rule")] == [("second", "one"), ("third", "two")]
        with pytest.raises(ConflictError):
            repository.write([edit("x", {}, unique_key="new"), edit("y", {}, unique_key="new")], ALICE)
        assert repository.get("rule", "x") is None

    def test_unique_key_of_an_expired_record_is_free(self, repository: Repository) -> None:
        now = put(repository, "clock", {}).updated_us
        put(repository, "ended", {"n": 1}, unique_key="slot", expires_us=now)
        put(repository, "lasting", {"n": 2}, unique_key="other", expires_us=now + 3600 * SECOND)
        with pytest.raises(ConflictError):
            repository.write([edit("heir", {}, unique_key="other")], BOB)
        revision = revision_of(repository)
        successor = put(repository, "heir", {"n": 3}, unique_key="slot", actor=BOB)
        assert successor.version == 1
        assert repository.get("rule", "ended") is None
        changes = repository.changes(revision)
        assert changes is not None
        assert (list(changes.records), list(changes.deleted)) == ([successor], [("rule", "ended")])
        entries = repository.audit(AuditQuery(limit=2))
        assert {summary(e) for e in entries} == {
            ("crestgate", "", "expire", "rule:ended"),
            (BOB.name, BOB.address, "create", "rule:heir"),
        }

    # -- atomicity --------------------------------------------------------------------------------------------------

    def test_writes_are_atomic(self, repository: Repository) -> None:
        put(repository, "kept", {"n": 1}, unique_key="slot")
        put(repository, "other", {"n": 1})
        before = visible_state(repository)
        good = [edit("new", {"n": 1}), edit("kept", {"n": 2}), edit("other", None)]
        for bad, error in (
            (edit("away", None), NotFoundError),
            (edit("away", {}, expected=3), NotFoundError),
            (Edit("plan", "away", {}, expected=1), NotFoundError),
            (edit("kept", {}, expected=0), ConflictError),
        ):
            some = [item for item in good if item.id != bad.id]
            with pytest.raises(error):
                repository.write([*some, bad], ALICE)
            assert visible_state(repository) == before
        with pytest.raises(ConflictError, match="the same record twice"):
            repository.write([edit("new", {"n": 1}), edit("new", {"n": 2})], ALICE)
        with pytest.raises(ConflictError):
            repository.write([edit("other", None), edit("rival", {}, unique_key="slot")], ALICE)
        with pytest.raises(StaleVersionError):
            repository.write([edit("new", {}), edit("kept", {}, expected=7)], ALICE)
        assert visible_state(repository) == before, "no record, no audit entry, no revision"

    def test_results_are_in_the_order_of_the_edits(self, repository: Repository) -> None:
        put(repository, "b", {"n": 1})
        answers = repository.write([edit("c", {"n": 3}), edit("b", None), edit("a", {"n": 2}, unique_key="x")], ALICE)
        assert list(answers) == [repository.get("rule", "c"), None, repository.get("rule", "a")]
        assert [answer.body if answer else None for answer in answers] == [{"n": 3}, None, {"n": 2}]

    def test_empty_write_changes_nothing(self, repository: Repository) -> None:
        put(repository, "r", {})
        before = visible_state(repository)
        assert list(repository.write([], ALICE)) == []
        assert visible_state(repository) == before

    def test_large_write(self, repository: Repository) -> None:
        many = [edit(f"r{n:04}", {"n": n}, unique_key=f"slot {n}") for n in range(600)]
        assert [r.id for r in repository.write(many, ALICE) if r] == [e.id for e in many]
        changes = repository.changes(0)
        assert changes is not None
        assert len(changes.records) == 600
        assert len(repository.audit(AuditQuery(limit=1000))) == 600
        assert list(repository.write([replace(e, body=None, unique_key=None) for e in many], ALICE)) == [None] * 600
        assert list(repository.list("rule")) == []
