"""Leaky bucket: a queue of `burst` places that lets requests out at `count` per `period`, evenly.

A shaping queue: what is admitted should wait `delay` before it goes on, and then the output never exceeds the
rate. The level (see `level`) is the queue, in units: the request that finds it at L waits until L has drained.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from headgate.core.algorithms.level import Level
from headgate.core.words import i64

if TYPE_CHECKING:
    from headgate.core.limit import Limit

__all__ = ["LeakyBucket"]


@final
class LeakyBucket(Level):
    """The level is the work queued before the request."""

    def __init__(self, limit: Limit, name: str) -> None:
        super().__init__(limit, name)
        self.queues = True

    def delay(self, queued: i64) -> float:
        return int(queued) / int(self.rate) * int(self.tick) / 1_000_000
