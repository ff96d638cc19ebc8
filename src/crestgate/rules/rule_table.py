# mypyc: compile
"""Rules of one endpoint pattern, indexed by subject, and cached results of resolving requests."""

from __future__ import annotations

from typing import final

from crestgate.rules.compiled_rule import CompiledRule
from crestgate.rules.composites import CompositeDimension, CompositeIndex
from crestgate.rules.rule import ANY

__all__ = ["CachedMatch", "ExactComposite", "MatchShape", "RequestShape", "RuleTable"]

RequestShape = tuple[str | None, str | None, str, object]
"""Cache key, valid while no rule is for an exact caller: path, method, tier, and a bit for each dimension that the
request has a value of, or a tuple of these bits and the names of its attributes that rules use."""
ExactComposite = tuple[dict[str, list[CompiledRule]], CompositeDimension]
"""Rules with exact parts of a composite dimension, by subject."""


@final
class RuleTable:
    """The rules of one pattern. Immutable once in use; `owner` has the same meaning as in the trie."""

    __slots__ = ("_index", "exact", "exact_parts", "masks", "owner", "shared")

    def __init__(self, owner: int) -> None:
        self.owner = owner
        self.exact: dict[str, list[CompiledRule]] = {}
        """By subject."""
        self.exact_parts: dict[str, list[CompiledRule]] = {}
        """Rules of composite dimensions with exact parts, by subject. Apart: a subject of one dimension may look like
        that of several."""
        self.shared: dict[str, dict[str, list[CompiledRule]]] = {}
        """By dimension, and then by tier (`*` for all)."""
        self.masks: dict[str, dict[int, int]] = {}
        """How many rules have each mask of exact parts, by composite dimension."""
        self._index: CompositeIndex | None = None

    def copied(self, owner: int) -> RuleTable:
        copy = RuleTable(owner)
        copy.exact = dict(self.exact)
        copy.exact_parts = dict(self.exact_parts)
        copy.masks = {dimension: dict(counts) for dimension, counts in self.masks.items()}
        copy.shared = {dimension: dict(by_tier) for dimension, by_tier in self.shared.items()}
        return copy

    def add(self, entry: CompiledRule) -> None:
        index, name = self.index(entry)
        index[name] = [*index.get(name, ()), entry]
        if entry.parts is not None:
            self._count(entry, 1)

    def remove(self, rule_id: str, entry: CompiledRule) -> None:
        if entry.parts is not None:
            self._count(entry, -1)
        index, name = self.index(entry)
        left = [other for other in index[name] if other.rule.rule_id != rule_id]
        if left:
            index[name] = left
            return
        del index[name]
        if entry.subject is None and not index:
            del self.shared[entry.dimension]

    def index(self, entry: CompiledRule) -> tuple[dict[str, list[CompiledRule]], str]:
        """The index that a rule is in, and its key there."""
        if entry.subject is not None:
            return (self.exact if entry.parts is None else self.exact_parts), entry.subject
        return self.shared.setdefault(entry.dimension, {}), entry.tier or ANY

    def _count(self, entry: CompiledRule, change: int) -> None:
        """Count the masks of composite dimensions: a mask that no rule has is not tried."""
        self._index = None
        counts = self.masks.setdefault(entry.dimension, {})
        counts[entry.mask] = counts.get(entry.mask, 0) + change
        if not counts[entry.mask]:
            del counts[entry.mask]
        if not counts:
            del self.masks[entry.dimension]

    def composites(self, keys: dict[str, str]) -> list[CompositeDimension]:
        """The composite dimensions of these rules that a request with these subjects has a value of."""
        index = self._index
        if index is None:  # a table does not change once it is in use
            index = self._index = CompositeIndex(self.masks)
        return index.matches(keys)

    def empty(self) -> bool:
        return not self.exact and not self.exact_parts and not self.shared


MatchShape = tuple[tuple[RuleTable, ...], bool, str | None, str, object]
"""The same with the tables of the patterns that match the path, and whether there is none, instead of the path."""


@final
class CachedMatch:
    """The rules that apply to requests of one shape, unless a rule is for one of their exact subjects."""

    __slots__ = ("composites", "exact", "path", "winners")

    def __init__(
        self,
        path: str | None,
        exact: list[dict[str, list[CompiledRule]]],
        composites: list[ExactComposite],
        winners: list[CompiledRule],
    ) -> None:
        self.path = path
        """Normalised; of a match that is found by its MatchShape, that of the first such request."""
        self.exact = exact
        """Rules for exact subjects: the match is only valid for requests without any of these subjects."""
        self.composites = composites
        """The same, for rules with exact parts of a composite dimension."""
        self.winners = winners

    def holds_for(self, keys: dict[str, str]) -> bool:
        """Whether none of these subjects has a rule of its own."""
        for table in self.exact:
            for subject in keys.values():
                if subject in table:
                    return False
        return not self.composites or not self._has_exact_parts(keys)

    def _has_exact_parts(self, keys: dict[str, str]) -> bool:
        for rules, composite in self.composites:
            for subject in composite.subjects(keys):
                if subject in rules:
                    return True
        return False
