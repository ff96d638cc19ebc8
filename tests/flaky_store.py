"""A custom store that implements only the port, and fails on demand."""

from __future__ import annotations

from collections.abc import Sequence

from crestgate.errors import StoreError
from crestgate.stores.memory import MemoryStore
from crestgate.stores.port import Outcome, Request
from crestgate.testing import FakeClock

__all__ = ["Flaky"]


class Flaky:
    """Counts in memory, on virtual time; raises while `broken` is set."""

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
