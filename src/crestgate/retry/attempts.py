"""State of the attempts of one request: their number, the start, and whether to retry.

Does no I/O and never waits: a transport or adapter sends, reports the outcome, and gets the seconds to wait.
"""

from __future__ import annotations

import random

from crestgate.errors import ConfigError
from crestgate.retry.policy import Retry
from crestgate.retry.wait_hints import ResponseHeaders, suggested_wait
from crestgate.runtime.clock import Clock, MachineClock, wall_minus_monotonic

__all__ = ["Attempts", "check_retry", "machine_clock"]


def machine_clock() -> Clock:
    """Real time. Created for each request, so that dates are compared with the current wall clock."""
    return MachineClock(wall_minus_monotonic())


def check_retry(retry: Retry | None, inside: str) -> Retry:
    """The given policy or the default. Checks its type now rather than at the first retry."""
    if retry is not None and not isinstance(retry, Retry):
        raise ConfigError(f"retry must be a Retry such as Retry(attempts=3), not {retry!r}: pass {inside}= by name")
    return Retry() if retry is None else retry


class Attempts:
    """Create it before the first attempt. `repeatable` is whether the body can be sent a second time."""

    __slots__ = ("_clock", "_count", "_method", "_repeatable", "_retry", "_started")

    def __init__(self, retry: Retry, method: str, repeatable: bool, clock: Clock) -> None:
        self._retry = retry
        self._method = method
        self._repeatable = repeatable
        self._clock = clock
        self._started = clock.ticks()
        self._count = 0

    def after_response(self, status: int, headers: ResponseHeaders) -> float | None:
        """Seconds to wait before the next attempt; None when this response is final."""
        return self._next(status, headers)

    def after_error(self) -> float | None:
        """The same after a connection error: None when the error is to be raised."""
        return self._next(None, None)

    def _next(self, status: int | None, headers: ResponseHeaders | None) -> float | None:
        self._count += 1
        if not self._repeatable or not self._retry.repeats(self._method, status):
            return None
        now = self._clock.ticks()
        suggested = None if headers is None else suggested_wait(headers, now / 1_000_000)
        chance = random.random()  # noqa: S311 - jitter, not a secret
        return self._retry.wait(self._count, suggested, (now - self._started) / 1_000_000, chance)
