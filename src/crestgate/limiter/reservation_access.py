"""Opens the book of a limiter's store at the first reservation with an id, and sweeps it from then on."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from crestgate.errors import CrestgateError, StoreClosedError, StoreError
from crestgate.runtime.clock import MachineClock
from crestgate.runtime.fork_safety import fork_safe_lock
from crestgate.stores.port import BatchOutcomes, Request, Store
from crestgate.stores.remote_store import RemoteStore
from crestgate.stores.spec import Migration, NamedStores, StoreSpec

if TYPE_CHECKING:
    from crestgate.limiter.stored_reservations import Steps, StoredReservations

__all__ = ["ReservationAccess", "run_steps"]

SWEEP_SECONDS = 1.0
SWEEP_ROWS = 100
"""Rows of one turn."""
_log = logging.getLogger("crestgate")


class ReservationAccess:
    """The reservations of a store, for all limiters that share it."""

    def __init__(
        self,
        spec: StoreSpec | None,
        store: Store,
        apply: Callable[[Sequence[Request]], BatchOutcomes],
        answer: Callable[[StoreError, Sequence[Request]], BatchOutcomes],
    ) -> None:
        """`spec` is None for a store that was given as an object; `apply` sends what a sweep gives back, and `answer`
        is the failure policy."""
        self._answer = answer
        self._spec = spec
        self._store = store
        self._apply = apply
        self._opened: StoredReservations | None = None
        self._lock = fork_safe_lock()
        self._sweeper: threading.Thread | None = None
        self._sweeper_pid = 0
        self._stop = threading.Event()
        self._closed = False

    def open(self) -> StoredReservations:
        """The reservations; connects to the book at the first call."""
        with self._lock:
            if self._closed:
                raise StoreClosedError("this limiter is closed")
            if self._opened is None:
                self._opened = self._open()
            self._start_sweeper()
            return self._opened

    def _open(self) -> StoredReservations:
        store = self._store
        if isinstance(store, RemoteStore) and store.rules_for({}) is not None:
            from crestgate.limiter.remote_reservations import RemoteReservations

            self._sweeper_pid = os.getpid()  # the service sweeps
            return RemoteReservations(store, self._answer)
        from crestgate.limiter.stored_reservations import StoredReservations
        from crestgate.reservations.factory import open_book

        path = getattr(store, "path", None) if self._spec is None else None
        book = open_book(_first_url(self._spec), path if isinstance(path, str) else None)
        return StoredReservations(book, store.clock.ticks)

    def open_existing(self) -> None:
        """Open the book, and sweep it, if the store may have one already."""
        from crestgate.reservations.factory import may_have_book

        url = _first_url(self._spec)
        if url is not None and may_have_book(url):
            self.open()

    def sweep(self, count: int = SWEEP_ROWS) -> int:
        """Give back what has ended, and forget what is over; how many reservations were looked at."""
        swept: int = run_steps(self.open().sweep(count), self._apply)
        return swept

    def close(self) -> None:
        self._stop.set()
        with self._lock:
            self._closed = True
            if self._opened is not None:
                self._opened.book.close()
                self._opened = None

    def _start_sweeper(self) -> None:
        """Virtual clocks are swept by whoever moves them."""
        if self._sweeper_pid == os.getpid() or not isinstance(self._store.clock, MachineClock):
            return
        self._sweeper_pid = os.getpid()
        self._stop = threading.Event()
        self._sweeper = threading.Thread(
            target=self._sweep_often, args=(self._stop,), name="crestgate-sweep", daemon=True
        )
        self._sweeper.start()

    def _sweep_often(self, stop: threading.Event) -> None:
        failed = False
        while not stop.wait(SWEEP_SECONDS):
            try:
                while self.sweep() >= SWEEP_ROWS and not stop.is_set():
                    pass
                failed = False
            except CrestgateError as error:
                if not failed and not stop.is_set():
                    _log.warning("cannot sweep reservations, will retry: %s", error)
                failed = True
            except Exception:  # noqa: BLE001 - whatever it is, the next turn must come
                if not stop.is_set():
                    _log.exception("unhandled error in sweeping reservations")


def run_steps(steps: Steps, apply: Callable[[Sequence[Request]], BatchOutcomes]) -> Any:
    """Run the steps of a reservation in this thread; their result."""
    from crestgate.limiter.stored_reservations import BookCall

    try:
        step = next(steps)
        while True:
            try:
                result = step.call() if isinstance(step, BookCall) else apply(step)
            except BaseException as error:  # noqa: BLE001 - thrown in: it may have to give something back
                step = steps.throw(error)
            else:
                step = steps.send(result)
    except StopIteration as done:
        return done.value


def _first_url(spec: StoreSpec | None) -> str | None:
    """Of several stores, the one that has the book."""
    if spec is None or isinstance(spec, str):
        return spec
    if isinstance(spec, NamedStores):
        return _first_url(spec.default)
    if isinstance(spec, Migration):
        return _first_url(spec.to)
    return spec[0]
