# mypyc: compile
"""Batches the requests of the tasks of one event loop: see coalescer.py.

Deadlines are instants of the loop's own time (loop_lag.py), so that a loop that was blocked, or a process that was not
scheduled, does not fail requests to a server that is fast.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, final

from crestgate.errors import StoreError
from crestgate.limiter.coalescer import (
    MAX_WAITING,
    CallTime,
    count_members,
    deadline_passed,
    no_answer,
    part_of,
    queue_full,
    shed,
)
from crestgate.runtime.loop_lag import LoopLag, lag_of
from crestgate.stores.port import BatchOutcomes, Op, Outcome, PartialStoreError, Request
from crestgate.stores.remote_store import RemoteStore

if TYPE_CHECKING:
    import asyncio

__all__ = ["LoopCoalescer"]

WaitingTask = tuple[Sequence[Request], float, int, "asyncio.Future[BatchOutcomes]"]
"""The requests of a task that waits, their deadline, how many members they have, and the future of their result."""


@final
class LoopCoalescer:
    """The queue of one loop. `undo` builds the requests that give back what others have taken."""

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
        self.calls = 0
        self.early: dict[int, list[WaitingTask]] = {}
        """Batches in flight, some of whose deadlines are before that of their call."""
        self.call_time = CallTime(store.timeout, store.max_concurrent_batches)
        self.next_send = 0.0
        self.lag: LoopLag = lag_of(loop)
        self.scheduled = False
        self.is_sequence = False
        """Whether the last request was sent and no other was in flight: then the next one probably is alone, too."""
        self.timer: asyncio.TimerHandle | None = None

    def submit(self, requests: Sequence[Request]) -> asyncio.Future[BatchOutcomes]:
        """Decide requests, in a batch with all that are submitted in this iteration of the loop, or at once where one
        caller waits for each result. The future may be cancelled."""
        store = self.store
        future: asyncio.Future[BatchOutcomes] = self.loop.create_future()
        if len(self.waiting) >= self.max_waiting:
            future.set_exception(queue_full(store, self.max_waiting))
            return future
        if len(requests) == 1 and requests[0].record is None:
            members = len(requests[0].members)
        else:
            members = count_members(requests)
        lag = self.lag
        if not lag.active:
            lag.start()
        # `now()` and not `total`: if the loop was late just before, that must not be added to the deadline.
        self.waiting.append((requests, lag.now() + store.timeout, members, future))
        if self.in_flight < store.max_concurrent_batches:
            if self.is_sequence and not self.in_flight and not self.scheduled:
                self.flush()
            elif not self.scheduled:  # other tasks of this iteration join the batch
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
        lag = self.lag
        lag.used = True
        now = lag.now() + lag.total
        if waiting and waiting[0][1] <= now - lag.total + self.call_time.seconds:
            self.shed()
        if self.next_send > now and self.in_flight and waiting:  # calls are spaced
            self.scheduled = True
            self.loop.call_later(self.next_send - now, self.flush)
            return
        # Split into several batches where that pays: the next one is encoded while the last one is decided.
        size = max(-(-len(waiting) // (store.max_concurrent_batches - self.in_flight or 1)), store.min_shared_batch)
        if size < len(waiting) <= store.max_members and store.locks_counters and not self.are_distinct():
            size = len(waiting)
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
            self.is_sequence = len(batch) == 1 and self.in_flight == 1
            self.calls = number = self.calls + 1
            sent_at = now - lag.total
            deadline = batch[0][1] if store.several_nodes else batch[-1][1]
            if not store.several_nodes and deadline - sent_at < store.timeout * 0.9:
                # All of them have waited. The call has time of its own: that it ends too early is not the server's
                # fault, and those that still wait are answered by their own deadlines.
                deadline = sent_at + store.timeout
            if batch[0][1] < deadline - 0.001:
                self.early[number] = batch
            end_call = partial(self.end_call, batch, number, sent_at, lag.cpu)
            try:
                store.begin(requests, deadline + lag.total, end_call)
            except Exception as error:  # noqa: BLE001 - whatever it is, those that wait must get it
                end_call(error if isinstance(error, StoreError) else StoreError(repr(error)))
        if self.call_time.spacing:
            self.next_send = now + self.call_time.spacing
        if (waiting or self.early) and self.timer is None:
            self.start_timer()

    def are_distinct(self) -> bool:
        """Whether most of those that wait want counters that the others do not."""
        members = 0
        counters: set[tuple[str, str]] = set()
        for task in self.waiting:
            for request in task[0]:
                for member in request.members:
                    members += 1
                    counters.add((member.key, member.algorithm.name))
        return len(counters) * 4 >= members * 3

    def end_call(
        self, batch: Sequence[WaitingTask], number: int, sent_at: float, cpu: float, result: BatchOutcomes | StoreError
    ) -> None:
        """A call has ended: pass on its result, and send those that wait. `cpu`: `lag.cpu` when it was sent."""
        self.in_flight -= 1
        if self.early:
            self.early.pop(number, None)
        seconds = time.monotonic() - self.lag.total - sent_at
        if seconds > self.call_time.floor or self.call_time.seconds:
            # Not what this loop computed meanwhile: a reply that waits to be read is no slow call.
            seconds = max(seconds - (time.thread_time() - cpu), 0.0)
            self.call_time.add(seconds, not isinstance(result, StoreError))
        start = 0
        for requests, _, _, future in batch:
            end = start + len(requests)
            part = result if len(batch) == 1 else part_of(result, start, end)
            start = end
            if future.done():
                if future.cancelled():  # while the call was in flight; else its deadline has passed
                    self.give_back(requests, part)
            elif isinstance(part, StoreError):
                future.set_exception(part)
            else:
                future.set_result(part)
        if self.waiting and not self.scheduled:
            self.scheduled = True
            self.loop.call_soon(self.flush)
        on_decided = self.store.on_decided
        if on_decided is not None and not isinstance(result, StoreError):
            on_decided()

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

    def shed(self) -> None:
        """Fail those that would get no answer in time; the oldest come first. A settlement is sent all the same."""
        now = self.lag.now()
        call_seconds = self.call_time.seconds
        settlements: list[WaitingTask] = []
        waiting = self.waiting
        while waiting and waiting[0][1] <= now + call_seconds:
            task = waiting.popleft()
            if task[1] > now and task[0][0].op not in (Op.TAKE, Op.PEEK):
                settlements.append(task)
            elif not task[3].done():
                passed = task[1] <= now
                error = deadline_passed(self.store) if passed else shed(self.store, task[1] - now, call_seconds)
                task[3].set_exception(error)
        waiting.extendleft(reversed(settlements))

    def expire(self) -> None:
        """Fail those whose deadline has passed, in the queue and in flight; the oldest come first."""
        self.timer = None
        now = self.lag.now()
        while self.waiting and self.waiting[0][1] <= now:
            future = self.waiting.popleft()[3]
            if not future.done():
                future.set_exception(deadline_passed(self.store))
        for batch in self.early.values():
            for task in batch:
                if task[1] > now:
                    break
                if not task[3].done():
                    task[3].set_exception(no_answer(self.store))
        if self.waiting or self.early:
            self.start_timer()

    def start_timer(self) -> None:
        """Call `expire` at the next deadline."""
        now = self.lag.now()
        deadline = self.waiting[0][1] if self.waiting else now + self.store.timeout
        for batch in self.early.values():
            for task in batch:
                if task[1] > now:
                    deadline = min(deadline, task[1])
                    break
        self.timer = self.loop.call_later(max(deadline - now, 0.0), self.expire)


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
