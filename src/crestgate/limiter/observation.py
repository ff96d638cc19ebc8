"""Calls the observer of a limiter.

A limiter without an observer has none of this: its backend calls the store directly. With one, the backend's `apply`
is `Observation.apply`, and event loops use an `ObservedLoopDriver`; a local store's shortcut for single takes is not
used.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, SupportsIndex

from crestgate.core.context import ContextFields
from crestgate.core.decision import Decision
from crestgate.errors import StoreError
from crestgate.limiter.loop_driver import LoopDriver
from crestgate.limiter.observer import LimiterCall, ObservedCheck, Observer, Operation, StoreStatus
from crestgate.limiter.pending_check import PendingCheck, combine_parts, no_rule
from crestgate.runtime.fork_safety import fork_safe_lock
from crestgate.stores.port import BatchCallback, BatchOutcomes, Op, Outcome, Request, Store
from crestgate.stores.remote_store import RemoteStore

if TYPE_CHECKING:
    from crestgate.limiter.backend import Backend
    from crestgate.limiter.limiter_core import RequestEvaluator
    from crestgate.rules.catalog import Catalog

__all__ = ["Observation", "ObservedEvaluator", "ObservedLoopDriver"]

LOG_SECONDS = 60.0
_OPERATIONS: dict[Op, Operation] = {Op.TAKE: "check", Op.PEEK: "peek", Op.RESET: "reset"}
_log = logging.getLogger("crestgate")


class Observation:
    """The observer of one limiter, called so that its errors change nothing."""

    def __init__(self, observer: Observer, store: Store, now: Callable[[], float] = time.monotonic) -> None:
        self.observer = observer
        self.status = StoreStatus(store)
        self._now = now
        self._lock = fork_safe_lock()
        self._logged_at = float("-inf")
        self._unlogged = 0
        try:
            observer.attached(self.status)
        except Exception as failure:  # noqa: BLE001 - a failing observer must not change a decision
            self._failed(failure)

    def evaluator(self, evaluator: RequestEvaluator) -> ObservedEvaluator:
        """The evaluator of the limiter, observed."""
        return ObservedEvaluator(evaluator, self)

    def apply(
        self, backend: Backend, apply: Callable[[Sequence[Request]], BatchOutcomes], batch: Sequence[Request]
    ) -> BatchOutcomes:
        """Send requests by `apply`; where the store fails, the failure policy answers. In `Backend.apply`'s place."""
        started = time.perf_counter()
        failure: StoreError | None = None
        try:
            try:
                replies = apply(batch)
            except StoreError as error:
                failure = error
                replies = backend.answer(error, batch)
        except BaseException as error:
            self.called(batch, None, time.perf_counter() - started, error)
            raise
        self.called(batch, replies, time.perf_counter() - started, failure)
        return replies

    def called(
        self, batch: Sequence[Request], replies: BatchOutcomes | None, seconds: float, error: BaseException | None
    ) -> None:
        """Report a call; without replies it has raised the error."""
        checks: list[ObservedCheck] = []
        shadow_denials: list[ObservedCheck] = []
        status = self.status
        try:
            operation = _OPERATIONS.get(batch[0].op, "settle") if batch else "check"
            if replies is not None and operation in ("check", "peek"):
                for request, reply in zip(batch, replies, strict=True):
                    if reply and request.op in (Op.TAKE, Op.PEEK):
                        _add_decisions(request, reply, checks, shadow_denials)
            self.observer.called(
                LimiterCall(
                    operation, tuple(checks), tuple(shadow_denials), seconds, status.title, status.remote, error
                )
            )
        except Exception as failure:  # noqa: BLE001 - a failing observer must not change a decision
            self._failed(failure)

    def unlimited(self, seconds: float) -> None:
        """Report a request to which no rule applied: no store was called."""
        check = ObservedCheck(no_rule(), "none")
        try:
            self.observer.called(LimiterCall("check", (check,), (), seconds, self.status.title, False))
        except Exception as failure:  # noqa: BLE001 - as above
            self._failed(failure)

    def batch_sent(self, size: int) -> None:
        try:
            self.observer.batch_sent(size)
        except Exception as failure:  # noqa: BLE001 - as above
            self._failed(failure)

    def send_batch(
        self, apply: Callable[[Sequence[Request]], BatchOutcomes], batch: Sequence[Request]
    ) -> BatchOutcomes:
        """Ask a store that is not remote."""
        self.batch_sent(len(batch))
        return apply(batch)

    def store_failed(self, error: StoreError, requests: int) -> None:
        try:
            self.observer.store_failed(error, requests)
        except Exception as failure:  # noqa: BLE001 - as above
            self._failed(failure)

    def observe_store(self, store: RemoteStore) -> RemoteStore:
        """A remote store whose batches are reported."""
        return ObservedStore(store, self)

    def _failed(self, error: Exception) -> None:
        now = self._now()
        with self._lock:
            self._unlogged += 1
            if now - self._logged_at < LOG_SECONDS:
                return
            self._logged_at = now
            unlogged, self._unlogged = self._unlogged, 0
        _log.error("observer failed, decisions are unchanged (%d since last logged)", unlogged, exc_info=error)


class ObservedLoopDriver(LoopDriver):
    """Reports the calls of event loops."""

    def __init__(self, backend: Backend, observation: Observation) -> None:
        super().__init__(backend)
        self.uses_coalescers = False  # the limiter leaves that to `apply`
        self._observation = observation

    async def apply(self, batch: Sequence[Request]) -> BatchOutcomes:
        """Send requests to any store; where it fails, the failure policy answers."""
        observation = self._observation
        started = time.perf_counter()
        failure: StoreError | None = None
        try:
            try:
                replies = await super().apply(batch)
            except StoreError as error:
                failure = error
                replies = self.fallback(error, batch)
        except BaseException as error:
            observation.called(batch, None, time.perf_counter() - started, error)
            raise
        observation.called(batch, replies, time.perf_counter() - started, failure)
        return replies

    async def send(self, batch: Sequence[Request]) -> BatchOutcomes:
        if not self._observation.status.remote:
            self._observation.batch_sent(len(batch))
        return await super().send(batch)


class ObservedStore(RemoteStore):
    """A remote store for coalescers, which reports the batches that they send."""

    def __init__(self, store: RemoteStore, observation: Observation) -> None:
        self.title = store.title
        self.clock = store.clock
        self.timeout = store.timeout
        self.max_concurrent_batches = store.max_concurrent_batches
        self.min_shared_batch = store.min_shared_batch
        self.locks_counters = store.locks_counters
        self.max_members = store.max_members
        self.several_nodes = store.several_nodes
        self._store = store
        self._observation = observation

    def call(self, batch: Sequence[Request], deadline: float) -> BatchOutcomes:
        self._observation.batch_sent(len(batch))
        return self._store.call(batch, deadline)

    def begin(self, batch: Sequence[Request], deadline: float, done: BatchCallback) -> None:
        self._observation.batch_sent(len(batch))
        self._store.begin(batch, deadline, done)

    async def connect_async(self) -> None:
        await self._store.connect_async()


class ObservedEvaluator:
    """Reports requests to which no rule applies: they are decided without a store."""

    def __init__(self, evaluator: RequestEvaluator, observation: Observation) -> None:
        self.catalog: Catalog | None = evaluator.catalog
        self._evaluator = evaluator
        self._observation = observation

    @property
    def shadow_denials(self) -> dict[str, int]:
        return self._evaluator.shadow_denials

    @property
    def uses_routes(self) -> bool:
        return self._evaluator.uses_routes

    def prepare(
        self, op: Op, context: ContextFields, cost: SupportsIndex, now_us: int = 0, hold: bool = False
    ) -> PendingCheck:
        started = time.perf_counter()
        check = self._evaluator.prepare(op, context, cost, now_us, hold)
        if not check.applies and op is Op.TAKE:
            self._observation.unlimited(time.perf_counter() - started)
        return check

    def policy_key(self, context: ContextFields, route: str) -> str | None:
        return self._evaluator.policy_key(context, route)


def _add_decisions(
    request: Request, reply: Sequence[Outcome], checks: list[ObservedCheck], shadow_denials: list[ObservedCheck]
) -> None:
    """The decision that `PendingCheck.finish` will return, without its pressure, and denials of shadow limits."""
    if len(reply) == 1 and request.members[0].binds:  # the most common one, without what follows
        checks.append(ObservedCheck(reply[0].decision, _dimension(request, reply[0].decision)))
        return
    parts: list[Decision] = []
    for member, outcome in zip(request.members, reply, strict=True):
        decision = outcome.decision
        if member.binds:
            parts.append(decision)
        elif not decision.allowed and request.op is Op.TAKE:
            shadow_denials.append(ObservedCheck(decision, _dimension(request, decision)))
    if isinstance(request, PendingCheck) and request.server_side:
        parts = [part for part in parts if part.parts] or parts[:1]
    combined = combine_parts(parts, (), all(part.allowed for part in parts))
    checks.append(ObservedCheck(combined, _dimension(request, combined)))


def _dimension(request: Request, decision: Decision) -> str:
    return request.subject(decision)[0] if isinstance(request, PendingCheck) else "key"
