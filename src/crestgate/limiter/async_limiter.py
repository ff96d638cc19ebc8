"""`AsyncLimiter`: rate limits for asyncio. Its twin for threads is in limiter.py."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, Self, SupportsIndex, TypeVar, cast

from crestgate.core.context import RequestContext
from crestgate.core.decision import Decision
from crestgate.core.limit import Limit
from crestgate.core.plans import Limits
from crestgate.errors import ConfigError, RateLimitExceeded, StoreError
from crestgate.limiter.async_in_flight import AsyncHeldSlots
from crestgate.limiter.call_guard import CallCost, CallGuard, CallLimits, guarded_async
from crestgate.limiter.chain import Bound
from crestgate.limiter.decorator_arguments import KeyMaker, name_of, refuse_missing_brackets
from crestgate.limiter.in_flight import Slots, hold_steps
from crestgate.limiter.limiter_core import LimiterCore, ManyItem, acquire_input
from crestgate.limiter.loop_driver import LoopDriver
from crestgate.limiter.observation import ObservedLoopDriver
from crestgate.limiter.pending_check import PendingCheck, finish_checks, requests_of
from crestgate.limiter.reservation import AsyncReservation, AsyncStoredReservation, Hold
from crestgate.limiter.reservation_terms import (
    Costs,
    OnExpiry,
    PreparedReservation,
    check_terms,
    prepare_rule_costs,
)
from crestgate.limiter.store_probe import probe_batches
from crestgate.limiter.wait_queue import AwaitTurn, SendRequest, Sleep, acquire_steps
from crestgate.runtime.tasks import run_to_completion
from crestgate.stores.breaker import BreakerState
from crestgate.stores.port import BatchOutcomes, IdempotencyRecord, LocalStore, Op, Outcome, Request
from crestgate.stores.remote_store import RemoteStore

if TYPE_CHECKING:
    from crestgate.limiter.stored_reservations import Grant, Steps, StoredReservations

__all__ = ["AsyncBound", "AsyncLimiter"]

P = ParamSpec("P")
R = TypeVar("R")


class AsyncLimiter(LimiterCore):
    """The same limits for asyncio: the methods of `Limiter` as coroutines, and `async with` for `reserve`."""

    async def check(self, key: str, limits: Limits, cost: SupportsIndex = 1) -> Decision:
        """Decide a request, and consume its cost when it is admitted; a chain is all or nothing."""
        # The lookup of `resolve`, without that call.
        bound = None
        try:
            if type(limits) is str:
                bound = self._by_text[limits]
            elif type(limits) is Limit:
                bound = self._by_identity[limits.identity]
        except KeyError:
            pass
        if bound is None:
            bound = self.resolve(limits)
        if not self.may_wait:
            return bound.check(key, cost)
        check = bound.prepare(Op.TAKE, key, cost)
        return check.finish((await self.apply([check]))[0])

    async def peek(self, key: str, limits: Limits, cost: SupportsIndex = 1) -> Decision:
        """The decision `check` would give now; consumes nothing."""
        return await self.decide_one(self.prepare(Op.PEEK, key, limits, cost))

    async def reset(self, key: str, limits: Limits) -> None:
        """Forget the counters of this key under these limits."""
        await self.decide_one(self.prepare(Op.RESET, key, limits, 0))

    async def check_many(self, items: Iterable[ManyItem]) -> list[Decision]:
        """Independent decisions on (key, limits) or (key, limits, cost), in one round trip."""
        return await self.decide(self._prepare_many(items))

    def bind(self, limits: Limits) -> AsyncBound:
        """The same limits, prepared once for a hot path: `gold = limiter.bind("gold"); await gold.check("user:42")`."""
        return AsyncBound(self, self.resolve(limits))

    async def check_request(self, context: RequestContext, cost: SupportsIndex = 1) -> Decision:
        """Decide a request under all rules that apply to it, and consume its cost when it is admitted."""
        return await self.decide_one(self.prepare_request(Op.TAKE, context, cost))

    async def peek_request(self, context: RequestContext, cost: SupportsIndex = 1) -> Decision:
        """The decision `check_request` would give now; consumes nothing."""
        return await self.decide_one(self.prepare_request(Op.PEEK, context, cost))

    async def reset_request(self, context: RequestContext) -> None:
        """Forget the counters of all rules that apply to a request."""
        await self.decide_one(self.prepare_request(Op.RESET, context, 0))

    async def acquire(
        self, key: str, limits: Limits, cost: SupportsIndex = 1, *, timeout: float | None = None
    ) -> Decision:
        """Wait until the request is admitted, first come first served per key.

        TimeoutError when that is not within `timeout` seconds, at once when it is known that it will not be. A leaky
        bucket's delay is waited for too.
        """
        whole = acquire_input(key, cost, timeout)
        bound, clock = self.resolve(limits), self.clock
        return await self._run(acquire_steps(bound, self.wait_queue, TaskWaiter(), key, whole, timeout, clock.ticks))

    def hold(
        self, key: str, limits: Limits, cost: SupportsIndex = 1, *, timeout: float | None = None
    ) -> AsyncHeldSlots:
        """Hold slots of in-flight limits (`20 concurrent`) while a block runs: `async with limiter.hold(key, limits):`.

        All limits of the chain are taken, rate limits too, or none: RateLimitExceeded when it is denied. With a
        `timeout` it waits, first come first served per key, and TimeoutError when there is no room in time. The slots
        are renewed while they are held, and released at the end of the block; what rate limits have charged stays.
        """
        whole = acquire_input(key, cost, timeout)
        bound, clock = self.resolve_hold(limits), self.clock
        remote = self._open_remote_hold()

        async def send(batch: Sequence[Request]) -> BatchOutcomes:
            if remote is None:
                return await self.apply(batch)
            return [await self.run_reservation(remote.send(batch[0]))]

        async def take() -> Slots:
            steps = hold_steps(bound, self.wait_queue, TaskWaiter(), key, whole, timeout, clock.ticks)
            try:
                return await self._run(steps, send)
            except BaseException:
                if remote is not None:
                    await self.run_reservation(remote.abandon())
                raise

        return AsyncHeldSlots(take, send, self._renewals)

    def reserve(
        self,
        key: str,
        limits: Limits | Costs,
        cost: SupportsIndex = 1,
        *,
        ttl: float | None = None,
        on_expiry: OnExpiry | None = None,
    ) -> AsyncReservation:
        """Take `cost` on entering, or when it is awaited, and settle what was really used later; RateLimitExceeded
        when it is denied. See `Limiter.reserve`."""
        prepared = self._prepare_reservation(key, limits, cost, ttl, on_expiry)
        if prepared is not None:
            return self._reserve(*prepared)
        check = self.prepare(Op.TAKE, key, cast(Limits, limits), cost)

        async def take() -> Hold:
            return (await self.take_hold(check)).require_allowed()

        return AsyncReservation(take, self._send)

    def reserve_request(
        self,
        context: RequestContext,
        costs: Mapping[str, SupportsIndex] | None = None,
        *,
        cost: SupportsIndex = 1,
        ttl: float | None = None,
        on_expiry: OnExpiry = "keep",
    ) -> AsyncReservation:
        """`reserve` under all rules that apply to a request: `costs` by rule_id or name, `cost` for the others."""
        ttl_us = check_terms(ttl, on_expiry)
        return self._reserve(prepare_rule_costs(self, context, costs, cost), ttl_us, on_expiry)

    def reservation(self, reservation_id: str) -> AsyncReservation:
        """A reservation that was made before, perhaps by another process: `await reservation(id).settle(620)`."""
        return AsyncStoredReservation(self._open_reservations, self.run_reservation, reservation_id)

    def _reserve(self, prepared: PreparedReservation, ttl_us: int | None, on_expiry: str) -> AsyncReservation:
        async def grant(stored: StoredReservations) -> Grant:
            granted: Grant = await self.run_reservation(stored.reserve(prepared, ttl_us, on_expiry, ""))
            if granted.id is None:
                raise RateLimitExceeded(granted.decision)
            return granted

        return AsyncStoredReservation(self._open_reservations, self.run_reservation, None, grant)

    async def _open_reservations(self) -> StoredReservations:
        """The first call connects to a database."""
        return await asyncio.to_thread(self.reservations.open)

    async def run_reservation(self, steps: Steps) -> Any:
        """Run the steps of a reservation, to their end also if the caller is cancelled: what was charged meanwhile
        must be in the book, and what is settled must be closed."""
        return await run_to_completion(self._run_reservation(steps))

    async def _run_reservation(self, steps: Steps) -> Any:
        from crestgate.limiter.stored_reservations import BookCall

        try:
            step = next(steps)
            while True:
                try:
                    if not isinstance(step, BookCall):
                        result: Any = await self.apply(step)
                    elif step.book.waits:
                        result = await asyncio.to_thread(step.call)
                    else:
                        result = step.call()
                except BaseException as error:  # noqa: BLE001 - thrown in: it may have to give something back
                    step = steps.throw(error)
                else:
                    step = steps.send(result)
        except StopIteration as done:
            return done.value

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
        the arguments too: limits of None, or a true `exempt`, and the call is not limited. Plans are looked up at
        each call. An admitted call waits out a leaky bucket's delay, unless `wait` is False.

        `when` is given what the function returns, or the exception that it raises, and says whether the call counts:
        `when=lambda result: result is None`. With `dry_run` calls are counted, and what would be denied is logged.
        """
        refuse_missing_brackets(limits, '@limiter.limit("5/minute")')
        guard = CallGuard(self, limits, key=key, cost=cost, exempt=exempt, when=when, wait=wait, dry_run=dry_run)

        def decorate(function: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Coroutine[Any, Any, R]]:
            calls = guard.calls_of(function)
            if not inspect.iscoroutinefunction(function):
                raise ConfigError(
                    f"{name_of(function)} is not async, so an AsyncLimiter cannot wait in it: use a Limiter"
                )
            return guarded_async(function, calls, self.check_bound, self.apply)

        return decorate

    async def decide(self, checks: Sequence[PendingCheck]) -> list[Decision]:
        """Independent decisions on prepared checks, in one store call."""
        requests = requests_of(checks)
        return finish_checks(checks, await self.apply(requests) if requests else [])

    async def decide_once(self, checks: Sequence[PendingCheck], record: IdempotencyRecord) -> list[Decision] | None:
        """The same under an idempotency record; None when they were decided before, and `record` has the result."""
        batch = [Request(Op.TAKE, check.members, record) for check in checks]
        replies = await self.apply(batch)
        if record.replay is not None or record.pending:
            return None
        return [check.finish(reply) for check, reply in zip(checks, replies, strict=True)]

    async def check_bound(self, bound: Bound, key: str, cost: SupportsIndex = 1) -> Decision:
        """`check` under a chain that `resolve` has returned."""
        if not self.may_wait:
            return bound.check(key, cost)
        return await self.decide_one(bound.prepare(Op.TAKE, key, cost))

    async def take_hold(self, check: PendingCheck) -> Hold:
        """Decide a check prepared for a TAKE, and keep what `release` needs."""
        return Hold(check, (await self.apply([check]))[0] if check.applies else [])

    async def keep_slots(self, hold: Hold) -> AsyncHeldSlots | None:
        """Renew the slots of in-flight limits that a check has taken, until they are released; None if it took none."""
        slots = Slots(hold.check, hold.outcomes, hold.decision)
        if slots.renewal_seconds is None:
            return None

        async def taken() -> Slots:
            return slots

        return await AsyncHeldSlots(taken, self.apply, self._renewals).__aenter__()  # never waits

    async def release(self, hold: Hold) -> Decision:
        """Give back what was held, without slots; returns the decision after that."""
        request = hold.release()
        return hold.decision if request is None else hold.released(request, (await self.apply([request]))[0])

    async def apply(self, batch: Sequence[Request]) -> BatchOutcomes:
        """Send store requests; where the store fails, `on_store_error` answers."""
        driver = self.driver
        try:
            if not driver.uses_coalescers:
                return await driver.apply(batch)
            decisions = self.backend.local_decisions
            sent_at = 0
            if decisions is not None:
                sent_at = decisions.begin(batch)
                if sent_at < 0:
                    return decisions.answer(batch) or await driver.apply(batch)
            # As `driver.apply` does, without its calls.
            coalescer = driver.coalescers.get(asyncio.get_running_loop()) or await driver.open_coalescer()
            future = coalescer.submit(batch)
            try:
                replies = await future
            except asyncio.CancelledError:
                coalescer.abandon(batch, future)
                raise
            if decisions is not None:
                decisions.end(batch, replies, sent_at)
            return replies
        except StoreError as error:
            return driver.fallback(error, batch)

    async def connect(self) -> None:
        """Connect to a remote store now, so that no check has to; `async with` does it too.

        StoreError when it cannot be reached. Without this the first check on an event loop connects, and is answered
        by `on_store_error` when that fails.
        """
        await self.driver.connect()

    async def probe(self) -> None:
        """Count on every server of the store, and forget it again.

        StoreError when one of them cannot, whatever `on_store_error` says.
        """
        for batch in probe_batches(self.store):
            await self.apply(batch)

    def breakers(self) -> dict[str, BreakerState]:
        """The circuit breaker's state of each server used so far, by the server's name."""
        breakers = self.store.breakers() if isinstance(self.store, RemoteStore) else {}
        now = time.monotonic()
        return {name: breaker.state(now) for name, breaker in breakers.items()}

    async def aclose(self) -> None:
        """Close the store, if this limiter opened it, and the rules, if `from_config` did."""
        for task in list(self._renewals):
            if task.get_loop() is asyncio.get_running_loop():
                task.cancel()
        if self.owns_catalog:
            await asyncio.to_thread(self.catalog.close)
        await self.driver.drain()
        if self.owns_reservations:  # not one that shares the backend of another
            await asyncio.to_thread(self.backend.end_leases)
        if self.owns_store and isinstance(self.store, RemoteStore):
            await self.store.aclose()
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
        self._renewals: set[asyncio.Task[None]] = set()
        observation = self.backend.observation
        if observation is None:
            self.driver = LoopDriver(self.backend)
        else:
            self.driver = ObservedLoopDriver(self.backend, observation)
        self.may_wait = not isinstance(self.store, LocalStore) or self.store.waits
        """Whether a check may have to wait for the store."""

    async def decide_one(self, check: PendingCheck) -> Decision:
        """`decide` for one check."""
        return check.finish((await self.apply([check]))[0] if check.applies else [])

    async def _send(self, request: Request) -> bool:
        """Send a settlement; whether the store has done it."""
        return bool((await self.apply([request]))[0])

    async def _run(
        self,
        steps: Generator[SendRequest | Sleep | AwaitTurn, list[Outcome] | bool | None, R],
        apply: Callable[[Sequence[Request]], Coroutine[Any, Any, BatchOutcomes]] | None = None,
    ) -> R:
        """Carry out the steps, until they return; `apply` sends requests."""
        try:
            step = next(steps)
            while True:
                try:
                    result: list[Outcome] | bool | None = None
                    if isinstance(step, SendRequest):
                        result = (await (apply or self.apply)([step.request]))[0]
                    elif isinstance(step, Sleep):
                        await asyncio.sleep(self.clock.wait(step.seconds))
                    else:
                        result = await cast(TaskWaiter, step.waiter).wait(step.seconds)
                except BaseException as error:  # noqa: BLE001 - thrown in, so that the waiter leaves the queue
                    step = steps.throw(error)
                else:
                    step = steps.send(result)
        except StopIteration as done:
            return cast(R, done.value)


class AsyncBound:
    """One chain of an AsyncLimiter: `await bound.check("user:42")`."""

    def __init__(self, limiter: AsyncLimiter, bound: Bound) -> None:
        self._limiter = limiter
        self._bound = bound

    async def check(self, key: str, cost: SupportsIndex = 1) -> Decision:
        """Decide a request and consume its cost when it is admitted."""
        return await self._limiter.check_bound(self._bound, key, cost)

    async def peek(self, key: str, cost: SupportsIndex = 1) -> Decision:
        """The decision `check` would give now; consumes nothing."""
        return (await self._limiter.decide([self._bound.prepare(Op.PEEK, key, cost)]))[0]

    async def reset(self, key: str) -> None:
        """Forget the counters of this key."""
        await self._limiter.decide([self._bound.prepare(Op.RESET, key, 0)])


class TaskWaiter:
    """A task in the queue of `acquire`; another loop's thread may call it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._called: asyncio.Future[None] = self._loop.create_future()

    async def wait(self, seconds: float | None) -> bool:
        """Wait until it is called, at most this many seconds; returns whether it was."""
        try:
            await asyncio.wait_for(self._called, seconds)
        except TimeoutError:
            return False
        return True

    def call(self) -> None:
        self._loop.call_soon_threadsafe(self._set)

    def _set(self) -> None:
        if not self._called.done():
            self._called.set_result(None)
