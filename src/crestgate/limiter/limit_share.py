"""Shares of limits: what one of several instances admits while none of them reaches the store.

Under the failure policy `local` each instance counts alone. Told how many there are, each takes its share, so that
together they admit no more than the limit: count and burst are divided by the number of instances and rounded down.
What is smaller than the number of instances is 1 for each, because a share of 0 would deny everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import final

from crestgate.core.algorithms import Algorithm, build
from crestgate.core.bounded_cache import add_bounded
from crestgate.core.limit import Limit
from crestgate.errors import ConfigError
from crestgate.stores.port import Member

__all__ = ["MAX_INSTANCES", "LimitShares", "check_instances"]

MAX_INSTANCES = 1_000_000
MAX_CACHED = 10_000


@final
class LimitShares:
    """The shares of one of several instances."""

    def __init__(self, instances: int) -> None:
        self.instances = instances
        self._shares: dict[Algorithm, Algorithm] = {}

    def members(self, members: Sequence[Member]) -> list[Member]:
        """The same members under shares of their limits."""
        return [
            Member(m.key, self.of(m.algorithm), m.cost, m.binds, m.tick, m.amount, m.policy, m.token, m.peeks)
            for m in members
        ]

    def of(self, algorithm: Algorithm) -> Algorithm:
        """The compiled share of a limit, for the same counter."""
        share = self._shares.get(algorithm)
        if share is None:
            share = build(share_of(algorithm.limit, self.instances), algorithm.name, algorithm.label)
            share.inline = algorithm.inline
            share.in_headers = algorithm.in_headers
            add_bounded(self._shares, algorithm, share, MAX_CACHED)
        return share


def share_of(limit: Limit, instances: int) -> Limit:
    """One share of a limit; a limit of 0 stays 0.

    >>> share_of(Limit.parse("100/minute burst 10"), 3)
    Limit(33, 60.0, burst=3)
    >>> share_of(Limit.parse("2/minute"), 3)
    Limit(1, 60.0)
    """
    if not limit.count:
        return limit
    burst = None if limit.burst is None else max(limit.burst // instances, 1)
    return replace(limit, count=max(limit.count // instances, 1), burst=burst)


def check_instances(instances: object) -> None:
    if not isinstance(instances, int) or isinstance(instances, bool) or not 1 <= instances <= MAX_INSTANCES:
        raise ConfigError(f"fallback_instances must be a whole number from 1 to {MAX_INSTANCES}, not {instances!r}")
