# mypyc: compile
"""Batches concurrent requests to a remote store: those that arrive while calls are in flight share the next call.

A remote store decides a batch of a hundred almost as fast as one request. So at most `store.max_concurrent_batches`
calls are in flight, further requests are queued, and when a call ends the queue is sent as one batch. There is no
timer: a lone request is sent at once, and batches grow with the load.

    bounded     a batch has at most `store.max_members` members (or one request), the queue MAX_WAITING callers;
                one more gets a StoreError, which the failure policy answers
    fair        first in, first out; a batch keeps the order, so requests for one key are decided in it
    deadlines   a deadline starts when its request is submitted; a batch has the deadline of its oldest
    cancelled   a queued request is dropped; if it was sent, what it has taken is given back, unless it has an
                idempotency record: then a retry gets the stored result

`ThreadCoalescer` is for threads: one of those that wait makes the call for its whole batch. `LoopCoalescer` is for the
tasks of one event loop.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, final

from crestgate.errors import StoreClosedError, StoreError
from crestgate.runtime.fork_safety import Renewal, fork_safe_lock
from crestgate.stores.idempotency import check_record_size
from crestgate.stores.port import BatchOutcomes, Op, Outcome, PartialStoreError, Request
from crestgate.stores.remote_store import RemoteStore

if TYPE_CHECKING:
    import asyncio

__all__ = ["MAX_WAITING", "LoopCoalescer", "ThreadCoalescer", "WaitingThread"]

MAX_WAITING = 10_000


class WaitingThread:
    """The requests of a thread that waits, and their result."""

    def __init__(self, requests: Sequence[Request], deadline: float) -> None:
        self.requests = requests
        self.deadline = deadline
        self.members = count_members(requests)
        self.result: BatchOutcomes | StoreError | None = None
        self.queued = False
        self.leads = False
        self.wake = Lock()
        self.wake.acquire()


WaitingTask = tuple[Sequence[Request], float, int, "asyncio.Future[BatchOutcomes]"]
"""The requests of a task that waits, their deadline, how many members they have, and the future of their result."""


def count_members(requests: Sequence[Request]) -> int:
    """The members of one caller's requests. A record that is too long is an error now: it must not fail others that
    share a batch with it."""
    members = 0
    for request in requests:
        members += len(request.members)
        if request.record is not None:
            check_record_size(requests)
    return members


def part_of(result: BatchOutcomes | StoreError, start: int, end: int) -> BatchOutcomes | StoreError:
    """One caller's part of the result of a batch."""
    if isinstance(result, PartialStoreError):
        return _part(result.outcomes[start:end])
    if not isinstance(result, StoreError):
        return result[start:end]
    # An error for each: an exception that several callers raise would collect all their tracebacks.
    return result if isinstance(result, StoreClosedError) else StoreError(*result.args)


def _part(outcomes: Sequence[Sequence[Outcome | StoreError]]) -> BatchOutcomes | StoreError:
    decided = [[item for item in reply if isinstance(item, Outcome)] for reply in outcomes]
    if all(len(part) == len(reply) for part, reply in zip(decided, outcomes, strict=True)):
        return decided
    return PartialStoreError(outcomes)


def queue_full(store: RemoteStore, max_waiting: int) -> StoreError:
    return StoreError(f"{store.title}: more than {max_waiting:,} checks are waiting for it")


def deadline_passed(store: RemoteStore) -> StoreError:
    return StoreError(f"{store.title}: the calls before this one took all of its {store.timeout * 1000:.0f} ms")


@final
class ThreadCoalescer:
    """For threads. It has no thread of its own: the first in the queue makes the call for those behind it."""

    def __init__(self, store: RemoteStore) -> None:
        self.store = store
        self.lock = fork_safe_lock()
        self.waiting: deque[WaitingThread] = deque()
        self.max_waiting = MAX_WAITING
        self.in_flight = 0
        self.renewal = Renewal(self.renew)

    def renew(self) -> None:
        """In a forked child: those that waited or called were the parent's threads."""
        self.waiting.clear()
        self.in_flight = 0

    def apply(self, requests: Sequence[Request]) -> BatchOutcomes:
        """Decide requests, alone or in a batch with others. StoreError by the deadline."""
        store = self.store
        deadline = time.monotonic() + store.timeout
        with self.lock:
            alone = self.in_flight < store.max_concurrent_batches and not self.waiting
            if alone:
                self.in_flight += 1
        if alone:
            try:
                return store.call(requests, deadline)
            finally:
                self.end_call()
        return self.queue(WaitingThread(requests, deadline))

    def queue(self, thread: WaitingThread) -> BatchOutcomes:
        """Wait in the queue for a call of others, or for a free lane."""
        wake = thread.wake
        with self.lock:
            if len(self.waiting) >= self.max_waiting:
                raise queue_full(self.store, self.max_waiting)
            self.waiting.append(thread)
            thread.queued = True
            if self.in_flight < self.store.max_concurrent_batches:  # a call ended meanwhile
                self.wake_leader()
        try:
            if not wake.acquire(timeout=max(thread.deadline - time.monotonic(), 0.0)):
                if self.leave_queue(thread):
                    raise deadline_passed(self.store)
                wake.acquire()  # its batch is in flight, and ends by its deadline
        except StoreError:
            raise
        except BaseException:  # interrupted: neither its entry in the queue nor its lane may be lost
            if not self.leave_queue(thread) and thread.leads:
                self.end_call()
            raise
        if thread.leads:
            self.lead(thread)
        result = thread.result
        if isinstance(result, StoreError):
            raise result
        assert result is not None
        return result

    def leave_queue(self, thread: WaitingThread) -> bool:
        """Remove a thread from the queue; returns whether it was in it."""
        with self.lock:
            queued = thread.queued
            if queued:
                self.waiting.remove(thread)
                thread.queued = False
        return queued

    def lead(self, leader: WaitingThread) -> None:
        """Make the call for this thread and those behind it in the queue."""
        if leader.deadline <= time.monotonic():
            leader.result = deadline_passed(self.store)
            self.end_call()
            return
        result: BatchOutcomes | StoreError = StoreError("the call was interrupted")
        batch = [leader]
        requests = list(leader.requests)
        members = leader.members
        with self.lock:
            waiting = self.waiting
            while waiting and members + waiting[0].members <= self.store.max_members:
                thread = waiting.popleft()
                thread.queued = False
                batch.append(thread)
                requests += thread.requests
                members += thread.members
        try:
            result = self.store.call(requests, leader.deadline)
        except StoreError as error:
            result = error
        finally:
            start = 0
            for thread in batch:
                end = start + len(thread.requests)
                thread.result = result if len(batch) == 1 else part_of(result, start, end)
                start = end
                if thread is not leader:
                    thread.wake.release()
            self.end_call()

    def end_call(self) -> None:
        """A call has ended: its lane is free for the next in the queue."""
        with self.lock:
            self.in_flight -= 1
            if self.waiting:
                self.wake_leader()

    def wake_leader(self) -> None:
        """Let the first in the queue make the next call."""
        leader = self.waiting.popleft()
        leader.queued = False
        leader.leads = True
        self.in_flight += 1
        leader.wake.release()


@final
class LoopCoalescer:
    """For the tasks of one event loop. `undo` builds the requests that give back what others have taken."""

    def __init__(
        self,
        store: RemoteStore,
        loop: asyncio.AbstractEventLoop,
        undo: Callable[[Sequence[Request], BatchOutcomes], Sequence[Request]],
    ) -> None:
        self.store = store
        self.loop = loop
        self.undo = undo
        self.waiting: deque[WaitingTask] = deque()
        self.max_waiting = MAX_WAITING
        self.in_flight = 0
        self.scheduled = False
        self.timer: asyncio.TimerHandle | None = None

    def submit(self, requests: Sequence[Request]) -> asyncio.Future[BatchOutcomes]:
        """Decide requests, in a batch with all that are submitted in this iteration of the loop. The future may be
        cancelled."""
        store = self.store
        future: asyncio.Future[BatchOutcomes] = self.loop.create_future()
        if len(self.waiting) >= self.max_waiting:
            future.set_exception(queue_full(store, self.max_waiting))
            return future
        if len(requests) == 1 and requests[0].record is None:
            members = len(requests[0].members)
        else:
            members = count_members(requests)
        self.waiting.append((requests, time.monotonic() + store.timeout, members, future))
        if self.in_flight < store.max_concurrent_batches:
            if not self.scheduled:  # other tasks of this iteration join the batch
                self.scheduled = True
                self.loop.call_soon(self.flush)
        elif self.timer is None:
            self.timer = self.loop.call_later(store.timeout, self.expire)
        return future

    def flush(self) -> None:
        """Send the queue, in as many batches as may be in flight."""
        self.scheduled = False
        store = self.store
        waiting = self.waiting
        if waiting and waiting[0][1] <= time.monotonic():
            self.expire()
        # Split into several batches where that pays: the next one is encoded while the last one is decided.
        size = max(-(-len(waiting) // (store.max_concurrent_batches - self.in_flight or 1)), store.min_shared_batch)
        while waiting and self.in_flight < store.max_concurrent_batches:
            batch: list[WaitingTask] = []
            requests: list[Request] = []
            members = 0
            while waiting and len(batch) < size and (not batch or members + waiting[0][2] <= store.max_members):
                task = waiting.popleft()
                if task[3].done() and task[0][0].op in (Op.TAKE, Op.PEEK):
                    continue  # cancelled; a settlement is sent all the same
                batch.append(task)
                requests += task[0]
                members += task[2]
            if not batch:
                continue
            self.in_flight += 1
            try:
                store.begin(requests, batch[0][1], partial(self.end_call, batch))
            except Exception as error:  # noqa: BLE001 - whatever it is, those that wait must get it
                self.end_call(batch, error if isinstance(error, StoreError) else StoreError(repr(error)))
        if waiting and self.timer is None:
            self.start_timer()

    def end_call(self, batch: Sequence[WaitingTask], result: BatchOutcomes | StoreError) -> None:
        """A call has ended: pass on its result, and send those that wait."""
        self.in_flight -= 1
        start = 0
        for requests, _, _, future in batch:
            end = start + len(requests)
            part = result if len(batch) == 1 else part_of(result, start, end)
            start = end
            if future.done():  # cancelled while the call was in flight
                self.give_back(requests, part)
            elif isinstance(part, StoreError):
                future.set_exception(part)
            else:
                future.set_result(part)
        if self.waiting and not self.scheduled:
            self.scheduled = True
            self.loop.call_soon(self.flush)

    def abandon(self, requests: Sequence[Request], future: asyncio.Future[BatchOutcomes]) -> None:
        """A caller was cancelled. If its result is there already, nobody will use it."""
        if future.done() and not future.cancelled():
            error = future.exception()
            self.give_back(requests, error if isinstance(error, StoreError) else future.result())

    def give_back(self, requests: Sequence[Request], result: BatchOutcomes | StoreError) -> None:
        """Return what was taken for a caller that was cancelled."""
        if isinstance(result, PartialStoreError):
            requests, result = _decided_parts(requests, result)
        if isinstance(result, list):
            undo = self.undo(requests, result)
            if undo:
                self.send(undo)

    def send(self, requests: Sequence[Request]) -> None:
        """Submit requests whose result nobody waits for."""
        self.submit(requests).add_done_callback(_ignore_result)

    def expire(self) -> None:
        """Fail those whose deadline has passed; the oldest come first."""
        now = time.monotonic()
        while self.waiting and self.waiting[0][1] <= now:
            future = self.waiting.popleft()[3]
            if not future.done():
                future.set_exception(deadline_passed(self.store))
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        if self.waiting:
            self.start_timer()

    def start_timer(self) -> None:
        remaining_seconds = self.waiting[0][1] - time.monotonic()
        self.timer = self.loop.call_later(max(remaining_seconds, 0.0), self.expire)


def _decided_parts(requests: Sequence[Request], error: PartialStoreError) -> tuple[list[Request], BatchOutcomes]:
    """The parts of requests that were decided, as requests of their own, without those whose record was saved."""
    parts: list[Request] = []
    outcomes: BatchOutcomes = []
    replies = list(zip(requests, error.outcomes, strict=True))
    unsaved = [request.record for request, reply in replies if any(isinstance(item, StoreError) for item in reply)]
    for request, reply in replies:
        record = request.record
        if not request.members or (record is not None and not any(record is other for other in unsaved)):
            continue
        pairs = [(m, item) for m, item in zip(request.members, reply, strict=True) if isinstance(item, Outcome)]
        if pairs:
            parts.append(Request(request.op, [member for member, _ in pairs]))
            outcomes.append([outcome for _, outcome in pairs])
    return parts, outcomes


def _ignore_result(future: asyncio.Future[BatchOutcomes]) -> None:
    """Nobody waits for this result: if the request failed, the cost that it would have returned is lost."""
    if not future.cancelled():
        future.exception()
