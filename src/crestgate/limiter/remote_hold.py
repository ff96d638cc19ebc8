"""`hold` on a Crestgate service: the requests of a hold as calls of one reservation.

The service holds the slots under the id of a reservation, so a call may be repeated: to extend is safe after a call
whose result is unknown. Whoever is killed leaves a reservation that ends with its slots.

    TAKE        reserve
    RENEW       extend
    GIVE_BACK   settle: slots are released, and what rate limits have charged stays. With rate limits: release
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from crestgate.core.decision import Decision
from crestgate.errors import ConfigError, ReservationError, StoreError
from crestgate.limiter.pending_check import PendingCheck
from crestgate.limiter.reservation_terms import PreparedReservation, slots_ttl_us
from crestgate.limiter.stored_reservations import Grant, Steps, StoredReservations, is_unreserved
from crestgate.stores.port import Op, Outcome, Request

__all__ = ["RemoteHold"]

MIN_TTL_US: Final = 1_000_000
"""Of a reservation; slots may end before."""


class RemoteHold:
    """The reservation of one hold. `record` counts and logs a release that the service has not answered."""

    def __init__(
        self, stored: StoredReservations, now: Callable[[], int], record: Callable[[StoreError], None]
    ) -> None:
        self._stored = stored
        self._now = now
        self._record = record
        self._id: str | None = None
        self._ttl_us = 0
        self._expires_us = 0
        self._abandoned = False

    def send(self, request: Request) -> Steps:
        """The steps that stand for one request; its outcomes."""
        if isinstance(request, PendingCheck):
            return self._take(request)
        return self._renew(request) if request.op is Op.RENEW else self._give_back(request)

    def abandon(self) -> Steps:
        """The steps of a caller that has failed while it took, or was cancelled; a call that is under way gives back
        what it gets."""
        self._abandoned = True
        reservation_id, self._id = self._id, None
        yield from self._settle(reservation_id, 0)

    def _take(self, check: PendingCheck) -> Steps:
        grant: Grant = yield from self._stored.reserve(PreparedReservation(check, []), None, "keep", "")
        if grant.id is None or is_unreserved(grant.id):
            return grant.outcomes
        ttl_us = slots_ttl_us(member.algorithm for member in check.members)
        if self._abandoned or ttl_us is None:
            yield from self._settle(grant.id, 0)
        if self._abandoned:  # nobody waits for the result
            return grant.outcomes
        if ttl_us is None:
            names = ", ".join(member.algorithm.name for member in check.members)
            raise ConfigError(f"hold needs an in-flight limit, such as '20 concurrent', and these are {names}")
        self._id, self._expires_us = grant.id, grant.expires_us
        self._ttl_us = max(ttl_us, MIN_TTL_US)
        return grant.outcomes

    def _renew(self, request: Request) -> Steps:
        """Without outcomes if the slots are lost."""
        if self._id is None:
            return []
        try:
            extension = yield from self._stored.extend(self._id, self._ttl_us, None)
            self._expires_us = extension.expires_us
        except ReservationError:
            return []
        except StoreError as error:
            self._record(error)
            if self._now() >= self._expires_us:
                return []
        # Still held: it is tried again a third of the time to live later.
        return [Outcome(Decision(m.algorithm, True, 0, 0, 0, None), 0) for m in request.members]

    def _give_back(self, request: Request) -> Steps:
        reservation_id, self._id = self._id, None
        has_rates = any(not member.algorithm.holds for member in request.members)
        yield from self._settle(reservation_id, 0 if has_rates else None)
        return []

    def _settle(self, reservation_id: str | None, actual: int | None) -> Steps:
        if reservation_id is None:
            return
        try:
            yield from self._stored.settle(reservation_id, actual, None)
        except ReservationError:  # it has ended
            pass
        except StoreError as error:
            self._record(error)
