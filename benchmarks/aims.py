"""Targets: what was to be reached, what was measured, and whether that is enough."""

from __future__ import annotations

import re
from dataclasses import dataclass

from benchmarks.figures import Spread

__all__ = ["Aim", "at_least", "at_least_rate", "at_most"]


@dataclass(frozen=True)
class Aim:
    """A target, and the median that was measured with its noise."""

    what: str
    target: str
    measured: Spread
    met: bool
    note: str = ""

    @property
    def bound(self) -> float:
        """The target as a number."""
        found = re.search(r"[\d.,]*\d", self.target)
        return float(found[0].replace(",", "")) if found else 0.0

    @property
    def is_ratio(self) -> bool:
        return self.target.endswith("×")


def at_least(what: str, measured: Spread, target: float, note: str = "") -> Aim:
    return Aim(what, f"≥ {target:g}×", measured, measured.median >= target, note)


def at_most(what: str, measured: Spread, target: float, note: str = "") -> Aim:
    return Aim(what, f"≤ {target:g}×", measured, measured.median <= target, note)


def at_least_rate(what: str, measured: Spread, target: int, note: str = "") -> Aim:
    """Of something per second."""
    return Aim(what, f"≥ {target:,}/s", measured, measured.median >= target, note)
