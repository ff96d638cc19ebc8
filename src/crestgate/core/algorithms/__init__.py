"""Registry of algorithms by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from crestgate.core.algorithms.algorithm import Algorithm
from crestgate.core.algorithms.calendar_window import CALENDAR_WINDOW, build_calendar_window
from crestgate.core.algorithms.custom import CustomAlgorithm, PureStep, Verdict
from crestgate.core.algorithms.fixed_window import FixedWindow
from crestgate.core.algorithms.gcra import Gcra
from crestgate.core.algorithms.leaky_bucket import LeakyBucket
from crestgate.core.algorithms.sliding_window_counter import SlidingWindowCounter
from crestgate.core.algorithms.sliding_window_log import SlidingWindowLog
from crestgate.core.algorithms.token_bucket import TokenBucket
from crestgate.errors import ConfigError

if TYPE_CHECKING:
    from crestgate.core.limit import Limit

__all__ = [
    "ALGORITHMS",
    "BUILT_IN",
    "CONCURRENCY",
    "Algorithm",
    "AlgorithmKind",
    "PureStep",
    "Verdict",
    "build",
    "register_algorithm",
]

CONCURRENCY: Final = "concurrency"
"""In-flight limits: a sliding log whose period is the time to live of a slot, and whose entries are given back when
their holder is done (`Op.GIVE_BACK`), or moved to now while it goes on (`Op.RENEW`)."""


class AlgorithmKind(NamedTuple):
    """An algorithm that limits can name."""

    build: Callable[[Limit, str], Algorithm]
    takes_burst: bool
    can_lease: bool = False
    """Whether a slice of a limit can be charged in advance without admitting more than the algorithm does."""


def _fixed_window(limit: Limit, name: str) -> Algorithm:
    if limit.unit is not None and limit.zone is not None:
        return build_calendar_window(limit, name, limit.unit, limit.zone)
    return FixedWindow(limit, name)


ALGORITHMS: dict[str, AlgorithmKind] = {
    "token_bucket": AlgorithmKind(TokenBucket, takes_burst=True, can_lease=True),
    "leaky_bucket": AlgorithmKind(LeakyBucket, takes_burst=True),
    "fixed_window": AlgorithmKind(_fixed_window, takes_burst=False, can_lease=True),
    "sliding_window_log": AlgorithmKind(SlidingWindowLog, takes_burst=False),
    "sliding_window_counter": AlgorithmKind(SlidingWindowCounter, takes_burst=False),
    "gcra": AlgorithmKind(Gcra, takes_burst=True, can_lease=True),
    CONCURRENCY: AlgorithmKind(SlidingWindowLog, takes_burst=False),
}
BUILT_IN: Final = tuple(ALGORITHMS)
"""The names of those that every store has, without what `register_algorithm` adds later."""


def build(limit: Limit, name: str, label: str | None = None) -> Algorithm:
    """Compile a limit for the counter `name`. Decisions show its label, by default the name."""
    algorithm = ALGORITHMS[limit.algorithm].build(limit, name)
    if label is not None:
        algorithm.label = label
    return algorithm


def register_algorithm(name: str, step: PureStep, *, takes_burst: bool = False) -> None:
    """Register a custom algorithm, given as a pure step over three integers.

    `step(limit, state, now, cost)` gets the limit, the state it wrote last (or None), the time in microseconds and
    the cost, and returns the state to write (or None to write nothing) and a `Verdict`. It must not read a clock or
    keep anything. Stores that run Python steps run it as it is; a store that would need it in another language
    refuses such a limit with a ConfigError when the limiter is built.

    >>> def one_at_a_time(limit, state, now, cost):
    ...     free = state is None or now >= state[0] + limit.period_us
    ...     wait = 0 if free else state[0] + limit.period_us - now
    ...     left = 1 if free and not cost else 0
    ...     return ((now, 1, 0) if free and cost else None), Verdict(free or cost == 0, left, wait, wait)
    >>> register_algorithm("one_at_a_time", one_at_a_time)
    >>> from crestgate import Limit
    >>> Limit.parse("1/second using one_at_a_time")
    Limit(1, 1.0, algorithm='one_at_a_time')
    """
    if not isinstance(name, str) or not name.isascii() or not name.isidentifier() or name != name.lower():
        raise ConfigError(f"algorithm name {name!r} must be a lower-case identifier, such as 'my_window'")
    if not callable(step):
        raise ConfigError(f"algorithm {name!r}: its step must be a function, not {step!r}")
    if name in ALGORITHMS or name == CALENDAR_WINDOW:
        raise ConfigError(f"algorithm {name!r} is already registered")

    def build_registered(limit: Limit, counter: str) -> Algorithm:
        return CustomAlgorithm(limit, counter, step)

    ALGORITHMS[name] = AlgorithmKind(build_registered, takes_burst)
