# mypyc: compile
"""GCRA, the generic cell rate algorithm: every request pushes a theoretical arrival time (TAT) ahead by period / count.

A request passes if its new TAT is at most `burst` such intervals ahead of now. The TAT is stored as `time` plus the
level drained at `rate` (see `level`): the TAT itself may be a fraction of a tick, but its distance from `time` in units
is an integer. So GCRA decides exactly as a token bucket of the same size.
"""

from __future__ import annotations

from typing import final

from crestgate.core.algorithms.level import Level

__all__ = ["Gcra"]


@final
class Gcra(Level):
    """The level is the distance from now to the theoretical arrival time."""
