# mypyc: compile
"""Matches the descriptors of requests to limits and counter keys. It runs for every descriptor, so it allocates only
its result.

A request's entries are matched one level at a time: the descriptor with exactly this key and value, else the first
matching wildcard, in the order of the file, else the one with this key and no value. There is no backtracking. A limit
applies if it is at the level where the entries end; limits above or below do not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, final

from crestgate.core.algorithms import ALGORITHMS, Algorithm
from crestgate.core.bounded_cache import BoundedCache
from crestgate.envoy.counter_keys import SHORT_KEY, entry_part, escaped_value, is_secret, secret_part, shorten_key
from crestgate.envoy.descriptor_tree import DescriptorNode, runtime_label
from crestgate.envoy.rate_limit import DEFAULT_ALGORITHM, MAX_REQUESTS, UNIT_NUMBERS, DescriptorLimit, compile_limit
from crestgate.errors import ConfigError, input_error

__all__ = ["DescriptorLimit", "Domains", "Match"]

BUCKETS: Final = frozenset([name for name, kind in ALGORITHMS.items() if kind.takes_burst])
MAX_OVERRIDES: Final = 1024
"""Cached overrides of requests. When there are more, all are compiled again."""


@final
class Match:
    """The limit and the counter of a descriptor."""

    __slots__ = ("key", "label", "limit")

    def __init__(self, limit: DescriptorLimit, key: str, label: str) -> None:
        self.limit = limit
        self.key = key
        """Of the counter: see counter_keys.py."""
        self.label = label
        """For metrics: the limit's own, unless the YAML adds values of the request."""


@final
class Domains:
    """All domains, immutable."""

    __slots__ = ("_overrides", "counts", "leased", "roots")

    def __init__(self, roots: Mapping[str, DescriptorNode]) -> None:
        self.roots: dict[str, DescriptorNode] = dict(roots)
        self._overrides: dict[tuple[str, str, int, int, bool | None], DescriptorLimit] = BoundedCache(MAX_OVERRIDES)
        self.counts: dict[str, int] = {domain: _limits_below(node) for domain, node in roots.items()}
        """How many limits each domain has."""
        self.leased: Algorithm | None = _first_leased(self.roots.values())
        """One of the limits that have leases, if there are any. Overrides of requests have none: they share counters
        with configured limits."""

    def knows(self, domain: str) -> bool:
        return domain in self.roots

    def match(self, domain: str, entries: Sequence[tuple[str, str]]) -> Match | None:
        """The limit of a descriptor, or None."""
        node = self.roots.get(domain)
        if node is None:
            return None
        key = node.part
        for name, value in entries:
            branch = node.branches.get(name)
            if branch is None:
                return None
            child = branch.exact.get(value)
            if child is None:
                child = branch.find_other(value)
                if child is None:
                    return None
            node = child
            if node.fixed:
                key += node.part
            elif node.secret:
                key += node.part + secret_part(value)
            elif "%" in value or "|" in value:
                key += node.part + escaped_value(value)
            else:
                key += node.part + value
        limit = node.limit
        if limit is None:
            return None
        if len(key) > SHORT_KEY:
            key = shorten_key(key)
        return Match(limit, key, runtime_label(node, entries) if node.runtime else limit.label)

    def override(
        self, domain: str, entries: Sequence[tuple[str, str]], requests_per_unit: int, unit: int
    ) -> Match | None:
        """The limit in a request, instead of the configured one: with the same counter if it is a window of the same
        period; buckets have a separate counter for each number. None for an unknown domain. ValueError for an invalid
        limit."""
        root = self.roots.get(domain)
        if root is None:
            return None
        if unit not in UNIT_NUMBERS:
            raise input_error(ValueError, "unit", f"must be one of 1 (SECOND) to 7 (WEEK), not {unit}")
        if not 0 <= requests_per_unit <= MAX_REQUESTS:
            raise input_error(ValueError, "requests_per_unit", f"must be a whole number from 0 to {MAX_REQUESTS}")
        configured = self.match(domain, entries)
        if configured is None:
            label = f"{root.label}.override"  # without the entries: else callers could create any label
            algorithm = DEFAULT_ALGORITHM
            beyond = None
            headers = True
            key = root.part + "".join([entry_part(key, False) + _part(key, value) for key, value in entries])
            if len(key) > SHORT_KEY:
                key = shorten_key(key)
        else:
            label = configured.limit.label
            used = configured.limit.algorithm
            algorithm = DEFAULT_ALGORITHM if used is None else used.limit.algorithm
            beyond = configured.limit.charge_beyond_limit
            headers = configured.limit.headers
            key = configured.key
        limit = self._overrides.get((label, algorithm, requests_per_unit, unit, beyond))
        if limit is None:
            limit = self._compile_override(label, algorithm, requests_per_unit, unit, beyond, headers)
        return Match(limit, key, label)

    def _compile_override(
        self, label: str, algorithm: str, requests_per_unit: int, unit: int, beyond: bool | None, headers: bool
    ) -> DescriptorLimit:
        seconds = UNIT_NUMBERS[unit]
        try:
            # A shared bucket that is filled under a much higher limit would be exhausted for all others.
            steps, _ = compile_limit(requests_per_unit, seconds, algorithm, label, None, algorithm in BUCKETS, headers)
        except ConfigError:  # more than this algorithm counts exactly
            steps, _ = compile_limit(requests_per_unit, seconds, DEFAULT_ALGORITHM, label, None, True, headers)
        limit = DescriptorLimit(
            steps,
            label,
            requests_per_unit=requests_per_unit,
            unit=unit,
            charge_beyond_limit=beyond,
            headers=headers,
        )
        self._overrides[label, algorithm, requests_per_unit, unit, beyond] = limit
        return limit


def _part(key: str, value: str) -> str:
    return secret_part(value) if is_secret(key) else escaped_value(value)


def _first_leased(nodes: Iterable[DescriptorNode]) -> Algorithm | None:
    for node in nodes:
        limit = node.limit
        if limit is not None and limit.algorithm is not None and limit.algorithm.lease:
            return limit.algorithm
        leased = _first_leased([child for branch in node.branches.values() for child in branch.nodes()])
        if leased is not None:
            return leased
    return None


def _limits_below(node: DescriptorNode) -> int:
    below = [child for branch in node.branches.values() for child in branch.nodes()]
    return sum([_limits_below(child) + (child.limit is not None) for child in below])
