"""Waiting by asking again: soon at first, then less and less often, and never all at the same moment."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["poll"]

T = TypeVar("T")
FIRST_NAP = 0.002
LONGEST_NAP = 0.03


def poll(attempt: Callable[[], T | None], seconds: float) -> T | None:
    """The first answer that is not None, or None after so many seconds. Asks once at least, and once at the end."""
    deadline = time.monotonic() + seconds
    nap = FIRST_NAP
    while True:
        left = deadline - time.monotonic()
        answer = attempt()
        if answer is not None or left <= 0:
            return answer
        time.sleep(min(nap * (0.5 + random.random()), left))  # noqa: S311 - no secret, just not all at once
        nap = min(nap * 1.5, LONGEST_NAP)
