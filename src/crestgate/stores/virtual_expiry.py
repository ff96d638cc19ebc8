"""Deletes expired counters of a remote store when a test's clock steps back.

Stores drop fully recovered counters at different times. If the clock then steps back, a counter that is still stored
would count again where others have dropped it. So whatever had recovered at the latest time before the step is deleted
at the step (docs/algorithms.md, "Clocks"). Stores on this machine scan their counters; the counters of a server are
remembered here, and only if a clock is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from crestgate.runtime.clock import Clock
from crestgate.stores.port import BatchOutcomes, Member, Op, Request

__all__ = ["VirtualExpiry"]

MAX_COUNTERS = 100_000


@final
class VirtualExpiry:
    """The counters that may be stored. Not locked: a test that drives a clock sends one batch at a time.

    Before each batch decide `peeks`, if there are any, and `resets` of their outcomes, at `ticks()`; then `note` it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._latest = 0
        self._time_before_step: int | None = None
        self._members: dict[tuple[str, str], Member] = {}

    def ticks(self) -> int:
        """The time to decide by: the clock's, but the time before it stepped back for `peeks`."""
        return self._clock.ticks() if self._time_before_step is None else self._time_before_step

    def peeks(self) -> list[Request]:
        """If the clock stepped back since the last batch, requests that show which counters had expired before."""
        self._time_before_step = None
        now, latest = self._clock.ticks(), self._latest
        self._latest = now
        if now >= latest or not self._members:
            return []
        self._time_before_step = latest
        return [Request(Op.PEEK, [member]) for member in self._members.values()]

    def resets(self, peeks: Sequence[Request], outcomes: BatchOutcomes) -> list[Request]:
        """Requests that delete the counters which these outcomes show as fully recovered."""
        self._time_before_step = None
        resets = []
        for peek, (outcome,) in zip(peeks, outcomes, strict=True):
            (member,) = peek.members
            if outcome.decision.remaining == member.algorithm.capacity:
                resets.append(Request(Op.RESET, [member]))
                del self._members[member.algorithm.name, member.key]
        return resets

    def note(self, batch: Sequence[Request]) -> None:
        """Remember the counters that a batch may write."""
        for request in batch:
            for member in request.members:
                # A limit of 0 writes nothing, and a peek under it shows nothing.
                if request.op is not Op.PEEK and member.algorithm.capacity:
                    name = member.algorithm.name, member.key
                    if len(self._members) >= MAX_COUNTERS and name not in self._members:
                        del self._members[next(iter(self._members))]
                    self._members[name] = Member(member.key, member.algorithm, 0)
