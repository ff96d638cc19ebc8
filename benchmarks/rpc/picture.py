"""The chart of gRPC: calls per second of bare echoes and of the service."""

from __future__ import annotations

from pathlib import Path

from benchmarks import rates
from benchmarks.network.picture import OURS as OUR_COLOUR
from benchmarks.network.picture import SINGLE, THEIRS
from benchmarks.rates import Row
from benchmarks.rpc.entry import OURS, Entry
from benchmarks.rpc.results import Results

__all__ = ["draw"]


def draw(results: Results, path: Path) -> None:
    outcome = results.outcomes[0]
    rows = [
        Row(
            f"echo: {one.entry.label}" if one.entry.is_echo else one.entry.label,
            _colour(one.entry),
            [turn.per_second for turn in one.turns],
        )
        for one in outcome.measured
    ]
    title = f"Calls per second, {outcome.connections} connections × {outcome.calls} calls"
    rates.draw(rows, title, (), path)


def _colour(entry: Entry) -> str:
    return SINGLE if entry == OURS else THEIRS if entry.is_echo else OUR_COLOUR
