# mypyc: compile
"""Fast path for several takes at once, without waiting.

Where a limit keeps a log, or a lock is not free at this instant, nothing is done, and the caller sends the whole batch
through `apply_within`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from crestgate.core.decision import Decision
from crestgate.errors import StoreError
from crestgate.stores.port import Member, Op, Outcome, Request, SingleTake
from crestgate.stores.shared.batch import decide_request, undo
from crestgate.stores.shared.location import Location
from crestgate.stores.shared.lock_sets import RANGE_STRIPES, release_range, try_all, try_range
from crestgate.stores.shared.locks import FIRST_STRIPE

if TYPE_CHECKING:
    from crestgate.stores.shared.store import SharedStore

__all__ = ["take_many"]


def take_many(store: SharedStore, takes: Sequence[SingleTake]) -> list[Decision] | None:
    """The decisions; None, and nothing is done, where the fast path does not suffice."""
    locations: list[Location] = []
    numbers: list[int] = []
    for algorithm, key, cost in takes:
        if algorithm.keeps_log or cost > algorithm.ceiling:
            return None
        location = store.digests.locate(algorithm.name, key)
        locations.append(location)
        numbers.append(FIRST_STRIPE + location.stripe)
    if not locations:
        return []
    if len(numbers) > 1:
        numbers = sorted(set(numbers))
    if store.anchor + store.nanoseconds() // 1000 >= store.next_size_check:
        store.corruption.check_size()
    locks = store.locks
    is_range = len(numbers) >= RANGE_STRIPES
    if not (try_range(locks, numbers[0], numbers[-1]) if is_range else try_all(locks, numbers)):
        return None
    try:
        return _take_locked(store, takes, locations)
    finally:
        if is_range:
            release_range(locks, numbers[0], numbers[-1])
        else:
            for number in numbers:
                locks.release(number)


def _take_locked(store: SharedStore, takes: Sequence[SingleTake], locations: list[Location]) -> list[Decision]:
    now: int = store.anchor + store.nanoseconds() // 1000
    table = store.table
    decisions: list[Decision] = []
    ticks: list[int] = []
    try:
        for i in range(len(takes)):  # two lists side by side: `zip` would cost as much as the rest of the loop
            algorithm, key, cost = takes[i]
            location = locations[i]
            decision = table.take(location, algorithm, cost, now) if table.load(location, algorithm) else None
            if decision is not None:
                tick: int = location.state.time
            else:  # a new counter, one written under another limit or before a clock step, or corrupt
                member = Member(key, algorithm, cost)
                outcome = decide_request(store, Op.TAKE, [member], [location], now, (location.stripe,))[0]
                decision = outcome.decision
                tick = outcome.tick
            decisions.append(decision)
            ticks.append(tick if decision.allowed else 0)
    except StoreError:  # no room, or a corrupt counter: the caller gets an error for all of them
        for i in range(len(decisions)):
            algorithm, key, cost = takes[i]
            request = Request(Op.TAKE, [Member(key, algorithm, cost)])
            undo(store, [(request, [locations[i]], [Outcome(decisions[i], ticks[i])])], now)
        raise
    return decisions
