"""Virtual time: a clock that stands still until it is told to move on."""

from __future__ import annotations

__all__ = ["FakeClock"]


class FakeClock:
    """A clock for tests. Give it to a limiter, move it with `advance`, and nothing ever sleeps.

    >>> from headgate import Limiter
    >>> clock = FakeClock(1_700_000_000)
    >>> limiter = Limiter("memory://", clock=clock)
    >>> limiter.check("user:42", "1/minute").allowed, limiter.check("user:42", "1/minute").allowed
    (True, False)
    >>> clock.advance(60)
    >>> limiter.check("user:42", "1/minute").allowed
    True

    Whoever would wait on it (`acquire`, a leaky bucket's delay) moves it on instead.
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
        """Move on by so many seconds (rounded to a microsecond); a negative number is a clock that jumps back."""
        self._ticks += round(seconds * 1_000_000)

    def wait(self, seconds: float) -> float:
        """Somebody would sleep: move on instead. Returns the real seconds to sleep, which are none."""
        self.advance(max(seconds, 0.0))
        return 0.0
