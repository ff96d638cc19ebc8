"""The contenders: every limiter as its documentation says, with nothing between it and the clock.

Each contender brings the loop that is timed, because a shared loop would need a wrapper around every call, and the
wrapper would cost more than some of the calls. Whatever a peer can be spared is left out in its favour:
pyrate-limiter's background leaker is never started, throttled-py's store is made large enough never to evict.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["ALGORITHMS", "MEMORY_PEERS", "NOTHING", "REDIS_PEERS", "Contender", "Setup", "make"]

ALGORITHMS = (
    "token_bucket",
    "leaky_bucket",
    "gcra",
    "fixed_window",
    "sliding_window_counter",
    "sliding_window_log",
)

NOTHING = "an empty call"

MEMORY_PEERS: dict[str, tuple[str, ...]] = {
    "token_bucket": ("throttled-py", "pyrate-limiter"),
    "leaky_bucket": ("throttled-py",),
    "gcra": ("throttled-py", "pyrate-limiter"),
    "fixed_window": ("limits", "throttled-py", "pyrate-limiter"),
    "sliding_window_counter": ("limits", "throttled-py"),
    "sliding_window_log": ("limits", "pyrate-limiter"),
}

REDIS_PEERS: tuple[tuple[str, str], ...] = (
    ("limits", "fixed_window"),
    ("limits", "sliding_window_counter"),
    ("limits", "sliding_window_log"),
    ("throttled-py", "token_bucket"),
    ("throttled-py", "leaky_bucket"),
    ("throttled-py", "gcra"),
    ("throttled-py", "fixed_window"),
    ("throttled-py", "sliding_window_counter"),
)

_THROTTLED_NAMES = {
    "token_bucket": "token_bucket",
    "leaky_bucket": "leaking_bucket",
    "gcra": "gcra",
    "fixed_window": "fixed_window",
    "sliding_window_counter": "sliding_window",
}


@dataclass(frozen=True)
class Setup:
    """One contender: a library, an algorithm, a store by its URL, and a limit of `amount` a minute or hour."""

    library: str
    algorithm: str
    store: str
    amount: int
    period: str
    form: str = "bound"
    """How Crestgate is called: with limits prepared once (bound), as an object or as a text."""


@dataclass(frozen=True)
class Contender:
    """`sweep` checks each key once and is timed; `allows` checks one key and returns the decision."""

    sweep: Callable[[Sequence[str]], None]
    allows: Callable[[str], bool]


def make(setup: Setup) -> Contender:
    makers = {
        NOTHING: _nothing,
        "crestgate": _crestgate,
        "limits": _limits,
        "throttled-py": _throttled,
        "pyrate-limiter": _pyrate,
    }
    return makers[setup.library](setup)


def _crestgate(setup: Setup) -> Contender:
    from crestgate import Limit, Limiter

    text = f"{setup.amount}/{setup.period} using {setup.algorithm}"
    limiter = Limiter(setup.store)
    if setup.form == "bound":
        bound_check = limiter.bind(text).check

        def sweep_bound(keys: Sequence[str]) -> None:
            for key in keys:
                bound_check(key)

        return Contender(sweep_bound, lambda key: bound_check(key).allowed)

    limits = text if setup.form == "text" else Limit.parse(text)
    check = limiter.check

    def sweep(keys: Sequence[str]) -> None:
        for key in keys:
            check(key, limits)

    return Contender(sweep, lambda key: check(key, limits).allowed)


def _nothing(setup: Setup) -> Contender:
    """The least that a call costs: a function that does nothing."""

    def check(key: str) -> bool:
        return True

    def sweep(keys: Sequence[str]) -> None:
        for key in keys:
            check(key)

    return Contender(sweep, lambda key: check(key) and setup.amount > 1)


def _limits(setup: Setup) -> Contender:
    import limits

    strategies: dict[str, Any] = {
        "fixed_window": limits.strategies.FixedWindowRateLimiter,
        "sliding_window_counter": limits.strategies.SlidingWindowCounterRateLimiter,
        "sliding_window_log": limits.strategies.MovingWindowRateLimiter,
    }
    store: Any = limits.storage.storage_from_string(setup.store)
    hit = strategies[setup.algorithm](store).hit
    item = limits.parse(f"{setup.amount}/{setup.period}")
    if setup.store.startswith("memory"):

        def sweep(keys: Sequence[str]) -> None:
            for key in keys:
                hit(item, key)

        return Contender(sweep, lambda key: bool(hit(item, key)))

    # Its strategies use the same names in one Redis, with values of different kinds: keep them apart.
    apart = setup.algorithm

    def sweep_apart(keys: Sequence[str]) -> None:
        for key in keys:
            hit(item, apart, key)

    return Contender(sweep_apart, lambda key: bool(hit(item, apart, key)))


def _throttled(setup: Setup) -> Contender:
    from throttled import Throttled, rate_limiter, store

    per = {"minute": rate_limiter.per_min, "hour": rate_limiter.per_hour}[setup.period]
    backend: Any
    if setup.store.startswith("memory"):
        backend = store.MemoryStore(options={"MAX_SIZE": 10**7})
    else:
        backend = store.RedisStore(server=setup.store)
    using: Any = _THROTTLED_NAMES[setup.algorithm]
    limit = Throttled(using=using, quota=per(setup.amount, burst=setup.amount), store=backend).limit

    def sweep(keys: Sequence[str]) -> None:
        for key in keys:
            limit(key)

    return Contender(sweep, lambda key: not limit(key).limited)


def _pyrate(setup: Setup) -> Contender:
    import pyrate_limiter as pyrate

    interval = {"minute": pyrate.Duration.MINUTE, "hour": pyrate.Duration.HOUR}[setup.period]
    rates = [pyrate.Rate(setup.amount, interval)]
    buckets: dict[str, Callable[[], Any]] = {
        "token_bucket": lambda: pyrate.StateBucket(rates, pyrate.TokenBucket(), pyrate.InMemoryStateStore()),
        "gcra": lambda: pyrate.StateBucket(rates, pyrate.GCRA(), pyrate.InMemoryStateStore()),
        "fixed_window": lambda: pyrate.InMemoryBucket(rates, pyrate.FixedWindow()),
        "sliding_window_log": lambda: pyrate.InMemoryBucket(rates),
    }
    factory: Any = _BucketPerKey(buckets[setup.algorithm], pyrate.MonotonicClock().now, pyrate.RateItem)
    pyrate.BucketFactory.register(_BucketPerKey)
    acquire = pyrate.Limiter(factory).try_acquire

    def sweep(keys: Sequence[str]) -> None:
        for key in keys:
            acquire(key, blocking=False)

    return Contender(sweep, lambda key: bool(acquire(key, blocking=False)))


class _BucketPerKey:
    """pyrate-limiter counts per bucket; limits per key need a factory, which it leaves to its users to write."""

    _leaker = None

    def __init__(self, new_bucket: Callable[[], Any], now: Callable[[], int], item: Callable[..., Any]) -> None:
        self.new_bucket = new_bucket
        self.now = now
        self.item = item
        self.buckets: dict[str, Any] = {}

    def wrap_item(self, name: str, weight: int = 1) -> Any:
        return self.item(name, self.now(), weight)

    def get(self, item: Any) -> Any:
        bucket = self.buckets.get(item.name)
        if bucket is None:
            bucket = self.buckets[item.name] = self.new_bucket()
        return bucket
