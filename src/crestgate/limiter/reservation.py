"""Reservations: take a cost now and settle it later, when it is known (tokens of a model, bytes of a response).

    settle(actual)              the difference is given back or charged
    release()                   everything is given back
    the block is left           everything stays charged
      by an exception           everything is given back: the work has failed
      by a cancellation         everything stays charged: a caller who disconnects in the middle of a response has
                                used what was generated so far

The first of these counts; `settle` or `release` after it is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, Self, SupportsIndex

from crestgate.core.bounds import MAX_COST, whole_cost
from crestgate.core.decision import Decision
from crestgate.errors import RateLimitExceeded
from crestgate.limiter.pending_check import PendingCheck
from crestgate.stores.port import BatchOutcomes, Member, Op, Outcome, Request

__all__ = ["AsyncReservation", "Hold", "Reservation", "give_back", "is_charged", "undo_requests"]


class Hold:
    """A check that was decided, and whose cost can still be settled, once."""

    def __init__(self, check: PendingCheck, outcomes: Sequence[Outcome]) -> None:
        self.decision = check.finish(outcomes)
        self._check = check
        self._outcomes = outcomes
        self._cost = check.members[0].cost if check.members else 0
        self._charged = is_charged(check, outcomes)
        self._end: str | None = None
        """How it ended, for the error message; None as long as it can be settled."""

    def require_allowed(self) -> Self:
        """Itself; RateLimitExceeded when it was denied."""
        if not self.decision.allowed:
            raise RateLimitExceeded(self.decision)
        return self

    def settle(self, actual: SupportsIndex) -> Request | None:
        """The request that changes what was reserved to what was used, if one is needed."""
        used = whole_cost(actual, "actual")
        if used < 0 or used > MAX_COST:
            raise ValueError(f"actual must be a whole number from 0 to {MAX_COST}, not {actual!r}")
        self._end_with("was settled already")
        if used == self._cost or not self._charged:
            return None
        if used > self._cost:
            more = used - self._cost
            charges = _charges(self._check, self._outcomes)
            return Request(Op.CHARGE, [Member(m.key, m.algorithm, more, True, 0, 0, None, o.token) for m, o in charges])
        return give_back(self._check, self._outcomes, self._cost - used)

    def release(self) -> Request | None:
        """The request that gives everything back, if one is needed."""
        self._end_with("was released already")
        return give_back(self._check, self._outcomes) if self._charged and self._cost else None

    def released(self, request: Request, outcomes: Sequence[Outcome]) -> Decision:
        """The decision after `release`, by the outcomes of its request; without those of shadow limits."""
        if not outcomes:
            return self.decision
        shadows = [shadow.algorithm for shadow in self.decision.shadows]
        standing = [
            (member, outcome)
            for member, outcome in zip(request.members, outcomes, strict=True)
            if outcome.decision.algorithm not in shadows
        ]
        if not standing:
            return self.decision
        check = PendingCheck(self._check.pressure, request.op, [member for member, _ in standing])
        return check.finish([outcome for _, outcome in standing])

    def leave(self, kind: type[BaseException] | None) -> Request | None:
        """The request at the end of the block, which an exception of this type has ended; None if all stays charged."""
        if self._end is None and kind is not None and not is_cancellation(kind):
            return self.release()
        if self._end is None:
            self._end = "ended with its block, and stays charged: settle or release it inside of the block"
        return None

    def _end_with(self, end: str) -> None:
        if self._end is not None:
            raise RuntimeError(f"this reservation {self._end}")
        self._end = end


def is_cancellation(kind: type[BaseException]) -> bool:
    """Whether an exception means that the work was stopped from outside, and not that it failed.

    That is whatever is no `Exception`: asyncio's and trio's cancellation, GeneratorExit, KeyboardInterrupt, SystemExit,
    gevent's GreenletExit, and groups with one of them. Only that of threads' futures is an `Exception`.
    """
    if not issubclass(kind, Exception):
        return True
    from concurrent.futures import CancelledError  # not above: it takes long to import, and few blocks fail

    return issubclass(kind, CancelledError)


def is_charged(request: Request, outcomes: Sequence[Outcome]) -> bool:
    """Whether the store itself charged the cost. A store that failed has charged nothing that could be given back."""
    denied = any(m.binds and not o.decision.allowed for m, o in zip(request.members, outcomes, strict=True))
    return not denied and bool(_charges(request, outcomes))


def _charges(request: Request, outcomes: Sequence[Outcome]) -> list[tuple[Member, Outcome]]:
    """The members of an admitted request that were charged: not those that the failure policy answered."""
    members = zip(request.members, outcomes, strict=True)
    return [(m, o) for m, o in members if o.decision.reason == "ok" and not m.peeks]


def give_back(request: Request, outcomes: Sequence[Outcome], amount: int | None = None) -> Request:
    """The request that gives back this amount of what another has charged to each counter; None for all of it."""
    back: list[Member] = []
    for member, outcome in _charges(request, outcomes):
        share = member.cost if amount is None else amount
        back.append(Member(member.key, member.algorithm, member.cost, True, outcome.tick, share, None, outcome.token))
    return Request(Op.GIVE_BACK, back)


def undo_requests(batch: Sequence[Request], replies: BatchOutcomes) -> list[Request]:
    """The requests that give back what a batch has charged. Idempotent requests stay: a retry gets their result."""
    return [
        give_back(request, reply)
        for request, reply in zip(batch, replies, strict=True)
        if request.op is Op.TAKE and request.record is None and is_charged(request, reply)
    ]


class Reservation:
    """Returned by `Limiter.reserve`: a context manager that `settle`, with the real cost, or `release` ends."""

    def __init__(self, hold: Hold, send: Callable[[Request], None]) -> None:
        self._hold = hold
        self._send = send

    @property
    def decision(self) -> Decision:
        """The decision that admitted the reservation."""
        return self._hold.decision

    def settle(self, actual: SupportsIndex) -> None:
        """Give back, or charge, the difference between what was reserved and `actual`. Can be called once."""
        self._finish(self._hold.settle(actual))

    def release(self) -> None:
        """Give everything back, whatever happens then: instead of `settle`, and once."""
        self._finish(self._hold.release())

    def __enter__(self) -> Reservation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._finish(self._hold.leave(kind))

    def _finish(self, request: Request | None) -> None:
        if request is not None:
            self._send(request)


class AsyncReservation:
    """Returned by `AsyncLimiter.reserve`: `async with` takes it, `await settle(…)` or `await release()` ends it."""

    def __init__(
        self, take: Callable[[], Coroutine[Any, Any, Hold]], send: Callable[[Request], Coroutine[Any, Any, None]]
    ) -> None:
        self._take = take
        self._send = send
        self._hold: Hold | None = None

    @property
    def decision(self) -> Decision:
        """The decision that admitted the reservation."""
        return self._require().decision

    async def settle(self, actual: SupportsIndex) -> None:
        """Give back, or charge, the difference between what was reserved and `actual`. Can be called once."""
        await self._finish(self._require().settle(actual))

    async def release(self) -> None:
        """Give everything back, whatever happens then: instead of `settle`, and once."""
        await self._finish(self._require().release())

    async def __aenter__(self) -> AsyncReservation:
        if self._hold is not None:
            raise RuntimeError("this reservation is taken already")
        self._hold = await self._take()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._finish(self._require().leave(kind))

    async def _finish(self, request: Request | None) -> None:
        if request is not None:
            await self._send(request)

    def _require(self) -> Hold:
        if self._hold is None:
            raise RuntimeError("take the reservation first: async with limiter.reserve(...) as r")
        return self._hold
