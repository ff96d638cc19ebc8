"""Child programs that flood a limiter with new keys, and measure their memory."""

from __future__ import annotations

import gc
import itertools
import os
import time
from collections.abc import Iterator

from crestgate import Limiter
from crestgate.core.pressure import MAX_COUNTERS
from integration.child_main import send

__all__ = ["fresh_keys", "mixed_limits"]


def resident_bytes() -> int:
    """Resident memory of this process in bytes."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def fresh_keys(url: str, limit: str, early: int, min_keys: int, max_keys: int, seconds: float) -> None:
    """Check keys that never recur: from `min_keys` to `max_keys`, as many as fit into the seconds.

    Sends how many there were, and the memory after the first `early` keys and at the end.
    """
    limiter = Limiter(url)
    check = limiter.bind(limit).check
    deadline = time.monotonic() + seconds
    checked = 0
    early_bytes = 0
    while checked < min_keys or (checked < max_keys and time.monotonic() < deadline):
        for number in range(checked, checked + 50_000):
            check(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
        checked += 50_000
        if checked == early:
            gc.collect()
            early_bytes = resident_bytes()
    gc.collect()
    send({"keys": checked, "early": early_bytes, "late": resident_bytes(), "failures": limiter.store_failures})


LIMITS = [
    "100/second",
    "5/50ms using gcra",
    "1000/day using fixed_window",
    "1/year",
    "3/100ms using sliding_window_log",
    "10/hour using sliding_window_log",
    "20/minute using sliding_window_counter",
    "7/second burst 3 using leaky_bucket",
]


def mixed_limits(url: str, early: int, late: int) -> None:
    """Fresh keys under limits of all kinds, alone, in chains, denied, reserved and settled."""
    limiter = Limiter(url)
    for number in range(MAX_COUNTERS):  # fill the table of counters under pressure
        limiter.check(f"pressed:{number}", "1/year")
    work = mixed_work(limiter)
    for _ in range(early):
        next(work)
    gc.collect()
    early_bytes = resident_bytes()
    for _ in range(late - early):
        next(work)
    gc.collect()
    send({"keys": late, "early": early_bytes, "late": resident_bytes(), "failures": limiter.store_failures})


def mixed_work(limiter: Limiter) -> Iterator[None]:
    for number in itertools.count():
        limit = LIMITS[number % len(LIMITS)]
        key = f"client:{number}"
        kind = number // len(LIMITS) % 4
        if kind == 0:
            limiter.check(key, limit)
        elif kind == 1:
            limiter.check(key, [limit, "50/hour"])
        elif kind == 2:
            limiter.check(key, "1/year")
            limiter.check(key, "1/year")  # denied, which is recorded too
        else:
            limiter.reserve(key, limit, 1).settle(0)
        yield
