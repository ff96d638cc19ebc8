# mypyc: compile
"""Composite dimensions: the subjects of several dimensions together, and the index that finds the lists of a request.

The subject of a composite dimension is that of each part, joined by `|`: `model:large|org:acme`. `|` and `%` are
escaped in each, so that different parts never make the same subject. A rule can have a `*` for a part:
`model:*|org:acme`; a request whose value is `*` has `%2A` there, and is not mistaken for it.

A rule with exact parts is found by its subject, as rules for one identifier are. For that, the subject of a request is
made once for each *mask*: which parts are exact (the first part is the highest bit). Only lists and masks that rules
have are tried. A table can have any number of lists, so they are in a tree by the names of their parts, in the order of
`dimension_order`: only nodes whose names the request has are visited.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import final

from crestgate.core.dimensions import dimension_order

__all__ = ["CompositeDimension", "CompositeIndex", "composite_subject", "exact_mask", "part_subject"]


@final
class CompositeDimension:
    """One list of dimensions, in the order of a slot, and the masks of its rules in one table."""

    __slots__ = ("dimension", "masks", "names")

    def __init__(self, dimension: str, masks: Iterable[int]) -> None:
        self.dimension = dimension
        self.names = dimension.split(",")
        self.masks = [mask for mask in masks if mask]
        """Without that of rules for all subjects."""

    def subjects(self, keys: Mapping[str, str]) -> list[str]:
        """The subjects of a request by which rules with exact parts are found. It has a value of each part."""
        exact = [part_subject(name, keys[name]) for name in self.names]
        return [composite_subject(self.names, exact, mask) for mask in self.masks]


@final
class _Node:
    __slots__ = ("children", "found")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.found: CompositeDimension | None = None


@final
class CompositeIndex:
    """The composite dimensions of one table."""

    __slots__ = ("root",)

    def __init__(self, masks: Mapping[str, Iterable[int]]) -> None:
        """`masks` are those of the rules, by dimension."""
        self.root = _Node()
        for dimension, given in masks.items():
            one = CompositeDimension(dimension, given)
            node = self.root
            for name in one.names:
                child = node.children.get(name)
                if child is None:
                    child = node.children[name] = _Node()
                node = child
            node.found = one

    def matches(self, keys: Mapping[str, str]) -> list[CompositeDimension]:
        """Those of which a request with these subjects has every part."""
        found: list[CompositeDimension] = []
        _collect(self.root, sorted(keys, key=dimension_order), 0, found)
        return found


def _collect(node: _Node, names: Sequence[str], start: int, found: list[CompositeDimension]) -> None:
    if node.found is not None:
        found.append(node.found)
    if not node.children:
        return
    for position in range(start, len(names)):
        child = node.children.get(names[position])
        if child is not None:
            _collect(child, names, position + 1, found)


def part_subject(name: str, subject: str) -> str:
    """The subject of one dimension as part of a composite one.

    >>> part_subject("org", "org:a|b"), part_subject("org", "org:*")
    ('org:a%7Cb', 'org:%2A')
    """
    if "%" in subject or "|" in subject:
        return subject.replace("%", "%25").replace("|", "%7C")
    return f"{name}:%2A" if subject == f"{name}:*" else subject


def composite_subject(names: Sequence[str], parts: Sequence[str], mask: int) -> str:
    """The subject with the parts of this mask, and `*` for the others.

    >>> composite_subject(["model", "org"], ["model:large", "org:acme"], 0b01)
    'model:*|org:acme'
    """
    bit = 1 << len(names)
    joined: list[str] = []
    for position in range(len(names)):
        bit >>= 1
        joined.append(parts[position] if mask & bit else f"{names[position]}:*")
    return "|".join(joined)


def exact_mask(identifiers: Iterable[str]) -> int:
    """Which identifiers of a rule are exact: a bit each, the first one the highest.

    >>> bin(exact_mask(["acme", "*", "7"]))
    '0b101'
    """
    mask = 0
    for identifier in identifiers:
        mask = mask << 1 | (identifier != "*")
    return mask
