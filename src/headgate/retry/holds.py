"""What answers teach: that somebody else's API wants no calls for a while, whoever makes them.

One caller is refused, or uses up the last of a quota; the others of this process need not find that out one by one. The
key is held until then, by monotonic time. A hold is only ever prolonged: answers that overtake each other do no harm.

A hold is an hour at most, so that no server's mistake keeps a process from it for ever: then it is asked again. As many
keys are held as `MOST_HELD`; beyond that the ones that end first are forgotten.
"""

from __future__ import annotations

from typing import Final

from headgate.retry.told import Headers, told_wait, used_up_wait
from headgate.stores.clock import Clock
from headgate.stores.forking import fork_safe_lock

__all__ = ["LONGEST_HOLD", "MOST_HELD", "Holds"]

LONGEST_HOLD: Final = 3600.0
MOST_HELD: Final = 4096
REFUSALS: Final = frozenset({429, 503})
"""The answers whose Retry-After is about the calls to come. (A redirection's is about its target.)"""


class Holds:
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
        """Hold a key for as long as an answer asks for, if it does."""
        now = self._clock.ticks()
        wait = (told_wait if status in REFUSALS else used_up_wait)(headers, now / 1_000_000)
        if not wait:
            return
        until = now + round(min(wait, LONGEST_HOLD) * 1_000_000)
        with self._lock:
            if until > self._until.get(key, 0):
                if key not in self._until and len(self._until) >= MOST_HELD:
                    self._make_room(now)
                self._until[key] = until

    def _make_room(self, now: int) -> None:
        """Forget what has ended; if nothing has, the half that ends first, so that this is not done for every key."""
        lasting = {key: until for key, until in self._until.items() if until > now}
        if len(lasting) >= MOST_HELD:
            lasting = dict(sorted(lasting.items(), key=lambda entry: entry[1])[MOST_HELD // 2 :])
        self._until = lasting
