"""Buckets of histograms, the same in the library and in the service, so that one dashboard shows both."""

from __future__ import annotations

from typing import Final

__all__ = ["BATCH_BUCKETS", "DURATION_BUCKETS"]

DURATION_BUCKETS: Final[list[float]] = [
    0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
]  # fmt: skip
"""Seconds: from the memory store to the longest deadline that makes sense."""
BATCH_BUCKETS: Final[list[float]] = [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0]
