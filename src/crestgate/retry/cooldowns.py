"""Cooldowns: for how long a remote API wants no calls, learned from its responses and shared by all callers.

One caller is refused, or uses up the last of a quota; the others of this process need not find that out one by one. The
key is held until then, by monotonic time. A hold is only ever prolonged: responses that overtake each other do no harm.

A hold is an hour at most, so that no server's mistake keeps a process from it for ever: then it is asked again. As many
keys are held as `MAX_COOLDOWNS`; beyond that the ones that end first are forgotten.
"""

from __future__ import annotations

from typing import Final

from crestgate.retry.wait_hints import Headers, exhausted_wait, suggested_wait
from crestgate.runtime.clock import Clock
from crestgate.runtime.fork_safety import fork_safe_lock

__all__ = ["MAX_COOLDOWNS", "MAX_COOLDOWN_SECONDS", "Cooldowns"]

MAX_COOLDOWN_SECONDS: Final = 3600.0
MAX_COOLDOWNS: Final = 4096
REFUSALS: Final = frozenset({429, 503})
"""The responses whose Retry-After is about the calls to come. (A redirection's is about its target.)"""


class Cooldowns:
    """Until when each key is held, in ticks of the clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = fork_safe_lock()
        self._until: dict[str, int] = {}

    def left(self, key: str) -> float:
        """The seconds for which calls are held back, 0 when they are not."""
        until = self._until.get(key)
        return 0.0 if until is None else max(until - self._clock.ticks(), 0) / 1_000_000

    def learn(self, key: str, status: int, headers: Headers) -> None:
        """Hold a key for as long as a response asks for, if it does."""
        now = self._clock.ticks()
        wait = (suggested_wait if status in REFUSALS else exhausted_wait)(headers, now / 1_000_000)
        if not wait:
            return
        until = now + round(min(wait, MAX_COOLDOWN_SECONDS) * 1_000_000)
        with self._lock:
            if until > self._until.get(key, 0):
                if key not in self._until and len(self._until) >= MAX_COOLDOWNS:
                    self._make_room(now)
                self._until[key] = until

    def _make_room(self, now: int) -> None:
        """Forget what has ended; if nothing has, the half that ends first, so that this is not done for every key."""
        lasting = {key: until for key, until in self._until.items() if until > now}
        if len(lasting) >= MAX_COOLDOWNS:
            lasting = dict(sorted(lasting.items(), key=lambda entry: entry[1])[MAX_COOLDOWNS // 2 :])
        self._until = lasting
