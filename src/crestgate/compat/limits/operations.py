"""What storages do, as store requests: without I/O, so that sync and async storages share it.

Each function is a generator: it yields a batch of store requests, is sent their outcomes, and returns its result.
The storages drive them.

A counter is identified by its key and the strategy's name. So a key can be read or cleared without its limit, as
`limits` does, and two strategies never share a counter. Any
other limit than the one that wrote a counter sees the units used, and the waits until they recover.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import TypeAlias, TypeVar

from crestgate.compat.limits.errors import ConfigurationError
from crestgate.compat.limits.util import WindowStats
from crestgate.core.algorithms import Algorithm, build
from crestgate.core.bounds import MAX_COST, MAX_KEY_BYTES, check_input
from crestgate.core.decision import Decision
from crestgate.core.limit import Limit
from crestgate.errors import ConfigError
from crestgate.runtime.clock import Clock
from crestgate.stores.port import BatchOutcomes, Member, Op, Request

__all__ = [
    "FIXED_WINDOW",
    "MOVING_WINDOW",
    "SLIDING_WINDOW_COUNTER",
    "STRATEGY_NAMES",
    "Exchange",
    "clear",
    "get_expiry",
    "get_moving_window",
    "get_sliding_window",
    "get_used",
    "get_window_stats",
    "increment",
    "probe",
    "take",
    "would_admit",
]

FIXED_WINDOW = "fixed-window"
MOVING_WINDOW = "moving-window"
SLIDING_WINDOW_COUNTER = "sliding-window-counter"
STRATEGY_NAMES = (FIXED_WINDOW, MOVING_WINDOW, SLIDING_WINDOW_COUNTER)
_ALGORITHMS = {
    FIXED_WINDOW: "fixed_window",
    MOVING_WINDOW: "sliding_window_log",
    SLIDING_WINDOW_COUNTER: "sliding_window_counter",
}
_MAX_COUNT = 2**50
"""The amount of a limit that never denies: its remaining units show the use."""
_PHASE = "window-phase"
"""Name of the counter that shows where in its window the store's clock is; deleted in the same batch."""
_MAX_PEEKS = 32
_MAX_RETRIES = 5

T = TypeVar("T")
Exchange: TypeAlias = Generator[Sequence[Request], BatchOutcomes, T]


def take(strategy: str, key: str, amount: int, expiry: float, cost: int) -> Exchange[bool]:
    """Decide, and charge the cost if admitted."""
    return (yield from _decide(Op.TAKE, key, _compiled(strategy, amount, expiry), cost)).allowed


def would_admit(strategy: str, key: str, amount: int, expiry: float, cost: int) -> Exchange[bool]:
    """Decide, and charge nothing."""
    return (yield from _decide(Op.PEEK, key, _compiled(strategy, amount, expiry), cost)).allowed


def get_window_stats(strategy: str, key: str, amount: int, expiry: float, clock: Clock) -> Exchange[WindowStats]:
    """What is left of a limit, and when there is more: for a fixed window its end, for the others the next request
    that becomes free."""
    if strategy == FIXED_WINDOW:
        decision = yield from _decide(Op.PEEK, key, _compiled(strategy, amount, expiry), 0)
        return WindowStats(_seconds(clock) + decision.reset_after, decision.remaining)
    remaining, wait = yield from _next_free(strategy, key, amount, expiry)
    if wait is None:
        wait = expiry if strategy == MOVING_WINDOW else 0.0
    return WindowStats(_seconds(clock) + wait, remaining)


def increment(key: str, expiry: float, amount: int) -> Exchange[int]:
    """Charge a fixed window whatever its limit is; returns its count."""
    decision = yield from _decide(Op.TAKE, key, _compiled(FIXED_WINDOW, _MAX_COUNT, expiry), amount)
    return _MAX_COUNT - decision.remaining


def get_used(key: str) -> Exchange[int]:
    """The count of a fixed window, whatever its period is."""
    return _MAX_COUNT - (yield from _decide(Op.PEEK, key, _compiled(FIXED_WINDOW, _MAX_COUNT, 1), 0)).remaining


def get_expiry(key: str, clock: Clock) -> Exchange[float]:
    """When a fixed window ends, whatever its period is; now if it has no count."""
    decision = yield from _decide(Op.PEEK, key, _compiled(FIXED_WINDOW, _MAX_COUNT, 1), 0)
    return _seconds(clock) + decision.reset_after


def get_moving_window(key: str, limit: int, expiry: float, clock: Clock) -> Exchange[tuple[float, int]]:
    """The time of the oldest request of a moving window (now if there is none), and how many there are."""
    remaining, wait = yield from _next_free(MOVING_WINDOW, key, limit, expiry)
    return _seconds(clock) + (0.0 if wait is None else wait - expiry), limit - remaining


def get_sliding_window(key: str, expiry: float) -> Exchange[tuple[int, float, int, float]]:
    """Count and seconds to live of the previous and of the current window.

    Stores tell how much is used, and how long until no more than so much is. The counts follow from these waits: at the
    end of this window, no more than the current count is used, and a search for it takes several peeks at a time.
    """
    use = build(Limit(MAX_COST, 1, algorithm="fixed_window"), SLIDING_WINDOW_COUNTER)
    phase = build(Limit(1, expiry, algorithm="fixed_window"), _PHASE)
    subject = _counter_key(key)
    used = MAX_COST - (yield from _decide(Op.PEEK, key, use, 0)).remaining
    low, high = 0, used  # bounds of the current count
    fading_us = end_us = 0
    while True:
        rooms = sorted({low + (high - low) * i // _MAX_PEEKS for i in range(_MAX_PEEKS)})
        marker = [Member(subject, phase, 1)]
        outcomes = yield [
            Request(Op.TAKE, marker),
            Request(Op.RESET, marker),
            *[Request(Op.PEEK, [Member(subject, use, MAX_COST - room)]) for room in rooms],
        ]
        end_us = outcomes[0][0].decision.reset_us
        for room, reply in zip(rooms, outcomes[2:], strict=True):
            wait_us = reply[0].decision.wait_us or 0
            if wait_us > end_us:
                low = room + 1
            elif room < high:
                high, fading_us = room, end_us - wait_us
        if low >= high:
            break
    ttl = end_us / 1_000_000
    if used <= high:
        return 0, 0.0, used, ttl + expiry
    # The last request of the previous window counts until so long before the end: its share of the period.
    previous = -(-round(expiry * 1_000_000) // (fading_us + 1))
    return max(previous, used - high), ttl, high, ttl + expiry


def clear(key: str, *strategies: str) -> Exchange[None]:
    """Delete the counters of a key."""
    members = [Member(_counter_key(key), _compiled(strategy, 1, 1), 0) for strategy in strategies]
    yield [Request(Op.RESET, members)]


def probe(keys: Sequence[str]) -> Exchange[None]:
    """Count on every server of the store, and forget it again."""
    algorithm = _compiled(FIXED_WINDOW, _MAX_COUNT, 1)
    members = [Member(key, algorithm, 1) for key in keys]
    yield [Request(op, [member]) for op in (Op.TAKE, Op.RESET) for member in members]


def _next_free(strategy: str, key: str, amount: int, expiry: float) -> Exchange[tuple[int, float | None]]:
    """What is left, and the seconds until one more is; None if nothing is used."""
    algorithm = _compiled(strategy, amount, expiry)
    cost, remaining, wait = 1, amount, 0.0
    for _ in range(_MAX_RETRIES):  # others may take some meanwhile
        decision = yield from _decide(Op.PEEK, key, algorithm, cost)
        remaining, wait = decision.remaining, (decision.wait_us or 0) / 1_000_000
        if remaining >= amount:
            return remaining, None
        if not decision.allowed and cost <= remaining + 1:
            break
        cost = remaining + 1
    return remaining, wait


def _decide(op: Op, key: str, algorithm: Algorithm, cost: int) -> Exchange[Decision]:
    check_input("-", cost)
    outcomes = yield [Request(op, [Member(_counter_key(key), algorithm, cost)])]
    return outcomes[0][0].decision


def _seconds(clock: Clock) -> float:
    return clock.ticks() / 1_000_000


def _counter_key(key: str) -> str:
    """The key of a counter: a key that is too long for a store is replaced by a digest of it."""
    encoded = key.encode("utf-8", "surrogatepass")
    if len(encoded) > MAX_KEY_BYTES:
        return f"blake2b:{blake2b(encoded, digest_size=32).hexdigest()}"
    return key if encoded else check_input(key, 0)


@lru_cache(maxsize=4096)
def _compiled(strategy: str, amount: int, expiry: float) -> Algorithm:
    try:
        return build(Limit(amount, expiry, algorithm=_ALGORITHMS[strategy]), strategy)
    except ConfigError as error:
        raise ConfigurationError(str(error)) from None
