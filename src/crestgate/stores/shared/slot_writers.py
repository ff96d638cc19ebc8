# mypyc: compile
"""Which limit wrote a slot: four numbers in its state, from which the algorithm is built again.

A counter may have been written under another limit, or by another process. Its state must then be read by the
algorithm that wrote it.
"""

from __future__ import annotations

import struct
import zlib
from fractions import Fraction
from typing import final

from crestgate.core.algorithms import ALGORITHMS, build
from crestgate.core.algorithms.algorithm import MAX_SAFE_INTEGER, Algorithm
from crestgate.core.algorithms.calendar_window import CALENDAR_WINDOW, calendar_writer
from crestgate.core.bounded_cache import BoundedCache
from crestgate.core.limit import Limit
from crestgate.errors import ConfigError

__all__ = ["Signature", "SlotWriters"]

MAX_CACHED = 10_000
_CALENDAR_CODE = zlib.crc32(CALENDAR_WINDOW.encode())

Signature = tuple[int, int, int, int]
"""Count, capacity, period in microseconds, and CRC-32 of the algorithm's name (`Algorithm.stored_as`)."""


@final
class SlotWriters:
    """Cached conversions between algorithms and their signatures."""

    def __init__(self) -> None:
        self.algorithms: dict[Signature, Algorithm | None] = BoundedCache(MAX_CACHED)
        self.signatures: dict[Algorithm, Signature] = BoundedCache(MAX_CACHED)
        self.packed: dict[Algorithm, bytes] = BoundedCache(MAX_CACHED)

    def signature(self, algorithm: Algorithm) -> Signature:
        signature = self.signatures.get(algorithm)
        if signature is None:
            name, count, capacity, period_us = algorithm.stored_as
            signature = count, capacity, period_us, zlib.crc32(name.encode())
            self.signatures[algorithm] = signature
        return signature

    def packed_signature(self, algorithm: Algorithm) -> bytes:
        """The signature as it is in a slot."""
        packed = self.packed.get(algorithm)
        if packed is None:
            packed = self.packed[algorithm] = struct.pack("@4q", *self.signature(algorithm))
        return packed

    def find(self, signature: Signature) -> Algorithm | None:
        """The algorithm of a signature. None when this process has not registered it: its counters then start fresh.
        ConfigError when no limit can have this signature."""
        if signature not in self.algorithms:
            self.algorithms[signature] = self.rebuild(signature)
        return self.algorithms[signature]

    def rebuild(self, signature: Signature) -> Algorithm | None:
        count, capacity, period_us, code = signature
        if code == _CALENDAR_CODE:
            return calendar_writer(count, capacity, period_us)
        for name, kind in ALGORITHMS.items():
            if zlib.crc32(name.encode()) == code:
                burst = capacity if kind.takes_burst and capacity != count else None
                algorithm = build(Limit(count, Fraction(period_us, 1_000_000), burst, name), "")
                if algorithm.capacity != capacity or algorithm.limit.period_us != period_us:
                    raise ConfigError("capacity and period do not belong to a limit of this count")
                return algorithm
        if not 0 <= code < 1 << 32 or not (
            0 <= count <= MAX_SAFE_INTEGER and 0 <= capacity <= MAX_SAFE_INTEGER and period_us > 0
        ):
            raise ConfigError("not a limit")
        return None
