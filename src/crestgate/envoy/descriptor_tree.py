# mypyc: compile
"""A domain's descriptors as a tree: one node for each descriptor of the YAML, one level for each entry of a request.

All values of a key are in one branch, so finding the next node costs two lookups and the wildcards of that key, however
many descriptors a level has. Keys and values are compared as pairs and never joined.

A node has its part of the counter's key and of the label, computed beforehand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

from crestgate.envoy.counter_keys import domain_part, entry_part, escaped_value, is_secret, secret_part, value_label
from crestgate.envoy.rate_limit import DescriptorLimit

__all__ = ["WILD", "Branch", "DescriptorNode", "Wildcard", "add_node", "domain_node", "path_of", "runtime_label"]

WILD: Final = "*"
MAX_LABEL: Final = 200
"""Characters of a label with values of a request."""


@final
class DescriptorNode:
    """A descriptor; or a domain, which has no parent and no limit."""

    __slots__ = (
        "branches",
        "detailed",
        "fixed",
        "label",
        "limit",
        "parent",
        "part",
        "runtime",
        "secret",
        "value_in_label",
    )

    def __init__(self, label: str, part: str, fixed: bool, parent: DescriptorNode | None) -> None:
        self.label = label
        """Its part of a label: `key_value`, `key`, or the domain."""
        self.part = part
        """Of the counter's key. All of it if `fixed`, else the value of the request follows it."""
        self.fixed = fixed
        self.secret = False
        """Whether keys have a digest of the value."""
        self.parent = parent
        self.branches: dict[str, Branch] = {}
        self.limit: DescriptorLimit | None = None
        self.value_in_label = False
        """Whether labels have the request's value here."""
        self.detailed = False
        """Whether labels have all values of a request that ends at this node."""
        self.runtime = False
        """Whether the label of a request that ends at this node differs from that of the limit."""


@final
class Wildcard:
    """A value with `*` in it: each matches any characters, or none."""

    __slots__ = ("first", "last", "middles", "min_length", "node")

    def __init__(self, pattern: str, node: DescriptorNode) -> None:
        parts = pattern.split(WILD)
        self.first = parts[0]
        self.last = parts[-1]
        self.middles = [part for part in parts[1:-1] if part]
        self.min_length = sum([len(part) for part in parts])
        self.node = node

    def matches(self, value: str) -> bool:
        if len(value) < self.min_length or not value.startswith(self.first) or not value.endswith(self.last):
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
    """The nodes of a level for one key."""

    __slots__ = ("bare", "exact", "wild")

    def __init__(self) -> None:
        self.exact: dict[str, DescriptorNode] = {}
        """By the value as written, including those with wildcards: a request may have exactly that value."""
        self.wild: list[Wildcard] = []
        """In the order of the file."""
        self.bare: DescriptorNode | None = None

    def find_other(self, value: str) -> DescriptorNode | None:
        """The node for a value that has no node of its own."""
        for wildcard in self.wild:
            if wildcard.matches(value):
                return wildcard.node
        return self.bare

    def nodes(self) -> list[DescriptorNode]:
        return [*self.exact.values(), *([] if self.bare is None else [self.bare])]


def domain_node(domain: str) -> DescriptorNode:
    return DescriptorNode(domain, domain_part(domain), True, None)


def add_node(
    parent: DescriptorNode, key: str, value: str, shares: bool, value_in_label: bool, detailed: bool
) -> DescriptorNode:
    """Add the node of a descriptor. An empty value means any value."""
    wild = WILD in value
    if not value:
        node = DescriptorNode(key, entry_part(key, False), False, parent)
    elif not wild:
        part = secret_part(value) if is_secret(key) else escaped_value(value)
        node = DescriptorNode(f"{key}_{value_label(key, value)}", entry_part(key, False) + part, True, parent)
    elif shares:
        node = DescriptorNode(f"{key}_{value}", entry_part(key, True) + escaped_value(value), True, parent)
    else:
        node = DescriptorNode(f"{key}_{value}", entry_part(key, False), False, parent)
    node.secret = is_secret(key)
    node.value_in_label = value_in_label and not node.fixed
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


def _is_runtime(node: DescriptorNode) -> bool:
    above: DescriptorNode | None = node
    while above is not None:
        if above.value_in_label or (node.detailed and not above.fixed):
            return True
        above = above.parent
    return False


def path_of(node: DescriptorNode) -> str:
    """The label of a limit at this node."""
    return node.label if node.parent is None else f"{path_of(node.parent)}.{node.label}"


def runtime_label(node: DescriptorNode, entries: Sequence[tuple[str, str]]) -> str:
    """The label of a request that ended at this node, with its values."""
    label: list[str] = []
    at: DescriptorNode | None = node
    for key, value in reversed(entries):
        if at is None:
            break
        if at.fixed or not (node.detailed or at.value_in_label):
            label.append(at.label)
        else:
            label.append(f"{key}_{value_label(key, value)}" if value else key)
        at = at.parent
    if at is not None:
        label.append(at.label)
    label.reverse()
    return ".".join(label)[:MAX_LABEL]
