"""The picture of the frameworks: requests per second without limits and with everybody's, and the targets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.frameworks.entry import BARE, OURS
from benchmarks.frameworks.measure import CONNECTIONS
from benchmarks.frameworks.results import Results, aims
from benchmarks.network.picture import OURS as OUR_COLOUR
from benchmarks.network.picture import SINGLE, THEIRS, figure, frame, targets
from benchmarks.picture import INK

__all__ = ["draw"]


def draw(results: Results, path: Path) -> None:
    """Requests per second above, below them the targets with what was measured."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "headgate"  # the same figures give the same file
    import matplotlib.pyplot as plt

    reached = aims(results)
    heights = [len(results.measured) + 2, len(reached) + 3]
    drawing, (above, below) = plt.subplots(
        2,
        1,
        figsize=(10, 0.32 * sum(heights)),
        facecolor="white",
        layout="constrained",
        gridspec_kw={"height_ratios": heights},
    )
    _rates(above, results)
    targets(below, reached)
    drawing.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=110)
    plt.close(drawing)


def _rates(axes: Any, results: Results) -> None:
    """A bar for each entry; the thin line reaches from the slowest turn to the fastest."""
    shown = results.measured
    rates = [one.median("per_second") for one in shown]
    lows = [min(turn.per_second for turn in one.turns) for one in shown]
    highs = [max(turn.per_second for turn in one.turns) for one in shown]
    colours = {BARE.library: SINGLE, OURS: OUR_COLOUR}
    axes.barh(
        range(len(shown)),
        rates,
        height=0.7,
        color=[colours.get(one.entry.library, THEIRS) for one in shown],
        xerr=[
            [rate - low for rate, low in zip(rates, lows, strict=True)],
            [high - rate for rate, high in zip(rates, highs, strict=True)],
        ],
        error_kw={"ecolor": INK, "elinewidth": 1},
    )
    for row, (rate, high) in enumerate(zip(rates, highs, strict=True)):
        figure(axes, high, row, f"{rate:,.0f}")
    title = f"Requests per second, {CONNECTIONS} connections (lines: slowest to fastest turn)"
    frame(axes, [one.entry.label for one in shown], title)
    axes.set_xlim(0, max(highs) * 1.12)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
