"""Reserve now, settle later: for a cost that is known only afterwards (tokens of a model, bytes of an answer).

    settle(actual)              the difference is given back or charged
    release()                   everything is given back
    the block is left           everything stays charged
      by an exception           everything is given back: the work has failed
      by a cancellation         everything stays charged: a caller who hangs up in the middle of a response has used
                                what was made for it, and would otherwise pay for nothing

The first of these counts; `settle` or `release` after it is an error.
"""

from __future__ import annotations

import concurrent.futures
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
        self._ended: str | None = None
        """How it ended, as an error says it; None as long as it can be settled."""

    def settlement(self, actual: SupportsIndex) -> Request | None:
        """The request that turns what was reserved into what was used, if one is needed."""
        used = whole_cost(actual, "actual")
        if used < 0 or used > MAX_COST:
            raise ValueError(f"actual must be a whole number from 0 to {MAX_COST}, not {actual!r}")
        self._end("was settled already")
        if used == self._cost or not self._charged:
            return None
        if used > self._cost:
            more = used - self._cost
            charges = _charges(self._taken, self._outcomes)
            return Request(Op.CHARGE, [Member(m.key, m.algorithm, more, True, 0, 0, None, o.token) for m, o in charges])
        return returning(self._taken, self._outcomes, self._cost - used)

    def release(self) -> Request | None:
        """The request that gives everything back, if one is needed."""
        self._end("was released already")
        return returning(self._taken, self._outcomes) if self._charged and self._cost else None

    def leave(self, kind: type[BaseException] | None) -> Request | None:
        """The end of the block, with the type of the exception that ended it: what to do if nothing was settled."""
        if self._ended is None and kind is not None and not is_cancellation(kind):
            return self.release()
        if self._ended is None:
            self._ended = "ended with its block, and stays charged: settle or release it inside of the block"
        return None

    def _end(self, how: str) -> None:
        if self._ended is not None:
            raise RuntimeError(f"this reservation {self._ended}")
        self._ended = how


def is_cancellation(kind: type[BaseException]) -> bool:
    """Whether an exception means that the work was stopped from outside, and not that it failed.

    That is whatever is no `Exception`: asyncio's and trio's cancellation, GeneratorExit, KeyboardInterrupt, SystemExit,
    gevent's GreenletExit, and groups with one of them. Only that of threads' futures is an `Exception`.
    """
    return not issubclass(kind, Exception) or issubclass(kind, concurrent.futures.CancelledError)


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
    """What `Limiter.reserve` returns: a context manager that `settle`, with what was really used, or `release` ends."""

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

    def release(self) -> None:
        """Give everything back, whatever happens then: instead of `settle`, and once."""
        self._finish(self._held.release())

    def __enter__(self) -> Reservation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._finish(self._held.leave(kind))

    def _finish(self, request: Request | None) -> None:
        if request is not None:
            self._send(request)


class AsyncReservation:
    """What `AsyncLimiter.reserve` returns: `async with` takes it, `await settle(…)` or `await release()` ends it."""

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

    async def release(self) -> None:
        """Give everything back, whatever happens then: instead of `settle`, and once."""
        await self._finish(self._taken().release())

    async def __aenter__(self) -> AsyncReservation:
        if self._held is not None:
            raise RuntimeError("this reservation is taken already")
        self._held = await self._take()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._finish(self._taken().leave(kind))

    async def _finish(self, request: Request | None) -> None:
        if request is not None:
            await self._send(request)

    def _taken(self) -> Held:
        if self._held is None:
            raise RuntimeError("take the reservation first: async with limiter.reserve(...) as r")
        return self._held
