"""A sliding log of which only the two ends were read.

A log may hold a hundred thousand entries, and a check asks about a few of the oldest (what has expired, what comes
free next) and adds one at the end. So only the ends are read from the table, and the single entries that a
give-back names. What lies between them is known by its total cost alone, because the counter's row knows the sum of
all. A question about the hidden part raises `NeedMore`: then more is read, and the batch is decided again.

    front: oldest, in order   |   hidden: only a sum   |   back: newest, in order
                                    middle: single entries of it that were asked for by tick

Ticks are kept here as they are stored: the real tick less `moved`, so that rebasing changes no entry.
"""

from __future__ import annotations

from typing import NamedTuple, final

from headgate.core.state import Log
from headgate.core.words import i64

__all__ = ["EMPTY_LOG", "UNREAD", "Ends", "Entries", "NeedMore", "PartialLog"]

Entries = list[tuple[int, int]]
"""(stored tick, cost) pairs with rising ticks."""


class NeedMore(Exception):  # noqa: N818 - no error: a request to read on
    """A question went beyond what was read of a counter's log.

    Entries at or before the stored tick `cutoff` are needed as a sum only; without it, all must be read.
    """

    def __init__(self, digits: str, cutoff: int | None) -> None:
        super().__init__("more of a log must be read")
        self.digits = digits
        self.cutoff = cutoff


class Ends(NamedTuple):
    """What was read of a log: its oldest entries, its newest, and single ones; or the whole of it as the oldest."""

    front: Entries
    back: Entries
    middle: Entries
    whole: bool


EMPTY_LOG = Ends([], [], [], whole=True)
UNREAD = Ends([], [], [], whole=False)


@final
class PartialLog(Log):
    """The entries of one log, as far as they were read, and what is to be written of them."""

    def __init__(self, digits: str, total: i64, moved: i64, dropped: i64, ends: Ends) -> None:
        self.digits = digits
        known: i64 = 0
        for _, cost in ends.front:
            known += cost
        first = ends.front[-1][0] + 1 if ends.front else dropped + 1
        back = [entry for entry in ends.back if entry[0] >= first]
        for _, cost in back:
            known += cost
        self.hidden: i64 = 0 if ends.whole else max(total - known, 0)
        self.total: i64 = min(total, known + self.hidden)  # less than the row says, if somebody deleted entries
        self.front = ends.front[:] if self.hidden else ends.front + back
        self.back = back if self.hidden else []
        self.middle = dict(ends.middle) if self.hidden else {}
        self.moved = moved
        self.dropped = dropped  # entries at or before this stored tick no longer count, and may be deleted
        self.changes: dict[int, int] = {}  # stored tick: new cost, 0 for an entry that is to go
        self.note_oldest()

    def note_oldest(self) -> None:
        """The end of what was dropped is before every entry, and close enough."""
        self.oldest = (self.front[0][0] if self.front else self.dropped + 1) + self.moved

    def expired(self, cutoff: i64) -> i64:
        cutoff -= self.moved
        total: i64 = 0
        for tick, cost in self.front:
            if tick > cutoff:
                return total
            total += cost
        if not self.hidden:
            return total
        if not self.back or self.back[0][0] > cutoff:
            raise NeedMore(self.digits, cutoff)
        total += self.hidden
        for tick, cost in self.back:
            if tick > cutoff:
                break
            total += cost
        return total

    def freed(self, amount: i64) -> i64:
        last: i64 = 0
        for tick, cost in self.front:
            last = tick
            amount -= cost
            if amount <= 0:
                return tick + self.moved
        if self.hidden:
            amount -= self.hidden
            if amount <= 0 or not self.back:
                raise NeedMore(self.digits, None)
            for tick, cost in self.back:
                last = tick
                amount -= cost
                if amount <= 0:
                    break
        return last + self.moved

    def charged(self, tick: i64) -> i64:
        stored = tick - self.moved
        if stored <= self.dropped:
            return 0
        for known, cost in self.end(stored):
            if known == stored:
                return cost
        if self.is_hidden(stored):
            if stored not in self.middle:
                raise NeedMore(self.digits, None)
            return self.middle[stored]
        return 0

    def append(self, tick: i64, cost: i64) -> None:
        stored = tick - self.moved
        if self.hidden and not self.back:
            raise NeedMore(self.digits, None)  # it may be the same tick as the newest entry's
        end = self.back if self.hidden else self.front
        if end and end[-1][0] == stored:
            cost += end[-1][1]
            end.pop()
        end.append((stored, cost))
        self.changes[stored] = cost
        self.note_oldest()

    def drop(self, amount: i64) -> None:
        gone = 0
        while amount > 0:
            if gone == len(self.front):
                if not self.hidden:
                    break
                if amount < self.hidden:
                    raise NeedMore(self.digits, None)
                amount -= self.hidden
                self.hidden = 0
                self.middle = {}
                self.front, self.back, gone = self.back, [], 0
                self.dropped = max(self.dropped, self.front[0][0] - 1 if self.front else self.dropped)
                continue
            tick, cost = self.front[gone]
            amount -= cost
            gone += 1
            self.dropped = max(self.dropped, tick)
        del self.front[:gone]
        self.note_oldest()

    def shift(self, ticks: i64) -> None:
        self.moved += ticks
        self.oldest += ticks

    def take_back(self, tick: i64, amount: i64) -> None:
        stored = tick - self.moved
        left: i64 = self.charged(tick) - amount
        self.changes[stored] = left
        if self.is_hidden(stored):
            self.hidden -= amount
            self.middle[stored] = left
            if not self.hidden:
                self.front, self.back = self.front + self.back, []
        else:
            end = self.end(stored)
            place = [known for known, _ in end].index(stored)
            end[place : place + 1] = [(stored, left)] if left else []
        self.note_oldest()

    def end(self, stored: i64) -> Entries:
        """The end of the log that would have the entry of this stored tick."""
        return self.back if self.back and stored >= self.back[0][0] else self.front

    def is_hidden(self, stored: i64) -> bool:
        """Whether an entry of this stored tick would be between the two ends."""
        after = not self.front or stored > self.front[-1][0]
        return self.hidden > 0 and after and (not self.back or stored < self.back[0][0])

    def newest(self) -> int:
        """The last stored tick that is known of."""
        end = self.back or self.front
        return end[-1][0] if end else self.dropped
