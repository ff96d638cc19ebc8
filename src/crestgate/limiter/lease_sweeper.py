"""Gives back what was not used of slices in time, as long as a limiter has leased limits.

A thread of its own, because an idle process makes no calls with which the rest could go. It ends with the limiter, and
when the limiter is forgotten. On a virtual clock there is none: what was not used goes back with the next call.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from weakref import ref

from crestgate.errors import CrestgateError
from crestgate.limiter.local_decisions import LocalDecisions
from crestgate.runtime.clock import Clock, MachineClock
from crestgate.runtime.fork_safety import renew_after_fork
from crestgate.stores.port import BatchOutcomes, Request

__all__ = ["LeaseSweeper"]

SWEEP_SECONDS = 0.25
SWEEP_LEASES = 500
"""Leases of one turn, under their lock."""
MAX_BATCH = 200
"""Give-backs in one call."""
_log = logging.getLogger("crestgate")


class LeaseSweeper:
    """The sweeper of one backend; `send` asks the store."""

    def __init__(
        self, decisions: LocalDecisions, send: Callable[[Sequence[Request]], BatchOutcomes], clock: Clock
    ) -> None:
        self._decisions = decisions
        self._send = send
        self._needs_thread = isinstance(clock, MachineClock)
        self._idle = self._needs_thread
        """Whether a thread is needed, and there is none in this process."""
        self._stop = threading.Event()
        renew_after_fork(self)

    def renew(self) -> None:
        """In a forked child, which has none of the parent's threads; and when the thread ends."""
        self._idle = self._needs_thread
        self._stop = threading.Event()

    def start(self) -> None:
        """Start the thread, unless it runs."""
        if self._idle:
            self._idle = False
            name = "crestgate-leases"
            threading.Thread(target=_run, args=(ref(self), self._stop), name=name, daemon=True).start()

    def sweep(self) -> None:
        """Give back what was not used of slices that have ended."""
        for _ in range(1 + len(self._decisions.table.leases) // SWEEP_LEASES):
            self._give_back(self._decisions.sweep(SWEEP_LEASES))

    def close(self) -> None:
        """End all leases, and give back what was not used. Never raises a StoreError."""
        self._stop.set()
        self.renew()  # for a limiter that goes on, because its store is not its own
        self._give_back(self._decisions.end_all())

    def _give_back(self, requests: Sequence[Request]) -> None:
        for start in range(0, len(requests), MAX_BATCH):
            batch = requests[start : start + MAX_BATCH]
            try:
                self._decisions.end_denials(batch)
                self._send(batch)
                self._decisions.end_denials(batch)
            except CrestgateError as error:
                _log.warning("cannot give back unused slices of %d limits: %s", len(batch), error)


def _run(sweeper: ref[LeaseSweeper], stop: threading.Event) -> None:
    """Sweep until the limiter is closed, or forgotten."""
    while not stop.wait(SWEEP_SECONDS):
        found = sweeper()
        if found is None:
            return
        try:
            found.sweep()
        except Exception:  # noqa: BLE001 - whatever it is, the next turn must come
            _log.exception("unhandled error in sweeping leases")
        del found
