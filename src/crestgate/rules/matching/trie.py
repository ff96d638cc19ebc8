# mypyc: compile
"""Which patterns match a path: a trie of segments, walked along the path and never along the rules.

A node stands for the segments on the path to it. A literal child is found by its text, and beside it the child for any
one segment; what a pattern with a final `*` holds is met at each node on the way. So the cost grows with the path
(and with how many ways of wildcards lead along it), not with how many patterns there are.

A trie is immutable once in use. `TrieEditor` makes the next one: it copies the nodes on the path to what is changed,
each once, and shares all others with the trie before (copy on write).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Generic, TypeVar, final

from crestgate.rules.matching.patterns import ONE, Pattern

__all__ = ["Trie", "TrieEditor"]

T = TypeVar("T")
_numbers: Iterator[int] = count(1)


@final
class Node(Generic[T]):
    """The end of some segments. `owner` is the edit that made it, and that may still change it."""

    __slots__ = ("below", "children", "here", "one", "owner")

    def __init__(self, owner: int) -> None:
        self.owner = owner
        self.children: dict[str, Node[T]] = {}
        self.one: Node[T] | None = None
        self.here: T | None = None
        """Of the pattern that ends here."""
        self.below: T | None = None
        """Of the pattern that ends here with a `*`: for this path and all below it."""

    def copied(self, owner: int) -> Node[T]:
        copy: Node[T] = Node(owner)
        copy.children = dict(self.children)
        copy.one = self.one
        copy.here = self.here
        copy.below = self.below
        return copy

    def empty(self) -> bool:
        return not self.children and self.one is None and self.here is None and self.below is None


@final
class Trie(Generic[T]):
    """What each of the patterns holds, found by path."""

    def __init__(self, root: Node[T] | None = None) -> None:
        self.root: Node[T] = root if root is not None else Node(0)

    def matches(self, path: str) -> list[T]:
        """What the patterns that match a path hold. The path is a normalised one, and begins with a `/`."""
        found: list[T] = []
        segments = path[1:].split("/") if len(path) > 1 else []
        level: list[Node[T]] = [self.root]
        for segment in segments:
            following: list[Node[T]] = []
            for node in level:
                if node.below is not None:
                    found.append(node.below)
                child = node.children.get(segment)
                if child is not None:
                    following.append(child)
                if node.one is not None:
                    following.append(node.one)
            level = following
            if not level:
                return found
        for node in level:
            if node.below is not None:
                found.append(node.below)
            if node.here is not None:
                found.append(node.here)
        return found


@final
class TrieEditor(Generic[T]):
    """Changes to a trie, which stays as it is: `done` gives the one that has them."""

    def __init__(self, trie: Trie[T]) -> None:
        self.number = next(_numbers)
        self.root = self.own(trie.root)

    def get(self, pattern: Pattern) -> T | None:
        """What a pattern holds."""
        node: Node[T] | None = self.root
        for segment in pattern.segments or ():
            assert node is not None
            node = node.one if segment == ONE else node.children.get(segment)
            if node is None:
                return None
        assert node is not None
        return node.below if pattern.rest else node.here

    def put(self, pattern: Pattern, value: T | None) -> None:
        """Let a pattern hold something; None takes it away, and the nodes that nobody else needs."""
        self._put(self.root, pattern.segments or (), 0, pattern.rest, value)

    def _put(self, node: Node[T], segments: Sequence[str], depth: int, rest: bool, value: T | None) -> None:
        """Below a node that this edit owns."""
        if depth == len(segments):
            if rest:
                node.below = value
            else:
                node.here = value
            return
        segment = segments[depth]
        child = node.one if segment == ONE else node.children.get(segment)
        if child is None and value is None:
            return
        mine = Node(self.number) if child is None else self.own(child)
        self._put(mine, segments, depth + 1, rest, value)
        if segment == ONE:
            node.one = None if mine.empty() else mine
        elif mine.empty():
            node.children.pop(segment, None)
        else:
            node.children[segment] = mine

    def own(self, node: Node[T]) -> Node[T]:
        """The node, or its copy that this edit may change."""
        return node if node.owner == self.number else node.copied(self.number)

    def done(self) -> Trie[T]:
        return Trie(self.root)
