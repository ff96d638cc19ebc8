"""Virtual time: a clock that only moves when a test advances it."""

from __future__ import annotations

__all__ = ["FakeClock"]


class FakeClock:
    """A clock for tests. Pass it to a limiter and move it with `advance`; nothing ever sleeps.

    >>> from crestgate import Limiter
    >>> clock = FakeClock(1_700_000_000)
    >>> limiter = Limiter("memory://", clock=clock)
    >>> limiter.check("user:42", "1/minute").allowed, limiter.check("user:42", "1/minute").allowed
    (True, False)
    >>> clock.advance(60)
    >>> limiter.check("user:42", "1/minute").allowed
    True

    Calls that would sleep (`acquire`, a leaky bucket's delay) advance it instead.
    """

    def __init__(self, start_seconds: float = 0.0) -> None:
        self._ticks = round(start_seconds * 1_000_000)

    def now(self) -> float:
        """The time in seconds."""
        return self._ticks / 1_000_000

    def ticks(self) -> int:
        """The time in whole microseconds."""
        return self._ticks

    def advance(self, seconds: float) -> None:
        """Advance by this many seconds (rounded to a microsecond); a negative number steps back."""
        self._ticks += round(seconds * 1_000_000)

    def wait(self, seconds: float) -> float:
        """Called in place of a sleep: advance instead. Returns the real seconds to sleep, which is zero."""
        self.advance(max(seconds, 0.0))
        return 0.0
