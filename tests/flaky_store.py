"""A store of one's own (only what the port asks for), which fails when told to."""

from __future__ import annotations

from collections.abc import Sequence

from crestgate.errors import StoreError
from crestgate.stores.memory import MemoryStore
from crestgate.stores.port import Outcome, Request
from crestgate.testing import FakeClock

__all__ = ["Flaky"]


class Flaky:
    """Counts in memory, on virtual time, until it is broken."""

    def __init__(self) -> None:
        self.clock = FakeClock(1_700_000_000)
        self.inner = MemoryStore(clock=self.clock)
        self.broken = False

    def apply(self, batch: Sequence[Request]) -> list[list[Outcome]]:
        if self.broken:
            raise StoreError("the store at nowhere does not answer")
        return self.inner.apply(batch)

    def close(self) -> None:
        self.inner.close()
