"""For tests: virtual time, and the kit that a store of your own can be held against."""

from headgate.testing.clock import FakeClock

__all__ = ["FakeClock"]
