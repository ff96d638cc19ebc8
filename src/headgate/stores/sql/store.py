"""Counters in a SQL database: one short transaction decides a whole batch, by the database's clock.

A StoreError says that a batch was not decided. When the answer to its COMMIT was lost it may have been: the message
says so, and the batch is not sent again, since that could count it twice. Whatever fails before the COMMIT is sent
has charged nothing; a dead-lock's victim is then begun anew while there is time, and so is a batch that found its
connection dead (the server was restarted, say).
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import final

from headgate.core.algorithms.algorithm import Algorithm
from headgate.errors import HeadgateError, StoreClosed, StoreError
from headgate.stores.breaker import Breaker
from headgate.stores.clock import Clock, MachineClock, wall_minus_monotonic
from headgate.stores.driven import DrivenCounters
from headgate.stores.forking import fork_safe_lock
from headgate.stores.port import DEFAULT_PREFIX, Op, Outcome, PartlyAnswered, Replies, Request
from headgate.stores.records import check_kept
from headgate.stores.remote import DEFAULT_TIMEOUT_MS
from headgate.stores.spread import unanswered
from headgate.stores.sql.cell import Writers
from headgate.stores.sql.plan import Identities, Plan
from headgate.stores.sql.pool import Busy, Pool
from headgate.stores.sql.session import Broken, Driver, Refused, Session
from headgate.stores.sql.sweeper import Sweeper
from headgate.stores.sql.transaction import Context, Conversation, Gone, transact
from headgate.stores.sql.version import prepare
from headgate.stores.threaded import ThreadedStore

__all__ = ["SqlStore"]

CONNECT_SECONDS = 5.0
"""The time for the first connection, which no request waits for."""
PREPARE_AGAIN = 1.0
"""Seconds before tables that could not be used are looked at again."""
MOST_WARM = 4
"""Connections that are made at the start, so that no check is the first to."""
MOST_KNOWN = 100_000
"""Ids remembered to have a row. More than that, and all are forgotten: each is then inserted once more, in vain."""
LONGEST_NAP = 0.004
"""Seconds before a dead-lock's victim comes back, at most."""
LONGEST_NAME = 64
"""Characters of an algorithm's name that the table has room for."""


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
        self.timeout = timeout_ms / 1000
        self.lanes = min(pool_size or self.lanes, driver.most_sessions or 10_000)
        self.driver = driver
        self.pool = Pool(driver, self.lanes)
        self.breaker = Breaker()
        self.identities = Identities(prefix)
        self.known: set[str] = set()
        self.machine = MachineClock(wall_minus_monotonic())
        self.clock = clock or self.machine
        self.driven = DrivenCounters() if clock is not None else None
        self.by_database = clock is None and driver.own_clock
        self.context = Context(driver.dialect, Writers(), None if self.by_database else self.clock.ticks)
        self.sweeper = Sweeper(self.pool, self.context.clock, self.identities.prefix if clock is not None else None)
        self.closed = False
        self.preparing = fork_safe_lock()
        self.prepared = False
        """Whether the tables are known to be there, and of our version. Until then nothing reads or writes them."""
        self.unprepared = ""
        self.prepare_at = 0.0

    def breakers(self) -> dict[str, Breaker]:
        return {self.driver.name: self.breaker}

    def supports(self, algorithm: Algorithm) -> bool:
        return len(algorithm.limit.algorithm) <= LONGEST_NAME

    def connect(self) -> None:
        self._check_open()
        deadline = time.monotonic() + CONNECT_SECONDS
        with self.preparing:
            self._prepare(deadline)
        self.pool.warm(min(self.lanes, MOST_WARM), deadline)

    def call(self, batch: Sequence[Request], deadline: float) -> Replies:
        self._check_open()
        check_kept(batch)
        self._check_prepared(deadline)
        now = time.monotonic()
        if not self.breaker.admits(now):
            raise self._error("it has failed several times in a row, and is not asked for a moment")
        try:
            replies = self._decide_all(batch, deadline)
        finally:
            self.breaker.settled(now)
        self.sweeper.notice()
        return replies

    def close(self) -> None:
        self.closed = True
        self.pool.close()
        super().close()

    def sweep(self) -> int:
        """Delete a bite of expired counters now; how many. (This happens by itself, about once a second.)"""
        self._check_open()
        deadline = time.monotonic() + CONNECT_SECONDS
        self._check_prepared(deadline)
        try:
            return self.sweeper.bite(deadline)
        except (Broken, Refused) as error:
            raise self._error(str(error)) from None

    # -- whether the tables are ours --------------------------------------------------------------------------------

    def _check_prepared(self, deadline: float) -> None:
        """A database that was only away when the store was opened is looked at again, by one caller for all."""
        if self.prepared:
            return
        if not self.preparing.acquire(timeout=max(deadline - time.monotonic(), 0.0)):
            raise self._error("its tables are being looked at")
        try:
            if self.prepared:
                return
            if time.monotonic() < self.prepare_at:
                raise StoreError(self.unprepared)
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
        except (Broken, Refused) as error:
            self.unprepared = f"{self.driver.name}: {error}"
            raise StoreError(self.unprepared) from None
        except HeadgateError as error:
            self.prepared, self.unprepared = False, str(error)
            raise
        finally:
            self.prepare_at = time.monotonic() + PREPARE_AGAIN

    # -- one piece of a batch ---------------------------------------------------------------------------------------

    def _decide_all(self, batch: Sequence[Request], deadline: float) -> Replies:
        driven = self.driven
        if driven is None:
            return self._decide_pieces(batch, deadline)
        now = self.clock.ticks()
        drained = driven.advance(now)
        if drained:
            self._decide_pieces([Request(Op.RESET, [member]) for member in drained], deadline)
        replies = self._decide_pieces(batch, deadline)
        driven.note(batch, replies, now)
        return replies

    def _decide_pieces(self, batch: Sequence[Request], deadline: float) -> Replies:
        replies: Replies = []
        for number, piece in enumerate(self.pieces(batch)):
            try:
                replies += self._decide(piece, deadline)
            except StoreError as error:
                if number == 0:
                    raise
                raise PartlyAnswered(_partly(replies, batch, error)) from error
        return replies

    def _decide(self, piece: Sequence[Request], deadline: float) -> Replies:
        plan = Plan(piece, self.identities)
        if not plan.counters and not plan.records:
            return [[] for _ in piece]
        try:
            session, is_new = self.pool.take(deadline)
        except Busy as busy:
            raise self._error(str(busy)) from None
        except (Broken, Refused) as error:
            raise self._failed(str(error)) from None
        while True:
            try:
                replies = self._converse(session, self._conversation(plan), deadline)
            except Gone as gone:
                self.known.difference_update(gone.ids)
                again = self._roll_back(session, deadline)
            except Refused as refused:
                self.breaker.succeeded()
                again = self._roll_back(session, deadline)
                if not refused.again or not again:
                    self._settle(session, again)
                    raise self._error(str(refused)) from None
                # The other one is to go first: coming back at once, the victim would meet it in the same place.
                time.sleep(random.random() * LONGEST_NAP)  # noqa: S311 - no secret
            except _Cut as cut:
                if cut.may_be_counted or cut.late or is_new:
                    self.pool.drop(session)
                    counted = "; the requests may have been counted" if cut.may_be_counted else ""
                    raise self._failed(f"{cut}{counted}") from None
                session, again = self._replaced(session, deadline), True
                is_new = True
            except BaseException:
                # A registered step that fails, an interrupt: nothing was committed, and nothing is to stay locked.
                self.pool.drop(session)
                raise
            else:
                self.pool.give(session)
                self.breaker.succeeded()
                self._learn(plan)
                return replies
            if not again or time.monotonic() >= deadline:
                self._settle(session, again)
                raise self._failed("no answer in time")

    def _conversation(self, plan: Plan) -> Conversation:
        needed = [counter for counter in plan.counters.values() if counter.charges]
        if all(counter.digits in self.known for counter in needed):
            return transact(plan, self.context, ())
        # All of them, not only the unknown: so each transaction takes its locks in one pass, in the same order.
        return transact(plan, self.context, needed)

    def _converse(self, session: Session, conversation: Conversation, deadline: float) -> Replies:
        trip = next(conversation)
        while True:
            try:
                answers = session.run(trip.statements, deadline)
            except Broken as broken:
                raise _Cut(broken, may_be_counted=trip.commits) from None
            try:
                trip = conversation.send(answers)
            except StopIteration as over:
                replies: Replies = over.value
                return replies

    def _roll_back(self, session: Session, deadline: float) -> bool:
        """Whether the session can go on."""
        try:
            session.run(["ROLLBACK"], deadline)
        except Broken:
            return False
        except Refused:
            pass  # SQLite, where there was nothing to roll back
        return True

    def _settle(self, session: Session, usable: bool) -> None:
        if usable:
            self.pool.give(session)
        else:
            self.pool.drop(session)

    def _replaced(self, session: Session, deadline: float) -> Session:
        try:
            return self.pool.replace(session, deadline)
        except (Broken, Refused) as error:
            raise self._failed(str(error)) from None

    def _learn(self, plan: Plan) -> None:
        """What a batch that was decided has told: the database's time, and which counters have a row."""
        if self.by_database:
            self.machine.anchor = plan.now - time.monotonic_ns() // 1000
        if len(self.known) + len(plan.counters) > MOST_KNOWN:
            self.known.clear()
        self.known.update([counter.digits for counter in plan.counters.values() if counter.charges])

    def _check_open(self) -> None:
        if self.closed:
            raise StoreClosed(f"{self.driver.name}: this store is closed")

    def _failed(self, problem: str) -> StoreError:
        self.breaker.failed(time.monotonic())
        return self._error(problem)

    def _error(self, problem: str) -> StoreError:
        return StoreError(f"{self.driver.name}: {problem}")


class _Cut(Exception):  # noqa: N818 - says what it is
    """The connection broke off in the middle of a conversation."""

    def __init__(self, broken: Broken, may_be_counted: bool) -> None:
        super().__init__(str(broken))
        self.late = broken.late
        self.may_be_counted = may_be_counted


def _partly(replies: Replies, batch: Sequence[Request], error: StoreError) -> list[Sequence[Outcome | StoreError]]:
    """The replies that there are, and for every other request the error."""
    partly: list[Sequence[Outcome | StoreError]] = list(replies)
    return partly + [unanswered(len(request.members), error) for request in batch[len(replies) :]]
