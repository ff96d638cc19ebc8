"""What a remote store remembers while a test drives its clock: when each counter will be as good as new.

A store may forget a counter once it is as good as new, and each does so at another moment. A clock that then steps back
would show the difference: the counter counts again where it is still kept. So what was as good as new at the latest
time before the step is forgotten at the step (docs/algorithms.md, "Clocks"). Stores on this machine look through their
counters then; a server cannot be asked for that, so this is kept beside it, and only where a clock is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from headgate.stores.port import Member, Op, Outcome, Request

__all__ = ["DrivenCounters"]

MAX_COUNTERS = 100_000


@final
class DrivenCounters:
    """The counters that were written, and when they end. Not locked: who drives a clock does one thing at a time."""

    def __init__(self) -> None:
        self._latest = 0
        self._ends: dict[tuple[str, str], tuple[int, Member]] = {}  # when, in microseconds

    def advance(self, now: int) -> list[Member]:
        """The clock says `now`: the counters to forget first, which were as good as new before it stepped back."""
        latest, self._latest = self._latest, now
        if now >= latest:
            return []
        drained = [(name, member) for name, (end, member) in list(self._ends.items()) if end <= latest]
        for name, _ in drained:
            del self._ends[name]
        return [member for _, member in drained]

    def note(self, batch: Sequence[Request], replies: Sequence[Sequence[Outcome]], now: int) -> None:
        """Remember what a batch has left. (Peeks leave nothing, and show a counter that is far ahead of the clock as it
        will be once a request has brought it back.)"""
        for request, outcomes in zip(batch, replies, strict=True):
            if request.op is Op.PEEK:
                continue
            for member, outcome in zip(request.members, outcomes, strict=False):  # none if it was decided before
                self._note(request.op, member, now + outcome.decision._reset)

    def _note(self, op: Op, member: Member, end: int) -> None:
        name = member.algorithm.name, member.key
        if op is Op.RESET:
            self._ends.pop(name, None)
        elif member.algorithm.capacity and (member.cost or op is not Op.CHARGE):
            if len(self._ends) >= MAX_COUNTERS and name not in self._ends:
                del self._ends[next(iter(self._ends))]
            self._ends[name] = end, member
