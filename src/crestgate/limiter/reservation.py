"""Reservations: take a cost now and settle it later, when it is known (tokens of a model, bytes of a response).

    settle(actual)              the difference is given back or charged
    release()                   everything is given back
    the block is left           everything stays charged
      by an exception           everything is given back: the work has failed
      by a cancellation         everything stays charged: a caller who disconnects in the middle of a response has
                                used what was generated so far

The first of these counts; `settle` or `release` after it is an error. A reservation with an id (`ttl=`) can be settled
by any process: see stored_reservations.py.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self, SupportsIndex, TypeAlias, cast

from crestgate.core.bounds import MAX_COST, whole_cost
from crestgate.core.decision import Decision
from crestgate.errors import RateLimitExceeded, ReservationClosedError
from crestgate.limiter.pending_check import PendingCheck
from crestgate.limiter.reservation_terms import check_ttl
from crestgate.stores.port import BatchOutcomes, Member, Op, Outcome, Request

if TYPE_CHECKING:
    from crestgate.limiter.stored_reservations import Extension, Grant, Steps, StoredReservations

__all__ = [
    "Actual",
    "AsyncReservation",
    "AsyncStoredReservation",
    "Hold",
    "Reservation",
    "Settlement",
    "StoredReservation",
    "charged_members",
    "give_back",
    "is_charged",
    "undo_requests",
]

Actual: TypeAlias = "SupportsIndex | Mapping[str, SupportsIndex]"
"""What was really used: of every limit, or by the name of a plan or rule."""


class Hold:
    """A check that was decided, and whose cost can still be settled, once. Slots of in-flight limits are not part of
    the cost: in_flight.py releases them."""

    def __init__(self, check: PendingCheck, outcomes: Sequence[Outcome]) -> None:
        self.decision = check.finish(outcomes)
        self.check = check
        self.outcomes = outcomes
        self._cost = check.members[0].cost if check.members else 0
        self.is_charged = is_charged(check, outcomes)
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
        if used == self._cost or not self.is_charged:
            return None
        if used > self._cost:
            more = used - self._cost
            charges = charged_members(self.check, self.outcomes)
            return Request(
                Op.CHARGE, [Member(m.key, m.algorithm, more, True, 0, 0, None, o.token) for _, m, o in charges]
            )
        return self._give_back(self._cost - used)

    def release(self) -> Request | None:
        """The request that gives everything back, if one is needed."""
        self._end_with("was released already")
        return self._give_back(None) if self.is_charged and self._cost else None

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
        check = PendingCheck(self.check.pressure, request.op, [member for member, _ in standing])
        return check.finish([outcome for _, outcome in standing])

    def leave(self, kind: type[BaseException] | None) -> Request | None:
        """The request at the end of the block, which an exception of this type has ended; None if all stays charged."""
        if self._end is None and kind is not None and not is_cancellation(kind):
            return self.release()
        if self._end is None:
            self._end = "ended with its block, and stays charged: settle or release it inside of the block"
        return None

    def _give_back(self, amount: int | None) -> Request | None:
        request = give_back(self.check, self.outcomes, amount)
        if self.check.holds:
            request.members = [member for member in request.members if not member.algorithm.holds]
        return request if request.members else None

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
    return not denied and bool(charged_members(request, outcomes))


def charged_members(request: Request, outcomes: Sequence[Outcome]) -> list[tuple[int, Member, Outcome]]:
    """The members of an admitted request that were charged, with their positions: not those that the failure policy
    answered."""
    pairs = zip(request.members, outcomes, strict=True)
    return [(index, m, o) for index, (m, o) in enumerate(pairs) if o.decision.reason == "ok" and not m.peeks]


def give_back(request: Request, outcomes: Sequence[Outcome], amount: int | None = None) -> Request:
    """The request that gives back this amount of what another has charged to each counter; None for all of it."""
    back: list[Member] = []
    for _, member, outcome in charged_members(request, outcomes):
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


class Settlement(NamedTuple):
    """What `settle` or `release` has done.

    `settled` is False if nothing was reserved, because the store could not be reached and the failure policy let the
    request pass; and, of a reservation without an id, if the store failed now: what was reserved stays charged. `late`
    says that the reservation had ended before.
    """

    settled: bool
    late: bool


class Reservation:
    """Returned by `Limiter.reserve`: a context manager that `settle`, with the real cost, or `release` ends.

    `id` and `expires_at` (unix seconds) are None for a reservation without `ttl`, which only this object can settle.
    """

    id: str | None = None
    expires_at: float | None = None

    def __init__(self, hold: Hold, send: Callable[[Request], bool]) -> None:
        self._hold = hold
        self._send = send

    @property
    def decision(self) -> Decision:
        """The decision that admitted the reservation."""
        return self._hold.decision

    def settle(self, actual: Actual) -> Settlement:
        """Give back, or charge, the difference between what was reserved and `actual`: a number, or one by the name of
        each plan or rule. Can be called once."""
        return self._finish(self._hold.settle(one_actual(actual)))

    def release(self) -> Settlement:
        """Give everything back, whatever happens then: instead of `settle`, and once."""
        return self._finish(self._hold.release())

    def extend(self, ttl: float) -> float:
        """Move the end to `ttl` seconds from now; returns it, as unix seconds."""
        raise no_end()

    def __enter__(self) -> Reservation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._finish(self._hold.leave(kind))

    def _finish(self, request: Request | None) -> Settlement:
        sent = request is None or self._send(request)
        return Settlement(self._hold.is_charged and sent, False)


class StoredReservation(Reservation):
    """A reservation with an id, which any process on the same store can settle."""

    def __init__(
        self,
        reservation_id: str,
        expires_us: int | None,
        decision: Decision | None,
        stored: StoredReservations,
        run: Callable[[Steps], Any],
    ) -> None:
        self.id = reservation_id
        self.expires_at = None if expires_us is None else expires_us / 1_000_000
        self._decision = decision
        self._stored = stored
        self._run = run
        self._end = ReservationEnd()

    @property
    def decision(self) -> Decision:
        return known_decision(self._decision)

    def settle(self, actual: Actual) -> Settlement:
        self._end.check()
        settlement: Settlement = self._run(self._stored.settle(cast(str, self.id), known_actual(actual), None))
        self._end.set("was settled already")
        return settlement

    def release(self) -> Settlement:
        self._end.check()
        settlement: Settlement = self._run(self._stored.settle(cast(str, self.id), 0, None))
        self._end.set("was released already")
        return settlement

    def extend(self, ttl: float) -> float:
        self._end.check()
        extension: Extension = self._run(self._stored.extend(cast(str, self.id), check_ttl(ttl), None))
        self.expires_at = extension.expires_us / 1_000_000
        return self.expires_at

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._end.leave():
            actual = 0 if kind is not None and not is_cancellation(kind) else None
            self._run(self._stored.settle(cast(str, self.id), actual, None))


class ReservationEnd:
    """How a reservation ended in this process, for error messages."""

    def __init__(self) -> None:
        self._end: str | None = None

    def check(self) -> None:
        if self._end is not None:
            raise ReservationClosedError(f"this reservation {self._end}")

    def set(self, end: str) -> None:
        self._end = end

    def leave(self) -> bool:
        """At the end of the block: whether it is still to be ended."""
        if self._end is not None:
            return False
        self._end = "ended with its block: settle or release it inside of the block"
        return True


class AsyncReservation:
    """Returned by `AsyncLimiter.reserve`: `async with` takes it, or `await`; `await settle(…)` or `await release()`
    ends it.

    `id` and `expires_at` (unix seconds) are None for a reservation without `ttl`, which only this object can settle.
    """

    id: str | None = None
    expires_at: float | None = None

    def __init__(
        self, take: Callable[[], Coroutine[Any, Any, Hold]], send: Callable[[Request], Coroutine[Any, Any, bool]]
    ) -> None:
        self._take = take
        self._send = send
        self._hold: Hold | None = None

    @property
    def decision(self) -> Decision:
        """The decision that admitted the reservation."""
        return self._require().decision

    async def settle(self, actual: Actual) -> Settlement:
        """Give back, or charge, the difference between what was reserved and `actual`: a number, or one by the name of
        each plan or rule. Can be called once."""
        return await self._finish(self._require().settle(one_actual(actual)))

    async def release(self) -> Settlement:
        """Give everything back, whatever happens then: instead of `settle`, and once."""
        return await self._finish(self._require().release())

    async def extend(self, ttl: float) -> float:
        """Move the end to `ttl` seconds from now; returns it, as unix seconds."""
        raise no_end()

    def __await__(self) -> Generator[Any, Any, AsyncReservation]:
        return self.__aenter__().__await__()

    async def __aenter__(self) -> AsyncReservation:
        if self._hold is not None:
            raise RuntimeError("this reservation is taken already")
        self._hold = await self._take()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._finish(self._require().leave(kind))

    async def _finish(self, request: Request | None) -> Settlement:
        sent = request is None or await self._send(request)
        return Settlement(self._require().is_charged and sent, False)

    def _require(self) -> Hold:
        if self._hold is None:
            raise not_taken()
        return self._hold


class AsyncStoredReservation(AsyncReservation):
    """A reservation with an id, which any process on the same store can settle."""

    def __init__(
        self,
        open_stored: Callable[[], Coroutine[Any, Any, StoredReservations]],
        run: Callable[[Steps], Coroutine[Any, Any, Any]],
        reservation_id: str | None,
        grant: Callable[[StoredReservations], Coroutine[Any, Any, Grant]] | None = None,
    ) -> None:
        """`grant` takes it; None for one that was taken before, and has this id."""
        self.id = reservation_id
        self._open = open_stored
        self._run = run
        self._grant = grant
        self._decision: Decision | None = None
        self._end = ReservationEnd()

    @property
    def decision(self) -> Decision:
        return known_decision(self._decision)

    async def settle(self, actual: Actual) -> Settlement:
        settlement = await self._settle(known_actual(actual))
        self._end.set("was settled already")
        return settlement

    async def release(self) -> Settlement:
        settlement = await self._settle(0)
        self._end.set("was released already")
        return settlement

    async def extend(self, ttl: float) -> float:
        ttl_us = check_ttl(ttl)
        self._end.check()
        stored = await self._open()
        extension: Extension = await self._run(stored.extend(self._require_id(), ttl_us, None))
        self.expires_at = extension.expires_us / 1_000_000
        return self.expires_at

    async def __aenter__(self) -> AsyncReservation:
        if self._grant is not None:
            if self.id is not None:
                raise RuntimeError("this reservation is taken already")
            grant = await self._grant(await self._open())
            self.id, self.expires_at, self._decision = grant.id, grant.expires_us / 1_000_000, grant.decision
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._end.leave():
            stored = await self._open()
            actual = 0 if kind is not None and not is_cancellation(kind) else None
            await self._run(stored.settle(self._require_id(), actual, None))

    async def _settle(self, actual: Actual) -> Settlement:
        self._end.check()
        stored = await self._open()
        settlement: Settlement = await self._run(stored.settle(self._require_id(), actual, None))
        return settlement

    def _require_id(self) -> str:
        if self.id is None:
            raise not_taken()
        return self.id


def one_actual(actual: Actual) -> SupportsIndex:
    """What was used, of a reservation with one cost."""
    if isinstance(actual, Mapping):
        raise ValueError("actual must be one number here: reserve with a cost for each limit to settle them one by one")
    return actual


def known_actual(actual: Actual) -> Actual:
    """None is not what was used: whoever does not know that leaves the block, or releases."""
    if actual is None:
        raise ValueError(f"actual must be a whole number from 0 to {MAX_COST}, or one for each limit, not None")
    return actual


def known_decision(decision: Decision | None) -> Decision:
    if decision is None:
        raise RuntimeError("the decision is known to whoever reserved, and this reservation was found by its id")
    return decision


def not_taken() -> RuntimeError:
    return RuntimeError("take the reservation first: async with limiter.reserve(...) as r")


def no_end() -> RuntimeError:
    return RuntimeError("this reservation has no end: reserve with ttl= to extend it")
