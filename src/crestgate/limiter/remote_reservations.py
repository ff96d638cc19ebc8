"""Reservations that a Crestgate service keeps: for limiters on `crestgate://`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import index
from secrets import token_hex
from typing import Any, final

from crestgate.errors import StoreError
from crestgate.limiter.reservation import Actual, Settlement
from crestgate.limiter.reservation_terms import DEFAULT_TTL, PreparedReservation
from crestgate.limiter.stored_reservations import BookCall, Extension, Grant, Steps, StoredReservations, is_unreserved
from crestgate.reservations.port import ReservationBook
from crestgate.stores.port import BatchOutcomes, Request
from crestgate.stores.remote_store import RemoteStore

__all__ = ["RemoteReservations"]


class ServiceBook(ReservationBook):
    """Stands for the book that the service has."""

    def close(self) -> None:
        """The store closes its connections itself."""


@final
class RemoteReservations(StoredReservations):
    """Each step is one call of the service, which decides, settles and sweeps."""

    def __init__(
        self,
        store: RemoteStore,
        answer: Callable[[StoreError, Sequence[Request]], BatchOutcomes],
    ) -> None:
        """`answer` is the failure policy."""
        super().__init__(ServiceBook(), store.clock.ticks)
        self._store = store
        self._answer = answer

    def reserve(self, prepared: PreparedReservation, ttl_us: int | None, on_expiry: str, owner: str) -> Steps:
        check = prepared.check
        terms: dict[str, Any] = {"on_expiry": on_expiry}
        if ttl_us is not None:
            terms["ttl"] = ttl_us / 1_000_000
        if prepared.costs:
            terms["costs"] = dict(prepared.costs)
        try:
            granted, outcomes = yield self._call(self._store.reserve, check, terms)
        except StoreError as error:
            answered = self._answer(error, [check])[0]
            decision = check.finish(answered)
            unreserved = f"none-{token_hex(8)}" if decision.allowed else None
            return Grant(unreserved, self._now() + (ttl_us or DEFAULT_TTL * 1_000_000), decision, answered)
        check.applies = bool(check.members)
        decision = check.finish(outcomes)
        if granted.get("id") is None:
            return Grant(None, 0, decision, outcomes)
        return Grant(str(granted["id"]), round(granted["expires_at"] * 1_000_000), decision, outcomes)

    def settle(self, reservation_id: str, actual: Actual | None, owner: str | None) -> Steps:
        if is_unreserved(reservation_id):
            return Settlement(False, False)
        body: dict[str, Any] = {"actual": {}}  # names no limit: all of them stay as they were reserved
        if isinstance(actual, Mapping):
            body = {"actual": {name: index(value) for name, value in actual.items()}}
        elif actual is not None:
            body = {"actual": index(actual)}
        settled = yield self._call(self._store.call_reservation, reservation_id, "settle", body)
        return Settlement(bool(settled.get("settled")), bool(settled.get("late")))

    def extend(self, reservation_id: str, ttl_us: int, owner: str | None) -> Steps:
        if is_unreserved(reservation_id):
            return Extension(self._now() + ttl_us, False)
        body = {"ttl": ttl_us / 1_000_000}
        extended = yield self._call(self._store.call_reservation, reservation_id, "extend", body)
        return Extension(round(extended["expires_at"] * 1_000_000), bool(extended.get("extended")))

    def look_up(self, reservation_id: str) -> Steps:
        """The service does not tell."""
        yield from ()
        return None

    def sweep(self, count: int) -> Steps:
        """The service does that."""
        yield from ()
        return 0

    def _call(self, function: Callable[..., Any], *arguments: Any) -> BookCall:
        return BookCall(self.book, partial(function, *arguments))
