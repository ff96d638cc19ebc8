"""Pressure on a counter: normal, warning, throttled, with enough hysteresis not to flutter.

                  above 80 % used              denied, or nothing left
        normal ───────────────────▶ warning ───────────────────────────▶ throttled
          ▲                            │  ▲                                  │
          └────── below 70 % used ─────┘  └──────────── admits again ────────┤
          ▲                                                                  │
          └───────────────────── admits again, below 70 % used ──────────────┘

Only counters under pressure are remembered, at most `MOST` of them: the least recently changed is forgotten
first, and is then normal until it says otherwise.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from headgate.core.decision import Decision

__all__ = ["Pressure", "PressureEvent", "pressure_state"]

NORMAL = "normal"
WARNING = "warning"
THROTTLED = "throttled"
MOST = 100_000


class PressureEvent(NamedTuple):
    """A counter went from one state to another. Said once per transition and process."""

    key: str
    name: str
    before: str
    after: str
    decision: Decision


def pressure_state(before: str, allowed: bool, limit: int, remaining: int) -> str:
    """The state of a counter after a decision, from its state before.

    >>> pressure_state("normal", True, 100, 19), pressure_state("warning", True, 100, 25)
    ('warning', 'warning')
    >>> pressure_state("throttled", True, 100, 10), pressure_state("throttled", True, 100, 31)
    ('warning', 'normal')
    """
    if not allowed or remaining <= 0:
        return THROTTLED
    used = limit - remaining
    if used * 5 > limit * 4:
        return WARNING
    if used * 10 < limit * 7 or before == NORMAL:
        return NORMAL
    return WARNING


class Pressure:
    """The counters of one process that are not normal."""

    def __init__(self) -> None:
        self.states: OrderedDict[tuple[str, str], str] = OrderedDict()

    def see(self, key: str, decision: Decision) -> tuple[str, PressureEvent | None]:
        """Take note of a decision on one limit: the counter's state now, and the event if it changed."""
        counter = (key, decision._algorithm.name)
        before = self.states.get(counter, NORMAL)
        after = pressure_state(before, decision.allowed, decision.limit, decision.remaining)
        if after == before:
            return after, None
        self.states.pop(counter, None)
        if after != NORMAL:
            if len(self.states) >= MOST:
                self.states.popitem(last=False)
            self.states[counter] = after
        return after, PressureEvent(key, decision.name, before, after, decision)

    def state(self, key: str, decision: Decision) -> str:
        """The state that goes with a decision, without taking note of it."""
        before = self.states.get((key, decision._algorithm.name), NORMAL)
        return pressure_state(before, decision.allowed, decision.limit, decision.remaining)

    def forget(self, key: str, name: str) -> None:
        """A counter was reset."""
        self.states.pop((key, name), None)
