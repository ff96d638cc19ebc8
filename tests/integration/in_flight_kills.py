"""Processes that hold slots of one in-flight limit and are killed at random: never more holders than slots.

8 processes with 50 tasks each. Checked against the recorded intervals, and every slot is free after its time to live.
A short run is part of `make test`; a longer one by hand, in tests/, with the seconds for each store:

    PYTHONPATH=../src:. python -m integration.in_flight_kills 30
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crestgate import Limiter, RateLimitExceeded
from integration.in_flight_programs import ENTERED, LEFT, LOST, PROVED, RECORD
from integration.kill_runs import PROCESSES, STORES, Victims, opened_store, read_records

__all__ = ["LIMIT", "SLOTS", "TASKS", "Holds", "check_all_free", "most_at_once", "run", "sure_holds"]

SLOTS, TTL = 10, 3
TASKS = 50
LIMIT = f"{SLOTS} concurrent ttl {TTL}s"
PROOF = int(TTL * 0.99 * 1e9)
"""So long is a slot surely held after the last proof: a hundredth less than it lives, for clocks that differ."""
PATIENCE = 60.0
"""Seconds until a slot that is not free yet counts as leaked. It is `reset_after` that must be within the TTL."""

Interval = tuple[int, int]


@dataclass
class Holds:
    """When slots were surely held: from after the grant until before the release began."""

    intervals: list[Interval]
    granted: int = 0
    lost: int = 0


def sure_holds(records: Iterable[tuple[Any, ...]], end: int) -> Holds:
    """The holds of one process, by its journal. What it held when it was killed ends with it, at `end`.

    A slot is held from its grant until a time to live after the last moment at which a request was sent that proved
    it. So a process that stood still, or has lost a slot, counts no longer than it surely held it.
    """
    holds = Holds([])
    running: dict[int, Interval] = {}
    """By hold: when it was entered, and until when it is proved."""
    for kind, hold, at, asked in records:
        if kind == ENTERED:
            running[hold] = at, asked + PROOF
            holds.granted += 1
        elif kind == PROVED:
            running[hold] = running[hold][0], asked + PROOF
        else:
            entered, proved = running.pop(hold)
            holds.intervals.append((entered, min(at, proved)))
            holds.lost += kind == LOST
            assert kind in (LEFT, LOST)
    holds.intervals += [(entered, min(end, proved)) for entered, proved in running.values()]
    return holds


def most_at_once(intervals: Iterable[Interval]) -> int:
    """How many intervals overlap at most. One that ends when another begins does not overlap it."""
    edges = sorted(edge for start, end in intervals if start < end for edge in ((start, 1), (end, -1)))
    most = now = 0
    for _, change in edges:
        now += change
        most = max(most, now)
    return most


def check_all_free(limiter: Limiter) -> float:
    """Wait until all slots are free, and take them all. Returns the seconds that it took until they were free."""
    started = time.monotonic()
    while (decision := limiter.peek("key", LIMIT)).remaining < SLOTS:
        assert decision.reset_after <= TTL, decision
        assert time.monotonic() < started + PATIENCE, f"slots have leaked: {decision}"
        time.sleep(0.05)
    took = time.monotonic() - started
    with ExitStack() as stack:
        for _ in range(SLOTS):
            stack.enter_context(limiter.hold("key", LIMIT))
        try:
            stack.enter_context(limiter.hold("key", LIMIT))
        except RateLimitExceeded:
            pass
        else:
            raise AssertionError(f"more than {SLOTS} slots")
    assert limiter.peek("key", LIMIT).remaining == SLOTS
    return took


def run(url: str, folder: Path, seconds: float, pause: float = 0.5, seed: int = 19) -> dict[str, Any]:
    """One run, checked; its figures."""
    with Limiter(url) as limiter:
        limiter.peek("key", LIMIT)  # creates the file or the tables
        victims = Victims(
            "in_flight_programs.hold_slots",
            folder,
            {"url": url, "limit": LIMIT, "tasks": TASKS},
            random.Random(seed),
        )
        victims.run(seconds, pause)
        took = check_all_free(limiter)
    intervals: list[Interval] = []
    granted = lost = 0
    for path, end in victims.ends.items():
        holds = sure_holds(read_records(path, RECORD), end)
        intervals += holds.intervals
        granted += holds.granted
        lost += holds.lost
    most = most_at_once(intervals)
    assert most <= SLOTS, f"{most} holders of {SLOTS} slots"
    return {
        "seconds": seconds,
        "processes": PROCESSES,
        "tasks": PROCESSES * TASKS,
        "kills": victims.kills,
        "granted": granted,
        "lost": lost,
        "most at once": most,
        "slots": SLOTS,
        "leaked": 0,
        "free after": round(took, 2),
    }


def main(seconds: float, kinds: Iterable[str]) -> None:
    """The long run."""
    for kind in kinds:
        with opened_store(kind) as (url, folder):
            sys.stdout.write(f"{kind}: {run(url, folder, seconds)}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2:] or STORES)
