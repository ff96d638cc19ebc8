# mypyc: compile
"""Circuit breaker: after several failures in a row, calls to a server fail immediately for a while.

A server that hangs costs every request its whole deadline. After a few such failures the breaker opens, and requests
are refused without waiting. After a pause one request passes as a probe (half-open): if it succeeds the breaker closes,
if not the next pause begins. Each server has its own breaker, so one dead node of a cluster does not affect the others.

Several calls are in flight at once, and one moment without an answer makes all of them time out. That is one failure:
a timeout does not count if its call began before half of the last one that counted was over.

    closed ──(FAILURES in a row)──▶ open ──(PAUSE over)──▶ half-open ──(probe succeeds)──▶ closed
                                      ◀──(probe fails)────────┘
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, final

from crestgate.runtime.fork_safety import fork_safe_lock

__all__ = ["FAILURES", "OPEN_SECONDS", "Breaker", "BreakerState"]

FAILURES = 3
"""Failures in a row that open the breaker."""
OPEN_SECONDS = 1.0
"""Seconds from opening to the next probe."""
FORGOTTEN_SECONDS = 5.0
"""A server that has not failed for so long is not asked any more, by a failover for example."""
PROBE_TIMEOUT = 10.0
"""Seconds after which a probe without a result is given up and another may be sent."""

BreakerState = Literal["closed", "open", "half-open"]


@final
class Breaker:
    """Counts the failures of one server. `now` is an instant of any monotonic clock."""

    def __init__(self) -> None:
        self._lock = fork_safe_lock()
        self.failures = 0
        """Failures in a row; while there are none, `admits` and `succeeded` need not be called."""
        self._probe_at = 0.0
        self._timeouts_count_from = float("-inf")
        self.reason = ""
        """Of the last failure."""
        self.failed_at = float("-inf")
        self.on_recovered: Callable[[], None] | None = None
        """Called when a server that has failed responds again, in the thread that called it."""

    def state(self, now: float) -> BreakerState:
        """The state, for metrics and messages."""
        if self.failures < FAILURES:
            return "closed"
        return "open" if now < self._probe_at else "half-open"

    def refusal(self) -> str:
        """The reason why a request was not sent."""
        last = f"; last, {self.reason}" if self.reason else ""
        return f"it has failed several times in a row and is not asked for a moment{last}"

    def admits(self, now: float) -> bool:
        """Whether a request may be sent now. In the half-open state only one may, as the probe."""
        if self.failures < FAILURES:
            return True
        with self._lock:
            if self.failures < FAILURES:
                return True
            if now < self._probe_at:
                return False
            self._probe_at = now + PROBE_TIMEOUT
            return True

    def settled(self, admitted_at: float) -> None:
        """The request that was admitted then is over. If it was the probe and had no result (it was not sent, for
        example), another may be sent."""
        if self.failures < FAILURES:
            return
        with self._lock:
            if self._probe_at == admitted_at + PROBE_TIMEOUT:
                self._probe_at = admitted_at

    def succeeded(self) -> None:
        if self.failures:
            with self._lock:
                self.failures = 0
            if self.on_recovered is not None:
                self.on_recovered()

    def is_failing(self, now: float) -> bool:
        """Whether the last call failed, a moment ago."""
        return self.failures > 0 and now - self.failed_at < FORGOTTEN_SECONDS

    def failed(self, now: float, reason: str = "", started: float | None = None) -> None:
        """A call failed. Of one that timed out, `started` is when it began."""
        with self._lock:
            self.reason = reason
            self.failed_at = now
            if started is not None:
                if started < self._timeouts_count_from:
                    return
                self._timeouts_count_from = (started + now) / 2
            self.failures += 1
            if self.failures >= FAILURES:
                self._probe_at = now + OPEN_SECONDS
