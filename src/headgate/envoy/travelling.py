"""Descriptors on their way to another process: settings are sent to every worker, and what is compiled cannot be.

So the tree is taken apart into rows of plain values, one for each descriptor behind the one it is below, and put
together again on the other side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from headgate.core.algorithms import build
from headgate.core.limit import Limit
from headgate.envoy.limits import Domains
from headgate.envoy.rate_limit import DescriptorLimit
from headgate.envoy.tree import WILD, Node, add_node, domain_node

__all__ = ["Row", "packed", "unpacked"]

Steps = tuple[Limit, str, str]
"""What an algorithm is built from: its limit, the counter's name, the label."""
Row = tuple[int, str, str, bool, bool, bool, DescriptorLimit | None, Steps | None]
"""The row that it is below (-1 for a domain, whose name stands for its key), key, value, whether all that match share a
counter, whether labels have its value, or all of them, and its limit without and with what is compiled of it."""


def packed(domains: Domains) -> list[Row]:
    """A reading of the files as rows."""
    rows: list[Row] = []
    for domain, node in domains._roots.items():
        rows.append((-1, domain, "", False, False, False, None, None))
        _pack(node, rows)
    return rows


def _pack(parent: Node, rows: list[Row]) -> None:
    above = len(rows) - 1
    for key, branch in parent.branches.items():
        found = list(branch.exact.items())
        if branch.bare is not None:
            found.append(("", branch.bare))
        for value, node in found:
            limit, algorithm = node.limit, None if node.limit is None else node.limit.algorithm
            steps = None if algorithm is None else (algorithm.limit, algorithm.name, algorithm.label)
            plain = None if limit is None else replace(limit, algorithm=None)
            shares = WILD in value and node.fixed
            rows.append((above, key, value, shares, node.says_value, node.detailed, plain, steps))
            _pack(node, rows)


def unpacked(rows: Sequence[Row]) -> Domains:
    """The same reading again."""
    roots: dict[str, Node] = {}
    nodes: list[Node] = []
    for above, key, value, shares, says_value, detailed, limit, steps in rows:
        if above < 0:
            node = roots[key] = domain_node(key)
        else:
            node = add_node(nodes[above], key, value, shares, says_value, detailed)
        if limit is not None:
            node.limit = limit if steps is None else replace(limit, algorithm=build(*steps))
        nodes.append(node)
    return Domains(roots)
