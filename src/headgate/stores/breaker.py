"""A breaker: when the other side has failed several times in a row, stop asking it for a while.

A store that hangs costs every request its whole deadline. After a few such failures the breaker opens, and requests
are refused at once instead. After a pause one request is let through as a probe (half-open); if it succeeds all may
pass again, if not the next pause begins. One breaker belongs to one server: a cluster with one dead node goes on
asking the others.

    closed ──(FAILURES in a row)──▶ open ──(PAUSE over)──▶ half-open ──(probe succeeds)──▶ closed
                                      ◀──(probe fails)────────┘
"""

from __future__ import annotations

from typing import Literal, final

from headgate.stores.forking import fork_safe_lock

__all__ = ["FAILURES", "PAUSE", "Breaker", "BreakerState"]

FAILURES = 3
"""Failures in a row that open it."""
PAUSE = 1.0
"""Seconds between it opening and the next probe."""
PROBE_LOST = 10.0
"""Seconds after which a probe that was never heard of again makes room for another."""

BreakerState = Literal["closed", "open", "half-open"]


@final
class Breaker:
    """Counts the failures of one server. `now` is an instant of any clock that only moves forward."""

    def __init__(self) -> None:
        self._lock = fork_safe_lock()
        self._failures = 0
        self._probe_at = 0.0
        self.problem = ""
        """What went wrong last, in words."""

    def state(self, now: float) -> BreakerState:
        """How it stands, for metrics and messages."""
        if self._failures < FAILURES:
            return "closed"
        return "open" if now < self._probe_at else "half-open"

    def refusal(self) -> str:
        """Why a request was not sent."""
        last = f"; last, {self.problem}" if self.problem else ""
        return f"it has failed several times in a row and is not asked for a moment{last}"

    def admits(self, now: float) -> bool:
        """Whether a request may be sent now. In the half-open state one may, and is the probe."""
        if self._failures < FAILURES:
            return True
        with self._lock:
            if self._failures < FAILURES:
                return True
            if now < self._probe_at:
                return False
            self._probe_at = now + PROBE_LOST
            return True

    def settled(self, asked: float) -> None:
        """The request that was admitted at `asked` is over. If it was the probe, and never told how the server is (it
        was not even sent, say), another may be."""
        if self._failures < FAILURES:
            return
        with self._lock:
            if self._probe_at == asked + PROBE_LOST:
                self._probe_at = asked

    def succeeded(self) -> None:
        if self._failures:
            with self._lock:
                self._failures = 0

    def failed(self, now: float, problem: str = "") -> None:
        with self._lock:
            self._failures += 1
            self.problem = problem
            if self._failures >= FAILURES:
                self._probe_at = now + PAUSE
