"""Names that were seen lately, bounded by their number and by their size.

Clients choose keys, and can send a fresh one with every request. So what is remembered of them has a bound, and what
was seen longest ago is forgotten first: half of it at once when there is no room, because that costs less for each name
than to keep them in order all the time.
"""

from __future__ import annotations

from typing import Final, final

__all__ = ["MOST_CHARACTERS", "MOST_NAMES", "MOST_REMAINING", "Recent", "Remaining", "is_text", "latest"]

MOST_NAMES: Final = 10_000
MOST_CHARACTERS: Final = 1_000_000
"""Of all names together: keys may have 1,024 bytes each, and all of this goes into a file every few seconds."""
MOST_REMAINING: Final = 1_000
IDLE_US: Final = 600_000_000
"""After ten minutes unseen a counter gives up its place among those whose rest is told."""


@final
class Recent:
    """Who was seen, and when last, in microseconds since the epoch."""

    def __init__(self, most: int = MOST_NAMES, most_characters: int = MOST_CHARACTERS) -> None:
        self.last_us: dict[str, int] = {}
        self.changed = False
        """Whether somebody was seen since this was last set to False."""
        self._most = most
        self._most_characters = most_characters
        self._characters = 0

    def see(self, name: str, now_us: int) -> None:
        last = self.last_us
        if name not in last:
            if not is_text(name):
                return
            if len(last) >= self._most or self._characters + len(name) > self._most_characters:
                self._forget(len(name))
            self._characters += len(name)
        last[name] = now_us
        self.changed = True

    def restore(self, last_us: dict[str, int]) -> None:
        """Go on from what another had seen."""
        for name, at_us in last_us.items():
            self.see(name, at_us)

    def _forget(self, needed: int) -> None:
        """Keep the later half of what was seen, or less of it where even that has no room for as much as is needed."""
        characters = needed
        kept: list[tuple[str, int]] = []
        for name, last_us in latest(self.last_us, self._most // 2):
            if characters + len(name) > self._most_characters // 2:
                break
            characters += len(name)
            kept.append((name, last_us))
        self.last_us.clear()
        self.last_us.update(reversed(kept))
        self._characters = characters - needed


@final
class Remaining:
    """What remains in some counters. The first that are seen, as long as they are seen: whoever collects metrics keeps
    every series it was ever told of, so in ten minutes there are never more than `most` new ones."""

    def __init__(self, most: int = MOST_REMAINING) -> None:
        self._most = most
        self._rows: dict[tuple[str, str], tuple[int, int]] = {}
        self._full_until_us = 0

    def see(self, rule: str, subject: str, remaining: int, now_us: int) -> None:
        counter = (rule, subject)
        if counter in self._rows or self._has_room(rule + subject, now_us):
            self._rows[counter] = (remaining, now_us)

    def rows(self, now_us: int) -> list[tuple[str, str, int, int]]:
        """Rule, subject, what remains, and when it was seen."""
        return [(*counter, *row) for counter, row in self._rows.items() if row[1] >= now_us - IDLE_US]

    def _has_room(self, name: str, now_us: int) -> bool:
        """Whether one of this name may be told of, too."""
        if len(self._rows) >= self._most and now_us >= self._full_until_us:
            self._drop_idle(now_us)
        return len(self._rows) < self._most and is_text(name)

    def _drop_idle(self, now_us: int) -> None:
        self._rows = {counter: row for counter, row in self._rows.items() if row[1] >= now_us - IDLE_US}
        oldest_us = min([row[1] for row in self._rows.values()], default=now_us)
        self._full_until_us = oldest_us + IDLE_US  # until then it would be in vain to look again


def is_text(name: str) -> bool:
    """Whether it can be written as UTF-8: half of a surrogate pair cannot, and no file or answer has a place for it."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def latest(last_us: dict[str, int], most: int) -> list[tuple[str, int]]:
    """The names that were seen last, the latest first."""
    return sorted(last_us.items(), key=_last_us, reverse=True)[:most]


def _last_us(item: tuple[str, int]) -> int:
    return item[1]
