# mypyc: compile
"""Batches concurrent requests to a remote store: those that arrive while calls are in flight share the next call.

A remote store decides a batch of a hundred almost as fast as one request. So at most `store.max_concurrent_batches`
calls are in flight, further requests are queued, and when a call ends the queue is sent as one batch. There is no
timer: a lone request is sent at once, and batches grow with the load.

    bounded     a batch has at most `store.max_members` members (or one request), the queue MAX_WAITING callers;
                one more gets a StoreError, which the failure policy answers
    fair        first in, first out; a batch keeps the order, so requests for one key are decided in it
    deadlines   a deadline starts when its request is submitted, and each caller has its own: one that has waited long
                does not end the call for those that came later
    shedding    a request that has less time left than a call takes is not sent, so it is certainly not counted
    scheduling  time in which this process did not run is not the server's, and does not count
    spacing     where a call takes more than half of the timeout, calls leave at even distances, so that no request has
                to wait for a whole call before its own
    cancelled   a queued request is dropped; if it was sent, what it has taken is given back, unless it has an
                idempotency record: then a retry gets the stored result

thread_coalescer.py is for threads: one of those that wait makes the call for its whole batch. loop_coalescer.py is for
the tasks of one event loop. Here is what they share.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from crestgate.errors import StoreClosedError, StoreError
from crestgate.stores.idempotency import check_record_size
from crestgate.stores.port import BatchOutcomes, Outcome, PartialStoreError, Request
from crestgate.stores.remote_store import RemoteStore

__all__ = ["MAX_WAITING", "CallTime", "count_members", "deadline_passed", "no_answer", "part_of", "queue_full", "shed"]

MAX_WAITING = 10_000
SMOOTHING = 4
"""One call changes the estimate by a fourth of the difference."""


@final
class CallTime:
    """The time that calls of a store take, smoothed. Far below the timeout it does not matter, and is 0."""

    def __init__(self, timeout: float, lanes: int) -> None:
        self.seconds = 0.0
        self.floor = timeout / 8
        """Calls that take less need not be reported while `seconds` is 0."""
        self.spacing = 0.0
        """Seconds between the starts of two calls; 0 unless calls take more than half of the timeout."""
        self._timeout = timeout
        self._lanes = lanes

    def add(self, seconds: float, decided: bool) -> None:
        """Report a call. One that failed counts only if it took longer: it may not have been sent."""
        if not decided and seconds < self.seconds:
            return
        # Never more than three fourths of the timeout, or no request would be sent any more, and nothing learnt.
        seconds = min(seconds, self._timeout * 0.75)
        self.seconds += (seconds - self.seconds) / SMOOTHING
        if self.seconds < self.floor / 2:
            self.seconds = 0.0
        self.spacing = self.seconds / self._lanes if self.seconds * 2 > self._timeout else 0.0


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
    """For a request whose deadline passed in the queue."""
    return StoreError(f"{store.title}: the calls before this one took all of its {store.timeout * 1000:.0f} ms")


def shed(store: RemoteStore, left: float, call_seconds: float) -> StoreError:
    """For a request that is not sent, because no answer would come in time."""
    return StoreError(
        f"{store.title}: not sent, because {max(left, 0.0) * 1000:.0f} of its {store.timeout * 1000:.0f} ms were left "
        f"and a call takes about {call_seconds * 1000:.0f} ms"
    )


def no_answer(store: RemoteStore) -> StoreError:
    """For a request whose deadline passed while its batch was in flight."""
    return StoreError(
        f"{store.title}: it did not answer within {store.timeout * 1000:.0f} ms; the request may have been counted"
    )
