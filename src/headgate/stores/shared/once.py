"""A batch of the shared store with requests that are decided once: their records are locked with the counters.

What is decided and what is kept of it stand or fall together: on any error, records that were written are forgotten
and charges are given back before the locks are.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headgate.stores.keeping import pack_kept
from headgate.stores.port import Once, Op, Outcome, Request
from headgate.stores.records import answered_before, check_kept, grouped
from headgate.stores.shared.locks import FIRST_STRIPE

if TYPE_CHECKING:
    from headgate.stores.shared.store import SharedStore

__all__ = ["apply_once"]


def apply_once(store: SharedStore, batch: Sequence[Request], patience: float) -> list[list[Outcome]]:
    """Lock, decide, keep, unlock; a LockBusy when a lock is not free within so many seconds, and nothing is done."""
    check_kept(batch)
    deadline = time.monotonic() + patience
    records = store.records or store.open_records(patience)
    numbers = [store.first_record + stripe for stripe in records.stripes_of(batch)]
    places = [[store.digests.locate(m.algorithm.name, m.key) for m in request.members] for request in batch]
    held = {stripe for request in places for _, stripe in request}
    numbers += [FIRST_STRIPE + stripe for stripe in held]
    numbers.sort()
    store.locks.acquire_all(numbers, max(deadline - time.monotonic(), 0.0))
    decided: list[tuple[Request, list[tuple[bytes, int]], list[Outcome]]] = []
    kept: list[Once] = []
    replies: list[list[Outcome]] = []
    now = 0
    try:
        now = store.anchor + store.nanoseconds() // 1000
        for group in grouped(batch):
            once = group[0].once
            first = len(replies)
            if once is not None and answered_before(records, once, group[0].op, now):
                replies += [[] for _ in group]
                if group[0].op is Op.CLAIM and once.kept is None and not once.pending:
                    kept.append(once)
                continue
            for request in group:
                where = places[len(replies)]
                outcomes = store.decide(request.op, request.members, where, now, held)
                decided.append((request, where, outcomes))
                replies.append(outcomes)
            if once is not None:
                records.keep(once.name, pack_kept(once, now, replies[first:]), now)
                kept.append(once)
        return replies
    except BaseException:
        for once in kept:
            records.forget(once.name)
        store.undo(decided, now)
        raise
    finally:
        for number in numbers:
            store.locks.release(number)
