"""What the failure policy has answered lately, and the log line when the store is back.

An operator needs to know at once whether limits hold now (`RecentAnswers`), and afterwards how long they did not
(`OutageWatch`). Checks that succeed pay nothing for it: while a store is away its breakers count failures, and a
breaker that was failing calls back when its server responds again. A server that responds with errors (Redis out of
memory) has a closed breaker: such an outage ends with the first batch that is decided, of which the coalescers tell
(`RemoteStore.on_decided`). Stores without a server have no such line.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable

from crestgate.runtime.fork_safety import fork_safe_lock
from crestgate.stores.remote_store import RemoteStore

__all__ = ["OutageWatch", "RecentAnswers"]

WINDOW_SECONDS = 60
LOG_SECONDS = 1.0
"""Shorter outages than this after a logged one are added to the next line. Those of errors alone are not logged."""
_log = logging.getLogger("crestgate")


class RecentAnswers:
    """Counts the answers of a policy in the last minute, by second. Not locked: its owner does."""

    def __init__(self) -> None:
        self.last_at = float("-inf")
        self.last_error = ""
        self._seconds: deque[tuple[int, int]] = deque(maxlen=WINDOW_SECONDS + 1)

    def add(self, answers: int, now: float, error: str) -> None:
        self.last_at, self.last_error = now, error
        if self._seconds and self._seconds[-1][0] == int(now):
            answers += self._seconds.pop()[1]
        self._seconds.append((int(now), answers))

    def last_minute(self, now: float) -> int:
        return sum(answers for second, answers in list(self._seconds) if second > now - WINDOW_SECONDS)


class OutageWatch:
    """Logs once per outage of a store: how long it was away, and how many checks the policy answered meanwhile."""

    def __init__(
        self,
        store: RemoteStore,
        policy: str,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`store` may be replaced by another that wraps it: what the coalescers send to."""
        self.store = store
        self._policy = policy
        self._breakers = store.breakers
        self._now = now
        self._lock = fork_safe_lock()
        self._since: float | None = None
        self._seconds = 0.0
        self._checks = 0
        self._logged_at = float("-inf")
        self._no_response = False
        """Whether a server did not respond in this outage; else it responded with errors."""

    @property
    def is_open(self) -> bool:
        """Whether the store is away."""
        return self._since is not None

    def answered(self, checks: int) -> None:
        """The policy answered in place of the store."""
        with self._lock:
            if self._since is None:
                self._since = self._now()
                self._no_response = False
            for breaker in self._breakers().values():
                breaker.on_recovered = self._recovered
                self._no_response = self._no_response or breaker.failures > 0
            if not self._no_response:
                self.store.on_decided = self._recovered
            self._checks += checks

    def _recovered(self) -> None:
        """A server responds again, or a batch was decided."""
        now = self._now()
        with self._lock:
            if self._since is None or any(breaker.is_failing(now) for breaker in self._breakers().values()):
                return
            self._seconds += now - self._since
            self._since = None
            self.store.on_decided = None
            if not self._no_response and self._seconds < LOG_SECONDS:  # single checks that failed
                self._seconds, self._checks = 0.0, 0
                return
            if now - self._logged_at < LOG_SECONDS:
                return
            self._logged_at = now
            seconds, checks, self._seconds, self._checks = self._seconds, self._checks, 0.0, 0
        _log.warning(
            "store is back: %s: away for %s s, on_store_error=%s answered %d checks meanwhile",
            self.store.title,
            f"{seconds:.1f}",
            self._policy,
            checks,
        )
