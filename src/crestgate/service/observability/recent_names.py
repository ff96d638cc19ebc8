# mypyc: compile
"""Recently seen names, bounded by number and by size.

Clients choose keys, and can send a fresh one with every request. So these tables are bounded, and the names that were
seen longest ago are dropped first: half of them at once, because that is cheaper per name than keeping them in order.
"""

from __future__ import annotations

from typing import Final, final

from crestgate.core.bounds import is_text

__all__ = ["MAX_CHARACTERS", "MAX_NAMES", "MAX_REMAINING", "RecentNames", "RemainingQuotas", "latest"]

MAX_NAMES: Final = 10_000
MAX_CHARACTERS: Final = 1_000_000
"""Of all names together: a key may have 1,024 bytes, and all of this is written to a file every few seconds."""
MAX_REMAINING: Final = 1_000
IDLE_US: Final = 600_000_000
"""A counter that was not used for ten minutes is no longer reported."""


@final
class RecentNames:
    """Names, with the time of their last request in microseconds since the epoch."""

    def __init__(self, max_names: int = MAX_NAMES, max_characters: int = MAX_CHARACTERS) -> None:
        self.last_us: dict[str, int] = {}
        self.changed = False
        """Whether something was seen since this was last set to False."""
        self._max_names = max_names
        self._max_characters = max_characters
        self._characters = 0

    def record(self, name: str, now_us: int) -> None:
        last = self.last_us
        if name not in last:
            if not is_text(name):
                return
            if len(last) >= self._max_names or self._characters + len(name) > self._max_characters:
                self._shrink(len(name))
            self._characters += len(name)
        last[name] = now_us
        self.changed = True

    def restore(self, last_us: dict[str, int]) -> None:
        """Continue from the table of another worker."""
        for name, at_us in last_us.items():
            self.record(name, at_us)

    def _shrink(self, needed: int) -> None:
        """Keep the later half, or less if even that leaves no room for `needed` characters."""
        characters = needed
        latest_names: list[tuple[str, int]] = []
        for name, last_us in latest(self.last_us, self._max_names // 2):
            if characters + len(name) > self._max_characters // 2:
                break
            characters += len(name)
            latest_names.append((name, last_us))
        self.last_us.clear()
        self.last_us.update(reversed(latest_names))
        self._characters = characters - needed


@final
class RemainingQuotas:
    """Remaining quota of some counters: the first that are seen, for as long as they are used. Prometheus keeps every
    series that it ever scraped, so there are never more than `max_counters` new ones in ten minutes."""

    def __init__(self, max_counters: int = MAX_REMAINING) -> None:
        self._max_counters = max_counters
        self._rows: dict[tuple[str, str], tuple[int, int]] = {}
        self._full_until_us = 0

    def record(self, rule: str, subject: str, remaining: int, now_us: int) -> None:
        counter = (rule, subject)
        if counter in self._rows or self._has_room(rule + subject, now_us):
            self._rows[counter] = (remaining, now_us)

    def rows(self, now_us: int) -> dict[tuple[str, ...], tuple[int, int]]:
        """By rule and subject: the remaining quota, and when it was seen."""
        return {counter: row for counter, row in self._rows.items() if row[1] >= now_us - IDLE_US}

    def _has_room(self, name: str, now_us: int) -> bool:
        if len(self._rows) >= self._max_counters and now_us >= self._full_until_us:
            self._drop_idle(now_us)
        return len(self._rows) < self._max_counters and is_text(name)

    def _drop_idle(self, now_us: int) -> None:
        self._rows = {counter: row for counter, row in self._rows.items() if row[1] >= now_us - IDLE_US}
        oldest_us = min([row[1] for row in self._rows.values()], default=now_us)
        self._full_until_us = oldest_us + IDLE_US  # nothing becomes idle before that


def latest(last_us: dict[str, int], max_names: int) -> list[tuple[str, int]]:
    """The names that were seen last, latest first."""
    return sorted(last_us.items(), key=_last_us, reverse=True)[:max_names]


def _last_us(item: tuple[str, int]) -> int:
    return item[1]
