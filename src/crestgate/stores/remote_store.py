"""Base class of stores with network or disk I/O: what the limiter requires of them beyond the port.

This file is not compiled, so that subclasses of `RemoteStore` need not be compiled either.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from crestgate.core.algorithms.algorithm import Algorithm
from crestgate.runtime.clock import Clock
from crestgate.stores.breaker import Breaker
from crestgate.stores.idempotency import group_by_record
from crestgate.stores.port import BatchCallback, BatchOutcomes, LocalStore, Member, Outcome, Request

__all__ = ["COUNTERS", "DEFAULT_TIMEOUT_MS", "PROBE", "RemoteStore", "store_title"]

DEFAULT_TIMEOUT_MS = 100
PROBE = "crestgate-probe"
"""Key and name of the counter of health probes, which is deleted again."""
COUNTERS = "counters"
"""The default store, in the results of probes: the one of the setting `store`."""


class RemoteStore:
    """A store whose calls wait for I/O, so the limiter batches concurrent requests.

    A batch must be decided, or fail with a StoreError, by its deadline (an instant of `time.monotonic`). What may have
    reached the server is never sent twice. A ValueError (see the port) is raised by `call` and `begin` themselves.
    """

    title: str = "the store"
    """Kind and address, for messages; without any password."""
    clock: Clock
    timeout: float
    """Seconds that a check may take, time in the queue included."""
    max_concurrent_batches: int = 4
    """Batches in flight at once; further requests wait for the next one."""
    on_decided: Callable[[], None] | None = None
    """Called by coalescers after a batch that was decided as a whole: see limiter/outages.py."""
    min_shared_batch: int = 500
    """Requests up to this number are sent as one batch rather than divided among several."""
    locks_counters: bool = False
    """Whether a batch waits for the counters of others in flight. Then requests for the same counters share a batch,
    however large."""
    max_members: int = 500
    """Maximum members of one call; a larger batch is split."""

    several_nodes: bool = False
    """Whether one of several servers may fail alone. Then a batch ends by the deadline of its oldest request, so that
    every caller gets what the others have decided."""

    def title_of(self, member: Member) -> str:
        """The title of the store that has a counter, if this is several stores."""
        return self.title

    def supports(self, algorithm: Algorithm) -> bool:
        """Whether the store can decide by this algorithm (a custom one may exist in Python only)."""
        return True

    def plan_of(self, name: str) -> Algorithm | None:
        """A placeholder for a plan of the store itself, if it has plans: see server_side_limits.py."""
        return None

    def rules_for(self, context: Mapping[str, Any]) -> Member | None:
        """A placeholder for all rules of the store that match a request, if it has rules; its cost is set later."""
        return None

    def allows_local_decisions(self) -> bool:
        """Whether callers may decide from slices of its counters, and by its denials. A service does that itself."""
        return self.rules_for({}) is None

    def reserve(self, request: Request, terms: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[Outcome]]:
        """Reserve by a service that keeps reservations itself; its response, and the outcomes."""
        raise NotImplementedError

    def call_reservation(self, reservation_id: str, action: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Settle or extend such a reservation; the response."""
        raise NotImplementedError

    def breakers(self) -> Mapping[str, Breaker]:
        """The breaker of each server that was called so far, by name; for metrics."""
        return {}

    def store_names(self) -> Sequence[str]:
        """Names of stores that a limit may have as its `store`, if this is several by name."""
        return ()

    def parts(self) -> Mapping[str, LocalStore | RemoteStore]:
        """The stores that this one consists of, by the setting of each (`stores.hot`); empty if it is a single one."""
        return {}

    def counts(self) -> dict[str, int]:
        """Metrics of the store itself in this process, by name."""
        return {}

    def probe_keys(self) -> Sequence[str]:
        """Keys that together have a counter on every server: a probe of all of them reaches every server."""
        return (PROBE,)

    def connect(self) -> None:
        """Connect, so that no check has to; StoreError if that fails."""
        raise NotImplementedError

    def call(self, batch: Sequence[Request], deadline: float) -> BatchOutcomes:
        """Decide, blocking, by the deadline."""
        raise NotImplementedError

    async def connect_async(self) -> None:
        """`connect` for the running event loop."""
        raise NotImplementedError

    def begin(self, batch: Sequence[Request], deadline: float, done: BatchCallback) -> None:
        """Decide on the running event loop without blocking it; `done` is called on it, by the deadline."""
        raise NotImplementedError

    def apply(self, batch: Sequence[Request]) -> BatchOutcomes:
        return self.call(batch, time.monotonic() + self.timeout)

    def fits(self, batch: Sequence[Request]) -> bool:
        """Whether a batch is small enough for one call."""
        return sum([len(request.members) for request in batch]) <= self.max_members

    def pieces(self, batch: Sequence[Request]) -> list[Sequence[Request]]:
        """Split a batch into pieces that fit; a request stays whole, and so do requests with the same record."""
        if self.fits(batch):
            return [batch]
        pieces: list[Sequence[Request]] = []
        piece: list[Request] = []
        members = 0
        for whole in _indivisible(batch):
            size = sum([len(request.members) for request in whole])
            if piece and members + size > self.max_members:
                pieces.append(piece)
                piece, members = [], 0
            piece += whole
            members += size
        return [*pieces, piece]

    def close(self) -> None:
        """Close the connections. Idempotent; a later `call` raises StoreClosedError."""
        raise NotImplementedError

    async def aclose(self) -> None:
        """`close`, and wait until the connections of the running event loop are closed."""
        self.close()


def _indivisible(batch: Sequence[Request]) -> Iterator[Sequence[Request]]:
    """The parts of a batch that must not be split."""
    for group in group_by_record(batch):
        if group[0].record is not None:
            yield group
        else:
            for request in group:
                yield [request]


def store_title(store: object, member: Member | None = None) -> str:
    """Where counters are, or one of them, for messages; without any password."""
    if isinstance(store, RemoteStore):
        return store.title if member is None else store.title_of(member)
    path = getattr(store, "path", None)
    return f"shared memory in {path}" if isinstance(path, str) else "the memory of this process"
