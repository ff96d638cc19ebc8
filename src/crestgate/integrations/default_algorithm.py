"""The algorithm of an application's limits that name none: `default_algorithm=`, or `strategy=` of the Flask extension.

It applies to limits that are written as text and have no `using …` of their own, wherever the application writes them:
in the middleware, on a route, as a default, or as the result of a callable. A plan, a `Limit` and a rule are defined
elsewhere, with an algorithm, and keep theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from crestgate.core.algorithms import ALGORITHMS, CONCURRENCY
from crestgate.core.bounded_cache import add_bounded
from crestgate.core.limit import Limit, unknown_algorithm
from crestgate.core.plans import MAX_CACHED, Resolver
from crestgate.errors import ConfigError

__all__ = ["STRATEGIES", "DefaultAlgorithm", "algorithm_named"]

STRATEGIES = {
    "fixed-window": "fixed_window",
    "moving-window": "sliding_window_log",
    "sliding-window-counter": "sliding_window_counter",
    "sliding_window": "sliding_window_counter",
}
"""Other names of algorithms: those of Flask-Limiter's strategies, and the alias that rules have."""


def algorithm_named(name: object) -> str:
    """The algorithm of a name, ours or Flask-Limiter's; ConfigError for any other.

    >>> algorithm_named("gcra"), algorithm_named("moving-window")
    ('gcra', 'sliding_window_log')
    """
    known = STRATEGIES.get(name, name) if isinstance(name, str) else name
    if known == CONCURRENCY:
        raise ConfigError("default_algorithm: concurrency is for in-flight limits, which are written '20 concurrent'")
    if not isinstance(known, str) or known not in ALGORITHMS:
        strategies = ", ".join(one for one in STRATEGIES if "-" in one)
        raise ConfigError(
            f"default_algorithm: {unknown_algorithm(name)}, and as Flask-Limiter spells them {strategies}"
        )
    return known


class DefaultAlgorithm:
    """Gives limits their algorithm. Texts are parsed once, in a bounded cache: a callable may return many."""

    def __init__(self, name: object, resolver: Resolver) -> None:
        self.name = algorithm_named(name)
        self._resolver = resolver
        self._parsed: dict[str, tuple[Limit, ...]] = {}

    def apply(self, limits: Any) -> Any:
        """The same limits, with texts as `Limit`s. What is none is returned as it is, for the resolver to report."""
        if isinstance(limits, str):
            return self._limits(limits)
        if isinstance(limits, Limit | bytes | Mapping) or not isinstance(limits, Iterable):
            return limits
        chain: list[Any] = []
        for item in limits:
            one = self._limits(item) if isinstance(item, str) else item
            chain.extend(one if isinstance(one, tuple) else [one])
        return chain

    def _limits(self, text: str) -> str | tuple[Limit, ...]:
        if not text.lstrip()[:1].isdigit() or self._resolver.plan(text) is not None:  # a limit starts with its count
            return text
        known = self._parsed.get(text)
        return known if known is not None else add_bounded(self._parsed, text, self._parse(text), MAX_CACHED)

    def _parse(self, text: str) -> tuple[Limit, ...]:
        return Limit.parse_chain(text, self.name)
