"""Counters in a SQL database: one short transaction decides a whole batch, by the database's clock.

A StoreError means that a batch was not decided. If the result of its COMMIT was lost it may have been: the message says
so, and the batch is not sent again, since that could count it twice. Whatever fails before the COMMIT is sent has
charged nothing; the victim of a deadlock is then repeated while there is time, and so is a batch whose connection was
dead (after a restart of the server, for example).
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import final

from crestgate.core.algorithms.algorithm import Algorithm
from crestgate.core.bounds import DEFAULT_PREFIX
from crestgate.errors import CrestgateError, StoreClosedError, StoreError
from crestgate.runtime.clock import Clock, MachineClock, wall_minus_monotonic
from crestgate.runtime.fork_safety import fork_safe_lock
from crestgate.stores.breaker import Breaker
from crestgate.stores.idempotency import check_record_size
from crestgate.stores.multi_node import failed_outcomes
from crestgate.stores.port import BatchOutcomes, Outcome, PartialStoreError, Request
from crestgate.stores.remote_store import DEFAULT_TIMEOUT_MS
from crestgate.stores.sql.batch_plan import BatchPlan, CounterIds
from crestgate.stores.sql.counter_row import RowWriters
from crestgate.stores.sql.pool import PoolBusyError, SessionPool
from crestgate.stores.sql.session import DatabaseConnectionError, Driver, Session, StatementError
from crestgate.stores.sql.sweeper import Sweeper
from crestgate.stores.sql.transaction import RoundTrips, SweptRowsError, TransactionContext, transact
from crestgate.stores.sql.version import prepare
from crestgate.stores.thread_adapter import ThreadedStore
from crestgate.stores.virtual_expiry import VirtualExpiry

__all__ = ["SqlStore"]

CONNECT_SECONDS = 5.0
"""Timeout of the first connection, which no request waits for."""
PREPARE_RETRY_SECONDS = 1.0
"""Seconds before tables that could not be used are checked again."""
MAX_WARM = 4
"""Connections opened at the start, so that no check has to."""
MAX_KNOWN = 100_000
"""Ids that are known to have a row. Beyond that all are dropped, and each costs a needless INSERT again."""
MAX_NAP = 0.004
"""Seconds before the victim of a deadlock is repeated, at most."""
MAX_NAME = 64
"""Characters of an algorithm's name that fit the table."""


@final
class SqlStore(ThreadedStore):
    """Counters in the database that `driver` opens. `clock` replaces its clock (or the machine's), for tests."""

    def __init__(
        self,
        driver: Driver,
        *,
        prefix: str = DEFAULT_PREFIX,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
        pool_size: int | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(driver.name)
        self.title = driver.name
        self.timeout = timeout_ms / 1000
        self.max_concurrent_batches = min(pool_size or self.max_concurrent_batches, driver.max_sessions or 10_000)
        self.min_shared_batch = driver.min_shared_batch
        self.locks_counters = self.max_concurrent_batches > 1
        self.driver = driver
        self.pool = SessionPool(driver, self.max_concurrent_batches)
        self.breaker = Breaker()
        self.pool.on_late_session = self.breaker.succeeded
        self.counter_ids = CounterIds(prefix)
        self.known: set[str] = set()
        self.machine = MachineClock(wall_minus_monotonic())
        self.clock = clock or self.machine
        self.virtual_expiry = VirtualExpiry(clock) if clock is not None else None
        self.by_database = clock is None and driver.own_clock
        ticks = self.clock.ticks if self.virtual_expiry is None else self.virtual_expiry.ticks
        self.context = TransactionContext(driver.dialect, RowWriters(), None if self.by_database else ticks)
        self.sweeper = Sweeper(self.pool, self.context.clock, self.counter_ids.prefix if clock is not None else None)
        self.closed = False
        self.preparing = fork_safe_lock()
        self.prepared = False
        """Whether the tables exist in the right version. Until then nothing reads or writes them."""
        self.prepare_error = ""
        self.prepare_at = 0.0

    def breakers(self) -> dict[str, Breaker]:
        return {self.driver.name: self.breaker}

    def supports(self, algorithm: Algorithm) -> bool:
        return len(algorithm.limit.algorithm) <= MAX_NAME

    def connect(self) -> None:
        self._check_open()
        deadline = time.monotonic() + CONNECT_SECONDS
        with self.preparing:
            self._prepare(deadline)
        self.pool.warm(min(self.max_concurrent_batches, MAX_WARM), deadline)

    def call(self, batch: Sequence[Request], deadline: float) -> BatchOutcomes:
        self._check_open()
        check_record_size(batch)
        self._check_prepared(deadline)
        now = time.monotonic()
        if not self.breaker.admits(now):
            raise self._error(self.breaker.refusal())
        try:
            replies = self._decide_all(batch, deadline)
        finally:
            self.breaker.settled(now)
        self.sweeper.sweep_if_due()
        return replies

    def close(self) -> None:
        self.closed = True
        self.pool.close()
        super().close()

    def sweep(self) -> int:
        """Delete a batch of expired rows now; how many. (Also done in the background, about once a second.)"""
        self._check_open()
        deadline = time.monotonic() + CONNECT_SECONDS
        self._check_prepared(deadline)
        try:
            return self.sweeper.sweep_batch(deadline)
        except (DatabaseConnectionError, StatementError) as error:
            raise self._error(str(error)) from None

    # -- schema version ---------------------------------------------------------------------------------------------

    def _check_prepared(self, deadline: float) -> None:
        """If the database was unreachable when the store was opened, one caller checks it again for all."""
        if self.prepared:
            return
        if not self.preparing.acquire(timeout=max(deadline - time.monotonic(), 0.0)):
            raise self._error("its schema version is being checked")
        try:
            if self.prepared:
                return
            if time.monotonic() < self.prepare_at:
                raise StoreError(self.prepare_error)
            self._prepare(deadline)
        finally:
            self.preparing.release()

    def _prepare(self, deadline: float) -> None:
        try:
            session, _ = self.pool.take(deadline)
            try:
                prepare(self.driver, session, deadline)
            except BaseException:
                self.pool.drop(session)
                raise
            self.pool.give(session)
            self.prepared = True
        except (DatabaseConnectionError, StatementError) as error:
            self.prepare_error = f"{self.driver.name}: {error}"
            raise StoreError(self.prepare_error) from None
        except CrestgateError as error:
            self.prepared, self.prepare_error = False, str(error)
            raise
        finally:
            self.prepare_at = time.monotonic() + PREPARE_RETRY_SECONDS

    # -- batches ----------------------------------------------------------------------------------------------------

    def _decide_all(self, batch: Sequence[Request], deadline: float) -> BatchOutcomes:
        expiry = self.virtual_expiry
        if expiry is not None:
            peeks = expiry.peeks()
            if peeks:
                resets = expiry.resets(peeks, self._decide_pieces(peeks, deadline))
                if resets:
                    self._decide_pieces(resets, deadline)
            expiry.note(batch)
        return self._decide_pieces(batch, deadline)

    def _decide_pieces(self, batch: Sequence[Request], deadline: float) -> BatchOutcomes:
        replies: BatchOutcomes = []
        for number, piece in enumerate(self.pieces(batch)):
            try:
                replies += self._decide(piece, deadline)
            except StoreError as error:
                if number == 0:
                    raise
                raise PartialStoreError(_with_error(replies, batch, error)) from error
        return replies

    def _decide(self, piece: Sequence[Request], deadline: float) -> BatchOutcomes:
        started = time.monotonic()
        plan = BatchPlan(piece, self.counter_ids)
        if not plan.counters and not plan.records:
            return [[] for _ in piece]
        try:
            session, is_new = self.pool.take(deadline)
        except PoolBusyError as busy:
            raise self._error(str(busy)) from None
        except (DatabaseConnectionError, StatementError) as error:
            timed_out = isinstance(error, DatabaseConnectionError) and error.timed_out
            raise self._failed(str(error), (started, deadline) if timed_out else None) from None
        while True:
            try:
                replies = self._run(session, self._round_trips(plan), deadline)
            except SweptRowsError as swept:
                self.known.difference_update(swept.ids)
                usable = self._roll_back(session, deadline)
            except StatementError as failed:
                usable = self._roll_back(session, deadline)
                if not usable or not self._retries(failed, deadline):
                    self._return(session, usable)
                    raise self._refused(failed, started, deadline) from None
                self.breaker.succeeded()
                # The other transaction goes first: repeated at once, the victim would deadlock with it again.
                time.sleep(random.random() * MAX_NAP)  # noqa: S311 - no secret
            except _RoundTripError as lost:
                if lost.may_be_counted or lost.timed_out or is_new:
                    self._return(session, lost.read_only and self._roll_back(session, deadline))
                    counted = "; the requests may have been counted" if lost.may_be_counted else ""
                    raise self._failed(f"{lost}{counted}", (started, deadline) if lost.timed_out else None) from None
                session, usable = self._replace(session, deadline), True
                is_new = True
            except BaseException:
                # An error of a custom algorithm, an interrupt: nothing was committed, and nothing must stay locked.
                self.pool.drop(session)
                raise
            else:
                self.pool.give(session)
                self.breaker.succeeded()
                self._note_result(plan)
                return replies
            if not usable or time.monotonic() >= deadline:
                self._return(session, usable)
                raise self._failed("no answer in time", (started, deadline))

    def _round_trips(self, plan: BatchPlan) -> RoundTrips:
        needed = [counter for counter in plan.counters.values() if counter.charges]
        if all(counter.hex_id in self.known for counter in needed):
            return transact(plan, self.context, ())
        # All of them, not only the unknown: so each transaction takes its locks in the same order.
        return transact(plan, self.context, needed)

    def _run(self, session: Session, trips: RoundTrips, deadline: float) -> BatchOutcomes:
        trip = next(trips)
        while True:
            try:
                results = session.run(trip.statements, deadline)
            except DatabaseConnectionError as error:
                raise _RoundTripError(error, may_be_counted=trip.commits) from None
            try:
                trip = trips.send(results)
            except StopIteration as finished:
                replies: BatchOutcomes = finished.value
                return replies

    def _roll_back(self, session: Session, deadline: float) -> bool:
        """Whether the session is still usable."""
        try:
            session.run(["ROLLBACK"], deadline)
        except DatabaseConnectionError:
            return False
        except StatementError:
            pass  # SQLite: there was no transaction
        return True

    def _return(self, session: Session, usable: bool) -> None:
        if usable:
            self.pool.give(session)
        else:
            self.pool.drop(session)

    def _replace(self, session: Session, deadline: float) -> Session:
        try:
            return self.pool.replace(session, deadline)
        except (DatabaseConnectionError, StatementError) as error:
            raise self._failed(str(error)) from None

    def _note_result(self, plan: BatchPlan) -> None:
        """After a batch: note the database's time, and which counters have a row."""
        if self.by_database:
            self.machine.anchor = plan.now - time.monotonic_ns() // 1000
        if len(self.known) + len(plan.counters) > MAX_KNOWN:
            self.known.clear()
        self.known.update([counter.hex_id for counter in plan.counters.values() if counter.charges])

    def _check_open(self) -> None:
        if self.closed:
            raise StoreClosedError(f"{self.driver.name}: this store is closed")

    def _failed(self, problem: str, timed_out: tuple[float, float] | None = None) -> StoreError:
        """The error of a failed call; of one that timed out, with its start and its deadline. A call that began too
        late says nothing about the server."""
        if timed_out is None:
            self.breaker.failed(time.monotonic())
        elif timed_out[1] - timed_out[0] >= self.timeout / 2:
            self.breaker.failed(time.monotonic(), started=timed_out[0])
        return self._error(problem)

    def _retries(self, error: StatementError, deadline: float) -> bool:
        """Whether to repeat a transaction that failed. Not the wait for a lock that has used up most of the time."""
        return error.retryable and (not error.lock_timeout or deadline - time.monotonic() > self.timeout / 2)

    def _refused(self, error: StatementError, started: float, deadline: float) -> StoreError:
        """The error of a call that the server answered with one. A lock that is not granted in time is a failure: the
        next calls would wait for it, too."""
        if error.lock_timeout:
            return self._failed(str(error), (started, deadline))
        self.breaker.succeeded()
        return self._error(str(error))

    def _error(self, problem: str) -> StoreError:
        return StoreError(f"{self.driver.name}: {problem}")


class _RoundTripError(Exception):
    """The connection was lost in a round trip."""

    def __init__(self, error: DatabaseConnectionError, may_be_counted: bool) -> None:
        super().__init__(str(error))
        self.timed_out = error.timed_out
        self.read_only = error.read_only
        self.may_be_counted = may_be_counted


def _with_error(
    replies: BatchOutcomes, batch: Sequence[Request], error: StoreError
) -> list[Sequence[Outcome | StoreError]]:
    """The outcomes so far, and for every other request the error."""
    decided: list[Sequence[Outcome | StoreError]] = list(replies)
    return decided + [failed_outcomes(len(request.members), error) for request in batch[len(replies) :]]
