"""States of circuit breakers as numbers, of all limiters that share an observer."""

from __future__ import annotations

from weakref import WeakSet

from crestgate.limiter.observer import StoreStatus

__all__ = ["BREAKER_LEVELS", "BreakerLevels"]

BREAKER_LEVELS = {"closed": 0, "half-open": 1, "open": 2}


class BreakerLevels:
    """Reads the breakers when metrics are collected. Limiters that no longer exist are left out."""

    def __init__(self) -> None:
        self._statuses: WeakSet[StoreStatus] = WeakSet()

    def add(self, status: StoreStatus) -> None:
        self._statuses.add(status)

    def read(self) -> dict[str, int]:
        """The worst state of each server, by its name: 0 closed, 1 half-open, 2 open."""
        levels: dict[str, int] = {}
        for status in list(self._statuses):
            for server, state in status.breakers().items():
                levels[server] = max(levels.get(server, 0), BREAKER_LEVELS[state])
        return levels
