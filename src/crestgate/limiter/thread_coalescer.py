# mypyc: compile
"""Batches the requests of threads: see coalescer.py. There is no thread of its own: one of those that wait makes the
call for its batch.

That one, the leader, is the youngest of the batch, which has the most time left: the call ends by its deadline. The
others wait until their own.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from threading import Lock
from typing import final

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
from crestgate.runtime.fork_safety import Renewal, fork_safe_lock
from crestgate.stores.port import BatchOutcomes, PartialStoreError, Request
from crestgate.stores.remote_store import RemoteStore

__all__ = ["ThreadCoalescer", "WaitingThread"]

LATE = 0.005
"""Seconds after its deadline at which a thread that runs has left the queue: one that has not was not scheduled."""


class WaitingThread:
    """The requests of a thread that waits, and their result."""

    def __init__(self, requests: Sequence[Request], deadline: float) -> None:
        self.requests = requests
        self.deadline = deadline
        self.members = count_members(requests)
        self.result: BatchOutcomes | StoreError | None = None
        self.queued = False
        self.leads = False
        self.batch: list[WaitingThread] = []
        """Of a leader, until its call is made: it is in it, too."""
        self.send_at = 0.0
        """Of a leader: when it may send, if calls are spaced."""
        self.extended = False
        self.gone = False
        """Whether it has stopped waiting for its result."""
        self.wake = Lock()
        self.wake.acquire()


@final
class ThreadCoalescer:
    """The queue of all threads of a process."""

    def __init__(self, store: RemoteStore) -> None:
        self.store = store
        self.lock = fork_safe_lock()
        self.waiting: deque[WaitingThread] = deque()
        self.max_waiting = MAX_WAITING
        self.in_flight = 0
        self.call_time = CallTime(store.timeout, store.max_concurrent_batches)
        self.next_send = 0.0
        self.spacing_leader: WaitingThread | None = None
        """A leader that waits before it sends: it takes those that come meanwhile along."""
        self.renewal = Renewal(self.renew)

    def renew(self) -> None:
        """In a forked child: those that waited or called were the parent's threads."""
        self.waiting.clear()
        self.in_flight = 0
        self.spacing_leader = None

    def apply(self, requests: Sequence[Request]) -> BatchOutcomes:
        """Decide requests, alone or in a batch with others. StoreError by the deadline."""
        store = self.store
        started = time.monotonic()
        with self.lock:
            in_flight = self.in_flight
            alone = (
                in_flight < store.max_concurrent_batches
                and not self.waiting
                and (started >= self.next_send or not in_flight)  # calls may be spaced
            )
            if alone:
                self.in_flight += 1
                if self.call_time.spacing:
                    self.next_send = started + self.call_time.spacing
        if not alone:
            return self.queue(WaitingThread(requests, started + store.timeout))
        decided = False
        try:
            outcomes = store.call(requests, started + store.timeout)
            decided = True
            return outcomes
        except PartialStoreError as error:
            error.deadline = started + store.timeout
            raise
        finally:
            self.end_call(started, decided)

    def queue(self, thread: WaitingThread) -> BatchOutcomes:
        """Wait in the queue for a call of others, or for a free lane."""
        with self.lock:
            if len(self.waiting) >= self.max_waiting:
                raise queue_full(self.store, self.max_waiting)
            self.waiting.append(thread)
            thread.queued = True
            if self.in_flight < self.store.max_concurrent_batches:  # a call ended meanwhile, or calls are spaced
                self.wake_leader(time.monotonic())
        try:
            while True:
                if thread.wake.acquire(timeout=max(thread.deadline - time.monotonic(), 0.0)):
                    if not thread.leads or self.lead(thread):
                        break
                elif self.expire(thread):
                    break
        except BaseException:  # interrupted: neither its place in the queue, nor its lane, nor its batch may be lost
            self.leave(thread)
            raise
        result = thread.result
        if isinstance(result, StoreError):
            if isinstance(result, PartialStoreError):
                result.deadline = thread.deadline
            raise result
        assert result is not None
        return result

    def expire(self, thread: WaitingThread) -> bool:
        """The deadline of a thread that waits. False if it must wait on: a result has come, or this process was not
        scheduled, and so it gets as much time again."""
        with self.lock:
            if thread.leads or thread.result is not None:
                return False
            now = time.monotonic()
            late = now - thread.deadline
            if late > LATE and not thread.extended:
                thread.extended = True
                thread.deadline = now + min(late, self.store.timeout)
                return False
            if thread.queued:
                self.waiting.remove(thread)
                thread.queued = False
                thread.result = deadline_passed(self.store)
            else:
                thread.gone = True
                thread.result = no_answer(self.store)
        return True

    def leave(self, thread: WaitingThread) -> None:
        """A thread was interrupted while it waited."""
        with self.lock:
            thread.gone = True
            if thread.queued:
                self.waiting.remove(thread)
                thread.queued = False
            elif thread.batch:
                self.hand_back(thread, time.monotonic())

    def lead(self, leader: WaitingThread) -> bool:
        """Make the call of a batch. False if it was handed back, because this thread was not scheduled in time."""
        now = time.monotonic()
        if leader.send_at > now:
            time.sleep(leader.send_at - now)
            now = time.monotonic()
        store = self.store
        with self.lock:
            if leader.deadline - now <= self.call_time.seconds:
                self.hand_back(leader, now)
                return False
            if self.spacing_leader is leader:
                self.spacing_leader = None
            batch = [thread for thread in leader.batch if not thread.gone]
            leader.batch = []
            members = 0
            requests: list[Request] = []
            for thread in batch:
                members += thread.members
                requests += thread.requests
            waiting = self.waiting
            while waiting and members + waiting[0].members <= store.max_members:  # those that came meanwhile
                thread = waiting.popleft()
                thread.queued = False
                batch.append(thread)
                members += thread.members
                requests += thread.requests
            if waiting and self.in_flight < store.max_concurrent_batches:
                self.wake_leader(now)
        decided = False
        result: BatchOutcomes | StoreError = StoreError("the call was interrupted")
        try:
            deadline = leader.deadline
            if store.several_nodes:
                deadline = min([thread.deadline for thread in batch])
            result = store.call(requests, deadline)
            decided = True
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
            self.end_call(now, decided)
        return True

    def end_call(self, started: float, decided: bool) -> None:
        """A call has ended: its lane is free for the next in the queue."""
        now = time.monotonic()
        seconds = now - started
        with self.lock:
            self.in_flight -= 1
            if seconds > self.call_time.floor or self.call_time.seconds:
                self.call_time.add(seconds, decided)
            if self.waiting:
                self.wake_leader(now)
        on_decided = self.store.on_decided
        if decided and on_decided is not None:
            on_decided()

    def wake_leader(self, now: float) -> None:
        """Let one of the queue make the next call, and shed those that would get no answer in time."""
        if self.spacing_leader is not None:
            return
        store = self.store
        waiting = self.waiting
        call_seconds = self.call_time.seconds
        batch: list[WaitingThread] = []
        members = 0
        while waiting and (not batch or members + waiting[0].members <= store.max_members):
            thread = waiting.popleft()
            thread.queued = False
            left = thread.deadline - now
            if left < -LATE and not thread.extended:
                thread.extended = True
                left = min(-left, store.timeout)
                if call_seconds * 4 < store.timeout:  # the store is fast enough to answer it all the same
                    left = max(left, call_seconds * 2)
                thread.deadline = now + left
            if left <= call_seconds:
                thread.result = shed(store, left, call_seconds)
                thread.wake.release()
            else:
                batch.append(thread)
                members += thread.members
        if not batch:
            return
        leader = batch[-1]
        leader.batch = batch
        leader.leads = True
        spacing = self.call_time.spacing
        if spacing:
            leader.send_at = max(self.next_send, now) if self.in_flight else now
            self.next_send = leader.send_at + spacing
            self.spacing_leader = leader
        self.in_flight += 1
        leader.wake.release()

    def hand_back(self, leader: WaitingThread, now: float) -> None:
        """Put the batch of a leader that does not make its call back into the queue, and free its lane."""
        batch, leader.batch = leader.batch, []
        leader.leads = False
        leader.send_at = 0.0
        if self.spacing_leader is leader:
            self.spacing_leader = None
        for thread in reversed(batch):
            if not thread.gone:
                thread.queued = True
                self.waiting.appendleft(thread)
        self.in_flight -= 1
        if self.waiting:
            self.wake_leader(now)
