# mypyc: compile
"""Leaky bucket: a queue of size `burst` that releases requests at `count` per `period`, evenly.

A shaping queue: an admitted request should wait for `delay`, so that the output never exceeds the rate. The level (see
`level`) is the queue in units: a request that arrives at level L waits until L has drained.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from crestgate.core.algorithms.level import Level
from crestgate.core.mypyc_types import i64

if TYPE_CHECKING:
    from crestgate.core.limit import Limit

__all__ = ["LeakyBucket"]


@final
class LeakyBucket(Level):
    """The level is the work queued before the request."""

    def __init__(self, limit: Limit, name: str) -> None:
        super().__init__(limit, name)
        self.queues = True

    def delay(self, queued: i64) -> float:
        return int(queued) / int(self.rate) * int(self.tick) / 1_000_000
