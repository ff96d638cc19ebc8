# mypyc: compile
"""Deciding a batch on the shared store: lock the stripes, decide, unlock.

A request that cannot be decided (no room, a corrupt counter) does not fail the others of its batch.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from crestgate.errors import StoreError
from crestgate.stores.decide import decide, give_back_members
from crestgate.stores.port import Member, Op, Outcome, PartialStoreError, Request
from crestgate.stores.shared.journal import ChainCommit
from crestgate.stores.shared.location import Location
from crestgate.stores.shared.lock_sets import RANGE_STRIPES, acquire_all, release_range, try_range
from crestgate.stores.shared.locks import FIRST_STRIPE
from crestgate.stores.shared.slot import SlotCounter

if TYPE_CHECKING:
    from crestgate.stores.shared.store import SharedStore

__all__ = ["Decided", "apply_batch", "decide_request", "locate_members", "undo"]

Decided = tuple[Request, list[Location], list[Outcome]]
"""A request, the locations of its counters, and what was decided; no outcomes if that failed."""


def locate_members(store: SharedStore, batch: Sequence[Request]) -> list[list[Location]]:
    return [[store.digests.locate(m.algorithm.name, m.key) for m in request.members] for request in batch]


def apply_batch(store: SharedStore, batch: Sequence[Request], timeout: float) -> list[list[Outcome]]:
    """LockBusyError, and nothing is decided, when a stripe is not free within `timeout` seconds."""
    locks = store.locks
    locations = locate_members(store, batch)
    stripes = sorted({location.stripe for request in locations for location in request})
    numbers = [FIRST_STRIPE + stripe for stripe in stripes]
    is_range = len(numbers) >= RANGE_STRIPES and try_range(locks, numbers[0], numbers[-1])
    if len(numbers) == 1:
        locks.acquire(numbers[0], timeout)
    elif numbers and not is_range:
        acquire_all(locks, numbers, timeout)
    decided: list[Decided] = []
    held: Container[int] = range(stripes[0], stripes[-1] + 1) if is_range else stripes
    now = 0
    try:
        now = store.anchor + store.nanoseconds() // 1000
        errors = decide_each(store, batch, locations, now, held, decided)
        if not errors:
            return [outcomes for _, _, outcomes in decided]
    except BaseException:
        undo(store, decided, now)
        raise
    finally:
        if is_range:
            release_range(locks, numbers[0], numbers[-1])
        else:
            for number in numbers:
                locks.release(number)
    raise PartialStoreError(
        [[errors[i]] * len(batch[i].members) if i in errors else decided[i][2] for i in range(len(batch))]
    )


def decide_each(
    store: SharedStore,
    batch: Sequence[Request],
    locations: list[list[Location]],
    now: int,
    held: Container[int],
    decided: list[Decided],
) -> dict[int, StoreError]:
    """Decide the requests of a batch, whose stripes are locked. The errors of those that failed, by position; the
    error of a single request is raised."""
    errors: dict[int, StoreError] = {}
    for i in range(len(batch)):
        request, where = batch[i], locations[i]
        try:
            outcomes = decide_fast(store, request, where, now)
            if outcomes is None:
                outcomes = decide_request(store, request.op, request.members, where, now, held)
        except StoreError as error:
            if len(batch) == 1:
                raise
            errors[i] = error
            outcomes = []
        decided.append((request, where, outcomes))
    return errors


def decide_fast(store: SharedStore, request: Request, where: list[Location], now: int) -> list[Outcome] | None:
    """Fast path for one TAKE of a counter that exists; None in every other case."""
    if request.op is not Op.TAKE or len(where) != 1:
        return None
    member = request.members[0]
    algorithm = member.algorithm
    if member.peeks or member.cost > algorithm.ceiling:
        return None
    location = where[0]
    table = store.table
    decision = table.take(location, algorithm, member.cost, now) if table.load(location, algorithm) else None
    if decision is None:
        return None
    return [Outcome(decision, location.state.time if decision.allowed else 0)]


def decide_request(
    store: SharedStore, op: Op, members: Sequence[Member], where: list[Location], now: int, held: Container[int]
) -> list[Outcome]:
    """One request, all or nothing. All stripes in `held` are locked, its own among them."""
    if len(members) < 2 or op is Op.PEEK or op is Op.RENEW:  # each renewal counts for itself
        return decide(op, members, load_counters(store, op, members, where, now, held, None), now)
    chain = ChainCommit(store.journals, where[0].stripe)
    try:
        return decide(op, members, load_counters(store, op, members, where, now, held, chain), now)
    finally:  # what could not be decided has been given back
        chain.finish()


def load_counters(
    store: SharedStore,
    op: Op,
    members: Sequence[Member],
    where: list[Location],
    now: int,
    held: Container[int],
    chain: ChainCommit | None,
) -> list[SlotCounter]:
    """The counters of one request; their slots are not evicted until it is decided."""
    table = store.table
    pinned: set[int] = set()
    counters = []
    for member, location in zip(members, where, strict=True):
        digest, stripe = location.digest, location.stripe
        slot = table.find(stripe, digest)
        if slot >= 0:
            pinned.add(stripe * table.slots + slot)
        counter = SlotCounter(store, member.algorithm, digest, stripe, slot, now, pinned, held, chain)
        if op is Op.TAKE:
            counter.touch()
        counters.append(counter)
    return counters


def undo(store: SharedStore, decided: Sequence[Decided], now: int) -> None:
    """Give back all charges of a batch that failed: a caller that gets an error must not have been charged."""
    for request, where, outcomes in reversed(decided):
        if outcomes and request.op is Op.TAKE and all(o.decision.allowed for o in outcomes):
            with suppress(StoreError):  # corrupt, and reset: there is nothing left to give back
                decide_request(store, Op.GIVE_BACK, give_back_members(request.members, outcomes), where, now, ())
