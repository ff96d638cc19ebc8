"""Several of the simplest takes of the shared store at once, without ceremony and without waiting.

For counters that are there, under the limits that wrote them: the usual ones. Where one is not, or a lock is not free
at this instant, nothing is done, and the whole batch goes the longer way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headgate.core.decision import Decision
from headgate.errors import StoreError
from headgate.stores.deciding import decide
from headgate.stores.port import Member, Op, Outcome, Request, Take
from headgate.stores.shared.cell import SlotCell
from headgate.stores.shared.locks import FIRST_STRIPE, WIDE

if TYPE_CHECKING:
    from headgate.stores.shared.store import SharedStore

__all__ = ["take_many"]


def take_many(store: SharedStore, takes: Sequence[Take]) -> list[Decision] | None:
    """The decisions; None, and nothing is done, where more care is needed."""
    places: list[tuple[bytes, int]] = []
    numbers: list[int] = []
    for algorithm, key, cost in takes:
        if algorithm.keeps_log or cost > algorithm.ceiling:
            return None
        place = store.digests.locate(algorithm.name, key)
        places.append(place)
        numbers.append(FIRST_STRIPE + place[1])
    if not places:
        return []
    if len(numbers) > 1:
        numbers = sorted(set(numbers))
    if store.anchor + store.nanoseconds() // 1000 >= store.next_size_check:
        store.damage.check_size()
    locks = store.locks
    wide = len(numbers) >= WIDE
    if not (locks.try_range(numbers[0], numbers[-1]) if wide else locks.try_all(numbers)):
        return None
    try:
        return decided(store, takes, places)
    finally:
        if wide:
            locks.release_range(numbers[0], numbers[-1])
        else:
            for number in numbers:
                locks.release(number)


def decided(store: SharedStore, takes: Sequence[Take], places: list[tuple[bytes, int]]) -> list[Decision] | None:
    """The same, under the locks."""
    now: int = store.anchor + store.nanoseconds() // 1000
    slots: list[int] = []
    for digest, stripe in places:
        slot = store.find_slot(stripe, digest)
        if slot < 0:
            return None
        slots.append(slot)
    outcomes: list[Outcome] = []
    try:
        for i in range(len(takes)):  # three lists side by side: `zip` would cost as much as what is done here
            algorithm, key, cost = takes[i]
            digest, stripe = places[i]
            slot = slots[i]
            outcome = store.take_plain(algorithm, cost, stripe, slot, now)
            if outcome is None:  # written under another limit, before a clock jumped, or damaged: its slot is there
                pinned = {stripe * store.slots + slot}
                cell = SlotCell(store, algorithm, digest, stripe, slot, now, pinned, (stripe,))
                outcome = decide(Op.TAKE, [Member(key, algorithm, cost)], [cell], now)[0]
            outcomes.append(outcome)
    except StoreError:  # a damaged counter: nobody is told of the others
        for i in range(len(outcomes)):
            algorithm, key, cost = takes[i]
            store.undo([(Request(Op.TAKE, [Member(key, algorithm, cost)]), [places[i]], [outcomes[i]])], now)
        raise
    return [outcome.decision for outcome in outcomes]
