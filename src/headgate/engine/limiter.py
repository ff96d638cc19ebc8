"""`Limiter` and `AsyncLimiter`: the library's front door, with and without `await`.

Both are thin. What a check is lives in bound.py, how limits are named in plans.py, how one waits in line.py and how
reservations settle in reservation.py; here are only the lines that do I/O, once for each kind.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from threading import Event
from types import TracebackType
from typing import Any, ParamSpec, SupportsIndex, TypeAlias, TypeVar, cast

from headgate.core.algorithms import Algorithm
from headgate.core.decision import Decision
from headgate.core.pressure import PressureEvent
from headgate.engine.bound import Bound, Engine, check_input, whole_cost
from headgate.engine.decorator import KeyMaker, key_maker, refuse_generators
from headgate.engine.failure import FailurePolicy, undecided
from headgate.engine.line import Ask, Line, Sleep, Turn, Waiting, wait_turn
from headgate.engine.plans import MOST_REMEMBERED, Limits, Plans, Resolver
from headgate.engine.reservation import AsyncReservation, Reservation, _Held
from headgate.errors import ConfigError, RateLimitExceeded, StoreError
from headgate.stores.clock import Clock
from headgate.stores.port import LocalStore, Op, Outcome, Request, Store
from headgate.stores.url import open_store

__all__ = ["AsyncBound", "AsyncLimiter", "Limiter"]

P = ParamSpec("P")
R = TypeVar("R")
ManyItem: TypeAlias = "tuple[str, Limits] | tuple[str, Limits, int]"


class _Limiting:
    """What both limiters are made of."""

    def __init__(
        self,
        store: str | Store = "memory://",
        *,
        plans: Plans | None = None,
        clock: Clock | None = None,
        on_store_error: str = "open",
        on_pressure: Callable[[PressureEvent], object] | None = None,
    ) -> None:
        self._resolver = Resolver(plans)
        if isinstance(store, str):
            self._store: Store = open_store(store, clock)
            self._owns_store = True
        elif not callable(getattr(store, "apply", None)):
            raise ConfigError(f"a limiter needs a store URL such as 'memory://', or a store, not {store!r}")
        elif clock is not None:
            raise ConfigError("clock= goes with a store URL; a store object has a clock of its own")
        else:
            self._store = store
            self._owns_store = False
        self._engine = Engine(self._store, FailurePolicy(on_store_error, self._store.clock), on_pressure)
        self._bounds: dict[tuple[Algorithm, ...], Bound] = {}
        self._inline: dict[str, Bound] | None = {} if plans is None else None
        self._line = Line()

    @property
    def store_failures(self) -> int:
        """How many checks the store could not answer."""
        return self._engine.failure.failures

    def _bind(self, limits: Limits) -> Bound:
        inline = self._inline
        if inline is None or type(limits) is not str:
            return self._bind_chain(self._resolver.chain(limits))
        bound = inline.get(limits)  # without plans a text always means the same
        if bound is None:
            if len(inline) >= MOST_REMEMBERED:
                inline.clear()
            bound = self._bind_chain(self._resolver.chain(limits))
            inline[limits] = bound
        return bound

    def _bind_chain(self, chain: tuple[Algorithm, ...]) -> Bound:
        bound = self._bounds.get(chain)
        if bound is None:
            if len(self._bounds) >= MOST_REMEMBERED:
                self._bounds.clear()
            bound = Bound(self._engine, chain)
            self._bounds[chain] = bound
        return bound

    def _requests(self, items: Iterable[ManyItem]) -> tuple[list[Bound], list[Request]]:
        bounds, requests = [], []
        for item in items:
            if not isinstance(item, tuple | list) or len(item) not in (2, 3):
                raise ValueError(f"check_many takes (key, limits) or (key, limits, cost), not {item!r}")
            key, limits = item[0], item[1]
            cost = whole_cost(item[2]) if len(item) == 3 else 1
            check_input(key, cost)
            bounds.append(self._bind(limits))
            requests.append(bounds[-1].request(Op.TAKE, key, cost))
        return bounds, requests

    def _failed(self, error: StoreError, batch: Sequence[Request]) -> list[list[Outcome]]:
        """The store did not answer: by policy, or not at all for what only a store can do."""
        if any(request.op is Op.RESET for request in batch):
            raise error
        if all(undecided(request.op) for request in batch):
            return self._engine.failure.answer(error, batch)
        self._engine.failure.note(error)  # a settlement is lost: the request it belongs to was answered already
        return [[] for _ in batch]

    def _close_store(self) -> None:
        if self._owns_store:
            self._store.close()


class Limiter(_Limiting):
    """Rate limits for threads and plain functions.

    >>> limiter = Limiter("memory://", plans={"gold": "10/second burst 20"})
    >>> limiter.check("user:42", "gold").remaining
    19
    >>> limiter.check("user:42", ["gold", "5000/day"], cost=3).allowed
    True
    """

    def check(self, key: str, limits: Limits, cost: SupportsIndex = 1) -> Decision:
        """Decide a request, and consume its cost when it is admitted; a chain is all or nothing."""
        return self._bind(limits).check(key, cost)

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
        whole = _acquire_input(key, cost, timeout)
        ticket = _ThreadTicket()
        return self._run(
            wait_turn(self._bind(limits), self._line, ticket, key, whole, timeout, self._store.clock.ticks)
        )

    def reserve(self, key: str, limits: Limits, cost: SupportsIndex = 1) -> Reservation:
        """Take `cost` now and settle what was really used later; RateLimitExceeded when it is denied."""
        whole = whole_cost(cost)
        check_input(key, whole)
        bound = self._bind(limits)
        outcomes = self._apply([bound.request(Op.TAKE, key, whole)])[0]
        return Reservation(_Held(bound, key, whole, outcomes), self._send)

    def limit(
        self, limits: Limits, *, key: str | KeyMaker | None = None, cost: SupportsIndex = 1
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Decorate a function, sync or async: every call is checked first, and RateLimitExceeded when denied.

        `key` is a template over the parameters ("user:{user_id}") or a callable that is given the arguments; without
        it all calls of the function share one counter. An admitted call waits out a leaky bucket's delay.
        """
        bound = self._bind(limits)
        whole = _decorator_cost(cost)

        def decorate(function: Callable[P, R]) -> Callable[P, R]:
            refuse_generators(function)
            make_key = key_maker(function, key)

            if inspect.iscoroutinefunction(function):

                @functools.wraps(function)
                async def limited_async(*args: P.args, **kwargs: P.kwargs) -> Any:
                    delay = _admitted(bound.check(make_key(*args, **kwargs), whole))
                    if delay:
                        await asyncio.sleep(self._store.clock.wait(delay))
                    return await cast(Awaitable[Any], function(*args, **kwargs))

                return cast(Callable[P, R], limited_async)

            @functools.wraps(function)
            def limited(*args: P.args, **kwargs: P.kwargs) -> R:
                delay = _admitted(bound.check(make_key(*args, **kwargs), whole))
                if delay:
                    time.sleep(self._store.clock.wait(delay))
                return function(*args, **kwargs)

            return limited

        return decorate

    def close(self) -> None:
        """Let go of the store, if this limiter opened it."""
        self._close_store()

    def __enter__(self) -> Limiter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _apply(self, batch: Sequence[Request]) -> list[list[Outcome]]:
        try:
            return self._store.apply(batch)
        except StoreError as error:
            return self._failed(error, batch)

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
                        reply = cast(_ThreadTicket, command.ticket).event.wait(command.seconds)
                except BaseException as error:  # noqa: BLE001 - thrown on: whoever waits must leave the line
                    command = waiting.throw(error)
                else:
                    command = waiting.send(reply)
        except StopIteration as done:
            return cast(Decision, done.value)


class AsyncLimiter(_Limiting):
    """The same limits for asyncio: the methods of `Limiter` as coroutines, and `async with` for `reserve`."""

    async def check(self, key: str, limits: Limits, cost: SupportsIndex = 1) -> Decision:
        """Decide a request, and consume its cost when it is admitted; a chain is all or nothing."""
        return await self.bind(limits).check(key, cost)

    async def peek(self, key: str, limits: Limits, cost: SupportsIndex = 1) -> Decision:
        """The decision `check` would give now; consumes nothing."""
        return await self.bind(limits).peek(key, cost)

    async def reset(self, key: str, limits: Limits) -> None:
        """Forget the counters of this key under these limits."""
        await self.bind(limits).reset(key)

    async def check_many(self, items: Iterable[ManyItem]) -> list[Decision]:
        """Independent decisions on (key, limits) or (key, limits, cost), in one round trip."""
        bounds, requests = self._requests(items)
        replies = await self._apply(requests)
        return [
            bound.finish(Op.TAKE, request.members[0].key, outcomes)
            for bound, request, outcomes in zip(bounds, requests, replies, strict=True)
        ]

    def bind(self, limits: Limits) -> AsyncBound:
        """The same limits, prepared once for a hot path: `gold = limiter.bind("gold"); await gold.check("user:42")`."""
        return AsyncBound(self, self._bind(limits))

    async def acquire(
        self, key: str, limits: Limits, cost: SupportsIndex = 1, *, timeout: float | None = None
    ) -> Decision:
        """Wait until the request is admitted, first come first served per key.

        TimeoutError when that is not within `timeout` seconds, at once when it is known that it will not be. A leaky
        bucket's delay is waited for too.
        """
        whole = _acquire_input(key, cost, timeout)
        ticket = _LoopTicket()
        return await self._run(
            wait_turn(self._bind(limits), self._line, ticket, key, whole, timeout, self._store.clock.ticks)
        )

    def reserve(self, key: str, limits: Limits, cost: SupportsIndex = 1) -> AsyncReservation:
        """Take `cost` on entering and settle what was really used later; RateLimitExceeded when it is denied."""
        whole = whole_cost(cost)
        check_input(key, whole)
        bound = self._bind(limits)

        async def take() -> _Held:
            outcomes = (await self._apply([bound.request(Op.TAKE, key, whole)]))[0]
            return _Held(bound, key, whole, outcomes)

        return AsyncReservation(take, self._send)

    def limit(
        self, limits: Limits, *, key: str | KeyMaker | None = None, cost: SupportsIndex = 1
    ) -> Callable[[Callable[P, Coroutine[Any, Any, R]]], Callable[P, Coroutine[Any, Any, R]]]:
        """Decorate an async function: every call is checked first, and RateLimitExceeded when denied.

        `key` is a template over the parameters ("user:{user_id}") or a callable that is given the arguments; without
        it all calls of the function share one counter. An admitted call waits out a leaky bucket's delay.
        """
        bound = self.bind(limits)
        whole = _decorator_cost(cost)

        def decorate(function: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Coroutine[Any, Any, R]]:
            refuse_generators(function)
            if not inspect.iscoroutinefunction(function):
                raise ConfigError(
                    f"{function.__qualname__} is not async, so an AsyncLimiter cannot wait in it: use a Limiter"
                )
            make_key = key_maker(function, key)

            @functools.wraps(function)
            async def limited(*args: P.args, **kwargs: P.kwargs) -> R:
                delay = _admitted(await bound.check(make_key(*args, **kwargs), whole))
                if delay:
                    await asyncio.sleep(self._store.clock.wait(delay))
                return await function(*args, **kwargs)

            return limited

        return decorate

    async def aclose(self) -> None:
        """Let go of the store, if this limiter opened it."""
        self._close_store()

    async def __aenter__(self) -> AsyncLimiter:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _apply(self, batch: Sequence[Request]) -> list[list[Outcome]]:
        """Decide without holding up the loop: what may take longer is done in a thread."""
        store = self._store
        try:
            reply = store.apply_soon(batch) if isinstance(store, LocalStore) else None
            return reply if reply is not None else await asyncio.to_thread(store.apply, batch)
        except StoreError as error:
            return self._failed(error, batch)

    async def _send(self, request: Request) -> None:
        await self._apply([request])

    async def _run(self, waiting: Waiting) -> Decision:
        """Do what the waiting asks for, until it returns its decision."""
        try:
            command = next(waiting)
            while True:
                try:
                    reply: list[Outcome] | bool | None = None
                    if isinstance(command, Ask):
                        reply = (await self._apply([command.request]))[0]
                    elif isinstance(command, Sleep):
                        await asyncio.sleep(self._store.clock.wait(command.seconds))
                    else:
                        reply = await self._turn(command)
                except BaseException as error:  # noqa: BLE001 - thrown on: whoever waits must leave the line
                    command = waiting.throw(error)
                else:
                    command = waiting.send(reply)
        except StopIteration as done:
            return cast(Decision, done.value)

    async def _turn(self, turn: Turn) -> bool:
        try:
            await asyncio.wait_for(cast(_LoopTicket, turn.ticket).called, turn.seconds)
        except TimeoutError:
            return False
        return True


class AsyncBound:
    """One chain of an AsyncLimiter: `await bound.check("user:42")`."""

    def __init__(self, limiter: AsyncLimiter, bound: Bound) -> None:
        self._limiter = limiter
        self._bound = bound
        self._waits = not isinstance(limiter._store, LocalStore) or limiter._store.waits

    async def check(self, key: str, cost: SupportsIndex = 1) -> Decision:
        """Decide a request and consume its cost when it is admitted."""
        return await self._decide(Op.TAKE, key, cost) if self._waits else self._bound.check(key, cost)

    async def peek(self, key: str, cost: SupportsIndex = 1) -> Decision:
        """The decision `check` would give now; consumes nothing."""
        return await self._decide(Op.PEEK, key, cost)

    async def reset(self, key: str) -> None:
        """Forget the counters of this key."""
        check_input(key, 0)
        await self._limiter._apply([self._bound.request(Op.RESET, key, 0)])
        self._bound.forgotten(key)

    async def _decide(self, op: Op, key: str, cost: SupportsIndex) -> Decision:
        whole = whole_cost(cost)
        check_input(key, whole)
        outcomes = (await self._limiter._apply([self._bound.request(op, key, whole)]))[0]
        return self._bound.finish(op, key, outcomes)


class _ThreadTicket:
    """A thread's place in a line."""

    def __init__(self) -> None:
        self.event = Event()

    def call(self) -> None:
        self.event.set()


class _LoopTicket:
    """A task's place in a line; it may be called from another loop's thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.called: asyncio.Future[None] = self._loop.create_future()

    def call(self) -> None:
        self._loop.call_soon_threadsafe(self._set)

    def _set(self) -> None:
        if not self.called.done():
            self.called.set_result(None)


def _admitted(decision: Decision) -> float:
    """The delay of an admitted call; a denied one raises."""
    if not decision.allowed:
        raise RateLimitExceeded(decision)
    return decision.delay


def _decorator_cost(cost: SupportsIndex) -> int:
    whole = whole_cost(cost)
    check_input("-", whole)
    return whole


def _acquire_input(key: str, cost: SupportsIndex, timeout: float | None) -> int:
    whole = whole_cost(cost)
    check_input(key, whole)
    if timeout is not None and not timeout >= 0:
        raise ValueError(f"timeout must be a number of seconds, 0 or more, or None to wait for ever, not {timeout!r}")
    return whole
