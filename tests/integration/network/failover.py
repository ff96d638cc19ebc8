"""Bounds of a failover, computed from the history of a load on one counter that does not refill.

Replication is asynchronous, so a server that takes over may miss the last admissions of the dead one. It misses only
those: everything admitted earlier than the replication lag before the death was replicated. So the excess is at most
what was admitted within the lag. (If the new server began with `known` used, it admits `capacity - known`; the old one
had admitted `known` and what was lost.)

Requests allowed by the failure policy were not decided by a store, and are counted separately. Requests that the dying
server counted without responding are lost capacity: the opposite error, missing admissions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from integration.network.history import Check, admitted, denied

__all__ = ["Failover"]


@dataclass(frozen=True)
class Failover:
    """A load on one counter, and the death of its server between two times."""

    history: Sequence[Check]
    capacity: int
    before_death: float
    after_death: float

    @property
    def over(self) -> int:
        """How many were admitted by the two servers beyond the capacity; negative if some are missing."""
        assert denied(self.history), "the capacity was not used up, so the excess is unknown"
        return len(admitted(self.history)) - self.capacity

    @property
    def outage(self) -> float:
        """Seconds from the death to the first response of another server."""
        return min(c.end for c in self.history if c.start > self.after_death and c.reason == "ok") - self.before_death

    @property
    def passed_by_policy(self) -> int:
        """How many the failure policy allowed."""
        return sum(check.reason == "fail_open" for check in self.history)

    @property
    def lost_in_flight(self) -> int:
        """How many the dying server may have counted without responding."""
        return sum(check.reason == "fail_open" and check.start < self.after_death for check in self.history)

    def admitted_since(self, instant: float, surely: bool = False) -> int:
        """How many the old server may have (or, with `surely`, certainly has) admitted from this time on."""
        old = [check for check in admitted(self.history) if check.start < self.after_death]
        return sum((check.start if surely else check.end) >= instant for check in old)

    def recovered(self, since: float) -> bool:
        """Whether the store has decided everything from this time on."""
        return {check.reason for check in self.history if check.start > since} <= {"ok", "limited"}

    def figures(self, bound: int) -> str:
        return (
            f"away for {self.outage:.1f} s; admitted too much: {self.over} (bound {bound}), lost in flight: at most "
            f"{self.lost_in_flight}; allowed by on_store_error=open meanwhile: {self.passed_by_policy}"
        )
