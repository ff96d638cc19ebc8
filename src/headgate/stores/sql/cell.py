"""A counter's row, as a cell that the Python steps decide on.

A cell is made from what was read and changes nothing but itself, so a batch can be decided a second time from the
same rows when it turns out that more of a log must be read.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple, final

from headgate.core.algorithms import ALGORITHMS, build
from headgate.core.algorithms.algorithm import LARGEST, Algorithm
from headgate.core.limit import Limit
from headgate.core.state import ListLog, State
from headgate.errors import ConfigError
from headgate.stores.deciding import Cell
from headgate.stores.sql.partial_log import EMPTY_LOG, Ends, PartialLog

__all__ = ["NOTHING", "Row", "SqlCell", "Writers"]

EXPIRY_STEP = 10_000_000
"""Expiry is rounded up to whole ten seconds: an index entry that seldom changes costs seldom."""


class Row(NamedTuple):
    """A counter as the table has it. The algorithm is '' while it has no state."""

    algorithm: str
    limit_count: int
    capacity: int
    period_us: int
    time: int
    a: int
    b: int
    moved: int
    """Ticks to add to the tick of every log entry."""
    dropped: int
    """Log entries at or before this stored tick no longer count."""
    expires_us: int


NOTHING = Row("", 0, 0, 0, 0, 0, 0, 0, -LARGEST, 0)
"""The row of a counter that was never charged."""


@final
class Writers:
    """The algorithms that wrote the rows, rebuilt from the numbers kept in them."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, int, int, int], Algorithm | None] = {}

    def find(self, row: Row) -> Algorithm | None:
        """None for an algorithm that this process has not registered: its counters start anew here."""
        signature = row.algorithm, row.limit_count, row.capacity, row.period_us
        if signature not in self.known:
            if len(self.known) >= 10_000:
                self.known.clear()
            self.known[signature] = self.rebuild(row)
        return self.known[signature]

    def rebuild(self, row: Row) -> Algorithm | None:
        kind = ALGORITHMS.get(row.algorithm)
        if kind is None:
            return None
        burst = row.capacity if kind.takes_burst else None
        try:
            return build(Limit(row.limit_count, Fraction(row.period_us, 1_000_000), burst, row.algorithm), "")
        except ConfigError:
            return None


@final
class SqlCell(Cell):
    """One counter within one batch, whose row is locked (or is only looked at)."""

    def __init__(self, digits: str, row: Row, ends: Ends, writers: Writers, now: int) -> None:
        self.digits = digits
        self.now = now
        self.is_changed = False
        self.state = None
        self.writer = None
        self.dropped = row.dropped
        if not row.algorithm:
            return
        writer = writers.find(row)
        if writer is None:
            return
        self.writer = writer
        if writer.keeps_log:
            # All that a log ever held is at or before its newest entry: a log that begins anew begins after it.
            self.dropped = max(row.dropped, row.b - row.moved)
            log = PartialLog(digits, row.a, row.moved, row.dropped, ends)
            self.state = State(row.time, log.total, row.b, log)
        else:
            self.state = State(row.time, row.a, row.b, None)

    def replace(self, state: State, algorithm: Algorithm) -> None:
        self.forget()
        given = state.log
        if isinstance(given, ListLog):
            entries = given.entries()
            first = entries[0][0] if entries else state.time
            # The new entries are stored after the old ones, which are deleted in bites and must not count meanwhile.
            log = PartialLog(self.digits, 0, min(0, first - self.dropped - 1), self.dropped, EMPTY_LOG)
            for tick, cost in entries:
                log.append(tick, cost)
            state.log = log
        self.state = state
        self.writer = algorithm

    def changed(self) -> None:
        self.is_changed = True

    def forget(self) -> None:
        self.is_changed = True
        log = self.log()
        if log is not None:
            self.dropped = max(self.dropped, log.newest())
        self.state = None
        self.writer = None

    def log(self) -> PartialLog | None:
        state = self.state
        if state is not None and isinstance(state.log, PartialLog):
            return state.log
        return None

    def row(self) -> Row:
        """The row to write."""
        state, writer = self.state, self.writer
        if state is None or writer is None:
            return NOTHING._replace(dropped=self.dropped)
        limit = writer.limit
        log = self.log()
        steps = -(-min(writer.frees(state, self.now, 0), LARGEST) // EXPIRY_STEP)
        return Row(
            limit.algorithm,
            limit.count,
            writer.capacity,
            limit.period_us,
            state.time,
            state.a,
            state.b,
            log.moved if log is not None else 0,
            log.dropped if log is not None else self.dropped,
            steps * EXPIRY_STEP,
        )
