# mypyc: compile
"""A rule compiled for resolving, with all that requests need precomputed."""

from __future__ import annotations

from typing import final

from crestgate.core.algorithms import build
from crestgate.core.algorithms.algorithm import Algorithm
from crestgate.core.dimensions import DIMENSION_NAMES
from crestgate.rules.composites import composite_subject, exact_mask, part_subject
from crestgate.rules.rule import ANY, Rule

__all__ = ["MAX_SOURCES", "CompiledRule"]

MAX_SOURCES = 1000
MASKS = 256
"""Masks of exact parts of a composite dimension, which has 8 parts at most."""


@final
class CompiledRule:
    """One rule of a rule set."""

    __slots__ = (
        *("_algorithm", "api", "counter", "dimension", "dimensions", "expires_us", "mask", "method", "on_store_error"),
        *("order", "parts", "rank", "rule", "shadow", "subject", "tier"),
    )

    def __init__(self, rule: Rule, pattern: str, precedence: int = 0) -> None:
        self.rule = rule
        self.dimension = rule.slot_dimension
        self.parts: list[str] | None = None
        """The parts of a composite dimension, in the order of its slot."""
        self.mask = 0
        """Which parts have an exact identifier: see composites.py. 0 unless it is composite."""
        self.dimensions: tuple[str, ...] = (self.dimension,)
        """The dimensions of a request to which only this rule applies."""
        self.on_store_error: str | None = rule.on_store_error
        self.method: str | None = None if rule.method == ANY else rule.method
        self.tier: str | None = None if rule.tier == ANY else rule.tier
        self.expires_us: int | None = rule.expires_us
        self.subject: str | None = None if rule.identifier == ANY else f"{rule.dimension}:{rule.identifier}"
        if rule.is_composite:
            self._compose(rule)
        """The subject that it is for; None if it is for all of its dimension."""
        self.shadow = rule.mode == "shadow"
        self.counter: str = rule.counter
        # Specificity within its slot: an exact identifier (of a composite dimension first the number of exact parts,
        # then that it is written first), then a tier, then an expiry. Between equals, the source with the higher
        # precedence wins.
        exact = int(self.subject is not None)
        if self.mask:
            exact = (self.mask.bit_count() * MASKS + exact_mask(rule.identifiers)) * MASKS + self.mask
        specific = 4 * exact + 2 * (self.tier is not None) + (rule.expires_us is not None)
        self.rank: int = MAX_SOURCES * specific + precedence
        builtin = self.dimension in DIMENSION_NAMES
        position = DIMENSION_NAMES.index(self.dimension) if builtin else len(DIMENSION_NAMES)
        window = rule.window_seconds, "" if rule.calendar is None else rule.window
        self.order = (position, pattern, rule.method, window, self.dimension)
        """Its position in a chain of limits."""
        self.api: str | None = None if pattern == ANY else f"api:{pattern}"
        """The subject of a rule of dimension `api`: the pattern, or the request's path where that is every path."""
        self._algorithm: Algorithm | None = None

    def _compose(self, rule: Rule) -> None:
        pairs = rule.parts
        names = [name for name, _ in pairs]
        self.parts = names
        self.mask = exact_mask([identifier for _, identifier in pairs])
        if self.mask:
            parts = [part_subject(name, f"{name}:{identifier}") for name, identifier in pairs]
            self.subject = composite_subject(names, parts, self.mask)

    @property
    def algorithm(self) -> Algorithm:
        """Its limit, compiled when it is first needed: most rules of a large set never are."""
        algorithm = self._algorithm
        if algorithm is None:
            algorithm = self._algorithm = build(self.rule.compiled(), self.counter, self.rule.rule_id)
            algorithm.endpoint = self.rule.endpoint_pattern
            algorithm.store = self.rule.store
            algorithm.in_headers = self.rule.headers
        return algorithm
