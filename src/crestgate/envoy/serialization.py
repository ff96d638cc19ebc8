"""Pickles descriptors as rows of plain values: every worker gets the settings, and compiled classes have no pickle.

A row is a descriptor; those of its parents come before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from crestgate.core.algorithms import Algorithm, build
from crestgate.core.limit import Limit
from crestgate.envoy.descriptor_tree import WILD, DescriptorNode, add_node, domain_node
from crestgate.envoy.matcher import Domains
from crestgate.envoy.rate_limit import DescriptorLimit

__all__ = ["Row", "pack_domains", "unpack_domains"]

Steps = tuple[Limit, str, str]
"""The arguments of an algorithm: its limit, the counter's name, the label."""
Row = tuple[int, str, str, bool, bool, bool, DescriptorLimit | None, Steps | None]
"""The index of its parent (-1 for a domain, whose name is its key), key, value, whether all that match share a counter,
whether labels have its value, or all values, its limit, and the arguments of its algorithm."""


def pack_domains(domains: Domains) -> list[Row]:
    """Domains as rows."""
    rows: list[Row] = []
    for domain, node in domains.roots.items():
        rows.append((-1, domain, "", False, False, False, None, None))
        _pack(node, rows)
    return rows


def _pack(parent: DescriptorNode, rows: list[Row]) -> None:
    above = len(rows) - 1
    for key, branch in parent.branches.items():
        children = list(branch.exact.items())
        if branch.bare is not None:
            children.append(("", branch.bare))
        for value, node in children:
            limit, algorithm = node.limit, None if node.limit is None else node.limit.algorithm
            steps = None if algorithm is None else (algorithm.limit, algorithm.name, algorithm.label)
            plain = None if limit is None else replace(limit, algorithm=None)
            shares = WILD in value and node.fixed
            rows.append((above, key, value, shares, node.value_in_label, node.detailed, plain, steps))
            _pack(node, rows)


def unpack_domains(rows: Sequence[Row]) -> Domains:
    """Domains from their rows."""
    roots: dict[str, DescriptorNode] = {}
    nodes: list[DescriptorNode] = []
    for above, key, value, shares, value_in_label, detailed, limit, steps in rows:
        if above < 0:
            node = roots[key] = domain_node(key)
        else:
            node = add_node(nodes[above], key, value, shares, value_in_label, detailed)
        if limit is not None:
            node.limit = limit if steps is None else replace(limit, algorithm=_algorithm(steps, limit.headers))
        nodes.append(node)
    return Domains(roots)


def _algorithm(steps: Steps, headers: bool) -> Algorithm:
    algorithm = build(*steps)
    algorithm.in_headers = headers
    return algorithm
