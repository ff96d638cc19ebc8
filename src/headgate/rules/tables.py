"""The rules of one pattern by whom they are for, and what was found in several such tables before."""

from __future__ import annotations

from typing import final

from headgate.rules.entry import Entry
from headgate.rules.rule import ANY

__all__ = ["Known", "Shape", "Table"]

Shape = tuple[str | None, str | None, str, bool, bool, bool, bool, bool]
"""What the winners depend on, as long as no rule is for one exact caller: path, method and tier, and of user, API key,
client, address and key whether each is missing."""


@final
class Table:
    """The rules of one pattern. Never changes once it is in use; `owner` as in the trie."""

    __slots__ = ("exact", "owner", "shared")

    def __init__(self, owner: int) -> None:
        self.owner = owner
        self.exact: dict[str, list[Entry]] = {}
        """By subject."""
        self.shared: dict[str, dict[str, list[Entry]]] = {}
        """By dimension, and then by tier (`*` for all)."""

    def copied(self, owner: int) -> Table:
        copy = Table(owner)
        copy.exact = dict(self.exact)
        copy.shared = {dimension: dict(by_tier) for dimension, by_tier in self.shared.items()}
        return copy

    def add(self, entry: Entry) -> None:
        shelf, name = self.shelf(entry)
        shelf[name] = [*shelf.get(name, ()), entry]

    def remove(self, rule_id: str, entry: Entry) -> None:
        shelf, name = self.shelf(entry)
        left = [other for other in shelf[name] if other.rule.rule_id != rule_id]
        if left:
            shelf[name] = left
            return
        del shelf[name]
        if entry.subject is None and not shelf:
            del self.shared[entry.dimension]

    def shelf(self, entry: Entry) -> tuple[dict[str, list[Entry]], str]:
        if entry.subject is not None:
            return self.exact, entry.subject
        return self.shared.setdefault(entry.dimension, {}), entry.tier or ANY

    def empty(self) -> bool:
        return not self.exact and not self.shared


@final
class Known:
    """What was found for requests of one shape: the winners, unless one of the callers has a rule of its own."""

    __slots__ = ("exact", "path", "winners")

    def __init__(self, path: str | None, exact: list[dict[str, list[Entry]]], winners: list[Entry]) -> None:
        self.path = path
        """Normalised."""
        self.exact = exact
        """The rules for exact subjects that are to be looked at."""
        self.winners = winners

    def holds_for(self, keys: dict[str, str]) -> bool:
        """Whether none of these subjects has a rule of its own."""
        for table in self.exact:
            for subject in keys.values():
                if subject in table:
                    return False
        return True
