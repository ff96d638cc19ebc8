"""Reservations in the memory of this process: for memory:// and for stores that are given as objects."""

from __future__ import annotations

from collections import Counter, deque
from heapq import heapify, heappop, heappush

from crestgate.reservations.port import ReservationBook, ReservationRow
from crestgate.runtime.fork_safety import fork_safe_lock

__all__ = ["MemoryBook"]

MAX_CLOSED = 100_000
"""Closed reservations that are remembered; beyond that the oldest are forgotten early."""

SPARE_ENTRIES = 1000
"""Outdated entries of the heap that are kept in any case."""


class MemoryBook(ReservationBook):
    """The rows of one limiter; thread-safe."""

    waits = False

    def __init__(self) -> None:
        self._rows: dict[str, ReservationRow] = {}
        self._due: list[tuple[int, str]] = []
        """A heap. A row may be there several times; the time in the row itself counts."""
        self._open: Counter[str] = Counter()
        self._closed: deque[str] = deque()
        self._lock = fork_safe_lock()

    def add(self, row: ReservationRow, max_open: int) -> bool:
        with self._lock:
            if self._open[row.owner] >= max_open:
                return False
            self._rows[row.id] = row
            self._open[row.owner] += 1
            self._push(row)
            return True

    def find(self, reservation_id: str) -> ReservationRow | None:
        return self._rows.get(reservation_id)

    def replace(self, row: ReservationRow) -> bool:
        with self._lock:
            before = self._rows.get(row.id)
            if before is None or before.version != row.version - 1:
                return False
            self._rows[row.id] = row
            self._push(row)
            self._count(row.owner, row.is_open - before.is_open)
            if before.is_open and not row.is_open:
                self._closed.append(row.id)
                self._forget_closed()
            return True

    def delete(self, row: ReservationRow) -> bool:
        with self._lock:
            before = self._rows.get(row.id)
            if before is None or before.version != row.version:
                return False
            self._remove(before)
            return True

    def due(self, now_us: int, count: int) -> list[ReservationRow]:
        rows: dict[str, ReservationRow] = {}
        with self._lock:
            while self._due and self._due[0][0] <= now_us and len(rows) < count:
                _, reservation_id = heappop(self._due)
                row = self._rows.get(reservation_id)
                if row is not None and row.due_us <= now_us:
                    rows[row.id] = row
            for row in rows.values():  # they stay due until they are changed
                heappush(self._due, (row.due_us, row.id))
        return list(rows.values())

    def close(self) -> None:
        with self._lock:
            self._rows.clear()
            self._due.clear()
            self._open.clear()
            self._closed.clear()

    def _push(self, row: ReservationRow) -> None:
        heappush(self._due, (row.due_us, row.id))
        if len(self._due) > 2 * len(self._rows) + SPARE_ENTRIES:  # else every change would stay until it is due
            self._due = [(one.due_us, one.id) for one in self._rows.values()]
            heapify(self._due)

    def _forget_closed(self) -> None:
        while len(self._closed) > MAX_CLOSED:
            row = self._rows.get(self._closed.popleft())
            if row is not None and not row.is_open:
                self._remove(row)

    def _remove(self, row: ReservationRow) -> None:
        del self._rows[row.id]
        self._count(row.owner, -row.is_open)

    def _count(self, owner: str, change: int) -> None:
        self._open[owner] += change
        if not self._open[owner]:
            del self._open[owner]
