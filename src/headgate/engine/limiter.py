"""`Limiter`: the library's front door for threads and plain functions. Its async twin is in async_limiter.py."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Iterable, Sequence
from threading import Event
from types import TracebackType
from typing import Any, ParamSpec, Self, SupportsIndex, TypeVar, cast

from headgate.core.decision import Decision
from headgate.core.limit import Limit
from headgate.engine.bound import Bound, check_input, whole_cost
from headgate.engine.decorator import KeyMaker, refuse_missing_brackets
from headgate.engine.guard import CallCost, CallLimits, Guard, guarded, guarded_async
from headgate.engine.limiting import Limiting, ManyItem, acquire_input
from headgate.engine.line import Ask, Sleep, Waiting, wait_turn
from headgate.engine.plans import Limits
from headgate.engine.reservation import Held, Reservation
from headgate.errors import StoreError
from headgate.stores.port import Op, Outcome, Replies, Request
from headgate.stores.remote import RemoteStore

__all__ = ["Limiter"]

P = ParamSpec("P")
R = TypeVar("R")


class Limiter(Limiting):
    """Rate limits for threads and plain functions.

    >>> limiter = Limiter("memory://", plans={"gold": "10/second burst 20"})
    >>> limiter.check("user:42", "gold").remaining
    19
    >>> limiter.check("user:42", ["gold", "5000/day"], cost=3).allowed
    True
    """

    def check(self, key: str, limits: Limits, cost: SupportsIndex = 1) -> Decision:
        """Decide a request, and consume its cost when it is admitted; a chain is all or nothing."""
        # Looked up as `_bind` does, without that call, which is a tenth of a check.
        if type(limits) is Limit:
            bound = self._limit_bounds.get(limits.identity)
        elif self._inline is not None and type(limits) is str:
            bound = self._inline.get(limits)
        else:
            bound = None
        if bound is None:
            bound = self._bind(limits)
        return bound.check(key, cost)

    def peek(self, key: str, limits: Limits, cost: SupportsIndex = 1) -> Decision:
        """The decision `check` would give now; consumes nothing."""
        return self._bind(limits).peek(key, cost)

    def reset(self, key: str, limits: Limits) -> None:
        """Forget the counters of this key under these limits."""
        self._bind(limits).reset(key)

    def check_many(self, items: Iterable[ManyItem]) -> list[Decision]:
        """Independent decisions on (key, limits) or (key, limits, cost), in one round trip."""
        bounds, requests = self._requests(items)
        replies = self._apply(requests)
        return [
            bound.finish(Op.TAKE, request.members[0].key, outcomes)
            for bound, request, outcomes in zip(bounds, requests, replies, strict=True)
        ]

    def bind(self, limits: Limits) -> Bound:
        """The same limits, prepared once for a hot path: `gold = limiter.bind("gold"); gold.check("user:42")`."""
        return self._bind(limits)

    def acquire(self, key: str, limits: Limits, cost: SupportsIndex = 1, *, timeout: float | None = None) -> Decision:
        """Wait until the request is admitted, first come first served per key.

        TimeoutError when that is not within `timeout` seconds, at once when it is known that it will not be. A leaky
        bucket's delay is waited for too.
        """
        whole = acquire_input(key, cost, timeout)
        ticket = ThreadTicket()
        return self._run(
            wait_turn(self._bind(limits), self._line, ticket, key, whole, timeout, self._store.clock.ticks)
        )

    def reserve(self, key: str, limits: Limits, cost: SupportsIndex = 1) -> Reservation:
        """Take `cost` now and settle what was really used later; RateLimitExceeded when it is denied."""
        whole = whole_cost(cost)
        check_input(key, whole)
        bound = self._bind(limits)
        request = bound.request(Op.TAKE, key, whole)
        return Reservation(Held(bound, request, self._apply([request])[0]), self._send)

    def limit(
        self,
        limits: CallLimits,
        *,
        key: str | KeyMaker | None = None,
        cost: CallCost = 1,
        exempt: Callable[..., object] | None = None,
        when: Callable[[Any], object] | None = None,
        wait: bool = True,
        dry_run: bool = False,
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Decorate a function, sync or async: every call is checked first, and RateLimitExceeded when denied.

        `key` is a template over the parameters ("user:{user_id}") or a callable that is given the arguments; without
        it all calls of the function share one counter. `limits`, `cost` and `exempt` may be callables that are given
        the arguments too: limits of None, or a true `exempt`, and the call is not limited. Plans count as they are at
        each call. An admitted call waits out a leaky bucket's delay, unless `wait` is False.

        `when` is given what the function returns, or the exception that it raises, and says whether the call counts:
        `when=lambda result: result is None`. With `dry_run` calls are counted, and what would be denied is logged.
        """
        refuse_missing_brackets(limits, '@limiter.limit("5/minute")')
        guard = Guard(self, limits, key=key, cost=cost, exempt=exempt, when=when, wait=wait, dry_run=dry_run)

        def decorate(function: Callable[P, R]) -> Callable[P, R]:
            calls = guard.calls(function)
            if inspect.iscoroutinefunction(function):
                limited = guarded_async(function, calls, self._check_beside, self._apply_beside)
                return cast(Callable[P, R], limited)
            return guarded(function, calls, self._apply)

        return decorate

    def close(self) -> None:
        """Let go of the store, if this limiter opened it."""
        self._close_store()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self, connect: bool = True) -> None:
        """Reach a store across a network now, so that no check is the first to."""
        if connect and isinstance(self._store, RemoteStore):
            try:
                self._store.connect()
            except BaseException:
                self._close_store()
                raise

    def _apply(self, batch: Sequence[Request]) -> Replies:
        try:
            return self._engine.apply(batch)
        except StoreError as error:
            return self._engine.answer(error, batch) if self._unanswered(error, batch) else [[] for _ in batch]

    async def _check_beside(self, bound: Bound, key: str, cost: int) -> Decision:
        """For async functions: a check that waits for a network must not hold up the loop meanwhile."""
        if self._engine.local is not None:
            return bound.check(key, cost)
        return await asyncio.to_thread(bound.check, key, cost)

    async def _apply_beside(self, batch: Sequence[Request]) -> Replies:
        return self._apply(batch) if self._engine.local is not None else await asyncio.to_thread(self._apply, batch)

    def _send(self, request: Request) -> None:
        self._apply([request])

    def _run(self, waiting: Waiting) -> Decision:
        """Do what the waiting asks for, until it returns its decision."""
        try:
            command = next(waiting)
            while True:
                try:
                    reply: list[Outcome] | bool | None = None
                    if isinstance(command, Ask):
                        reply = self._apply([command.request])[0]
                    elif isinstance(command, Sleep):
                        time.sleep(self._store.clock.wait(command.seconds))
                    else:
                        reply = cast(ThreadTicket, command.ticket).event.wait(command.seconds)
                except BaseException as error:  # noqa: BLE001 - thrown on: whoever waits must leave the line
                    command = waiting.throw(error)
                else:
                    command = waiting.send(reply)
        except StopIteration as done:
            return cast(Decision, done.value)


class ThreadTicket:
    """A thread's place in a line."""

    def __init__(self) -> None:
        self.event = Event()

    def call(self) -> None:
        self.event.set()
