"""`Limiter`: rate limits for threads and plain functions. Its asyncio twin is in async_limiter.py."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from threading import Event
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, Self, SupportsIndex, TypeVar, cast

from crestgate.core.context import RequestContext
from crestgate.core.decision import Decision
from crestgate.core.limit import Limit
from crestgate.core.plans import Limits
from crestgate.errors import RateLimitExceeded, StoreError
from crestgate.limiter.call_guard import CallCost, CallGuard, CallLimits, guarded, guarded_async
from crestgate.limiter.chain import Bound
from crestgate.limiter.decorator_arguments import KeyMaker, refuse_missing_brackets
from crestgate.limiter.in_flight import HeldSlots, SlotRenewer, Slots, hold_steps
from crestgate.limiter.limiter_core import LimiterCore, ManyItem, acquire_input
from crestgate.limiter.pending_check import PendingCheck, finish_checks, requests_of
from crestgate.limiter.reservation import Hold, Reservation, StoredReservation
from crestgate.limiter.reservation_access import run_steps
from crestgate.limiter.reservation_terms import (
    Costs,
    OnExpiry,
    PreparedReservation,
    check_terms,
    prepare_rule_costs,
)
from crestgate.limiter.wait_queue import AwaitTurn, SendRequest, Sleep, acquire_steps
from crestgate.stores.port import BatchOutcomes, Op, Outcome, Request
from crestgate.stores.remote_store import RemoteStore

if TYPE_CHECKING:
    from crestgate.limiter.stored_reservations import Grant, Steps

__all__ = ["Limiter"]

P = ParamSpec("P")
R = TypeVar("R")


class Limiter(LimiterCore):
    """Rate limits for threads and plain functions.

    >>> limiter = Limiter("memory://", plans={"gold": "10/second burst 20"})
    >>> limiter.check("user:42", "gold").remaining
    19
    >>> limiter.check("user:42", ["gold", "5000/day"], cost=3).allowed
    True

    With the rules of a configuration (`from_config`), `check_request` finds the limits of a request by itself.
    """

    def check(self, key: str, limits: Limits, cost: SupportsIndex = 1) -> Decision:
        """Decide a request, and consume its cost when it is admitted; a chain is all or nothing."""
        # The lookup of `resolve`, without that call, which is a tenth of a check.
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
        return bound.check(key, cost)

    def peek(self, key: str, limits: Limits, cost: SupportsIndex = 1) -> Decision:
        """The decision `check` would give now; consumes nothing."""
        return self.resolve(limits).peek(key, cost)

    def reset(self, key: str, limits: Limits) -> None:
        """Forget the counters of this key under these limits."""
        self.resolve(limits).reset(key)

    def check_many(self, items: Iterable[ManyItem]) -> list[Decision]:
        """Independent decisions on (key, limits) or (key, limits, cost), in one round trip."""
        return self.decide(self._prepare_many(items))

    def bind(self, limits: Limits) -> Bound:
        """The same limits, prepared once for a hot path: `gold = limiter.bind("gold"); gold.check("user:42")`."""
        return self.resolve(limits)

    def check_request(self, context: RequestContext, cost: SupportsIndex = 1) -> Decision:
        """Decide a request under all rules that apply to it, and consume its cost when it is admitted."""
        return self.decide([self.prepare_request(Op.TAKE, context, cost)])[0]

    def peek_request(self, context: RequestContext, cost: SupportsIndex = 1) -> Decision:
        """The decision `check_request` would give now; consumes nothing."""
        return self.decide([self.prepare_request(Op.PEEK, context, cost)])[0]

    def reset_request(self, context: RequestContext) -> None:
        """Forget the counters of all rules that apply to a request."""
        self.decide([self.prepare_request(Op.RESET, context, 0)])

    def acquire(self, key: str, limits: Limits, cost: SupportsIndex = 1, *, timeout: float | None = None) -> Decision:
        """Wait until the request is admitted, first come first served per key.

        TimeoutError when that is not within `timeout` seconds, at once when it is known that it will not be. A leaky
        bucket's delay is waited for too.
        """
        whole = acquire_input(key, cost, timeout)
        bound, clock = self.resolve(limits), self.clock
        return self._run(acquire_steps(bound, self.wait_queue, ThreadWaiter(), key, whole, timeout, clock.ticks))

    def hold(self, key: str, limits: Limits, cost: SupportsIndex = 1, *, timeout: float | None = None) -> HeldSlots:
        """Hold slots of in-flight limits (`20 concurrent`) while a block runs: `with limiter.hold(key, limits):`.

        All limits of the chain are taken, rate limits too, or none: RateLimitExceeded when it is denied. With a
        `timeout` it waits, first come first served per key, and TimeoutError when there is no room in time. The slots
        are renewed while they are held, and released at the end of the block; what rate limits have charged stays.
        """
        whole = acquire_input(key, cost, timeout)
        bound, clock = self.resolve_hold(limits), self.clock
        remote = self._open_remote_hold()

        def send(batch: Sequence[Request]) -> BatchOutcomes:
            return self.apply(batch) if remote is None else [self._run_reservation(remote.send(batch[0]))]

        def take() -> Slots:
            steps = hold_steps(bound, self.wait_queue, ThreadWaiter(), key, whole, timeout, clock.ticks)
            try:
                return self._run(steps, send)
            except BaseException:
                if remote is not None:
                    self._run_reservation(remote.abandon())
                raise

        return HeldSlots(take, send, self._renewer)

    def reserve(
        self,
        key: str,
        limits: Limits | Costs,
        cost: SupportsIndex = 1,
        *,
        ttl: float | None = None,
        on_expiry: OnExpiry | None = None,
    ) -> Reservation:
        """Take `cost` now and settle what was really used later; RateLimitExceeded when it is denied.

        `limits` may have a cost each: `{"requests": 1, "tokens": 800}` by plan, or a list of (limits, cost). All of
        them are taken in one step, or none.

        With `ttl`, `on_expiry`, or a cost each, the reservation has an `id` by which any process on this store can
        settle it (see `reservation`), and an end, `ttl` seconds from now (300 by default, at most a day). What is not
        settled by then stays charged, or is given back with `on_expiry="release"`.

        Slots of in-flight limits are released when it is settled, and renewed by `extend`. `ttl` is at most their time
        to live, which is the default then.
        """
        prepared = self._prepare_reservation(key, limits, cost, ttl, on_expiry)
        if prepared is None:
            hold = self.take_hold(self.prepare(Op.TAKE, key, cast(Limits, limits), cost))
            return Reservation(hold.require_allowed(), self._send)
        return self._reserve(*prepared)

    def reserve_request(
        self,
        context: RequestContext,
        costs: Mapping[str, SupportsIndex] | None = None,
        *,
        cost: SupportsIndex = 1,
        ttl: float | None = None,
        on_expiry: OnExpiry = "keep",
    ) -> Reservation:
        """`reserve` under all rules that apply to a request: `costs` by rule_id or name, `cost` for the others."""
        ttl_us = check_terms(ttl, on_expiry)
        return self._reserve(prepare_rule_costs(self, context, costs, cost), ttl_us, on_expiry)

    def reservation(self, reservation_id: str) -> Reservation:
        """A reservation that was made before, perhaps by another process: `reservation(id).settle(620)`."""
        return StoredReservation(reservation_id, None, None, self.reservations.open(), self._run_reservation)

    def _reserve(self, prepared: PreparedReservation, ttl_us: int | None, on_expiry: str) -> Reservation:
        stored = self.reservations.open()
        grant: Grant = self._run_reservation(stored.reserve(prepared, ttl_us, on_expiry, ""))
        if grant.id is None:
            raise RateLimitExceeded(grant.decision)
        return StoredReservation(grant.id, grant.expires_us, grant.decision, stored, self._run_reservation)

    def _run_reservation(self, steps: Steps) -> Any:
        return run_steps(steps, self.apply)

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
        the arguments too: limits of None, or a true `exempt`, and the call is not limited. Plans are looked up at
        each call. An admitted call waits out a leaky bucket's delay, unless `wait` is False.

        `when` is given what the function returns, or the exception that it raises, and says whether the call counts:
        `when=lambda result: result is None`. With `dry_run` calls are counted, and what would be denied is logged.
        """
        refuse_missing_brackets(limits, '@limiter.limit("5/minute")')
        guard = CallGuard(self, limits, key=key, cost=cost, exempt=exempt, when=when, wait=wait, dry_run=dry_run)

        def decorate(function: Callable[P, R]) -> Callable[P, R]:
            calls = guard.calls_of(function)
            if inspect.iscoroutinefunction(function):
                limited = guarded_async(function, calls, self._check_async, self._apply_async)
                return cast(Callable[P, R], limited)
            return guarded(function, calls, self.apply)

        return decorate

    def decide(self, checks: Sequence[PendingCheck]) -> list[Decision]:
        """Independent decisions on prepared checks, in one store call."""
        requests = requests_of(checks)
        return finish_checks(checks, self.apply(requests) if requests else [])

    def take_hold(self, check: PendingCheck) -> Hold:
        """Decide a check prepared for a TAKE, and keep what `release` needs."""
        return Hold(check, self.apply([check])[0] if check.applies else [])

    def keep_slots(self, hold: Hold) -> HeldSlots | None:
        """Renew the slots of in-flight limits that a check has taken, until they are released; None if it took none."""
        slots = Slots(hold.check, hold.outcomes, hold.decision)
        if slots.renewal_seconds is None:
            return None
        return HeldSlots(lambda: slots, self.apply, self._renewer).__enter__()

    def release(self, hold: Hold) -> Decision:
        """Give back what was held, without slots; returns the decision after that."""
        request = hold.release()
        return hold.decision if request is None else hold.released(request, self.apply([request])[0])

    def apply(self, batch: Sequence[Request]) -> BatchOutcomes:
        """Send store requests; where the store fails, `on_store_error` answers."""
        try:
            return self.backend.apply(batch)
        except StoreError as error:
            return self.backend.answer(error, batch)

    def close(self) -> None:
        """Close the store, if this limiter opened it, and the rules, if `from_config` did."""
        self._renewer.close()
        if self.owns_catalog:
            self.catalog.close()
        self._close_store()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self, connect: bool = True) -> None:
        """Connect to a remote store, so that no check has to."""
        self._renewer = SlotRenewer()
        if connect and isinstance(self.store, RemoteStore):
            try:
                self.store.connect()
            except BaseException:
                self._close_store()
                raise

    async def _check_async(self, bound: Bound, key: str, cost: int) -> Decision:
        """For async functions: a check that waits for a network must not block the event loop."""
        return bound.check(key, cost) if self.is_local else await _to_thread(bound.check, key, cost)

    async def _apply_async(self, batch: Sequence[Request]) -> BatchOutcomes:
        return self.apply(batch) if self.is_local else await _to_thread(self.apply, batch)

    def _send(self, request: Request) -> bool:
        """Send a settlement; whether the store has done it."""
        return bool(self.apply([request])[0])

    def _run(
        self,
        steps: Generator[SendRequest | Sleep | AwaitTurn, list[Outcome] | bool | None, R],
        apply: Callable[[Sequence[Request]], BatchOutcomes] | None = None,
    ) -> R:
        """Carry out the steps, until they return; `apply` sends requests."""
        try:
            step = next(steps)
            while True:
                try:
                    result: list[Outcome] | bool | None = None
                    if isinstance(step, SendRequest):
                        result = (apply or self.apply)([step.request])[0]
                    elif isinstance(step, Sleep):
                        time.sleep(self.clock.wait(step.seconds))
                    else:
                        result = cast(ThreadWaiter, step.waiter).event.wait(step.seconds)
                except BaseException as error:  # noqa: BLE001 - thrown in, so that the waiter leaves the queue
                    step = steps.throw(error)
                else:
                    step = steps.send(result)
        except StopIteration as done:
            return cast(R, done.value)


async def _to_thread(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """`asyncio.to_thread`, imported here: programs without an event loop would pay for it at their start."""
    from asyncio import to_thread

    return await to_thread(function, *args, **kwargs)


class ThreadWaiter:
    """A thread in the queue of `acquire`."""

    def __init__(self) -> None:
        self.event = Event()

    def call(self) -> None:
        self.event.set()
