"""Breakers of several limiters: the worst state of each server, as long as the limiters exist."""

from __future__ import annotations

import gc
from collections.abc import Mapping

from crestgate import StoreStatus
from crestgate.observers.breakers import BreakerLevels
from crestgate.stores.breaker import FAILURES, Breaker
from slow_store import SlowStore


class TwoServers(SlowStore):
    def __init__(self, failing: bool) -> None:
        super().__init__()
        self.servers = {"a": Breaker(), "b": Breaker()}
        if failing:
            for _ in range(FAILURES):
                self.servers["b"].failed(0.0)  # so long ago that the next request is a probe

    def breakers(self) -> Mapping[str, Breaker]:
        return self.servers


def test_worst_state_of_each_server() -> None:
    levels = BreakerLevels()
    calm, failing = StoreStatus(TwoServers(False)), StoreStatus(TwoServers(True))
    levels.add(failing)
    levels.add(calm)
    assert levels.read() == {"a": 0, "b": 1}
    del failing
    gc.collect()
    assert levels.read() == {"a": 0, "b": 0}
    del calm
    gc.collect()
    assert levels.read() == {}
