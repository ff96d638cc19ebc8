"""GCRA, the generic cell rate algorithm: every request pushes a theoretical arrival time (TAT) ahead by period / count.

A request passes when the TAT it would leave behind is at most `burst` such intervals ahead of now. The TAT is kept
as `time` plus the level drained at `rate` (see `level`): the TAT itself, a fraction of a tick, need not be whole,
but its distance from `time` in units is. It follows that GCRA decides exactly as a token bucket of the same size.
"""

from __future__ import annotations

from typing import final

from headgate.core.algorithms.level import Level

__all__ = ["Gcra"]


@final
class Gcra(Level):
    """The level is the distance from now to the theoretical arrival time."""
