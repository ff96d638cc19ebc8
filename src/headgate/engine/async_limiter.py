"""`AsyncLimiter`: the library's front door for asyncio. What it shares with `Limiter` is in limiting.py."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from types import TracebackType
from typing import Any, ParamSpec, Self, SupportsIndex, TypeVar, cast
from weakref import WeakSet

from headgate.core.algorithms import build
from headgate.core.decision import Decision
from headgate.core.limit import Limit
from headgate.engine.bound import Bound, check_input, whole_cost
from headgate.engine.coalescer import LoopCoalescer
from headgate.engine.decorator import KeyMaker, name_of, refuse_missing_brackets
from headgate.engine.guard import CallCost, CallLimits, Guard, guarded_async
from headgate.engine.limiting import Limiting, ManyItem, acquire_input, undoing
from headgate.engine.line import Ask, Sleep, Turn, Waiting, wait_turn
from headgate.engine.plans import Limits
from headgate.engine.reservation import AsyncReservation, Held
from headgate.errors import ConfigError, StoreError
from headgate.stores.breaker import BreakerState
from headgate.stores.port import LocalStore, Member, Op, Outcome, Replies, Request
from headgate.stores.remote import PROBE, RemoteStore

__all__ = ["AsyncBound", "AsyncLimiter"]

SHORTEST_NAP = 0.0005
LONGEST_NAP = 0.01

P = ParamSpec("P")
R = TypeVar("R")


class AsyncLimiter(Limiting):
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
        whole = acquire_input(key, cost, timeout)
        ticket = LoopTicket()
        return await self._run(
            wait_turn(self._bind(limits), self._line, ticket, key, whole, timeout, self._store.clock.ticks)
        )

    def reserve(self, key: str, limits: Limits, cost: SupportsIndex = 1) -> AsyncReservation:
        """Take `cost` on entering and settle what was really used later; RateLimitExceeded when it is denied."""
        whole = whole_cost(cost)
        check_input(key, whole)
        bound = self._bind(limits)

        async def take() -> Held:
            request = bound.request(Op.TAKE, key, whole)
            return Held(bound, request, (await self._apply([request]))[0])

        return AsyncReservation(take, self._send)

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
    ) -> Callable[[Callable[P, Coroutine[Any, Any, R]]], Callable[P, Coroutine[Any, Any, R]]]:
        """Decorate an async function: every call is checked first, and RateLimitExceeded when denied.

        `key` is a template over the parameters ("user:{user_id}") or a callable that is given the arguments; without
        it all calls of the function share one counter. `limits`, `cost` and `exempt` may be callables that are given
        the arguments too: limits of None, or a true `exempt`, and the call is not limited. Plans count as they are at
        each call. An admitted call waits out a leaky bucket's delay, unless `wait` is False.

        `when` is given what the function returns, or the exception that it raises, and says whether the call counts:
        `when=lambda result: result is None`. With `dry_run` calls are counted, and what would be denied is logged.
        """
        refuse_missing_brackets(limits, '@limiter.limit("5/minute")')
        guard = Guard(self, limits, key=key, cost=cost, exempt=exempt, when=when, wait=wait, dry_run=dry_run)

        def decorate(function: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Coroutine[Any, Any, R]]:
            calls = guard.calls(function)
            if not inspect.iscoroutinefunction(function):
                raise ConfigError(
                    f"{name_of(function)} is not async, so an AsyncLimiter cannot wait in it: use a Limiter"
                )
            return guarded_async(function, calls, self._check, self._apply)

        return decorate

    async def connect(self) -> None:
        """Reach a store across a network now, so that no check is the first to; `async with` does it too.

        StoreError when it cannot be reached. Without this the first check on an event loop connects, and is answered
        by `on_store_error` when that fails.
        """
        if isinstance(self._store, RemoteStore):
            await self._store.connect_async()
            self._connected.add(asyncio.get_running_loop())

    async def probe(self) -> None:
        """Count on every server of the store, and forget it again: what a check does, for nobody.

        StoreError when one of them cannot, whatever `on_store_error` says.
        """
        store = self._store
        keys = store.probe_keys() if isinstance(store, RemoteStore) else (PROBE,)
        counters = [Member(key, build(Limit(1_000_000, 1), PROBE), 1) for key in keys]
        # No policy answers a batch that forgets counters: only a store can do that.
        await self._apply([Request(op, [counter]) for op in (Op.TAKE, Op.RESET) for counter in counters])

    def breakers(self) -> dict[str, BreakerState]:
        """How the breaker of each server stands that was asked so far, by the server's name."""
        breakers = self._store.breakers() if isinstance(self._store, RemoteStore) else {}
        now = time.monotonic()
        return {name: breaker.state(now) for name, breaker in breakers.items()}

    async def aclose(self) -> None:
        """Let go of the store, if this limiter opened it."""
        loop = asyncio.get_running_loop()
        settling = [task for task in self._settling if task.get_loop() is loop]
        if settling:  # each ends by the store's deadline
            await asyncio.wait(settling)
        if self._owns_store and isinstance(self._store, RemoteStore):
            await self._store.aclose()
        else:
            self._close_store()

    async def __aenter__(self) -> Self:
        try:
            await self.connect()
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def _start(self, connect: bool = True) -> None:
        self._coalescers: dict[asyncio.AbstractEventLoop, LoopCoalescer] = {}
        self._connected: WeakSet[asyncio.AbstractEventLoop] = WeakSet()
        self._connecting: dict[asyncio.AbstractEventLoop, asyncio.Task[None]] = {}
        self._settling: set[asyncio.Task[Replies]] = set()

    async def _apply(self, batch: Sequence[Request]) -> Replies:
        """Decide without holding up the loop."""
        store = self._store
        try:
            if isinstance(store, RemoteStore):
                coalescer = await self._coalescer(store)
                decided = coalescer.ask(batch)
                try:
                    return await decided
                except asyncio.CancelledError:
                    coalescer.abandoned(batch, decided)
                    raise
            if not isinstance(store, LocalStore):
                return await self._apply_in_thread(batch)
            reply = store.apply_within(batch, 0.0)
            if reply is not None:
                return reply
            if all(request.op in (Op.GIVE_BACK, Op.CHARGE) for request in batch):
                return await self._settle_between(store, batch)
            return await self._apply_between(store, batch)
        except StoreError as error:
            if not self._unanswered(error, batch):
                return [[] for _ in batch]
            answered = self._engine.failure.answer(error, batch)
            if answered.undoing and isinstance(store, RemoteStore):
                (await self._coalescer(store)).send(answered.undoing)
            return answered.replies

    async def _coalescer(self, store: RemoteStore) -> LoopCoalescer:
        """What gathers the requests of this event loop. The first on a loop connects, in its own time."""
        loop = asyncio.get_running_loop()
        coalescer = self._coalescers.get(loop)
        if coalescer is None:
            for over in [other for other in list(self._coalescers) if other.is_closed()]:
                self._coalescers.pop(over, None)
            coalescer = self._coalescers[loop] = LoopCoalescer(store, loop, undoing)
            if loop not in self._connected:
                self._connecting[loop] = loop.create_task(store.connect_async())
        connecting = self._connecting.get(loop) if self._connecting else None
        if connecting is not None:
            try:
                await asyncio.shield(connecting)
            finally:
                if connecting.done():  # or this caller was cancelled, and others go on waiting
                    self._connecting.pop(loop, None)
        return coalescer

    async def _apply_between(self, store: LocalStore, batch: Sequence[Request]) -> Replies:
        """Ask a local store that is busy again and again, until it is held up, and let the others run in between. Where
        it is busy for long, a thread waits for its turn: only waiting threads are sure to get it."""
        stalled = store.watch(batch)
        nap = SHORTEST_NAP
        deadline = time.monotonic() + store.timeout
        while not stalled():
            if time.monotonic() > deadline:
                return await self._apply_in_thread(batch)
            await asyncio.sleep(nap)
            reply = store.apply_within(batch, 0.0)
            if reply is not None:
                return reply
            nap = min(nap * 2, LONGEST_NAP)
        raise StoreError(f"the store was busy for {store.timeout * 1000:.0f} ms; a process that uses it may be stopped")

    async def _settle_between(self, store: LocalStore, batch: Sequence[Request]) -> Replies:
        """The same for a settlement, which goes on when its caller is cancelled: it is owed for what was decided."""

        async def settle() -> Replies:
            try:
                return await self._apply_between(store, batch)
            except StoreError as error:  # here, because a caller that was cancelled does not see it
                self._unanswered(error, batch)
                return [[] for _ in batch]

        settling = asyncio.get_running_loop().create_task(settle())
        self._settling.add(settling)
        settling.add_done_callback(self._settling.discard)
        return await asyncio.shield(settling)

    async def _apply_in_thread(self, batch: Sequence[Request]) -> Replies:
        """A caller that is cancelled meanwhile gets no decision, so what the thread takes for it is given back."""
        loop = asyncio.get_running_loop()
        decided = loop.run_in_executor(None, self._store.apply, batch)
        try:
            return await asyncio.shield(decided)
        except asyncio.CancelledError:

            def give_back(done: asyncio.Future[Replies]) -> None:
                if not done.cancelled() and done.exception() is None:
                    loop.run_in_executor(None, self._store.apply, undoing(batch, done.result()))

            decided.add_done_callback(give_back)
            raise

    async def _check(self, bound: Bound, key: str, cost: int) -> Decision:
        return await AsyncBound(self, bound).check(key, cost)

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
            await asyncio.wait_for(cast(LoopTicket, turn.ticket).called, turn.seconds)
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


class LoopTicket:
    """A task's place in a line; it may be called from another loop's thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.called: asyncio.Future[None] = self._loop.create_future()

    def call(self) -> None:
        self._loop.call_soon_threadsafe(self._set)

    def _set(self) -> None:
        if not self.called.done():
            self.called.set_result(None)
