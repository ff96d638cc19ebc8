"""A remote store on virtual time, for what several processes keep of its counters."""

from __future__ import annotations

import time
from collections.abc import Sequence

from crestgate.errors import StoreError
from crestgate.stores.memory import MemoryStore
from crestgate.stores.port import BatchCallback, BatchOutcomes, Member, Op, Request
from crestgate.stores.remote_store import RemoteStore
from crestgate.testing import FakeClock

__all__ = ["FakeServer", "ServerClient"]


class FakeServer:
    """The server: counters, and a clock of its own."""

    def __init__(self, start: float = 1_700_000_000) -> None:
        self.clock = FakeClock(start)
        self.inner = MemoryStore(clock=self.clock)
        self.calls = 0
        self.requests: list[Request] = []

    def decide(self, batch: Sequence[Request]) -> BatchOutcomes:
        self.calls += 1
        self.requests += batch
        return self.inner.apply([_without_kept_charges(request) for request in batch])


class ServerClient(RemoteStore):
    """The store of one process: its clock is as far from the server's as the test wants, and an answer takes `delay`.

    `lost` is the number of calls that the server carries out while the client gets no answer.
    """

    def __init__(self, server: FakeServer, offset: float = 0.0, delay: float = 0.0) -> None:
        self.server = server
        self.clock: FakeClock = FakeClock(server.clock.now() + offset)
        self.timeout = 5.0
        self.delay = delay
        self.lost = 0
        self.down = False
        self.held: list[tuple[Sequence[Request], float, BatchCallback]] | None = None
        """Calls of event loops that wait, if this is a list."""

    def advance(self, seconds: float) -> None:
        """Let time pass, on both clocks."""
        self.clock.advance(seconds)
        self.server.clock.advance(seconds)

    def connect(self) -> None:
        """Nothing to do."""

    async def connect_async(self) -> None:
        """Nothing to do."""

    def call(self, batch: Sequence[Request], deadline: float) -> BatchOutcomes:
        if self.down:
            raise StoreError("the server is down")
        self.advance(self.delay / 2)
        replies = self.server.decide(batch)
        self.advance(self.delay / 2)
        if self.lost:
            self.lost -= 1
            raise StoreError("no answer in time")
        return replies

    def begin(self, batch: Sequence[Request], deadline: float, done: BatchCallback) -> None:
        if self.held is not None:
            self.held.append((batch, deadline, done))
            return
        try:
            done(self.call(batch, time.monotonic() + 1))
        except StoreError as error:
            done(error)

    def close(self) -> None:
        """The server stays."""


def _without_kept_charges(request: Request) -> Request:
    """Memory gives back to leased buckets, as nobody else has slices of its counters; shared stores do not."""
    if request.op is not Op.GIVE_BACK:
        return request
    members = [
        Member(m.key, m.algorithm, m.cost, m.binds, m.tick, 0 if m.algorithm.keeps_charges else m.amount)
        for m in request.members
    ]
    return Request(request.op, members, request.record, request.group)
