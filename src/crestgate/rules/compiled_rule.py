# mypyc: compile
"""A rule compiled for resolving, with all that requests need precomputed."""

from __future__ import annotations

from typing import final

from crestgate.core.algorithms import build
from crestgate.core.algorithms.algorithm import Algorithm
from crestgate.core.dimensions import DIMENSION_NAMES
from crestgate.rules.rule import ANY, Rule

__all__ = ["MAX_SOURCES", "CompiledRule"]

MAX_SOURCES = 1000


@final
class CompiledRule:
    """One rule of a rule set."""

    __slots__ = (
        *("_algorithm", "api", "counter", "dimension", "dimensions", "expires_us", "method", "on_store_error", "order"),
        *("rank", "rule", "shadow", "subject", "tier"),
    )

    def __init__(self, rule: Rule, pattern: str, precedence: int = 0) -> None:
        self.rule = rule
        self.dimension = rule.dimension
        self.dimensions: tuple[str, ...] = (rule.dimension,)
        """The dimensions of a request to which only this rule applies."""
        self.on_store_error: str | None = rule.on_store_error
        self.method: str | None = None if rule.method == ANY else rule.method
        self.tier: str | None = None if rule.tier == ANY else rule.tier
        self.expires_us: int | None = rule.expires_us
        self.subject: str | None = None if rule.identifier == ANY else f"{rule.dimension}:{rule.identifier}"
        """The subject that it is for; None if it is for all of its dimension."""
        self.shadow = rule.mode == "shadow"
        self.counter: str = rule.counter
        # Specificity within its slot: an exact identifier, then a tier, then an expiry. Between equals, the source with
        # the higher precedence wins.
        specific = 4 * (self.subject is not None) + 2 * (self.tier is not None) + (rule.expires_us is not None)
        self.rank: int = MAX_SOURCES * specific + precedence
        window = rule.window_seconds, "" if rule.calendar is None else rule.window
        self.order = (DIMENSION_NAMES.index(rule.dimension), pattern, rule.method, window)
        """Its position in a chain of limits."""
        self.api: str | None = None if pattern == ANY else f"api:{pattern}"
        """The subject of a rule of dimension `api`: the pattern, or the request's path where that is every path."""
        self._algorithm: Algorithm | None = None

    @property
    def algorithm(self) -> Algorithm:
        """Its limit, compiled when it is first needed: most rules of a large set never are."""
        algorithm = self._algorithm
        if algorithm is None:
            algorithm = self._algorithm = build(self.rule.compiled(), self.counter, self.rule.rule_id)
            algorithm.endpoint = self.rule.endpoint_pattern
            algorithm.store = self.rule.store
        return algorithm
