"""What a write may do, whoever keeps the rules."""

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


def planned(edits: Sequence[Edit], *kept: Record, remembered: dict[str, int] | None = None) -> WritePlan:
    """What comes of the edits, in a place that keeps these records and remembers those that were deleted."""
    found = {(one.kind, one.id): StoredState(one.version, one) for one in kept}
    found |= {("rule", name): StoredState(version, None) for name, version in (remembered or {}).items()}
    holders: dict[str, list[Record]] = {}
    for one in kept:
        if one.unique_key is not None:
            holders.setdefault(one.unique_key, []).append(one)
    return plan_write(edits, found, holders, NOW, ALICE)


def audit_log(revision: WritePlan) -> list[tuple[str, str, str]]:
    return [(entry.actor, entry.action, entry.subject) for entry in revision.audit]


def test_a_new_record() -> None:
    revision = planned([Edit("rule", "a", {"n": 1}, None, "claim", 99)])
    made = Record("rule", "a", 1, {"n": 1}, NOW, NOW, "claim", 99)
    assert revision.puts == revision.results == [made]
    (entry,) = revision.audit
    assert (entry.at_us, entry.actor, entry.address, entry.action) == (NOW, "alice", "192.0.2.1", "create")
    assert (entry.subject, entry.before, entry.after) == ("rule:a", None, {"n": 1})


def test_a_change_keeps_when_it_was_made() -> None:
    revision = planned([put("a", n=2)], record("a", 4, n=1))
    (changed,) = revision.puts
    assert (changed.version, changed.created_us, changed.updated_us) == (5, 10, NOW)
    (entry,) = revision.audit
    assert (entry.action, entry.before, entry.after) == ("update", {"n": 1}, {"n": 2})


def test_a_deletion() -> None:
    revision = planned([delete("a")], record("a", 4, n=1))
    assert revision.deletes == [("rule", "a", 4)]
    assert (revision.puts, revision.results) == ([], [None])
    (entry,) = revision.audit
    assert (entry.action, entry.before, entry.after) == ("delete", {"n": 1}, None)


def test_versions_go_on_after_a_deletion() -> None:
    (made,) = planned([put("a", expected=0)], remembered={"a": 4}).puts
    assert (made.version, made.created_us) == (5, NOW)


def test_the_answers_are_in_the_order_of_the_edits() -> None:
    revision = planned([delete("b"), put("a"), put("c")], record("b"), record("c", 2))
    assert [answer and (answer.id, answer.version) for answer in revision.results] == [None, ("a", 1), ("c", 3)]


def test_nothing_to_write_is_nothing() -> None:
    assert planned([]) == WritePlan()


@pytest.mark.parametrize(
    ("edit", "kept", "kind", "words"),
    [
        (delete("a"), [], NotFoundError, "there is no rule 'a'"),
        (delete("a", 2), [], NotFoundError, "there is no rule 'a'"),
        (put("a", expected=1), [], NotFoundError, "there is no rule 'a'"),
        (
            put("a", expected=0),
            [record("a")],
            ConflictError,
            "rule 'a' exists already: change it, or take another name",
        ),
        (
            put("a", expected=2),
            [record("a", 3)],
            StaleVersionError,
            "rule 'a' was changed by somebody else: version 2 was read, and it is at 3 now; read it again",
        ),
        (delete("a", 2), [record("a", 3)], StaleVersionError, "version 2 was read, and it is at 3 now"),
        (put("a", expected=4), [record("a", 3)], StaleVersionError, "version 4 was read, and it is at 3 now"),
    ],
    ids=str,
)
def test_expectations(edit: Edit, kept: list[Record], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind) as caught:
        planned([edit], *kept)
    assert words in str(caught.value)


def test_the_expected_version_is_the_last() -> None:
    assert planned([put("a", expected=3)], record("a", 3)).puts[0].version == 4
    assert planned([delete("a", 3)], record("a", 3)).deletes == [("rule", "a", 3)]
    assert planned([put("a", expected=0)]).puts[0].version == 1


def test_the_same_id_of_another_kind_is_another_record() -> None:
    revision = planned([Edit("tier", "a", {"tier": "gold"}, 0), put("b")], record("a"))
    assert [made.version for made in revision.puts] == [1, 1]


def test_one_record_is_written_once() -> None:
    for edits in ([put("a"), put("a")], [put("a"), delete("a")]):
        with pytest.raises(ConflictError, match="a write names one record twice: write each once"):
            planned(edits, record("a"))


# -- claims ---------------------------------------------------------------------------------------------------------


def test_a_claim_is_had_by_one() -> None:
    with pytest.raises(ConflictError) as caught:
        planned([put("b", unique_key="place")], record("a", unique_key="place"))
    words = str(caught.value)
    assert words.startswith("rule 'b' would be as specific as rule 'a' in the same slot (dimension, endpoint_pattern")
    assert words.endswith("change that one, or give one of them an identifier, a tier or an expires_at")


def test_a_claim_is_kept_when_it_is_written_anew() -> None:
    assert planned([put("a", unique_key="place")], record("a", unique_key="place")).puts[0].version == 2


def test_two_edits_of_one_write_cannot_have_one_claim() -> None:
    with pytest.raises(ConflictError, match="rule 'b' would be as specific as rule 'a'"):
        planned([put("a", unique_key="place"), put("b", unique_key="place")])
    with pytest.raises(ConflictError, match="rule 'b' would be as specific as rule 'a'"):
        planned([put("a", unique_key="place"), put("b", unique_key="place")], record("b", unique_key="place"))


def test_a_claim_that_is_given_up_in_the_same_write_is_free() -> None:
    kept = record("a", unique_key="place")
    for giving_up in (delete("a"), put("a"), put("a", unique_key="other")):
        for edits in ([giving_up, put("b", unique_key="place")], [put("b", unique_key="place"), giving_up]):
            assert [made.id for made in planned(edits, kept).puts if made.unique_key == "place"] == ["b"]


def test_two_can_swap_their_claims() -> None:
    kept = record("a", unique_key="one"), record("b", unique_key="two")
    revision = planned([put("a", unique_key="two"), put("b", unique_key="one")], *kept)
    assert [(made.id, made.unique_key) for made in revision.puts] == [("a", "two"), ("b", "one")]


def test_what_has_ended_gives_way_and_that_is_told() -> None:
    for expires_us in (1, NOW):
        ended = record("a", 3, unique_key="place", expires_us=expires_us, n=1)
        revision = planned([put("b", unique_key="place")], ended)
        assert revision.deletes == [("rule", "a", 3)]
        assert audit_log(revision) == [("crestgate", "expire", "rule:a"), ("alice", "create", "rule:b")]
        assert len(revision.results) == 1, "the answers are for the edits alone"


def test_what_has_not_ended_does_not() -> None:
    with pytest.raises(ConflictError):
        planned([put("b", unique_key="place")], record("a", unique_key="place", expires_us=NOW + 1))


def test_no_claim_is_nobodys() -> None:
    assert len(planned([put("b"), put("c")], record("a")).puts) == 2


def test_a_mistake_writes_nothing_of_the_others() -> None:
    with pytest.raises(NotFoundError):
        planned([put("a"), delete("b")])


def test_the_digest_of_a_key_is_not_told() -> None:
    kept = Record("key", "0a", 1, {"name": "ci", "digest": "secret"}, 10, 20, None, 30)
    (entry,) = planned([Edit("key", "0a", {"name": "cd", "digest": "other"})], kept).audit
    assert (entry.before, entry.after) == ({"name": "ci"}, {"name": "cd"})
    (entry,) = planned([Edit("key", "0a", None)], kept).audit
    assert (entry.before, entry.after) == ({"name": "ci"}, None)
    (entry,) = plan_expiry([kept], NOW).audit
    assert (entry.before, entry.after) == ({"name": "ci"}, None)
    (entry,) = planned([put("a", digest="a field of a rule")]).audit
    assert entry.after == {"digest": "a field of a rule"}, "of keys alone"


def test_what_has_ended_is_removed_in_the_name_of_crestgate() -> None:
    revision = plan_expiry([record("a", 3, n=1), record("b", 1)], NOW)
    assert revision.deletes == [("rule", "a", 3), ("rule", "b", 1)]
    assert audit_log(revision) == [("crestgate", "expire", "rule:a"), ("crestgate", "expire", "rule:b")]
    assert (revision.audit[0].at_us, revision.audit[0].before) == (NOW, {"n": 1})
