"""Reserve now, settle later: for a cost that is known only afterwards (tokens of a model, bytes of an answer)."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, SupportsIndex

from headgate.core.decision import Decision
from headgate.engine.bound import MAX_COST, Bound, whole_cost
from headgate.errors import RateLimitExceeded
from headgate.stores.port import Member, Op, Outcome, Request

__all__ = ["AsyncReservation", "Held", "Reservation", "charged", "returning"]


class Held:
    """What was taken, and how it is to be settled: at most once."""

    def __init__(self, bound: Bound, taken: Request, outcomes: Sequence[Outcome]) -> None:
        self._key = taken.members[0].key
        self._cost = taken.members[0].cost
        decision = bound.finish(Op.TAKE, self._key, outcomes)
        if not decision.allowed:
            raise RateLimitExceeded(decision)
        self.decision = decision
        self._bound = bound
        self._taken = taken
        self._outcomes = outcomes
        self._charged = charged(taken, outcomes)
        self._open = True

    def settlement(self, actual: SupportsIndex) -> Request | None:
        """The request that turns what was reserved into what was used, if one is needed."""
        used = whole_cost(actual, "actual")
        if used < 0 or used > MAX_COST:
            raise ValueError(f"actual must be a whole number from 0 to {MAX_COST}, not {actual!r}")
        if not self._open:
            raise RuntimeError("this reservation is settled already")
        self._open = False
        if used == self._cost or not self._charged:
            return None
        if used > self._cost:
            more = used - self._cost
            charges = _charges(self._taken, self._outcomes)
            return Request(Op.CHARGE, [Member(m.key, m.algorithm, more, True, 0, 0, None, o.token) for m, o in charges])
        return returning(self._taken, self._outcomes, self._cost - used)

    def leave(self, failed: bool) -> Request | None:
        """The end of the block: what was not settled is kept, or given back after an exception."""
        if self._open and failed:
            return self.settlement(0)
        self._open = False
        return None


def charged(taken: Request, outcomes: Sequence[Outcome]) -> bool:
    """Whether a store itself took the cost. One that failed has charged nothing that could be given back."""
    denied = any(m.binds and not o.decision.allowed for m, o in zip(taken.members, outcomes, strict=True))
    return not denied and any(outcome.decision.reason == "ok" for outcome in outcomes)


def _charges(taken: Request, outcomes: Sequence[Outcome]) -> list[tuple[Member, Outcome]]:
    """The members of an admitted request that were charged: where the failure policy answered, nothing was."""
    return [(m, o) for m, o in zip(taken.members, outcomes, strict=True) if o.decision.reason == "ok"]


def returning(taken: Request, outcomes: Sequence[Outcome], amount: int | None = None) -> Request:
    """The request that gives back so much of what another has taken of each counter; None for all of it."""
    back: list[Member] = []
    for member, outcome in _charges(taken, outcomes):
        share = member.cost if amount is None else amount
        back.append(Member(member.key, member.algorithm, member.cost, True, outcome.tick, share, None, outcome.token))
    return Request(Op.GIVE_BACK, back)


class Reservation:
    """What `Limiter.reserve` returns: a context manager whose `settle` says what was really used."""

    def __init__(self, held: Held, send: Callable[[Request], None]) -> None:
        self._held = held
        self._send = send

    @property
    def decision(self) -> Decision:
        """The decision that admitted the reservation."""
        return self._held.decision

    def settle(self, actual: SupportsIndex) -> None:
        """Give back, or charge, the difference between what was reserved and `actual`. Once."""
        self._finish(self._held.settlement(actual))

    def __enter__(self) -> Reservation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._finish(self._held.leave(kind is not None))

    def _finish(self, request: Request | None) -> None:
        if request is not None:
            self._send(request)


class AsyncReservation:
    """What `AsyncLimiter.reserve` returns: `async with` takes the reservation, `await settle(…)` settles it."""

    def __init__(
        self, take: Callable[[], Coroutine[Any, Any, Held]], send: Callable[[Request], Coroutine[Any, Any, None]]
    ) -> None:
        self._take = take
        self._send = send
        self._held: Held | None = None

    @property
    def decision(self) -> Decision:
        """The decision that admitted the reservation."""
        return self._taken().decision

    async def settle(self, actual: SupportsIndex) -> None:
        """Give back, or charge, the difference between what was reserved and `actual`. Once."""
        await self._finish(self._taken().settlement(actual))

    async def __aenter__(self) -> AsyncReservation:
        if self._held is not None:
            raise RuntimeError("this reservation is taken already")
        self._held = await self._take()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._finish(self._taken().leave(kind is not None))

    async def _finish(self, request: Request | None) -> None:
        if request is not None:
            await self._send(request)

    def _taken(self) -> Held:
        if self._held is None:
            raise RuntimeError("take the reservation first: async with limiter.reserve(...) as r")
        return self._held
