"""What a shared file forgets when its clock is set back: counters that were as good as new before.

A slot that has expired is given to another counter some time, or never. If the clock steps back, its old state would
come back to life; other stores may have dropped it by then. So all of them forget it at the step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headgate.stores.shared.store import SharedStore

__all__ = ["follow_restart", "forget_drained"]


def forget_drained(store: SharedStore, stripe: int, now: int) -> None:
    """Clear every slot whose counter is as good as new at this time, under the stripe's lock."""
    for slot in range(store.slots):
        expiry, _ = store.meta(stripe, slot)
        if 0 < expiry <= now:
            store.clear_slot(stripe, slot)


def follow_restart(store: SharedStore, now: int) -> None:
    """After a restart of the machine, whose wall clock may be behind: the same, by the latest use of any counter.
    Nobody else is here yet: the anchor is not set."""
    latest = 0
    for stripe in range(store.stripes):
        for slot in range(store.slots):
            latest = max(latest, store.meta(stripe, slot)[1])
    if now < latest:
        for stripe in range(store.stripes):
            forget_drained(store, stripe, latest)
