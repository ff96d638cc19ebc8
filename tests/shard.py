"""An in-memory shard that a test can make unavailable."""

from __future__ import annotations

from collections.abc import Sequence

from crestgate.errors import StoreError
from crestgate.stores.memory import MemoryStore
from crestgate.stores.port import BatchOutcomes, Request
from crestgate.stores.remote_store import RemoteStore
from crestgate.testing import FakeClock

__all__ = ["Shard"]


class Shard(RemoteStore):
    """One shard of a sharded store. It fails while `away` is set."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.timeout = 1.0
        self.inner = MemoryStore(clock=clock)
        self.away = False

    def connect(self) -> None:
        pass

    def call(self, batch: Sequence[Request], deadline: float) -> BatchOutcomes:
        if self.away:
            raise StoreError("this place is away")
        return self.inner.apply(batch)

    def close(self) -> None:
        self.inner.close()
