"""Cooldowns of remote APIs, learned from their responses and shared by all callers of a process.

When one call is rejected, or uses up a quota, further calls under the same key wait too. Cooldowns end by monotonic
time and are only ever extended, so responses may arrive in any order.

A cooldown is one hour at most, so that a wrong header cannot block a process for ever. There are at most
`MAX_COOLDOWNS` keys; beyond that those that end first are dropped.
"""

from __future__ import annotations

from typing import Final

from crestgate.retry.wait_hints import ResponseHeaders, exhausted_wait, suggested_wait
from crestgate.runtime.clock import Clock
from crestgate.runtime.fork_safety import fork_safe_lock

__all__ = ["MAX_COOLDOWNS", "MAX_COOLDOWN_SECONDS", "Cooldowns"]

MAX_COOLDOWN_SECONDS: Final = 3600.0
MAX_COOLDOWNS: Final = 4096
REJECTIONS: Final = frozenset({429, 503})
"""The statuses whose Retry-After applies to further calls. (That of a redirect applies to its target.)"""


class Cooldowns:
    """The end of each key's cooldown, in ticks of the clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = fork_safe_lock()
        self._until: dict[str, int] = {}

    def left(self, key: str) -> float:
        """Seconds until the cooldown ends; 0 when there is none."""
        until = self._until.get(key)
        return 0.0 if until is None else max(until - self._clock.ticks(), 0) / 1_000_000

    def learn(self, key: str, status: int, headers: ResponseHeaders) -> None:
        """Start or extend the cooldown of a key, if the response asks for a wait."""
        now = self._clock.ticks()
        wait = (suggested_wait if status in REJECTIONS else exhausted_wait)(headers, now / 1_000_000)
        if not wait:
            return
        until = now + round(min(wait, MAX_COOLDOWN_SECONDS) * 1_000_000)
        with self._lock:
            if until > self._until.get(key, 0):
                if key not in self._until and len(self._until) >= MAX_COOLDOWNS:
                    self._make_room(now)
                self._until[key] = until

    def _make_room(self, now: int) -> None:
        """Drop expired cooldowns; if there are none, the half that ends first, so that this does not run for every
        key."""
        active = {key: until for key, until in self._until.items() if until > now}
        if len(active) >= MAX_COOLDOWNS:
            active = dict(sorted(active.items(), key=lambda entry: entry[1])[MAX_COOLDOWNS // 2 :])
        self._until = active
