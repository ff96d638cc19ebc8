"""Programs that flood a limiter with keys it has never seen, and watch how much memory they take."""

from __future__ import annotations

import gc
import itertools
import os
import time
from collections.abc import Iterator

from crestgate import Limiter
from crestgate.core.pressure import MAX_COUNTERS
from integration.child_main import say

__all__ = ["fresh_keys", "mixed_limits"]


def resident() -> int:
    """Bytes of memory this process really has."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def fresh_keys(url: str, limit: str, early: int, least: int, most: int, seconds: float) -> None:
    """Check keys that never come again: at least and at most so many, as many as fit into the seconds.

    Says how many there were, and what the memory was after the `early` first ones, and in the end.
    """
    limiter = Limiter(url)
    check = limiter.bind(limit).check
    deadline = time.monotonic() + seconds
    checked = 0
    at_first = 0
    while checked < least or (checked < most and time.monotonic() < deadline):
        for number in range(checked, checked + 50_000):
            check(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
        checked += 50_000
        if checked == early:
            gc.collect()
            at_first = resident()
    gc.collect()
    say({"keys": checked, "early": at_first, "late": resident(), "failures": limiter.store_failures})


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
    for number in range(MAX_COUNTERS):  # as many under pressure as are remembered
        limiter.check(f"pressed:{number}", "1/year")
    work = mixed_work(limiter)
    for _ in range(early):
        next(work)
    gc.collect()
    at_first = resident()
    for _ in range(late - early):
        next(work)
    gc.collect()
    say({"keys": late, "early": at_first, "late": resident(), "failures": limiter.store_failures})


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
            limiter.check(key, "1/year")  # denied, which is remembered too
        else:
            limiter.reserve(key, limit, 1).settle(0)
        yield
