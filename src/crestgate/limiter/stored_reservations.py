"""Reservations that are known by an id, in every process on the same store.

The counters are charged by one TAKE. The book (reservations/port.py) then has a row with what each counter was charged
and when, and whoever has the id settles. A row passes these states, each change by compare-and-set:

    open ──────── settle, release, keep ───────► settling ─────► closed
      └── the end, on_expiry="release" ───► expiring ─────► released ── settle ──► settling ─────► closed

A settlement is decided when its row is `settling`: whoever comes later is told so. Then the counters are changed, under
an idempotency record of that row, and the row is closed. A process that is killed in between leaves a row that the next
sweep finishes; the record makes sure that the counters change once. Records last five minutes: a settlement that nobody
finishes for longer than REPEAT_US is not repeated, and what was reserved stays charged.

Everything here is without I/O: generators yield calls of the book and batches for the store, and the limiters run them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Mapping, Sequence
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
from crestgate.limiter.reservation_terms import PreparedReservation
from crestgate.reservations.port import ReservationBook, ReservationRow
from crestgate.stores.port import BatchOutcomes, IdempotencyRecord, Member, Op, Outcome, Request

__all__ = [
    "MAX_LIMITS",
    "MAX_OPEN",
    "BookCall",
    "Extension",
    "Grant",
    "Steps",
    "StoredReservations",
    "check_actual",
    "is_reservation_id",
    "is_unreserved",
]

MAX_LIMITS: Final = 100
"""Of one reservation: all of them are decided in one step, and everybody else waits for it."""
MAX_OPEN: Final = 10_000
"""Open reservations of one caller."""
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
    tick: int
    inline: bool

    def algorithm(self) -> Algorithm:
        algorithm = build(Limit.parse(self.limit), self.counter, self.label)
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
    """While it is settled: since when."""
    was_released: bool = False
    """While it is settled: nothing was charged any more."""

    def encode(self) -> str:
        return json.dumps(self)  # a tuple is a list in JSON

    @property
    def is_open(self) -> bool:
        return self.state != "closed"

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
    read = [Charge._make(charge)._replace(names=tuple(charge[5])) for charge in charges]
    return Terms(state, on_expiry, expires_us, read, actual, since_us, was_released)


class StoredReservations:
    """Makes and settles the reservations of one store. `now` reads the store's clock, in microseconds."""

    def __init__(self, book: ReservationBook, now: Callable[[], int]) -> None:
        self.book = book
        self._now = now

    def reserve(self, prepared: PreparedReservation, ttl_us: int, on_expiry: str, owner: str) -> Steps:
        """Decide a check and keep it under an id; a Grant."""
        check, names = prepared.check, prepared.names
        if len(check.members) > MAX_LIMITS:
            raise input_error(
                ValueError, "limits", f"are {len(check.members)}; a reservation has {MAX_LIMITS} at most: reserve fewer"
            )
        outcomes = (yield [check])[0] if check.applies else []
        decision = check.finish(outcomes)
        expires_us = self._now() + ttl_us
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
            )
            for index, member, outcome in charged_members(check, outcomes)
        ]
        if not is_charged(check, outcomes) and decision.reason != "no_rule":
            return Grant(f"none-{token_hex(8)}", expires_us, decision, outcomes)
        row = _row(token_urlsafe(16), owner, 1, Terms("open", on_expiry, expires_us, charges))
        try:
            added = yield BookCall(self.book, partial(self.book.add, row, MAX_OPEN))
        except StoreError:
            yield from _give_back(check, outcomes)
            raise
        if not added:
            yield from _give_back(check, outcomes)
            raise TooManyReservationsError(
                f"this caller has {MAX_OPEN:,} open reservations, which is the maximum: settle or release some of them"
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
                yield from self._finish(row, terms)
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
                if not (yield from self._finish(taken, settling)):
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
            later = _row(row.id, row.owner, row.version + 1, terms._replace(expires_us=now + ttl_us))
            if (yield BookCall(self.book, partial(self.book.replace, later))):
                return Extension(now + ttl_us, True)
        raise StoreError("others change this reservation all the time")

    def sweep(self, count: int) -> Steps:
        """Give back what has ended, finish what others have begun, and forget what is over; how many rows."""
        now = self._now()
        rows: list[ReservationRow] = yield BookCall(self.book, partial(self.book.due, now, count))
        for row in rows:
            terms = _decode(row)
            if terms.state == "open" and terms.on_expiry == "release":
                expiring = terms._replace(state="expiring", actual=[0] * len(terms.charges), since_us=now)
                taken = _row(row.id, row.owner, row.version + 1, expiring)
                if (yield BookCall(self.book, partial(self.book.replace, taken))):
                    yield from self._finish(taken, expiring)
            elif terms.state in ("settling", "expiring"):
                yield from self._finish(row, terms)
            else:
                yield BookCall(self.book, partial(self.book.delete, row))
        return len(rows)

    def _find(self, reservation_id: str, owner: str | None) -> Generator[Step, Any, tuple[ReservationRow, Terms]]:
        row: ReservationRow | None = None
        if is_reservation_id(reservation_id):
            row = yield BookCall(self.book, partial(self.book.find, reservation_id))
        if row is None or (owner is not None and row.owner != owner):
            raise UnknownReservationError("there is no such reservation: it may have been settled a while ago")
        return row, _decode(row)

    def _finish(self, row: ReservationRow, terms: Terms) -> Generator[Step, Any, bool]:
        """Change the counters of a reservation that is being settled, and close it. False if the store failed."""
        now = self._now()
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
    """What is to stay charged for each charge. A ValueError names what is wrong."""
    costs = [charge.cost for charge in charges]
    if actual is None:
        return costs
    if not isinstance(actual, Mapping):
        used = whole_actual(actual, "actual")
        if used and len(set(costs)) > 1:
            names = ", ".join(sorted({charge.names[0] for charge in charges}))
            raise input_error(
                ValueError,
                "actual",
                f"must be given for each limit, since they were reserved with several costs: {names}",
            )
        return [used] * len(charges)
    values = {name: whole_actual(value, f"actual.{name}") for name, value in actual.items()}
    known = {name for charge in charges for name in charge.names}
    for name in values:
        if name not in known:
            listed = ", ".join(sorted({charge.names[0] for charge in charges})) or "none"
            raise input_error(
                ValueError, f"actual.{name}", f"is not a limit of this reservation; its limits are {listed}"
            )
    return [next((values[name] for name in charge.names if name in values), charge.cost) for charge in charges]


def whole_actual(value: SupportsIndex, field: str) -> int:
    used = whole_cost(value, field)
    if isinstance(value, bool) or not 0 <= used <= MAX_COST:
        raise input_error(ValueError, field, f"must be a whole number from 0 to {MAX_COST}, not {value!r}")
    return used


def _row(reservation_id: str, owner: str, version: int, terms: Terms) -> ReservationRow:
    return ReservationRow(reservation_id, owner, version, terms.due_us, terms.is_open, terms.encode())


def _changes(terms: Terms, record: IdempotencyRecord) -> list[Request]:
    """The requests that change what is charged to `actual`."""
    back: list[Member] = []
    more: list[Member] = []
    for charge, actual in zip(terms.charges, terms.actual or [], strict=True):
        cost = 0 if terms.was_released else charge.cost
        if actual < cost:
            back.append(Member(charge.key, charge.algorithm(), charge.cost, True, charge.tick, cost - actual))
        elif actual > cost:
            more.append(Member(charge.key, charge.algorithm(), actual - cost))
    batch = [Request(Op.GIVE_BACK, back, record)] if back else []
    return [*batch, Request(Op.CHARGE, more, record)] if more else batch


def _give_back(check: PendingCheck, outcomes: Sequence[Any]) -> Generator[Step, Any, None]:
    if is_charged(check, outcomes):
        yield [give_back(check, outcomes)]
