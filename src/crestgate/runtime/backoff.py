"""Polling with exponential backoff and jitter."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["poll"]

T = TypeVar("T")
FIRST_DELAY = 0.002
MAX_DELAY = 0.03


def poll(attempt: Callable[[], T | None], seconds: float) -> T | None:
    """The first result that is not None, or None after so many seconds. Tries at least once, and once at the end."""
    deadline = time.monotonic() + seconds
    delay = FIRST_DELAY
    while True:
        remaining_seconds = deadline - time.monotonic()
        result = attempt()
        if result is not None or remaining_seconds <= 0:
            return result
        time.sleep(min(delay * (0.5 + random.random()), remaining_seconds))  # noqa: S311 - jitter, no secret
        delay = min(delay * 1.5, MAX_DELAY)
