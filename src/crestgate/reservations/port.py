"""The book of a store's reservations: what it keeps, and what it guarantees.

A reservation that is settled by its id, perhaps by another process, must be known there. A book keeps a row for each,
and knows nothing of what is in it: limiter/stored_reservations.py does. It is used once to reserve and twice to settle,
never by checks.

Atomicity    `replace` and `delete` act only on the version that the caller has read: of several writers one succeeds.
Clock        A book has none: times are passed in, in microseconds since the epoch.
Expiry       Rows are deleted by whoever sweeps the store. The rows of one owner are bounded by `max_open`.
Errors       StoreError if the book cannot be read or written.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["ReservationBook", "ReservationRow"]


class ReservationRow(NamedTuple):
    """One reservation. `version` is 1 for a new one, and one more with each change."""

    id: str
    owner: str
    """Who reserved; empty in the library."""
    version: int
    due_us: int
    """When it must be swept."""
    is_open: bool
    """Whether it counts as one of its owner's open reservations."""
    body: str
    """JSON in ASCII."""


class ReservationBook:
    """The rows of one store."""

    waits: bool = True
    """Whether calls may block, so that an event loop runs them in a thread."""

    def add(self, row: ReservationRow, max_open: int) -> bool:
        """Add a row; False, and nothing is added, if its owner has `max_open` open ones."""
        raise NotImplementedError

    def find(self, reservation_id: str) -> ReservationRow | None:
        raise NotImplementedError

    def replace(self, row: ReservationRow) -> bool:
        """Write the next version of a row; False if the version before it is not there any more."""
        raise NotImplementedError

    def delete(self, row: ReservationRow) -> bool:
        """Delete a row; False if it was changed since it was read."""
        raise NotImplementedError

    def due(self, now_us: int, count: int) -> list[ReservationRow]:
        """The first rows that must be swept, at most `count`."""
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError
