"""A rule prepared for resolving: what is asked of it at every request, at hand."""

from __future__ import annotations

from typing import final

from headgate.core.algorithms import build
from headgate.core.algorithms.algorithm import Algorithm
from headgate.rules.rule import ANY, DIMENSIONS, Rule

__all__ = ["SAYS", "Entry"]

SAYS = 1000
"""More than there are sources."""


@final
class Entry:
    """One rule of a rule set."""

    __slots__ = (
        *("_algorithm", "api", "counter", "dimension", "expires_us", "method", "order", "rank", "rule", "shadow"),
        *("subject", "tier"),
    )

    def __init__(self, rule: Rule, pattern: str, say: int = 0) -> None:
        self.rule = rule
        self.dimension = rule.dimension
        self.method: str | None = None if rule.method == ANY else rule.method
        self.tier: str | None = None if rule.tier == ANY else rule.tier
        self.expires_us: int | None = rule.expires_us
        self.subject: str | None = None if rule.identifier == ANY else f"{rule.dimension}:{rule.identifier}"
        """The one that it is for; None when it is for all of its dimension."""
        self.shadow = rule.mode == "shadow"
        self.counter: str = rule.counter
        # How specific it is within its slot: an exact identifier, then a tier; what ends wins over what does not; and
        # of two that are equal in all that, the one whose source has more say.
        specific = 4 * (self.subject is not None) + 2 * (self.tier is not None) + (rule.expires_us is not None)
        self.rank: int = SAYS * specific + say
        self.order = (DIMENSIONS.index(rule.dimension), pattern, rule.method, rule.window_seconds)
        """Where it stands in a chain."""
        self.api: str | None = None if pattern == ANY else f"api:{pattern}"
        """The subject of a rule of dimension `api`: the pattern, or the request's path where that is every path."""
        self._algorithm: Algorithm | None = None

    @property
    def algorithm(self) -> Algorithm:
        """Its limit, compiled when it is first needed: most rules of a large set never are."""
        algorithm = self._algorithm
        if algorithm is None:
            algorithm = self._algorithm = build(self.rule.compiled(), self.counter, self.rule.rule_id)
        return algorithm
