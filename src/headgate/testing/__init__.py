"""For tests: virtual time, and the kit that a store of your own can be held against."""

from headgate.testing.clock import FakeClock
from headgate.testing.conformance import StoreConformance
from headgate.testing.on_loop import OnLoop
from headgate.testing.once import OnceConformance
from headgate.testing.vectors import differences, read_vectors

__all__ = ["FakeClock", "OnLoop", "OnceConformance", "StoreConformance", "differences", "read_vectors"]
