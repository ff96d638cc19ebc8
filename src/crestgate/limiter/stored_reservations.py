"""Reservations that are known by an id, in every process on the same store.

The counters are charged by one TAKE. The book (reservations/port.py) then has a row with what each counter was charged
and when, and whoever has the id settles. A row passes these states, each change by compare-and-set:

    open ──────── settle, release, keep ───────► settling ─────► closed
      └── the end, on_expiry="release" ───► expiring ─────► released ── settle ──► settling ─────► closed

A settlement is decided when its row is `settling`: whoever comes later is told so. Then the counters are changed, under
an idempotency record of that row, and the row is closed. A process that is killed in between leaves a row that the next
sweep finishes; the record makes sure that the counters change once. Records last five minutes: a settlement that nobody
finishes for longer than REPEAT_US is not repeated, and what was reserved stays charged.

Slots of in-flight limits are entries that are known by their tick, and others may share it (see in_flight.py): what is
sent for a slot is sent once, by whoever has changed the row first, and never by a sweep that repeats. To extend moves
the entries, in three steps:

    the row says that the slots are renewed: nobody knows their ticks from here on
    RENEW
    the row has the new ticks, and the new end. If somebody has settled meanwhile, the extension releases the slots

A settlement that finds slots being renewed sends nothing for them. Whoever is killed in between leaves slots that are
free after their time to live, so there are never more holders than slots.

Everything here is without I/O: generators yield calls of the book and batches for the store, and the limiters run them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from secrets import token_hex, token_urlsafe
from typing import Any, Final, NamedTuple, SupportsIndex, TypeAlias

from crestgate.core.algorithms import build
from crestgate.core.algorithms.algorithm import Algorithm
from crestgate.core.bounds import MAX_COST, whole_cost
from crestgate.core.decision import Decision
from crestgate.core.limit import Limit
from crestgate.errors import (
    ReservationClosedError,
    StoreError,
    TooManyReservationsError,
    UnknownReservationError,
    input_error,
)
from crestgate.limiter.pending_check import PendingCheck
from crestgate.limiter.reservation import Actual, Settlement, charged_members, give_back, is_charged
from crestgate.limiter.reservation_terms import PreparedReservation, check_number, ttl_within_slots
from crestgate.reservations.port import ReservationBook, ReservationRow
from crestgate.stores.port import BatchOutcomes, IdempotencyRecord, Member, Op, Outcome, Request

__all__ = [
    "MAX_OPEN",
    "BookCall",
    "Extension",
    "Grant",
    "Holder",
    "Steps",
    "StoredReservations",
    "check_actual",
    "is_reservation_id",
    "is_unreserved",
]

MAX_OPEN: Final = 10_000
"""Reservations of one caller of a service that are not settled, and did not end more than LATE_US ago."""
MAX_OPEN_OF_LIBRARY: Final = 1_000_000
"""The same for all processes that use the store by the library: they are one caller, and no strangers."""
MAX_ROW_BYTES: Final = 65_536
"""Of the keys and names in a row: a caller's rows are stored until LATE_US after their end."""
MAX_CHANGES: Final = 20
"""Attempts to change a row that others change, too."""
LATE_US: Final = 3_600_000_000
"""How long after its end a reservation can still be settled."""
CLOSED_US: Final = 300_000_000
"""How long a closed reservation is remembered."""
RETRY_US: Final = 2_000_000
"""When a sweep takes over a settlement that is not finished."""
REPEAT_US: Final = 240_000_000
"""How long a settlement may be repeated: a minute less than idempotency records last, for clocks that differ."""

_ID: Final = re.compile(r"[A-Za-z0-9_-]{22}")
_UNRESERVED: Final = re.compile(r"none-[0-9a-f]{16}")
"""Of a reservation for which the failure policy has answered: nothing was charged, so there is nothing to settle."""
_FINGERPRINT: Final = bytes(16)


class BookCall(NamedTuple):
    """A step: call the book. The result is that of the function."""

    book: ReservationBook
    call: Callable[[], Any]


Step: TypeAlias = "BookCall | list[Request]"
Steps: TypeAlias = "Generator[BookCall | list[Request], Any, Any]"


class Grant(NamedTuple):
    """The result of a reservation. `id` is None if it was denied."""

    id: str | None
    expires_us: int
    decision: Decision
    outcomes: Sequence[Outcome] = ()


class Extension(NamedTuple):
    """The new end of a reservation, in microseconds since the epoch."""

    expires_us: int
    extended: bool


class Holder(NamedTuple):
    """Who made a reservation, and the keys of its counters: none once it is closed."""

    owner: str
    keys: list[str]


class Charge(NamedTuple):
    """What a reservation has charged to one counter."""

    key: str
    counter: str
    label: str
    limit: str
    store: str | None
    names: tuple[str, ...]
    """By which `settle` may name it."""
    cost: int
    tick: int | None
    """None for a slot that is being renewed, or is lost."""
    inline: bool
    holds: bool = False
    """Whether it is slots of an in-flight limit."""
    binds: bool = True
    """False for a shadow rule."""
    lease: bool = False

    def algorithm(self) -> Algorithm:
        limit = Limit.parse(self.limit)
        algorithm = build(replace(limit, lease=True) if self.lease else limit, self.counter, self.label)
        algorithm.store = self.store
        algorithm.inline = self.inline
        return algorithm


class Terms(NamedTuple):
    """The content of a row."""

    state: str
    on_expiry: str
    expires_us: int
    charges: list[Charge]
    actual: list[int] | None = None
    """While it is settled: what is to stay charged, for each charge."""
    since_us: int = 0
    """While it is settled, or its slots are renewed: since when."""
    was_released: bool = False
    """While it is settled: nothing was charged any more."""

    def encode(self) -> str:
        return json.dumps(self)  # a tuple is a list in JSON

    @property
    def is_open(self) -> bool:
        return self.state != "closed"

    @property
    def slots(self) -> list[int]:
        """Which charges are slots of in-flight limits."""
        return [index for index, charge in enumerate(self.charges) if charge.holds and charge.cost]

    def with_ticks(self, ticks: Mapping[int, int | None]) -> Terms:
        """The same with other ticks of some charges."""
        charges = [
            charge._replace(tick=ticks[index]) if index in ticks else charge
            for index, charge in enumerate(self.charges)
        ]
        return self._replace(charges=charges)

    @property
    def due_us(self) -> int:
        """When a sweep must look at it; `since_us` is when it was closed, once it is."""
        if self.state in ("settling", "expiring"):
            return self.since_us + RETRY_US
        if self.state == "closed":
            return self.since_us + CLOSED_US
        if self.state == "open" and self.on_expiry == "release":
            return self.expires_us
        return self.expires_us + LATE_US


def _decode(row: ReservationRow) -> Terms:
    state, on_expiry, expires_us, charges, actual, since_us, was_released = json.loads(row.body)
    read = [Charge(*charge)._replace(names=tuple(charge[5])) for charge in charges]
    return Terms(state, on_expiry, expires_us, read, actual, since_us, was_released)


class StoredReservations:
    """Makes and settles the reservations of one store. `now` reads the store's clock, in microseconds."""

    def __init__(self, book: ReservationBook, now: Callable[[], int]) -> None:
        self.book = book
        self._now = now

    def reserve(self, prepared: PreparedReservation, ttl_us: int | None, on_expiry: str, owner: str) -> Steps:
        """Decide a check and keep it under an id; a Grant. Without a time to live it has the default one."""
        check, names = prepared.check, prepared.names
        check_number(len(check.members))
        _check_size(prepared)
        whole_ttl_us = ttl_within_slots(ttl_us, [member.algorithm for member in check.members])
        expires_us = self._now() + whole_ttl_us  # read before slots are taken: it ends before they do
        outcomes = (yield [check])[0] if check.applies else []
        decision = check.finish(outcomes)
        if not decision.allowed:
            return Grant(None, expires_us, decision, outcomes)
        charges = [
            Charge(
                member.key,
                member.algorithm.name,
                member.algorithm.label,
                str(member.algorithm.limit),
                member.algorithm.store,
                tuple(names[index]),
                member.cost,
                outcome.tick,
                member.algorithm.inline,
                member.algorithm.holds,
                member.binds,
                member.algorithm.lease,
            )
            for index, member, outcome in charged_members(check, outcomes)
        ]
        if not is_charged(check, outcomes) and decision.reason != "no_rule":
            return Grant(f"none-{token_hex(8)}", expires_us, decision, outcomes)
        row = _row(token_urlsafe(16), owner, 1, Terms("open", on_expiry, expires_us, charges))
        try:
            max_open = MAX_OPEN if owner else MAX_OPEN_OF_LIBRARY
            added = yield BookCall(self.book, partial(self.book.add, row, max_open))
        except StoreError:  # perhaps it is in the book all the same, and a sweep gives back: slots must not be twice
            yield from _give_back(check, outcomes, with_slots=on_expiry == "keep")
            raise
        if not added:
            yield from _give_back(check, outcomes)
            raise TooManyReservationsError(
                f"this caller has {max_open:,} reservations that are not settled, which is the maximum: settle or "
                "release them; those that nobody settles count for an hour after their end"
            )
        return Grant(row.id, expires_us, decision, outcomes)

    def settle(self, reservation_id: str, actual: Actual | None, owner: str | None) -> Steps:
        """Change what is charged to what was used, once; a Settlement. `actual` is None to keep what was reserved, and
        `owner` for a caller who may settle all. ReservationError if it cannot be settled."""
        if is_unreserved(reservation_id):
            return Settlement(False, False)
        now = 0
        for _ in range(MAX_CHANGES):
            row, terms = yield from self._find(reservation_id, owner)
            if terms.state in ("closed", "settling"):
                raise ReservationClosedError("this reservation was settled already; the first settlement counts")
            if terms.state == "expiring":
                if not (yield from self._finish(row, terms)):
                    raise StoreError("the reservation has ended, and is not given back yet: try again soon")
                continue
            now = self._now()
            settling = terms._replace(
                state="settling",
                actual=check_actual(terms.charges, actual),
                since_us=now,
                was_released=terms.state == "released",
            )
            taken = _row(row.id, row.owner, row.version + 1, settling)
            if (yield BookCall(self.book, partial(self.book.replace, taken))):
                if not (yield from self._finish(taken, settling, with_slots=True)):
                    raise StoreError(
                        "the settlement is recorded, but the store could not be reached; it is tried again soon"
                    )
                return Settlement(True, now > terms.expires_us)
        raise StoreError("others change this reservation all the time")

    def extend(self, reservation_id: str, ttl_us: int, owner: str | None) -> Steps:
        """Move the end of a reservation to `ttl_us` from now; an Extension."""
        if is_unreserved(reservation_id):
            return Extension(self._now() + ttl_us, False)
        for _ in range(MAX_CHANGES):
            row, terms = yield from self._find(reservation_id, owner)
            now = self._now()
            if terms.state != "open":
                raise ReservationClosedError("this reservation was settled already, or has ended: make a new one")
            if now > terms.expires_us:
                raise ReservationClosedError("this reservation has ended: settle it, and make a new one")
            slots = terms.slots
            ttl_us = ttl_within_slots(ttl_us, [terms.charges[slot].algorithm() for slot in slots])
            missing = [terms.charges[slot] for slot in slots if terms.charges[slot].tick is None]
            if missing and now - terms.since_us <= RETRY_US:
                raise StoreError("another call extends this reservation at the moment: try again")
            if any(slot.binds for slot in missing):
                raise _slots_lost()
            end_us = now + ttl_us
            if slots:
                moving = terms.with_ticks(dict.fromkeys(slots))._replace(since_us=now)
            else:
                moving = terms._replace(expires_us=end_us)
            taken = _row(row.id, row.owner, row.version + 1, moving)
            if (yield BookCall(self.book, partial(self.book.replace, taken))):
                if slots:
                    yield from self._renew(taken, moving, terms, end_us)
                return Extension(end_us, True)
        raise StoreError("others change this reservation all the time")

    def _renew(self, row: ReservationRow, moving: Terms, before: Terms, end_us: int) -> Generator[Step, Any, None]:
        """Renew the slots of a row that says so, and write their new ticks and the new end. ReservationClosedError if
        slots are lost, or somebody has settled meanwhile."""
        held = [slot for slot in before.slots if before.charges[slot].tick is not None]
        members = [_slot(before.charges[slot]) for slot in held]
        outcomes: list[Outcome] = (yield [Request(Op.RENEW, members)])[0] if members else []
        unknown = len(outcomes) != len(members)
        ticks: dict[int, int | None] = {}
        if not unknown:
            ticks = {s: o.tick if o.decision.allowed else None for s, o in zip(held, outcomes, strict=True)}
        lost = unknown or any(tick is None and before.charges[slot].binds for slot, tick in ticks.items())
        after = moving.with_ticks(ticks)._replace(since_us=0)
        if not lost:
            after = after._replace(expires_us=end_us)
        written = _row(row.id, row.owner, row.version + 1, after)
        # If this raises StoreError, the row may have the ticks, and who settles releases: this must not do it as well.
        if not (yield BookCall(self.book, partial(self.book.replace, written))):
            renewed = [_slot(after.charges[slot]) for slot, tick in ticks.items() if tick is not None]
            if renewed:
                yield [Request(Op.GIVE_BACK, renewed)]
            raise ReservationClosedError("this reservation was settled or has ended meanwhile: make a new one")
        if unknown:
            raise StoreError(
                "the store could not be reached, and it is unknown whether the slots were renewed: settle this "
                "reservation, and make a new one"
            )
        if lost:
            raise _slots_lost()

    def look_up(self, reservation_id: str) -> Steps:
        """Who made a reservation, and the keys of its counters; None if nobody knows."""
        try:
            row, terms = yield from self._find(reservation_id, None)
        except UnknownReservationError:
            return None
        return Holder(row.owner, sorted({charge.key for charge in terms.charges}))

    def sweep(self, count: int) -> Steps:
        """Give back what has ended, finish what others have begun, and forget what is over; how many rows are done.
        A row that fails does not hold up the others; its error is raised after them."""
        now = self._now()
        rows: list[ReservationRow] = yield BookCall(self.book, partial(self.book.due, now, count))
        done = 0
        failure: Exception | None = None
        for row in rows:
            try:
                done += yield from self._sweep_row(row, now)
            except (StoreError, ValueError) as error:  # ValueError: what a later version may have written
                failure = failure or error
        if failure is not None:
            raise failure
        return done

    def _sweep_row(self, row: ReservationRow, now: int) -> Generator[Step, Any, bool]:
        """False if the store failed."""
        terms = _decode(row)
        if terms.state in ("settling", "expiring"):
            return (yield from self._finish(row, terms))
        if terms.state != "open" or terms.on_expiry != "release":
            yield BookCall(self.book, partial(self.book.delete, row))
            return True
        expiring = terms._replace(state="expiring", actual=[0] * len(terms.charges), since_us=now)
        taken = _row(row.id, row.owner, row.version + 1, expiring)
        if not (yield BookCall(self.book, partial(self.book.replace, taken))):
            return True  # somebody else has it
        return (yield from self._finish(taken, expiring, with_slots=True))

    def _find(self, reservation_id: str, owner: str | None) -> Generator[Step, Any, tuple[ReservationRow, Terms]]:
        row: ReservationRow | None = None
        if is_reservation_id(reservation_id):
            row = yield BookCall(self.book, partial(self.book.find, reservation_id))
        if row is None or (owner is not None and row.owner != owner):
            raise UnknownReservationError("there is no such reservation: it may have been settled a while ago")
        return row, _decode(row)

    def _finish(self, row: ReservationRow, terms: Terms, *, with_slots: bool = False) -> Generator[Step, Any, bool]:
        """Change the counters of a reservation that is being settled, and close it. False if the store failed.

        `with_slots` the first time only: a store of several nodes may decide a part of a batch, fail, and forget its
        record, and to release a slot twice could release that of somebody else.
        """
        now = self._now()
        if with_slots and (slots := _held_slots(terms)):
            yield [Request(Op.GIVE_BACK, slots)]
        if now - terms.since_us <= REPEAT_US:
            record = IdempotencyRecord(f"reservation:{row.id}:{terms.state}", _FINGERPRINT, b"", terms.since_us)
            batch = _changes(terms, record)
            if batch:
                replies: BatchOutcomes = yield batch
                decided = all(len(reply) == len(one.members) for one, reply in zip(batch, replies, strict=True))
                if not decided and (record.replay is None or record.pending):
                    return False
        released = terms.state == "expiring"
        after = terms._replace(
            state="released" if released else "closed",
            actual=None,
            since_us=now,
            charges=terms.charges if released else [],
        )
        closed = _row(row.id, row.owner, row.version + 1, after)
        yield BookCall(self.book, partial(self.book.replace, closed))
        return True


def is_unreserved(reservation_id: str) -> bool:
    """Whether this is the id of a reservation for which the failure policy has answered."""
    return _UNRESERVED.fullmatch(reservation_id) is not None


def is_reservation_id(reservation_id: str) -> bool:
    """Whether a reservation may have this id."""
    return _ID.fullmatch(reservation_id) is not None


def check_actual(charges: Sequence[Charge], actual: Actual | None) -> list[int]:
    """What is to stay charged for each charge: nothing of in-flight limits. A ValueError names what is wrong."""
    if actual is None:
        return [0 if charge.holds else charge.cost for charge in charges]
    if not isinstance(actual, Mapping):
        used = whole_actual(actual, "actual")
        if used and len({charge.cost for charge in charges if not charge.holds}) > 1:
            names = ", ".join(sorted({charge.names[0] for charge in charges if not charge.holds}))
            raise input_error(
                ValueError,
                "actual",
                f"must be given for each limit, since they were reserved with several costs: {names}",
            )
        return [0 if charge.holds else used for charge in charges]
    values = {name: whole_actual(value, f"actual.{name}") for name, value in actual.items()}
    known = {name for charge in charges if not charge.holds for name in charge.names}
    slots = {name for charge in charges if charge.holds for name in charge.names} - known
    for name in values:
        if name in slots:
            raise input_error(
                ValueError,
                f"actual.{name}",
                "is an in-flight limit, whose slots are released in any case: leave it out",
            )
        if name not in known:
            listed = ", ".join(sorted({charge.names[0] for charge in charges if not charge.holds})) or "none"
            raise input_error(
                ValueError, f"actual.{name}", f"is not a limit of this reservation; its limits are {listed}"
            )
    return [
        0 if charge.holds else next((values[name] for name in charge.names if name in values), charge.cost)
        for charge in charges
    ]


def whole_actual(value: SupportsIndex, field: str) -> int:
    used = whole_cost(value, field)
    if isinstance(value, bool) or not 0 <= used <= MAX_COST:
        raise input_error(ValueError, field, f"must be a whole number from 0 to {MAX_COST}, not {value!r}")
    return used


def _row(reservation_id: str, owner: str, version: int, terms: Terms) -> ReservationRow:
    return ReservationRow(reservation_id, owner, version, terms.due_us, terms.is_open, terms.encode())


def _check_size(prepared: PreparedReservation) -> None:
    """ValueError, before anything is charged, for keys and names that are too long together."""
    texts = [
        (member.key, member.algorithm.name, member.algorithm.label, str(member.algorithm.limit), tuple(names))
        for member, names in zip(prepared.check.members, prepared.names, strict=False)
    ]
    size = len(json.dumps(texts))
    if size > MAX_ROW_BYTES:
        raise input_error(
            ValueError,
            "limits",
            f"have {size:,} bytes of keys and names together; a reservation has {MAX_ROW_BYTES:,} at most: use shorter "
            "ones, or reserve fewer limits",
        )


def _changes(terms: Terms, record: IdempotencyRecord) -> list[Request]:
    """The requests that change what is charged to `actual`, without slots."""
    back: list[Member] = []
    more: list[Member] = []
    for charge, actual in zip(terms.charges, terms.actual or [], strict=True):
        if charge.holds:
            continue
        cost = 0 if terms.was_released else charge.cost
        if actual < cost:
            back.append(Member(charge.key, charge.algorithm(), charge.cost, True, charge.tick or 0, cost - actual))
        elif actual > cost:
            more.append(Member(charge.key, charge.algorithm(), actual - cost))
    batch = [Request(Op.GIVE_BACK, back, record)] if back else []
    return [*batch, Request(Op.CHARGE, more, record)] if more else batch


def _held_slots(terms: Terms) -> list[Member]:
    """The slots to release at a settlement: not those that were released before, or are being renewed."""
    if terms.was_released:
        return []
    return [_slot(terms.charges[slot]) for slot in terms.slots if terms.charges[slot].tick is not None]


def _slot(charge: Charge) -> Member:
    """A slot whose tick is known, to renew or release it."""
    return Member(charge.key, charge.algorithm(), charge.cost, True, charge.tick or 0, charge.cost)


def _slots_lost() -> ReservationClosedError:
    return ReservationClosedError(
        "a slot of this reservation has ended, and another may have it: settle this one, make a new one, and extend it "
        "earlier"
    )


def _give_back(check: PendingCheck, outcomes: Sequence[Any], with_slots: bool = True) -> Generator[Step, Any, None]:
    if is_charged(check, outcomes):
        request = give_back(check, outcomes)
        members = [member for member in request.members if with_slots or not member.algorithm.holds]
        if members:
            yield [Request(request.op, members)]
