# mypyc: compile
"""The state of a counter between requests.

A state holds what is *used*, never what is left, so that a changed limit keeps the use. Most algorithms need three
integers; the sliding log and in-flight limits have their entries in addition. The store remembers which algorithm and
limit wrote a state (`Algorithm.shape`).

Only stores write states, under their own lock, and only with the results of a step.
"""

from __future__ import annotations

from crestgate.core.mypyc_types import i64

__all__ = ["ListLog", "Log", "State"]


class Log:
    """The entries of one sliding log, oldest first: (tick, cost) pairs with rising ticks.

    An interface, because stores keep entries in different ways (a list, blocks of a mapped file).
    """

    oldest: i64
    """A lower bound of the entries' ticks."""

    def expired(self, cutoff: i64) -> i64:
        """The total cost of the entries whose tick is at or before `cutoff`."""
        raise NotImplementedError

    def tick_when_freed(self, amount: i64) -> i64:
        """The tick of the entry with which the costs, summed from the oldest, first reach `amount`."""
        raise NotImplementedError

    def cost_at(self, tick: i64) -> i64:
        """The total cost of the entries of exactly this tick."""
        raise NotImplementedError

    def append(self, tick: i64, cost: i64) -> None:
        raise NotImplementedError

    def drop(self, amount: i64) -> None:
        """Drop the oldest entries, which together cost `amount`, and any without cost before the next."""
        raise NotImplementedError

    def shift(self, ticks: i64) -> None:
        """Move every entry by this many ticks (a counter that is rebased after a clock jump)."""
        raise NotImplementedError

    def take_back(self, tick: i64, amount: i64) -> None:
        """Reduce the entries of exactly this tick by `amount`, which they are known to hold."""
        raise NotImplementedError


class State:
    """Three integers and, for a log, its entries. `time` is the tick of the last change.

    The algorithm defines `a` and `b`: units used; the counts of two windows; a log's total cost.
    """

    __slots__ = ("a", "b", "log", "time")

    def __init__(self, time: i64, a: i64, b: i64, log: Log | None) -> None:
        self.time = time
        self.a = a
        self.b = b
        self.log = log

    def put(self, time: i64, a: i64, b: i64, cost: i64) -> None:
        """Write the result of a step that charged `cost` (0 for a give-back)."""
        log = self.log
        if log is not None:
            if time < self.time:
                self.rebase(time)
            log.drop(self.a + cost - a)
            if cost:
                log.append(time, cost)
        self.time = time
        self.a = a
        self.b = b

    def rebase(self, time: i64) -> None:
        """Move the counter to this tick with its use unchanged: its clock had jumped ahead."""
        log = self.log
        if log is not None:
            log.shift(time - self.time)
            self.b += time - self.time
        self.time = time

    def put_back(self, time: i64, a: i64, b: i64, tick: i64, amount: i64) -> None:
        """Write the result of a give-back of `amount` charged at `tick`."""
        self.time = time
        self.a = a
        self.b = b
        log = self.log
        if log is not None:
            log.take_back(tick, amount)
            if a and not log.cost_at(b):
                self.b = log.tick_when_freed(a)


class ListLog(Log):
    """A log in one list of alternating ticks and costs; dropped entries are deleted in bulk."""

    __slots__ = ("cells", "head", "moved")

    def __init__(self) -> None:
        self.oldest = 0
        self.cells: list[int] = []
        self.head: i64 = 0  # index of the oldest entry that still counts
        self.moved: i64 = 0  # ticks added to every stored tick by rebasing

    def entries(self) -> list[tuple[int, int]]:
        """All entries, oldest first."""
        return [(self.cells[i] + self.moved, self.cells[i + 1]) for i in range(self.head, len(self.cells), 2)]

    def expired(self, cutoff: i64) -> i64:
        cells = self.cells
        cutoff -= self.moved
        total: i64 = 0
        for i in range(self.head, len(cells), 2):
            if cells[i] > cutoff:
                break
            total += cells[i + 1]
        return total

    def tick_when_freed(self, amount: i64) -> i64:
        cells = self.cells
        tick: i64 = 0
        for i in range(self.head, len(cells), 2):
            tick = cells[i]
            amount -= cells[i + 1]
            if amount <= 0:
                break
        return tick + self.moved

    def cost_at(self, tick: i64) -> i64:
        cells = self.cells
        stored = tick - self.moved
        total: i64 = 0
        for i in range(len(cells) - 2, self.head - 2, -2):
            if cells[i] < stored:
                break
            if cells[i] == stored:
                total += cells[i + 1]
        return total

    def append(self, tick: i64, cost: i64) -> None:
        cells = self.cells
        last: i64 = len(cells) - 2
        stored = tick - self.moved
        if last < self.head:
            self.oldest = tick
        elif cells[last] == stored:
            cells[last + 1] += cost
            return
        cells.append(stored)
        cells.append(cost)

    def drop(self, amount: i64) -> None:
        if amount <= 0:
            return
        cells = self.cells
        head = self.head
        while amount > 0:
            amount -= cells[head + 1]
            head += 2
        if head > 64 and head * 2 > len(cells):
            del cells[:head]
            head = 0
        self.head = head
        self.oldest = cells[head] + self.moved if head < len(cells) else 0

    def shift(self, ticks: i64) -> None:
        self.moved += ticks
        self.oldest += ticks

    def take_back(self, tick: i64, amount: i64) -> None:
        cells = self.cells
        stored = tick - self.moved
        for i in range(len(cells) - 2, self.head - 2, -2):
            if cells[i] == stored:
                part: i64 = min(amount, cells[i + 1])
                cells[i + 1] -= part
                amount -= part
                if cells[i + 1] == 0:
                    del cells[i : i + 2]
            if amount == 0:
                break
        self.oldest = cells[self.head] + self.moved if self.head < len(cells) else 0
