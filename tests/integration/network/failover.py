"""Bounds of a failover, computed from the history of a load on one counter that gives nothing back.

Replication is asynchronous, so a server that takes over may not know of the last admissions of the one that died. It
forgets those, and nothing else: whatever was admitted more than the replication's lag before the death is known to it.
So at most as many are admitted too much as were admitted within the lag. (If the new server began with `known` used,
it admits `capacity - known`; and the old one had admitted `known` and what was forgotten.)

What the failure policy let pass meanwhile was never decided by a store, and is counted apart. And what the dying
server counted without being able to say so is used for nothing: that is the other side, admissions that are missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from integration.network.history import Check, admitted, denied

__all__ = ["Failover"]


@dataclass(frozen=True)
class Failover:
    """A load on one counter, and the death of its server between two instants."""

    history: Sequence[Check]
    capacity: int
    before_death: float
    after_death: float

    @property
    def over(self) -> int:
        """How many were admitted by the two servers beyond the capacity; negative if some are missing."""
        assert denied(self.history), "the capacity was not used up, so nothing can be said"
        return len(admitted(self.history)) - self.capacity

    @property
    def outage(self) -> float:
        """Seconds from the death to the first answer of another server."""
        return min(c.end for c in self.history if c.start > self.after_death and c.reason == "ok") - self.before_death

    @property
    def let_pass(self) -> int:
        """How many the failure policy has let pass."""
        return sum(check.reason == "fail_open" for check in self.history)

    @property
    def lost_in_flight(self) -> int:
        """How many the dying server may have counted without being able to say so."""
        return sum(check.reason == "fail_open" and check.start < self.after_death for check in self.history)

    def admitted_since(self, instant: float, surely: bool = False) -> int:
        """How many the old server may have admitted from this instant on; or surely has."""
        old = [check for check in admitted(self.history) if check.start < self.after_death]
        return sum((check.start if surely else check.end) >= instant for check in old)

    def recovered(self, since: float) -> bool:
        """Whether from this instant on the store has answered everything."""
        return {check.reason for check in self.history if check.start > since} <= {"ok", "limited"}

    def figures(self, bound: int) -> str:
        return (
            f"away for {self.outage:.1f} s; admitted too much: {self.over} (bound {bound}), lost in flight: at most "
            f"{self.lost_in_flight}; let pass by on_store_error=open meanwhile: {self.let_pass}"
        )
