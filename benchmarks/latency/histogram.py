"""Latencies in buckets of equal ratio, because percentiles of several turns cannot be added up, and counts can."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

__all__ = ["bucket_counts", "percentile", "summed"]

WIDTH = 1.01
"""A bucket ends at this many times its beginning: percentiles are exact to one percent."""
_STEP = math.log(WIDTH)


def bucket_counts(microseconds: Iterable[float]) -> dict[int, int]:
    """How many of them are in each bucket; below one microsecond there is one bucket."""
    counts: dict[int, int] = {}
    for value in microseconds:
        bucket = math.ceil(math.log(value) / _STEP) if value > 1 else 0
        counts[bucket] = counts.get(bucket, 0) + 1
    return counts


def summed(histograms: Iterable[Mapping[int, int]]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for histogram in histograms:
        for bucket, count in histogram.items():
            counts[bucket] = counts.get(bucket, 0) + count
    return counts


def percentile(histogram: Mapping[int, int], share: float) -> float:
    """The upper end, in microseconds, of the bucket that this share of all latencies reaches."""
    wanted = math.ceil(share * sum(histogram.values()))
    reached = 0
    for bucket in sorted(histogram):
        reached += histogram[bucket]
        if reached >= wanted:
            return float(WIDTH**bucket)
    raise ValueError("no latencies")
