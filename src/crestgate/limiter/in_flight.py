"""In-flight limits: slots that are held while the work runs, renewed meanwhile, and released at its end.

A slot is an entry of the limit's log, identified by its tick. Several holders can share one tick, so an operation on
an entry is never sent twice: a renewal whose result is unknown, because the store failed, may have moved the entry, and
to repeat it could take the slot of somebody else. The hold is lost then, as it is when the entry has expired: it sends
nothing more, and what is left of it in the store ends after the time to live. So a limit never admits too many.

    entered         all limits of the chain are taken, all or nothing
    a third of      the slots are renewed: by one thread of the limiter, or by a task for each hold of an event loop
    the time to live
    left            the slots are released; what rate limits of the chain have charged stays
"""

from __future__ import annotations

import heapq
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from itertools import count
from types import TracebackType
from typing import TypeAlias

from crestgate.core.decision import Decision
from crestgate.errors import RateLimitExceeded, StoreError
from crestgate.limiter.chain import Bound
from crestgate.limiter.pending_check import PendingCheck
from crestgate.limiter.reservation import give_back, is_charged
from crestgate.limiter.wait_queue import AwaitTurn, SendRequest, Sleep, Waiter, WaitQueue
from crestgate.runtime.fork_safety import renew_after_fork
from crestgate.stores.port import BatchOutcomes, Member, Op, Outcome, Request

__all__ = ["HeldSlots", "HoldSteps", "SlotRenewer", "Slots", "hold_steps"]

RENEWALS_PER_TTL = 3
POLL_SECONDS = 0.05
"""A slot may be released at any time, also by another process: whoever waits for one looks so often."""
IDLE_SECONDS = 10.0
"""How long the renewing thread waits for another hold before it ends."""
SPARE_ENTRIES = 1000
"""Entries of released holds that the renewing thread keeps in any case, until they would be due."""
_log = logging.getLogger("crestgate")

HoldSteps: TypeAlias = Generator[SendRequest | Sleep | AwaitTurn, "list[Outcome] | bool | None", "Slots"]


class Slots:
    """What one admitted hold has taken, without I/O. What a failure policy has admitted holds nothing, and what was
    denied neither."""

    def __init__(self, check: PendingCheck, outcomes: Sequence[Outcome], decision: Decision) -> None:
        self.decision = decision
        self.lost = False
        self._members = [
            Member(member.key, member.algorithm, member.cost, True, outcome.tick, member.cost)
            for member, outcome in zip(check.members, outcomes, strict=True)
            if decision.allowed
            and member.algorithm.holds
            and member.cost
            and not member.peeks
            and outcome.decision.reason == "ok"
        ]

    @property
    def are_held(self) -> bool:
        """Whether there is anything to release."""
        return bool(self._members)

    @property
    def renewal_seconds(self) -> float | None:
        """Seconds between renewals; None when there is nothing to renew."""
        ttls = [member.algorithm.limit.period for member in self._members]
        return float(min(ttls)) / RENEWALS_PER_TTL if ttls else None

    def renewal(self) -> Request | None:
        """The request that renews what is held, if anything is."""
        return Request(Op.RENEW, self._members) if self._members else None

    def renewed(self, outcomes: Sequence[Outcome]) -> None:
        """The outcomes of a renewal; none if the store failed: whether it renewed is unknown then."""
        if len(outcomes) != len(self._members):
            self.lost, self._members = True, []
            return
        held = []
        for member, outcome in zip(self._members, outcomes, strict=True):
            if outcome.decision.allowed:
                member.tick = outcome.tick
                held.append(member)
            else:
                self.lost = True
        self._members = held

    def release(self) -> Request | None:
        """The request that releases what is still held; there is none the second time."""
        members, self._members = self._members, []
        return Request(Op.GIVE_BACK, members) if members else None


def hold_steps(
    bound: Bound,
    queue: WaitQueue,
    waiter: Waiter,
    key: str,
    cost: int,
    timeout: float | None,
    now: Callable[[], int],
) -> HoldSteps:
    """Take all limits of a chain. Without a timeout RateLimitExceeded at once when one denies; with one, wait in the
    queue of `acquire`, and TimeoutError when there is no room in time."""
    if timeout is None:
        check = bound.prepare_hold(key, cost)
        outcomes = yield SendRequest(check)
        assert isinstance(outcomes, list)
        decision = check.finish(outcomes)
        if not decision.allowed:
            raise RateLimitExceeded(decision)
        return (yield from _wait_out(Slots(check, outcomes, decision)))
    deadline = now() + round(timeout * 1_000_000)

    def left() -> float:
        return (deadline - now()) / 1_000_000

    ahead = queue.join(key, bound, waiter)
    try:
        if ahead and not (yield AwaitTurn(waiter, max(left(), 0.0))):
            raise _timeout_error(timeout)
        while True:
            check = bound.prepare_hold(key, cost)
            outcomes = yield SendRequest(check)
            assert isinstance(outcomes, list)
            decision = check.finish(outcomes)
            if decision.allowed:
                break
            yield Sleep(_wait(check, outcomes, decision, left(), timeout))
        if decision.delay > max(left(), 0.0):
            if is_charged(check, outcomes):
                yield SendRequest(give_back(check, outcomes))
            raise _timeout_error(timeout)
    finally:
        queue.leave(key, bound, waiter)
    return (yield from _wait_out(Slots(check, outcomes, decision)))


def _wait_out(slots: Slots) -> HoldSteps:
    """Wait out the delay of a leaky bucket. The slots are released if that is interrupted."""
    if slots.decision.delay:
        try:
            yield Sleep(slots.decision.delay)
        except BaseException:
            request = slots.release()
            if request is not None:
                yield SendRequest(request)
            raise
    return slots


def _wait(check: Request, outcomes: Sequence[Outcome], decision: Decision, left: float, timeout: float) -> float:
    """Seconds until the next try. A slot may be released before `retry_after`, a rate limit is not."""
    if decision.retry_after is None:
        raise TimeoutError(f"this can never pass the limit {decision.name!r}: {decision.reason}")
    for member, outcome in zip(check.members, outcomes, strict=True):
        wait = 0.0 if outcome.decision.allowed else outcome.decision.retry_after
        if not member.algorithm.holds and (wait is None or wait > left):
            raise _timeout_error(timeout)
    if left <= 0:
        raise _timeout_error(timeout)
    return min(decision.retry_after, POLL_SECONDS, left)


def _timeout_error(timeout: float) -> TimeoutError:
    return TimeoutError(f"not admitted within {timeout:g} s")


class HeldSlots:
    """Returned by `Limiter.hold`: a context manager that takes on entering and releases on leaving."""

    def __init__(
        self, take: Callable[[], Slots], apply: Callable[[Sequence[Request]], BatchOutcomes], renewer: SlotRenewer
    ) -> None:
        self._take = take
        self._apply = apply
        self._renewer = renewer
        self._slots: Slots | None = None
        self._process = 0
        self._lock = threading.Lock()

    @property
    def decision(self) -> Decision:
        """The decision that admitted it."""
        return self._require().decision

    @property
    def lost(self) -> bool:
        """Whether a renewal has found a slot gone, or its result is unknown: another may hold it by now."""
        return self._require().lost

    def renew(self) -> float | None:
        """Renew the slots; returns the seconds until the next renewal, or None when there is nothing to renew."""
        slots = self._require()
        with self._lock:
            request = slots.renewal()
            if request is None or os.getpid() != self._process:
                return None
            outcomes: Sequence[Outcome] = []
            try:
                with suppress(StoreError):  # closed meanwhile
                    outcomes = self._apply([request])[0]
            finally:  # after any failure it is unknown whether it renewed
                slots.renewed(outcomes)
            return slots.renewal_seconds

    @property
    def is_held(self) -> bool:
        """Whether there is anything to renew."""
        return self._slots is not None and self._slots.are_held

    def __enter__(self) -> HeldSlots:
        if self._slots is not None:
            raise RuntimeError("this hold was entered already")
        self._slots = self._take()
        self._process = os.getpid()
        seconds = self._slots.renewal_seconds
        if seconds is not None:
            self._renewer.add(self, seconds)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def release(self) -> None:
        """Release what is still held; the second time there is nothing."""
        slots = self._require()
        if os.getpid() != self._process:  # a forked child: the slots are the parent's
            return
        with self._lock:  # after a renewal that is under way: it moves the entries
            request = slots.release()
        if request is not None:
            self._renewer.forget_released()
            self._apply([request])

    def _require(self) -> Slots:
        if self._slots is None:
            raise RuntimeError("enter the hold first: with limiter.hold(...) as held")
        return self._slots


class SlotRenewer:
    """Renews the holds of one limiter from a daemon thread, which runs only while something is held.

    It refers to them weakly. A hold that nobody can release any more, because a response was dropped and not closed, is
    not renewed for ever: its slots end after their time to live.
    """

    def __init__(self) -> None:
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """At first, and in a forked child: the holds and the thread are the parent's."""
        self._condition = threading.Condition()
        self._due: list[tuple[float, int, weakref.ref[HeldSlots]]] = []
        self._numbers = count()
        self._thread: threading.Thread | None = None
        self._released = 0
        """How many holds were released since those that are due were counted."""
        self._closed = False

    def add(self, held: HeldSlots, seconds: float) -> None:
        with self._condition:
            if self._closed:
                return
            heapq.heappush(self._due, (time.monotonic() + seconds, next(self._numbers), weakref.ref(held)))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="crestgate-slots", daemon=True)
                self._thread.start()
            self._condition.notify()

    def forget_released(self) -> None:
        """One more hold is released. Its entry would stay here until its renewal is due, which is hours for a long
        time to live, so those of released holds are dropped when most are."""
        with self._condition:
            self._released += 1
            if self._released > max(SPARE_ENTRIES, len(self._due) // 2):
                self._released = 0
                self._due = [entry for entry in self._due if (held := entry[2]()) is not None and held.is_held]
                heapq.heapify(self._due)

    def close(self) -> None:
        """Stop renewing, and wait for the renewal that is under way."""
        with self._condition:
            self._closed = True
            self._due.clear()
            thread = self._thread
            self._condition.notify()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        while (held := self._next()) is not None:
            try:
                seconds = held.renew()
            except Exception:  # noqa: BLE001 - whatever it is, the other holds must be renewed
                _log.exception("unhandled error in renewing slots")
                seconds = None
            if seconds is not None:
                self.add(held, seconds)
            del held  # while it waits for the next

    def _next(self) -> HeldSlots | None:
        """The next hold to renew, when it is due; None when the thread has to end."""
        with self._condition:
            while not self._closed:
                wait = self._due[0][0] - time.monotonic() if self._due else IDLE_SECONDS
                if self._due and wait <= 0:
                    held = heapq.heappop(self._due)[2]()
                    if held is not None:
                        return held
                    continue
                if not self._condition.wait(wait) and not self._due:
                    break
            self._thread = None
            return None
