# mypyc: compile
"""Fast path for several takes at once, without waiting.

For counters that exist, under the limits that wrote them. Where one does not, or a lock is not free at this instant,
nothing is done, and the caller sends the whole batch through `apply_within`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from crestgate.core.decision import Decision
from crestgate.errors import StoreError
from crestgate.stores.decide import decide
from crestgate.stores.port import Member, Op, Outcome, Request, SingleTake
from crestgate.stores.shared.batch import undo
from crestgate.stores.shared.digests import Location
from crestgate.stores.shared.lock_sets import RANGE_STRIPES, release_range, try_all, try_range
from crestgate.stores.shared.locks import FIRST_STRIPE
from crestgate.stores.shared.slot import SlotCounter

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
        numbers.append(FIRST_STRIPE + location[1])
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


def _take_locked(store: SharedStore, takes: Sequence[SingleTake], locations: list[Location]) -> list[Decision] | None:
    now: int = store.anchor + store.nanoseconds() // 1000
    table = store.table
    slots: list[int] = []
    for digest, stripe in locations:
        slot = table.find(stripe, digest)
        if slot < 0:
            return None
        slots.append(slot)
    outcomes: list[Outcome] = []
    try:
        for i in range(len(takes)):  # three lists side by side: `zip` would cost as much as the rest of the loop
            algorithm, key, cost = takes[i]
            digest, stripe = locations[i]
            slot = slots[i]
            outcome = table.try_take(algorithm, cost, stripe, slot, now)
            if outcome is None:  # written under another limit, before a clock step, or corrupt
                pinned = {stripe * table.slots + slot}
                counter = SlotCounter(store, algorithm, digest, stripe, slot, now, pinned, (stripe,))
                outcome = decide(Op.TAKE, [Member(key, algorithm, cost)], [counter], now)[0]
            outcomes.append(outcome)
    except StoreError:  # a corrupt counter: the caller gets an error for all of them
        for i in range(len(outcomes)):
            algorithm, key, cost = takes[i]
            undo(store, [(Request(Op.TAKE, [Member(key, algorithm, cost)]), [locations[i]], [outcomes[i]])], now)
        raise
    return [outcome.decision for outcome in outcomes]
