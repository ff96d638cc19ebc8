# mypyc: compile
"""A batch of the shared store with idempotent requests: their records are locked together with the counters.

A decision and its record are written together or not at all: on any error, records that were written are deleted and
charges are given back before the locks are released.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from crestgate.stores.idempotency import check_record_size, group_by_record, replay_or_claim
from crestgate.stores.idempotency_codec import encode_record
from crestgate.stores.port import IdempotencyRecord, Op, Outcome, Request
from crestgate.stores.shared.batch import Decided, decide_request, locate_members, undo
from crestgate.stores.shared.lock_sets import acquire_all
from crestgate.stores.shared.locks import FIRST_STRIPE

if TYPE_CHECKING:
    from crestgate.stores.shared.store import SharedStore

__all__ = ["apply_idempotent"]


def apply_idempotent(store: SharedStore, batch: Sequence[Request], timeout: float) -> list[list[Outcome]]:
    """LockBusyError, and nothing is decided, when a lock is not free within `timeout` seconds."""
    check_record_size(batch)
    deadline = time.monotonic() + timeout
    records = store.records or store.open_records(timeout)
    locations = locate_members(store, batch)
    held = {location.stripe for request in locations for location in request}
    numbers = [store.first_record + stripe for stripe in records.stripes_of(batch)]
    numbers += [FIRST_STRIPE + stripe for stripe in held]
    numbers.sort()
    acquire_all(store.locks, numbers, max(deadline - time.monotonic(), 0.0))
    decided: list[Decided] = []
    written: list[IdempotencyRecord] = []
    replies: list[list[Outcome]] = []
    now = 0
    try:
        now = store.anchor + store.nanoseconds() // 1000
        for group in group_by_record(batch):
            record = group[0].record
            first = len(replies)
            if record is not None and replay_or_claim(records, record, group[0].op, now):
                replies += [[] for _ in group]
                if group[0].op is Op.CLAIM and record.replay is None and not record.pending:
                    written.append(record)
                continue
            for request in group:
                where = locations[len(replies)]
                outcomes = decide_request(store, request.op, request.members, where, now, held)
                decided.append((request, where, outcomes))
                replies.append(outcomes)
            if record is not None:
                records.put(record.name, encode_record(record, now, replies[first:]), now)
                written.append(record)
        return replies
    except BaseException:
        for record in written:
            records.delete(record.name)
        undo(store, decided, now)
        raise
    finally:
        for number in numbers:
            store.locks.release(number)
