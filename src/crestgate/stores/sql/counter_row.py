# mypyc: compile
"""A counter's row, as a counter for the decision logic.

It is built from what was read and changes nothing but itself, so a batch can be decided a second time from the same
rows when more of a log must be read.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple, final

from crestgate.core.algorithms import ALGORITHMS, build
from crestgate.core.algorithms.algorithm import MAX_SAFE_INTEGER, Algorithm
from crestgate.core.algorithms.calendar_window import CALENDAR_WINDOW, calendar_writer
from crestgate.core.bounded_cache import BoundedCache
from crestgate.core.limit import Limit
from crestgate.core.state import ListLog, State
from crestgate.errors import ConfigError
from crestgate.stores.decide import StoredCounter
from crestgate.stores.sql.partial_log import EMPTY_LOG, LogEnds, PartialLog

__all__ = ["EMPTY_ROW", "CounterRow", "RowCounter", "RowWriters"]

EXPIRY_STEP = 10_000_000
"""Expiry is rounded up to ten seconds, so that its index seldom has to be updated."""


class CounterRow(NamedTuple):
    """A row of the counters table. The algorithm is '' while there is no state."""

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


EMPTY_ROW = CounterRow("", 0, 0, 0, 0, 0, 0, 0, -MAX_SAFE_INTEGER, 0)
"""The row of a counter that was never charged."""


@final
class RowWriters:
    """The algorithms that wrote the rows, built again from the numbers in them."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, int, int, int], Algorithm | None] = BoundedCache(10_000)

    def find(self, row: CounterRow) -> Algorithm | None:
        """None for an algorithm that this process has not registered: its counters then start fresh."""
        signature = row.algorithm, row.limit_count, row.capacity, row.period_us
        if signature not in self.known:
            self.known[signature] = self.rebuild(row)
        return self.known[signature]

    def rebuild(self, row: CounterRow) -> Algorithm | None:
        kind = ALGORITHMS.get(row.algorithm)
        if kind is None and row.algorithm != CALENDAR_WINDOW:
            return None
        try:
            if kind is None:
                return calendar_writer(row.limit_count, row.capacity, row.period_us)
            burst = row.capacity if kind.takes_burst else None
            return build(Limit(row.limit_count, Fraction(row.period_us, 1_000_000), burst, row.algorithm), "")
        except ConfigError:
            return None


@final
class RowCounter(StoredCounter):
    """One counter within one batch, whose row is locked (or only read)."""

    def __init__(self, hex_id: str, row: CounterRow, ends: LogEnds, writers: RowWriters, now: int) -> None:
        self.hex_id = hex_id
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
            # All entries of a log are at or before its newest one: a log that starts again starts after it.
            self.dropped = max(row.dropped, row.b - row.moved)
            log = PartialLog(hex_id, row.a, row.moved, row.dropped, ends)
            self.state = State(row.time, log.total, row.b, log)
        else:
            self.state = State(row.time, row.a, row.b, None)

    def replace(self, state: State, algorithm: Algorithm) -> None:
        self.forget()
        given = state.log
        if isinstance(given, ListLog):
            entries = given.entries()
            first = entries[0][0] if entries else state.time
            # The new entries are stored after the old ones, which are deleted in batches and must not count meanwhile.
            log = PartialLog(self.hex_id, 0, min(0, first - self.dropped - 1), self.dropped, EMPTY_LOG)
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

    def row(self) -> CounterRow:
        """The row to write."""
        state, writer = self.state, self.writer
        if state is None or writer is None:
            return EMPTY_ROW._replace(dropped=self.dropped)
        log = self.log()
        steps = -(-min(writer.available_at(state, self.now, 0), MAX_SAFE_INTEGER) // EXPIRY_STEP)
        return CounterRow(
            *writer.stored_as,
            state.time,
            state.a,
            state.b,
            log.moved if log is not None else 0,
            log.dropped if log is not None else self.dropped,
            steps * EXPIRY_STEP,
        )
