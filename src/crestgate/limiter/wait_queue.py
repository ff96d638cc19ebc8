"""The queue behind `acquire`: first come, first served, per key.

`acquire_steps` holds the logic and does no I/O: it yields steps (send a request, sleep, wait for the turn) and is sent
their results. Each limiter carries the steps out, with or without `await`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from typing import NamedTuple, Protocol

from crestgate.core.decision import Decision
from crestgate.limiter.chain import Bound
from crestgate.limiter.reservation import give_back, is_charged
from crestgate.runtime.fork_safety import fork_safe_lock, renew_after_fork
from crestgate.stores.port import Op, Outcome, Request

__all__ = ["AcquireSteps", "AwaitTurn", "SendRequest", "Sleep", "WaitQueue", "Waiter", "acquire_steps"]


class Waiter(Protocol):
    """A position in the queue. `call` says that its turn has come; any thread may call it."""

    def call(self) -> None: ...


class SendRequest(NamedTuple):
    """Send a request to the store; the result is its outcomes."""

    request: Request


class Sleep(NamedTuple):
    """Wait this many seconds."""

    seconds: float


class AwaitTurn(NamedTuple):
    """Wait until the waiter is called, at most this many seconds; the result is whether it was."""

    waiter: Waiter
    seconds: float | None


AcquireSteps = Generator[SendRequest | Sleep | AwaitTurn, "list[Outcome] | bool | None", Decision]


class WaitQueue:
    """The queues of one limiter, one for each key and chain that somebody waits for."""

    def __init__(self) -> None:
        self._lock = fork_safe_lock()
        renew_after_fork(self)
        self.waiting: dict[tuple[str, tuple[str, ...]], deque[Waiter]] = {}

    def renew(self) -> None:
        """In a forked child nobody waits: the waiters were the parent's."""
        self.waiting.clear()

    def join(self, key: str, bound: Bound, waiter: Waiter) -> bool:
        """Enter the queue; returns whether anybody is ahead."""
        with self._lock:
            queue = self.waiting.setdefault((key, bound.names), deque())
            queue.append(waiter)
            return len(queue) > 1

    def leave(self, key: str, bound: Bound, waiter: Waiter) -> None:
        """Leave the queue, from any position; whoever is first then is called."""
        with self._lock:
            queue = self.waiting[key, bound.names]
            was_first = queue[0] is waiter
            queue.remove(waiter)
            if not queue:
                del self.waiting[key, bound.names]
            elif was_first:
                queue[0].call()


def acquire_steps(
    bound: Bound,
    queue: WaitQueue,
    waiter: Waiter,
    key: str,
    cost: int,
    timeout: float | None,
    now: Callable[[], int],
) -> AcquireSteps:
    """Take `cost` when it is the waiter's turn and there is room. TimeoutError as soon as that is known to be too
    late."""
    deadline = None if timeout is None else now() + round(timeout * 1_000_000)

    def left() -> float | None:
        return None if deadline is None else (deadline - now()) / 1_000_000

    ahead = queue.join(key, bound, waiter)
    try:
        if ahead:
            # Those ahead may give up; what is known is the wait if they do.
            check = bound.prepare(Op.PEEK, key, cost)
            outcomes = yield SendRequest(check)
            assert isinstance(outcomes, list)
            _wait_of(check.finish(outcomes), left(), timeout)
            if not (yield AwaitTurn(waiter, left())):
                raise _timeout_error(timeout)
        while True:
            check = bound.prepare(Op.TAKE, key, cost)
            outcomes = yield SendRequest(check)
            assert isinstance(outcomes, list)
            decision = check.finish(outcomes)
            if decision.allowed:
                break
            yield Sleep(_wait_of(decision, left(), timeout))
        spare = left()
        if spare is not None and decision.delay > max(spare, 0.0):
            if is_charged(check, outcomes):
                yield SendRequest(give_back(check, outcomes, cost))
            raise _timeout_error(timeout)
    finally:
        queue.leave(key, bound, waiter)
    if decision.delay:
        yield Sleep(decision.delay)
    return decision


def _wait_of(decision: Decision, left: float | None, timeout: float | None) -> float:
    """The seconds to wait after a denial; TimeoutError when fewer are left."""
    wait = decision.retry_after
    if wait is None:
        raise TimeoutError(f"this can never pass the limit {decision.name!r}: {decision.reason}")
    if left is not None and wait > left:
        raise _timeout_error(timeout, decision.reason == "fail_closed")
    return wait


def _timeout_error(timeout: float | None, store_failed: bool = False) -> TimeoutError:
    why = ", because the store failed" if store_failed else ""
    return TimeoutError(f"not admitted within {timeout:g} s{why}" if timeout is not None else f"not admitted{why}")
