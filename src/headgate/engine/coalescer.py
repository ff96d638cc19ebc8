"""Concurrency becomes batches: requests that come while calls are under way leave together in the next one.

A store across a network answers a batch of a hundred almost as fast as one request. So at most `store.lanes` calls
are under way at once, and whoever comes meanwhile waits in a queue; as soon as a call is back, the queue leaves as
one batch. There is no timer: a lone request leaves at once, and batches grow with the load.

    bounded     a batch has at most `store.most_members` members (or one request), the queue MOST_WAITING entries;
                who comes beyond that gets a StoreError, which the failure policy answers
    fair        first come, first out; a batch keeps the order, so requests for one key are decided in it
    punctual    the deadline of a request starts when it comes; a batch has the deadline of its oldest
    cancelled   who gives up in the queue was never there; what is decided for somebody who has gone is given back,
                unless it is decided once: then it is kept for the repeat

`ThreadCoalescer` is for threads: one of those who wait makes the call for all of its batch. `LoopCoalescer` is for
the tasks of one event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from threading import Lock
from typing import final

from headgate.errors import StoreClosed, StoreError
from headgate.stores.forking import Renewal, fork_safe_lock
from headgate.stores.port import Op, Outcome, PartlyAnswered, Replies, Request
from headgate.stores.records import check_kept
from headgate.stores.remote import RemoteStore

__all__ = ["MOST_WAITING", "LoopCoalescer", "ThreadCoalescer"]

MOST_WAITING = 10_000


class Ticket:
    """One caller's requests, and in the end what came of them."""

    def __init__(self, requests: Sequence[Request], deadline: float) -> None:
        check_kept(requests)  # while it is one caller's alone: those who would share its batch did nothing wrong
        self.requests = requests
        self.deadline = deadline
        self.members = len(requests[0].members) if len(requests) == 1 else sum(len(r.members) for r in requests)
        self.answer: Replies | StoreError | None = None
        self.queued = False
        self.leads = False
        self.wake: Lock | None = None
        self.future: asyncio.Future[Replies] | None = None


def next_batch(
    waiting: deque[Ticket], most_members: int, first: Ticket | None = None, most: int = MOST_WAITING
) -> list[Ticket]:
    """Take from the queue what leaves together, behind `first` if one is given; at most so many tickets."""
    batch = [first] if first is not None else []
    members = first.members if first is not None else 0
    while waiting and (not batch or members + waiting[0].members <= most_members) and len(batch) < most:
        ticket = waiting.popleft()
        ticket.queued = False
        batch.append(ticket)
        members += ticket.members
    return batch


def requests_of(batch: Sequence[Ticket]) -> Sequence[Request]:
    return batch[0].requests if len(batch) == 1 else [request for ticket in batch for request in ticket.requests]


def share_out(batch: Sequence[Ticket], answer: Replies | StoreError) -> None:
    """Give each ticket its part of the answer to a batch."""
    start = 0
    for ticket in batch:
        end = start + len(ticket.requests)
        if isinstance(answer, PartlyAnswered):
            ticket.answer = _part(answer.replies[start:end])
        elif isinstance(answer, StoreError):
            # An error of one's own: an exception that several callers raise would collect all their tracebacks.
            ticket.answer = answer if isinstance(answer, StoreClosed) or len(batch) == 1 else StoreError(*answer.args)
        else:
            ticket.answer = answer if len(batch) == 1 else answer[start:end]
        start = end


def _part(replies: Sequence[Sequence[Outcome | StoreError]]) -> Replies | StoreError:
    whole = [[item for item in reply if isinstance(item, Outcome)] for reply in replies]
    if all(len(outcomes) == len(reply) for outcomes, reply in zip(whole, replies, strict=True)):
        return whole
    return PartlyAnswered(replies)


def too_many(store: RemoteStore, most: int) -> StoreError:
    return StoreError(f"{store.title}: more than {most:,} checks are waiting for it")


def too_late(store: RemoteStore) -> StoreError:
    return StoreError(f"{store.title}: the calls before this one took all of its {store.timeout * 1000:.0f} ms")


@final
class ThreadCoalescer:
    """For threads. There is no thread of its own: the first in the queue takes the others along."""

    def __init__(self, store: RemoteStore) -> None:
        self.store = store
        self.lock = fork_safe_lock()
        self.waiting: deque[Ticket] = deque()
        self.most_waiting = MOST_WAITING
        self.flying = 0
        self.renewal = Renewal(self.renew)

    def renew(self) -> None:
        """In a forked child: those who waited or called were the parent's threads."""
        self.waiting.clear()
        self.flying = 0

    def apply(self, requests: Sequence[Request]) -> Replies:
        """Decide, alone or together with others. StoreError by the deadline."""
        store = self.store
        deadline = time.monotonic() + store.timeout
        with self.lock:
            alone = self.flying < store.lanes and not self.waiting
            if alone:
                self.flying += 1
        if alone:
            try:
                return store.call(requests, deadline)
            finally:
                self.landed()
        return self.queue(Ticket(requests, deadline))

    def queue(self, ticket: Ticket) -> Replies:
        wake = Lock()
        wake.acquire()
        ticket.wake = wake
        with self.lock:
            if len(self.waiting) >= self.most_waiting:
                raise too_many(self.store, self.most_waiting)
            self.waiting.append(ticket)
            ticket.queued = True
            if self.flying < self.store.lanes:  # a lane became free since we looked
                self.call_next()
        try:
            if not wake.acquire(timeout=max(ticket.deadline - time.monotonic(), 0.0)):
                if self.left_queue(ticket):
                    raise too_late(self.store)
                wake.acquire()  # its batch is under way, and will be back by its deadline
        except StoreError:
            raise
        except BaseException:  # interrupted: neither its place in the queue nor the lane it was given may be lost
            if not self.left_queue(ticket) and ticket.leads:
                self.landed()
            raise
        if ticket.leads:
            self.lead(ticket)
        answer = ticket.answer
        if isinstance(answer, StoreError):
            raise answer
        assert answer is not None
        return answer

    def left_queue(self, ticket: Ticket) -> bool:
        """Take a ticket out of the queue, if it is still in it."""
        with self.lock:
            queued = ticket.queued
            if queued:
                self.waiting.remove(ticket)
                ticket.queued = False
        return queued

    def lead(self, ticket: Ticket) -> None:
        """Make the call for oneself and for those behind in the queue."""
        if ticket.deadline <= time.monotonic():
            ticket.answer = too_late(self.store)
            self.landed()
            return
        answer: Replies | StoreError = StoreError("the call was broken off")
        with self.lock:
            batch = next_batch(self.waiting, self.store.most_members, ticket)
        try:
            answer = self.store.call(requests_of(batch), ticket.deadline)
        except StoreError as error:
            answer = error
        finally:
            share_out(batch, answer)
            for other in batch:
                if other is not ticket and other.wake is not None:
                    other.wake.release()
            self.landed()

    def landed(self) -> None:
        """A call is over: its lane is free for the next in the queue."""
        with self.lock:
            self.flying -= 1
            self.call_next()

    def call_next(self) -> None:
        if self.waiting:
            leader = self.waiting.popleft()
            leader.queued = False
            leader.leads = True
            self.flying += 1
            assert leader.wake is not None
            leader.wake.release()


@final
class LoopCoalescer:
    """For the tasks of one event loop. `undo` makes, of requests and replies, what gives back what they took."""

    def __init__(
        self,
        store: RemoteStore,
        loop: asyncio.AbstractEventLoop,
        undo: Callable[[Sequence[Request], Replies], Sequence[Request]],
    ) -> None:
        self.store = store
        self.loop = loop
        self.undo = undo
        self.waiting: deque[Ticket] = deque()
        self.most_waiting = MOST_WAITING
        self.flying = 0
        self.leaving = False
        self.timer: asyncio.TimerHandle | None = None

    def ask(self, requests: Sequence[Request]) -> asyncio.Future[Replies]:
        """Decide together with all who ask in this turn of the loop. The future may be cancelled."""
        ticket = Ticket(requests, time.monotonic() + self.store.timeout)
        ticket.future = future = self.loop.create_future()
        if len(self.waiting) >= self.most_waiting:
            future.set_exception(too_many(self.store, self.most_waiting))
            return future
        self.waiting.append(ticket)
        if self.flying < self.store.lanes:
            self.leave_soon()
        elif self.timer is None:
            self.timer = self.loop.call_later(self.store.timeout, self.expire)
        return future

    def leave_soon(self) -> None:
        """Let whoever else is ready in this turn of the loop come along."""
        if not self.leaving:
            self.leaving = True
            self.loop.call_soon(self.leave)

    def leave(self) -> None:
        self.leaving = False
        self.expire_waiting()
        # Shared out over the free lanes where that pays: the next batch is made ready while the last one is decided.
        share = max(-(-len(self.waiting) // (self.store.lanes - self.flying or 1)), self.store.worth_a_call)
        while self.waiting and self.flying < self.store.lanes:
            batch = [t for t in next_batch(self.waiting, self.store.most_members, None, share) if not _gone(t)]
            if not batch:
                continue
            self.flying += 1
            try:
                self.store.begin(requests_of(batch), batch[0].deadline, Landing(self, batch))
            except Exception as error:  # noqa: BLE001 - whatever it is, those who wait must hear of it
                self.landed(batch, error if isinstance(error, StoreError) else StoreError(repr(error)))
        if self.waiting and self.timer is None:
            left = self.waiting[0].deadline - time.monotonic()
            self.timer = self.loop.call_later(max(left, 0.0), self.expire)

    def landed(self, batch: Sequence[Ticket], answer: Replies | StoreError) -> None:
        self.flying -= 1
        share_out(batch, answer)
        for ticket in batch:
            self.tell(ticket)
        if self.waiting:
            self.leave_soon()

    def tell(self, ticket: Ticket) -> None:
        future, answer = ticket.future, ticket.answer
        assert future is not None
        if future.done():  # its task was cancelled while the call was under way
            self.give_back(ticket.requests, answer)
        elif isinstance(answer, StoreError):
            future.set_exception(answer)
        else:
            assert answer is not None
            future.set_result(answer)

    def abandoned(self, requests: Sequence[Request], future: asyncio.Future[Replies]) -> None:
        """A caller was cancelled. If its answer had come, and only its turn had not, nobody will ever hear it."""
        if future.done() and not future.cancelled():
            error = future.exception()
            self.give_back(requests, error if isinstance(error, StoreError) else future.result())

    def give_back(self, requests: Sequence[Request], answer: Replies | StoreError | None) -> None:
        """Return what was taken for somebody who has gone, as far as it was."""
        if isinstance(answer, PartlyAnswered):
            requests, answer = _reached(requests, answer)
        if isinstance(answer, list):
            undoing = self.undo(requests, answer)
            if undoing:
                self.send(undoing)

    def send(self, requests: Sequence[Request]) -> None:
        """Ask, and let nobody wait for the answer."""
        self.ask(requests).add_done_callback(_heard)

    def expire(self) -> None:
        """Whoever has waited for a whole deadline need not wait longer; the oldest come first."""
        self.timer = None
        self.expire_waiting()
        if self.waiting:
            left = self.waiting[0].deadline - time.monotonic()
            self.timer = self.loop.call_later(max(left, 0.0), self.expire)

    def expire_waiting(self) -> None:
        now = time.monotonic()
        while self.waiting and self.waiting[0].deadline <= now:
            ticket = self.waiting.popleft()
            if not _gone(ticket):
                ticket.answer = too_late(self.store)
                self.tell(ticket)


@final
class Landing:
    """Called by the store when a batch is decided."""

    def __init__(self, coalescer: LoopCoalescer, batch: Sequence[Ticket]) -> None:
        self.coalescer = coalescer
        self.batch = batch

    def __call__(self, answer: Replies | StoreError) -> None:
        self.coalescer.landed(self.batch, answer)


def _gone(ticket: Ticket) -> bool:
    """Whether nobody wants this decided any more. A settlement is: it belongs to what was decided before."""
    return ticket.future is not None and ticket.future.done() and ticket.requests[0].op in (Op.TAKE, Op.PEEK)


def _reached(requests: Sequence[Request], partly: PartlyAnswered) -> tuple[list[Request], Replies]:
    """The parts of requests that were decided, as requests of their own. What was kept, decided once, is not theirs."""
    parts: list[Request] = []
    replies: Replies = []
    asked = list(zip(requests, partly.replies, strict=True))
    unkept = [request.once for request, reply in asked if any(isinstance(item, StoreError) for item in reply)]
    for request, reply in asked:
        if not request.members or (request.once is not None and not any(request.once is once for once in unkept)):
            continue
        pairs = [(m, item) for m, item in zip(request.members, reply, strict=True) if isinstance(item, Outcome)]
        if pairs:
            parts.append(Request(request.op, [member for member, _ in pairs]))
            replies.append([outcome for _, outcome in pairs])
    return parts, replies


def _heard(future: asyncio.Future[Replies]) -> None:
    """Nobody waits for this one: if it failed, the cost it would have returned is lost."""
    if not future.cancelled():
        future.exception()
