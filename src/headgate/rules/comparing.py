"""How records, usually those of files, differ from what a repository keeps, and what it takes to write them there.

Rules are compared by what they mean, so one that was written without its defaults is the same. A policy's number is
the repository's to give: one that is there keeps its own, whatever place it has in a file, and a new one gets the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from headgate.rules.records import POLICY_IDS, last_number_of, record_of, rule_of
from headgate.rules.repositories.port import Edit, Kind, Lookup, Record
from headgate.rules.views.policies import policy_of

__all__ = ["Difference", "FieldChange", "all_records", "compare", "field_changes"]

_PAGE = 1000


class FieldChange(NamedTuple):
    """One field of a record that is to be another. What is not there is None."""

    name: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class Difference:
    """What it takes to make a repository say what some records say."""

    added: Sequence[Record]
    changed: Sequence[tuple[Record, Record]]
    """How each is, and how it is to be."""
    same: Sequence[Record]
    other: Sequence[Record]
    """Rules of the repository that are not among them. Tiers, plans and defaults are nobody's to miss, and keys
    are no business of files."""
    numbers: Edit | None = None
    """What writes down the number of the last policy, if new ones are among them."""

    def edits(self, *, prune: bool = False) -> list[Edit]:
        """What makes the repository say so, as long as nobody else writes first; with `prune`, without other rules."""
        edits = [_edit(record, 0) for record in self.added]
        edits += [_edit(new, old.version) for old, new in self.changed]
        if self.numbers is not None:
            edits.append(self.numbers)
        if prune:
            edits += [Edit(record.kind, record.id, None, record.version) for record in self.other]
        return edits


def compare(repository: Lookup, records: Iterable[Record]) -> Difference:
    """How these records differ from those of the repository."""
    wanted = list(records)
    kinds: set[Kind] = {"rule", *(record.kind for record in wanted)}
    kept = {(record.kind, record.id): record for kind in kinds for record in all_records(repository, kind)}
    counted = repository.get("default", POLICY_IDS)
    first = last = last_number_of(counted)
    added, changed, same = [], [], []
    for record in wanted:
        old = kept.pop((record.kind, record.id), None)
        new, last = _numbered(record, old, last)
        if old is None:
            added.append(new)
        elif _meaning(old) == _meaning(new):
            same.append(old)
        else:
            changed.append((old, new))
    other = [record for (kind, _), record in kept.items() if kind == "rule"]
    numbers = None
    if last > first:
        numbers = Edit("default", POLICY_IDS, {"last": last}, counted.version if counted is not None else 0)
    return Difference(added, changed, same, other, numbers)


def field_changes(old: Record, new: Record) -> list[FieldChange]:
    """What is different in two records of one name, field by field."""
    before, after = _meaning(old), _meaning(new)
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
    return Edit(record.kind, record.id, record.body, expected, record.claim, record.expires_us)


def _meaning(record: Record) -> Mapping[str, Any]:
    return rule_of(record).body() if record.kind == "rule" else record.body


def _numbered(record: Record, old: Record | None, last: int) -> tuple[Record, int]:
    """The record with the number that it has, or is to have, if it is a policy's; and the last number given."""
    rule = rule_of(record) if record.kind == "rule" else None
    if rule is None or rule.origin is None or policy_of(rule) is None:
        return record, last
    kept = policy_of(rule_of(old)) if old is not None else None
    if kept is None:
        last += 1
    return record_of(replace(rule, origin={**rule.origin, "id": last if kept is None else kept.id})), last
