# mypyc: compile
"""Rules of one endpoint pattern, indexed by subject, and cached results of resolving requests."""

from __future__ import annotations

from typing import final

from crestgate.rules.compiled_rule import CompiledRule
from crestgate.rules.rule import ANY

__all__ = ["CachedMatch", "MatchShape", "RequestShape", "RuleTable"]

RequestShape = tuple[str | None, str | None, str, int]
"""Cache key, valid while no rule is for an exact caller: path, method, tier, and a bit for each dimension that the
request has a value of."""


@final
class RuleTable:
    """The rules of one pattern. Immutable once in use; `owner` has the same meaning as in the trie."""

    __slots__ = ("exact", "owner", "shared")

    def __init__(self, owner: int) -> None:
        self.owner = owner
        self.exact: dict[str, list[CompiledRule]] = {}
        """By subject."""
        self.shared: dict[str, dict[str, list[CompiledRule]]] = {}
        """By dimension, and then by tier (`*` for all)."""

    def copied(self, owner: int) -> RuleTable:
        copy = RuleTable(owner)
        copy.exact = dict(self.exact)
        copy.shared = {dimension: dict(by_tier) for dimension, by_tier in self.shared.items()}
        return copy

    def add(self, entry: CompiledRule) -> None:
        index, name = self.index(entry)
        index[name] = [*index.get(name, ()), entry]

    def remove(self, rule_id: str, entry: CompiledRule) -> None:
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
            return self.exact, entry.subject
        return self.shared.setdefault(entry.dimension, {}), entry.tier or ANY

    def empty(self) -> bool:
        return not self.exact and not self.shared


MatchShape = tuple[tuple[RuleTable, ...], bool, str | None, str, int]
"""The same with the tables of the patterns that match the path, and whether there is none, instead of the path."""


@final
class CachedMatch:
    """The rules that apply to requests of one shape, unless a rule is for one of their exact subjects."""

    __slots__ = ("exact", "path", "winners")

    def __init__(
        self, path: str | None, exact: list[dict[str, list[CompiledRule]]], winners: list[CompiledRule]
    ) -> None:
        self.path = path
        """Normalised; of a match that is found by its MatchShape, that of the first such request."""
        self.exact = exact
        """Rules for exact subjects: the match is only valid for requests without any of these subjects."""
        self.winners = winners

    def holds_for(self, keys: dict[str, str]) -> bool:
        """Whether none of these subjects has a rule of its own."""
        for table in self.exact:
            for subject in keys.values():
                if subject in table:
                    return False
        return True
