"""A domain's descriptors as a tree: one node for each descriptor of the YAML, one level for each entry of a request.

What belongs to a key is together in a branch, so finding the next node costs two look-ups and the wildcards that are
written for that key, however many descriptors a level has. Keys and values are compared as pairs and never joined.

All that can be known beforehand is in the node: its part of the counter's key, and its share of the label.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

from headgate.envoy.keys import domain_part, entry_part, escaped_value, is_secret, secret_part, shown_value
from headgate.envoy.rate_limit import DescriptorLimit

__all__ = ["WILD", "Branch", "Node", "Wildcard", "add_node", "domain_node", "path_of", "runtime_label"]

WILD: Final = "*"
MOST_LABEL: Final = 200
"""Characters of a label that has something in it that a request said."""


@final
class Node:
    """A descriptor; or a domain, which has no parent and no limit."""

    __slots__ = ("branches", "detailed", "fixed", "limit", "parent", "part", "runtime", "says_value", "secret", "shown")

    def __init__(self, shown: str, part: str, fixed: bool, parent: Node | None) -> None:
        self.shown = shown
        """Its share of a label: `key_value`, `key`, or the domain."""
        self.part = part
        """Of the counter's key. All of it if `fixed`, else the value that the request has comes behind it."""
        self.fixed = fixed
        self.secret = False
        """Whether a digest stands in the value's place."""
        self.parent = parent
        self.branches: dict[str, Branch] = {}
        self.limit: DescriptorLimit | None = None
        self.says_value = False
        """Labels have the request's value here."""
        self.detailed = False
        """Labels have all values of the request, if this is where it ends."""
        self.runtime = False
        """Whether the label of a request that ends here is not that of the limit."""


@final
class Wildcard:
    """A value with `*` in it: each stands for any run of characters, also for none."""

    __slots__ = ("first", "last", "least", "middles", "node")

    def __init__(self, pattern: str, node: Node) -> None:
        parts = pattern.split(WILD)
        self.first = parts[0]
        self.last = parts[-1]
        self.middles = [part for part in parts[1:-1] if part]
        self.least = sum([len(part) for part in parts])
        self.node = node

    def matches(self, value: str) -> bool:
        if len(value) < self.least or not value.startswith(self.first) or not value.endswith(self.last):
            return False
        at = len(self.first)
        end = len(value) - len(self.last)
        for middle in self.middles:
            at = value.find(middle, at, end)
            if at < 0:
                return False
            at += len(middle)
        return True


@final
class Branch:
    """What a level has for one key."""

    __slots__ = ("bare", "exact", "wild")

    def __init__(self) -> None:
        self.exact: dict[str, Node] = {}
        """By the value as it is written, also those with wildcards: a request may say just that."""
        self.wild: list[Wildcard] = []
        """In the order of the file."""
        self.bare: Node | None = None

    def otherwise(self, value: str) -> Node | None:
        """The node for a value that none is written for."""
        for wildcard in self.wild:
            if wildcard.matches(value):
                return wildcard.node
        return self.bare

    def nodes(self) -> list[Node]:
        return [*self.exact.values(), *([] if self.bare is None else [self.bare])]


def domain_node(domain: str) -> Node:
    return Node(domain, domain_part(domain), True, None)


def add_node(parent: Node, key: str, value: str, shares: bool, says_value: bool, detailed: bool) -> Node:
    """Make a descriptor's node and put it in its place. An empty value is none."""
    wild = WILD in value
    if not value:
        node = Node(key, entry_part(key, False), False, parent)
    elif not wild:
        part = secret_part(value) if is_secret(key) else escaped_value(value)
        node = Node(f"{key}_{shown_value(key, value)}", entry_part(key, False) + part, True, parent)
    elif shares:
        node = Node(f"{key}_{value}", entry_part(key, True) + escaped_value(value), True, parent)
    else:
        node = Node(f"{key}_{value}", entry_part(key, False), False, parent)
    node.secret = is_secret(key)
    node.says_value = says_value and not node.fixed
    node.detailed = detailed
    node.runtime = _is_runtime(node)
    branch = parent.branches.setdefault(key, Branch())
    if not value:
        branch.bare = node
    else:
        branch.exact[value] = node
        if wild:
            branch.wild.append(Wildcard(value, node))
    return node


def _is_runtime(node: Node) -> bool:
    above: Node | None = node
    while above is not None:
        if above.says_value or (node.detailed and not above.fixed):
            return True
        above = above.parent
    return False


def path_of(node: Node) -> str:
    """The label that a limit has here."""
    return node.shown if node.parent is None else f"{path_of(node.parent)}.{node.shown}"


def runtime_label(node: Node, entries: Sequence[tuple[str, str]]) -> str:
    """The label of a request that ended at this node, with the values that are wanted in it."""
    shown: list[str] = []
    at: Node | None = node
    for key, value in reversed(entries):
        if at is None:
            break
        if at.fixed or not (node.detailed or at.says_value):
            shown.append(at.shown)
        else:
            shown.append(f"{key}_{shown_value(key, value)}" if value else key)
        at = at.parent
    if at is not None:
        shown.append(at.shown)
    shown.reverse()
    return ".".join(shown)[:MOST_LABEL]
