"""Snapshots of the shared file at every line of a request: what a kill at that line would leave.

Random kills hit slow code; here the store's code is traced at every line, and each change of the file is recorded.
A kill at that line leaves the same: the file, and locks that the kernel releases. Only the uncompiled code can be
traced by line.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from crestgate import Limit, Limiter
from crestgate.stores.shared import SharedStore
from crestgate.stores.shared.log_blocks import owner_word
from crestgate.stores.shared.slot import committed_block_list
from crestgate.testing import FakeClock

__all__ = ["SCENARIOS", "Scenario", "crash_snapshots", "open_limiter", "read_usage"]

TRACED_PATHS = ("/stores/shared/", "/stores/decide.py", "/core/state.py")
READ_ONLY_FUNCTIONS = {
    *("entry", "after", "positions", "expired", "tick_when_freed", "cost_at", "total", "check", "owns", "owner_word"),
    *("find", "is_unused", "is_outdated", "committed_block_list", "meta", "meta_at", "state_at", "is_assigned"),
}
"""Functions that write nothing."""
BUCKET = "1000/year"
LOG = "1000/hour using sliding_window_log"
CHAIN = f"{BUCKET}; {LOG}; 500/year using fixed_window; 700/year using gcra"
BRIEF_LOG = "1000/minute using sliding_window_log"
PLAN = Limit(100, 3600, name="plan")
PLAN_GROWN = Limit(200, 3600, name="plan")
PLAN_OF_LOG = Limit(200, 3600, algorithm="sliding_window_log", name="plan")
PLAN_OF_LONGER_LOG = Limit(200, 7200, algorithm="sliding_window_log", name="plan")

Act = Callable[[Limiter, FakeClock], object]


@dataclass
class Scenario:
    """The prepared state, the act performed `later` seconds later, and the counters to inspect."""

    prepare: Act
    act: Act
    watched: list[tuple[str, str | Limit]]
    later: float = 0
    evicted: tuple[str, ...] = ()
    """The counter that the act evicts, and the one evicted when the act is killed and repeated."""
    reserves: int = 0
    """The amount that the act reserves at first."""
    leaks: int = 8
    """The maximum number of leaked blocks: one for each process killed while allocating."""
    chained: bool = False
    """Whether the act is one chain, which is counted in all counters or in none."""


def checks(key: str, limit: str | Limit, times: int = 1) -> Act:
    def act(limiter: Limiter, clock: FakeClock) -> None:
        for _ in range(times):
            assert limiter.check(key, limit).reason == "ok"

    return act


def settles(key: str, limit: str) -> Act:
    def act(limiter: Limiter, clock: FakeClock) -> None:
        limiter.reserve(key, limit, 7).settle(2)

    return act


def many_keys(limiter: Limiter, clock: FakeClock) -> None:
    """As many counters as fit, the first one used least recently."""
    for number in range(50):
        clock.advance(1)
        assert limiter.check(f"old:{number}", LOG if number % 2 == 0 else BUCKET)


def two_spans(limiter: Limiter, clock: FakeClock) -> None:
    """A log of three blocks whose first half expires before the second."""
    checks("key", LOG, 35)(limiter, clock)
    clock.advance(1800)
    checks("key", LOG, 30)(limiter, clock)


def ring_of_two_spans(limiter: Limiter, clock: FakeClock) -> None:
    """A full ring, of which the first entries expire before the others."""
    checks("key", LOG, 8)(limiter, clock)
    clock.advance(1800)
    checks("key", LOG, 3)(limiter, clock)


def nearly_small(limiter: Limiter, clock: FakeClock) -> None:
    """A log at the end of its block, of which all but the last five entries expire before the others."""
    checks("key", LOG, 26)(limiter, clock)
    clock.advance(1800)
    checks("key", LOG, 5)(limiter, clock)


def full_region(limiter: Limiter, clock: FakeClock) -> None:
    """All log blocks are allocated: to a live log, to one that will need another, and to one that expires before."""
    checks("new", LOG, 12)(limiter, clock)
    checks("full", LOG, 31)(limiter, clock)
    checks("brief", BRIEF_LOG, 12)(limiter, clock)
    store = limiter.store
    assert isinstance(store, SharedStore)
    location = store.digests.locate(BRIEF_LOG, "brief")
    digest, stripe = location.digest, location.stripe
    slot = store.table.find(stripe, digest)
    word = owner_word(
        stripe * store.table.slots + slot, committed_block_list(store.words, store.table.state_at(stripe, slot))
    )
    for _ in range(store.geometry.blocks - 3):
        store.arena.allocate(word, clock.ticks(), set(), ())


SCENARIOS: dict[str, Scenario] = {
    "a new bucket": Scenario(checks("other", BUCKET), checks("key", BUCKET), [("key", BUCKET), ("other", BUCKET)]),
    "a bucket": Scenario(checks("key", BUCKET, 3), checks("key", BUCKET), [("key", BUCKET)]),
    "a new log": Scenario(checks("other", LOG), checks("key", LOG), [("key", LOG), ("other", LOG)]),
    "a log": Scenario(checks("key", LOG, 3), checks("key", LOG), [("key", LOG)]),
    "a log that fills its ring": Scenario(checks("key", LOG, 10), checks("key", LOG), [("key", LOG)]),
    "a full ring": Scenario(ring_of_two_spans, checks("key", LOG), [("key", LOG)], later=1801),
    "a log that outgrows its ring": Scenario(checks("key", LOG, 11), checks("key", LOG), [("key", LOG)]),
    "a log that goes back to its ring": Scenario(nearly_small, checks("key", LOG), [("key", LOG)], later=1801),
    "a log that needs a block": Scenario(checks("key", LOG, 31), checks("key", LOG), [("key", LOG)]),
    "a log that lets a block go": Scenario(two_spans, checks("key", LOG), [("key", LOG)], later=1801),
    "a log that is emptied": Scenario(checks("key", LOG, 70), checks("key", LOG), [("key", LOG)], later=3601),
    "settling on a bucket": Scenario(checks("key", BUCKET, 3), settles("key", BUCKET), [("key", BUCKET)], reserves=7),
    "settling on a log": Scenario(checks("key", LOG, 3), settles("key", LOG), [("key", LOG)], 1, reserves=7),
    "settling in one tick": Scenario(checks("key", LOG, 3), settles("key", LOG), [("key", LOG)], reserves=7),
    "settling in a new block": Scenario(checks("key", LOG, 31), settles("key", LOG), [("key", LOG)], 1, reserves=7),
    "reset of a log": Scenario(
        checks("key", LOG, 70), lambda limiter, _: limiter.reset("key", LOG), [("key", LOG)], later=1
    ),
    "eviction": Scenario(
        many_keys,
        checks("new", LOG),
        [("new", LOG), ("old:0", LOG), ("old:1", BUCKET), ("old:2", LOG)],
        later=1,
        evicted=("old:0", "old:1"),
    ),
    "a chain": Scenario(
        checks("key", LOG, 31), checks("key", f"{LOG}; {BUCKET}"), [("key", LOG), ("key", BUCKET)], chained=True
    ),
    "a chain of new counters": Scenario(
        checks("other", BUCKET),
        checks("key", CHAIN),
        [("key", limit) for limit in CHAIN.split("; ")],
        chained=True,
    ),
    "a chain of old counters": Scenario(
        checks("key", CHAIN, 3),
        checks("key", CHAIN),
        [("key", limit) for limit in CHAIN.split("; ")],
        chained=True,
    ),
    "a chain after a clock that had jumped": Scenario(
        checks("key", CHAIN, 3),
        checks("key", CHAIN),
        [("key", limit) for limit in CHAIN.split("; ")],
        later=-7 * 365 * 86400,
        chained=True,
    ),
    "a chain whose log lets a block go": Scenario(
        two_spans,
        checks("key", f"{BUCKET}; {LOG}"),
        [("key", BUCKET), ("key", LOG)],
        later=1801,
        chained=True,
    ),
    "a limit that grew": Scenario(checks("key", PLAN, 60), checks("key", PLAN_GROWN), [("key", PLAN_GROWN)]),
    "a bucket that becomes a log": Scenario(
        checks("key", PLAN, 60), checks("key", PLAN_OF_LOG), [("key", PLAN_OF_LOG)]
    ),
    "a log that becomes a bucket": Scenario(
        checks("key", PLAN_OF_LOG, 70), checks("key", PLAN_GROWN), [("key", PLAN_GROWN)]
    ),
    "a log that becomes a longer log": Scenario(
        checks("key", PLAN_OF_LOG, 70), checks("key", PLAN_OF_LONGER_LOG), [("key", PLAN_OF_LONGER_LOG)]
    ),
    "a small log that becomes a longer log": Scenario(
        checks("key", PLAN_OF_LOG, 11), checks("key", PLAN_OF_LONGER_LOG), [("key", PLAN_OF_LONGER_LOG)]
    ),
    "no free block": Scenario(
        full_region, checks("full", LOG), [("full", LOG), ("new", LOG), ("brief", BRIEF_LOG)], later=61, leaks=2048
    ),
    "a clock that had jumped": Scenario(checks("key", LOG, 5), checks("key", LOG), [("key", LOG)], later=-7200),
}


def open_limiter(path: Path, seconds: float) -> tuple[Limiter, FakeClock]:
    clock = FakeClock(seconds)
    return Limiter(f"shared://{path}", clock=clock, on_store_error="closed"), clock


def read_usage(limiter: Limiter, scenario: Scenario) -> list[int]:
    usage = []
    for key, limit in scenario.watched:
        state = limiter.peek(key, limit, 0)
        assert state.reason == "ok", state
        usage.append(state.limit - state.remaining)
    return usage


def crash_snapshots(path: Path, content: bytes, seconds: float, act: Act) -> list[bytes]:
    """Perform the act on a file; return the file at every line where it had changed, including the final state."""
    path.write_bytes(content)
    limiter, clock = open_limiter(path, seconds)
    store = limiter.store
    assert isinstance(store, SharedStore)
    memory = store.memory
    snapshots = [memory[:]]

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        if code.co_name in READ_ONLY_FUNCTIONS or not any(part in code.co_filename for part in TRACED_PATHS):
            return None
        if memory[:] != snapshots[-1]:
            snapshots.append(memory[:])
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act(limiter, clock)
    finally:
        sys.settrace(before)
    snapshots.append(memory[:])
    limiter.close()
    return snapshots[1:]
