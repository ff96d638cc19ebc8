"""When each limit of a client was last used: for those who look at clients, whichever worker they ask.

A store forgets a counter as soon as it is as good as new, which may be a moment after its last request. So workers
remember the times themselves. On the event loop a worker only notes them (`Tally.used`); about every second they come
here, and go to the worker's file, which the other workers read, and every ten seconds to the history, where they are
found after a restart.

Bounded: the latest `MAX_USES` of each worker, and of the history. Counters are named by a digest, because their keys
are names of people, or secrets.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from threading import Lock
from typing import TYPE_CHECKING

from headgate.errors import HeadgateError
from headgate.history.port import MAX_USES
from headgate.service.observe.recent import latest

if TYPE_CHECKING:
    from headgate.history.port import History
    from headgate.service.observe.board import Board

__all__ = ["LastUses", "counter_id"]

MAX_RECORDED = 2_000
"""Times that are written to the history in one round, the latest first; the others follow in the next."""
_log = logging.getLogger("headgate")


def counter_id(counter: str) -> str:
    """The digest that stands for a counter, which is its name and its key (see `Tally.used`)."""
    return blake2b(counter.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


class LastUses:
    """The times of one worker, and through its board and the history those of all. Threads may call it."""

    def __init__(self, board: Board, history: History) -> None:
        self._board = board
        self._history = history
        self._lock = Lock()
        self._known: dict[str, int] | None = None
        """What this worker knows: at first what the worker that was in its place had written."""
        self._unrecorded: dict[str, int] = {}
        self.changed = False
        """Whether something was noted that is not in this worker's file yet."""

    def note(self, taken: Mapping[str, int]) -> None:
        """Take over what was noted on the event loop, by counter."""
        ids = {counter_id(counter): at_us for counter, at_us in taken.items()}
        with self._lock:
            self._known = _later(self._board.own_uses() if self._known is None else self._known, ids)
            self._unrecorded = _later(self._unrecorded, ids)
            self.changed = True

    def publish(self, taken: Mapping[str, int]) -> None:
        """The same, and write it to this worker's file."""
        self.note(taken)
        with self._lock:
            self._board.publish_uses(self._known or {})
            self.changed = False

    def record(self) -> None:
        """Write what is not in the history yet; what cannot be written is kept for the next time."""
        with self._lock:
            uses = dict(latest(self._unrecorded, MAX_RECORDED))
            for name in uses:
                del self._unrecorded[name]
        if not uses:
            return
        try:
            self._history.add_uses(uses)
        except HeadgateError as error:
            _log.warning("times of last use could not be added to the history, and are kept for later: %s", error)
            with self._lock:
                self._unrecorded = _later(self._unrecorded, uses)

    def find(self, counters: Sequence[str]) -> list[int | None]:
        """When each of these counters was last used, in microseconds since the epoch; None where nobody knows."""
        ids = [counter_id(counter) for counter in counters]
        everyone = self._board.uses()
        found = {name: everyone[name] for name in ids if name in everyone}
        try:
            found = _later(found, self._history.last_uses(ids))
        except HeadgateError as error:
            _log.warning("times of last use could not be read from the history: %s", error)
        with self._lock:
            known = self._known or {}
        found = _later(found, {name: known[name] for name in ids if name in known})
        return [found.get(name) for name in ids]


def _later(known: Mapping[str, int], more: Mapping[str, int]) -> dict[str, int]:
    """The later time of each, of the latest `MAX_USES`."""
    whole = dict(known)
    for name, at_us in more.items():
        if at_us > whole.get(name, -1):
            whole[name] = at_us
    return whole if len(whole) <= MAX_USES else dict(latest(whole, MAX_USES))
