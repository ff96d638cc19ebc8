# mypyc: compile
"""Pressure states of counters: normal, warning, throttled, with hysteresis.

                  above 80 % used              denied, or nothing left
        normal ───────────────────▶ warning ───────────────────────────▶ throttled
          ▲                            │  ▲                                  │
          └────── below 70 % used ─────┘  └──────────── admits again ────────┤
          ▲                                                                  │
          └───────────────────── admits again, below 70 % used ──────────────┘

Only counters that are not normal are stored, at most MAX_COUNTERS: the least recently changed is evicted first, and
counts as normal then.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

from crestgate.core.decision import Decision

__all__ = ["Pressure", "PressureEvent", "pressure_state"]

NORMAL: Final = "normal"
WARNING: Final = "warning"
THROTTLED: Final = "throttled"
MAX_COUNTERS: Final = 100_000


class PressureEvent(NamedTuple):
    """A counter changed its state. One event per transition and process."""

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
    """Pressure states of the counters of one process."""

    def __init__(self) -> None:
        self.states: OrderedDict[tuple[str, str], str] = OrderedDict()

    def record(self, key: str, decision: Decision) -> tuple[str, PressureEvent | None]:
        """Record a decision on one limit: the counter's new state, and the event if it changed."""
        counter = (key, decision.algorithm.name)
        before = self.states.get(counter, NORMAL)
        after = pressure_state(before, decision.allowed, decision.limit, decision.remaining)
        if after == before:
            return after, None
        self.states.pop(counter, None)
        if after != NORMAL:
            if len(self.states) >= MAX_COUNTERS:
                self.states.popitem(last=False)
            self.states[counter] = after
        return after, PressureEvent(key, decision.name, before, after, decision)

    def state(self, key: str, decision: Decision) -> str:
        """The state of a decision, without recording it."""
        before = self.states.get((key, decision.algorithm.name), NORMAL)
        return pressure_state(before, decision.allowed, decision.limit, decision.remaining)

    def forget(self, key: str, name: str) -> None:
        """A counter was reset."""
        self.states.pop((key, name), None)
