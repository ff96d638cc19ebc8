"""Test utilities: a fake clock, and a conformance test kit for custom stores."""

from crestgate.testing.async_adapter import AsyncStoreAdapter
from crestgate.testing.clock import FakeClock
from crestgate.testing.conformance import StoreConformance
from crestgate.testing.idempotency import IdempotencyConformance
from crestgate.testing.vectors import read_vectors, vector_mismatches

__all__ = [
    "AsyncStoreAdapter",
    "FakeClock",
    "IdempotencyConformance",
    "StoreConformance",
    "read_vectors",
    "vector_mismatches",
]
