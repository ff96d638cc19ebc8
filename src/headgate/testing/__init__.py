"""For tests: virtual time, and the kit that a store of your own can be held against."""

from headgate.testing.clock import FakeClock
from headgate.testing.conformance import StoreConformance
from headgate.testing.vectors import differences, read_vectors

__all__ = ["FakeClock", "StoreConformance", "differences", "read_vectors"]
