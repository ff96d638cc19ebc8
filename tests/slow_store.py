"""A simulated remote store that answers when the test allows it, so that batches can be inspected."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence

from crestgate import Limiter
from crestgate.errors import StoreError
from crestgate.stores.memory import MemoryStore
from crestgate.stores.port import BatchCallback, BatchOutcomes, Request
from crestgate.stores.remote_store import RemoteStore
from crestgate.testing import FakeClock


class SlowStore(RemoteStore):
    """Blocks every call until it is released, and records the batches that were sent."""

    def __init__(self, max_concurrent_batches: int = 1, timeout: float = 5.0, max_members: int = 500) -> None:
        self.clock = FakeClock(1_700_000_000)
        self.inner = MemoryStore(clock=self.clock)
        self.timeout = timeout
        self.max_concurrent_batches = max_concurrent_batches
        self.max_members = max_members
        self.batches: list[list[str]] = []
        self.deadlines: list[float] = []
        self.gate = threading.Semaphore(0)
        self.entered = threading.Semaphore(0)
        self.held: list[tuple[Sequence[Request], BatchCallback]] = []
        self.failure: StoreError | None = None
        self.connected = 0

    def connect(self) -> None:
        self.connected += 1

    async def connect_async(self) -> None:
        self.connected += 1

    def note(self, batch: Sequence[Request], deadline: float) -> None:
        self.batches.append([member.key for request in batch for member in request.members])
        self.deadlines.append(deadline)

    def decide(self, batch: Sequence[Request]) -> BatchOutcomes:
        if self.failure is not None:
            raise self.failure
        return self.inner.apply(batch)

    def call(self, batch: Sequence[Request], deadline: float) -> BatchOutcomes:
        self.note(batch, deadline)
        self.entered.release()
        if not self.gate.acquire(timeout=max(deadline - time.monotonic(), 0.0)):
            raise StoreError("it did not answer in time")
        return self.decide(batch)

    def begin(self, batch: Sequence[Request], deadline: float, done: BatchCallback) -> None:
        self.note(batch, deadline)
        self.held.append((batch, done))

    def answer(self) -> None:
        """Answer the oldest call on the event loop."""
        batch, done = self.held.pop(0)
        try:
            done(self.decide(batch))
        except StoreError as error:
            done(error)

    async def answer_all(self) -> None:
        """Answer calls until no more arrive."""
        while True:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            if not self.held:
                return
            self.answer()

    def used(self, key: str, limit: str) -> int:
        """How much of a limit is used, read from the counters."""
        decision = Limiter(self.inner).peek(key, limit)
        return decision.limit - decision.remaining

    def close(self) -> None:
        self.inner.close()
