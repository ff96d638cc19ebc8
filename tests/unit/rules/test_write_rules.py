"""Validation of writes, the same for every repository."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from crestgate.errors import ConflictError, NotFoundError, StaleVersionError
from crestgate.rules.port import Actor, Edit, Record
from crestgate.rules.storage.write_rules import StoredState, WritePlan, plan_expiry, plan_write

NOW = 1_000_000
ALICE = Actor("alice", "192.0.2.1")


def record(
    record_id: str, version: int = 1, *, unique_key: str | None = None, expires_us: int | None = None, **body: Any
) -> Record:
    return Record("rule", record_id, version, body, 10, 20, unique_key, expires_us)


def put(record_id: str, *, expected: int | None = None, unique_key: str | None = None, **body: Any) -> Edit:
    return Edit("rule", record_id, body, expected, unique_key)


def delete(record_id: str, expected: int | None = None) -> Edit:
    return Edit("rule", record_id, None, expected)


def plan_edits(edits: Sequence[Edit], *records: Record, remembered: dict[str, int] | None = None) -> WritePlan:
    """The plan of the edits in a repository with these records and `remembered` versions of deleted ones."""
    found = {(one.kind, one.id): StoredState(one.version, one) for one in records}
    found |= {("rule", name): StoredState(version, None) for name, version in (remembered or {}).items()}
    holders: dict[str, list[Record]] = {}
    for one in records:
        if one.unique_key is not None:
            holders.setdefault(one.unique_key, []).append(one)
    return plan_write(edits, found, holders, NOW, ALICE)


def audit_log(revision: WritePlan) -> list[tuple[str, str, str]]:
    return [(entry.actor, entry.action, entry.subject) for entry in revision.audit]


def test_new_record() -> None:
    revision = plan_edits([Edit("rule", "a", {"n": 1}, None, "claim", 99)])
    made = Record("rule", "a", 1, {"n": 1}, NOW, NOW, "claim", 99)
    assert revision.puts == revision.results == [made]
    (entry,) = revision.audit
    assert (entry.at_us, entry.actor, entry.address, entry.action) == (NOW, "alice", "192.0.2.1", "create")
    assert (entry.subject, entry.before, entry.after) == ("rule:a", None, {"n": 1})


def test_change_keeps_the_creation_time() -> None:
    revision = plan_edits([put("a", n=2)], record("a", 4, n=1))
    (changed,) = revision.puts
    assert (changed.version, changed.created_us, changed.updated_us) == (5, 10, NOW)
    (entry,) = revision.audit
    assert (entry.action, entry.before, entry.after) == ("update", {"n": 1}, {"n": 2})


def test_deletion() -> None:
    revision = plan_edits([delete("a")], record("a", 4, n=1))
    assert revision.deletes == [("rule", "a", 4)]
    assert (revision.puts, revision.results) == ([], [None])
    (entry,) = revision.audit
    assert (entry.action, entry.before, entry.after) == ("delete", {"n": 1}, None)


def test_versions_continue_after_a_deletion() -> None:
    (made,) = plan_edits([put("a", expected=0)], remembered={"a": 4}).puts
    assert (made.version, made.created_us) == (5, NOW)


def test_results_are_in_the_order_of_the_edits() -> None:
    revision = plan_edits([delete("b"), put("a"), put("c")], record("b"), record("c", 2))
    assert [answer and (answer.id, answer.version) for answer in revision.results] == [None, ("a", 1), ("c", 3)]


def test_empty_write() -> None:
    assert plan_edits([]) == WritePlan()


@pytest.mark.parametrize(
    ("edit", "records", "kind", "message"),
    [
        (delete("a"), [], NotFoundError, "there is no rule 'a'"),
        (delete("a", 2), [], NotFoundError, "there is no rule 'a'"),
        (put("a", expected=1), [], NotFoundError, "there is no rule 'a'"),
        (
            put("a", expected=0),
            [record("a")],
            ConflictError,
            "rule 'a' already exists: change it, or use another name",
        ),
        (
            put("a", expected=2),
            [record("a", 3)],
            StaleVersionError,
            "rule 'a' was changed meanwhile: version 2 was read, it is at 3 now; read it again",
        ),
        (delete("a", 2), [record("a", 3)], StaleVersionError, "version 2 was read, it is at 3 now"),
        (put("a", expected=4), [record("a", 3)], StaleVersionError, "version 4 was read, it is at 3 now"),
    ],
    ids=str,
)
def test_expected_versions(edit: Edit, records: list[Record], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind) as caught:
        plan_edits([edit], *records)
    assert message in str(caught.value)


def test_expected_version_is_the_latest() -> None:
    assert plan_edits([put("a", expected=3)], record("a", 3)).puts[0].version == 4
    assert plan_edits([delete("a", 3)], record("a", 3)).deletes == [("rule", "a", 3)]
    assert plan_edits([put("a", expected=0)]).puts[0].version == 1


def test_kinds_have_separate_ids() -> None:
    revision = plan_edits([Edit("tier", "a", {"tier": "gold"}, 0), put("b")], record("a"))
    assert [made.version for made in revision.puts] == [1, 1]


def test_duplicate_edit_is_refused() -> None:
    for edits in ([put("a"), put("a")], [put("a"), delete("a")]):
        with pytest.raises(ConflictError, match="one write has the same record twice: write each once"):
            plan_edits(edits, record("a"))


# -- unique keys ----------------------------------------------------------------------------------------------------


def test_unique_key_belongs_to_one_record() -> None:
    with pytest.raises(ConflictError) as caught:
        plan_edits([put("b", unique_key="place")], record("a", unique_key="place"))
    message = str(caught.value)
    assert message.startswith("rule 'b' would be as specific as rule 'a' in the same slot (dimension, endpoint_pattern")
    assert message.endswith("change that one, or give one of them an identifier, a tier or an expires_at")


def test_unique_key_can_be_rewritten_by_its_record() -> None:
    assert plan_edits([put("a", unique_key="place")], record("a", unique_key="place")).puts[0].version == 2


def test_two_edits_cannot_share_a_unique_key() -> None:
    with pytest.raises(ConflictError, match="rule 'b' would be as specific as rule 'a'"):
        plan_edits([put("a", unique_key="place"), put("b", unique_key="place")])
    with pytest.raises(ConflictError, match="rule 'b' would be as specific as rule 'a'"):
        plan_edits([put("a", unique_key="place"), put("b", unique_key="place")], record("b", unique_key="place"))


def test_unique_key_released_in_the_same_write_is_free() -> None:
    stored = record("a", unique_key="place")
    for release in (delete("a"), put("a"), put("a", unique_key="other")):
        for edits in ([release, put("b", unique_key="place")], [put("b", unique_key="place"), release]):
            assert [made.id for made in plan_edits(edits, stored).puts if made.unique_key == "place"] == ["b"]


def test_two_records_can_swap_their_unique_keys() -> None:
    stored = record("a", unique_key="one"), record("b", unique_key="two")
    revision = plan_edits([put("a", unique_key="two"), put("b", unique_key="one")], *stored)
    assert [(made.id, made.unique_key) for made in revision.puts] == [("a", "two"), ("b", "one")]


def test_expired_record_is_replaced_and_audited() -> None:
    for expires_us in (1, NOW):
        ended = record("a", 3, unique_key="place", expires_us=expires_us, n=1)
        revision = plan_edits([put("b", unique_key="place")], ended)
        assert revision.deletes == [("rule", "a", 3)]
        assert audit_log(revision) == [("crestgate", "expire", "rule:a"), ("alice", "create", "rule:b")]
        assert len(revision.results) == 1, "results are for the edits only"


def test_unexpired_record_is_not_replaced() -> None:
    with pytest.raises(ConflictError):
        plan_edits([put("b", unique_key="place")], record("a", unique_key="place", expires_us=NOW + 1))


def test_records_without_unique_key_never_conflict() -> None:
    assert len(plan_edits([put("b"), put("c")], record("a")).puts) == 2


def test_invalid_edit_prevents_the_whole_write() -> None:
    with pytest.raises(NotFoundError):
        plan_edits([put("a"), delete("b")])


def test_audit_omits_the_digest_of_a_key() -> None:
    stored = Record("key", "0a", 1, {"name": "ci", "digest": "secret"}, 10, 20, None, 30)
    (entry,) = plan_edits([Edit("key", "0a", {"name": "cd", "digest": "other"})], stored).audit
    assert (entry.before, entry.after) == ({"name": "ci"}, {"name": "cd"})
    (entry,) = plan_edits([Edit("key", "0a", None)], stored).audit
    assert (entry.before, entry.after) == ({"name": "ci"}, None)
    (entry,) = plan_expiry([stored], NOW).audit
    assert (entry.before, entry.after) == ({"name": "ci"}, None)
    (entry,) = plan_edits([put("a", digest="a field of a rule")]).audit
    assert entry.after == {"digest": "a field of a rule"}, "only for keys"


def test_expired_records_are_removed_by_crestgate() -> None:
    revision = plan_expiry([record("a", 3, n=1), record("b", 1)], NOW)
    assert revision.deletes == [("rule", "a", 3), ("rule", "b", 1)]
    assert audit_log(revision) == [("crestgate", "expire", "rule:a"), ("crestgate", "expire", "rule:b")]
    assert (revision.audit[0].at_us, revision.audit[0].before) == (NOW, {"n": 1})
