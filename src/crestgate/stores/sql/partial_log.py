# mypyc: compile
"""A sliding log of which only the two ends were read.

A log may have a hundred thousand entries, and a check needs a few of the oldest (what has expired, what is freed next)
and appends one at the end. So only the ends are read from the table, and the single entries that a give-back names.
Of the hidden part between them only the total cost is known, because the counter's row has the sum of all entries. An
access to it raises `NeedMoreEntriesError`: then more is read, and the batch is decided again.

    front: oldest, in order   |   hidden: only a sum   |   back: newest, in order
                                    middle: single entries of it, read by tick

Ticks are those of the table: the real tick less `moved`, so that a rebase changes no entry.
"""

from __future__ import annotations

from typing import NamedTuple, final

from crestgate.core.mypyc_types import i64
from crestgate.core.state import Log

__all__ = ["EMPTY_LOG", "UNREAD", "Entries", "LogEnds", "NeedMoreEntriesError", "PartialLog"]

Entries = list[tuple[int, int]]
"""(stored tick, cost) pairs with rising ticks."""


class NeedMoreEntriesError(Exception):
    """More of a counter's log must be read.

    Of entries at or before the stored tick `cutoff` only the sum is needed; without it, all must be read.
    """

    def __init__(self, hex_id: str, cutoff: int | None) -> None:
        super().__init__("more of a log must be read")
        self.hex_id = hex_id
        self.cutoff = cutoff


class LogEnds(NamedTuple):
    """What was read of a log: its oldest entries, its newest, and single ones; or all of it, as `front`."""

    front: Entries
    back: Entries
    middle: Entries
    whole: bool


EMPTY_LOG = LogEnds([], [], [], whole=True)
UNREAD = LogEnds([], [], [], whole=False)


@final
class PartialLog(Log):
    """The entries of one log that were read, and the changes to write."""

    def __init__(self, hex_id: str, total: i64, moved: i64, dropped: i64, ends: LogEnds) -> None:
        self.hex_id = hex_id
        known: i64 = 0
        for _, cost in ends.front:
            known += cost
        first = ends.front[-1][0] + 1 if ends.front else dropped + 1
        back = [entry for entry in ends.back if entry[0] >= first]
        for _, cost in back:
            known += cost
        self.hidden: i64 = 0 if ends.whole else max(total - known, 0)
        self.total: i64 = min(total, known + self.hidden)  # less than in the row, if somebody deleted entries
        self.front = ends.front[:] if self.hidden else ends.front + back
        self.back = back if self.hidden else []
        self.middle = dict(ends.middle) if self.hidden else {}
        self.moved = moved
        self.dropped = dropped  # entries at or before this stored tick no longer count, and may be deleted
        self.changes: dict[int, int] = {}  # stored tick: new cost, 0 for an entry to delete
        self.update_oldest()

    def update_oldest(self) -> None:
        """If no entry is known, the end of what was dropped is a lower bound."""
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
            raise NeedMoreEntriesError(self.hex_id, cutoff)
        total += self.hidden
        for tick, cost in self.back:
            if tick > cutoff:
                break
            total += cost
        return total

    def tick_when_freed(self, amount: i64) -> i64:
        last: i64 = 0
        for tick, cost in self.front:
            last = tick
            amount -= cost
            if amount <= 0:
                return tick + self.moved
        if self.hidden:
            amount -= self.hidden
            if amount <= 0 or not self.back:
                raise NeedMoreEntriesError(self.hex_id, None)
            for tick, cost in self.back:
                last = tick
                amount -= cost
                if amount <= 0:
                    break
        return last + self.moved

    def cost_at(self, tick: i64) -> i64:
        stored = tick - self.moved
        if stored <= self.dropped:
            return 0
        for known, cost in self.end(stored):
            if known == stored:
                return cost
        if self.is_hidden(stored):
            if stored not in self.middle:
                raise NeedMoreEntriesError(self.hex_id, None)
            return self.middle[stored]
        return 0

    def append(self, tick: i64, cost: i64) -> None:
        stored = tick - self.moved
        if self.hidden and not self.back:
            raise NeedMoreEntriesError(self.hex_id, None)  # it may be the same tick as the newest entry's
        end = self.back if self.hidden else self.front
        if end and end[-1][0] == stored:
            cost += end[-1][1]
            end.pop()
        end.append((stored, cost))
        self.changes[stored] = cost
        self.update_oldest()

    def drop(self, amount: i64) -> None:
        count = 0
        while amount > 0:
            if count == len(self.front):
                if not self.hidden:
                    break
                if amount < self.hidden:
                    raise NeedMoreEntriesError(self.hex_id, None)
                amount -= self.hidden
                self.hidden = 0
                self.middle = {}
                self.front, self.back, count = self.back, [], 0
                self.dropped = max(self.dropped, self.front[0][0] - 1 if self.front else self.dropped)
                continue
            tick, cost = self.front[count]
            amount -= cost
            count += 1
            self.dropped = max(self.dropped, tick)
        del self.front[:count]
        self.update_oldest()

    def shift(self, ticks: i64) -> None:
        self.moved += ticks
        self.oldest += ticks

    def take_back(self, tick: i64, amount: i64) -> None:
        stored = tick - self.moved
        left: i64 = self.cost_at(tick) - amount
        self.changes[stored] = left
        if self.is_hidden(stored):
            self.hidden -= amount
            self.middle[stored] = left
            if not self.hidden:
                self.front, self.back = self.front + self.back, []
        else:
            end = self.end(stored)
            index = [known for known, _ in end].index(stored)
            end[index : index + 1] = [(stored, left)] if left else []
        self.update_oldest()

    def end(self, stored: i64) -> Entries:
        """The end of the log to which this stored tick belongs."""
        return self.back if self.back and stored >= self.back[0][0] else self.front

    def is_hidden(self, stored: i64) -> bool:
        """Whether an entry of this stored tick would be between the two ends."""
        after = not self.front or stored > self.front[-1][0]
        return self.hidden > 0 and after and (not self.back or stored < self.back[0][0])

    def newest(self) -> int:
        """The last known stored tick."""
        end = self.back or self.front
        return end[-1][0] if end else self.dropped
