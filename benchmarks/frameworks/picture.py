"""The chart of the frameworks: requests per second without limits and with those of each library, and the targets."""

from __future__ import annotations

from pathlib import Path

from benchmarks import rates
from benchmarks.frameworks.entry import BARE, OURS
from benchmarks.frameworks.measure import CONNECTIONS
from benchmarks.frameworks.results import Results, aims
from benchmarks.network.picture import OURS as OUR_COLOUR
from benchmarks.network.picture import SINGLE, THEIRS
from benchmarks.rates import Row

__all__ = ["draw"]


def draw(results: Results, path: Path) -> None:
    colours = {BARE.library: SINGLE, OURS: OUR_COLOUR}
    rows = [
        Row(one.entry.label, colours.get(one.entry.library, THEIRS), [turn.per_second for turn in one.turns])
        for one in results.measured
    ]
    rates.draw(rows, f"Requests per second, {CONNECTIONS} connections", aims(results), path)
