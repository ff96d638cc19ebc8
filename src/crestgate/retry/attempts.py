"""The attempts of one request: how many there were, since when, and whether there will be another.

It does no I/O and never waits: a transport or an adapter sends, says what came of it, and is told how long to wait.
"""

from __future__ import annotations

import random

from crestgate.errors import ConfigError
from crestgate.retry.policy import Retry
from crestgate.retry.wait_hints import Headers, suggested_wait
from crestgate.runtime.clock import Clock, MachineClock, wall_minus_monotonic

__all__ = ["Attempts", "check_retry", "machine_clock"]


def machine_clock() -> Clock:
    """Real time. Made anew for each request, so that dates are compared with the time of day as it is now set."""
    return MachineClock(wall_minus_monotonic())


def check_retry(retry: Retry | None, inside: str) -> Retry:
    """The policy that was given, or the usual one; what is none is told at once, not at the first refusal."""
    if retry is not None and not isinstance(retry, Retry):
        raise ConfigError(f"retry must be a Retry such as Retry(attempts=3), not {retry!r}: {inside}= is given by name")
    return Retry() if retry is None else retry


class Attempts:
    """Begun before the first sending. `repeatable` is whether the body can be sent a second time."""

    __slots__ = ("_clock", "_made", "_method", "_repeatable", "_retry", "_started")

    def __init__(self, retry: Retry, method: str, repeatable: bool, clock: Clock) -> None:
        self._retry = retry
        self._method = method
        self._repeatable = repeatable
        self._clock = clock
        self._started = clock.ticks()
        self._made = 0

    def after_response(self, status: int, headers: Headers) -> float | None:
        """Seconds to wait before the request is sent again; None when this response is the last."""
        return self._next(status, headers)

    def after_error(self) -> float | None:
        """The same after a connection that broke, or was never made: None when the error is to be raised."""
        return self._next(None, None)

    def _next(self, status: int | None, headers: Headers | None) -> float | None:
        self._made += 1
        if not self._repeatable or not self._retry.repeats(self._method, status):
            return None
        now = self._clock.ticks()
        suggested = None if headers is None else suggested_wait(headers, now / 1_000_000)
        chance = random.random()  # noqa: S311 - spreads callers; no secret hangs on it
        return self._retry.wait(self._made, suggested, (now - self._started) / 1_000_000, chance)
