# mypyc: compile
"""Trie of path segments that finds the patterns that match a path.

A node is the end of the segments on the path to it. It has literal children by their text, one child for any segment,
and the value of the pattern with a final `*` that ends there. So the cost grows with the length of the path (and the
number of wildcard branches along it), not with the number of patterns.

A trie is immutable once in use. `TrieEditor` builds the next one: it copies the nodes on the path to a change, each
once, and shares all others with the previous trie (copy on write).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Generic, TypeVar, final

from crestgate.rules.matching.patterns import ANY_SEGMENT, Pattern

__all__ = ["Trie", "TrieEditor"]

T = TypeVar("T")
_numbers: Iterator[int] = count(1)


@final
class TrieNode(Generic[T]):
    """The end of some segments. `owner` is the edit that created it, and may still change it."""

    __slots__ = ("below", "children", "exact_value", "owner", "wildcard_child")

    def __init__(self, owner: int) -> None:
        self.owner = owner
        self.children: dict[str, TrieNode[T]] = {}
        self.wildcard_child: TrieNode[T] | None = None
        self.exact_value: T | None = None
        """Value of the pattern that ends here."""
        self.below: T | None = None
        """Value of the pattern that ends here with a `*`: for this path and all below it."""

    def copied(self, owner: int) -> TrieNode[T]:
        copy: TrieNode[T] = TrieNode(owner)
        copy.children = dict(self.children)
        copy.wildcard_child = self.wildcard_child
        copy.exact_value = self.exact_value
        copy.below = self.below
        return copy

    def empty(self) -> bool:
        return not self.children and self.wildcard_child is None and self.exact_value is None and self.below is None


@final
class Trie(Generic[T]):
    """The values of patterns, found by path."""

    def __init__(self, root: TrieNode[T] | None = None) -> None:
        self.root: TrieNode[T] = root if root is not None else TrieNode(0)

    def matches(self, path: str) -> list[T]:
        """The values of the patterns that match a path, which is normalised and begins with a `/`."""
        found: list[T] = []
        segments = path[1:].split("/") if len(path) > 1 else []
        level: list[TrieNode[T]] = [self.root]
        for segment in segments:
            next_level: list[TrieNode[T]] = []
            for node in level:
                if node.below is not None:
                    found.append(node.below)
                child = node.children.get(segment)
                if child is not None:
                    next_level.append(child)
                if node.wildcard_child is not None:
                    next_level.append(node.wildcard_child)
            level = next_level
            if not level:
                return found
        for node in level:
            if node.below is not None:
                found.append(node.below)
            if node.exact_value is not None:
                found.append(node.exact_value)
        return found


@final
class TrieEditor(Generic[T]):
    """Changes to a trie, which itself does not change: `done` returns the new one."""

    def __init__(self, trie: Trie[T]) -> None:
        self.number = next(_numbers)
        self.root = self.own(trie.root)

    def get(self, pattern: Pattern) -> T | None:
        """The value of a pattern."""
        node: TrieNode[T] | None = self.root
        for segment in pattern.segments or ():
            assert node is not None
            node = node.wildcard_child if segment == ANY_SEGMENT else node.children.get(segment)
            if node is None:
                return None
        assert node is not None
        return node.below if pattern.rest else node.exact_value

    def put(self, pattern: Pattern, value: T | None) -> None:
        """Set the value of a pattern; None removes it, and the nodes that are no longer needed."""
        self._put(self.root, pattern.segments or (), 0, pattern.rest, value)

    def _put(self, node: TrieNode[T], segments: Sequence[str], depth: int, rest: bool, value: T | None) -> None:
        """Set it below a node that this edit owns."""
        if depth == len(segments):
            if rest:
                node.below = value
            else:
                node.exact_value = value
            return
        segment = segments[depth]
        child = node.wildcard_child if segment == ANY_SEGMENT else node.children.get(segment)
        if child is None and value is None:
            return
        owned = TrieNode(self.number) if child is None else self.own(child)
        self._put(owned, segments, depth + 1, rest, value)
        if segment == ANY_SEGMENT:
            node.wildcard_child = None if owned.empty() else owned
        elif owned.empty():
            node.children.pop(segment, None)
        else:
            node.children[segment] = owned

    def own(self, node: TrieNode[T]) -> TrieNode[T]:
        """The node, or its copy that this edit may change."""
        return node if node.owner == self.number else node.copied(self.number)

    def done(self) -> Trie[T]:
        return Trie(self.root)
