"""The chart of the service: requests per second beside the echo, the cost of each feature, and the targets."""

from __future__ import annotations

from pathlib import Path

from benchmarks import rates
from benchmarks.network.picture import OURS, SINGLE, THEIRS
from benchmarks.rates import Row
from benchmarks.service.results import Measured, Results, aims
from benchmarks.service.wrk import CONNECTIONS

__all__ = ["draw"]


def draw(results: Results, path: Path) -> None:
    rows = [
        _row(f"{outcome.workers} worker{'s' if outcome.workers > 1 else ''}", one)
        for outcome in results.outcomes
        for one in outcome.measured
    ]
    rates.draw(rows, f"Requests per second, {CONNECTIONS} connections", aims(results), path)


def _row(workers: str, one: Measured) -> Row:
    colour = THEIRS if one.entry.served == "echo" else SINGLE if one.entry.why else OURS
    more = f" ({one.decisions:,.0f} decisions)" if one.entry.decisions > 1 else ""
    return Row(f"{workers}: {one.entry.label}", colour, [turn.per_second for turn in one.turns], more)
