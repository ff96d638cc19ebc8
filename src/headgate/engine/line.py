"""Waiting one's turn: who came first is served first, per key.

`wait_turn` holds the logic and does no I/O: it yields what is to be done (ask the store, sleep, wait for the turn)
and is sent what came of it. A sync and an async driver (limiter.py) do the doing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from typing import NamedTuple, Protocol

from headgate.core.decision import Decision
from headgate.engine.bound import Bound
from headgate.engine.reservation import charged, returning
from headgate.stores.forking import fork_safe_lock, renew_after_fork
from headgate.stores.port import Op, Outcome, Request

__all__ = ["Ask", "Command", "Line", "Sleep", "Ticket", "Turn", "wait_turn"]


class Ticket(Protocol):
    """A place in the line. `call` may be made from anywhere and says that its turn has come."""

    def call(self) -> None: ...


class Ask(NamedTuple):
    """Put a request to the store; answered with its outcomes."""

    request: Request


class Sleep(NamedTuple):
    """Let so many seconds pass."""

    seconds: float


class Turn(NamedTuple):
    """Wait until the ticket is called, so many seconds at most; answered with whether it was."""

    ticket: Ticket
    seconds: float | None


Command = Ask | Sleep | Turn
Waiting = Generator[Command, "list[Outcome] | bool | None", Decision]


class Line:
    """The lines of one limiter, one for each key and chain that somebody waits for."""

    def __init__(self) -> None:
        self._lock = fork_safe_lock()
        renew_after_fork(self)
        self._waiting: dict[tuple[str, tuple[str, ...]], deque[Ticket]] = {}

    def renew(self) -> None:
        """In a forked child nobody waits: those in line were the parent's."""
        self._waiting.clear()

    def join(self, key: str, bound: Bound, ticket: Ticket) -> bool:
        """Stand in line; says whether anybody is ahead."""
        with self._lock:
            queue = self._waiting.setdefault((key, bound.names), deque())
            queue.append(ticket)
            return len(queue) > 1

    def leave(self, key: str, bound: Bound, ticket: Ticket) -> None:
        """Go, from wherever one stands; whoever is now first is called."""
        with self._lock:
            queue = self._waiting[key, bound.names]
            was_first = queue[0] is ticket
            queue.remove(ticket)
            if not queue:
                del self._waiting[key, bound.names]
            elif was_first:
                queue[0].call()


def wait_turn(
    bound: Bound,
    line: Line,
    ticket: Ticket,
    key: str,
    cost: int,
    timeout: float | None,
    now: Callable[[], int],
) -> Waiting:
    """Take `cost` when it is one's turn and there is room. TimeoutError as soon as that is known to be too late."""
    deadline = None if timeout is None else now() + round(timeout * 1_000_000)

    def left() -> float | None:
        return None if deadline is None else (deadline - now()) / 1_000_000

    ahead = line.join(key, bound, ticket)
    try:
        if ahead:
            # Those ahead may yet give up; what is known is the wait if they do.
            outcomes = yield Ask(bound.request(Op.PEEK, key, cost))
            assert isinstance(outcomes, list)
            _in_time(bound.finish(Op.PEEK, key, outcomes), left(), timeout)
            if not (yield Turn(ticket, left())):
                raise _too_late(timeout)
        while True:
            taken = bound.request(Op.TAKE, key, cost)
            outcomes = yield Ask(taken)
            assert isinstance(outcomes, list)
            decision = bound.finish(Op.TAKE, key, outcomes)
            if decision.allowed:
                break
            yield Sleep(_in_time(decision, left(), timeout))
        spare = left()
        if spare is not None and decision.delay > max(spare, 0.0):
            if charged(taken, outcomes):
                yield Ask(returning(taken, outcomes, cost))
            raise _too_late(timeout)
    finally:
        line.leave(key, bound, ticket)
    if decision.delay:
        yield Sleep(decision.delay)
    return decision


def _in_time(decision: Decision, left: float | None, timeout: float | None) -> float:
    """The seconds to wait, if they are within those left."""
    wait = decision.retry_after
    if wait is None:
        raise TimeoutError(f"this can never pass the limit {decision.name!r}: {decision.reason}")
    if left is not None and wait > left:
        raise _too_late(timeout, decision.reason == "fail_closed")
    return wait


def _too_late(timeout: float | None, store_failed: bool = False) -> TimeoutError:
    why = ", for the store could not be asked" if store_failed else ""
    return TimeoutError(f"not admitted within {timeout:g} s{why}" if timeout is not None else f"not admitted{why}")
