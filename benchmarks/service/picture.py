"""The picture of the service: requests per second beside the echo, what each thing costs, and the targets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.network.picture import OURS, SINGLE, THEIRS, figure, frame, targets
from benchmarks.picture import INK
from benchmarks.service.results import Measured, Results, aims
from benchmarks.service.wrk import CONNECTIONS

__all__ = ["draw"]


def draw(results: Results, path: Path) -> None:
    """Requests per second above, below them the targets with what was measured."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "headgate"  # the same figures give the same file
    import matplotlib.pyplot as plt

    shown = [
        (f"{outcome.workers} worker{'s' if outcome.workers > 1 else ''}: {one.entry.label}", one)
        for outcome in results.outcomes
        for one in outcome.measured
    ]
    reached = aims(results)
    heights = [len(shown) + 2, len(reached) + 3]
    drawing, (above, below) = plt.subplots(
        2,
        1,
        figsize=(10, 0.32 * sum(heights)),
        facecolor="white",
        layout="constrained",
        gridspec_kw={"height_ratios": heights},
    )
    _rates(above, shown)
    targets(below, reached)
    drawing.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=110)
    plt.close(drawing)


def _rates(axes: Any, shown: list[tuple[str, Measured]]) -> None:
    """A bar for each entry; the thin line reaches from the slowest turn to the fastest."""
    rates = [one.median("per_second") for _, one in shown]
    lows = [min(turn.per_second for turn in one.turns) for _, one in shown]
    highs = [max(turn.per_second for turn in one.turns) for _, one in shown]
    colours = [THEIRS if one.entry.served == "echo" else SINGLE if one.entry.why else OURS for _, one in shown]
    axes.barh(
        range(len(shown)),
        rates,
        height=0.7,
        color=colours,
        xerr=[
            [rate - low for rate, low in zip(rates, lows, strict=True)],
            [high - rate for rate, high in zip(rates, highs, strict=True)],
        ],
        error_kw={"ecolor": INK, "elinewidth": 1},
    )
    for row, ((_, one), high) in enumerate(zip(shown, highs, strict=True)):
        more = f" ({one.decisions:,.0f} decisions)" if one.entry.decisions > 1 else ""
        figure(axes, high, row, f"{one.median('per_second'):,.0f}{more}")
    title = f"Requests per second, {CONNECTIONS} connections (lines: slowest to fastest turn)"
    frame(axes, [name for name, _ in shown], title)
    axes.set_xlim(0, max(highs) * 1.12)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
