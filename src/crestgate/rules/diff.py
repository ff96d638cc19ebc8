"""Diff between records, usually those of files, and a repository, and the edits that apply it.

Rules are compared with their defaults filled in. A policy's number is assigned by the repository: an existing policy
keeps its own, wherever it is in a file, and a new one gets the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from crestgate.rules.compat.policies import policy_of
from crestgate.rules.port import Edit, Kind, Lookup, Record
from crestgate.rules.records import POLICY_IDS, last_number_of, record_of, rule_of

__all__ = ["Difference", "FieldChange", "all_records", "compare", "field_changes"]

_PAGE = 1000


class FieldChange(NamedTuple):
    """One changed field of a record; None where it is absent."""

    name: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class Difference:
    """The changes that make a repository equal to some records."""

    added: Sequence[Record]
    changed: Sequence[tuple[Record, Record]]
    """Pairs of before and after."""
    same: Sequence[Record]
    other: Sequence[Record]
    """Rules that only the repository has. Its other tiers, plans, defaults and keys are not changed."""
    numbers: Edit | None = None
    """The edit that stores the last policy number, if policies were added."""

    def edits(self, *, prune: bool = False) -> list[Edit]:
        """The edits, which fail after a concurrent write; with `prune`, other rules are deleted."""
        edits = [_edit(record, 0) for record in self.added]
        edits += [_edit(new, old.version) for old, new in self.changed]
        if self.numbers is not None:
            edits.append(self.numbers)
        if prune:
            edits += [Edit(record.kind, record.id, None, record.version) for record in self.other]
        return edits


def compare(repository: Lookup, records: Iterable[Record]) -> Difference:
    """How these records differ from those of the repository."""
    new_records = list(records)
    kinds: set[Kind] = {"rule", *(record.kind for record in new_records)}
    stored = {(record.kind, record.id): record for kind in kinds for record in all_records(repository, kind)}
    counted = repository.get("default", POLICY_IDS)
    first = last = last_number_of(counted)
    added, changed, same = [], [], []
    for record in new_records:
        old = stored.pop((record.kind, record.id), None)
        new, last = _numbered(record, old, last)
        if old is None:
            added.append(new)
        elif _normalised(old) == _normalised(new):
            same.append(old)
        else:
            changed.append((old, new))
    other = [record for (kind, _), record in stored.items() if kind == "rule"]
    numbers = None
    if last > first:
        numbers = Edit("default", POLICY_IDS, {"last": last}, counted.version if counted is not None else 0)
    return Difference(added, changed, same, other, numbers)


def field_changes(old: Record, new: Record) -> list[FieldChange]:
    """The fields that differ in two records of one name."""
    before, after = _normalised(old), _normalised(new)
    return [
        FieldChange(name, before.get(name), after.get(name))
        for name in dict.fromkeys((*before, *after))
        if before.get(name) != after.get(name)
    ]


def all_records(repository: Lookup, kind: Kind, prefix: str = "") -> Iterator[Record]:
    """Every record of a kind, page by page."""
    after = ""
    while page := repository.list(kind, prefix=prefix, after=after, limit=_PAGE):
        yield from page
        after = page[-1].id


def _edit(record: Record, expected: int) -> Edit:
    return Edit(record.kind, record.id, record.body, expected, record.unique_key, record.expires_us)


def _normalised(record: Record) -> Mapping[str, Any]:
    return rule_of(record).body() if record.kind == "rule" else record.body


def _numbered(record: Record, old: Record | None, last: int) -> tuple[Record, int]:
    """The record, with its existing or new number if it is a policy; and the last number assigned."""
    rule = rule_of(record) if record.kind == "rule" else None
    if rule is None or rule.origin is None or policy_of(rule) is None:
        return record, last
    stored = policy_of(rule_of(old)) if old is not None else None
    if stored is None:
        last += 1
    return record_of(replace(rule, origin={**rule.origin, "id": last if stored is None else stored.id})), last
